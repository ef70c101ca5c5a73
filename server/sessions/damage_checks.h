// Checks blocks that readers report as damaged.  A report alone drops no block: a thread of this
// object reads the block first.  The thread checks one block at a time, at a bounded rate, and
// takes the blocks of the reporting processes in turn.
//
// A report is only a hint, so reports beyond a limit are dropped.
// Ownership: owns its thread; store and counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: mu_ is a leaf; it is not held while a block is checked.
// Lifecycle: constructed -> Report ... -> destroyed, which drops the reports that wait.
// Limits: those of struct Limits.  A block waits at most once for each process that reported it.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/metrics/counters.h"
#include "server/runtime/shares.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"

namespace larder {

class DamageChecks {
 public:
  struct Limits {
    size_t process_max = 1024;         // blocks that wait for one process
    size_t processes_max = 1024;       // processes for which blocks wait, including ended ones;
                                       // at most about half as many of one uid
    ByteCount bytes_per_s = MiB(256);  // a block counts as at least kLeast
  };
  static constexpr ByteCount kLeast = KiB(64);

  DamageChecks(BlockStore& store, Counters& counters) : DamageChecks(store, counters, Limits()) {}
  DamageChecks(BlockStore& store, Counters& counters, const Limits& limits);
  ~DamageChecks();
  DamageChecks(const DamageChecks&) = delete;
  DamageChecks& operator=(const DamageChecks&) = delete;

  // Queues the blocks to be checked; those beyond a limit are counted and dropped.  `reporter` is
  // the process whose reader reports the blocks.
  void Report(const ShareHolder& reporter, VariantIndex variant, std::span<const Digest> digests)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t waiting() const LARDER_EXCLUDES(mu_);

 private:
  using Name = std::pair<VariantIndex, Digest>;
  using User = std::optional<uid_t>;
  struct Waiting {
    User uid;
    std::deque<Name> blocks;
    absl::flat_hash_set<Name> known;
  };
  void Run() LARDER_EXCLUDES(mu_);
  // Returns the queue of the process, a new one if it has none; null if the limit of processes, or
  // that of its uid, does not allow a new one.
  [[nodiscard]] Waiting* PlaceOf(const ShareHolder& reporter) LARDER_REQUIRES(mu_);
  // Takes the next block of the process whose turn it is.  REQUIRES: a block waits.
  [[nodiscard]] Name TakeNext() LARDER_REQUIRES(mu_);
  // Checks the block in HOST, calls DropDamaged if it is damaged, and returns how many bytes it
  // read.
  [[nodiscard]] ByteCount Check(const Name& name);

  BlockStore& store_;
  Counters& counters_;
  const Limits limits_;
  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<ProcessId, Waiting> waiting_ LARDER_GUARDED_BY(mu_);
  // The number of processes in waiting_, by uid.
  absl::flat_hash_map<User, size_t> processes_ LARDER_GUARDED_BY(mu_);
  std::deque<ProcessId> turns_ LARDER_GUARDED_BY(mu_);  // keys of waiting_, the next one first
  std::thread thread_;
};

}  // namespace larder
