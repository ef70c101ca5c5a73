#include "client/cli/shell/table.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

constexpr size_t kBetween = 2;   // blanks between columns
constexpr size_t kCutLeast = 8;  // no column is cut below this

}  // namespace

std::string Cut(const std::string& text, size_t width) {
  if (width == 0 || text.size() <= width) return text;
  return width <= 2 ? text.substr(0, width) : text.substr(0, width - 2) + "..";
}

std::vector<size_t> Table::Widths(size_t width) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t most = columns_[i].heading.size();
    for (const std::vector<std::string>& row : rows_) most = std::max(most, row[i].size());
    widths.push_back(most);
  }
  const auto total = [&] {
    return std::accumulate(widths.begin(), widths.end(), kBetween * (widths.size() - 1));
  };
  while (width != 0 && total() > width) {
    size_t* widest = nullptr;
    for (size_t i = 0; i < widths.size(); ++i) {
      if (columns_[i].kind != Kind::kMayBeCut || widths[i] <= kCutLeast) continue;
      if (widest == nullptr || widths[i] > *widest) widest = &widths[i];
    }
    if (widest == nullptr) break;
    --*widest;
  }
  return widths;
}

std::string Table::Format(size_t width) const {
  const std::vector<size_t> widths = Widths(width);
  std::string out;
  const auto add = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = Cut(cell_of(i), widths[i]);
      const std::string blanks(widths[i] - std::min(widths[i], cell.size()), ' ');
      if (i > 0) line.append(kBetween, ' ');
      line += columns_[i].kind == Kind::kNumber ? blanks + cell : cell + blanks;
    }
    while (line.ends_with(' ')) line.pop_back();
    absl::StrAppend(&out, Cut(line, width), "\n");
  };
  add([&](size_t i) { return columns_[i].heading; });
  for (const std::vector<std::string>& row : rows_) add([&](size_t i) { return row[i]; });
  return out;
}

std::string FormatFacts(const std::vector<std::pair<std::string, std::string>>& facts,
                        size_t width) {
  size_t most = 0;
  for (const auto& [name, value] : facts) most = std::max(most, name.size());
  std::string out;
  for (const auto& [name, value] : facts) {
    const std::string first = name + std::string(most - name.size() + kBetween, ' ');
    out += Wrap(value, width, first.size(), first);
  }
  return out;
}

}  // namespace larder::cli
