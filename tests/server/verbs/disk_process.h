// The parts of a daemon that work with the disk: store, tier, spiller, promoter and pins, over a
// medium that outlives them. For tests only.
#pragma once

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/metrics/counters.h"
#include "server/verbs/pin.h"
#include "storage/clock.h"
#include "storage/disk/memory_disk_tier.h"
#include "storage/spin_wait.h"
#include "storage/tiering/tier_worker.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiering/forwarding_tier.h"
#include "tests/support/eventually.h"

namespace larder::testing {

inline constexpr uint64_t kNow_ms = 1'700'000'000'000;

// A tier that refuses facts while `fails` is set.
class FactlessTier final : public ForwardingTier {
 public:
  using ForwardingTier::ForwardingTier;
  absl::Status PutFacts(std::span<const Fact> facts) override {
    ++writes;
    if (fails) return absl::UnavailableError("the disk is on fire");
    return ForwardingTier::PutFacts(facts);
  }
  std::atomic<bool> fails{false};
  std::atomic<size_t> writes{0};
};

// The parts of one daemon process, over a medium that outlives it.
struct DiskProcess {
  static constexpr uint32_t kBlockBytes = 100'000;

  explicit DiskProcess(MemoryDiskTier::Medium& medium, uint64_t now = kNow_ms,
                       ByteCount disk_bytes = GiB(1))
      : disk(disk_bytes, medium), tier(disk), now_ms(now) {
    const auto ignored = [](SessionId, VariantIndex, std::span<const Digest>) {};
    work.emplace(tier, f.store(), clock, 1, ByteCount(0), ignored);
    keeper.emplace(f.store(), DiskParts{&tier, &*work}, counters, [this] { return now_ms.load(); });
    loaded = keeper->Load();
    work->StartRecovery([](const absl::Status&, uint64_t, Duration) {});
    EXPECT_TRUE(Eventually([&] { return !work->recovering(); }));
  }
  Digest Put(uint32_t seed) {
    Digest digest;
    EXPECT_EQ(f.Put(Digest{}, seed, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
    return digest;
  }
  [[nodiscard]] PinKey Key(const Digest& digest, Tier tier_of = Tier::kHost) const {
    return {f.variant(), digest, tier_of};
  }
  // Pins, and waits for the disk's answer.
  std::vector<BlockStatus> Pin(const std::vector<PinKey>& keys, uint64_t deadline_ms,
                               absl::Status* status = nullptr) {
    return Asked(status, [&](PinVerb::Answer answer) {
      keeper->Pin("router", keys, deadline_ms, std::move(answer));
    });
  }
  std::vector<BlockStatus> Unpin(const std::vector<PinKey>& keys) {
    return Asked(nullptr,
                 [&](PinVerb::Answer answer) { keeper->Unpin("router", keys, std::move(answer)); });
  }
  template <class Ask>
  static std::vector<BlockStatus> Asked(absl::Status* status, Ask ask) {
    absl::Status written;
    std::vector<BlockStatus> statuses;
    std::atomic<bool> answered{false};
    ask([&](const absl::Status& now, std::vector<BlockStatus> of_each) {
      written = now;
      statuses = std::move(of_each);
      answered = true;
    });
    EXPECT_TRUE(Eventually([&] { return answered.load(); }));
    if (status != nullptr) {
      *status = written;
    } else {
      EXPECT_TRUE(written.ok()) << written;
    }
    return statuses;
  }

  MemoryDiskTier disk;
  FactlessTier tier;
  std::atomic<uint64_t> now_ms;
  SteadyClock clock;
  Counters counters;
  StoreFixture f;
  std::optional<TierWorker> work;
  std::optional<PinVerb> keeper;
  size_t loaded = 0;
};

}  // namespace larder::testing
