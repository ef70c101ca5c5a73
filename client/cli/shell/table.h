// Rows under headings, no wider than a given width: the widest columns that may be cut are
// shortened, to 8 characters at least, until the rows fit.  If they still do not fit, each line is
// cut.
//
// Ownership: values.  Thread-safety: none.  Limits: cells are printable ASCII (storage/text.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace larder::cli {

class Table {
 public:
  enum class Kind { kText, kNumber, kMayBeCut };  // a number is aligned to the right
  struct Column {
    std::string heading;
    Kind kind = Kind::kText;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: the row has as many cells as there are columns.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  // A `width` of 0 is no limit.
  [[nodiscard]] std::string Format(size_t width) const;

 private:
  [[nodiscard]] std::vector<size_t> Widths(size_t width) const;

  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns lines such as "pool   1 GiB".  A value that does not fit into `width` continues on the
// next line, below its beginning.  A `width` of 0 is no limit.
[[nodiscard]] std::string FormatFacts(const std::vector<std::pair<std::string, std::string>>& facts,
                                      size_t width);

// Returns `text`, shortened to `width` characters if it has more.  Shortened text ends with ".." if
// `width` is above 2.  A `width` of 0 is no limit.
[[nodiscard]] std::string Cut(const std::string& text, size_t width);

}  // namespace larder::cli
