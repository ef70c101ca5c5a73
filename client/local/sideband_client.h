// The client's end of the sideband: says which process this is, gets the token that its gRPC calls
// carry, and maps the daemon's memory.
//
//   auto sideband = SidebandClient::Connect("/run/larder/sideband.sock", 5s);
//   auto slab = (*sideband)->MapSlab(SlabId{0}, /*writable=*/false);
//
// Does not know sessions, and does not reconnect: when a request failed with Unavailable or
// DeadlineExceeded, all later ones say Unavailable, and the owner connects anew. The token is worth
// something while this object lives, or a session that was opened with it.
//
// Ownership: the socket.  Mappings are the caller's and outlive it.
// Thread-safety: all methods from any thread; one request at a time, the others wait.
// Lifecycle: Connect -> requests -> destroyed.  A forked child is another process: there every
// request says FailedPrecondition, and mappings do not exist (MADV_DONTFORK).
// Limits: kFrameBytesMax a packet; the deadline holds for each request and for the handshake.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/fork_guard.h"
#include "client/session/session_channel.h"
#include "cuda/device.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_frames.h"
#include "proto/frames/sideband_packet.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// Memory shared with the daemon; unmapped when dropped.  Not in forked children, nor in core dumps.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  // Maps the first `bytes` of the descriptor, with its page tables filled.  InvalidArgument: the
  // file is smaller, which would end in a SIGBUS.
  [[nodiscard]] static absl::StatusOr<SharedMapping> Map(int fd, ByteCount bytes, bool writable);

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] bool writable() const { return writable_; }
  // REQUIRES: writable(); empty otherwise.
  [[nodiscard]] std::span<std::byte> writable_bytes() const {
    return writable_ ? bytes_ : std::span<std::byte>();
  }

 private:
  void Unmap();

  std::span<std::byte> bytes_;
  bool writable_ = false;
  ForkGuard fork_guard_;  // in a forked child the addresses may be somebody else's
};

using MappedSlab = SharedMapping;

// Words that hold a lease's or a reservation's id while it holds.
class MappedSessionPage {
 public:
  MappedSessionPage() = default;
  explicit MappedSessionPage(SharedMapping mapping) : mapping_(std::move(mapping)) {}

  [[nodiscard]] size_t words() const { return mapping_.bytes().size() / sizeof(uint64_t); }
  // Everything that was read before counts only if the word is still the id.  False also for an
  // index that is not there.
  [[nodiscard]] bool Holds(uint32_t word, uint64_t id) const;

 private:
  SharedMapping mapping_;
};

class SidebandClient {
 public:
  // Unavailable: no daemon there.  PermissionDenied: the socket file's mode keeps this uid out.
  // Whatever the daemon refuses with: limits, or FailedPrecondition when it cannot see this
  // process.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SidebandClient>> Connect(
      const std::string& path, std::chrono::milliseconds deadline);
  SidebandClient(const SidebandClient&) = delete;
  SidebandClient& operator=(const SidebandClient&) = delete;

  [[nodiscard]] const SidebandToken& token() const { return welcome_.token; }
  // As the gRPC metadata `larder-token` has it.
  [[nodiscard]] std::string TokenHex() const;
  [[nodiscard]] ProcessId process_id() const { return welcome_.process; }
  [[nodiscard]] ByteCount slab_bytes() const { return welcome_.slab_bytes; }
  [[nodiscard]] bool writable() const { return welcome_.writable; }
  [[nodiscard]] std::string boot_id() const {
    return std::string(welcome_.boot_id.data(), welcome_.boot_id.size());
  }

  [[nodiscard]] absl::StatusOr<MappedSlab> MapSlab(SlabId slab, bool writable);
  [[nodiscard]] absl::StatusOr<MappedSessionPage> MapSessionPage(SessionId session);
  // As SharedMemory says.  It ends with this object.  Unimplemented: the daemon is an older one.
  [[nodiscard]] absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes);
  [[nodiscard]] absl::Status DropStaging(uint32_t staging_id);
  // Device memory for other processes of this uid: whoever has the ticket may open it, as long as
  // this object and this process live, and it is not dropped.  `exported` stays the caller's.
  [[nodiscard]] absl::StatusOr<ShareTicket> Share(const DeviceExport& exported);
  [[nodiscard]] absl::Status DropShare(const ShareTicket& ticket);
  // What Device::Import takes.  NotFound: no such ticket, or its owner ended.
  [[nodiscard]] absl::StatusOr<DeviceExport> OpenShared(const ShareTicket& ticket);
  // A socket for one session more of this process (LocalSessionStream).  Unimplemented: this daemon
  // hands out none; Engine.Attach does the same.
  [[nodiscard]] absl::StatusOr<FileDescriptor> OpenSession();
  // REQUIRES: this process unmapped all of that session and has no copy of it under way.
  // What that freed.
  [[nodiscard]] absl::StatusOr<ByteCount> Clean(SessionId session);

 private:
  using Time = std::chrono::steady_clock::time_point;
  SidebandClient(FileDescriptor socket, std::chrono::milliseconds deadline);

  [[nodiscard]] absl::Status Handshake();
  // Sends one frame and takes its answer, which is a `Body`, or the ERROR as a Status; `answer_fd`
  // gets the descriptor of an answer that has one.
  template <class Body>
  [[nodiscard]] absl::StatusOr<Body> Request(const Frame& frame, const SendExtras& extras = {},
                                             FileDescriptor* answer_fd = nullptr);
  // The same, of any of the expected types.
  [[nodiscard]] absl::StatusOr<Frame> Ask(const Frame& frame,
                                          std::initializer_list<FrameType> expected,
                                          const SendExtras& extras, FileDescriptor* answer_fd);
  [[nodiscard]] absl::StatusOr<Frame> Exchange(const Frame& frame, const SendExtras& extras,
                                               FileDescriptor* answer_fd) LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status Send(const Frame& frame, const SendExtras& extras, Time until)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::StatusOr<Frame> Receive(FileDescriptor* answer_fd, Time until)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status Wait(int16_t events, Time until) const;

  const std::chrono::milliseconds deadline_;
  const ForkGuard fork_guard_;
  WelcomeFrame welcome_;  // const after Connect
  Mutex mu_;
  const FileDescriptor socket_;
  absl::Status broken_ LARDER_GUARDED_BY(mu_);  // why no request is possible any more
};

}  // namespace larder
