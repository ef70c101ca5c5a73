#include "server/connections/socket_group.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace larder {

absl::StatusOr<std::optional<gid_t>> FindGroup(const std::string& text) {
  if (text.empty()) return std::optional<gid_t>();
  gid_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // The largest gid means "no group" to the kernel.
  if (error == std::errc() && end == text.data() + text.size() && number != static_cast<gid_t>(-1))
    return std::optional(number);
  std::vector<char> buffer(1 << 16);
  struct group entry {};
  struct group* found = nullptr;
  const int failed = getgrnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return std::optional(found->gr_gid);
  return absl::NotFoundError(absl::StrCat(
      "this host has no group ", text, failed == 0 ? "" : absl::StrCat(" (", strerror(failed), ")"),
      ": create it (groupadd --system ", text, "), or choose another one"));
}

absl::Status HandToGroup(const std::string& path, std::optional<gid_t> group, mode_t mode) {
  if (group && chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0) {
    const int error = errno;
    const std::string why =
        absl::StrCat(path, " cannot be given to group ", *group, " (", strerror(error), ")");
    if (error != EPERM) return absl::UnavailableError(why);
    return absl::PermissionDeniedError(
        absl::StrCat(why, ": run larderd as a user that is in that group, or as root"));
  }
  if (chmod(path.c_str(), mode) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path, " cannot be given its mode (", strerror(errno), ")"));
}

}  // namespace larder
