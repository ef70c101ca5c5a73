// The shared page of one session: words by which the client sees, without a message, whether a
// lease or a reservation is still valid.
//
// A word holds the id of its lease or reservation until that ends or is revoked, and 0 or another
// id afterwards.  A client that reads the pool in place copies a block, then loads the word of its
// lease (memory order acquire, after a fence), and discards the copy if the word does not hold the
// lease's id.  So Clear must be called before the extent is given to another holder.  Extents
// change hands through locks and sockets, so a reader that has seen the new bytes also sees the
// cleared word.  The page does not know leases, and does not wait for readers.
// A freed word may be reused at once, so the session must never store the same value twice in one
// page, whether the value is the id of a lease or of a reservation.
//
// Ownership: the session owns the page, which owns the memfd and the daemon's mapping of it.  A
// client's mapping may outlive the page.  Only the daemon ever writes: clients get read-only
// descriptors, and the memfd is sealed against later writable mappings.
// Thread-safety: all methods from any thread.
// Locks: mu_ is a leaf.
// Lifecycle: Create -> AllocateWord -> Clear ... -> ClearAll -> destroyed.  Without ClearAll, the
// words would keep their last values in a client's mapping.
// Limits: kWords words.  Needs Linux 5.14 (MADV_POPULATE_WRITE) and /proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class SessionPage {
 public:
  static constexpr uint32_t kWords = 4096;
  static constexpr ByteCount kBytes{kWords * sizeof(uint64_t)};

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionPage>> Create();
  ~SessionPage();
  SessionPage(const SessionPage&) = delete;
  SessionPage& operator=(const SessionPage&) = delete;

  // Stores `value` in a free word and returns its index, or nullopt if all words are in use.
  // REQUIRES: value != 0.
  [[nodiscard]] std::optional<uint32_t> AllocateWord(uint64_t value);
  // Stores another value in a word.  REQUIRES: the word is in use (CHECKed), value != 0.
  void Set(uint32_t index, uint64_t value);
  // Sets the word to 0 and frees it.  Does nothing and returns false if the word does not hold
  // `value`, for example because it was cleared before and allocated again.  REQUIRES: value != 0.
  bool Clear(uint32_t index, uint64_t value);
  void ClearAll();

  // Returns what a client sees.
  [[nodiscard]] uint64_t Load(uint32_t index) const;

  // Returns a read-only descriptor for the client, with an open file description of its own; the
  // caller must close it.
  [[nodiscard]] absl::StatusOr<int> OpenDescriptor() const;

 private:
  SessionPage(FileDescriptor memfd, std::span<uint64_t> words);
  void Store(uint32_t index, uint64_t value) LARDER_REQUIRES(mu_);

  const FileDescriptor memfd_;
  const std::span<uint64_t> words_;  // read and written as atomics only
  mutable Mutex mu_;
  std::vector<uint32_t> free_ LARDER_GUARDED_BY(mu_);  // last in, first out, to use few cache lines
};

}  // namespace larder
