// Tells the daemon which blocks an engine has in its own device memory, so that Lookup and
// WatchEvents show them in DEVICE, and directives reach them.
//
//   DeviceReporter device(keeper, {});
//   device.Add(parent, digests, tokens);  // pages hold these blocks now
//   device.Remove(digests);               // pages were given to other blocks
//
// The reporter keeps what the engine has, and tells each new session all of it, because the daemon
// forgets what a session reported when the session ends.  A block that was added more than once,
// because several pages hold it, is there until it was removed as often.  All variants of the
// keeper are reported alike: the ranks of an engine hold the same blocks.
//
// Ownership: the keeper outlives the reporter.
// Thread-safety: all methods from any thread; none waits for the daemon, except Flush.
// Locks: mu_ is a leaf, and is not held while a report is sent.
// Limits: none of its own; the engine's device memory bounds what it keeps.  A block that comes and
// goes within `every` is not reported.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "client/engine/session_keeper.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class DeviceReporter {
 public:
  struct StoredBlock {
    Digest digest, parent;
    std::vector<uint32_t> tokens;
  };
  struct Options {
    std::chrono::milliseconds every{
        20};  // changes are gathered for so long, and then sent together
    std::chrono::milliseconds look_every{100};      // how often it looks for a new session
    std::chrono::milliseconds backoff_max{10'000};  // between two tries, after failures in a row
  };

  DeviceReporter(SessionKeeper& keeper, const Options& options);
  // Waits for a report that is being sent.
  ~DeviceReporter();
  DeviceReporter(const DeviceReporter&) = delete;
  DeviceReporter& operator=(const DeviceReporter&) = delete;

  // Adds consecutive blocks of a chain.  `parent`: as in DeviceReport; `tokens`: of all the blocks,
  // the same number for each.
  void Add(const Digest& parent, std::span<const Digest> digests, std::span<const uint32_t> tokens)
      LARDER_EXCLUDES(mu_);
  // Removes one of each.  Digests that were not added are ignored.
  void Remove(std::span<const Digest> digests) LARDER_EXCLUDES(mu_);
  // Removes all.
  void Clear() LARDER_EXCLUDES(mu_);

  // Waits until all that was added and removed before is sent.  Returns DeadlineExceeded if that
  // takes longer than `at_most`.
  [[nodiscard]] absl::Status Flush(std::chrono::milliseconds at_most) LARDER_EXCLUDES(mu_);

  struct Stats {
    size_t blocks = 0;      // different ones that the engine has
    uint64_t sessions = 0;  // that were told all that the engine had
    uint64_t reports_failed = 0;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  struct Block {
    Digest parent = {};
    std::vector<uint32_t> tokens = {};
    uint32_t pages = 0;  // that hold it; 0: it is gone, which the session has not been told
    bool told = false;   // the session knows that it is there
  };
  struct News {
    bool all = false;  // instead of all that the session was told before
    std::vector<Digest> removed = {};
    std::vector<StoredBlock> stored = {};
  };

  void Work(const std::stop_token& stop) LARDER_EXCLUDES(mu_);
  // Waits until there is something to report, and then while more may come.  serves: a session was
  // there to report to; if not, waits for `otherwise`.
  void Pause(const std::stop_token& stop, bool serves, std::chrono::milliseconds otherwise)
      LARDER_EXCLUDES(mu_);
  void RemoveOne(const Digest& digest) LARDER_REQUIRES(mu_);
  void Changed() LARDER_REQUIRES(mu_);
  // Takes what a session has not been told, all if it is a new one, and counts it as told.
  [[nodiscard]] News Take(bool all) LARDER_REQUIRES(mu_);

  SessionKeeper& keeper_;
  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<Digest, Block> blocks_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_set<Digest> news_ LARDER_GUARDED_BY(mu_);  // of blocks_, not told as they are now
  size_t present_ LARDER_GUARDED_BY(mu_) = 0;                // blocks that a page holds
  uint64_t changes_ LARDER_GUARDED_BY(mu_) = 0;              // so far
  uint64_t taken_ LARDER_GUARDED_BY(mu_) = 0;                // changes that were taken for a report
  uint64_t sent_ LARDER_GUARDED_BY(mu_) = 0;   // changes of which the session was told
  bool hurry_ LARDER_GUARDED_BY(mu_) = false;  // Flush waits
  Stats stats_ LARDER_GUARDED_BY(mu_);
  std::jthread thread_;  // uses the members above
};

}  // namespace larder
