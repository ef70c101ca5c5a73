// The shared page of one session: words by which the daemon tells the client, without a message,
// that a lease or a reservation still holds.
//
// A word holds the id of its lease or reservation while that holds, and 0 or another id afterwards.
// A reader copies, then loads the word (acquire, after a fence), and discards the copy when the
// word is not its id. So: Clear comes before the extent is given to anybody else, and as extents
// change hands through locks and sockets, whoever saw the new bytes sees the cleared word. The page
// does not know leases, and does not wait for readers. Values are never used twice in one page, be
// they ids of leases or of reservations: words are used again at once.
//
// Ownership: the memfd and the daemon's mapping of it, of the session. A client's mapping lives on.
// Nobody else ever writes: descriptors are opened read-only, and the memfd is sealed against every
// later writable mapping.
// Thread-safety: all methods from any thread.
// Lifecycle: Create -> AllocateWord -> Clear ... -> destroyed; the words keep their last values, so
// the session's owner clears all first (ClearAll).
// Limits: kWords words.  Needs Linux 5.1 (F_SEAL_FUTURE_WRITE) and /proc.
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

  // A word that holds `value` from now on.  Nothing when all are in use.  REQUIRES: value != 0.
  [[nodiscard]] std::optional<uint32_t> AllocateWord(uint64_t value);
  // Another value in a word in use.  REQUIRES: it is in use (CHECKed), value != 0.
  void Set(uint32_t index, uint64_t value);
  // Ends what `value` promised and frees the word.  Nothing happens, and false comes back, when the
  // word does not hold `value` (revoked before): it may be somebody else's by now.
  bool Clear(uint32_t index, uint64_t value);
  void ClearAll();

  // For tests and debug dumps; what a client sees.
  [[nodiscard]] uint64_t Load(uint32_t index) const;
  [[nodiscard]] uint32_t words_used() const;

  // A read-only descriptor for the client, with an open file of its own; the caller owns it.
  [[nodiscard]] absl::StatusOr<int> OpenDescriptor() const;

 private:
  SessionPage(FileDescriptor memfd, std::span<uint64_t> words);
  void Store(uint32_t index, uint64_t value) LARDER_REQUIRES(mu_);

  const FileDescriptor memfd_;
  const std::span<uint64_t> words_;  // read and written as atomics only
  mutable Mutex mu_;
  std::vector<uint32_t> free_ LARDER_GUARDED_BY(mu_);  // last in, first out: few cache lines in use
};

}  // namespace larder
