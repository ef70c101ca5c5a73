// The threads of the storm's engines: one kind has a session in this process and works on chains,
// the other has a child process that it kills repeatedly.
//
// Ownership: session and child.  Thread-safety: none; a child dies with the thread that runs its
// actor.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "tests/e2e/storm/storm_engine.h"
#include "tests/e2e/storm/storm_world.h"
#include "tests/e2e/support/child_engine.h"

namespace larder::e2e {

[[nodiscard]] std::vector<ContentSpec> StormContents(StormWorld& world);

class StormSessionActor {
 public:
  StormSessionActor(StormWorld& world, uint64_t number, uint64_t seed)
      : world_(world), random_(seed), engine_(world.tally), next_id_(number << 48) {}
  // Runs until the gate ends it.
  void Run();

 private:
  [[nodiscard]] bool Connect();
  // Releases the leases, unless the daemon is ending, and ends the session.
  void Disconnect();
  void StepOnChain();
  void StepOnOpen();
  void ReleaseOldest();
  // Settles an answer with the model.  Returns false if the daemon has ended.
  [[nodiscard]] bool Settle(StormChain& chain, size_t block, const StormLaw& law,
                            const absl::StatusOr<BlockStatus>& answer, const char* what);

  StormWorld& world_;
  StormRandom random_;
  StormEngine engine_;
  uint64_t next_id_;
  std::deque<std::pair<size_t, size_t>> held_;  // chain and block of each lease
};

class StormChildActor {
 public:
  StormChildActor(StormWorld& world, uint64_t seed) : world_(world), random_(seed) {}
  void Run();

 private:
  void Start();
  void Kill();
  void LookWhyItEnded();

  StormWorld& world_;
  StormRandom random_;
  std::unique_ptr<ChildEngine> child_;
  uint64_t lines_left_ = 0;
};

}  // namespace larder::e2e
