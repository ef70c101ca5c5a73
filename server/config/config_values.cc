#include "server/config/config_values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "storage/text.h"

namespace larder {
namespace {

template <class... Parts>
absl::Status Bad(std::string_view text, const Parts&... what) {
  constexpr size_t kShown = 80;
  const std::string shown = absl::CHexEscape(AbslView(text.substr(0, kShown)));
  const char* const cut = text.size() > kShown ? "..." : "";
  return absl::InvalidArgumentError(absl::StrCat("\"", shown, cut, "\" ", what...));
}

// Parses all of `text` as a T.  Returns false if that fails.
template <class T>
bool ToNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

// Splits "1.5GiB" into {"1.5", "GiB"}; spaces before the unit are allowed.
std::pair<std::string_view, std::string_view> SplitUnit(std::string_view text) {
  size_t digits = text.find_first_not_of("0123456789.");
  if (digits == std::string_view::npos) digits = text.size();
  std::string_view unit = text.substr(digits);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  return {text.substr(0, digits), unit};
}

template <size_t N>
const double* FindUnit(const std::array<std::pair<std::string_view, double>, N>& units,
                       std::string_view unit) {
  for (const auto& [name, factor] : units) {
    if (name == unit) return &factor;
  }
  return nullptr;
}

constexpr double kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024, kTiB = kGiB * 1024;
constexpr std::array<std::pair<std::string_view, double>, 10> kSizeUnits{{{"", 1},
                                                                          {"B", 1},
                                                                          {"KiB", kKiB},
                                                                          {"MiB", kMiB},
                                                                          {"GiB", kGiB},
                                                                          {"TiB", kTiB},
                                                                          {"kB", 1e3},
                                                                          {"MB", 1e6},
                                                                          {"GB", 1e9},
                                                                          {"TB", 1e12}}};
constexpr std::array<std::pair<std::string_view, double>, 4> kTimeUnits{
    {{"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}};

bool IsLoopback(const std::string& host, bool bracketed) {
  in_addr v4{};
  in6_addr v6{};
  if (bracketed) return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

}  // namespace

absl::StatusOr<ByteCount> ParseSize(std::string_view text) {
  const auto [number, unit] = SplitUnit(text);
  uint64_t whole = 0;
  if (unit.empty() && ToNumber(number, &whole) && whole <= uint64_t{1} << 62) {
    return ByteCount(whole);  // exact even beyond 2^53, which a double is not
  }
  double value = 0;
  if (!ToNumber(number, &value)) {
    return Bad(text, "is not a size: write a number and a unit, such as 8GiB or 512MiB");
  }
  const double* const factor = FindUnit(kSizeUnits, unit);
  if (factor == nullptr) {
    return Bad(text,
               "has an unknown unit: write KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, "
               "GB, TB (powers of 1000)");
  }
  const double bytes = value * *factor;
  if (bytes > std::ldexp(1.0, 62)) return Bad(text, "is too large: at most 4194304TiB");
  if (bytes != std::floor(bytes)) return Bad(text, "is not a whole number of bytes");
  return ByteCount(static_cast<uint64_t>(bytes));
}

std::string FormatSize(ByteCount bytes) {
  constexpr std::array<const char*, 4> kNames{"TiB", "GiB", "MiB", "KiB"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    const uint64_t unit = uint64_t{1} << (40 - 10 * i);
    if (bytes.value() != 0 && bytes.value() % unit == 0) {
      return absl::StrCat(bytes.value() / unit, kNames[i]);
    }
  }
  return absl::StrCat(bytes.value());
}

absl::StatusOr<Duration> ParseDuration(std::string_view text) {
  const auto [number, unit] = SplitUnit(text);
  double value = 0;
  const double* const factor = FindUnit(kTimeUnits, unit);
  if (!ToNumber(number, &value) || factor == nullptr) {
    return Bad(text, "is not a duration: write a number and ms, s, min or h, such as 30s");
  }
  const double ns = value * *factor;
  if (ns > 7 * 24 * 3600e9) return Bad(text, "is too long: at most a week (168h)");
  return Duration(std::llround(ns));
}

absl::StatusOr<double> ParseShare(std::string_view text, double low, double high) {
  const bool percent = !text.empty() && text.back() == '%';
  double value = 0;
  if (!ToNumber(percent ? text.substr(0, text.size() - 1) : text, &value)) {
    return Bad(text, "is not a share: write a fraction such as 0.25, or 25%");
  }
  if (percent) value /= 100;
  if (!(value >= low && value <= high)) {  // also refuses NaN
    return Bad(text, "is out of range: write ", low, " to ", high);
  }
  return value;
}

absl::StatusOr<uint32_t> ParseCount(std::string_view text, uint32_t low, uint32_t high) {
  uint32_t value = 0;
  const bool octal_look = text.size() > 1 && text.front() == '0';
  if (octal_look || !ToNumber(text, &value) || value < low || value > high) {
    return Bad(text, "is not a whole number from ", low, " to ", high);
  }
  return value;
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return Bad(text, "is neither true nor false");
}

absl::StatusOr<mode_t> ParseSocketMode(std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with("0o")) digits.remove_prefix(2);
  uint32_t mode = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), mode, 8);
  // The leading zero is required, because a number without it may be meant as decimal.
  if (error != std::errc() || end != digits.data() + digits.size() || text.front() != '0') {
    return Bad(text, "is not an octal mode: write it with a leading zero, such as 0660");
  }
  if ((mode & ~0666U) != 0 || (mode & 0600U) != 0600U) {
    return Bad(text, "is not a mode for a socket file: write 0600, 0660 or 0666");
  }
  return static_cast<mode_t>(mode);
}

absl::StatusOr<std::vector<uid_t>> ParseUids(std::string_view text, uid_t self) {
  constexpr size_t kUidsMax = 1024;
  std::vector<uid_t> uids;
  if (text.empty() || text == "none") return uids;
  for (absl::string_view part : absl::StrSplit(AbslView(text), ',')) {
    uid_t uid = self;
    // The largest uid means "no uid" to the kernel.
    if (part != "self" && (!ToNumber(std::string_view(part.data(), part.size()), &uid) ||
                           uid == static_cast<uid_t>(-1))) {
      return Bad(text,
                 "is not a list of uids: write numbers or self, separated by commas, such as "
                 "self,1001; write none, or nothing, for no user");
    }
    uids.push_back(uid);
  }
  std::sort(uids.begin(), uids.end());
  uids.erase(std::unique(uids.begin(), uids.end()), uids.end());
  if (uids.size() > kUidsMax) return Bad(text, "names more than ", kUidsMax, " uids");
  return uids;
}

absl::StatusOr<std::string> ParseLoopbackAddress(std::string_view text) {
  if (text.empty()) return std::string();
  const size_t colon = text.rfind(':');
  uint16_t port = 0;
  if (colon == std::string_view::npos || !ToNumber(text.substr(colon + 1), &port)) {
    return Bad(text, "is not HOST:PORT: write 127.0.0.1:9464, or nothing to serve no metrics");
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string bind(host == "localhost" && !bracketed ? "127.0.0.1" : host);
  if (!IsLoopback(bind, bracketed)) {
    return Bad(text,
               "is not a loopback address: metrics are served without authentication, so only to "
               "this host; write 127.0.0.1:9464 or [::1]:9464, and use a proxy with "
               "authentication to reach them from other hosts");
  }
  return bracketed ? absl::StrCat("[", bind, "]:", port) : absl::StrCat(bind, ":", port);
}

}  // namespace larder
