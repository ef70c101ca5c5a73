// The program larderd.  To serve, it creates the pool, the store, the disk and the Daemon, in
// order, and waits until the daemon is drained.  `larderd --help` lists the exit codes.

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/config/command_line.h"
#include "server/config/config.h"
#include "server/config/config_values.h"
#include "server/config/default_config.h"
#include "server/config/help_text.h"
#include "server/connections/descriptor_budget.h"
#include "server/connections/listening_socket.h"
#include "server/connections/passed_rights.h"
#include "server/connections/socket_group.h"
#include "server/daemon.h"
#include "server/metrics/counters.h"
#include "server/metrics/metrics.h"
#include "server/metrics/metrics_table.h"
#include "server/runtime/disk_room.h"
#include "server/runtime/inherited_sockets.h"
#include "server/runtime/lock_file.h"
#include "server/runtime/logging.h"
#include "server/runtime/malloc_tuning.h"
#include "server/runtime/notify.h"
#include "server/runtime/signals.h"
#include "server/runtime/version.h"
#include "storage/clock.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/fault_points.h"
#include "storage/memory/huge_pages.h"
#include "storage/memory/slab_pool.h"
#include "storage/status_macros.h"
#include "storage/store/block_store.h"

namespace larder {
namespace {

// How much more time than the drain limit the service manager is asked to give the daemon.
constexpr std::chrono::seconds kEndLimit{15};
// How often the daemon checks its parts if no service manager watches it.
constexpr std::chrono::seconds kPulse{2};

enum ExitCode : int { kOk = 0, kInternal = 1, kBadConfig = 2, kCannotStart = 3 };

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "larderd: %s\n", std::string(status.message()).c_str());
  return code;
}

std::vector<std::string> Environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}

absl::StatusOr<std::string> FreshBootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/uuid") >> id;
  if (id.size() != 36) return absl::UnavailableError("cannot read /proc/sys/kernel/random/uuid");
  return id;
}

SlabPool::Options PoolOptions(const Config& config) {
  SlabPool::Options options;
  options.bytes = config.pool;
  options.slab_bytes = config.slab;
  options.seal_future_write = config.trusted_uids.empty();
  options.lock_memory = config.lock_memory;
  options.huge_pages = config.huge_pages;
  return options;
}

size_t CopyThreads(const Config& config) {
  if (config.copy_threads > 0) return config.copy_threads;
  return std::clamp(std::thread::hardware_concurrency() / 4, 2u, 8u);
}

size_t SessionThreads(const Config& config) {
  if (!config.session_sockets) return 0;
  if (config.session_threads > 0) return config.session_threads;
  return std::clamp(std::thread::hardware_concurrency() / 16, 1u, 4u);
}

DaemonOptions OptionsOf(const LoadedConfig& loaded, const InheritedSockets& inherited,
                        const DescriptorBudget& descriptors, std::optional<gid_t> control_group,
                        std::string boot_id, LogRepeats& client_repeats, const Log& log) {
  const Config& config = loaded.config;
  DaemonOptions options;
  options.listeners = {.data = inherited.Find(config.DataSocket()),
                       .sideband = inherited.Find(config.SidebandSocket()),
                       .control = inherited.Find(config.ControlSocket()),
                       .admin = inherited.Find(config.AdminSocket())};
  options.socket_dir = config.socket_dir;
  options.data_socket_mode = config.data_socket_mode;
  options.control_socket_mode = config.control_socket_mode;
  options.control_socket_group = control_group;
  options.trusted_uids = config.trusted_uids;
  options.sessions_max = descriptors.sessions_max;
  options.connections = {.data = descriptors.data,
                         .control = descriptors.control,
                         .admin = descriptors.admin,
                         .sideband = descriptors.sideband};
  options.calls_max = config.calls_max;
  options.memory_limit = config.memory_limit;
  options.rpc_threads_max = static_cast<int>(config.rpc_threads_max);
  options.session_threads = SessionThreads(config);
  options.check_one_in = config.CheckOneIn();
  options.copy_threads = CopyThreads(config);
  options.staging_bytes_max = config.staging_limit;
  options.staging_uid_bytes_max = config.staging_uid_limit;
  options.staging_total_bytes_max = config.staging_total_limit;
  options.disk_readers = config.disk_readers;
  options.disk_verify_rate = config.disk_verify_rate;
  options.host_verify_rate = config.host_verify_rate;
  options.boot_id = std::move(boot_id);
  options.version = Version();
  options.config = PrintConfig(loaded);
  options.warn = [&log](const std::string& text) { log.Warning("disk", {{"what", text}}); };
  options.warn_of_damage = [&log](const std::string& text) {
    log.Warning("damaged", {{"what", text}});
  };
  options.warn_sockets = [&log, &client_repeats](const std::string& text) {
    if (const auto pass = client_repeats.Pass(text)) {
      log.Warning("sockets", {{"what", text}, {"suppressed", pass->suppressed}});
    }
  };
  options.warn_shares = [&log, &client_repeats](const std::string& what, const std::string& why) {
    if (const auto pass = client_repeats.Pass("share " + what)) {
      log.Warning("share_full", {{"why", why}, {"suppressed", pass->suppressed}});
    }
  };
  options.warn_engines = [&log, &client_repeats](const std::string& who, const std::string& what) {
    if (const auto pass = client_repeats.Pass("engine " + who)) {
      log.Warning("engine_id_taken", {{"what", what}, {"suppressed", pass->suppressed}});
    }
  };
  return options;
}

// Returns 0 if there is no disk.
ByteCount DiskLimit(const Config& config) {
  return config.disk.empty() ? ByteCount(0) : config.disk_limit;
}

BlockStore::Options StoreOptions(const Config& config) {
  return {.lease_share = config.lease_share,
          .free_watermark = config.evict_watermark,
          .pin_share = config.pin_share,
          .disk_limit = DiskLimit(config),
          .pins_max = config.pins_max,
          .events_max = config.events_max};
}

// Returns, for example, "16GiB in /var/lib/larder", or "off".
std::string DiskText(const Config& config) {
  return config.disk.empty() ? "off"
                             : absl::StrCat(FormatSize(config.disk_limit), " in ", config.disk);
}

// Prints the addresses, for an operator who started larderd by hand.
void PrintWhereToGo(const Config& config, const SlabPool& pool, const MetricsServer* metrics) {
  std::printf(
      "larderd %s serves %s, pool %s (pages of %s)\n"
      "  engines   unix:%s\n"
      "  routers   unix:%s\n"
      "  operator  unix:%s\n"
      "  metrics   %s\n"
      "  disk      %s\n"
      "Engines find it with LARDER_SOCKET_DIR=%s. Ctrl-C or SIGTERM drains it.\n",
      Version(), config.socket_dir.c_str(), FormatSize(pool.total_bytes()).c_str(), pool.pages(),
      config.DataSocket().c_str(), config.ControlSocket().c_str(), config.AdminSocket().c_str(),
      metrics == nullptr ? "off" : metrics->url().c_str(), DiskText(config).c_str(),
      config.socket_dir.c_str());
  std::fflush(stdout);
}

// Reports what is served, in the log and on standard output.
void SayWhatIsServed(const Config& config, const std::string& boot_id, const SlabPool& pool,
                     const MetricsServer* metrics, const Log& log) {
  log.Info("serving", {{"version", Version()},
                       {"socket_dir", config.socket_dir},
                       {"boot_id", boot_id},
                       {"pool_bytes", pool.total_bytes().value()},
                       {"pages", pool.pages()},
                       {"disk", config.disk.empty() ? "off" : config.disk},
                       {"disk_limit", DiskLimit(config).value()},
                       {"metrics", metrics == nullptr ? std::string("off") : metrics->url()}});
  PrintWhereToGo(config, pool, metrics);
}

// Removes the socket files that a dead daemon left behind, because this daemon binds its sockets at
// the same paths.  Leaves the sockets of the service manager alone.
// REQUIRES: this process holds the lock of the socket directory.
absl::Status RemoveStaleSockets(const InheritedSockets& inherited, const Config& config) {
  for (const std::string& path : {config.DataSocket(), config.ControlSocket(), config.AdminSocket(),
                                  config.SidebandSocket()}) {
    if (inherited.Find(path) >= 0) continue;
    LARDER_RETURN_IF_ERROR(RemoveStaleSocket(path));
  }
  return absl::OkStatus();
}

// Returns null if metrics are turned off.
absl::StatusOr<std::unique_ptr<MetricsServer>> StartMetrics(const Config& config,
                                                            const Counters& counters,
                                                            Daemon& daemon) {
  if (config.metrics_listen.empty()) return nullptr;
  return MetricsServer::Start(config.metrics_listen, counters,
                              [&daemon] { return daemon.gauges(); });
}

void WarnOfLackingRoom(const Config& config, const DiskTier& disk, const Log& log) {
  const ByteCount lacking = DiskRoomLacking(config.disk, disk.stats().allocated, config.disk_limit);
  if (lacking == ByteCount(0)) return;
  log.Warning("disk_small", {{"directory", config.disk},
                             {"limit", config.disk_limit.value()},
                             {"lacking", lacking.value()},
                             {"do", "free as much or lower disk_limit, otherwise writes fail"}});
}

absl::Status ArmFaults(const Config& config, FaultPoints& faults, const Log& log) {
  LARDER_RETURN_IF_ERROR(faults.Arm(config.fault_points));
  if (faults.armed()) log.Warning("fault_points_armed", {{"points", config.fault_points}});
  PretendNoPassRights(faults.At(FaultPoint::kSocketRights) != FaultPoints::Fault::kNone);
  return absl::OkStatus();
}

// REQUIRES: the pool and the disk are open, because their descriptors count as in use.
absl::StatusOr<DescriptorBudget> PlanDescriptors(const Config& config, const Log& log) {
  const DescriptorNeeds needs{
      .limit = DescriptorLimit(),
      .in_use = OpenDescriptors(),
      .files = config.disk.empty() ? 0 : 64 + config.disk_limit.value() / MiB(256).value(),
      .sessions_max = config.sessions_max,
      .connections_per_process = config.connections_per_process};
  auto budget = ShareOutDescriptors(needs);
  if (budget.ok() && budget->sessions_max < config.sessions_max) {
    log.Warning("descriptors_few", {{"limit", needs.limit},
                                    {"sessions_max", budget->sessions_max},
                                    {"wanted", config.sessions_max},
                                    {"do", "raise the limit of open files (LimitNOFILE)"}});
  }
  return budget;
}

// Returns null if no disk is configured.
absl::StatusOr<std::unique_ptr<FileDiskTier>> OpenDisk(const Config& config, FaultPoints& faults,
                                                       LogRepeats& repeats, const Log& log) {
  if (config.disk.empty()) return nullptr;
  FileDiskTier::Options options;
  options.directory = config.disk;
  options.limit = config.disk_limit;
  options.faults = &faults;
  options.warn = [&log, &repeats](const std::string& text) {
    if (const auto pass = repeats.Pass(text))
      log.Warning("disk", {{"what", text}, {"suppressed", pass->suppressed}});
  };
  auto disk = FileDiskTier::Open(options);
  if (disk.ok()) WarnOfLackingRoom(config, **disk, log);
  return disk;
}

// Starts to read what is on disk, if there is one; the daemon serves in the meantime.
void StartRecovery(Daemon& daemon, const Log& log) {
  daemon.StartRecovery([&log](const absl::Status& status, uint64_t blocks, Duration took) {
    const double seconds = std::chrono::duration<double>(took).count();
    if (status.ok()) {
      log.Info("disk_recovered", {{"blocks", blocks}, {"seconds", seconds}});
    } else if (!absl::IsCancelled(status)) {
      log.Error("disk_incomplete", {{"why", std::string(status.message())}, {"blocks", blocks}});
    }
  });
}

// Gives the pool's slabs their memory while the daemon serves, and reports the progress to the
// service manager.
void StartPopulating(SlabPool& pool, BlockStore& store, ServiceManager& manager, const Log& log) {
  const auto on_slab = [&](SlabId slab) {
    store.AddSlab(slab);
    const uint32_t online = pool.online_count();
    manager.Status(absl::StrCat("serving; ", online, " of ", pool.slab_count(), " slabs online"));
    log.Debug("slab_online", {{"slab", static_cast<uint16_t>(slab)}, {"online", online}});
    if (online == pool.slab_count()) {
      log.Info("pool_online", {{"bytes", pool.total_bytes().value()},
                               {"pages", pool.pages()},
                               {"locked", pool.locked()}});
    }
  };
  pool.StartPopulating(on_slab, [&](const absl::Status& status) {
    const std::string why(status.message());
    manager.Status(absl::StrCat("the host has no more memory for the pool: ", why));
    log.Error("pool_stalled", {{"why", why}, {"online", pool.online_count()}});
  });
}

SignalThread::Handlers SignalHandlers(Daemon& daemon, const Config& config, ServiceManager& manager,
                                      Counters& counters, LogRepeats& repeats, const Log& log) {
  const bool watched = manager.WatchdogInterval().has_value();
  SignalThread::Handlers handlers;
  handlers.on_end = [&](int signal) {
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(config.drain_limit);
    manager.Stopping("draining", limit + kEndLimit);
    const size_t told = daemon.Drain(limit);
    log.Info("draining", {{"signal", signal}, {"sessions", told}, {"limit_ms", limit.count()}});
  };
  handlers.on_hangup = [&] {
    log.Warning("hangup_ignored", {{"do", "restart larderd to read the configuration again"}});
  };
  handlers.on_pulse = [&, watched] {
    const std::vector<std::string> stuck = daemon.Stuck();
    if (stuck.empty()) return manager.StillAlive();
    ++counters.stuck;
    const std::string parts = absl::StrJoin(stuck, " ");
    const char* const next = watched
                                 ? "the service manager restarts larderd if these stay stuck"
                                 : "restart larderd if these stay stuck: no service manager does";
    // A service manager that watches the daemon ends it soon, so every line is logged.  Without
    // one, the lines would fill the log.
    const auto pass = watched ? LogLimiter::Line{} : repeats.Pass(parts);
    if (pass) log.Error("stuck", {{"parts", parts}, {"do", next}});
  };
  handlers.pulse = manager.WatchdogInterval().value_or(kPulse);
  handlers.second_signal_exit_code = kInternal;
  return handlers;
}

// Sockets, slabs and data files each take a descriptor; the usual soft limit of 1,024 exists for
// programs that use select.
void RaiseDescriptorLimit() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // if it fails, the daemon serves fewer clients
}

// Locals are destroyed in reverse order, so most parts are created after the parts that they use.
int Serve(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  const bool huge_pages_refused = RefuseOtherHugePages();
  KeepHeapWarm();
  RaiseDescriptorLimit();
  BlockSignals();
  const Log log(config.log_level, config.log_format);
  if (!huge_pages_refused) {
    log.Warning("huge_pages_always",
                {{"do",
                  "write madvise into /sys/kernel/mm/transparent_hugepage/enabled and restart, so "
                  "that khugepaged does not hold up calls while all cores are busy"}});
  }
  ServiceManager manager;
  const SteadyClock clock;
  const auto cannot_start = [&](const char* part, const absl::Status& status) {
    log.Error("cannot_start", {{"part", part}, {"why", std::string(status.message())}});
    return kCannotStart;
  };

  const auto inherited = InheritedSockets::Take({{config.DataSocket(), SOCK_STREAM},
                                                 {config.ControlSocket(), SOCK_STREAM},
                                                 {config.AdminSocket(), SOCK_STREAM},
                                                 {config.SidebandSocket(), SOCK_SEQPACKET}});
  if (!inherited.ok()) return cannot_start("sockets", inherited.status());
  const auto control_group = FindGroup(config.control_socket_group);
  if (!control_group.ok()) return cannot_start("control_socket_group", control_group.status());
  const auto lock = LockFile::Acquire(config.socket_dir, [&](const std::string& what) {
    log.Warning("lock_waits", {{"what", what}});
  });
  if (!lock.ok()) return cannot_start("lock", lock.status());
  const absl::Status clean = RemoveStaleSockets(*inherited, config);
  if (!clean.ok()) return cannot_start("sockets", clean);
  auto boot_id = FreshBootId();
  if (!boot_id.ok()) return cannot_start("boot_id", boot_id.status());

  const auto pool = SlabPool::Create(PoolOptions(config));
  if (!pool.ok()) return cannot_start("pool", pool.status());
  BlockStore store(StoreOptions(config), **pool, clock);
  FaultPoints faults;
  if (absl::Status status = ArmFaults(config, faults, log); !status.ok()) {
    return cannot_start("fault_points", status);
  }
  LogRepeats disk_repeats(clock, std::chrono::hours(1));
  const auto disk = OpenDisk(config, faults, disk_repeats, log);
  if (!disk.ok()) return cannot_start("disk", disk.status());
  Counters counters;
  const auto descriptors = PlanDescriptors(config, log);
  if (!descriptors.ok()) return cannot_start("descriptors", descriptors.status());
  LogRepeats client_repeats(clock, std::chrono::minutes(1));
  const auto daemon = Daemon::Start(
      OptionsOf(loaded, *inherited, *descriptors, *control_group, *boot_id, client_repeats, log),
      store, counters, clock, disk->get());
  if (!daemon.ok()) return cannot_start("daemon", daemon.status());
  StartRecovery(**daemon, log);

  const auto metrics = StartMetrics(config, counters, **daemon);
  if (!metrics.ok()) return cannot_start("metrics", metrics.status());
  const auto signals =
      SignalThread::Start(SignalHandlers(**daemon, config, manager, counters, client_repeats, log));
  if (!signals.ok()) return cannot_start("signals", signals.status());

  StartPopulating(**pool, store, manager, log);
  SayWhatIsServed(config, *boot_id, **pool, metrics->get(), log);
  manager.Ready("serving");

  (*daemon)->Wait();
  (*pool)->StopPopulating();  // before the store, to which the pool passes slabs, is destroyed
  const uint64_t unspilled = (*daemon)->unspilled();
  if (unspilled > 0)
    log.Warning("not_spilled", {{"blocks", unspilled}, {"do", "raise drain_limit"}});
  log.Info("drained", {{"boot_id", *boot_id}});
  return kOk;
}

int CheckConfig(const Config& config) {
  std::printf("larderd: the configuration is valid: socket directory %s, pool %s, disk %s\n",
              config.socket_dir.c_str(), FormatSize(config.pool).c_str(), DiskText(config).c_str());
  return kOk;
}

int Run(const CommandLine& line) {
  using Action = CommandLine::Action;
  if (line.action == Action::kHelp) return std::fputs(HelpText().c_str(), stdout) < 0;
  if (line.action == Action::kVersion) return std::printf("larderd %s\n", Version()) < 0;
  if (line.action == Action::kPrintDefaultConfig) {
    return std::fputs(DefaultConfig().c_str(), stdout) < 0;
  }
  if (line.action == Action::kPrintMetricsReference) {
    return std::fputs(MetricsReference().c_str(), stdout) < 0;
  }
  if (line.action == Action::kPrintManPage) return std::fputs(ManPage().c_str(), stdout) < 0;
  const auto loaded = LoadConfig({.flags = line.flags,
                                  .environment = Environment(),
                                  .file = line.config_file,
                                  .uid = geteuid()});
  if (!loaded.ok()) return Fail(kBadConfig, loaded.status());
  if (line.action == Action::kCheckConfig) return CheckConfig(loaded->config);
  if (line.action == Action::kPrintConfig) {
    return std::fputs(PrintConfig(*loaded).c_str(), stdout) < 0;
  }
  return Serve(*loaded);
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  const auto line = larder::ParseCommandLine({argv + std::min(argc, 1), argv + argc});
  if (!line.ok()) return larder::Fail(larder::kBadConfig, line.status());
  return larder::Run(*line);
}
