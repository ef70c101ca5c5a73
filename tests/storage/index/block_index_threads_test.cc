// BlockIndex under several threads at once: held blocks do not change, and in the end all counts
// add up.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "storage/index/block_index.h"

namespace larder {
namespace {

constexpr uint32_t kNames = 400;
constexpr int kThreads = 4;
constexpr int kStepsEach = 6000;

Digest Name(uint64_t i) {
  Digest digest;
  const uint64_t words[2] = {(i + 1) * 0x9E3779B97F4A7C15, (i + 1) * 0xD1B54A32D192ED03};
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}

// A block's extent has as many pages as the number of its name plus one, so that a reader can
// detect a foreign extent.
class Worker {
 public:
  Worker(BlockIndex* index, VariantIndex variant, uint64_t seed)
      : index_(*index), variant_(variant), rng_(seed) {}

  void Run() {
    for (uint32_t step = 0; step < kStepsEach; ++step) Step(step);
    index_.Unhold(refs_, &freed_);
  }
  [[nodiscard]] uint64_t pages_in() const { return pages_in_; }
  [[nodiscard]] uint64_t pages_out() const {
    uint64_t pages = pages_out_;
    for (const Extent& extent : freed_) pages += extent.pages;
    return pages;
  }

 private:
  void Step(uint32_t now_s) {
    switch (rng_() % 8) {
      case 0:
      case 1:
        return Insert(now_s);
      case 2:
        return Stage(now_s);
      case 3:
      case 4:
        return Hold(now_s);
      case 5:
        return Unhold();
      case 6:
        return Leave(now_s);
      default:
        return Look();
    }
  }
  std::unique_ptr<const BlockMetadata> After(uint64_t name) {
    return BlockMetadata::Make(Name(name - 1), {}, UniformTable(1, 64));
  }
  static Extent ExtentOf(uint64_t name) {
    return {.slab = SlabId{1}, .page = 0, .pages = static_cast<uint32_t>(name + 1)};
  }
  void Insert(uint32_t now_s) {
    const uint64_t name = rng_() % kNames;
    const auto result = index_.Insert({.variant = variant_,
                                       .digest = Name(name),
                                       .extent = ExtentOf(name),
                                       .metadata = After(name)},
                                      now_s);
    if (result == BlockIndex::InsertResult::kInserted) pages_in_ += name + 1;
  }
  void Stage(uint32_t now_s) {
    const uint64_t name = rng_() % kNames;
    EntryRef claim;
    if (index_.Claim(variant_, Name(name), &claim) != BlockIndex::InsertResult::kInserted) return;
    if (rng_() % 4 == 0) return index_.Abandon(claim);
    index_.Fill(claim, ExtentOf(name), After(name), now_s);
    pages_in_ += name + 1;
  }
  void Hold(uint32_t now_s) {
    const uint64_t first = rng_() % (kNames - 16);
    std::vector<Digest> digests;
    for (uint64_t i = 0; i < 16; ++i) digests.push_back(Name(first + i));
    std::vector<BlockIndex::Held> held(digests.size());
    index_.Hold(variant_, digests, now_s, held);
    for (uint64_t i = 0; i < held.size(); ++i) {
      if (held[i].ref.value == 0) continue;
      EXPECT_EQ(held[i].extent, ExtentOf(first + i));
      EXPECT_EQ(held[i].metadata->parent(), Name(first + i - 1));
      refs_.push_back(held[i].ref);
    }
  }
  void Unhold() {
    index_.Unhold(refs_, &freed_);
    refs_.clear();
  }
  void Leave(uint32_t now_s) {
    const uint64_t name = rng_() % kNames;
    std::optional<Extent> freed;
    switch (rng_() % 4) {
      case 0:
        if (index_.Drop(variant_, Name(name), &freed) && freed) pages_out_ += freed->pages;
        return;
      case 1:
        for (const bool pinned : {true, false})
          index_.SetPinned(variant_, Name(name), Tier::kHost, pinned);
        return;
      default:
        if (const auto gone = index_.EvictOne(now_s)) pages_out_ += gone->extent.pages;
    }
  }
  void Look() {
    std::vector<Digest> digests;
    for (uint64_t i = 0; i < 64; ++i) digests.push_back(Name(rng_() % kNames));
    std::vector<BlockIndex::Presence> out(digests.size());
    index_.Lookup(variant_, digests, out);
    for (const BlockIndex::Presence& presence : out)
      EXPECT_EQ(presence.tiers != 0, presence.pages != 0);
    if (rng_() % 64 == 0)
      index_.ForEach([](const BlockIndex::View& view) { EXPECT_NE(view.digest, Digest{}); });
  }

  BlockIndex& index_;
  const VariantIndex variant_;
  std::mt19937_64 rng_;
  std::vector<EntryRef> refs_;
  std::vector<Extent> freed_;
  uint64_t pages_in_ = 0;
  uint64_t pages_out_ = 0;
};

TEST(BlockIndexThreads, NothingIsLostOrHandedOutTwice) {
  BlockIndex index;
  const VariantIndex variant = *index.InternVariant(Name(1'000'000));
  std::vector<Worker> workers;
  for (int t = 0; t < kThreads; ++t) workers.emplace_back(&index, variant, t);
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      worker.Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  index.CheckInvariants();
  EXPECT_EQ(index.doomed(), 0u);

  uint64_t pages_in = 0, pages_out = 0;
  for (const Worker& worker : workers) {
    pages_in += worker.pages_in();
    pages_out += worker.pages_out();
  }
  EXPECT_EQ(index.TotalsOf(variant).bytes, ByteCount((pages_in - pages_out) * kPageBytes));
  uint64_t left = index.blocks();
  while (index.EvictOne(kStepsEach)) --left;
  EXPECT_EQ(left, 0u);
  index.CheckInvariants();
}

}  // namespace
}  // namespace larder
