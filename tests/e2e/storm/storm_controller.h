// A controller of the storm: draws verbs of Cache and Admin, and holds each answer against the
// model.
//
// Of the verbs about a chain every answer is checked, key by key and sum by sum; of those about
// open blocks only that each is one that the contract knows.
// Ownership: its connections, one set for each daemon.  Thread-safety: none.
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
  // Until the gate says that it is over.
  void Run();

  // ---- for who looks at everything, while the gate is closed
  void Connect();
  void Disconnect();
  // Of each block the tiers that Lookup tells, taken into the model.
  [[nodiscard]] bool LookUp(StormChain& chain);
  // Likewise of device memory, which the model must know.
  void LookUpDevice(StormChain& chain);
  // Whether each copy is encoded, by a Compress that changes nothing.
  [[nodiscard]] bool LookAtCodecs(StormChain& chain);
  [[nodiscard]] StormWatcher& watcher() { return watcher_; }
  // Hears all that there is to hear.
  void CatchUp();
  [[nodiscard]] RpcStub& cache() { return *cache_; }

 private:
  // What a verb is about.
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
  // Of open blocks, with numbers below this one.
  void PinOpen();
  void UnpinOpen();
  void PrefetchOpen();
  void MoveOpen(uint32_t numbers);
  void CompressOpen(uint32_t numbers);
  void ClearOpen(uint32_t numbers);
  void LookUpOpen(uint32_t numbers);
  // Of device memory, of which the model knows all.
  void StepOnDevice(StormChain& chain);
  void PinOnDevice(StormChain& chain);
  void UnpinOnDevice(StormChain& chain);
  void ClearOnDevice(StormChain& chain);
  void ClearScopeOnDevice(StormChain& chain);
  void CompressOnDevice(StormChain& chain);
  [[nodiscard]] Target DrawOnDevice(StormChain& chain);
  // Which of its blocks are there, as Lookup says; nullopt: the daemon ends.
  [[nodiscard]] std::optional<std::vector<bool>> DeviceBlocksOf(StormChain& chain);
  // False, and a difference, unless each is as expected, or the daemon ends.
  bool Expect(const std::string& what, StormChain& chain, const Target& target,
              std::span<const wire::BlockAnswer> answers, std::span<const BlockStatus> expected);

  void Watch();
  void Verify();
  // Takes an answer in, or that there was none.
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
