// A directory for a test, removed with everything in it at the end.
//
// Ownership: owns the directory.
// Thread-safety: const after construction.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "storage/check.h"

namespace larder {

class TemporaryDirectory {
 public:
  // By default it lies beside the test program, which is on the disk of the build tree and not in
  // memory, wherever the program is started.  Socket files need a parent with a shorter path.
  explicit TemporaryDirectory(const std::filesystem::path& parent = BesideProgram(),
                              std::string_view stem = "larder-test-") {
    std::string name = (parent / stem).string() + "XXXXXX";
    LARDER_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  [[nodiscard]] static std::filesystem::path BesideProgram() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path();
  }

  std::string path_;
};

// The same among the system's temporary files, whose paths are short enough for socket files.
class TemporarySocketDirectory : public TemporaryDirectory {
 public:
  TemporarySocketDirectory()
      : TemporaryDirectory(std::filesystem::temp_directory_path(), "larder-test-") {}
};

}  // namespace larder
