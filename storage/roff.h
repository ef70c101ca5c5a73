// A manual page, written section by section; man(7) macros.  Of both programs.
//
// Takes plain text and quotes what roff would take for its own.
// Thread-safety: none.
#pragma once

#include <string>
#include <string_view>

namespace larder::cli {

class ManPageWriter {
 public:
  // `name` "larderctl", `section` 1, `what` "asks and steers larderd".
  ManPageWriter(std::string_view name, int section, std::string_view version,
                std::string_view what);

  void Section(std::string_view heading);
  void Subsection(std::string_view heading);
  // Paragraphs, separated by blank lines.
  void Text(std::string_view text);
  // A term and what it means.
  void Item(std::string_view term, std::string_view text);
  // A command line as it is typed.
  void Command(std::string_view line);
  [[nodiscard]] std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace larder::cli
