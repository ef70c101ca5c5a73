// Runs larderctl as an operator does: takes its arguments, and returns what it wrote and its exit
// code.
//
// Thread-safety: calls are independent of each other.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace larder::e2e {

struct CtlOptions {
  std::string socket_dir = {};
  // Written to standard input, which then ends.  On a terminal it is typed once larderctl has asked
  // a question "[y/N]".
  std::string input = {};
  unsigned short columns = 0;  // width of a terminal that is all three streams; 0: pipes
  std::optional<uid_t> uid = {};
  bool reader_gone = false;                   // its standard output is a pipe without a reader
  std::string signal_at = {};                 // SIGINT once any stream contains this text
  std::string shell_line = {};                // run by bash instead, with larderctl in PATH
  std::string folder = {};                    // its working directory; default: the test's
  std::vector<std::string> environment = {};  // "NAME=value", added to the test's environment
};

struct CtlOutcome {
  int code = -1;         // exit code, or 128 + the signal that ended it
  std::string out, err;  // on a terminal everything is in `out`
};

[[nodiscard]] CtlOutcome RunCtl(const std::vector<std::string>& arguments,
                                const CtlOptions& options);
// Returns the columns that the longest line takes on a terminal.
[[nodiscard]] size_t LongestLine(const std::string& text);

}  // namespace larder::e2e
