// One connection of the sideband: HELLO, CHALLENGE, CHALLENGE_REPLY, WELCOME, then requests.
//
// Does not listen, wait or know other connections (Sideband does).  Everything that it reads is
// hostile.  A request that cannot be granted is answered with ERROR and the connection goes on; a
// packet that breaks the protocol is answered with ERROR and ends it.
//
// Descriptors are taken from processes of trusted uids alone, once they are welcome, and kept if
// they are memory: a memfd, a dma-buf or what NVIDIA's driver exports.  All others are closed by a
// thread that serves no client (server/connections/passed_rights.h).
//
// Ownership: the socket, its token in the ProcessTable, the staging segments that it asked for and
// the shares that came by it; all given back when it is destroyed.  Borrows the Context.
// Thread-safety: none; the Sideband's thread calls it.
// Limits: one request at a time is what a client should send; kUnreadBytesMax of answers that it
// did not read end the connection, and one with a descriptor is not sent beside more than
// kUnreadBesideMax: until it is read it counts for the daemon's user, who has as many of them in
// all sockets as it may open files.
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

// What the sideband hands out, given by the daemon's other parts.  Called on the sideband's thread:
// quick, and with nothing that waits for a client.
class SidebandHost {
 public:
  virtual ~SidebandHost() = default;
  // The caller owns the descriptor.  Asked for trusted processes only, or of slabs that are sealed
  // against writers; `writable` for trusted ones only; without it the descriptor must be read-only
  // (CHECKed).
  [[nodiscard]] virtual absl::StatusOr<int> OpenSlab(ProcessId process, uint32_t slab,
                                                     bool writable) = 0;
  // A read-only descriptor of a session of this process, NotFound otherwise.
  [[nodiscard]] virtual absl::StatusOr<std::pair<int, ByteCount>> OpenSessionPage(
      ProcessId process, SessionId session) = 0;
  // A session socket for one session more of the process with this token.  Unimplemented: none are
  // handed out.
  [[nodiscard]] virtual absl::StatusOr<FileDescriptor> OpenSession(const SidebandToken& token) = 0;
  // The process says that it unmapped everything of this session of its own, which is over then:
  // how much was in quarantine.
  [[nodiscard]] virtual ByteCount ReleaseClean(ProcessId process, SessionId session) = 0;
  [[nodiscard]] virtual ByteCount slab_bytes() = 0;
  // Nobody can write a slab by a descriptor of it, or make one that can.
  [[nodiscard]] virtual bool slabs_sealed() = 0;
  [[nodiscard]] virtual std::string boot_id() = 0;  // kBootIdBytes printable characters
};

// Written by the sideband's thread, read by anybody.
struct SidebandCounters {
  using Counter = std::atomic<uint64_t>;
  ConnectionCounters door;       // of its socket: accepted, over_descriptors, reopened, broken
  Counter connections_open = 0;  // now
  Counter welcomed = 0;
  Counter over_limit = 0;       // connections refused by a limit, of processes too
  Counter handshake_late = 0;   // no CHALLENGE_REPLY in time
  Counter process_unseen = 0;   // another PID namespace, or no pidfd
  Counter wrong_answer = 0;     // nonce of CHALLENGE_REPLY, or credentials of any later packet
  Counter bad_packets = 0;      // undecodable, oversize, or not for a client to send now
  Counter bad_descriptors = 0;  // too many, lost, missing or not expected
  Counter unread_answers = 0;   // connections ended because the client did not read
  Counter slabs_read = 0;       // descriptors handed out
  Counter slabs_write = 0;
  Counter writes_denied = 0;  // writable slabs asked for by others than trusted ones
  Counter slabs_denied = 0;   // slabs for reading, likewise, where they are not sealed
  Counter session_pages = 0;
  Counter session_sockets = 0;
  Counter staging_added = 0;
  Counter staging_refused = 0;
  Counter shared_memory = 0;  // device memory that was offered, by descriptor
  Counter shared_handle = 0;  // and by handle
  Counter opened_memory = 0;  // and opened
  Counter opened_handle = 0;
  Counter cleans = 0;
  Counter requests_failed = 0;  // answered with ERROR for any other reason
};

class SidebandConnection {
 public:
  // As the kernel counts: a short packet is 768 bytes.
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
  // `kernel_refuses`: descriptors, for as long as the connection does not allow them.
  SidebandConnection(const Context& context, FileDescriptor socket, bool kernel_refuses);
  ~SidebandConnection();
  SidebandConnection(const SidebandConnection&) = delete;
  SidebandConnection& operator=(const SidebandConnection&) = delete;

  // Reads and answers one packet, if there is one.  False: this connection is over, destroy it.
  [[nodiscard]] bool OnReadable();
  // Tells the client why, as far as it listens.  The caller destroys the connection next.
  void Refuse(const absl::Status& why);

  [[nodiscard]] bool welcomed() const { return state_ == State::kReady; }
  [[nodiscard]] ProcessId process() const { return attachment_.process; }  // once welcomed
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  enum class State : uint8_t { kHello, kReply, kReady };

  // What ends the connection; OK for all that is answered.
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
  // Lets the peer send descriptors from here on, if it may.
  void AllowDescriptors();
  // ResourceExhausted: the client has left more bytes of answers unread.
  [[nodiscard]] absl::Status CheckUnread(int most);
  [[nodiscard]] absl::Status Answer(const Frame& frame, int descriptor = -1);
  // Answers a request that was in order but is not granted.
  [[nodiscard]] absl::Status Fail(const absl::Status& why, SidebandCounters::Counter& counter);

  const Context context_;
  FileDescriptor socket_;
  bool kernel_refuses_;  // descriptors
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
