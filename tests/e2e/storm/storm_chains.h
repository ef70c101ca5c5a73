// The blocks whose every answer is predicted: chains, each lent to one actor at a time.
//
// Who has a chain on loan makes one call at a time about it, so each answer follows from those
// before; other chains, and blocks that nobody predicts, are worked on meanwhile, by the same
// threads of the same daemon over the same pool and disk.
// Ownership: StormChains owns the chains; a Loan must not outlive it.
// Thread-safety: StormChains from any thread; a StormChain by who has it on loan.
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
// As a query names it: the daemon knows who calls.
[[nodiscard]] ContentSpec WithoutTenant(ContentSpec content);

class StormChain {
 public:
  explicit StormChain(size_t number);

  struct Block {
    TestBlock names;
    Possible possible;
    std::set<uint64_t> holders;                                // leases that hold it for certain
    bool ghost = false, may_promote = false, recoded = false;  // see StormAround, Possible::Crash
    std::chrono::steady_clock::time_point prefetch_end = {};
    std::vector<StormLaw> late, later;  // of calls that were cancelled in this round, or the last
    // Whose bytes it may have; and of former lives, of which a disk may have kept some (ghost).
    std::set<uint32_t> writers = {}, former_writers = {};
    // In device memory, of which all is known; a bit for each owner that pins it there.
    struct {
      bool there = false;
      bool linked = false;  // its engine said what it follows
      uint32_t pins = 0;
    } device = {};
  };
  // A block that a call was about, and what the call said of it alone.
  struct Asked {
    size_t block = 0;
    std::optional<int> answer = {};
    bool maybe = false;        // whether the call was about it does not follow from the model
    bool stored_only = false;  // the call is about it only if it is in a tier
  };
  // Takes an answer to `what` in.  Empty, or what is wrong with it.
  [[nodiscard]] std::string Settle(const std::string& what, const StormLaw& law,
                                   std::span<const Asked> asked,
                                   const std::optional<StormCounts>& sums = {});
  // A call that ended without an answer, or half-way: it did its work, or did not.
  void SettleUnknown(const std::string& what, const StormLaw& law, std::span<const Asked> asked);
  // The first writer of a name has it for as long as it is stored.  A put by this writer was
  // answered so; nullopt: not at all.
  void SettlePut(size_t block, std::optional<BlockStatus> answer, uint32_t writer);
  // These bytes were given.  Empty, or what is wrong with that.
  [[nodiscard]] std::string SettleWriter(size_t block, uint32_t writer);
  // A round has ended, and the daemon has nothing to do.
  void EndRound();
  // Everything that is stored of `prefix` blocks and below; with prefix 0 of the content.
  [[nodiscard]] std::vector<Asked> Below(size_t prefix) const;
  void Crash();
  // The session that had it there has ended.
  void ForgetDevice();
  void SetPressure(bool pressure) { pressure_ = pressure; }
  [[nodiscard]] bool pressure() const { return pressure_; }
  [[nodiscard]] bool held() const;
  // Of the first so many blocks.
  [[nodiscard]] std::vector<uint32_t> Tokens(size_t count) const;
  [[nodiscard]] std::string Owner(uint32_t owner) const;  // 0 .. kOwners-1, of pins
  [[nodiscard]] std::string Describe(size_t block) const;

  const size_t number;
  const ContentSpec content;
  const Digest seed;
  std::vector<Block> blocks;

 private:
  [[nodiscard]] StormAround Around(const Block& block) const;
  void LetTimePass(const Block& block, Possible* possible) const;
  // All that may follow, of each that was asked; `answers`: only what fits them.
  [[nodiscard]] std::vector<StormOutcomes> Outcomes(const StormLaw& law,
                                                    std::span<const Asked> asked, bool answers);
  void Become(Block& block, const StormOutcomes& outcomes);
  void Remember(const std::string& what, std::span<const Asked> asked,
                const std::optional<StormCounts>& sums);

  bool pressure_ = false;
  std::deque<std::string> latest_;  // calls, for who has to find out what went wrong
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
  // One that is free.  REQUIRES: fewer borrowers than chains.
  [[nodiscard]] Loan Borrow(StormRandom& random) LARDER_EXCLUDES(mu_);
  // Waits for it.  REQUIRES: the caller has none.
  [[nodiscard]] Loan BorrowThis(size_t number) LARDER_EXCLUDES(mu_);
  // While nobody has one on loan.
  [[nodiscard]] std::vector<std::unique_ptr<StormChain>>& all() { return chains_; }

 private:
  void Return(const StormChain& chain) LARDER_EXCLUDES(mu_);

  std::vector<std::unique_ptr<StormChain>> chains_;  // const
  Mutex mu_;
  CondVar returned_;
  std::vector<bool> lent_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder::e2e
