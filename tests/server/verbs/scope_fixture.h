// A store with a disk, and chains of blocks of several contents in it, for verbs that act on many
// blocks.  For tests only.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/instances/instance_table.h"
#include "server/verbs/block_scope.h"
#include "tests/server/verbs/disk_process.h"

namespace larder::testing {

inline constexpr TierSet kHostBit = TierBit(Tier::kHost), kDiskBit = TierBit(Tier::kDisk);
inline constexpr TierSet kBoth = kHostBit | kDiskBit;

// The contents differ by model; each has a chain of blocks 1, 2, 3 and so on.
class ScopeTest : public ::testing::Test {
 protected:
  void Start() {
    instances_.reset();
    process_.reset();
    process_ = std::make_unique<DiskProcess>(medium_, kNow_ms, disk_bytes_);
    instances_.emplace(store(), process_->clock,
                       std::vector<InstanceTable::TierRate>{{Tier::kHost, 1e9}});
    const VariantSpec variant = TestVariant();
    ASSERT_TRUE(instances_->Register("engine", {}, {&variant, 1}).ok());
  }
  void TearDown() override {
    if (process_) store().CheckInvariants();
  }
  [[nodiscard]] BlockStore& store() { return process_->f.store(); }

  static ContentSpec ContentOf(const std::string& model) {
    ContentSpec content;
    content.tenant = "default";
    content.model = model;
    return content;
  }
  static std::vector<uint32_t> Tokens(uint32_t blocks) {
    std::vector<uint32_t> tokens;
    for (uint32_t number = 1; number <= blocks; ++number) {
      const std::vector<uint32_t> more = TestTokens(number);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    return tokens;
  }
  static Digest Name(const std::string& model, uint32_t number) {
    return Chain(ContentOf(model).Id(), Tokens(number)).back();
  }
  // Puts a chain.  With `spilled`, the blocks are on disk as well when this returns.
  void PutChain(const std::string& model, uint32_t blocks, bool spilled = true,
                const BlockWriter& writer = {}) {
    const Digest content = ContentOf(model).Id();
    Digest parent = content;
    for (uint32_t number = 1; number <= blocks; ++number) {
      ASSERT_EQ(process_->f.Put(parent, number, DiskProcess::kBlockBytes, std::byte{1}, &parent,
                                content, writer),
                BlockStatus::kOk);
      if (spilled) process_->work->spiller().Offer(SessionId{1}, process_->f.variant(), parent);
    }
    ASSERT_TRUE(process_->work->spiller().WaitIdle(std::chrono::steady_clock::now() +
                                                   std::chrono::seconds(20)));
  }
  // Returns the tiers of each block of that chain.
  std::vector<TierSet> TiersOf(const std::string& model, uint32_t blocks) {
    std::vector<Digest> names;
    for (uint32_t number = 1; number <= blocks; ++number) names.push_back(Name(model, number));
    std::vector<BlockIndex::Presence> found(blocks);
    store().index().Lookup(process_->f.variant(), names, found);
    std::vector<TierSet> tiers;
    for (const BlockIndex::Presence& block : found) tiers.push_back(block.tiers);
    return tiers;
  }
  // The scope decides whether `model` and `blocks` are used.
  BlockScope Scope(wire::SelectionScope scope, const std::string& model = "", uint32_t blocks = 0) {
    auto made = MakeScope(scope, {}, model.empty() ? Digest() : ContentOf(model).Id(),
                          Tokens(blocks), *instances_, store());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  // The first block of the model's chain, named at two places.
  BlockScope NamedTwice(const std::string& model) {
    BlockScope scope = Scope(wire::SelectionScope::kBlocks, model, 1);
    SelectedBlocks& selected = scope.blocks;
    selected.names.push_back(selected.names.front());
    selected.blocks.push_back({selected.blocks.front().variant, 1});
    return scope;
  }

  static BlockScope ScopeOf(const BlockWriter& writer) {
    BlockScope scope;
    scope.scope = wire::SelectionScope::kWriter;
    scope.writer = writer;
    return scope;
  }

  ByteCount disk_bytes_ = GiB(1);
  MemoryDiskTier::Medium medium_;
  std::unique_ptr<DiskProcess> process_;
  std::optional<InstanceTable> instances_;
};

}  // namespace larder::testing
