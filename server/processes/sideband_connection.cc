#include "server/processes/sideband_connection.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/connections/descriptor_closer.h"
#include "server/connections/passed_rights.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// CHECKs that `fd`, which a part of the daemon opened, is read-only: with a writable one the client
// could write.
void CheckReadOnly(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  LARDER_CHECK(flags >= 0 && (flags & O_ACCMODE) == O_RDONLY);
}

// Returns true for a memfd (or another file of tmpfs or hugetlbfs), a dma-buf, or an export of
// NVIDIA's driver.  Does not wait for a file system.
bool IsMemory(int fd) {
  if (fcntl(fd, F_GET_SEALS) >= 0) return true;  // a file in memory, such as a memfd
  std::array<char, 64> target{};
  const ssize_t length =
      readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target.data(), target.size());
  const std::string_view name(target.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return name.starts_with("/dmabuf:") || name.starts_with("/dev/nvidia");
}

}  // namespace

SidebandConnection::SidebandConnection(const Context& context, FileDescriptor socket,
                                       bool kernel_refuses)
    : context_(context), socket_(std::move(socket)), kernel_refuses_(kernel_refuses) {}

SidebandConnection::~SidebandConnection() {
  CloseSocket(std::move(socket_), kernel_refuses_);
  if (!welcomed()) return;
  for (const uint32_t id : staging_) context_.staging.Drop(attachment_.process, id);
  for (const ShareTicket& ticket : shares_) context_.shares.Drop(attachment_.process, ticket);
  context_.processes.Detach(attachment_.token);
}

bool SidebandConnection::OnReadable() {
  if (!takes_descriptors_ && !kernel_refuses_ && PacketCarriesRights(socket_.get())) {
    ++context_.counters.bad_descriptors;
    Refuse(absl::InvalidArgumentError(
        "a packet came with descriptors, which the daemon does not accept from this process"));
    return false;
  }
  ReceivedPacket packet;
  const Descriptors wanted = takes_descriptors_ ? Descriptors::kTake : Descriptors::kNone;
  switch (ReceivePacket(socket_.get(), packet, wanted)) {
    case ReceiveResult::kNothingYet:
      return true;
    case ReceiveResult::kClosed:
      return false;
    case ReceiveResult::kPacket:
      break;
  }
  const absl::Status status = Handle(packet);
  if (!status.ok()) Refuse(status);
  for (FileDescriptor& left : packet.descriptors) {
    DescriptorCloser::OfProcess().Close(std::move(left));
  }
  return status.ok();
}

void SidebandConnection::Refuse(const absl::Status& why) {
  // If the client does not read, the error is lost; the connection ends either way.
  static_cast<void>(SendPacket(socket_.get(), EncodeFrame(ErrorOf(why)).bytes()));
}

absl::Status SidebandConnection::Handle(ReceivedPacket& packet) {
  LARDER_RETURN_IF_ERROR(CheckPacket(packet));
  absl::StatusOr<Frame> frame = DecodeFrame(packet.bytes());
  if (!frame.ok()) {
    ++context_.counters.bad_packets;
    return frame.status();
  }
  // The kernel passes on descriptors with any frame, so each frame is checked.
  if (packet.descriptors.size() != (CarriesDescriptor(TypeOf(*frame)) ? 1 : 0)) {
    ++context_.counters.bad_descriptors;
    return absl::InvalidArgumentError(absl::StrCat("frame ", ToString(TypeOf(*frame)),
                                                   " came with ", packet.descriptors.size(),
                                                   " descriptors"));
  }
  if (!packet.descriptors.empty() && !IsMemory(packet.descriptors.front().get())) {
    ++context_.counters.bad_descriptors;
    return absl::InvalidArgumentError(
        "a descriptor came that is not memory: send a memfd, a dma-buf or a GPU's export");
  }
  switch (state_) {
    case State::kHello:
      if (const auto* hello = std::get_if<HelloFrame>(&*frame)) return On(*hello);
      break;
    case State::kReply:
      if (const auto* reply = std::get_if<ChallengeReplyFrame>(&*frame)) return On(*reply, packet);
      break;
    case State::kReady:
      return HandleReady(*frame, packet);
  }
  return NotNow(*frame);
}

absl::Status SidebandConnection::HandleReady(const Frame& frame, ReceivedPacket& packet) {
  // A forked child has the socket, too, but not the rights of the process that was welcomed.
  if (!packet.credentials || packet.credentials->pid != pid_) {
    return Fail(absl::PermissionDeniedError(
                    "the process that sends is not the one that connected: open a connection of "
                    "its own in this process"),
                context_.counters.wrong_answer);
  }
  LARDER_RETURN_IF_ERROR(CheckUnread(kUnreadBytesMax));
  if (const auto* map_slab = std::get_if<MapSlabFrame>(&frame)) return On(*map_slab);
  if (const auto* map_page = std::get_if<MapSessionPageFrame>(&frame)) return On(*map_page);
  if (const auto* open = std::get_if<OpenSessionFrame>(&frame)) return On(*open);
  if (const auto* staging = std::get_if<StagingFrame>(&frame)) return On(*staging);
  if (const auto* make = std::get_if<MakeStagingFrame>(&frame)) return On(*make);
  if (const auto* drop = std::get_if<DropStagingFrame>(&frame)) return On(*drop);
  if (const auto* share = std::get_if<ShareMemoryFrame>(&frame)) {
    return On(*share, std::move(packet.descriptors.front()));
  }
  if (const auto* share = std::get_if<ShareHandleFrame>(&frame)) return On(*share);
  if (const auto* shared = std::get_if<OpenSharedFrame>(&frame)) return On(*shared);
  if (const auto* shared = std::get_if<DropSharedFrame>(&frame)) return On(*shared);
  if (const auto* clean = std::get_if<CleanFrame>(&frame)) return On(*clean);
  return NotNow(frame);
}

absl::Status SidebandConnection::CheckPacket(const ReceivedPacket& packet) {
  if (packet.control_lost) {
    ++context_.counters.bad_descriptors;
    return absl::InvalidArgumentError(
        "a packet came with more descriptors than the daemon accepts, or could receive");
  }
  if (packet.oversize) {
    ++context_.counters.bad_packets;
    return absl::InvalidArgumentError(
        absl::StrCat("a packet is longer than ", kFrameBytesMax, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status SidebandConnection::NotNow(const Frame& frame) {
  ++context_.counters.bad_packets;
  return absl::FailedPreconditionError(
      absl::StrCat("frame ", ToString(TypeOf(frame)), " is not for a client to send now"));
}

absl::Status SidebandConnection::On(const HelloFrame&) {
  absl::StatusOr<PeerProcess> peer = PeerProcess::OfSocket(socket_.get());
  if (!peer.ok()) {
    ++context_.counters.process_unseen;
    return peer.status();
  }
  peer_ = *std::move(peer);
  LARDER_CHECK(getrandom(nonce_.data(), nonce_.size(), 0) == ssize_t{kNonceBytes});
  state_ = State::kReply;
  return Answer(ChallengeFrame{.nonce = nonce_});
}

absl::Status SidebandConnection::On(const ChallengeReplyFrame& frame,
                                    const ReceivedPacket& packet) {
  // The answer contains the nonce, so it was sent after the daemon got the pidfd, and the kernel
  // confirms that a process with this pid sent it.  If the pidfd's process is still alive, no other
  // process had its pid meanwhile, so the pidfd's process sent the answer.
  if (frame.nonce != nonce_ || !packet.credentials || packet.credentials->pid != peer_->pid() ||
      packet.credentials->uid != peer_->uid() || !peer_->alive()) {
    ++context_.counters.wrong_answer;
    return absl::UnauthenticatedError(
        "the process that answers is not the one that connected: connect again in this process");
  }
  writable_ = Trusted(peer_->uid());
  pid_ = peer_->pid();
  uid_ = peer_->uid();
  auto attachment = context_.processes.Attach(*std::move(peer_), writable_);
  peer_.reset();
  if (!attachment.ok()) {
    ++context_.counters.over_limit;
    return attachment.status();
  }
  attachment_ = *attachment;
  state_ = State::kReady;
  AllowDescriptors();
  ++context_.counters.welcomed;
  WelcomeFrame welcome{.token = attachment_.token,
                       .process = attachment_.process,
                       .slab_bytes = context_.host.slab_bytes(),
                       .writable = writable_,
                       .boot_id = {}};
  const std::string boot_id = context_.host.boot_id();
  LARDER_CHECK(boot_id.size() == kBootIdBytes);
  std::ranges::copy(boot_id, welcome.boot_id.begin());
  return Answer(welcome);
}

absl::Status SidebandConnection::On(const MapSlabFrame& frame) {
  if (frame.writable && !writable_) {
    return Fail(absl::PermissionDeniedError(
                    "this uid may not write slabs: use write mode staged, or have the daemon's "
                    "operator trust the uid"),
                context_.counters.writes_denied);
  }
  // A process that may override file modes, such as a container's root, can write even with a
  // read-only descriptor: it reopens the file through /proc.  So an untrusted process gets a slab
  // only if slabs are sealed.
  if (!writable_ && !context_.host.slabs_sealed()) {
    return Fail(absl::PermissionDeniedError(
                    "this uid may not map slabs, because the pool has mapped writers: use read "
                    "mode copied, or have the daemon's operator trust the uid"),
                context_.counters.slabs_denied);
  }
  absl::StatusOr<int> fd = context_.host.OpenSlab(
      attachment_.process, static_cast<uint32_t>(frame.slab), frame.writable);
  if (!fd.ok()) return Fail(fd.status(), context_.counters.requests_failed);
  const FileDescriptor slab(*fd);
  if (!frame.writable) CheckReadOnly(slab.get());
  ++(frame.writable ? context_.counters.slabs_write : context_.counters.slabs_read);
  return Answer(
      SlabFrame{
          .slab = frame.slab, .writable = frame.writable, .bytes = context_.host.slab_bytes()},
      slab.get());
}

absl::Status SidebandConnection::On(const MapSessionPageFrame& frame) {
  auto opened = context_.host.OpenSessionPage(attachment_.process, frame.session);
  if (!opened.ok()) return Fail(opened.status(), context_.counters.requests_failed);
  const FileDescriptor page(opened->first);
  CheckReadOnly(page.get());
  ++context_.counters.session_pages;
  return Answer(SessionPageFrame{.session = frame.session, .bytes = opened->second}, page.get());
}

absl::Status SidebandConnection::On(const OpenSessionFrame&) {
  absl::StatusOr<FileDescriptor> socket = context_.host.OpenSession(attachment_.token);
  if (absl::IsUnimplemented(socket.status())) return Answer(ErrorOf(socket.status()));
  if (!socket.ok()) return Fail(socket.status(), context_.counters.requests_failed);
  ++context_.counters.session_sockets;
  return Answer(SessionSocketFrame{}, socket->get());
}

// Refuses a segment that an older client created.  OnReadable closes the descriptor of the packet.
absl::Status SidebandConnection::On(const StagingFrame&) {
  return Fail(absl::FailedPreconditionError(
                  "this larderd creates staging segments itself (MAKE_STAGING): update the client "
                  "library"),
              context_.counters.staging_refused);
}

absl::Status SidebandConnection::On(const MakeStagingFrame& frame) {
  absl::StatusOr<StagingTable::Made> made =
      context_.staging.Make(attachment_.process, uid_, frame.bytes);
  if (!made.ok()) return Fail(made.status(), context_.counters.staging_refused);
  staging_.push_back(made->id);
  ++context_.counters.staging_added;
  return Answer(StagingMadeFrame{.staging_id = made->id, .bytes = frame.bytes},
                made->descriptor.get());
}

absl::Status SidebandConnection::On(const DropStagingFrame& frame) {
  // Another connection of this process may have created the segment.  That connection keeps the id,
  // and drops it without effect when it is destroyed.
  if (!context_.staging.Drop(attachment_.process, frame.staging_id)) {
    return Fail(
        absl::NotFoundError(absl::StrCat("this process has no staging segment ", frame.staging_id)),
        context_.counters.requests_failed);
  }
  std::erase(staging_, frame.staging_id);
  return Answer(DropStagingOkFrame{});
}

absl::Status SidebandConnection::AddShare(DeviceShares::Share share,
                                          SidebandCounters::Counter& counter) {
  const absl::StatusOr<ShareTicket> ticket =
      context_.shares.Add(attachment_.process, uid_, std::move(share));
  if (!ticket.ok()) return Fail(ticket.status(), context_.counters.requests_failed);
  shares_.push_back(*ticket);
  ++counter;
  return Answer(SharedFrame{.ticket = *ticket});
}

absl::Status SidebandConnection::On(const ShareMemoryFrame& frame, FileDescriptor memory) {
  if (!Trusted(uid_)) {
    DescriptorCloser::OfProcess().Close(std::move(memory));
    return Fail(absl::PermissionDeniedError(
                    "the daemon does not accept descriptors from this uid: share memory by handle, "
                    "or have the daemon's operator trust the uid"),
                context_.counters.requests_failed);
  }
  return AddShare({frame.bytes, std::move(memory)}, context_.counters.shared_memory);
}

absl::Status SidebandConnection::On(const ShareHandleFrame& frame) {
  return AddShare({frame.bytes, frame.handle}, context_.counters.shared_handle);
}

absl::Status SidebandConnection::On(const OpenSharedFrame& frame) {
  const absl::StatusOr<DeviceShares::Share> share = context_.shares.Open(uid_, frame.ticket);
  if (!share.ok()) return Fail(share.status(), context_.counters.requests_failed);
  if (const auto* handle = std::get_if<DeviceHandle>(&share->memory)) {
    ++context_.counters.opened_handle;
    return Answer(SharedHandleFrame{.bytes = share->bytes, .handle = *handle});
  }
  ++context_.counters.opened_memory;
  return Answer(SharedMemoryFrame{.bytes = share->bytes},
                std::get<FileDescriptor>(share->memory).get());
}

absl::Status SidebandConnection::On(const DropSharedFrame& frame) {
  // A connection drops only what was shared over it, so that shares_ never has more tickets than a
  // process may have.
  if (std::erase(shares_, frame.ticket) == 0)
    return Fail(absl::NotFoundError("this connection shares no memory under that ticket"),
                context_.counters.requests_failed);
  context_.shares.Drop(attachment_.process, frame.ticket);
  return Answer(DropSharedOkFrame{});
}

absl::Status SidebandConnection::On(const CleanFrame& frame) {
  ++context_.counters.cleans;
  return Answer(
      CleanOkFrame{.released = context_.host.ReleaseClean(attachment_.process, frame.session)});
}

void SidebandConnection::AllowDescriptors() {
  if (!Trusted(uid_)) return;
  AllowRights(socket_.get());
  kernel_refuses_ = false;
  takes_descriptors_ = true;
}

bool SidebandConnection::Trusted(uid_t uid) const {
  return std::ranges::find(context_.trusted_uids, uid) != context_.trusted_uids.end();
}

absl::Status SidebandConnection::CheckUnread(int most) {
  int unread = 0;
  if (ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread <= most) return absl::OkStatus();
  ++context_.counters.unread_answers;
  return absl::ResourceExhaustedError(
      "too many answers are unread: read the answers before sending more requests");
}

absl::Status SidebandConnection::Answer(const Frame& frame, int descriptor) {
  if (descriptor >= 0) {
    LARDER_RETURN_IF_ERROR(CheckUnread(kUnreadBesideMax));
  }
  const SendResult sent =
      SendPacket(socket_.get(), EncodeFrame(frame).bytes(), {.descriptor = descriptor});
  if (sent == SendResult::kSent) return absl::OkStatus();
  if (sent == SendResult::kFull) ++context_.counters.unread_answers;
  return absl::UnavailableError("the client does not read its answers");
}

absl::Status SidebandConnection::Fail(const absl::Status& why, SidebandCounters::Counter& counter) {
  ++counter;
  return Answer(ErrorOf(why));
}

}  // namespace larder
