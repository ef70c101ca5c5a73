// The chains of blocks about which the model predicts every answer, each lent to one actor at a
// time.
//
// The actor that has a chain on loan makes one call at a time about it, so each answer follows from
// those before.  Meanwhile other actors work on other chains and on open blocks, which the model
// does not predict, with the same daemon and so with the same pool, disk and threads.
// Ownership: StormChains owns the chains; a Loan must not outlive it.
// Thread-safety: StormChains may be used from any thread, a StormChain only by the actor that has
// it on loan.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "storage/mutex.h"
#include "tests/e2e/storm/storm_model.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {

using StormRandom = std::mt19937_64;

inline constexpr size_t kChains = 16, kChainBlocks = 6;
inline constexpr size_t kChainLayerBytes = 12'000, kOpenLayerBytes = 30'000;
[[nodiscard]] ContentSpec StormContent(const std::string& name);
[[nodiscard]] VariantSpec StormVariant();
// Returns the content as a query names it: the daemon adds the caller's tenant.
[[nodiscard]] ContentSpec WithoutTenant(ContentSpec content);

class StormChain {
 public:
  explicit StormChain(size_t number);

  struct Block {
    TestBlock names;
    Possible possible;
    std::set<uint64_t> holders;                                // leases that certainly hold it
    bool ghost = false, may_promote = false, recoded = false;  // see StormAround, Possible::Crash
    std::chrono::steady_clock::time_point prefetch_end = {};
    std::vector<StormLaw> late, later;  // calls that were cancelled in the last round, in this one
    // The writers whose bytes it may have, and those from before it last left all tiers, whose
    // bytes a disk may have kept (ghost).
    std::set<uint32_t> writers = {}, former_writers = {};
    // Its state in device memory, which is known exactly; `pins` has a bit for each owner.
    struct {
      bool there = false;
      bool linked = false;  // the engine has reported its parent and tokens
      uint32_t pins = 0;
    } device = {};
  };
  // A block that a call named, and the call's answer for it.
  struct Asked {
    size_t block = 0;
    std::optional<int> answer = {};
    bool maybe = false;        // the model cannot tell whether the call included this block
    bool stored_only = false;  // the call includes it only if it is in a tier
  };
  // Restricts the model to the states that fit the answer to call `what`.  Returns what is wrong
  // with the answer, or an empty string.
  [[nodiscard]] std::string Settle(const std::string& what, const StormLaw& law,
                                   std::span<const Asked> asked,
                                   const std::optional<StormCounts>& sums = {});
  // Settles a call that ended without an answer or was cancelled: it may have done its work or not.
  void SettleUnknown(const std::string& what, const StormLaw& law, std::span<const Asked> asked);
  // Settles a put of this writer; `answer` is nullopt if the put was not answered.  As long as a
  // name is stored, it has the bytes of its first writer.
  void SettlePut(size_t block, std::optional<BlockStatus> answer, uint32_t writer);
  // Settles that a read gave this writer's bytes.  Returns what is wrong with that, or an empty
  // string.
  [[nodiscard]] std::string SettleWriter(size_t block, uint32_t writer);
  // Settles the end of a round, when the daemon has nothing to do.
  void EndRound();
  // Returns the blocks that a call on a prefix of `prefix` blocks includes: the last block of the
  // prefix and those that follow.  With 0 it returns the blocks of the content.
  [[nodiscard]] std::vector<Asked> Below(size_t prefix) const;
  void Crash();
  // Settles the end of the session that reported blocks in device memory.
  void ForgetDevice();
  void SetPressure(bool pressure) { pressure_ = pressure; }
  [[nodiscard]] bool pressure() const { return pressure_; }
  [[nodiscard]] bool held() const;
  // Returns the tokens of the first `count` blocks.
  [[nodiscard]] std::vector<uint32_t> Tokens(size_t count) const;
  [[nodiscard]] std::string Owner(uint32_t owner) const;  // the name of pin owner 0 .. kOwners-1
  [[nodiscard]] std::string Describe(size_t block) const;

  const size_t number;
  const ContentSpec content;
  const Digest seed;
  std::vector<Block> blocks;

 private:
  [[nodiscard]] StormAround Around(const Block& block) const;
  void LetTimePass(const Block& block, Possible* possible) const;
  // Returns all possible outcomes of a call for each block of it; with `answers` only the outcomes
  // that fit the block's answer.
  [[nodiscard]] std::vector<StormOutcomes> Outcomes(const StormLaw& law,
                                                    std::span<const Asked> asked, bool answers);
  void Become(Block& block, const StormOutcomes& outcomes);
  void Remember(const std::string& what, std::span<const Asked> asked,
                const std::optional<StormCounts>& sums);

  bool pressure_ = false;
  std::deque<std::string> latest_;  // the latest calls, printed with a difference
};

class StormChains {
 public:
  StormChains();
  class Loan {
   public:
    Loan(StormChains& owner, StormChain& chain) : owner_(&owner), chain_(&chain) {}
    Loan(Loan&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), chain_(other.chain_) {}
    Loan& operator=(Loan&&) = delete;
    ~Loan() {
      if (owner_ != nullptr) owner_->Return(*chain_);
    }
    StormChain* operator->() const { return chain_; }
    StormChain& operator*() const { return *chain_; }

   private:
    StormChains* owner_;
    StormChain* chain_;
  };
  // Lends a chain that is free.  REQUIRES: fewer borrowers than chains.
  [[nodiscard]] Loan Borrow(StormRandom& random) LARDER_EXCLUDES(mu_);
  // Waits for this chain.  REQUIRES: the caller has no chain on loan.
  [[nodiscard]] Loan BorrowThis(size_t number) LARDER_EXCLUDES(mu_);
  // REQUIRES: no chain is on loan.
  [[nodiscard]] std::vector<std::unique_ptr<StormChain>>& all() { return chains_; }

 private:
  void Return(const StormChain& chain) LARDER_EXCLUDES(mu_);

  std::vector<std::unique_ptr<StormChain>> chains_;  // const
  Mutex mu_;
  CondVar returned_;
  std::vector<bool> lent_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder::e2e
