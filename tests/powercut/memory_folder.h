// A folder in memory if there is enough, and otherwise among the system's temporary files; removed
// with everything in it. Tests use it to examine what a program wrote, so the files need not
// outlive the machine.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>

#include "tests/support/temporary_directory.h"

namespace larder::powercut {

class MemoryFolder {
 public:
  [[nodiscard]] const std::string& path() const { return directory_.path(); }

 private:
  static constexpr std::string_view kStem = "larder-power-";

  // Returns true for "larder-power-PID-XXXXXX" of a process that no longer exists.
  [[nodiscard]] static bool IsLeftBehind(std::string_view name) {
    if (!name.starts_with(kStem)) return false;
    name.remove_prefix(kStem.size());
    pid_t owner = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), owner);
    const bool is_one =
        error == std::errc() && owner > 0 && end != name.data() + name.size() && *end == '-';
    return is_one && kill(owner, 0) != 0 && errno == ESRCH;
  }
  // A killed process removed nothing, and memory is scarcer than disk space.
  static void RemoveLeftBehind(const std::filesystem::path& parent) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
      std::error_code ignored;  // another test may remove it at the same time
      if (IsLeftBehind(entry.path().filename().string()))
        std::filesystem::remove_all(entry.path(), ignored);
    }
  }

  // Returns a parent with enough space, after removing the folders of killed processes from it.
  [[nodiscard]] static std::filesystem::path Parent() {
    constexpr uintmax_t kNeeded = uintmax_t{2} << 30;
    std::error_code error;
    const std::filesystem::path memory = "/dev/shm";
    const auto space = std::filesystem::space(memory, error);
    const bool fits =
        !error && space.available != static_cast<uintmax_t>(-1) && space.available >= kNeeded;
    const std::filesystem::path parent = fits ? memory : std::filesystem::temp_directory_path();
    RemoveLeftBehind(parent);
    return parent;
  }

  const TemporaryDirectory directory_{Parent(),
                                      std::string(kStem) + std::to_string(getpid()) + "-"};
};

}  // namespace larder::powercut
