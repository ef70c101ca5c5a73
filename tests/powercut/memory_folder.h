// A folder in memory where there is room, else among the system's temporary files; removed with all
// that is in it.  What a test asks of it is what a program wrote, not that it outlives the machine.
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

  // "larder-power-PID-XXXXXX" of a process that has gone.
  [[nodiscard]] static bool IsLeftBehind(std::string_view name) {
    if (!name.starts_with(kStem)) return false;
    name.remove_prefix(kStem.size());
    pid_t owner = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), owner);
    const bool is_one =
        error == std::errc() && owner > 0 && end != name.data() + name.size() && *end == '-';
    return is_one && kill(owner, 0) != 0 && errno == ESRCH;
  }
  // A process that was killed removed nothing, and memory is scarcer than disk.
  static void RemoveLeftBehind(const std::filesystem::path& parent) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
      std::error_code ignored;  // another test may be as quick
      if (IsLeftBehind(entry.path().filename().string()))
        std::filesystem::remove_all(entry.path(), ignored);
    }
  }

  // A parent with enough space, from which the directories of killed processes were removed.
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
