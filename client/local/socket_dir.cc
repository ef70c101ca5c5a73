#include "client/local/socket_dir.h"

#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read only
  return value == nullptr ? "" : value;
}

bool IsDirectory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

std::string SocketDir(const std::string& given) {
  if (!given.empty()) return given;
  if (std::string dir = FromEnvironment("LARDER_SOCKET_DIR"); !dir.empty()) return dir;
  constexpr char kSystem[] = "/run/larder";
  const std::string runtime = FromEnvironment("XDG_RUNTIME_DIR");
  if (IsDirectory(kSystem) || runtime.empty()) return kSystem;
  return absl::StrCat(runtime, "/larder");
}

}  // namespace larder
