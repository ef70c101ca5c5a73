// A directory on the disk of the build tree (not in memory), removed at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "storage/check.h"

namespace larder::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::current_path() / "disk-test-XXXXXX").string();
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
