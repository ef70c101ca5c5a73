// A temporary directory of a benchmark, removed with all its contents at the end.
//
// Ownership: owns the directory.  Thread-safety: const after it is made.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/status_macros.h"

namespace larder::bench {

class TempDir {
 public:
  // Among the system's temporary files, whose paths are short enough for socket files.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TempDir>> Make() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) return absl::UnavailableError("TMPDIR names no directory: " + error.message());
    return MakeIn(parent);
  }
  // Beside the program, and so on the disk of the build tree and below build/.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TempDir>> MakeOnDisk() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return absl::UnavailableError("cannot read /proc/self/exe: " + error.message());
    return MakeIn(program.parent_path());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TempDir>> MakeIn(
      const std::filesystem::path& parent) {
    std::string path = (parent / "larder-bench-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr)
      return absl::ErrnoToStatus(errno, "cannot make a directory in " + parent.string());
    return std::unique_ptr<TempDir>(new TempDir(std::move(path)));
  }

  std::string path_;
};

// Calls run(path) with a directory on the disk of the build tree.
template <class Run>
[[nodiscard]] absl::Status InDiskDirectory(Run run) {
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<TempDir> directory, TempDir::MakeOnDisk());
  return run(directory->path());
}

}  // namespace larder::bench
