#include "server/daemon.h"

#include <sys/socket.h>

#include <algorithm>
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
#include "server/sessions/promise_table.h"
#include "server/sessions/quarantine.h"
#include "server/sessions/session_table.h"
#include "server/sockets/session_sockets.h"
#include "server/verbs/clear.h"
#include "server/verbs/compress.h"
#include "server/verbs/device_verbs.h"
#include "server/verbs/move.h"
#include "server/verbs/pin.h"
#include "server/verbs/verify.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr std::chrono::milliseconds kHousekeepingPeriod{10};
constexpr std::chrono::milliseconds kLastAnswers{200};
constexpr int kPeriodsPerCollect = 500;
// When no call has come for about a second, all of gRPC's threads may stop polling for 100 ms (at
// least up to gRPC 1.51).  So the daemon calls itself about every 800 ms.
constexpr std::chrono::milliseconds kSelfCallPeriod{800};
constexpr std::chrono::seconds kSelfCallLimit{1};  // so that a lost call does not block the next
constexpr std::chrono::seconds kStuckLimit{10};
constexpr size_t kEvictionsPerPeriod = 512;
constexpr size_t kJobsMax = 1024;
constexpr size_t kJobBytesMax = 64 << 20;
constexpr std::chrono::milliseconds kTrimPeriod{500};
constexpr size_t kLongCalls = 2;  // calls of one verb on many blocks that run at once
constexpr size_t kLongCallsWaiting = 64;
constexpr size_t kAnswering = 2;  // long requests that are handled at once
constexpr size_t kRequestsWaiting = 1024;
constexpr const char* kTenant = "default";
constexpr size_t kHoldersShown = 8;  // of each share, the largest first

// Returns the limit of bytes of incomplete messages.  Above a memory_limit of 64 MiB, it is below
// the quota of one gRPC server (server/grpc/grpc_server.cc), at which gRPC ends calls of any client
// of the server.
ByteCount IncomingLimit(ByteCount memory_limit) {
  return ByteCount(std::max<uint64_t>(memory_limit.value() / 8 * 3, 2 * wire::kMessageBytesMax));
}

// Returns the number of threads of Compress: half of the cores, at least 1 and at most 4.
size_t Encoders() { return std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 4); }

ByteCount RoomForRegistrations(const DiskTier* disk) {
  if (disk == nullptr) return Shares::Sizes().registrations;
  const auto kind = static_cast<size_t>(DiskTier::FactKind::kRegistration);
  return disk->stats().facts[kind].bytes_max;
}

// The parts that exist only if there is a disk.
struct DiskSide {
  DiskSide(DiskTier& tier, BlockStore& store, InstanceTable& instances, Counters& counters,
           const Clock& clock, const DaemonOptions& options, Spiller::Durable durable)
      : registrations(tier, instances, kTenant, counters, options.warn),
        worker(tier, store, clock, options.disk_readers, options.disk_verify_rate,
               std::move(durable)) {
    registrations.Load();
  }

  RegistrationStore registrations;
  TierWorker worker;
};

// The verbs on stored blocks, and their threads.
struct Verbs {
  Verbs(BlockStore& store, DiskParts disk, DeviceTable& devices, DirectiveQueue& directives,
        Counters& counters, ByteCount memory_limit)
      : pins(store, disk, counters, UnixMilliseconds),
        clear(store, disk, pins, counters),
        move(store, disk, counters),
        compress(Encoders(), store, disk, counters),
        device(store, disk.tier, devices, directives),
        verify(store, disk, counters),
        // Requests that wait in `answering` also count toward gRPC's quota, so their limit is half
        // of the quota of one gRPC server.
        answering(kAnswering, kRequestsWaiting, memory_limit.value() / 4) {
    if (disk.tier != nullptr) pins.Load();
  }
  [[nodiscard]] CacheService::LongCalls LongCalls() {
    return {answering, clearing, clear, moving, move, compressing, compress, device};
  }

  PinVerb pins;
  ClearVerb clear;
  MoveVerb move;
  CompressVerb compress;
  DeviceVerbs device;
  VerifyVerb verify;
  // These pools are destroyed before the verbs, because their jobs use the verbs.
  WorkerPool answering;
  WorkerPool clearing{kLongCalls, kLongCallsWaiting, SIZE_MAX};
  WorkerPool moving{kLongCalls, kLongCallsWaiting, SIZE_MAX};
  WorkerPool compressing{kLongCalls, kLongCallsWaiting, SIZE_MAX};
  WorkerPool verifying{1, kLongCallsWaiting, SIZE_MAX};
};

// The gRPC sockets: data.sock, control.sock and admin.sock, and what they serve.
struct GrpcSockets {
  struct Deps {
    const DaemonOptions& options;
    SessionDeps& session_deps;
    SessionTable& sessions;
    Verbs& verbs;
    EventStreams& events;
    ConnectionPeers& peers;
    const Clock& clock;
    AdminService::Hooks hooks;
  };
  explicit GrpcSockets(Deps deps)
      : options(deps.options),
        peers(deps.peers),
        counters(deps.session_deps.counters),
        engine(deps.session_deps, deps.sessions),
        cache(Socket::kData, deps.session_deps, deps.sessions, deps.verbs.pins,
              deps.verbs.LongCalls(), deps.events),
        control_cache(Socket::kControl, deps.session_deps, deps.sessions, deps.verbs.pins,
                      deps.verbs.LongCalls(), deps.events),
        admin(std::move(deps.hooks), deps.clock, deps.verbs.verifying, deps.verbs.verify),
        incoming(IncomingLimit(options.memory_limit), options.warn_shares) {}

  // Opens the three sockets and begins to serve them.  Returns the error of the first one that
  // cannot be opened or served.
  [[nodiscard]] absl::Status Open();
  // Sets what the gRPC health service answers at every socket.
  void SetServing(bool serves) const;
  // Accepts no further connections, refuses new calls, and waits for calls under way, which it
  // cancels at `deadline`.
  void Shutdown(std::chrono::system_clock::time_point deadline);
  // Shuts down and cancels calls under way at once.  Returns when no call is under way.
  void Close();

  const DaemonOptions& options;
  ConnectionPeers& peers;
  Counters& counters;
  EngineService engine;
  CacheService cache, control_cache;  // at data.sock, at control.sock
  AdminService admin;
  SocketCounters socket_counters;
  IncomingMessages incoming;
  std::vector<std::unique_ptr<GrpcServers>> served;  // of the sockets that are open
  std::optional<AcceptLoop> accepting;
  std::optional<GrpcKeepalive> self;   // calls data.sock as a client does, to check the server
  std::optional<GrpcKeepalive> wakes;  // keeps gRPC's threads polling
};

absl::Status GrpcSockets::Open() {
  struct File {
    Socket socket;
    mode_t mode;
    std::optional<gid_t> group;
    int listener;
    std::vector<grpc::Service*> services;
    const ConnectionShares::Limits& limits;
    ConnectionCounters& counters;
    size_t servers;
  };
  const File files[] = {
      {Socket::kData,
       options.data_socket_mode,
       std::nullopt,
       options.listeners.data,
       {&engine, &cache},
       options.connections.data,
       socket_counters.data,
       kUserServers},
      {Socket::kControl,
       options.control_socket_mode,
       options.control_socket_group,
       options.listeners.control,
       {&control_cache},
       options.connections.control,
       socket_counters.control,
       1},
      {Socket::kAdmin,
       0600,
       std::nullopt,
       options.listeners.admin,
       {&admin},
       options.connections.admin,
       socket_counters.admin,
       1},
  };
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
    auto servers = GrpcServers::Start(file.socket, file.servers, serving, counters, file.services);
    if (!servers) return absl::UnavailableError(absl::StrCat("gRPC cannot serve ", socket->path()));
    endpoints.push_back({.name = name,
                         .socket = std::move(socket),
                         .servers = servers.get(),
                         .limits = file.limits,
                         .counters = &file.counters});
    served.push_back(std::move(servers));
  }
  self.emplace(options.socket_dir + "/data.sock", kStuckLimit);
  wakes.emplace(served.front()->any(), kSelfCallLimit);
  accepting.emplace(std::move(endpoints), peers, incoming, options.warn_sockets);
  return absl::OkStatus();
}

void GrpcSockets::SetServing(bool serves) const {
  for (const auto& servers : served) servers->SetServing(serves);
}

void GrpcSockets::Shutdown(std::chrono::system_clock::time_point deadline) {
  if (accepting) accepting->Stop();
  if (wakes) wakes->Close();
  for (const auto& servers : served) servers->Shutdown(deadline);
}

void GrpcSockets::Close() {
  self.reset();
  Shutdown(std::chrono::system_clock::now());
  for (const auto& servers : served) servers->Wait();
}

}  // namespace

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
        promises(s, k),
        counters(c),
        damage_checks(s, c),
        directives(devices, k, UnixMilliseconds, c,
                   [this](SessionId id, VariantIndex variant, wire::Directive directive) {
                     const auto session = sessions.Find(id);
                     return session ? session->Direct(variant, std::move(directive))
                                    : BlockStatus::kMissing;
                   }),
        disk(d == nullptr ? nullptr : MakeDisk(*d)),
        verbs(s, {d, worker()}, devices, directives, c, o.memory_limit),
        workers(o.copy_threads, kJobsMax, kJobBytesMax),
        events(s, d, devices, o.boot_id, c) {
    if (o.host_verify_rate.value() > 0) {
      host_verifier.emplace(
          HostVerifier::Options{.bytes_per_s = o.host_verify_rate, .warn = o.warn_of_damage}, s);
    }
    instances.SetOnOther([this](const std::string& who, const std::string& what) {
      ++counters.engine_id_conflicts;
      if (options.warn_engines) options.warn_engines(who, what);
    });
    if (disk)
      instances.SetOnChange([this](const std::string& id) { disk->registrations.Save(id); });
  }
  [[nodiscard]] std::unique_ptr<DiskSide> MakeDisk(DiskTier& tier) {
    return std::make_unique<DiskSide>(
        tier, store, instances, counters, clock, options,
        [this](SessionId id, VariantIndex variant, std::span<const Digest> digests) {
          const auto session = sessions.Find(id);
          if (session) session->OnDurable(variant, digests);
        });
  }
  [[nodiscard]] TierWorker* worker() const { return disk ? &disk->worker : nullptr; }
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
  void WarnOfMissingGuards() const;
  void Housekeep();
  void ShowHealth() LARDER_REQUIRES(mu);
  [[nodiscard]] size_t Drain(std::chrono::milliseconds limit);
  void RunDrain(std::chrono::milliseconds limit);
  void AwaitNone(TimePoint deadline, const std::function<bool()>& none) LARDER_EXCLUDES(mu);
  void AwaitSpilled(TimePoint deadline);
  [[nodiscard]] Gauges ReadGauges();
  [[nodiscard]] AdminService::Hooks AdminHooks();

  const DaemonOptions options;
  BlockStore& store;
  const Clock& clock;
  const TimePoint started;
  const double started_unix_s = static_cast<double>(UnixMilliseconds()) * 1e-3;
  Shares shares;
  ConnectionPeers peers{shares};
  Quarantine quarantine;
  DeviceTable devices;
  InstanceTable instances;
  StagingTable staging;
  std::unique_ptr<ProcessTable> processes;
  std::unique_ptr<Sideband> sideband;
  PromiseTable promises;
  SessionTable sessions;
  Counters& counters;
  DamageChecks damage_checks;
  DirectiveQueue directives;
  std::optional<SessionDeps> deps;       // set by Start, when `processes` exists
  const std::unique_ptr<DiskSide> disk;  // destroyed before the sessions, which its threads call
  Verbs verbs;
  std::optional<HostVerifier> host_verifier;
  WorkerPool workers;                               // destroyed before what its jobs use
  std::unique_ptr<SessionSockets> session_sockets;  // null if session_threads is 0
  EventStreams events;
  std::optional<GrpcSockets> grpc_sockets;  // set by Start
  Heartbeat housekeeping;

  Mutex mu;
  CondVar changed;
  bool stop LARDER_GUARDED_BY(mu) = false;
  bool draining LARDER_GUARDED_BY(mu) = false;
  bool drained LARDER_GUARDED_BY(mu) = false;
  bool health_shown LARDER_GUARDED_BY(mu) = true;  // the health that ShowHealth last saw
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

void Daemon::Parts::WarnOfMissingGuards() const {
  if (GuardsWork() || !options.warn_sockets) return;
  options.warn_sockets(
      "this build cannot count what gRPC reads (server/grpc/guarded_calls.h): messages that "
      "clients begin and never end may take memory without a bound; use a build that links gRPC "
      "dynamically and has no sanitizer");
  if (KernelRefusesRights()) return;
  options.warn_sockets(
      "this kernel cannot refuse descriptors (SO_PASSRIGHTS, Linux 6.16) and this build cannot "
      "check for them: a client may delay gRPC's threads; use Linux 6.16, or a build that "
      "links gRPC dynamically and has no sanitizer");
}

absl::Status Daemon::Parts::Start() {
  LARDER_RETURN_IF_ERROR(StartSideband());
  deps.emplace(SessionDeps{store, instances, quarantine, *processes, peers, staging, workers,
                           counters, clock, ChooseKernel(), options.boot_id, kTenant,
                           options.check_one_in, devices, directives, shares, damage_checks,
                           promises, worker()});
  if (options.session_threads > 0) {
    LARDER_ASSIGN_OR_RETURN(session_sockets,
                            SessionSockets::Start({*deps, sessions}, options.session_threads));
  }
  WarnOfMissingGuards();
  {
    // The lock makes a drain that an early client requests wait until all sockets are open.
    MutexLock lock(mu);
    grpc_sockets.emplace(
        GrpcSockets::Deps{options, *deps, sessions, verbs, events, peers, clock, AdminHooks()});
    LARDER_RETURN_IF_ERROR(grpc_sockets->Open());
  }

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
    changed.WaitUntil(mu, SteadyNow() + kHousekeepingPeriod);
    if (stop) return;
    mu.Unlock();
    const TimePoint now = clock.Now();
    if (now - woken >= kSelfCallPeriod) {
      grpc_sockets->wakes->Ask();
      woken = now;
    }
    if (now - trimmed >= kTrimPeriod) {
      heap.Check();
      trimmed = now;
    }
    for (const std::shared_ptr<AttachedSession>& session : sessions.All()) session->Tick(now);
    store.EvictToWatermark(kEvictionsPerPeriod);
    promises.Tick(now);
    if (disk) disk->worker.Tick();
    verbs.pins.Tick(now);
    directives.Tick(now);
    // Collect forgets detached engines without stored blocks.  Until everything on disk is known,
    // the blocks that are still unknown may be an engine's only ones, so Collect waits.
    const bool all_known = !disk || disk->worker.all_known();
    if (++periods % kPeriodsPerCollect == 0 && all_known) instances.Collect();
    housekeeping.Answer();
    mu.Lock();
    ShowHealth();
  }
}

// Makes the gRPC health service answer NOT_SERVING while a socket of gRPC cannot accept or the pool
// has no memory at all, so that a router does not wait for this node.  No effect during a drain.
void Daemon::Parts::ShowHealth() {
  const bool serves = grpc_sockets->accepting->Accepting() && !store.pool().starved();
  if (draining || serves == health_shown) return;
  health_shown = serves;
  grpc_sockets->SetServing(serves);
}

void Daemon::Parts::RunDrain(std::chrono::milliseconds limit) {
  const TimePoint deadline = SteadyNow() + limit;
  AwaitNone(deadline, [this] { return sessions.size() == 0; });
  for (const std::shared_ptr<AttachedSession>& session : sessions.All()) session->Abandon();
  events.EndAll();
  AwaitNone(deadline, [this] {
    return shares.held(ShareKind::kCalls) == 0 && shares.held(ShareKind::kByteStreams) == 0 &&
           shares.held(ShareKind::kMessageBytes) == 0;
  });
  // Calls under way get only kLastAnswers and not the rest of `limit`: a client may not read its
  // answer.
  const auto grace = std::chrono::system_clock::now() + kLastAnswers;
  grpc_sockets->Shutdown(grace);
  if (disk) AwaitSpilled(deadline);  // no client can publish any more
  MutexLock lock(mu);
  drained = true;
  changed.NotifyAll();
}

// Sessions and calls end on threads that do not wake this one, so AwaitNone calls `none` about
// every kHousekeepingPeriod.
void Daemon::Parts::AwaitNone(TimePoint deadline, const std::function<bool()>& none) {
  MutexLock lock(mu);
  while (!stop && !none() && SteadyNow() < deadline) {
    changed.WaitUntil(mu, SteadyNow() + kHousekeepingPeriod);
  }
}

// The next daemon may not have the blocks that still wait for the disk when this returns.
void Daemon::Parts::AwaitSpilled(TimePoint deadline) {
  for (TimePoint now = SteadyNow(); now < deadline; now = SteadyNow()) {
    if (disk->worker.spiller().WaitIdle(std::min(deadline, now + kHousekeepingPeriod))) return;
    MutexLock lock(mu);
    if (stop) return;
  }
}

AdminService::Hooks Daemon::Parts::AdminHooks() {
  AdminService::Hooks hooks;
  hooks.gauges = [this] { return ReadGauges(); };
  hooks.drain = [this](std::chrono::milliseconds limit) { return Drain(limit); };
  hooks.counters = [this](const Gauges& gauges) {
    const MetricReadings readings = ReadingsOf(gauges);
    std::vector<std::pair<std::string, uint64_t>> named;
    VisitCounters(counters, readings, [&named](const std::string& name, uint64_t value) {
      named.emplace_back(name, value);
    });
    return named;
  };
  hooks.readings = [](const Gauges& gauges) {
    std::vector<std::pair<std::string, double>> named;
    VisitReadings(ReadingsOf(gauges), [&named](const std::string& name, double value) {
      named.emplace_back(name, value);
    });
    return named;
  };
  hooks.version = options.version;
  hooks.config = options.config;
  hooks.boot_id = options.boot_id;
  hooks.tenant = kTenant;
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
  LARDER_RETURN_IF_ERROR(daemon->parts_->Start());
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
  p.directives.EndAll();  // the housekeeper, which ends directives at their deadlines, has stopped
  if (p.grpc_sockets) p.grpc_sockets->Close();
  if (p.processes) p.processes->Stop();
  p.sideband.reset();  // its thread uses the sessions and session_sockets
  p.session_sockets.reset();
}

void Daemon::StartRecovery(TierWorker::Done done) {
  if (parts_->disk) parts_->disk->worker.StartRecovery(std::move(done));
}

size_t Daemon::Drain(std::chrono::milliseconds limit) { return parts_->Drain(limit); }

size_t Daemon::Parts::Drain(std::chrono::milliseconds limit) {
  {
    MutexLock lock(mu);
    if (std::exchange(draining, true)) return 0;
  }
  grpc_sockets->SetServing(false);
  const size_t told = sessions.Drain(clock.Now());
  MutexLock lock(mu);
  drainer = std::thread([this, limit] { RunDrain(limit); });
  return told;
}

void Daemon::Wait() {
  Parts& p = *parts_;
  MutexLock lock(p.mu);
  while (!p.drained) p.changed.Wait(p.mu);
}

uint64_t Daemon::unspilled() const {
  return parts_->disk ? parts_->disk->worker.spiller().stats().queued : 0;
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
  look(*p.grpc_sockets->accepting, "accept");
  if (!p.grpc_sockets->accepting->Accepting() || !p.sideband->Accepting())
    stuck.emplace_back("sockets");
  look(*p.grpc_sockets->self, "grpc");
  return stuck;
}

Gauges Daemon::gauges() const { return parts_->ReadGauges(); }

Gauges Daemon::Parts::ReadGauges() {
  Gauges g;
  g.store = store.stats();
  for (const std::shared_ptr<AttachedSession>& session : sessions.All()) {
    const wire::WriteMode mode = session->write_mode();
    ++(mode == wire::WriteMode::kMapped   ? g.sessions.mapped
       : mode == wire::WriteMode::kStaged ? g.sessions.staged
                                          : g.sessions.stream);
    const wire::ReadMode reading = session->read_mode();
    ++(reading == wire::ReadMode::kMapped   ? g.sessions.reading_mapped
       : reading == wire::ReadMode::kCopied ? g.sessions.reading_copied
                                            : g.sessions.reading_stream);
  }
  g.started_unix_s = started_unix_s;
  g.pages = store.pool().pages();
  g.pool_stalled = std::string(store.pool().populate_status().message());
  g.quarantined = quarantine.bytes();
  g.device_blocks = devices.blocks();
  const PromiseTable::Stats promised = promises.stats();
  g.promises = promised.promises;
  g.promised = promised.bytes;
  g.processes = processes->counts().processes;
  g.sideband = &sideband->counters();
  g.staging = staging.counts().bytes;
  g.shares = shares.Uses(kHoldersShown);
  g.sockets = &grpc_sockets->socket_counters;
  g.incoming = {.held = grpc_sockets->incoming.held(),
                .limit = grpc_sockets->incoming.limit().value()};
  g.descriptors = {.open = OpenDescriptors(), .limit = DescriptorLimit()};
  g.closer = DescriptorCloser::OfProcess().counts();
  if (disk) g.disk = disk->worker.stats();
  if (host_verifier) {
    g.host_verifier = host_verifier->stats();
    g.host_verify_s = std::chrono::duration<double>(host_verifier->FindsWithinNow()).count();
  }
  MutexLock lock(mu);
  g.draining = draining;
  return g;
}

}  // namespace larder
