// Rows under headings, no wider than the terminal: the widest column that may be cut is shortened
// until a row fits.
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

// Lines such as "pool   1 GiB".  A value that does not fit continues on the next line, below its
// beginning.
[[nodiscard]] std::string FormatFacts(const std::vector<std::pair<std::string, std::string>>& facts,
                                      size_t width);

// Shortens text that is wider than `width`, and ends it with "..".
[[nodiscard]] std::string Cut(const std::string& text, size_t width);

}  // namespace larder::cli
