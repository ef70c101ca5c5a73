// Blocks that readers say are damaged: the daemon reads them itself before it believes that, on a
// thread of its own, a block at a time, one process after the other, at a bounded rate.
//
// A report is hearsay and may be dropped: what is damaged is found again when it is next sampled.
// Ownership: its thread; store and counters outlive it.
// Thread-safety: Report from any thread.
// Lifecycle: made -> Report ... -> destroyed, which drops what waits.
// Limits: Limits; a block that waits for a process waits for it once.
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
    size_t process_max = 1024;         // blocks that wait for one
    size_t processes_max = 1024;       // for which any wait, those that have ended included;
                                       // of a uid at most half as many
    ByteCount bytes_per_s = MiB(256);  // a block counts as kLeast at least
  };
  static constexpr ByteCount kLeast = KiB(64);

  DamageChecks(BlockStore& store, Counters& counters) : DamageChecks(store, counters, Limits()) {}
  DamageChecks(BlockStore& store, Counters& counters, const Limits& limits);
  ~DamageChecks();
  DamageChecks(const DamageChecks&) = delete;
  DamageChecks& operator=(const DamageChecks&) = delete;

  // `reporter`: whose reader says so.
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
  // Null: there is no place for it.
  [[nodiscard]] Waiting* PlaceOf(const ShareHolder& reporter) LARDER_REQUIRES(mu_);
  // The next block, of the process whose turn it is.  REQUIRES: some wait.
  [[nodiscard]] Name TakeNext() LARDER_REQUIRES(mu_);
  // How much it read.
  [[nodiscard]] ByteCount Check(const Name& name);

  BlockStore& store_;
  Counters& counters_;
  const Limits limits_;
  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<ProcessId, Waiting> waiting_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<User, size_t> processes_ LARDER_GUARDED_BY(mu_);  // of waiting_, by uid
  std::deque<ProcessId> turns_ LARDER_GUARDED_BY(mu_);  // those of waiting_, the next one first
  std::thread thread_;
};

}  // namespace larder
