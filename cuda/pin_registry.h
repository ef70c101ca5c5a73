// Which memory of the process copies may name, and which of it a device can reach itself.
//
// Ranges are cut into pieces, since registering takes long (it touches every page) and one piece
// may be refused where another was not; a copy is cut where pieces end, for the driver wants both
// ends of a copy in one registration.
//
// Ownership: numbers only; whoever adds a range registers it, and removes it.
// Thread-safety: all methods from any thread.
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
  // A part of a copy; `direct`: the device can reach it itself.
  struct Part {
    uint64_t begin = 0;
    uint64_t bytes = 0;
    bool direct = false;
  };

  // All pieces pending.  AlreadyExists: a known range overlaps it.
  [[nodiscard]] absl::Status Add(uint64_t begin, uint64_t bytes, uint64_t piece_bytes,
                                 PinAccess access) LARDER_EXCLUDES(mu_);
  void Remove(uint64_t begin) LARDER_EXCLUDES(mu_);
  void Set(uint64_t begin, size_t piece, PieceState state) LARDER_EXCLUDES(mu_);

  // Appends the parts of [begin, begin + bytes).  `written`: the copy goes there.  InvalidArgument:
  // not all of it is known, or it is to be read only; then nothing was appended.
  [[nodiscard]] absl::Status Split(uint64_t begin, uint64_t bytes, bool written,
                                   std::vector<Part>* parts) const LARDER_EXCLUDES(mu_);

  // Its bytes, by state.
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
