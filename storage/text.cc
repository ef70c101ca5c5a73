#include "storage/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace larder {
namespace {

class Lines {
 public:
  Lines(size_t width, size_t indent, std::string_view first)
      : width_(width), indent_(indent), out_(first), column_(first.size()), fresh_(true) {}

  void Add(std::string_view word) {
    if (!fresh_ && width_ != 0 && column_ + 1 + word.size() > width_) NewLine();
    if (!fresh_) Put(" ");
    fresh_ = false;
    while (width_ > indent_ && column_ + word.size() > width_) {
      const size_t room = width_ - std::min(column_, width_);
      Put(word.substr(0, room));
      word.remove_prefix(room);
      NewLine();
      fresh_ = false;
    }
    Put(word);
  }
  void NewLine() {
    while (out_.ends_with(' ')) out_.pop_back();
    absl::StrAppend(&out_, "\n", std::string(indent_, ' '));
    column_ = indent_;
    fresh_ = true;
  }
  std::string Take() && {
    while (out_.ends_with(' ') || out_.ends_with('\n')) out_.pop_back();
    return std::move(out_) + "\n";
  }

 private:
  void Put(std::string_view text) {
    out_.append(text);
    column_ += text.size();
  }
  const size_t width_, indent_;
  std::string out_;
  size_t column_;
  bool fresh_;  // the current line has no word yet
};

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      out += c;
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return out;
}

std::string Wrap(std::string_view text, size_t width, size_t indent, std::string_view first) {
  Lines lines(width, indent, first);
  bool begun = false;
  for (const absl::string_view paragraph : absl::StrSplit(AbslView(text), "\n\n")) {
    if (std::exchange(begun, true)) {
      lines.NewLine();
      lines.NewLine();
    }
    for (const absl::string_view word :
         absl::StrSplit(paragraph, absl::ByAnyChar(" \n"), absl::SkipEmpty()))
      lines.Add({word.data(), word.size()});
  }
  return std::move(lines).Take();
}

std::string FormatBytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (bytes >= 1023.95 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  const bool whole = unit == 0 || bytes >= 99.95 || std::abs(bytes - std::round(bytes)) < 0.05;
  return absl::StrFormat("%.*f %s", whole ? 0 : 1, bytes, kUnits[unit]);
}

std::string FormatCount(uint64_t count) {
  std::string digits = absl::StrCat(count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string FormatSeconds(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-";
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 3600) return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  if (whole < 86'400) return absl::StrFormat("%d h %d min", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%d d %d h", whole / 86'400, whole / 3600 % 24);
}

std::string FormatShare(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f %%", 100 * part / whole) : "-";
}

namespace {

// Returns the optimal string alignment distance, in which two swapped adjacent letters count once.
size_t Slips(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string_view NearestName(std::string_view name, std::span<const std::string_view> names) {
  constexpr size_t kNameBytesMax = 64;  // a longer name is not worth the computation
  std::string_view nearest;
  size_t least = name.size() / 3 + 1;
  if (name.size() > kNameBytesMax) return nearest;
  for (const std::string_view candidate : names) {
    const size_t slips = Slips(name, candidate);
    if (slips < least) {
      least = slips;
      nearest = candidate;
    }
  }
  if (!nearest.empty() || name.size() < 2) return nearest;
  // No name is near: return the first that begins with `name`.
  for (const std::string_view candidate : names) {
    if (candidate.starts_with(name)) return candidate;
  }
  return nearest;
}

}  // namespace larder
