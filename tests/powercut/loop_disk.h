// An ext4 file system on a loop device over one file, the image, and what the image holds when the
// power is lost.
//
//   auto disk = LoopDisk::Make(image, MiB(256), folder);  // a fresh one, mounted at `folder`
//   disk->CopyImage(other);                // while its writers are stopped; it is not synced
//   auto after = LoopDisk::Mount(other, elsewhere);       // its journal is replayed
//
// What the inner file system keeps in the page cache is not in the image, only what it has written
// to its device, because of a sync or by itself.  What it wrote counts as durable even if it was
// not flushed; disk_replay.h covers such losses.
// REQUIRES: root, loop devices and mkfs.ext4; WhyNot names what is missing.  WhyNot gives the
// process its own mount namespace: the mounts end with the process, and the loop devices with their
// mounts.
// Ownership: owns the mount, not the image.
// Thread-safety: none.
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
  // Returns an empty string if loop disks work here.  REQUIRES: no thread has started that must see
  // the mounts.
  [[nodiscard]] static std::string WhyNot();

  // REQUIRES: `folder` exists.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LoopDisk>> Make(const std::string& image,
                                                                      ByteCount bytes,
                                                                      const std::string& folder);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LoopDisk>> Mount(const std::string& image,
                                                                       const std::string& folder);
  ~LoopDisk();  // unmounts like a proper shutdown
  LoopDisk(const LoopDisk&) = delete;
  LoopDisk& operator=(const LoopDisk&) = delete;

  // The kernel may write to the device during a copy.  The copy is repeated until nothing was
  // written during it.  Returns the number of copies.
  [[nodiscard]] absl::StatusOr<int> CopyImage(const std::string& to) const;

 private:
  LoopDisk(std::string image, std::string folder, int device);
  // Returns a value that changes when something is written to the device.
  [[nodiscard]] std::string Written() const;

  const std::string image_, folder_;
  const int device_;  // its number
};

}  // namespace larder::powercut
