// What a session is built on: a stream of messages, and memory that it may map.  These are
// interfaces, so that SessionCore runs over any transport, and in tests without a daemon.
//
// Thread-safety: All methods of the interfaces may be called from any thread.
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

// A stream without a reader thread of its own: a thread that waits for an answer reads the stream,
// so that most answers wake no other thread.
class MessagePump {
 public:
  virtual ~MessagePump() = default;
  // Returns the number of messages that were handed to the session.  The number grows after the
  // session has handled the message.
  [[nodiscard]] virtual uint64_t arrivals() const = 0;
  // Hands arriving messages to the session, on this thread.  Returns once arrivals() is no longer
  // `seen`, which is usually after one message; at the deadline (if that has passed, it still hands
  // over a message that has already arrived); after Wake; or when the stream has ended.  Pump
  // polls, yielding between polls, at most until `spin_until`, and then sleeps.
  virtual void Pump(uint64_t seen, TimePoint spin_until, TimePoint deadline) = 0;
  // Makes the Pump under way, and all later ones except those of SessionStream::Close, return soon.
  // Called at most once in a stream's life.
  virtual void Wake() = 0;
};

// A session's connection to the daemon.  Messages from the daemon come through SessionCore::OnDown,
// in order, one at a time.
class SessionChannel {
 public:
  virtual ~SessionChannel() = default;
  // Sends or queues the message; does not wait for the daemon, so the message may still be lost.
  // May call SessionCore::OnDown before it returns.  Returns Unavailable once it knows that the
  // stream is lost, for example because the daemon does not accept what is queued.
  [[nodiscard]] virtual absl::Status Send(wire::Up up) = 0;
  // Ends the stream without goodbye.  Does not wait.
  virtual void Cancel() = 0;
  // Returns null if a thread of the channel's own delivers the messages.
  [[nodiscard]] virtual MessagePump* pump() { return nullptr; }
};

// The stream of an attached session over any transport, without a thread of its own.
class SessionStream : public SessionChannel, public MessagePump {
 public:
  // The session is lost if more than kQueuedBytesMax bytes are queued to be sent, or if the daemon
  // accepts none of them for about kWriteDeadline (which a thread in Pump notices).
  static constexpr size_t kQueuedBytesMax = 32 << 20;
  static constexpr std::chrono::seconds kWriteDeadline{10};

  // The daemon's answer to the hello.
  [[nodiscard]] virtual const wire::Attached& attached() const = 0;
  [[nodiscard]] MessagePump* pump() final { return this; }
  // Tells the daemon that nothing more comes, and reads until the daemon ends the stream; at the
  // deadline ends the stream itself.  Returns true if the daemon ended it without an error.  Called
  // once.  REQUIRES: no thread pumps.
  virtual bool Close(std::chrono::milliseconds deadline) = 0;
};

// Memory of the daemon, readable (or writable, if that was requested) while `owner` lives.
struct MappedBytes {
  std::shared_ptr<const void> owner;
  std::span<std::byte> bytes;
};

// The revocation words of a session's page.
class RevocationWords {
 public:
  virtual ~RevocationWords() = default;
  // Returns true if the word at this index equals `id`, false also if there is no such index.
  // Call it after reading the bytes that the word guards.
  [[nodiscard]] virtual bool Holds(uint32_t word, uint64_t id) const = 0;
};

// A staging segment as the daemon handed it out.  It is not mapped yet.
struct StagingMemory {
  uint32_t id = 0;  // by which Publish and Acquire name it
  FileDescriptor descriptor;
  ByteCount bytes;
};

// The source of a session's mappings.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  [[nodiscard]] virtual absl::StatusOr<MappedBytes> MapSlab(uint32_t slab, bool writable) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<const RevocationWords>> MapSessionPage(
      SessionId session) = 0;
  // Requests memory that the daemon allocates and shares only with this process.  Returns
  // ResourceExhausted if a limit of the daemon is reached or its host lacks memory.  REQUIRES:
  // `bytes` is a multiple of 4,096.
  [[nodiscard]] virtual absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes) = 0;
  // Tells the daemon that it need not keep the segment any more.
  [[nodiscard]] virtual absl::Status DropStaging(uint32_t id) = 0;
};

}  // namespace larder
