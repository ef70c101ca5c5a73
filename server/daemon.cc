#include "server/daemon.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/strings/str_cat.h"
#include "proto/messages/messages.h"
#include "server/connections/descriptor_budget.h"
#include "server/connections/listening_socket.h"
#include "server/connections/passed_rights.h"
#include "server/grpc/accept_loop.h"
#include "server/grpc/grpc_keepalive.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/guarded_calls.h"
#include "server/grpc/incoming_messages.h"
#include "server/grpc/method_table.h"
#include "server/instances/device_table.h"
#include "server/instances/directive_queue.h"
#include "server/instances/instance_table.h"
#include "server/instances/registration_store.h"
#include "server/metrics/metrics_table.h"
#include "server/processes/process_table.h"
#include "server/processes/sideband.h"
#include "server/processes/staging_table.h"
#include "server/runtime/heartbeat.h"
#include "server/runtime/malloc_tuning.h"
#include "server/runtime/shares.h"
#include "server/runtime/worker_pool.h"
#include "server/services/admin_service.h"
#include "server/services/cache_service.h"
#include "server/services/engine_service.h"
#include "server/sessions/damage_checks.h"
#include "server/sessions/quarantine.h"
#include "server/sessions/session_table.h"
#include "server/sockets/session_sockets.h"
#include "server/verbs/clear.h"
#include "server/verbs/compress.h"
#include "server/verbs/device_verbs.h"
#include "server/verbs/move.h"
#include "server/verbs/pin.h"
#include "server/verbs/verify.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr std::chrono::milliseconds kHousekeepingPeriod{10};
constexpr std::chrono::milliseconds kLastAnswers{200};
constexpr int kPeriodsPerCollect = 500;
// A thread of gRPC's callback queue that has received nothing for a second stops polling for 100 ms
// (at least up to gRPC 1.51).  While all of them pause, no thread receives a call.  All have then
// polled without success for 900 ms, so a call of our own comes sooner and prevents it.
constexpr std::chrono::milliseconds kSelfCallPeriod{800};
constexpr std::chrono::seconds kSelfCallLimit{1};  // so that a lost call does not block the next
constexpr std::chrono::seconds kStuckLimit{10};
constexpr size_t kEvictionsPerPeriod = 512;
constexpr size_t kJobsMax = 1024;
constexpr size_t kJobBytesMax = 64 << 20;
constexpr std::chrono::milliseconds kTrimPeriod{500};
constexpr size_t kLongCalls = 2;  // calls of each verb on many blocks that run at once
constexpr size_t kLongCallsWaiting = 64;
constexpr size_t kAnswering = 2;  // long requests that are handled at once
constexpr size_t kRequestsWaiting = 1024;
constexpr size_t kHoldersShown = 8;  // of each share, the largest first

// The limit of bytes of incomplete messages: enough for two of the longest, and, from a
// memory_limit of 64 MiB on, less than gRPC's quota (server/grpc/grpc_server.cc), at which gRPC
// ends calls of any client.
ByteCount IncomingLimit(ByteCount memory_limit) {
  return ByteCount(std::max<uint64_t>(memory_limit.value() / 8 * 3, 2 * wire::kMessageBytesMax));
}

// Threads of Compress: half of the cores are left to other work.
size_t Encoders() { return std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 4); }

}  // namespace

ByteCount RoomForRegistrations(const DiskTier* disk) {
  if (disk == nullptr) return Shares::Sizes().registrations;
  const auto kind = static_cast<size_t>(DiskTier::FactKind::kRegistration);
  return disk->stats().facts[kind].bytes_max;
}

// Members are constructed from top to bottom and destroyed from bottom to top.
struct Daemon::Parts final : SidebandHost {
  Parts(const DaemonOptions& o, BlockStore& s, Counters& c, const Clock& k, DiskTier* d)
      : options(o),
        store(s),
        clock(k),
        started(k.Now()),
        shares(Shares::LimitsOf({.calls_max = o.calls_max,
                                 .sessions_max = o.sessions_max,
                                 .memory_limit = o.memory_limit,
                                 .pool = s.pool().total_bytes(),
                                 .lease_share = s.lease_share(),
                                 .registrations = RoomForRegistrations(d)}),
               o.warn_shares),
        devices(s.index().events()),
        instances(s, k, Rates(o, d != nullptr), &devices),
        staging({.process_bytes_max = o.staging_bytes_max,
                 .uid_bytes_max = o.staging_uid_bytes_max,
                 .total_bytes_max = o.staging_total_bytes_max,
                 .frees_aside = true}),
        counters(c),
        damage_checks(s, c),
        directives(devices, k, UnixMilliseconds, c,
                   [this](SessionId id, VariantIndex variant, wire::Directive directive) {
                     const auto session = sessions.Find(id);
                     return session ? session->Direct(variant, std::move(directive))
                                    : BlockStatus::kMissing;
                   }),
        workers(o.copy_threads, kJobsMax, kJobBytesMax),
        // Requests that wait here also count toward gRPC's quota.
        answering(kAnswering, kRequestsWaiting, o.memory_limit.value() / 4) {
    device_verbs.emplace(s, d, devices, directives);
    if (o.host_verify_rate.value() > 0) {
      host_verifier.emplace(
          HostVerifier::Options{.bytes_per_s = o.host_verify_rate, .warn = o.warn_of_damage}, s);
    }
    instances.SetOnOther([this](const std::string& who, const std::string& what) {
      ++counters.engine_id_conflicts;
      if (options.warn_engines) options.warn_engines(who, what);
    });
    if (d != nullptr) {
      registrations.emplace(*d, instances, "default", counters, options.warn);
      registrations->Load();
      instances.SetOnChange([this](const std::string& id) { registrations->Save(id); });
      disk.emplace(*d, s, k, o.disk_readers, o.disk_verify_rate,
                   [this](SessionId id, VariantIndex variant, std::span<const Digest> digests) {
                     const auto session = sessions.Find(id);
                     if (session) session->OnDurable(variant, digests);
                   });
    }
    const DiskParts parts{d, disk ? &*disk : nullptr};
    pins.emplace(s, parts, c, UnixMilliseconds);
    if (d != nullptr) pins->Load();
    clear.emplace(s, parts, *pins, c);
    move.emplace(s, parts, c);
    compress.emplace(Encoders(), s, parts, c);
    verifier.emplace(s, parts, c);
    events.emplace(s, d, devices, o.boot_id, c);
  }
  [[nodiscard]] static std::vector<InstanceTable::TierRate> Rates(const DaemonOptions& options,
                                                                  bool disk) {
    std::vector<InstanceTable::TierRate> rates = {
        {Tier::kDevice, std::numeric_limits<double>::infinity()},
        {Tier::kHost, options.host_bytes_per_s}};
    if (disk) rates.push_back({Tier::kDisk, options.disk_bytes_per_s});
    return rates;
  }

  // SidebandHost
  absl::StatusOr<int> OpenSlab(ProcessId, uint32_t slab, bool writable) override {
    if (slab >= store.pool().slab_count())
      return absl::NotFoundError(absl::StrCat("the pool has no slab ", slab));
    return store.pool().OpenDescriptor(SlabId(static_cast<uint16_t>(slab)), writable);
  }
  absl::StatusOr<std::pair<int, ByteCount>> OpenSessionPage(ProcessId process,
                                                            SessionId id) override {
    const std::shared_ptr<AttachedSession> session = sessions.Find(id);
    if (!session || session->process() != process)
      return absl::NotFoundError("this process has no such session");
    LARDER_ASSIGN_OR_RETURN(int fd, session->OpenPage());
    return std::make_pair(fd, session->page_bytes());
  }
  absl::StatusOr<FileDescriptor> OpenSession(const SidebandToken& token) override {
    if (!session_sockets) {
      return absl::UnimplementedError("this larderd serves no session sockets: use Attach");
    }
    const std::optional<AttachedProcess> process = processes->Find(token);
    if (!process) return absl::UnauthenticatedError("the process of this connection is dead");
    return session_sockets->Open(*process);
  }
  ByteCount ReleaseClean(ProcessId process, SessionId id) override {
    // The daemon may not have noticed yet that the session's stream is broken.
    const std::shared_ptr<AttachedSession> session = sessions.Find(id);
    if (session && session->process() == process) session->OnUnmapped();
    const std::optional<ByteCount> released = quarantine.Release(process, id);
    if (released) processes->RemoveQuarantine(process);
    return released.value_or(ByteCount(0));
  }
  ByteCount slab_bytes() override { return store.pool().slab_bytes(); }
  bool slabs_sealed() override { return store.pool().sealed(); }
  std::string boot_id() override { return options.boot_id; }

  [[nodiscard]] absl::Status Start();
  [[nodiscard]] absl::Status StartSideband();
  [[nodiscard]] absl::Status StartServers();
  void Housekeep();
  void ShowHealth() LARDER_REQUIRES(mu);
  void RunDrain(std::chrono::milliseconds limit);
  void AwaitNone(TimePoint deadline, const std::function<bool()>& none) LARDER_EXCLUDES(mu);
  void AwaitSpilled(TimePoint deadline);
  [[nodiscard]] AdminService::Hooks AdminHooks(Daemon* daemon);
  [[nodiscard]] auto all_served() const {
    return std::array{at_data.get(), at_control.get(), at_admin.get()};
  }

  const DaemonOptions options;
  BlockStore& store;
  const Clock& clock;
  const TimePoint started;
  const double started_unix_s = static_cast<double>(UnixMilliseconds()) * 1e-3;
  Shares shares;
  Quarantine quarantine;
  DeviceTable devices;
  InstanceTable instances;
  StagingTable staging;
  std::unique_ptr<ProcessTable> processes;
  std::unique_ptr<Sideband> sideband;
  SessionTable sessions;
  Counters& counters;
  DamageChecks damage_checks;
  DirectiveQueue directives;
  std::optional<SessionDeps> deps;
  std::optional<RegistrationStore> registrations;  // if there is a disk
  std::optional<TierWorker> disk;                  // if there is a disk; destroyed before sessions
  std::optional<PinVerb> pins;
  std::optional<ClearVerb> clear;
  std::optional<MoveVerb> move;
  std::optional<CompressVerb> compress;
  std::optional<DeviceVerbs> device_verbs;
  std::optional<VerifyVerb> verifier;
  std::optional<HostVerifier> host_verifier;
  // The pools are destroyed before the parts above, which their jobs use.
  WorkerPool workers;
  WorkerPool answering;
  WorkerPool clearing{kLongCalls, kLongCallsWaiting, SIZE_MAX};
  WorkerPool moving{kLongCalls, kLongCallsWaiting, SIZE_MAX};
  WorkerPool compressing{kLongCalls, kLongCallsWaiting, SIZE_MAX};
  WorkerPool verifying{1, kLongCallsWaiting, SIZE_MAX};
  std::unique_ptr<SessionSockets> session_sockets;  // null if session_threads is 0
  std::optional<EventStreams> events;
  std::optional<EngineService> engine;
  std::optional<CacheService> cache, control_cache;  // at data.sock, at control.sock
  std::optional<AdminService> admin;
  SocketCounters socket_counters;
  IncomingMessages incoming{IncomingLimit(options.memory_limit), options.warn_shares};
  std::unique_ptr<GrpcServers> at_data, at_control, at_admin;
  ConnectionPeers peers{shares};
  std::optional<AcceptLoop> accepting;
  std::optional<GrpcKeepalive> self;   // calls data.sock as a client does, to check the server
  std::optional<GrpcKeepalive> wakes;  // keeps gRPC's threads polling
  Heartbeat housekeeping;

  Mutex mu;
  CondVar changed;
  bool stop LARDER_GUARDED_BY(mu) = false;
  bool draining LARDER_GUARDED_BY(mu) = false;
  bool drained LARDER_GUARDED_BY(mu) = false;
  bool health_shown LARDER_GUARDED_BY(mu) = true;  // whether health is SERVING
  std::thread housekeeper;
  std::thread drainer LARDER_GUARDED_BY(mu);
};

absl::Status Daemon::Parts::StartSideband() {
  const ConnectionShares::Limits& limits = options.connections.sideband;
  LARDER_ASSIGN_OR_RETURN(
      processes,
      ProcessTable::Create({.processes_max = options.sessions_max,
                            .tokens_per_process_max = std::max<size_t>(64, limits.per_process),
                            .shares = &shares}));
  LARDER_ASSIGN_OR_RETURN(sideband, Sideband::Create({.path = options.socket_dir + "/sideband.sock",
                                                      .mode = options.data_socket_mode,
                                                      .listener = options.listeners.sideband,
                                                      .trusted_uids = options.trusted_uids,
                                                      .connections = limits,
                                                      .report = options.warn_sockets},
                                                     *this, *processes, staging));
  return absl::OkStatus();
}

absl::Status Daemon::Parts::StartServers() {
  MutexLock lock(mu);  // a client that connects early and requests a drain waits until all is ready
  struct File {
    Socket socket;
    mode_t mode;
    std::optional<gid_t> group;
    int listener;
    std::vector<grpc::Service*> services;
    const ConnectionShares::Limits& limits;
    ConnectionCounters& counters;
    size_t servers;
    std::unique_ptr<GrpcServers>& served;
  };
  const File files[] = {
      {Socket::kData,
       options.data_socket_mode,
       std::nullopt,
       options.listeners.data,
       {&*engine, &*cache},
       options.connections.data,
       socket_counters.data,
       kUserServers,
       at_data},
      {Socket::kControl,
       options.control_socket_mode,
       options.control_socket_group,
       options.listeners.control,
       {&*control_cache},
       options.connections.control,
       socket_counters.control,
       1,
       at_control},
      {Socket::kAdmin,
       0600,
       std::nullopt,
       options.listeners.admin,
       {&*admin},
       options.connections.admin,
       socket_counters.admin,
       1,
       at_admin},
  };
  if (!GuardsWork() && options.warn_sockets) {
    options.warn_sockets(
        "this build cannot count what gRPC reads (server/grpc/guarded_calls.h): messages that "
        "clients begin and never end may take memory without a bound; use a build that links gRPC "
        "dynamically and has no sanitizer");
    if (!KernelRefusesRights()) {
      options.warn_sockets(
          "this kernel cannot refuse descriptors (SO_PASSRIGHTS, Linux 6.16) and this build cannot "
          "check for them: a client may delay gRPC's threads; use Linux 6.16, or a build that "
          "links gRPC dynamically and has no sanitizer");
    }
  }
  const GrpcServers::Options serving{options.socket_dir, options.memory_limit,
                                     options.rpc_threads_max};
  std::vector<AcceptLoop::Endpoint> endpoints;
  for (const File& file : files) {
    const char* const name = FileNameOf(file.socket);
    LARDER_ASSIGN_OR_RETURN(
        auto socket, ListeningSocket::Open({.path = absl::StrCat(options.socket_dir, "/", name),
                                            .type = SOCK_STREAM,
                                            .mode = file.mode,
                                            .group = file.group,
                                            .handed_over = file.listener}));
    file.served = GrpcServers::Start(file.socket, file.servers, serving, counters, file.services);
    if (!file.served) {
      return absl::UnavailableError(absl::StrCat("gRPC cannot serve ", socket->path()));
    }
    endpoints.push_back({.name = name,
                         .socket = std::move(socket),
                         .servers = file.served.get(),
                         .limits = file.limits,
                         .counters = &file.counters});
  }
  self.emplace(options.socket_dir + "/data.sock", kStuckLimit);
  wakes.emplace(at_data->any(), kSelfCallLimit);
  accepting.emplace(std::move(endpoints), peers, incoming, options.warn_sockets);
  return absl::OkStatus();
}

absl::Status Daemon::Parts::Start() {
  LARDER_RETURN_IF_ERROR(StartSideband());
  deps.emplace(SessionDeps{store, instances, quarantine, *processes, peers, staging, workers,
                           counters, clock, ChooseKernel(), options.boot_id, "default",
                           options.check_one_in, devices, directives, shares, damage_checks,
                           disk ? &*disk : nullptr});
  if (options.session_threads > 0) {
    LARDER_ASSIGN_OR_RETURN(session_sockets,
                            SessionSockets::Start({*deps, sessions}, options.session_threads));
  }
  engine.emplace(*deps, sessions);
  const CacheService::LongCalls long_calls{answering, clearing,    *clear,    moving,
                                           *move,     compressing, *compress, *device_verbs};
  cache.emplace(Socket::kData, *deps, sessions, *pins, long_calls, *events);
  control_cache.emplace(Socket::kControl, *deps, sessions, *pins, long_calls, *events);
  LARDER_RETURN_IF_ERROR(StartServers());

  processes->Start([this](ProcessId process) {
    for (const std::shared_ptr<AttachedSession>& session : sessions.All()) {
      if (session->process() == process) session->OnUnmapped();
    }
    quarantine.Release(process);
    sideband->OnProcessDeath(process);
  });
  sideband->Start();
  housekeeper = std::thread([this] {
    pthread_setname_np(pthread_self(), "housekeeper");
    Housekeep();
  });
  return absl::OkStatus();
}

void Daemon::Parts::Housekeep() {
  int periods = 0;
  TimePoint woken, trimmed;
  MallocTrimmer heap;
  MutexLock lock(mu);
  while (!stop) {
    changed.WaitUntil(mu, std::chrono::steady_clock::now() + kHousekeepingPeriod);
    if (stop) return;
    mu.Unlock();
    const TimePoint now = clock.Now();
    if (now - woken >= kSelfCallPeriod) {
      wakes->Ask();
      woken = now;
    }
    self->HangUp();
    if (now - trimmed >= kTrimPeriod) {
      heap.Check();
      trimmed = now;
    }
    for (const std::shared_ptr<AttachedSession>& session : sessions.All()) session->Tick(now);
    store.EvictToWatermark(kEvictionsPerPeriod);
    if (disk) disk->Tick();
    pins->Tick(now);
    directives.Tick(now);
    // While not all that is on disk is known, a part of the disk that failed, or a block that could
    // not be placed, may belong to an engine of which nothing else is stored.  So no engine is
    // collected then.
    const bool all_known = !disk || disk->all_known();
    if (++periods % kPeriodsPerCollect == 0 && all_known) instances.Collect();
    housekeeping.Answer();
    mu.Lock();
    ShowHealth();
  }
}

// A router must not wait for a node that accepts no connections or has no memory at all.  Clients
// on open connections still get this health.
void Daemon::Parts::ShowHealth() {
  const bool serves = accepting->Accepting() && !store.pool().starved();
  if (draining || serves == health_shown) return;
  health_shown = serves;
  for (const GrpcServers* served : all_served()) served->SetServing(serves);
}

void Daemon::Parts::RunDrain(std::chrono::milliseconds limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  AwaitNone(deadline, [this] { return sessions.size() == 0; });
  for (const std::shared_ptr<AttachedSession>& session : sessions.All()) session->Abandon();
  events->EndAll();
  AwaitNone(deadline, [this] {
    return shares.held(ShareKind::kCalls) == 0 && shares.held(ShareKind::kByteStreams) == 0 &&
           shares.held(ShareKind::kMessageBytes) == 0;
  });
  // A short grace for answers on their way.  Connections of clients that do not read would use up
  // the whole limit.
  const auto grace = std::chrono::system_clock::now() + kLastAnswers;
  accepting->Stop();
  wakes->Close();
  for (const GrpcServers* served : all_served()) served->Shutdown(grace);
  if (disk) AwaitSpilled(deadline);  // no client can publish any more
  MutexLock lock(mu);
  drained = true;
  changed.NotifyAll();
}

// Work ends on threads that do not wake this one, so it checks again every period.
void Daemon::Parts::AwaitNone(TimePoint deadline, const std::function<bool()>& none) {
  MutexLock lock(mu);
  while (!stop && !none() && std::chrono::steady_clock::now() < deadline) {
    changed.WaitUntil(mu, std::chrono::steady_clock::now() + kHousekeepingPeriod);
  }
}

// Blocks that still wait for the disk when this returns are lost to the next daemon.
void Daemon::Parts::AwaitSpilled(TimePoint deadline) {
  for (TimePoint now = std::chrono::steady_clock::now(); now < deadline;
       now = std::chrono::steady_clock::now()) {
    if (disk->spiller().WaitIdle(std::min(deadline, now + kHousekeepingPeriod))) return;
    MutexLock lock(mu);
    if (stop) return;
  }
}

AdminService::Hooks Daemon::Parts::AdminHooks(Daemon* daemon) {
  AdminService::Hooks hooks;
  hooks.gauges = [daemon] { return daemon->gauges(); };
  hooks.drain = [daemon](std::chrono::milliseconds limit) { return daemon->Drain(limit); };
  hooks.counters = [this](const Gauges& gauges) {
    const MetricReadings readings{gauges, ReadProcessMemory()};
    std::vector<std::pair<std::string, uint64_t>> named;
    VisitCounters(counters, readings, [&named](const std::string& name, uint64_t value) {
      named.emplace_back(name, value);
    });
    return named;
  };
  hooks.readings = [](const Gauges& gauges) {
    std::vector<std::pair<std::string, double>> named;
    VisitReadings({gauges, ReadProcessMemory()}, [&named](const std::string& name, double value) {
      named.emplace_back(name, value);
    });
    return named;
  };
  hooks.version = options.version;
  hooks.config = options.config;
  hooks.boot_id = options.boot_id;
  hooks.tenant = "default";
  hooks.started = started;
  return hooks;
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options,
                                                      BlockStore& store, Counters& counters,
                                                      const Clock& clock, DiskTier* disk) {
  grpc::EnableDefaultHealthCheckService(true);
  std::unique_ptr<Daemon> daemon(
      new Daemon(std::make_unique<Parts>(options, store, counters, clock, disk)));
  Parts& parts = *daemon->parts_;
  parts.admin.emplace(parts.AdminHooks(daemon.get()), clock, parts.verifying, *parts.verifier);
  LARDER_RETURN_IF_ERROR(parts.Start());
  return daemon;
}

Daemon::~Daemon() {
  Parts& p = *parts_;
  {
    MutexLock lock(p.mu);
    p.stop = true;
    p.changed.NotifyAll();
  }
  if (p.housekeeper.joinable()) p.housekeeper.join();
  std::thread drainer;
  {
    MutexLock lock(p.mu);
    drainer = std::move(p.drainer);
  }
  if (drainer.joinable()) drainer.join();
  for (const std::shared_ptr<AttachedSession>& session : p.sessions.All()) session->Abandon();
  p.directives.EndAll();  // the housekeeper, which ends them at their deadline, has stopped
  p.self.reset();
  if (p.wakes) p.wakes->Close();
  if (p.accepting) p.accepting->Stop();
  const auto now = std::chrono::system_clock::now();
  for (const GrpcServers* served : p.all_served()) {
    if (served != nullptr) served->Shutdown(now);
  }
  for (const GrpcServers* served : p.all_served()) {
    if (served != nullptr) served->Wait();
  }
  if (p.processes) p.processes->Stop();
  p.sideband.reset();  // its thread uses the sessions and session_sockets
  p.session_sockets.reset();
}

void Daemon::StartRecovery(TierWorker::Done done) {
  if (parts_->disk) parts_->disk->StartRecovery(std::move(done));
}

size_t Daemon::Drain(std::chrono::milliseconds limit) {
  Parts& p = *parts_;
  {
    MutexLock lock(p.mu);
    if (std::exchange(p.draining, true)) return 0;
  }
  for (const GrpcServers* served : p.all_served()) served->SetServing(false);
  const size_t told = p.sessions.Drain(p.clock.Now());
  MutexLock lock(p.mu);
  p.drainer = std::thread([&p, limit] { p.RunDrain(limit); });
  return told;
}

void Daemon::Wait() {
  Parts& p = *parts_;
  MutexLock lock(p.mu);
  while (!p.drained) p.changed.Wait(p.mu);
}

uint64_t Daemon::unspilled() const {
  return parts_->disk ? parts_->disk->spiller().stats().queued : 0;
}

std::vector<std::string> Daemon::Stuck() {
  Parts& p = *parts_;
  std::vector<std::string> stuck;
  const auto look = [&stuck](auto& part, const char* name) {
    if (!part.Answered()) stuck.emplace_back(name);
    part.Ask();
  };
  look(p.housekeeping, "housekeeping");
  bool draining = false;
  {
    MutexLock lock(p.mu);
    draining = p.draining;
  }
  if (draining) return stuck;  // the other parts stop, one after the other
  look(*p.sideband, "sideband");
  if (p.session_sockets) look(*p.session_sockets, "session_sockets");
  look(*p.accepting, "accept");
  if (!p.accepting->Accepting() || !p.sideband->Accepting()) stuck.emplace_back("sockets");
  // Each call uses a new connection, because Housekeep hangs up: an existing connection would prove
  // nothing about the listener.
  look(*p.self, "grpc");
  return stuck;
}

Gauges Daemon::gauges() const {
  Parts& p = *parts_;
  Gauges g;
  g.store = p.store.stats();
  for (const std::shared_ptr<AttachedSession>& session : p.sessions.All()) {
    const wire::WriteMode mode = session->write_mode();
    ++(mode == wire::WriteMode::kMapped   ? g.sessions.mapped
       : mode == wire::WriteMode::kStaged ? g.sessions.staged
                                          : g.sessions.stream);
    const wire::ReadMode reading = session->read_mode();
    ++(reading == wire::ReadMode::kMapped   ? g.sessions.reading_mapped
       : reading == wire::ReadMode::kCopied ? g.sessions.reading_copied
                                            : g.sessions.reading_stream);
  }
  g.started_unix_s = p.started_unix_s;
  g.pages = p.store.pool().pages();
  g.pool_stalled = std::string(p.store.pool().populate_status().message());
  g.quarantined = p.quarantine.bytes();
  g.device_blocks = p.devices.blocks();
  g.processes = p.processes->counts().processes;
  g.sideband = &p.sideband->counters();
  g.staging = p.staging.counts().bytes;
  g.shares = p.shares.Uses(kHoldersShown);
  g.sockets = &p.socket_counters;
  g.incoming = {.held = p.incoming.held(), .limit = p.incoming.limit().value()};
  g.descriptors = {.open = OpenDescriptors(), .limit = DescriptorLimit()};
  g.closer = DescriptorCloser::OfProcess().counts();
  if (p.disk) g.disk = p.disk->stats();
  if (p.host_verifier) {
    g.host_verifier = p.host_verifier->stats();
    g.host_verify_s = std::chrono::duration<double>(p.host_verifier->FindsWithinNow()).count();
  }
  MutexLock lock(p.mu);
  g.draining = p.draining;
  return g;
}

}  // namespace larder
