// The data files of one shard: of equal size, preallocated, numbered 0, 1, 2 ..., and read and
// written past the page cache where the file system supports it.
//
// This class does not know what the pages contain or which of them are in use; DiskShard checks
// what it reads by hashes.
// Ownership: made by DiskShard.  Owns the file descriptors.
// Thread-safety: Read, Write and Sync from any thread; AddFile from one thread at a time.  A file
// may be used only after Open or AddFile has returned.
// Limits: Options::files_max files.  Offsets in files, and addresses and lengths of buffers, are
// multiples of the page size (4 KiB).
// If the file system does not support O_DIRECT (some tmpfs), files go through the page cache, and
// direct() returns false.
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
  // Removes files numbered files_max and above, then opens files 0 to the highest number that a
  // former process left.  A file that is missing or has another size becomes one of file_bytes,
  // with zeros for missing bytes (records that lay there then fail their check).  Returns an error
  // if any of this fails.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DataFiles>> Open(const Options& options);
  ~DataFiles();
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;

  [[nodiscard]] uint32_t count() const { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] bool direct() const { return direct_; }

  // Adds one preallocated file.  Returns ResourceExhausted if there are files_max files or the disk
  // is full, or another error; count() is unchanged then.
  [[nodiscard]] absl::Status AddFile();

  // Writes the spans one after the other from `offset` on.  After an error any part of the bytes
  // may have been written.
  // REQUIRES: file < count(); the range is inside the file.
  [[nodiscard]] absl::Status Write(uint32_t file, uint64_t offset,
                                   std::span<const std::span<const std::byte>> from);
  // Reads from `offset` on into the spans, one after the other.  After an error any part of them
  // may have been overwritten.
  // REQUIRES: file < count(); the range is inside the file.
  [[nodiscard]] absl::Status Read(uint32_t file, uint64_t offset,
                                  std::span<const std::span<std::byte>> to);
  // On OK everything that was written to the file before the call survives a loss of power.
  [[nodiscard]] absl::Status Sync(uint32_t file);

  [[nodiscard]] std::string PathOf(uint32_t file) const;

 private:
  explicit DataFiles(const Options& options);
  [[nodiscard]] absl::Status OpenOne(uint32_t file);

  const Options options_;
  std::vector<int> fds_;  // files_max descriptors; those with index < count_ are open
  std::atomic<uint32_t> count_{0};
  bool direct_ = true;
};

}  // namespace larder
