#include "client/local/sideband_client.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <variant>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status ConnectError(int error, const std::string& path) {
  switch (error) {
    case ENOENT:
    case ECONNREFUSED:
    case ENOTDIR:
      return absl::UnavailableError(
          absl::StrCat("no larderd listens at ", path, ": start it or set LARDER_SOCKET_DIR"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(absl::StrCat(
          path, " is not open to this user: join the group of the file, or run as its owner"));
    case EAGAIN:
      return absl::DeadlineExceededError(
          absl::StrCat("larderd at ", path, " does not accept connections now: its queue is full"));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("cannot connect to ", path));
  }
}

// SO_SNDTIMEO also limits a connect that waits because the listener's backlog is full.
void SetConnectDeadline(int socket, std::chrono::milliseconds deadline) {
  const timeval time{.tv_sec = deadline.count() / 1000,
                     .tv_usec = static_cast<suseconds_t>(deadline.count() % 1000 * 1000)};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

absl::Status FailedInChild() {
  return absl::FailedPreconditionError(
      "this process is a forked child of the process that connected: connect again in the child");
}

}  // namespace

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  bytes_ = std::exchange(other.bytes_, {});
  writable_ = std::exchange(other.writable_, false);
  fork_guard_ = other.fork_guard_;
  return *this;
}

SharedMapping::~SharedMapping() { Unmap(); }

void SharedMapping::Unmap() {
  if (!bytes_.empty() && !fork_guard_.left()) munmap(bytes_.data(), bytes_.size());
}

absl::StatusOr<SharedMapping> SharedMapping::Map(int fd, ByteCount bytes, bool writable) {
  struct stat file {};
  if (fstat(fd, &file) != 0)
    return absl::ErrnoToStatus(errno, "cannot read the size of shared memory");
  if (bytes.value() == 0 || file.st_size < 0 ||
      static_cast<uint64_t>(file.st_size) < bytes.value()) {
    return absl::InvalidArgumentError(absl::StrCat("larderd shared memory of ", file.st_size,
                                                   " bytes but announced ", bytes.value()));
  }
  const size_t size = bytes.value();
  void* base =
      mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map shared memory");
  SharedMapping mapping;
  mapping.bytes_ = {static_cast<std::byte*>(base), size};
  mapping.writable_ = writable;
  if (madvise(base, size, MADV_DONTFORK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot keep shared memory out of forked children (madvise)");
  }
  madvise(base, size, MADV_DONTDUMP);
  // Saves page faults later.  An older kernel does not know these flags; then each page faults at
  // its first access.
  madvise(base, size, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  return mapping;
}

bool MappedSessionPage::Holds(uint32_t word, uint64_t id) const {
  if (word >= words()) return false;
  auto* at = reinterpret_cast<const uint64_t*>(mapping_.bytes().data()) + word;
  // No read of the data may move after the load of the word.  This is not atomic_thread_fence,
  // which the thread sanitizer does not know; on x86 the processor itself keeps the order of loads.
  std::atomic_signal_fence(std::memory_order_seq_cst);
#if !defined(__x86_64__)
  __sync_synchronize();
#endif
  return __atomic_load_n(at, __ATOMIC_ACQUIRE) == id;
}

SidebandClient::SidebandClient(FileDescriptor socket, std::chrono::milliseconds deadline)
    : deadline_(deadline), socket_(std::move(socket)) {}

absl::StatusOr<std::unique_ptr<SidebandClient>> SidebandClient::Connect(
    const std::string& path, std::chrono::milliseconds deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path ||
      path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the path of a socket file must have 1 to ",
                                                   sizeof address.sun_path - 1, " bytes: ", path));
  }
  if (deadline <= std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError("connect_deadline must be more than 0 ms");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return absl::ErrnoToStatus(errno, "cannot make a socket");
  SetConnectDeadline(socket.get(), deadline);
  int connected;
  do {
    connected = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (connected != 0 && errno == EINTR);
  if (connected != 0) return ConnectError(errno, path);
  auto client = absl::WrapUnique(new SidebandClient(std::move(socket), deadline));
  LARDER_RETURN_IF_ERROR(client->Handshake());
  return client;
}

absl::Status SidebandClient::Handshake() {
  LARDER_ASSIGN_OR_RETURN(auto challenge, Request<ChallengeFrame>(HelloFrame{}));
  LARDER_ASSIGN_OR_RETURN(welcome_,
                          Request<WelcomeFrame>(ChallengeReplyFrame{.nonce = challenge.nonce},
                                                {.descriptor = -1, .credentials = true}));
  return absl::OkStatus();
}

std::string SidebandClient::TokenHex() const {
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(welcome_.token.data()), welcome_.token.size()});
}

absl::StatusOr<MappedSlab> SidebandClient::MapSlab(SlabId slab, bool writable) {
  FileDescriptor fd;
  LARDER_ASSIGN_OR_RETURN(
      auto answer, Request<SlabFrame>(MapSlabFrame{.slab = slab, .writable = writable}, {}, &fd));
  if (answer.slab != slab || answer.writable != writable) {
    return absl::InternalError("larderd answered with another slab than requested");
  }
  return SharedMapping::Map(fd.get(), answer.bytes, writable);
}

absl::StatusOr<MappedSessionPage> SidebandClient::MapSessionPage(SessionId session) {
  FileDescriptor fd;
  LARDER_ASSIGN_OR_RETURN(
      auto answer, Request<SessionPageFrame>(MapSessionPageFrame{.session = session}, {}, &fd));
  if (answer.session != session) {
    return absl::InternalError("larderd answered with another session than requested");
  }
  LARDER_ASSIGN_OR_RETURN(auto mapping,
                          SharedMapping::Map(fd.get(), answer.bytes, /*writable=*/false));
  return MappedSessionPage(std::move(mapping));
}

absl::StatusOr<StagingMemory> SidebandClient::MakeStaging(ByteCount bytes) {
  StagingMemory memory;
  auto answer = Request<StagingMadeFrame>(MakeStagingFrame{.bytes = bytes}, {}, &memory.descriptor);
  if (absl::IsUnimplemented(answer.status())) {
    return absl::UnimplementedError(
        absl::StrCat("this larderd is older than the client library: update it (it says: ",
                     answer.status().message(), ")"));
  }
  LARDER_RETURN_IF_ERROR(answer.status());
  if (answer->bytes != bytes || answer->staging_id == 0)
    return absl::InternalError("larderd answered with another staging segment than requested");
  memory.id = answer->staging_id;
  memory.bytes = bytes;
  return memory;
}

absl::Status SidebandClient::DropStaging(uint32_t staging_id) {
  return Request<DropStagingOkFrame>(DropStagingFrame{.staging_id = staging_id}).status();
}

absl::StatusOr<ShareTicket> SidebandClient::Share(const DeviceExport& exported) {
  static_assert(kDeviceHandleBytes == DeviceExport::kHandleBytes);
  absl::StatusOr<SharedFrame> shared =
      absl::InvalidArgumentError("the export was moved from or has no path");
  if (exported.path == SharePath::kDescriptor)
    shared = Request<SharedFrame>(ShareMemoryFrame{.bytes = exported.bytes},
                                  {.descriptor = exported.descriptor});
  if (exported.path == SharePath::kHandle)
    shared =
        Request<SharedFrame>(ShareHandleFrame{.bytes = exported.bytes, .handle = exported.handle});
  LARDER_RETURN_IF_ERROR(shared.status());
  return shared->ticket;
}

absl::Status SidebandClient::DropShare(const ShareTicket& ticket) {
  return Request<DropSharedOkFrame>(DropSharedFrame{.ticket = ticket}).status();
}

absl::StatusOr<DeviceExport> SidebandClient::OpenShared(const ShareTicket& ticket) {
  FileDescriptor memory;
  LARDER_ASSIGN_OR_RETURN(const Frame answer,
                          Ask(OpenSharedFrame{.ticket = ticket},
                              {FrameType::kSharedMemory, FrameType::kSharedHandle}, {}, &memory));
  if (const auto* shared = std::get_if<SharedMemoryFrame>(&answer)) {
    DeviceExport exported(SharePath::kDescriptor, shared->bytes);
    exported.descriptor = memory.Release();
    return exported;
  }
  const auto& shared = std::get<SharedHandleFrame>(answer);
  DeviceExport exported(SharePath::kHandle, shared.bytes);
  exported.handle = shared.handle;
  return exported;
}

absl::StatusOr<FileDescriptor> SidebandClient::OpenSession() {
  FileDescriptor fd;
  LARDER_RETURN_IF_ERROR(Request<SessionSocketFrame>(OpenSessionFrame{}, {}, &fd).status());
  return fd;
}

absl::StatusOr<ByteCount> SidebandClient::Clean(SessionId session) {
  LARDER_ASSIGN_OR_RETURN(auto answer, Request<CleanOkFrame>(CleanFrame{.session = session}));
  return answer.released;
}

template <class Body>
absl::StatusOr<Body> SidebandClient::Request(const Frame& frame, const SendExtras& extras,
                                             FileDescriptor* answer_fd) {
  LARDER_ASSIGN_OR_RETURN(Frame answer, Ask(frame, {Body::kType}, extras, answer_fd));
  return std::get<Body>(std::move(answer));
}

absl::StatusOr<Frame> SidebandClient::Ask(const Frame& frame,
                                          std::initializer_list<FrameType> expected,
                                          const SendExtras& extras, FileDescriptor* answer_fd) {
  if (fork_guard_.left()) return FailedInChild();
  MutexLock lock(mu_);
  LARDER_RETURN_IF_ERROR(broken_);
  absl::StatusOr<Frame> answer = Exchange(frame, extras, answer_fd);
  if (absl::IsPermissionDenied(answer.status())) return answer;
  if (!answer.ok()) {
    // A late answer would be taken for the answer to the next request.
    broken_ = absl::UnavailableError(
        absl::StrCat("an earlier request broke the sideband: ", answer.status().message()));
    return answer.status();
  }
  if (std::ranges::find(expected, TypeOf(*answer)) != expected.end()) return answer;
  if (const auto* error = std::get_if<ErrorFrame>(&*answer)) {
    // People see the text, so control characters in it are escaped.
    return absl::Status(error->code, absl::Utf8SafeCHexEscape(error->text));
  }
  broken_ = absl::UnavailableError(absl::StrCat("larderd answered ", ToString(TypeOf(frame)),
                                                " with ", ToString(TypeOf(*answer))));
  return broken_;
}

absl::StatusOr<Frame> SidebandClient::Exchange(const Frame& frame, const SendExtras& extras,
                                               FileDescriptor* answer_fd) {
  const Time until = SteadyNow() + deadline_;
  const absl::Status sent = Send(frame, extras, until);
  if (absl::IsPermissionDenied(sent)) return sent;  // nothing was sent, so no answer comes
  // Even if the send failed, the daemon may have said why it closed the sideband.
  absl::StatusOr<Frame> answer = Receive(answer_fd, until);
  return sent.ok() || answer.ok() ? std::move(answer) : absl::StatusOr<Frame>(sent);
}

absl::Status SidebandClient::Send(const Frame& frame, const SendExtras& extras, Time until) {
  const EncodedFrame packet = EncodeFrame(frame);
  for (;;) {
    switch (SendPacket(socket_.get(), packet.bytes(), extras)) {
      case SendResult::kSent:
        return absl::OkStatus();
      case SendResult::kClosed:
        return absl::UnavailableError("larderd closed the sideband");
      case SendResult::kRefused:
        return absl::PermissionDeniedError(
            "larderd does not accept descriptors from this uid: share memory by handle, or have "
            "the daemon's operator trust the uid");
      case SendResult::kFull:
        LARDER_RETURN_IF_ERROR(Wait(POLLOUT, until));
    }
  }
}

absl::StatusOr<Frame> SidebandClient::Receive(FileDescriptor* answer_fd, Time until) {
  ReceivedPacket packet;
  for (;;) {
    const ReceiveResult result = ReceivePacket(socket_.get(), packet);
    if (result == ReceiveResult::kClosed) {
      return absl::UnavailableError("larderd closed the sideband");
    }
    if (result == ReceiveResult::kPacket) break;
    LARDER_RETURN_IF_ERROR(Wait(POLLIN, until));
  }
  absl::StatusOr<Frame> frame = DecodeFrame(packet.bytes());
  LARDER_RETURN_IF_ERROR(frame.status());
  if (packet.oversize)
    return absl::InvalidArgumentError("larderd sent more than one frame in a packet");
  const size_t expected = CarriesDescriptor(TypeOf(*frame)) ? 1 : 0;
  if (packet.control_lost || packet.descriptors.size() != expected) {
    return absl::ResourceExhaustedError(
        "a descriptor from larderd did not arrive: raise this process's limit of open files");
  }
  if (expected == 1 && answer_fd != nullptr) *answer_fd = std::move(packet.descriptors.front());
  return frame;
}

absl::Status SidebandClient::Wait(int16_t events, Time until) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SteadyNow());
    if (left.count() <= 0)
      return absl::DeadlineExceededError("larderd did not answer before the deadline");
    pollfd ready{.fd = socket_.get(), .events = events, .revents = 0};
    const auto wait_ms = std::min<int64_t>(left.count(), std::numeric_limits<int>::max());
    const int got = poll(&ready, 1, static_cast<int>(wait_ms));
    if (got > 0) return absl::OkStatus();
    if (got < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "cannot poll the sideband");
  }
}

}  // namespace larder
