#include "cuda/pin_registry.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace larder {

absl::Status PinRegistry::Add(uint64_t begin, uint64_t bytes, uint64_t piece_bytes,
                              PinAccess access) {
  MutexLock lock(mu_);
  const auto after = ranges_.lower_bound(begin);
  const bool overlaps_next = after != ranges_.end() && after->first - begin < bytes;
  const bool overlaps_previous =
      after != ranges_.begin() && begin - std::prev(after)->first < std::prev(after)->second.bytes;
  if (overlaps_next || overlaps_previous)
    return absl::AlreadyExistsError("some of this memory is pinned already");
  const size_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  ranges_[begin] = {bytes, piece_bytes, access == PinAccess::kReadWrite,
                    std::vector(pieces, PieceState::kPending)};
  return absl::OkStatus();
}

void PinRegistry::Remove(uint64_t begin) {
  MutexLock lock(mu_);
  ranges_.erase(begin);
}

void PinRegistry::Set(uint64_t begin, size_t piece, PieceState state) {
  MutexLock lock(mu_);
  ranges_.at(begin).pieces[piece] = state;
}

absl::Status PinRegistry::Split(uint64_t begin, uint64_t bytes, bool written,
                                std::vector<Part>* parts) const {
  MutexLock lock(mu_);
  const auto after = ranges_.upper_bound(begin);
  const auto known = after == ranges_.begin() ? ranges_.end() : std::prev(after);
  if (known == ranges_.end() || begin - known->first > known->second.bytes ||
      bytes > known->second.bytes - (begin - known->first))
    return absl::InvalidArgumentError(
        absl::StrCat("a copy of ", bytes, " bytes names memory that was not pinned"));
  const auto& [first, range] = *known;
  if (written && !range.writable)
    return absl::InvalidArgumentError("a copy writes to memory that was pinned read-only");
  const uint64_t end = begin - first + bytes;
  for (uint64_t at = begin - first; at < end;) {
    const size_t piece = at / range.piece_bytes;
    const uint64_t part_end = std::min(end, (piece + 1) * range.piece_bytes);
    const PieceState state = range.pieces[piece];
    const bool direct = state == PieceState::kRegistered || state == PieceState::kReadOnly;
    parts->push_back({first + at, part_end - at, direct});
    at = part_end;
  }
  return absl::OkStatus();
}

void PinRegistry::Tell(DeviceStats* stats) const {
  MutexLock lock(mu_);
  for (const auto& [begin, range] : ranges_) {
    for (size_t piece = 0; piece < range.pieces.size(); ++piece) {
      const uint64_t first = piece * range.piece_bytes;
      const ByteCount bytes(std::min(range.piece_bytes, range.bytes - first));
      switch (range.pieces[piece]) {
        case PieceState::kPending:
          stats->pinned_pending += bytes;
          break;
        case PieceState::kRegistered:
          stats->pinned_registered += bytes;
          break;
        case PieceState::kReadOnly:
          stats->pinned_read_only += bytes;
          break;
        case PieceState::kRefused:
          stats->pinned_staged += bytes;
      }
    }
  }
}

}  // namespace larder
