#include "client/client.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/api/session_impl.h"
#include "client/local/local_session_stream.h"
#include "client/local/pinned_memory.h"
#include "client/local/sideband_client.h"
#include "client/local/sideband_memory.h"
#include "client/local/socket_dir.h"
#include "client/rpc/grpc_session_stream.h"
#include "client/rpc/rpc_stub.h"
#include "client/session/fork_guard.h"
#include "proto/messages/call_limits.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr char kClientName[] = "liblarder_client/0.1";

// Clamps the deadline so that adding it to the current time cannot overflow.
ClientOptions Clamped(ClientOptions options) {
  options.connect_deadline = std::clamp(options.connect_deadline, std::chrono::milliseconds(0),
                                        std::chrono::milliseconds(wire::kDeadlineMaxMs));
  return options;
}

bool MayConnect(const std::string& path) {
  return faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

}  // namespace

struct Client::Impl {
  explicit Impl(const ClientOptions& the_options)
      : options(Clamped(the_options)),
        socket_dir(SocketDir(the_options.socket_dir)),
        stub({absl::StrCat(socket_dir, "/data.sock"), the_options.retry_budget,
              the_options.retries_max}),
        control({absl::StrCat(socket_dir, "/control.sock"), the_options.retry_budget,
                 the_options.retries_max}),
        kernel(ChooseKernel()) {}

  // A session whose slabs or session page (with revocation words) may still be mapped.
  struct Tracked {
    std::weak_ptr<SessionCore> core;
    std::shared_ptr<SidebandMemory> memory;
    SessionId session;
    std::string boot_id;  // of the daemon that attached it
    std::shared_ptr<const std::atomic<bool>> said_bye;
  };
  // An ended session whose goodbye may not have reached the daemon.  Its slabs and its session page
  // are unmapped.
  struct Lost {
    SessionId session;
    std::string boot_id;
  };

  // Returns FailedPrecondition in a forked child, where no call works.
  absl::Status CheckProcess() const;
  // Calls `send` with the query, which names the tenant of this Client unless it names another.  A
  // query may be large, so it is copied only to add the tenant.
  template <class Query, class Send>
  auto OfTenant(const Query& query, Send send) const {
    if (!query.tenant.empty() || options.tenant.empty()) return send(query);
    Query own = query;
    own.tenant = options.tenant;
    return send(own);
  }

  absl::StatusOr<std::unique_ptr<SessionImpl>> Attach(const SessionOptions& wanted)
      LARDER_EXCLUDES(mu);
  // `by_stream`: why the session must use byte streams whatever `wanted` says; empty if it need
  // not.
  // *no_staging is set to the message if SessionCore::Start returned ResourceExhausted, normally
  // because the daemon had no staging memory.
  absl::StatusOr<std::unique_ptr<SessionImpl>> AttachOnce(const SessionOptions& wanted,
                                                          const std::string& by_stream,
                                                          std::string* no_staging)
      LARDER_REQUIRES(mu);
  // Returns true if there is a sideband and `status` may mean that it belongs to a daemon that has
  // ended.
  bool IsStale(const absl::Status& status) const LARDER_REQUIRES(mu) {
    return sideband != nullptr && (absl::IsUnauthenticated(status) || absl::IsUnavailable(status));
  }
  // Opens the stream on a session socket; over gRPC if the hello wants stream mode or the daemon
  // hands out no session sockets.
  absl::StatusOr<std::unique_ptr<SessionStream>> OpenStream(wire::Hello hello,
                                                            SessionInbox::Handlers handlers)
      LARDER_REQUIRES(mu);
  // Calls AwaitUnmapped and CleanLost.  If there is no sideband or CleanLost fails, connects the
  // sideband again and calls CleanLost once more; if it cannot connect, returns OK, and `sideband`
  // is null.  Returns the error of AwaitUnmapped or of the last CleanLost.
  absl::Status Recover() LARDER_REQUIRES(mu);
  // Removes each ended session from `tracked` once its slabs and its session page are unmapped, and
  // adds it to `lost` if its goodbye may not have reached the daemon.  Returns FailedPrecondition
  // if some are still mapped after connect_deadline.
  absl::Status AwaitUnmapped() LARDER_REQUIRES(mu);
  // Tells the daemon that the sessions in `lost` which it attached use no memory any more (the
  // frame CLEAN), and forgets those that need not be reported again.  Returns an error if the
  // daemon does not answer.  REQUIRES: there is a sideband.
  absl::Status CleanLost() LARDER_REQUIRES(mu);
  // Returns Unavailable if there is no sideband, FailedPrecondition in a forked child.
  absl::StatusOr<std::shared_ptr<SidebandClient>> LiveSideband() LARDER_EXCLUDES(mu);
  // Connects the sideband and makes the calls of `stub` carry its token.  If that fails, `sideband`
  // is null and `sideband_status` has the reason.
  void ConnectSideband() LARDER_REQUIRES(mu);

  const ForkGuard home;
  const ClientOptions options;
  const std::string socket_dir;
  RpcStub stub;
  RpcStub control;  // for control.sock, which not every user may open; connects with the first call
  const CopyKernel kernel;

  // Held during an attach: attaches are rare, and one at a time keeps CleanLost from racing with a
  // new session.
  Mutex mu;
  std::shared_ptr<SidebandClient> sideband LARDER_GUARDED_BY(mu);
  bool had_sideband LARDER_GUARDED_BY(mu) = false;  // at any time
  absl::Status sideband_status LARDER_GUARDED_BY(mu);
  std::vector<Tracked> tracked LARDER_GUARDED_BY(mu);
  std::vector<Lost> lost LARDER_GUARDED_BY(mu);
  // Number of this Client's sessions with shared memory that have not ended; they share the limit
  // of how much may be reserved ahead of Puts.
  const std::shared_ptr<std::atomic<size_t>> sessions = std::make_shared<std::atomic<size_t>>(0);
};

absl::Status Client::Impl::CheckProcess() const {
  if (!home.left()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process is a forked child of the process that connected: connect again in the child");
}

void Client::Impl::ConnectSideband() {
  absl::StatusOr<std::unique_ptr<SidebandClient>> connected =
      SidebandClient::Connect(absl::StrCat(socket_dir, "/sideband.sock"), options.connect_deadline);
  sideband_status = connected.status();
  sideband = connected.ok() ? std::shared_ptr<SidebandClient>(*std::move(connected)) : nullptr;
  had_sideband |= sideband != nullptr;
  stub.SetToken(sideband != nullptr ? sideband->TokenHex() : "");
}

absl::Status Client::Impl::AwaitUnmapped() {
  const TimePoint deadline = SteadyNow() + options.connect_deadline;
  for (auto it = tracked.begin(); it != tracked.end();) {
    const std::shared_ptr<SessionCore> core = it->core.lock();
    if (core != nullptr && core->status().ok()) {
      ++it;
      continue;
    }
    if (!it->memory->WaitUnmapped(deadline)) {
      return absl::FailedPreconditionError(
          "memory of a lost session is still in use: drop its Leases and Reservations, then attach "
          "again");
    }
    if (!it->said_bye->load()) lost.push_back({it->session, it->boot_id});
    it = tracked.erase(it);
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::CleanLost() {
  for (auto it = lost.begin(); it != lost.end();) {
    // A daemon with another boot id does not know the session, and may have given its id to another
    // session.
    if (it->boot_id == sideband->boot_id()) {
      const absl::Status status = sideband->Clean(it->session).status();
      if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return status;
      if (absl::IsFailedPrecondition(status)) {  // refused for now: try again at the next attach
        ++it;
        continue;
      }
    }
    it = lost.erase(it);
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::Recover() {
  LARDER_RETURN_IF_ERROR(AwaitUnmapped());
  if (sideband != nullptr && CleanLost().ok()) return absl::OkStatus();
  ConnectSideband();
  return sideband != nullptr ? CleanLost() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SessionStream>> Client::Impl::OpenStream(
    wire::Hello hello, SessionInbox::Handlers handlers) {
  if (hello.write_mode != WriteMode::kStream) {
    absl::StatusOr<FileDescriptor> socket = sideband->OpenSession();
    if (socket.ok()) {
      return LocalSessionStream::Open(*std::move(socket), std::move(hello), std::move(handlers),
                                      options.connect_deadline);
    }
    if (!absl::IsUnimplemented(socket.status())) return socket.status();
  }
  return GrpcSessionStream::Open(stub.channel(), std::move(hello), std::move(handlers),
                                 options.connect_deadline);
}

namespace {

wire::EngineDevice Describe(const DeviceInfo& device) {
  return {.kind = ToString(device.kind),
          .wish = ToString(device.wish),
          .name = device.name,
          .driver = device.driver,
          .reason = device.reason,
          .limits = device.limits};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionImpl>> Client::Impl::AttachOnce(const SessionOptions& wanted,
                                                                      const std::string& by_stream,
                                                                      std::string* no_staging) {
  wire::Hello hello;
  hello.engine_id = wanted.engine_id;
  hello.role = wanted.role;
  hello.rank = wanted.rank;
  const bool shared = sideband != nullptr && by_stream.empty();
  hello.write_mode = shared ? wanted.write_mode : WriteMode::kStream;
  hello.feature_bits = wire::kFeatureTiers | wire::kFeatureCodecs | wire::kFeatureDeviceBlocks |
                       wire::kFeatureCopiedReads;
  if (wanted.on_directive) hello.feature_bits |= wire::kFeatureDirectives;
  hello.tenant = options.tenant;
  hello.client = kClientName;
  if (wanted.device != nullptr) hello.device = Describe(wanted.device->info());

  auto impl = std::make_unique<SessionImpl>();
  const auto memory =
      hello.write_mode == WriteMode::kStream ? nullptr : std::make_shared<SidebandMemory>(sideband);
  std::shared_ptr<SharedMemory> mapped = memory;
  if (memory != nullptr && wanted.device != nullptr)
    mapped = std::make_shared<PinnedSharedMemory>(memory, wanted.device);
  impl->core = std::make_shared<SessionCore>(mapped, wanted.on_directive, sessions);
  impl->pool = std::make_unique<CopyPool>(wanted.copy_threads);
  // The stream calls these handlers on threads that use the stream.  The core outlives the stream.
  SessionCore* const core = impl->core.get();
  LARDER_ASSIGN_OR_RETURN(
      impl->stream,
      OpenStream(std::move(hello),
                 {.on_down = [core](wire::Down down) { core->OnDown(std::move(down)); },
                  .on_broken = [core](const absl::Status& status) { core->OnBroken(status); }}));

  wire::Attached attached = impl->stream->attached();
  if (sideband == nullptr && !sideband_status.ok()) {
    attached.write_mode_reason = absl::StrCat("there is no sideband: ", sideband_status.message());
    attached.read_mode_reason = attached.write_mode_reason;
  } else if (!by_stream.empty()) {
    attached.write_mode_reason = attached.read_mode_reason = by_stream;
  }
  if (memory != nullptr) {
    tracked.push_back(
        {impl->core, memory, attached.session, sideband->boot_id(), core->bye_flag()});
  }
  if (absl::Status status =
          core->Start(std::move(attached), impl->stream.get(), wanted.staging_bytes);
      !status.ok()) {
    (void)core->Close();
    if (absl::IsResourceExhausted(status)) *no_staging = std::string(status.message());
    return status;
  }
  if (core->attached().write_mode == WriteMode::kStream) {
    impl->byte_stream =
        std::make_unique<GrpcStreamTransport>(stub.channel(), options.tenant, /*engine_id=*/"");
  } else {
    impl->shm = std::make_unique<ShmTransport>(*core, kernel, *impl->pool, wanted.accept_encoded);
  }
  return impl;
}

absl::StatusOr<std::unique_ptr<SessionImpl>> Client::Impl::Attach(const SessionOptions& wanted) {
  if (wanted.engine_id.empty() || wanted.engine_id.size() > kStringBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine_id must have 1 to ", kStringBytesMax, " bytes"));
  }
  LARDER_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mu);
  LARDER_RETURN_IF_ERROR(Recover());
  // A Client that had a sideband does not silently fall back to byte streams: a daemon that starts
  // now may answer over gRPC a moment after its sideband was tried.
  if (sideband == nullptr && had_sideband) return sideband_status;
  std::string no_staging;
  absl::StatusOr<std::unique_ptr<SessionImpl>> impl = AttachOnce(wanted, "", &no_staging);
  if (IsStale(impl.status())) {
    sideband = nullptr;
    LARDER_RETURN_IF_ERROR(Recover());
    if (sideband == nullptr) return sideband_status;
    impl = AttachOnce(wanted, "", &no_staging);
  }
  if (no_staging.empty()) return impl;
  // The bytes of this session have to go by stream, and write_mode_reason() says why.  First the
  // failed session's memory has to be unmapped (Recover).
  LARDER_RETURN_IF_ERROR(Recover());
  const std::string by_stream =
      absl::StrCat("the daemon has no staging memory, so bytes go by stream: ", no_staging);
  return AttachOnce(wanted, by_stream, &no_staging);
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  bool answered = false;
  {
    MutexLock lock(impl->mu);
    impl->ConnectSideband();  // first, so that every call carries the token
    answered = impl->sideband != nullptr;
  }
  // If the sideband has proved that there is a daemon, and this user may open data.sock, Connect
  // does not fail for lack of a gRPC connection: a session may never use gRPC, and the kernel may
  // refuse a connection for a moment while many clients connect.
  const std::chrono::milliseconds limit = impl->options.connect_deadline;
  if (answered && MayConnect(absl::StrCat(impl->socket_dir, "/data.sock"))) {
    constexpr std::chrono::milliseconds kAWhile{200};
    impl->stub.AwaitConnection(std::min(limit, kAWhile));
  } else {
    LARDER_RETURN_IF_ERROR(impl->stub.WaitConnected(limit));
    // A daemon opens its sideband first.  So if it started after the sideband was tried, there is
    // one by now.
    MutexLock lock(impl->mu);
    if (absl::IsUnavailable(impl->sideband_status)) impl->ConnectSideband();
  }
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  // The threads that the destructor would join do not exist in a forked child.
  if (!impl_->CheckProcess().ok()) (void)impl_.release();
}

absl::StatusOr<std::unique_ptr<Session>> Client::Attach(const SessionOptions& options) {
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<SessionImpl> impl, impl_->Attach(options));
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<SidebandClient>> Client::Impl::LiveSideband() {
  LARDER_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mu);
  if (sideband == nullptr)
    return absl::UnavailableError(absl::StrCat(
        "device memory cannot be shared without a sideband: ", sideband_status.message()));
  return sideband;
}

absl::StatusOr<ShareTicket> Client::ShareMemory(const DeviceExport& exported) {
  const auto sideband = impl_->LiveSideband();
  return sideband.ok() ? (*sideband)->Share(exported) : sideband.status();
}

absl::Status Client::DropShare(const ShareTicket& ticket) {
  const auto sideband = impl_->LiveSideband();
  return sideband.ok() ? (*sideband)->DropShare(ticket) : sideband.status();
}

absl::StatusOr<DeviceExport> Client::OpenShared(const ShareTicket& ticket) {
  const auto sideband = impl_->LiveSideband();
  return sideband.ok() ? (*sideband)->OpenShared(ticket) : sideband.status();
}

absl::StatusOr<wire::LookupResult> Client::Lookup(const wire::LookupQuery& query,
                                                  const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->OfTenant(
      query, [&](const auto& own) { return impl_->stub.Lookup(own, options.deadline); });
}

absl::StatusOr<wire::ClearResult> Client::Clear(const wire::ClearQuery& query,
                                                const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->OfTenant(
      query, [&](const auto& own) { return impl_->control.Clear(own, options.deadline); });
}

absl::StatusOr<std::vector<wire::BlockAnswer>> Client::Prefetch(const wire::PrefetchQuery& query,
                                                                const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->OfTenant(
      query, [&](const auto& own) { return impl_->stub.Prefetch(own, options.deadline); });
}

absl::StatusOr<wire::PinResult> Client::Pin(const wire::PinQuery& query,
                                            const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->OfTenant(query,
                         [&](const auto& own) { return impl_->stub.Pin(own, options.deadline); });
}

absl::StatusOr<wire::UnpinResult> Client::Unpin(const wire::UnpinQuery& query,
                                                const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->OfTenant(query,
                         [&](const auto& own) { return impl_->stub.Unpin(own, options.deadline); });
}

absl::Status Client::WatchEvents(const wire::WatchQuery& query,
                                 const std::function<bool(const wire::WatchReply&)>& take,
                                 const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  CallCancel cancel;
  const std::stop_callback stop(options.stop, [&cancel] { cancel.Cancel(); });
  const absl::Status status = impl_->OfTenant(query, [&](const auto& own) {
    return impl_->control.Watch(own, {CallLimits::kNoDeadline, &cancel}, take);
  });
  return options.stop.stop_requested() ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<wire::InstanceInfo>> Client::ListInstances(const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->stub.ListInstances(impl_->options.tenant, options.deadline);
}

}  // namespace larder
