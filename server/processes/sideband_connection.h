// One connection of the sideband: HELLO, CHALLENGE, CHALLENGE_REPLY, WELCOME, then requests.
//
// A connection does not listen or wait, and it does not know other connections (Sideband does).
// Everything that it reads may be hostile.  It answers ERROR to a request that it does not grant,
// and usually ends after a packet that breaks the protocol.
//
// It accepts descriptors only from processes of trusted uids, after WELCOME, and keeps them only if
// they are memory: a file in memory such as a memfd, a dma-buf, or an export of NVIDIA's driver.  A
// thread that serves no client closes the other descriptors that the connection receives
// (server/connections/descriptor_closer.h).
//
// Ownership: it owns the socket, its token in the ProcessTable, and the staging segments and shared
// device memory that were added over it; its destructor releases them.  It borrows the Context.
// Thread-safety: none; only the Sideband's thread calls it.
// Limits: a client should send one request at a time.  The connection ends if the client leaves too
// many answers unread (kUnreadBytesMax), and earlier if an answer has a descriptor
// (kUnreadBesideMax): the kernel limits how many descriptors in unread messages the daemon's user
// may have.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_frames.h"
#include "proto/frames/sideband_packet.h"
#include "server/connections/connection_shares.h"
#include "server/processes/device_shares.h"
#include "server/processes/peer_process.h"
#include "server/processes/process_table.h"
#include "server/processes/staging_table.h"
#include "storage/types.h"

namespace larder {

// The interface through which the daemon's other parts provide what the sideband hands out.  The
// sideband's thread calls it, so implementations must be quick and must not wait for a client.
class SidebandHost {
 public:
  virtual ~SidebandHost() = default;
  // Returns a descriptor of the slab, which the caller owns.  The sideband calls it only for
  // trusted processes, or if slabs are sealed against writers; with `writable` only for trusted
  // processes.  Without `writable` the descriptor must be read-only (CHECKed).
  [[nodiscard]] virtual absl::StatusOr<int> OpenSlab(ProcessId process, uint32_t slab,
                                                     bool writable) = 0;
  // Returns a read-only descriptor of the shared page in which a session sees its revocations, and
  // the page's size.  Returns NotFound if this process has no such session.
  [[nodiscard]] virtual absl::StatusOr<std::pair<int, ByteCount>> OpenSessionPage(
      ProcessId process, SessionId session) = 0;
  // Returns a session socket for a new session of the process with this token.  Returns
  // Unimplemented if the daemon serves no session sockets.
  [[nodiscard]] virtual absl::StatusOr<FileDescriptor> OpenSession(const SidebandToken& token) = 0;
  // Called when the process reports that it has unmapped all memory of this session.  If it is a
  // session of the process, the session ends.  Returns how many bytes left quarantine.
  [[nodiscard]] virtual ByteCount ReleaseClean(ProcessId process, SessionId session) = 0;
  [[nodiscard]] virtual ByteCount slab_bytes() = 0;
  // Returns true if slabs are sealed: no process can write to a slab through a descriptor of it, or
  // through one that it obtains from that descriptor.
  [[nodiscard]] virtual bool slabs_sealed() = 0;
  [[nodiscard]] virtual std::string boot_id() = 0;  // kBootIdBytes printable characters
};

// The sideband's thread writes these counters; any thread may read them.
struct SidebandCounters {
  using Counter = std::atomic<uint64_t>;
  ConnectionCounters door;       // of sideband.sock
  Counter connections_open = 0;  // now
  Counter welcomed = 0;
  Counter over_limit = 0;       // connections refused, mostly by a limit (also of processes)
  Counter handshake_late = 0;   // handshakes not completed in time
  Counter process_unseen = 0;   // another PID namespace, no pidfd, or already dead
  Counter wrong_answer = 0;     // wrong CHALLENGE_REPLY, or wrong credentials of a later packet
  Counter bad_packets = 0;      // undecodable, oversize, or not for a client to send now
  Counter bad_descriptors = 0;  // too many, lost, missing, not expected or not memory
  Counter unread_answers = 0;   // connections ended because the client left answers unread
  Counter slabs_read = 0;       // read-only descriptors of slabs that were handed out
  Counter slabs_write = 0;      // writable descriptors of slabs that were handed out
  Counter writes_denied = 0;    // requests of untrusted processes for writable slabs
  Counter slabs_denied = 0;     // requests of untrusted processes for slabs that are not sealed
  Counter session_pages = 0;
  Counter session_sockets = 0;
  Counter staging_added = 0;
  Counter staging_refused = 0;
  Counter shared_memory = 0;  // device memory shared by descriptor
  Counter shared_handle = 0;  // device memory shared by handle
  Counter opened_memory = 0;  // shared device memory opened, by descriptor
  Counter opened_handle = 0;  // shared device memory opened, by handle
  Counter cleans = 0;
  // Most of the other requests that were answered with ERROR.
  Counter requests_failed = 0;
};

class SidebandConnection {
 public:
  // Both limits are in bytes as the kernel counts them: a short packet counts as hundreds of bytes.
  static constexpr int kUnreadBytesMax = 16 * 1024;
  static constexpr int kUnreadBesideMax = 2 * 1024;

  struct Context {
    SidebandHost& host;
    ProcessTable& processes;
    StagingTable& staging;
    DeviceShares& shares;
    SidebandCounters& counters;
    std::span<const uid_t> trusted_uids;
  };
  // `kernel_refuses`: whether the kernel refuses descriptors at the socket until the connection
  // allows them.
  SidebandConnection(const Context& context, FileDescriptor socket, bool kernel_refuses);
  ~SidebandConnection();
  SidebandConnection(const SidebandConnection&) = delete;
  SidebandConnection& operator=(const SidebandConnection&) = delete;

  // Reads and answers one packet, if there is one.  Returns false if the connection has ended and
  // the caller must destroy it.
  [[nodiscard]] bool OnReadable();
  // Sends the reason to the client, unless the client does not read.  After this call the caller
  // must destroy the connection.
  void Refuse(const absl::Status& why);

  [[nodiscard]] bool welcomed() const { return state_ == State::kReady; }
  [[nodiscard]] ProcessId process() const { return attachment_.process; }  // REQUIRES: welcomed()
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  enum class State : uint8_t { kHello, kReply, kReady };

  // Handle, HandleReady, CheckPacket, NotNow and On return an error if the connection must end, and
  // OK otherwise.
  [[nodiscard]] absl::Status Handle(ReceivedPacket& packet);
  [[nodiscard]] absl::Status HandleReady(const Frame& frame, ReceivedPacket& packet);
  [[nodiscard]] absl::Status CheckPacket(const ReceivedPacket& packet);
  [[nodiscard]] absl::Status NotNow(const Frame& frame);

  [[nodiscard]] absl::Status On(const HelloFrame& frame);
  [[nodiscard]] absl::Status On(const ChallengeReplyFrame& frame, const ReceivedPacket& packet);
  [[nodiscard]] absl::Status On(const MapSlabFrame& frame);
  [[nodiscard]] absl::Status On(const MapSessionPageFrame& frame);
  [[nodiscard]] absl::Status On(const OpenSessionFrame& frame);
  [[nodiscard]] absl::Status On(const StagingFrame& frame);
  [[nodiscard]] absl::Status On(const MakeStagingFrame& frame);
  [[nodiscard]] absl::Status On(const DropStagingFrame& frame);
  [[nodiscard]] absl::Status On(const ShareMemoryFrame& frame, FileDescriptor memory);
  [[nodiscard]] absl::Status On(const ShareHandleFrame& frame);
  [[nodiscard]] absl::Status On(const OpenSharedFrame& frame);
  [[nodiscard]] absl::Status On(const DropSharedFrame& frame);
  [[nodiscard]] absl::Status On(const CleanFrame& frame);

  [[nodiscard]] absl::Status AddShare(DeviceShares::Share share,
                                      SidebandCounters::Counter& counter);

  [[nodiscard]] bool Trusted(uid_t uid) const;
  // Allows the peer to send descriptors from now on, if its uid is trusted.
  void AllowDescriptors();
  // Returns ResourceExhausted if more than `most` bytes of answers are unread.
  [[nodiscard]] absl::Status CheckUnread(int most);
  [[nodiscard]] absl::Status Answer(const Frame& frame, int descriptor = -1);
  // Increments `counter` and answers ERROR to a request that is not granted.
  [[nodiscard]] absl::Status Fail(const absl::Status& why, SidebandCounters::Counter& counter);

  const Context context_;
  FileDescriptor socket_;
  bool kernel_refuses_;  // whether the kernel refuses descriptors sent to the socket
  bool takes_descriptors_ = false;
  State state_ = State::kHello;
  std::optional<PeerProcess> peer_;  // between HELLO and WELCOME
  Nonce nonce_{};
  bool writable_ = false;
  pid_t pid_ = 0;  // of the process that was welcomed
  uid_t uid_ = 0;
  ProcessTable::Attachment attachment_;
  std::vector<uint32_t> staging_;
  std::vector<ShareTicket> shares_;
};

}  // namespace larder
