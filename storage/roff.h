// Makes the text of a manual page, section by section, with the macros of man(7).
//
// Callers pass plain text, which is escaped for roff, except the constructor's `name` and
// `version`.
// Thread-safety: none.
#pragma once

#include <string>
#include <string_view>

namespace larder {

class ManPageWriter {
 public:
  // For example `name` "larderctl", `section` 1, `what` "queries and controls larderd".
  ManPageWriter(std::string_view name, int section, std::string_view version,
                std::string_view what);

  void Section(std::string_view heading);
  void Subsection(std::string_view heading);
  // Adds the paragraphs of `text`, which blank lines separate.
  void Text(std::string_view text);
  // Adds a term, in bold, and the text that explains it.
  void Item(std::string_view term, std::string_view text);
  // Adds a command line, as the user types it, on a line of its own.
  void Command(std::string_view line);
  [[nodiscard]] std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace larder
