// Records which memory of the process copies may use, and which of it the device can access
// directly.
//
// Ranges of memory are cut into pieces, because registering them with the driver takes long and the
// driver may refuse one piece and accept another.  A copy is cut where pieces end, because the
// driver requires that a copy's source, and its destination, lies in a single registration.
//
// Ownership: the registry holds addresses only; the code that adds a range must remove it.
// Thread-safety: any thread may call any method.
// Limits: none of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

enum class PieceState : uint8_t { kPending = 1, kRegistered = 2, kReadOnly = 3, kRefused = 4 };

class PinRegistry {
 public:
  // A part of a copy: memory of the process.  `direct` is true if the device can access this memory
  // directly.
  struct Part {
    uint64_t begin = 0;
    uint64_t bytes = 0;
    bool direct = false;
  };

  // Adds a range of memory, none of whose pieces is registered or refused yet.  Returns
  // AlreadyExists if the range overlaps one that was added and not removed.
  [[nodiscard]] absl::Status Add(uint64_t begin, uint64_t bytes, uint64_t piece_bytes,
                                 PinAccess access) LARDER_EXCLUDES(mu_);
  void Remove(uint64_t begin) LARDER_EXCLUDES(mu_);
  void Set(uint64_t begin, size_t piece, PieceState state) LARDER_EXCLUDES(mu_);

  // Appends the parts of [begin, begin + bytes) to *parts.  `written` is true if the copy writes to
  // this memory.  Returns InvalidArgument, and appends nothing, if the memory does not lie in one
  // range, or if `written` is true and the range was added with PinAccess::kRead.
  [[nodiscard]] absl::Status Split(uint64_t begin, uint64_t bytes, bool written,
                                   std::vector<Part>* parts) const LARDER_EXCLUDES(mu_);

  // Adds the bytes of all ranges to *stats, by the state of their pieces.
  void Tell(DeviceStats* stats) const LARDER_EXCLUDES(mu_);

 private:
  struct Range {
    uint64_t bytes = 0;
    uint64_t piece_bytes = 0;
    bool writable = true;
    std::vector<PieceState> pieces;
  };
  mutable Mutex mu_;
  std::map<uint64_t, Range> ranges_ LARDER_GUARDED_BY(mu_);  // by first byte
};

}  // namespace larder
