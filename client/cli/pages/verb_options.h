// Declares the options and arguments of one verb.  The parser, --help, the manual page and the
// completions are made from what is declared.
//
// `name` is "--long", "-s,--long", or, for an argument, a word without dashes.  `value` is what
// --help calls the value, for example "NAME".  `help` is in sentences; a default that is not empty
// or 0 is appended to it.  A wrong value is reported before the verb runs.
//
// Ownership: borrows the App, which keeps the pointers `to`: what they point to must outlive it.
// Thread-safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace CLI {  // CLI11
class App;
}

namespace larder::cli {

class VerbOptions {
 public:
  explicit VerbOptions(CLI::App& app) : app_(app) {}

  void AddText(const std::string& name, std::string* to, const std::string& value,
               const std::string& help);
  // An option that may be given several times, with one value each time.
  void AddTexts(const std::string& name, std::vector<std::string>* to, const std::string& value,
                const std::string& help);
  // An argument of any number of words.
  void AddWords(const std::string& name, std::vector<std::string>* to, const std::string& help);
  // The value is one of `words`.
  void AddWord(const std::string& name, std::string* to, const std::vector<std::string>& words,
               const std::string& help);
  void AddNumber(const std::string& name, uint64_t* to, const std::string& value,
                 const std::string& help);
  // The default is not appended to the help of these two.
  void AddDuration(const std::string& name, std::chrono::milliseconds* to, const std::string& help);
  void AddBytes(const std::string& name, uint64_t* to, const std::string& help);
  void AddFlag(const std::string& name, bool* to, const std::string& help);

 private:
  CLI::App& app_;
};

}  // namespace larder::cli
