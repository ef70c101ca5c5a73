#include "storage/memory/host_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace larder {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// A limit that a control group may have, and the files that state it in version 1 and in version 2
// of control groups.
struct Limit {
  struct Files {
    const char* mount;  // the usual mount point of the hierarchy
    const char* limit;
    const char* usage;
  };
  const char* controller;  // its name in /proc/self/cgroup, in version 1
  Files version1;
  Files version2;
  bool counts_cache;  // `usage` includes page cache, which the kernel reclaims under pressure
};
constexpr Limit kMemory = {
    .controller = "memory",
    .version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
    .version2 = {"/sys/fs/cgroup", "memory.max", "memory.current"},
    .counts_cache = true};
// The limit for the huge pages that processes of a control group use.
constexpr Limit kHugePages = {
    .controller = "hugetlb",
    .version1 = {"/sys/fs/cgroup/hugetlb", "hugetlb.2MB.limit_in_bytes",
                 "hugetlb.2MB.usage_in_bytes"},
    .version2 = {"/sys/fs/cgroup", "hugetlb.2MB.max", "hugetlb.2MB.current"},
    .counts_cache = false};
// The limit for the huge pages that mappings of a control group have reserved, used or not.
constexpr Limit kReservedHugePages = {
    .controller = "hugetlb",
    .version1 = {"/sys/fs/cgroup/hugetlb", "hugetlb.2MB.rsvd.limit_in_bytes",
                 "hugetlb.2MB.rsvd.usage_in_bytes"},
    .version2 = {"/sys/fs/cgroup", "hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current"},
    .counts_cache = false};

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  uint64_t value = 0;
  // The result is nullopt for "max" too, which cgroup v2 writes for no limit.
  if (!absl::SimpleAtoi(ReadText(path), &value)) return std::nullopt;
  return value;
}

// Returns the number after `key` in a text of lines "key value [unit]".
std::optional<uint64_t> Field(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uint64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

// Returns the bytes of the page cache of a group and the groups below it.  In version 1 only the
// total_* values include the groups below.
uint64_t CacheOf(const std::string& group) {
  const std::string stat = ReadText(absl::StrCat(group, "/memory.stat"));
  uint64_t cache = 0;
  for (const char* kind : {"inactive_file", "active_file"}) {
    const auto total = Field(stat, absl::StrCat("total_", kind));
    cache += total ? *total : Field(stat, kind).value_or(0);
  }
  return cache;
}

// Returns how many bytes the limit of this one group leaves available, or kUnknown if the group has
// no limit that can be read.
uint64_t Room(const std::string& group, const Limit::Files& files, bool counts_cache) {
  const std::optional<uint64_t> limit = ReadNumber(absl::StrCat(group, "/", files.limit));
  if (!limit) return kUnknown;
  const uint64_t usage = ReadNumber(absl::StrCat(group, "/", files.usage)).value_or(0);
  const uint64_t cache = counts_cache ? CacheOf(group) : 0;
  const uint64_t used = usage - std::min(usage, cache);
  return *limit - std::min(*limit, used);
}

// Returns the least that the limits of `group` and of the groups above it leave available, or
// kUnknown if none of them has a limit.  In a container the path that /proc/self/cgroup names may
// not exist below the mount.  The limit at the mount itself still applies then, usually that of the
// container's own group.
uint64_t RoomUpwards(const std::string& root, std::string group, const Limit::Files& files,
                     bool counts_cache) {
  const std::string mount = absl::StrCat(root, files.mount);
  uint64_t room = kUnknown;
  while (true) {
    while (absl::EndsWith(group, "/")) group.pop_back();
    room = std::min(room, Room(absl::StrCat(mount, group), files, counts_cache));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return room;
    group.resize(slash);
  }
}

uint64_t ControlGroupRoom(const std::string& root, const Limit& limit) {
  uint64_t room = kUnknown;
  const std::string groups = ReadText(absl::StrCat(root, "/proc/self/cgroup"));
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    // "4:memory:/path" is version 1, "0::/path" version 2.
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const std::string path(parts[2]);
    if (std::find(controllers.begin(), controllers.end(), limit.controller) != controllers.end()) {
      room = std::min(room, RoomUpwards(root, path, limit.version1, limit.counts_cache));
    } else if (parts[0] == "0" && parts[1].empty()) {
      room = std::min(room, RoomUpwards(root, path, limit.version2, limit.counts_cache));
    }
  }
  return room;
}

ByteCount HugePagesFree(const std::string& root) {
  const std::string pages = absl::StrCat(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/");
  const uint64_t free_pages = ReadNumber(pages + "free_hugepages").value_or(0);
  const uint64_t reserved = ReadNumber(pages + "resv_hugepages").value_or(0);
  const ByteCount host = MiB(2 * (free_pages - std::min(free_pages, reserved)));
  return std::min({host, ByteCount(ControlGroupRoom(root, kHugePages)),
                   ByteCount(ControlGroupRoom(root, kReservedHugePages))});
}

}  // namespace

HostMemory ReadHostMemory(const std::string& root) {
  uint64_t available = kUnknown;
  if (const auto kib = Field(ReadText(absl::StrCat(root, "/proc/meminfo")), "MemAvailable:")) {
    available = *kib * 1024;
  }
  return {.available = ByteCount(std::min(available, ControlGroupRoom(root, kMemory))),
          .huge_pages_free = HugePagesFree(root)};
}

}  // namespace larder
