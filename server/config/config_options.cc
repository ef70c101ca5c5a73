#include "server/config/config_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/config/config_values.h"
#include "storage/fault_points.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder {
namespace {

template <class T>
absl::Status Store(absl::StatusOr<T> parsed, T* field) {
  LARDER_RETURN_IF_ERROR(parsed.status());
  *field = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status AssignSocketDir(std::string_view text, uid_t, Config* c) {
  // A client connects by the path of a socket file, which must fit into the 108 bytes of sun_path
  // with a NUL.  sideband.sock is the longest name of a socket file.
  constexpr size_t kDirBytesMax = 107 - std::string_view("/sideband.sock").size();
  if (!text.starts_with('/')) {
    return absl::InvalidArgumentError("is not an absolute path: clients run in other directories");
  }
  if (text.size() > kDirBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is too long: socket files need a directory of at most ", kDirBytesMax, " bytes"));
  }
  if (std::any_of(text.begin(), text.end(), [](char ch) { return absl::ascii_iscntrl(ch); })) {
    return absl::InvalidArgumentError("contains control characters: write a path without them");
  }
  while (text.size() > 1 && text.ends_with('/')) text.remove_suffix(1);
  c->socket_dir = std::string(text);
  return absl::OkStatus();
}

absl::Status AssignControlGroup(std::string_view text, uid_t, Config* c) {
  const auto bad = [](char ch) { return absl::ascii_iscntrl(ch) || absl::ascii_isspace(ch); };
  if (text.size() > 256 || std::any_of(text.begin(), text.end(), bad))
    return absl::InvalidArgumentError("is not a group name: write one name or number");
  c->control_socket_group = std::string(text);
  return absl::OkStatus();
}

absl::Status AssignPool(std::string_view text, uid_t, Config* c) {
  const absl::Status status = Store(ParseSize(text), &c->pool);
  if (status.ok() && c->pool < MiB(2)) {
    return absl::InvalidArgumentError("is too small: write at least 2MiB");
  }
  return status;
}

absl::Status AssignSlab(std::string_view text, uid_t, Config* c) {
  const absl::Status status = Store(ParseSize(text), &c->slab);
  if (status.ok() && c->slab.value() % MiB(2).value() != 0) {
    return absl::InvalidArgumentError("is not a multiple of 2MiB");
  }
  return status;
}

absl::Status AssignMemoryLimit(std::string_view text, uid_t, Config* c) {
  const absl::Status status = Store(ParseSize(text), &c->memory_limit);
  if (status.ok() && c->memory_limit < MiB(32)) {
    return absl::InvalidArgumentError("is too small: two messages of 16MiB need 32MiB");
  }
  return status;
}

absl::Status AssignDisk(std::string_view text, uid_t, Config* c) {
  if (!text.empty() && !text.starts_with('/'))
    return absl::InvalidArgumentError("is not an absolute path: write one that begins with /");
  c->disk = std::string(text);
  return absl::OkStatus();
}

absl::Status AssignDiskLimit(std::string_view text, uid_t, Config* c) {
  constexpr ByteCount kLeast = MiB(96);  // FileDiskTier::kLimitMin, which Open checks again
  const absl::Status status = Store(ParseSize(text), &c->disk_limit);
  if (status.ok() && c->disk_limit < kLeast)
    return absl::InvalidArgumentError("is too small: write at least 96MiB");
  return status;
}

// Parses a rate in bytes per second; 0 disables the verification.
absl::Status AssignRate(std::string_view text, ByteCount* rate) {
  *rate = ByteCount(0);
  return text == "0" ? absl::OkStatus() : Store(ParseSize(text), rate);
}
absl::Status AssignDiskVerifyRate(std::string_view text, uid_t, Config* c) {
  return AssignRate(text, &c->disk_verify_rate);
}
absl::Status AssignHostVerifyRate(std::string_view text, uid_t, Config* c) {
  return AssignRate(text, &c->host_verify_rate);
}

// Assigns to `field` the value that `all` pairs with the word `text`.  Returns InvalidArgument,
// which lists the words, if `text` is none of them.
template <class T>
absl::Status AssignWord(std::string_view text, std::initializer_list<std::pair<const char*, T>> all,
                        T* field) {
  std::string words;
  for (const auto& [word, value] : all) {
    if (text == word) {
      *field = value;
      return absl::OkStatus();
    }
    absl::StrAppend(&words, words.empty() ? "" : ", ", word);
  }
  return absl::InvalidArgumentError(absl::StrCat("is none of ", words));
}

constexpr std::string_view kListen = "Where it listens";
constexpr std::string_view kMemory = "Memory";
constexpr std::string_view kDisk = "Disk";
constexpr std::string_view kLimits = "Who may do what, and how much of it";
constexpr std::string_view kReads = "Checking";
constexpr std::string_view kRunning = "Running";

constexpr ConfigOption kOptions[] = {
    {"socket_dir", kListen, "DIR", "", true,
     "Directory of the socket files data.sock, sideband.sock, control.sock and admin.sock and of "
     "the lock file; created if missing. One daemon serves one directory. Default: "
     "$RUNTIME_DIRECTORY (systemd), otherwise /run/larder for root, otherwise "
     "$XDG_RUNTIME_DIR/larder.",
     AssignSocketDir},
    {"data_socket_mode", kListen, "MODE", "0660", true,
     "Permissions of data.sock and sideband.sock, octal: they decide which users may use the cache "
     "at all. admin.sock is always 0600.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseSocketMode(t), &c->data_socket_mode);
     }},
    {"control_socket_mode", kListen, "MODE", "0660", true,
     "Permissions of control.sock, octal: they decide which routers, schedulers and operators may "
     "pin, clear, move, compress and watch what engines have stored.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseSocketMode(t), &c->control_socket_mode);
     }},
    {"control_socket_group", kListen, "GROUP", "", true,
     "Group of control.sock, by name or number; the daemon's user must be a member of it. Empty: "
     "the group that the daemon runs with, as for data.sock.",
     AssignControlGroup},
    {"metrics_listen", kListen, "HOST:PORT", "127.0.0.1:9464", true,
     "Address at which Prometheus reads /metrics. Only loopback addresses are allowed, because "
     "readers are not authenticated. Empty: metrics are not served.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseLoopbackAddress(t), &c->metrics_listen);
     }},
    {"pool", kMemory, "SIZE", "1GiB", true,
     "Host memory for blocks, such as 8GiB; the limit is exact. The daemon already serves while "
     "the pool is being populated.",
     AssignPool},
    {"slab", kMemory, "SIZE", "0", true,
     "Size of one shared-memory file of the pool, a multiple of 2MiB; no block can be larger than "
     "it. 0: about a 32nd of the pool, 64MiB to 1GiB.",
     AssignSlab},
    {"lock_memory", kMemory, "BOOL", "true", false,
     "Keep the pool out of swap if the host allows it (RLIMIT_MEMLOCK). If it does not, the daemon "
     "serves all the same, and the statistics report it.",
     [](std::string_view t, uid_t, Config* c) { return Store(ParseBool(t), &c->lock_memory); }},
    {"huge_pages", kMemory, "BOOL", "true", false,
     "Use hugetlb pages of 2 MiB if enough are free for the whole pool, otherwise pages of 4 KiB. "
     "A slab for which the host then has no huge pages after all gets pages of 4 KiB, too.",
     [](std::string_view t, uid_t, Config* c) { return Store(ParseBool(t), &c->huge_pages); }},
    {"evict_watermark", kMemory, "SHARE", "0.04", true,
     "The daemon evicts blocks in the background while less than this share of the pool is free, "
     "so that writers get memory without waiting. 0 disables that; 0.5 is the maximum.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseShare(t, 0, 0.5), &c->evict_watermark);
     }},
    {"disk", kDisk, "DIR", "", true,
     "Directory for blocks that outlive the daemon, on a local disk; created if missing. One "
     "daemon uses one directory. Empty: no disk, and blocks that leave the pool are lost.",
     AssignDisk},
    {"disk_limit", kDisk, "SIZE", "16GiB", true,
     "Space that the files of the disk may take, at least 96MiB; the limit is exact. A sixteenth "
     "of it, but at least 32MiB, is for the catalogs, which hold the names of the blocks.",
     AssignDiskLimit},
    {"disk_readers", kDisk, "COUNT", "4", false, "Threads that read from the disk.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 1, 256), &c->disk_readers);
     }},
    {"disk_verify_rate", kDisk, "SIZE", "8MiB", true,
     "Bytes per second at which the daemon rereads blocks that are on disk only, over and over, to "
     "find damage before a client waits for them. A block counts as at least 512KiB, because a "
     "read costs processor time however small it is. 0: never.",
     AssignDiskVerifyRate},
    {"fault_points", kDisk, "LIST", "", true,
     "For tests: where the disk tier fails, stalls or crashes, as in data.write=error/32.",
     [](std::string_view t, uid_t, Config* c) {
       FaultPoints points;
       c->fault_points = std::string(t);
       return points.Arm(t);
     }},
    {"trusted_uids", kLimits, "UIDS", "self", true,
     "Users whose processes may map the pool, and so write and read blocks without a copy by the "
     "daemon, separated by commas; self is the daemon's own user. Their processes can damage each "
     "other's blocks. Processes of other users never map the pool: the daemon copies what they "
     "write and read. None, or empty: only the daemon writes to the pool, which it seals against "
     "all other processes, so that processes of all users may read it in place.",
     [](std::string_view t, uid_t self, Config* c) {
       return Store(ParseUids(t, self), &c->trusted_uids);
     }},
    {"lease_share", kLimits, "SHARE", "0.25", true,
     "Share of the pool that one process may hold under leases, and the same share again in "
     "reservations. The processes of a user together may hold three times as much "
     "(docs/shares.md).",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseShare(t, 0.001, 1), &c->lease_share);
     }},
    {"pin_share", kLimits, "SHARE", "0.5", true,
     "Share of the pool, and of the disk, that pinned blocks may take. A pin beyond it is answered "
     "FULL.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseShare(t, 0, 1), &c->pin_share);
     }},
    {"pins_max", kLimits, "COUNT", "131072", false,
     "Pins at once, including prefetches. A pin beyond it is answered FULL.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 0, 16'777'216), &c->pins_max);
     }},
    {"events_max", kLimits, "COUNT", "65536", false,
     "Events that the daemon keeps for watchers: blocks that entered or left a tier, 32 bytes "
     "each, and as many events of device memory. A watcher that falls further behind is cut off.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 1, 16'777'216), &c->events_max);
     }},
    {"sessions_max", kLimits, "COUNT", "1024", false,
     "Sessions attached at once. A session beyond it is refused, with a hint when to retry.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 1, 65536), &c->sessions_max);
     }},
    {"connections_per_process", kLimits, "COUNT", "0", false,
     "Connections to data.sock, and as many to sideband.sock, that one process may have at once. "
     "0: at most 32 and 16, and fewer if the limit of open files is low, so that no process uses "
     "up the connections of others.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 0, 65536), &c->connections_per_process);
     }},
    {"calls_max", kLimits, "COUNT", "256", false,
     "Calls under way at once, besides the streams of sessions. A call beyond it is refused, with "
     "a hint when to retry.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 1, 65536), &c->calls_max);
     }},
    {"memory_limit", kLimits, "SIZE", "256MiB", true,
     "Memory for messages and byte streams under way, at least 32MiB, in addition to the pool and "
     "its index: half of it for messages that are arriving, half for messages that have arrived "
     "and for answers that wait to be read. A request that does not fit is refused, with a hint "
     "when to retry. At data.sock each of eight users has the first half to itself.",
     AssignMemoryLimit},
    {"rpc_threads_max", kLimits, "COUNT", "0", false,
     "Threads that gRPC may start for each of its servers. 0: gRPC decides.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 0, 4096), &c->rpc_threads_max);
     }},
    {"session_sockets", kLimits, "BOOL", "true", false,
     "Let processes of this host use session sockets, which are faster than gRPC. false: all "
     "sessions use gRPC.",
     [](std::string_view t, uid_t, Config* c) { return Store(ParseBool(t), &c->session_sockets); }},
    {"session_threads", kLimits, "COUNT", "0", false,
     "Threads that serve session sockets. 0: one per 16 cores, at least 1 and at most 4.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 0, 64), &c->session_threads);
     }},
    {"staging_limit", kLimits, "SIZE", "256MiB", true,
     "Staging memory that one process without the right to map the pool may request: the daemon "
     "copies through it what that process stores and reads. The daemon creates it, so its pages "
     "may be charged to the daemon, in addition to the pool and memory_limit. A session that "
     "cannot get what it wants takes a smaller segment.",
     [](std::string_view t, uid_t, Config* c) { return Store(ParseSize(t), &c->staging_limit); }},
    {"staging_uid_limit", kLimits, "SIZE", "512MiB", true,
     "The same limit for all processes of one user together.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseSize(t), &c->staging_uid_limit);
     }},
    {"staging_total_limit", kLimits, "SIZE", "1GiB", true,
     "The same limit for all processes together.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseSize(t), &c->staging_total_limit);
     }},
    {"copy_threads", kLimits, "COUNT", "0", false,
     "Threads that copy blocks from staging memory into the pool, and handle messages that would "
     "delay others. 0: a quarter of the cores, at least 2 and at most 8.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 0, 256), &c->copy_threads);
     }},
    {"check_host_reads", kReads, "WHEN", "sampled", true,
     "Which reads of blocks in host memory are checked against their hashes: never, sampled (one "
     "in check_one_in), always. A block that does not match is dropped and counts as a miss.",
     [](std::string_view t, uid_t, Config* c) {
       return AssignWord<HostReadPolicy>(t,
                                         {{"never", HostReadPolicy::kNever},
                                          {"sampled", HostReadPolicy::kSampled},
                                          {"always", HostReadPolicy::kAlways}},
                                         &c->check_host_reads);
     }},
    {"check_one_in", kReads, "COUNT", "64", false,
     "With check_host_reads = sampled, one block in this many is checked, chosen at random.",
     [](std::string_view t, uid_t, Config* c) {
       return Store(ParseCount(t, 1, 1'000'000), &c->check_one_in);
     }},
    {"host_verify_rate", kReads, "SIZE", "16MiB", true,
     "Bytes per second at which the daemon rereads blocks in host memory, over and over, to find "
     "damage before an engine waits for them: 8GiB take 9 minutes. A block counts as at least "
     "64KiB. 0: never.",
     AssignHostVerifyRate},
    {"drain_limit", kRunning, "DURATION", "30s", true,
     "How long a drain (SIGTERM, or the Drain call without a limit) waits for the work of "
     "sessions, and then for blocks on their way to disk, before the daemon exits anyway.",
     [](std::string_view t, uid_t, Config* c) { return Store(ParseDuration(t), &c->drain_limit); }},
    {"log_level", kRunning, "LEVEL", "info", true,
     "Lowest level that is logged: debug, info, warning, error.",
     [](std::string_view t, uid_t, Config* c) {
       return AssignWord<LogLevel>(t,
                                   {{"debug", LogLevel::kDebug},
                                    {"info", LogLevel::kInfo},
                                    {"warning", LogLevel::kWarning},
                                    {"error", LogLevel::kError}},
                                   &c->log_level);
     }},
    {"log_format", kRunning, "FORMAT", "text", true,
     "Format of the log on standard error, one event per line: text (key=value) or json.",
     [](std::string_view t, uid_t, Config* c) {
       return AssignWord<LogFormat>(t, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
                                    &c->log_format);
     }},
};

std::string WithDashes(std::string_view name) {
  return absl::StrReplaceAll(AbslView(name), {{"_", "-"}});
}

}  // namespace

std::span<const ConfigOption> ConfigOptions() { return kOptions; }

const ConfigOption* FindConfigOption(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                         [&](const auto& option) { return option.name == name; });
  return found == std::end(kOptions) ? nullptr : found;
}

std::string_view NearestConfigOption(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ConfigOption& option : kOptions) names.push_back(option.name);
  return NearestName(name, names);
}

std::string FlagName(const ConfigOption& option) {
  return absl::StrCat("--", WithDashes(option.name));
}

std::string VariableName(const ConfigOption& option) {
  return absl::StrCat("LARDER_", absl::AsciiStrToUpper(AbslView(option.name)));
}

}  // namespace larder
