// The client's end of the sideband: proves to the daemon which process this is, gets the token that
// the process's gRPC calls carry, and maps the daemon's memory.
//
//   auto sideband = SidebandClient::Connect("/run/larder/sideband.sock", 5s);
//   auto slab = (*sideband)->MapSlab(SlabId{0}, /*writable=*/false);
//
// It keeps no state of sessions and does not reconnect: once the connection has failed, or an
// answer was late or unreadable, later requests return Unavailable, and the caller has to connect
// again.  The token is valid at least as long as the connection lasts.
//
// Ownership: Owns the socket.  Mappings are the caller's and may outlive this object.
// Thread-safety: All methods may be called from any thread; one request runs at a time, and other
// requests wait for it.
// Lifecycle: Connect -> requests -> destroyed.  A forked child is another process: in it every
// request returns FailedPrecondition, and mappings do not exist (MADV_DONTFORK).
// Limits: A packet has at most kFrameBytesMax bytes.  The deadline of Connect applies to each
// request, also to the two of the handshake; the time that a request waits for other requests does
// not count.
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

// Memory shared with the daemon, unmapped by the destructor.  It is in neither forked children nor
// core dumps.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  // Maps the first `bytes` of the descriptor and, if the kernel can, fills the page tables.
  // Returns InvalidArgument if `bytes` is 0 or the file is smaller, because an access beyond the
  // file's end would raise SIGBUS.
  [[nodiscard]] static absl::StatusOr<SharedMapping> Map(int fd, ByteCount bytes, bool writable);

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] bool writable() const { return writable_; }
  // Returns an empty span unless the mapping is writable.
  [[nodiscard]] std::span<std::byte> writable_bytes() const {
    return writable_ ? bytes_ : std::span<std::byte>();
  }

 private:
  void Unmap();

  std::span<std::byte> bytes_;
  bool writable_ = false;
  ForkGuard fork_guard_;  // in a forked child the addresses may belong to another mapping
};

using MappedSlab = SharedMapping;

// The words of a session page, in which the daemon shows revocations.  A word equals the id of its
// lease or reservation while that is valid.
class MappedSessionPage {
 public:
  MappedSessionPage() = default;
  explicit MappedSessionPage(SharedMapping mapping) : mapping_(std::move(mapping)) {}

  [[nodiscard]] size_t words() const { return mapping_.bytes().size() / sizeof(uint64_t); }
  // Returns true if the word is still the id: only then is what was read before this call valid.
  // Returns false also if the page has no such word.
  [[nodiscard]] bool Holds(uint32_t word, uint64_t id) const;

 private:
  SharedMapping mapping_;
};

class SidebandClient {
 public:
  // Returns Unavailable if no daemon listens at `path`, PermissionDenied if this user may not open
  // the socket file, DeadlineExceeded if the daemon does not answer in time, or another error, such
  // as the one that the daemon refused with.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SidebandClient>> Connect(
      const std::string& path, std::chrono::milliseconds deadline);
  SidebandClient(const SidebandClient&) = delete;
  SidebandClient& operator=(const SidebandClient&) = delete;

  [[nodiscard]] const SidebandToken& token() const { return welcome_.token; }
  // The token as the gRPC metadata `larder-token` carries it.
  [[nodiscard]] std::string TokenHex() const;
  [[nodiscard]] ProcessId process_id() const { return welcome_.process; }
  [[nodiscard]] ByteCount slab_bytes() const { return welcome_.slab_bytes; }
  [[nodiscard]] bool writable() const { return welcome_.writable; }
  [[nodiscard]] std::string boot_id() const {
    return std::string(welcome_.boot_id.data(), welcome_.boot_id.size());
  }

  [[nodiscard]] absl::StatusOr<MappedSlab> MapSlab(SlabId slab, bool writable);
  [[nodiscard]] absl::StatusOr<MappedSessionPage> MapSessionPage(SessionId session);
  // Requests a staging segment of `bytes`, a multiple of 4,096.  The daemon drops the segment at
  // the latest when the connection ends.  Returns ResourceExhausted if a limit of the daemon is
  // reached or its host lacks memory, Unimplemented if the daemon is too old.
  [[nodiscard]] absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes);
  [[nodiscard]] absl::Status DropStaging(uint32_t staging_id);
  // Shares device memory with other processes of this uid: any of them that has the ticket may open
  // it until the share is dropped or this connection ends.  Returns PermissionDenied if the daemon
  // accepts no descriptors from this uid and the memory is exported by a descriptor.  `exported`
  // stays the caller's.
  [[nodiscard]] absl::StatusOr<ShareTicket> Share(const DeviceExport& exported);
  [[nodiscard]] absl::Status DropShare(const ShareTicket& ticket);
  // Returns what Device::Import takes.  Returns NotFound if no process of this uid shares memory
  // under this ticket, or not any more.
  [[nodiscard]] absl::StatusOr<DeviceExport> OpenShared(const ShareTicket& ticket);
  // Returns a socket for one more session of this process (LocalSessionStream).  Returns
  // Unimplemented if this daemon hands out none; then the gRPC call Engine.Attach serves the same
  // purpose.
  [[nodiscard]] absl::StatusOr<FileDescriptor> OpenSession();
  // Tells the daemon that this process uses nothing of a lost session any more.  Returns how many
  // bytes the daemon released.  REQUIRES: This process has unmapped everything of that session, and
  // no copy of it is under way.
  [[nodiscard]] absl::StatusOr<ByteCount> Clean(SessionId session);

 private:
  using Time = std::chrono::steady_clock::time_point;
  SidebandClient(FileDescriptor socket, std::chrono::milliseconds deadline);

  [[nodiscard]] absl::Status Handshake();
  // Sends one frame and returns its answer, which is a `Body`, or an error, such as the daemon's
  // frame ERROR as a Status.  `answer_fd` gets the descriptor, if the answer has one.
  template <class Body>
  [[nodiscard]] absl::StatusOr<Body> Request(const Frame& frame, const SendExtras& extras = {},
                                             FileDescriptor* answer_fd = nullptr);
  // Does what Request does, except that the answer may be of any of the expected frame types.
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
