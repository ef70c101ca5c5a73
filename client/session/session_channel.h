// What a session stands on: a stream of messages, and memory that it may map.  Interfaces, so that
// SessionCore runs over gRPC and the sideband as well as over a test's plain vectors.
//
// Thread-safety: all methods from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"
#include "storage/types.h"

namespace larder {

// A stream without a reader thread of its own: whoever waits for an answer does the reading, so
// that an answer wakes the thread that wants it and no other.
class MessagePump {
 public:
  virtual ~MessagePump() = default;
  // Grows after each message that was handed to the session.
  [[nodiscard]] virtual uint64_t arrivals() const = 0;
  // Hands what comes to the session, on this thread.  Returns when arrivals() is no longer `seen`,
  // at the deadline (when that is over, after what was there already), after Wake, or when the
  // stream has ended.  Until `spin_until`, or for less, it looks again and again, yielding; then it
  // sleeps.
  virtual void Pump(uint64_t seen, TimePoint spin_until, TimePoint deadline) = 0;
  // Makes the Pump under way, and those after it, return at once.  Once in a stream's life.
  virtual void Wake() = 0;
};

// The way up.  Messages down come through SessionCore::OnDown, in order, one at a time.
class SessionChannel {
 public:
  virtual ~SessionChannel() = default;
  // Does not wait for the daemon.  May call back into OnDown before it returns.  Unavailable once
  // the stream is gone, which too much that the daemon does not take ends too.
  [[nodiscard]] virtual absl::Status Send(wire::Up up) = 0;
  // Ends the stream without goodbye; does not wait.
  virtual void Cancel() = 0;
  // Null: messages come down by a thread of the channel's own.
  [[nodiscard]] virtual MessagePump* pump() { return nullptr; }
};

// The stream of an attached session, whatever it travels on, without a thread of its own.
class SessionStream : public SessionChannel, public MessagePump {
 public:
  // More waiting to be sent, or nothing taken for so long, and the session is lost.
  static constexpr size_t kQueuedBytesMax = 32 << 20;
  static constexpr std::chrono::seconds kWriteDeadline{10};

  // The daemon's answer to the hello.
  [[nodiscard]] virtual const wire::Attached& attached() const = 0;
  [[nodiscard]] MessagePump* pump() final { return this; }
  // Says that nothing more comes, and reads on until the daemon's end.  True: it took all that was
  // sent, and ended the stream in peace.  Once.  REQUIRES: nobody pumps.
  virtual bool Close(std::chrono::milliseconds deadline) = 0;
};

// Memory of the daemon, readable (or writable, where asked for) while `owner` lives.
struct MappedBytes {
  std::shared_ptr<const void> owner;
  std::span<std::byte> bytes;
};

// The session page as far as anybody needs it.
class RevocationWords {
 public:
  virtual ~RevocationWords() = default;
  // True while the word is the id.  Read after the bytes that it guards.  False for an index that
  // is not there.
  [[nodiscard]] virtual bool Holds(uint32_t word, uint64_t id) const = 0;
};

// A staging segment as the daemon handed it out; not mapped yet.
struct StagingMemory {
  uint32_t id = 0;  // to name in Publish and Acquire
  FileDescriptor descriptor;
  ByteCount bytes;
};

// Where mappings come from.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  [[nodiscard]] virtual absl::StatusOr<MappedBytes> MapSlab(uint32_t slab, bool writable) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<const RevocationWords>> MapSessionPage(
      SessionId session) = 0;
  // Memory of the daemon's making that it shares with this process alone.  REQUIRES: `bytes` is a
  // multiple of 4,096.  ResourceExhausted: a limit of the daemon's.
  [[nodiscard]] virtual absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes) = 0;
  // The daemon need not keep it any more.
  [[nodiscard]] virtual absl::Status DropStaging(uint32_t id) = 0;
};

}  // namespace larder
