// The data files of one shard: equal, preallocated, numbered 0, 1, 2 ...; read and written past the
// page cache.
//
// They hold pages and do not know of what: which are in use is for an ExtentAllocator, whether they
// are right for the reader's hashes.
// Ownership: made by DiskShard.  Owns the descriptors, never the directory.
// Thread-safety: Read, Write and Sync from any thread; AddFile from one at a time, and a file only
// after AddFile answered.
// Limits: `files_max`; a file of at most kSlabBytesLimit.  Offsets, lengths and addresses are whole
// pages.
// Where the file system knows no O_DIRECT (some tmpfs), files go through the page cache: direct()
// says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fault_points.h"
#include "storage/types.h"

namespace larder {

class DataFiles {
 public:
  struct Options {
    std::string directory;  // exists
    ByteCount file_bytes;   // a multiple of the page size
    uint32_t files_max = 0;
    FaultPoints* faults = nullptr;  // not null
  };
  // Opens what a former process left.  A file that is gone or has another size is made whole again,
  // with zeros where bytes are missing (what was there fails its check); files from files_max on
  // are removed.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DataFiles>> Open(const Options& options);
  ~DataFiles();
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;

  [[nodiscard]] uint32_t count() const { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] bool direct() const { return direct_; }

  // One more, preallocated.  ResourceExhausted: files_max, or the disk is full.
  [[nodiscard]] absl::Status AddFile();

  // All of it, or an error (then any part may have been done).  REQUIRES: inside the file.
  [[nodiscard]] absl::Status Write(uint32_t file, uint64_t offset,
                                   std::span<const std::span<const std::byte>> from);
  [[nodiscard]] absl::Status Read(uint32_t file, uint64_t offset,
                                  std::span<const std::span<std::byte>> to);
  // What was written before survives a loss of power.
  [[nodiscard]] absl::Status Sync(uint32_t file);

  [[nodiscard]] std::string PathOf(uint32_t file) const;

 private:
  explicit DataFiles(const Options& options);
  [[nodiscard]] absl::Status OpenOne(uint32_t file);

  const Options options_;
  std::vector<int> fds_;  // of files_max; [0, count_) are open
  std::atomic<uint32_t> count_{0};
  bool direct_ = true;
};

}  // namespace larder
