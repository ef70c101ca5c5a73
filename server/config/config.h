// The configuration that an operator can choose, checked and ready to use.
//
// The options themselves (name, kind, default, help) are one table in config_options.cc; a field of
// Config has the name of its option.  The sources override each other in this order: flags >
// environment (LARDER_*) > file > defaults.  An unknown key, flag or LARDER_ variable is an error
// (except the few variables that IsForOthers in config.cc names), and so is a value that does not
// parse, even if another source overrides it.
//
// A valid configuration does not guarantee that the host can satisfy it, for example that the host
// has the memory.
// Ownership: values.  Thread-safety: plain data.
// Lifecycle: larderd calls LoadConfig only when it starts; there is no reload.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/runtime/logging.h"
#include "storage/clock.h"
#include "storage/types.h"

namespace larder {

// The only tenant that exists so far.
inline constexpr std::string_view kDefaultTenant = "default";

// Which reads of blocks in host memory are checked against the blocks' hashes.
enum class HostReadPolicy : uint8_t { kNever, kSampled, kAlways };

struct Config {
  // Where the daemon listens.
  std::string socket_dir;  // absolute
  mode_t data_socket_mode = 0;
  mode_t control_socket_mode = 0;
  std::string control_socket_group;  // name or number; empty: the daemon's own
  std::string metrics_listen;        // "127.0.0.1:9464"; empty disables metrics

  // Memory.
  ByteCount pool;
  ByteCount slab;  // 0: the pool chooses
  bool lock_memory = false;
  bool huge_pages = false;
  double evict_watermark = 0;  // share of the pool
  ByteCount host_verify_rate;  // bytes per second; 0 disables verification

  // Disk.
  std::string disk;            // directory, absolute; empty: no disk
  ByteCount disk_limit;        // of all files in `disk`
  uint32_t disk_readers = 0;   // threads
  ByteCount disk_verify_rate;  // bytes per second; 0 disables verification
  std::string fault_points;    // storage/fault_points.h; for tests

  // Who may do what, and how much of it.
  std::vector<uid_t> trusted_uids;  // sorted
  double lease_share = 0;           // of the pool, per process
  double pin_share = 0;             // of the pool, and of the disk
  uint32_t pins_max = 0;
  uint32_t events_max = 0;
  uint32_t sessions_max = 0;
  uint32_t connections_per_process = 0;  // at data.sock, and at sideband.sock; 0: derived
  uint32_t calls_max = 0;
  ByteCount memory_limit;        // of messages under way
  uint32_t rpc_threads_max = 0;  // 0: gRPC decides
  ByteCount staging_limit;       // per process
  ByteCount staging_uid_limit, staging_total_limit;
  bool session_sockets = true;
  uint32_t session_threads = 0;  // 0: by the number of cores
  uint32_t copy_threads = 0;     // 0: by the number of cores

  // Reads.
  HostReadPolicy check_host_reads = HostReadPolicy::kSampled;
  uint32_t check_one_in = 0;  // with kSampled

  // Running.
  Duration drain_limit{};
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;

  // Returns N if about one in N blocks that are read from HOST is checked, or 0 if none is.
  [[nodiscard]] uint32_t CheckOneIn() const;
  [[nodiscard]] std::string DataSocket() const { return socket_dir + "/data.sock"; }
  [[nodiscard]] std::string ControlSocket() const { return socket_dir + "/control.sock"; }
  [[nodiscard]] std::string AdminSocket() const { return socket_dir + "/admin.sock"; }
  [[nodiscard]] std::string SidebandSocket() const { return socket_dir + "/sideband.sock"; }

  friend bool operator==(const Config&, const Config&) = default;
};

// Everything that LoadConfig reads.
struct ConfigSources {
  std::vector<std::pair<std::string, std::string>> flags;  // {"pool", "8GiB"}: without dashes
  std::vector<std::string> environment;                    // "NAME=value"
  std::string file;                                        // if empty, $LARDER_CONFIG names it
  uid_t uid = 0;                                           // of this process
};

// A configuration and where each value came from.
struct LoadedConfig {
  struct Setting {
    std::string_view option;
    std::string text;    // as a flag would give it
    std::string origin;  // such as "default", "larder.toml:3" or "flag --pool"
  };
  Config config;
  std::vector<Setting> settings;  // one for each option, in the order of ConfigOptions()
};

// Returns InvalidArgument if there are errors, with one line for each.
[[nodiscard]] absl::StatusOr<LoadedConfig> LoadConfig(const ConfigSources& sources);

// Returns the effective configuration as a TOML file, with the origin of each value as a comment.
// LoadConfig can read it back, unless a value contains control characters or is not UTF-8.
[[nodiscard]] std::string PrintConfig(const LoadedConfig& loaded);

}  // namespace larder
