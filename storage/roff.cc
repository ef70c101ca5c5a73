#include "storage/roff.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "storage/text.h"

namespace larder {
namespace {

// Returns `text` as one line of roff: hyphens stay the ASCII characters that a user types, and the
// line does not begin with a control character of roff.
std::string Quoted(std::string_view text) {
  std::string out = absl::StrReplaceAll(
      AbslView(text), {{"\\", "\\e"}, {"-", "\\-"}, {"\n", " "}, {"\"", "\\(dq"}});
  if (out.starts_with(".") || out.starts_with("'")) out.insert(0, "\\&");
  return out;
}

}  // namespace

ManPageWriter::ManPageWriter(std::string_view name, int section, std::string_view version,
                             std::string_view what) {
  const std::string program(name);
  // The header has no date, so that the same sources make the same page.
  out_ = absl::StrCat(".TH ", absl::AsciiStrToUpper(program), " ", section, " \"\" \"larder ",
                      std::string(version), "\" \"Larder\"\n.SH NAME\n", program, " \\- ",
                      Quoted(what), "\n");
}

void ManPageWriter::Section(std::string_view heading) {
  absl::StrAppend(&out_, ".SH ", Quoted(heading), "\n");
}

void ManPageWriter::Subsection(std::string_view heading) {
  absl::StrAppend(&out_, ".SS ", Quoted(heading), "\n");
}

void ManPageWriter::Text(std::string_view text) {
  for (const absl::string_view paragraph : absl::StrSplit(AbslView(text), "\n\n")) {
    absl::StrAppend(&out_, ".PP\n", Quoted({paragraph.data(), paragraph.size()}), "\n");
  }
}

void ManPageWriter::Item(std::string_view term, std::string_view text) {
  absl::StrAppend(&out_, ".TP\n\\fB", Quoted(term), "\\fR\n", Quoted(text), "\n");
}

void ManPageWriter::Command(std::string_view line) {
  absl::StrAppend(&out_, ".PP\n.nf\n.RS\n", Quoted(line), "\n.RE\n.fi\n");
}

}  // namespace larder
