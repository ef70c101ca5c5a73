// Steps through the segments of a payload, to read it (SegmentCursor) or to write it
// (PayloadWriter).  Other code should not compute where a segment begins; layout.h has the rule.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/format/layout.h"

namespace larder {

// Steps through the segments of a payload in order.
//
//   SegmentCursor at;  // or SegmentCursor(range.begin)
//   for (const Segment& segment : table.segments) Use(at.Next(payload, segment.bytes));
class SegmentCursor {
 public:
  constexpr explicit SegmentCursor(uint64_t begin = 0) : next_(begin), end_(begin) {}

  // Returns the offset of the next segment, which has `bytes` bytes, and steps over the segment.
  constexpr uint64_t Next(uint64_t bytes) {
    const uint64_t begin = next_;
    end_ = begin + bytes;
    next_ = PayloadStride(end_);
    return begin;
  }
  // Steps over the next segment, which has `bytes` bytes, and returns these bytes.  The cursor's
  // offsets count from the beginning of `payload`.
  // REQUIRES: the segment lies inside `payload` (not checked).
  template <class Byte>
  constexpr std::span<Byte> Next(std::span<Byte> payload, uint64_t bytes) {
    return payload.subspan(Next(bytes), bytes);
  }
  // Returns the offset one past the last byte of the segment that was stepped over last; before the
  // first call of Next, the constructor's `begin`.
  [[nodiscard]] constexpr uint64_t end() const { return end_; }

 private:
  uint64_t next_;
  uint64_t end_;
};

// Steps through the segments of a payload that is being written.  The caller writes each segment;
// the PayloadWriter writes zeros from the segment's end to the next multiple of 64 B, or only to
// the end of the payload if that comes first.
class PayloadWriter {
 public:
  // REQUIRES: the bytes of `payload` outlive the PayloadWriter.
  explicit PayloadWriter(std::span<std::byte> payload) : payload_(payload) {}

  // Returns the next segment, which has `bytes` bytes, for the caller to write, and writes zeros
  // behind it up to the next multiple of 64 B or the end of the payload.
  // REQUIRES: the segment lies inside the payload.
  [[nodiscard]] std::span<std::byte> Next(uint64_t bytes);
  // Returns all bytes from the next segment on, for a segment whose length is known only after it
  // has been written.  The caller then calls Next with that length.
  [[nodiscard]] std::span<std::byte> Rest() const { return payload_.subspan(next_); }

 private:
  const std::span<std::byte> payload_;
  uint64_t next_ = 0;
};

}  // namespace larder
