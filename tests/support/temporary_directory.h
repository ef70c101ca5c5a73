// A directory beside the test program, so on the disk of the build tree (not in memory) from
// wherever that is started; removed at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "storage/check.h"

namespace larder::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    std::string name = (program.parent_path() / "disk-test-XXXXXX").string();
    LARDER_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace larder::testing
