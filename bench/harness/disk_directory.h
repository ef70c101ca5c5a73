// A directory for benchmarks of the disk: beside the program, so on the disk of the build tree and
// below build/; removed at the end.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder::bench {

// Calls run(path) with such a directory.
template <class Run>
[[nodiscard]] absl::Status InDiskDirectory(Run run) {
  std::error_code error;
  std::string path =
      (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "bench-disk-XXXXXX")
          .string();
  if (error || mkdtemp(path.data()) == nullptr)
    return absl::ErrnoToStatus(errno, "cannot make a directory beside the program");
  const absl::Status status = run(path);
  std::filesystem::remove_all(path, error);
  return status;
}

}  // namespace larder::bench
