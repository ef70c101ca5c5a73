#include "server/daemon.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "absl/strings/str_cat.h"
#include "server/admission.h"
#include "server/block_cleaner.h"
#include "server/block_compressor.h"
#include "server/block_director.h"
#include "server/block_mover.h"
#include "server/block_verifier.h"
#include "server/device_table.h"
#include "server/directive_desk.h"
#include "server/heartbeat.h"
#include "server/instance_table.h"
#include "server/metrics_table.h"
#include "server/pin_keeper.h"
#include "server/process_table.h"
#include "server/registration_store.h"
#include "server/services/accept_loop.h"
#include "server/services/admin_service.h"
#include "server/services/cache_service.h"
#include "server/services/engine_service.h"
#include "server/services/self_call.h"
#include "server/session_sockets.h"
#include "server/session_table.h"
#include "server/sideband.h"
#include "server/staging_table.h"
#include "server/worker_pool.h"
#include "storage/quarantine.h"

namespace larder {
namespace {

constexpr std::chrono::milliseconds kHousekeepingPeriod{10};
constexpr std::chrono::milliseconds kLastAnswers{200};
constexpr int kPeriodsPerCollect = 500;
// A thread of gRPC's that has heard nothing for a second looks away for 100 ms (its callback
// queue's, at least to 1.51), and when all of them do nobody hears a call.  They have then all
// listened in vain for 900 ms; a call of our own comes sooner.
constexpr std::chrono::milliseconds kSelfCallPeriod{800};
constexpr std::chrono::seconds kSelfCallLimit{1};  // a lost one must not keep the next away
constexpr std::chrono::seconds kStuckLimit{60};
constexpr size_t kEvictionsPerPeriod = 512;
constexpr size_t kJobsMax = 1024;
constexpr size_t kJobBytesMax = 64 << 20;
constexpr size_t kLongCalls = 2;  // verbs of many blocks of each kind, at once
constexpr size_t kLongCallsWaiting = 64;
constexpr int kStreamsPerConnectionMax = 128;

struct SocketFile {
  std::string path;
  mode_t mode = 0;
  int listener = -1;  // that listens there already
};

struct Served {
  std::unique_ptr<grpc::Server> server;  // null: it cannot listen
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;  // for a listener
};

// Serves `services` on one socket file.
Served Listen(const SocketFile& file, const DaemonOptions& options,
              std::initializer_list<grpc::Service*> services) {
  Served served;
  grpc::ServerBuilder builder;
  int port = 0;  // 1 when bound: a socket file has no port
  const auto credentials = grpc::InsecureServerCredentials();
  if (file.listener < 0) {
    builder.AddListeningPort(absl::StrCat("unix:", file.path), credentials, &port);
  } else {
    served.acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(static_cast<int>(wire::kMessageBytesMax));
  builder.SetMaxSendMessageSize(static_cast<int>(wire::kMessageBytesMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("larderd");
  quota.Resize(options.memory_limit.value());
  if (options.rpc_threads_max > 0) quota.SetMaxThreads(options.rpc_threads_max);
  builder.SetResourceQuota(quota);
  // The mode must hold from the first instant that the file is there.
  const mode_t before = umask(static_cast<mode_t>(~file.mode & 0777));
  served.server = builder.BuildAndStart();
  umask(before);
  if (port == 0 && !served.acceptor) served.server.reset();
  return served;
}

// Threads of Compress: half of the cores are others'.
size_t Encoders() { return std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 4); }

}  // namespace

// Members are built top to bottom, and end bottom to top.
struct Daemon::Parts final : SidebandHost {
  Parts(const DaemonOptions& o, BlockStore& s, Counters& c, const Clock& k, DiskTier* d)
      : options(o),
        store(s),
        clock(k),
        started(k.Now()),
        devices(s.index().events()),
        instances(s, k, Rates(o, d != nullptr), &devices),
        staging({.process_bytes_max = o.staging_bytes_max}),
        admission({.calls_max = o.calls_max,
                   .sessions_max = o.sessions_max,
                   .bytes_max = o.memory_limit}),
        sessions(o.sessions_max),
        counters(c),
        directives(devices, k, UnixMilliseconds, c,
                   [this](SessionId id, VariantIndex variant, wire::Directive directive) {
                     const auto session = sessions.Find(id);
                     return session ? session->Direct(variant, std::move(directive))
                                    : BlockStatus::kMissing;
                   }),
        workers(o.copy_threads, kJobsMax, kJobBytesMax) {
    director.emplace(s, d, devices, directives);
    if (d == nullptr) {
      verifier.emplace(s, DiskParts{}, c);
      pins.emplace(s, DiskParts{}, c, UnixMilliseconds);
      cleaner.emplace(s, DiskParts{}, *pins, c);
      mover.emplace(s, DiskParts{}, c);
      compressor.emplace(Encoders(), s, DiskParts{}, c);
      events.emplace(s, nullptr, devices, o.boot_id, c);
      return;
    }
    registrations.emplace(*d, instances, "default", counters, options.warn);
    registrations->Load();
    instances.SetOnChange([this](const std::string& engine_id) { registrations->Save(engine_id); });
    disk.emplace(*d, s, k, o.disk_readers, o.disk_verify_rate,
                 [this](SessionId id, VariantIndex variant, std::span<const Digest> digests) {
                   if (const auto session = sessions.Find(id)) session->OnDurable(variant, digests);
                 });
    pins.emplace(s, DiskParts{d, &*disk}, c, UnixMilliseconds);
    pins->Load();
    cleaner.emplace(s, DiskParts{d, &*disk}, *pins, c);
    mover.emplace(s, DiskParts{d, &*disk}, c);
    compressor.emplace(Encoders(), s, DiskParts{d, &*disk}, c);
    verifier.emplace(s, DiskParts{d, &*disk}, c);
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
      return absl::NotFoundError(absl::StrCat("no slab ", slab));
    return store.pool().OpenDescriptor(SlabId(static_cast<uint16_t>(slab)), writable);
  }
  absl::StatusOr<std::pair<int, ByteCount>> OpenSessionPage(ProcessId process,
                                                            SessionId id) override {
    const std::shared_ptr<AttachedSession> session = sessions.Find(id);
    if (!session || session->process() != process)
      return absl::NotFoundError("no such session of this process");
    absl::StatusOr<int> fd = session->OpenPage();
    if (!fd.ok()) return fd.status();
    return std::make_pair(*fd, session->page_bytes());
  }
  absl::StatusOr<FileDescriptor> OpenSession(const SidebandToken& token) override {
    if (!session_sockets) {
      return absl::UnimplementedError("this larderd hands out no session sockets: use Attach");
    }
    const std::optional<AttachedProcess> process = processes->Find(token);
    if (!process) return absl::UnauthenticatedError("the process of this sideband is dead");
    return session_sockets->Open(*process);
  }
  ByteCount ReleaseClean(ProcessId process, SessionId id) override {
    // The daemon may not have seen yet that the stream is broken.
    const std::shared_ptr<AttachedSession> session = sessions.Find(id);
    if (session && session->process() == process) session->OnUnmapped();
    const std::optional<ByteCount> released = quarantine.Release(process, id);
    if (released) processes->RemoveQuarantine(process);
    return released.value_or(ByteCount(0));
  }
  ByteCount slab_bytes() override { return store.pool().slab_bytes(); }
  std::string boot_id() override { return options.boot_id; }

  [[nodiscard]] absl::Status Start();
  [[nodiscard]] absl::Status StartSideband();
  [[nodiscard]] absl::Status StartServers();
  void Housekeep();
  void RunDrain(std::chrono::milliseconds limit);
  void AwaitNone(TimePoint deadline, const std::function<bool()>& none) LARDER_EXCLUDES(mu);
  void AwaitSpilled(TimePoint deadline);
  [[nodiscard]] AdminService::Hooks AdminHooks(Daemon* daemon);

  const DaemonOptions options;
  BlockStore& store;
  const Clock& clock;
  const TimePoint started;
  const double started_unix_s = static_cast<double>(UnixMilliseconds()) * 1e-3;
  Quarantine quarantine;
  DeviceTable devices;
  InstanceTable instances;
  StagingTable staging;
  std::unique_ptr<ProcessTable> processes;
  std::unique_ptr<Sideband> sideband;
  Admission admission;
  SessionTable sessions;
  Counters& counters;
  DirectiveDesk directives;
  std::optional<SessionDeps> deps;
  std::optional<RegistrationStore> registrations;  // where there is a disk
  std::optional<DiskWork> disk;                    // likewise; ends before sessions do
  std::optional<PinKeeper> pins;
  std::optional<BlockCleaner> cleaner;
  std::optional<BlockMover> mover;
  std::optional<BlockCompressor> compressor;
  std::optional<BlockDirector> director;
  std::optional<BlockVerifier> verifier;
  WorkerPool workers;  // ends before what its jobs look at
  WorkerPool clearing{kLongCalls, kLongCallsWaiting, SIZE_MAX};     // likewise
  WorkerPool moving{kLongCalls, kLongCallsWaiting, SIZE_MAX};       // likewise
  WorkerPool compressing{kLongCalls, kLongCallsWaiting, SIZE_MAX};  // likewise
  WorkerPool verifying{1, kLongCallsWaiting, SIZE_MAX};             // likewise
  std::unique_ptr<SessionSockets> session_sockets;                  // may be null
  std::optional<EventStreams> events;
  std::optional<EngineService> engine;
  std::optional<CacheService> cache;
  std::optional<AdminService> admin;
  Served data;
  Served control;
  std::optional<AcceptLoop> accepting;  // on listeners that were handed over
  std::optional<SelfCall> self;         // once somebody asks what is stuck
  std::optional<SelfCall> wakes;        // keeps gRPC listening
  Heartbeat housekeeping;

  Mutex mu;
  CondVar changed;
  bool stop LARDER_GUARDED_BY(mu) = false;
  bool draining LARDER_GUARDED_BY(mu) = false;
  bool drained LARDER_GUARDED_BY(mu) = false;
  std::thread housekeeper;
  std::thread drainer LARDER_GUARDED_BY(mu);
};

absl::Status Daemon::Parts::StartSideband() {
  absl::StatusOr<std::unique_ptr<ProcessTable>> table =
      ProcessTable::Create({.processes_max = options.sessions_max});
  if (!table.ok()) return table.status();
  processes = *std::move(table);
  Sideband::Options sideband_options;
  sideband_options.path = options.socket_dir + "/sideband.sock";
  sideband_options.mode = options.data_socket_mode;
  sideband_options.listener = options.listeners.sideband;
  sideband_options.trusted_uids = options.trusted_uids;
  sideband_options.connections_max = options.sessions_max;
  sideband_options.connections_per_uid_max = options.sessions_max;
  absl::StatusOr<std::unique_ptr<Sideband>> listening =
      Sideband::Create(sideband_options, *this, *processes, staging);
  if (!listening.ok()) return listening.status();
  sideband = *std::move(listening);
  return absl::OkStatus();
}

absl::Status Daemon::Parts::StartServers() {
  MutexLock lock(mu);  // who is heard before all of this is there, and asks for a drain, waits
  const SocketFile data_file{options.socket_dir + "/data.sock", options.data_socket_mode,
                             options.listeners.data};
  data = Listen(data_file, options, {&*engine, &*cache});
  const SocketFile control_file{options.socket_dir + "/admin.sock", 0600, options.listeners.admin};
  if (data.server) control = Listen(control_file, options, {&*admin});
  if (!control.server) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", (data.server ? control_file : data_file).path));
  }
  std::vector<AcceptLoop::Source> handed;
  wakes.emplace(*data.server, kSelfCallLimit);
  if (data.acceptor) handed.push_back({data_file.listener, data.acceptor.get()});
  if (control.acceptor) handed.push_back({control_file.listener, control.acceptor.get()});
  if (!handed.empty()) accepting.emplace(std::move(handed));
  return absl::OkStatus();
}

absl::Status Daemon::Parts::Start() {
  if (absl::Status status = StartSideband(); !status.ok()) return status;
  deps.emplace(SessionDeps{store, instances, quarantine, *processes, staging, workers, counters,
                           clock, ChooseKernel(), options.boot_id, "default", options.check_one_in,
                           devices, directives, disk ? &*disk : nullptr});
  if (options.session_threads > 0) {
    absl::StatusOr<std::unique_ptr<SessionSockets>> sockets =
        SessionSockets::Start({*deps, sessions, admission}, options.session_threads);
    if (!sockets.ok()) return sockets.status();
    session_sockets = *std::move(sockets);
  }
  engine.emplace(*deps, sessions, admission);
  cache.emplace(*deps, admission, *pins,
                CacheService::LongCalls{clearing, *cleaner, moving, *mover, compressing,
                                        *compressor, *director},
                *events);
  if (absl::Status status = StartServers(); !status.ok()) return status;

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
  TimePoint woken;
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
    for (const std::shared_ptr<AttachedSession>& session : sessions.All()) session->Tick(now);
    store.EvictToWatermark(kEvictionsPerPeriod);
    if (disk) disk->Tick();
    pins->Tick(now);
    directives.Tick(now);
    // What is on disk may not be known yet.
    const bool all_known = !disk || !disk->recovering();
    if (++periods % kPeriodsPerCollect == 0 && all_known) instances.Collect();
    housekeeping.Answer();
    mu.Lock();
  }
}

void Daemon::Parts::RunDrain(std::chrono::milliseconds limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  AwaitNone(deadline, [this] { return sessions.size() == 0; });
  for (const std::shared_ptr<AttachedSession>& session : sessions.All()) session->Abandon();
  events->EndAll();
  AwaitNone(deadline, [this] {
    return admission.inside(Admission::Gate::kCalls) == 0 &&
           admission.inside(Admission::Gate::kBytes) == 0;
  });
  // For answers on their way; connections of clients that do not look would take all of it.
  const auto grace = std::chrono::system_clock::now() + kLastAnswers;
  accepting.reset();
  wakes->Close();
  data.server->Shutdown(grace);
  control.server->Shutdown(grace);
  if (disk) AwaitSpilled(deadline);  // nobody publishes any more
  MutexLock lock(mu);
  drained = true;
  changed.NotifyAll();
}

// Work ends on threads of others, which do not wake us: look again each period.
void Daemon::Parts::AwaitNone(TimePoint deadline, const std::function<bool()>& none) {
  MutexLock lock(mu);
  while (!stop && !none() && std::chrono::steady_clock::now() < deadline) {
    changed.WaitUntil(mu, std::chrono::steady_clock::now() + kHousekeepingPeriod);
  }
}

// What waits for the disk when this ends is lost to the next daemon.
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
  hooks.counters = [this] {
    std::vector<std::pair<std::string, uint64_t>> named;
    VisitCounters(counters, [&named](const std::string& name, uint64_t value) {
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
  hooks.pages = store.pool().pages();
  hooks.started = started;
  return hooks;
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options,
                                                      BlockStore& store, Counters& counters,
                                                      const Clock& clock, DiskTier* disk) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<Daemon> daemon(
      new Daemon(std::make_unique<Parts>(options, store, counters, clock, disk)));
  Parts& parts = *daemon->parts_;
  parts.admin.emplace(parts.AdminHooks(daemon.get()), clock, parts.verifying, *parts.verifier);
  if (absl::Status s = parts.Start(); !s.ok()) return s;
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
  p.directives.EndAll();  // nobody looks after their patience any more
  p.self.reset();
  if (p.wakes) p.wakes->Close();
  p.accepting.reset();
  const auto now = std::chrono::system_clock::now();
  for (const Served* served : {&p.data, &p.control}) {
    if (served->server) served->server->Shutdown(now);
  }
  for (const Served* served : {&p.data, &p.control}) {
    if (served->server) served->server->Wait();
  }
  if (p.processes) p.processes->Stop();
  p.sideband.reset();  // its thread asks for sessions
  p.session_sockets.reset();
}

void Daemon::StartRecovery(DiskWork::Done done) {
  if (parts_->disk) parts_->disk->StartRecovery(std::move(done));
}

size_t Daemon::Drain(std::chrono::milliseconds limit) {
  Parts& p = *parts_;
  {
    MutexLock lock(p.mu);
    if (std::exchange(p.draining, true)) return 0;
  }
  for (const Served* served : {&p.data, &p.control}) {
    if (auto* health = served->server->GetHealthCheckService()) health->SetServingStatus(false);
  }
  const size_t told = p.sessions.Drain();
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
  if (draining) return stuck;  // the others end, one after the other
  look(*p.sideband, "sideband");
  if (p.session_sockets) look(*p.session_sockets, "session_sockets");
  if (!p.self) p.self.emplace(p.options.socket_dir + "/data.sock", kStuckLimit);
  look(*p.self, "grpc");
  return stuck;
}

Daemon::Gauges Daemon::gauges() const {
  Parts& p = *parts_;
  Gauges g;
  g.store = p.store.stats();
  for (const std::shared_ptr<AttachedSession>& session : p.sessions.All()) {
    const wire::WriteMode mode = session->write_mode();
    ++(mode == wire::WriteMode::kMapped   ? g.sessions.mapped
       : mode == wire::WriteMode::kStaged ? g.sessions.staged
                                          : g.sessions.stream);
  }
  g.started_unix_s = p.started_unix_s;
  g.quarantined = p.quarantine.bytes();
  g.device_blocks = p.devices.blocks();
  g.processes = p.processes->counts().processes;
  g.sideband = &p.sideband->counters();
  if (p.disk) g.disk = p.disk->stats();
  MutexLock lock(p.mu);
  g.draining = p.draining;
  return g;
}

}  // namespace larder
