// An ext4 of its own, on a loop device over one file (the image); and what the image is when the
// power goes.
//
//   auto disk = LoopDisk::Make(image, MiB(256), folder);  // a fresh one, mounted at `folder`
//   disk->CopyImage(other);                // while its writers are stopped; it is not synced
//   auto after = LoopDisk::Mount(other, elsewhere);       // its journal is replayed
//
// What the inner file system keeps in the page cache is not in the image: only what it has written
// to its device, by a sync or by itself.  What it wrote counts as durable though it was not
// flushed: such losses are for disk_replay.h.
// Needs root, loop devices and mkfs.ext4; WhyNot says what is missing.  WhyNot gives the process
// mounts of its own: they end with it, and loop devices with their mounts.
// Ownership: the mount; never the image.  Thread-safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder::powercut {

class LoopDisk {
 public:
  // Empty: it can be done here.  REQUIRES: before any thread is started that is to see the mounts.
  [[nodiscard]] static std::string WhyNot();

  // `folder` must be there.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LoopDisk>> Make(const std::string& image,
                                                                      ByteCount bytes,
                                                                      const std::string& folder);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LoopDisk>> Mount(const std::string& image,
                                                                       const std::string& folder);
  ~LoopDisk();  // as a proper shutdown would
  LoopDisk(const LoopDisk&) = delete;
  LoopDisk& operator=(const LoopDisk&) = delete;

  // The kernel may write while it is copied: then again, until a copy was made in which nothing was
  // written.  Answers how often.
  [[nodiscard]] absl::StatusOr<int> CopyImage(const std::string& to) const;

 private:
  LoopDisk(std::string image, std::string folder, int device);
  // Changes when something is written to the device.
  [[nodiscard]] std::string Written() const;

  const std::string image_, folder_;
  const int device_;  // its number
};

}  // namespace larder::powercut
