// A controller of the storm: it calls verbs of Cache and Admin at random and compares each answer
// with the model.
//
// Of a verb on a chain it checks the answer for every block and every sum; of a verb on open blocks
// only that the call is answered.
// Ownership: its connections, which are replaced with each daemon.  Thread-safety: none.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/rpc/admin_stub.h"
#include "client/rpc/rpc_stub.h"
#include "tests/e2e/storm/storm_watcher.h"
#include "tests/e2e/storm/storm_world.h"

namespace larder::e2e {

class StormController {
 public:
  StormController(StormWorld& world, uint64_t seed) : world_(world), random_(seed) {}
  // Runs until the gate ends it.
  void Run();

  // ---- for the test, which checks everything while the gate is closed
  void Connect();
  void Disconnect();
  // Looks up the tiers of each block and settles them with the model.  Returns false after a
  // difference or without an answer.
  [[nodiscard]] bool LookUp(StormChain& chain);
  // Looks up the blocks in device memory, which must be those of the model.
  void LookUpDevice(StormChain& chain);
  // Finds out by a dry run of Compress whether each copy is encoded.  Returns as LookUp.
  [[nodiscard]] bool LookAtCodecs(StormChain& chain);
  [[nodiscard]] StormWatcher& watcher() { return watcher_; }
  // Brings the watcher up to date.
  void CatchUp();
  [[nodiscard]] RpcStub& cache() { return *cache_; }

 private:
  // The blocks that a verb names.
  struct Target {
    wire::SelectionScope scope = wire::SelectionScope::kBlocks;
    wire::BlockSelection blocks;
    std::vector<StormChain::Asked> asked;
  };
  void Step();
  void StepOnChain();
  void StepOnOpen();
  void StepOnNode();
  void StepOfLookup(StormChain& chain);
  [[nodiscard]] Target DrawBlocks(StormChain& chain);
  [[nodiscard]] Target DrawScope(StormChain& chain);
  [[nodiscard]] wire::BlockSelection DrawOpen(uint32_t first, uint32_t range);

  void Pin(StormChain& chain);
  void Unpin(StormChain& chain);
  void UnpinAll(StormChain& chain);
  void Prefetch(StormChain& chain);
  void Clear(StormChain& chain);
  void Move(StormChain& chain);
  void Compress(StormChain& chain);
  // Verbs on open blocks with numbers below `numbers`.
  void PinOpen();
  void UnpinOpen();
  void PrefetchOpen();
  void MoveOpen(uint32_t numbers);
  void CompressOpen(uint32_t numbers);
  void ClearOpen(uint32_t numbers);
  void LookUpOpen(uint32_t numbers);
  // Verbs on device memory, of which the model is exact.
  void StepOnDevice(StormChain& chain);
  void PinOnDevice(StormChain& chain);
  void UnpinOnDevice(StormChain& chain);
  void ClearOnDevice(StormChain& chain);
  void ClearScopeOnDevice(StormChain& chain);
  void CompressOnDevice(StormChain& chain);
  [[nodiscard]] Target DrawOnDevice(StormChain& chain);
  // Returns which blocks of the chain are in device memory according to Lookup, or nullopt if the
  // daemon is ending.
  [[nodiscard]] std::optional<std::vector<bool>> DeviceBlocksOf(StormChain& chain);
  // Returns whether each answer is as expected, and counts a difference if not.  Returns false
  // without a difference if the daemon is ending.
  bool Expect(const std::string& what, StormChain& chain, const Target& target,
              std::span<const wire::BlockAnswer> answers, std::span<const BlockStatus> expected);

  void Watch();
  void Verify();
  // Settles an answer with the model, or the fact that there was none.
  void Settle(StormChain& chain, const StormLaw& law, Target& target, const absl::Status& status,
              const std::vector<wire::BlockAnswer>* answers, const std::optional<StormCounts>& sums,
              const std::string& what);
  [[nodiscard]] uint64_t Random(uint64_t below) { return random_() % below; }
  [[nodiscard]] Tier DrawTier() { return Random(2) == 0 ? Tier::kHost : Tier::kDisk; }

  StormWorld& world_;
  StormRandom random_;
  std::unique_ptr<RpcStub> cache_;
  std::unique_ptr<AdminStub> admin_;
  StormWatcher watcher_;
};

}  // namespace larder::e2e
