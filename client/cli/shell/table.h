// Rows under headings, no wider than the terminal: columns that may be cut are cut until it fits.
//
// Ownership: values.  Thread-safety: none.  Cells are printable (text.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace larder::cli {

class Table {
 public:
  enum class Kind { kText, kNumber, kMayBeCut };  // a number stands to the right
  struct Column {
    std::string heading;
    Kind kind = Kind::kText;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as columns.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  // `width` 0: as wide as it is.
  [[nodiscard]] std::string Format(size_t width) const;

 private:
  [[nodiscard]] std::vector<size_t> Widths(size_t width) const;

  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "pool   1 GiB" lines; what does not fit goes on below its value.
[[nodiscard]] std::string FormatFacts(const std::vector<std::pair<std::string, std::string>>& facts,
                                      size_t width);

// What does not fit ends with "..".
[[nodiscard]] std::string Cut(const std::string& text, size_t width);

}  // namespace larder::cli
