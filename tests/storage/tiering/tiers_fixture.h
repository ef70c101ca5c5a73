// A process with a pool of 16 blocks and a disk: a store with a spiller and a promoter over the
// reference tier.  For tests only.
#pragma once

#include <atomic>
#include <map>

#include <gtest/gtest.h>

#include "storage/disk/memory_disk_tier.h"
#include "storage/spin_wait.h"
#include "storage/tiering/promoter.h"
#include "storage/tiering/spiller.h"
#include "tests/storage/store/store_fixture.h"

namespace larder::testing {

using namespace std::chrono_literals;

inline constexpr uint32_t kBlockBytes = 128 << 10;
inline constexpr SessionId kWho{7};

// A process: a pool of 2 MiB (16 blocks), its store, its spiller and its promoter.
class Process {
 public:
  Process(MemoryDiskTier::Medium& medium, ByteCount disk_limit)
      : tier_(disk_limit, medium), fixture_(MiB(2), MiB(2)) {
    found_ = RecoverInto(store(), tier_);
    spiller_.emplace(Spiller::Options{}, store(), tier_, clock_,
                     [this](SessionId who, VariantIndex, std::span<const Digest> digests) {
                       if (who == kWho) durable_ += digests.size();
                     });
    promoter_.emplace(2, store(), tier_, clock_);
  }
  ~Process() {  // before the store
    promoter_.reset();
    spiller_.reset();
  }

  // Publishes block `seed`, all of whose bytes equal its number.
  Digest Publish(uint32_t seed) {
    Digest digest;
    const BlockStatus status =
        fixture_.Put(Digest{}, seed, kBlockBytes, static_cast<std::byte>(seed), &digest);
    EXPECT_TRUE(status == BlockStatus::kOk || status == BlockStatus::kDuplicate);
    return digest;
  }
  // Publishes the same name with other bytes.
  BlockStatus PublishBytes(uint32_t seed, std::byte fill) {
    return fixture_.Put(Digest{}, seed, kBlockBytes, fill);
  }
  Digest Put(uint32_t seed) {
    const Digest digest = Publish(seed);
    spiller_->Offer(kWho, fixture_.variant(), digest);
    return digest;
  }
  void Settle() {
    spiller_->Nudge();
    EXPECT_TRUE(spiller_->WaitIdle(std::chrono::steady_clock::now() + 20s));
  }
  // Puts a block and waits until it is on disk.
  Digest PutThrough(uint32_t seed) {
    const Digest digest = Put(seed);
    Settle();
    return digest;
  }

  // Acquires from any tier, promoting blocks that are on disk.  Returns the status of each.
  std::vector<BlockStatus> Get(std::span<const Digest> digests, std::span<const uint32_t> seeds) {
    BlockStore::AcquireResult got = store().Acquire(
        fixture_.variant(), digests, store().pool().total_bytes(), HoldWhat::kAnyTier);
    std::vector<BlockStatus> statuses(digests.size(), BlockStatus::kMissing);
    Promoter::Job job;
    job.variant = fixture_.variant();
    for (size_t i = 0; i < got.blocks.size(); ++i) {
      const BlockIndex::Held& held = got.blocks[i];
      if (held.full) statuses[i] = BlockStatus::kFull;
      if (held.ref.value == 0) continue;
      if (InHost(held.state)) {
        statuses[i] = Right(held, seeds[i]) ? BlockStatus::kOk : BlockStatus::kInvalid;
      } else {
        job.blocks.push_back({i, held.ref, digests[i], held.disk_location, held.extent.bytes()});
      }
    }
    std::atomic<size_t> left{job.blocks.size()};
    job.ready = [&](const Promoter::Wanted& wanted, BlockStatus status,
                    const BlockIndex::Held& held) {
      statuses[wanted.key] = status != BlockStatus::kOk       ? status
                             : Right(held, seeds[wanted.key]) ? BlockStatus::kOk
                                                              : BlockStatus::kInvalid;
      --left;
    };
    Promoter::Prepared prepared = promoter_->Prepare(std::move(job));
    LARDER_CHECK(prepared != nullptr);
    promoter_->Submit(std::move(prepared));
    // Answers that come later would be written to variables that no longer exist.
    LARDER_CHECK(SpinUntil(std::chrono::steady_clock::now() + 60s, [&] { return left == 0; }));
    return statuses;
  }
  BlockStatus GetOne(const Digest& digest, uint32_t seed) {
    return Get({&digest, 1}, {&seed, 1})[0];
  }

  [[nodiscard]] BlockStore& store() { return fixture_.store(); }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] VariantIndex variant() const { return fixture_.variant(); }
  [[nodiscard]] uint8_t Tiers(const Digest& digest) {
    BlockIndex::Presence presence;
    store().index().Lookup(variant(), {&digest, 1}, {&presence, 1});
    return presence.tiers;
  }

  MemoryDiskTier tier_;
  size_t found_ = 0;
  std::atomic<size_t> durable_{0};
  std::optional<Spiller> spiller_;
  std::optional<Promoter> promoter_;

 private:
  bool Right(const BlockIndex::Held& held, uint32_t seed) {
    const std::span<const std::byte> bytes = store().Bytes(held.extent).first(kBlockBytes);
    return std::all_of(bytes.begin(), bytes.end(),
                       [seed](std::byte b) { return b == static_cast<std::byte>(seed); });
  }

  SteadyClock clock_;
  StoreFixture fixture_;
};

inline constexpr uint8_t kHostBit = 1u << static_cast<int>(Tier::kHost);
inline constexpr uint8_t kDiskBit = 1u << static_cast<int>(Tier::kDisk);

class Tiers : public ::testing::Test {
 protected:
  // Returns the blocks of seeds 1 to `count`, which a process that has ended left on disk.
  [[nodiscard]] std::vector<Digest> LeftOnDisk(uint32_t count) {
    std::vector<Digest> digests;
    Process process(medium_, MiB(64));
    for (uint32_t seed = 1; seed <= count; ++seed) digests.push_back(process.PutThrough(seed));
    return digests;
  }

  MemoryDiskTier::Medium medium_;
};

}  // namespace larder::testing
