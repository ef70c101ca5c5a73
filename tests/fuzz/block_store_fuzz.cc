// Instruction-list fuzz of the store: random reserve, publish, acquire, release, drop and
// quarantine, compared with a model of what must still be readable.  Each byte read under a lease
// must be the one that its writer put.
#include <cstring>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "server/sessions/quarantine.h"
#include "tests/fuzz/instruction_fuzz.h"
#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

using testing::StoreFixture;
using testing::TestTokens;

class StoreFuzz {
 public:
  StoreFuzz() : run_("block_store_fuzz", 4000) {}

  void Run() {
    for (uint64_t step = 0; step < run_.steps(); ++step) {
      Step();
      if (step % 16 == 0) f_.store().CheckInvariants();
      CheckAccounts();
      if (::testing::Test::HasFatalFailure()) return;
    }
    leases_.clear();
    reservations_.clear();
    for (uint64_t p = 1; p <= 3; ++p) quarantine_.Release(ProcessId{p});
    f_.store().CheckInvariants();
    const auto stats = f_.store().stats();
    EXPECT_EQ(stats.leases, 0u);
    EXPECT_EQ(stats.reservations, 0u);
    EXPECT_EQ(stats.pool_reserved, ByteCount(0));
  }

 private:
  struct Open {
    ExtentReservation reservation;
    std::vector<uint32_t> sizes;
  };
  struct Reading {
    BlockLease lease;
    std::vector<std::pair<Extent, uint32_t>> blocks;  // extent, seed of its bytes
  };

  // Returns the value of each byte that the writer of block `seed` puts.
  static std::byte Fill(uint32_t seed) { return static_cast<std::byte>(seed * 37 + 11); }
  Digest Name(uint32_t seed) { return Chain({}, TestTokens(seed)).back(); }

  void Step() {
    switch (run_.Below(9)) {
      case 0:
      case 1:
        return DoReserve();
      case 2:
      case 3:
        return DoPublish();
      case 4:
      case 5:
        return DoAcquire();
      case 6:
        return DoRelease();
      case 7:
        return DoDrop();
      default:
        return DoQuarantine();
    }
  }

  void DoReserve() {
    Open open;
    std::vector<ByteCount> sizes;
    for (uint64_t n = 1 + run_.Below(4); n > 0; --n) {
      open.sizes.push_back(
          static_cast<uint32_t>(1 + run_.Below(run_.OneIn(8) ? 1 << 20 : 1 << 14)));
      sizes.emplace_back(open.sizes.back());
    }
    auto r = f_.store().Reserve(sizes, MiB(2));
    if (r.status != BlockStatus::kOk) return;
    open.reservation = std::move(r.reservation);
    reservations_.push_back(std::move(open));
    if (reservations_.size() > 12) reservations_.erase(reservations_.begin());
  }

  void DoPublish() {
    if (reservations_.empty()) return;
    Open& open = reservations_[run_.Below(reservations_.size())];
    const size_t i = run_.Below(open.sizes.size());
    const uint32_t seed = static_cast<uint32_t>(run_.Below(200));
    const auto tokens = TestTokens(seed);
    SegmentTable table = UniformTable(1, open.sizes[i]);
    const bool was_open = open.reservation.open(i);
    if (was_open) {
      const auto to = f_.store().Bytes(open.reservation.extent(i)).first(open.sizes[i]);
      std::memset(to.data(), static_cast<int>(Fill(seed)), to.size());
      HashPayload(to, &table);
    }
    const BlockStatus status =
        f_.store().Publish(open.reservation, i, {f_.variant(), Name(seed), {}, tokens, &table});
    ASSERT_TRUE(was_open ? status == BlockStatus::kOk || status == BlockStatus::kDuplicate
                         : status == BlockStatus::kNotHeld);
    if (status == BlockStatus::kDuplicate) {
      ASSERT_EQ(AcquireOf(seed).size(), 1u);
    }
  }

  BlockLease AcquireOf(uint32_t seed) {
    const Digest name = Name(seed);
    return f_.store().Acquire(f_.variant(), {&name, 1}, MiB(64)).lease;
  }

  void DoAcquire() {
    std::vector<Digest> names;
    std::vector<uint32_t> seeds;
    for (uint64_t n = 1 + run_.Below(20); n > 0; --n) {
      seeds.push_back(static_cast<uint32_t>(run_.Below(200)));
      names.push_back(Name(seeds.back()));
    }
    auto got = f_.store().Acquire(f_.variant(), names, MiB(1));
    Reading reading;
    for (size_t i = 0; i < names.size(); ++i) {
      if (got.blocks[i].ref.value != 0) reading.blocks.emplace_back(got.blocks[i].extent, seeds[i]);
      if (got.blocks[i].ref.value != 0) {
        const SegmentRange all{0, 1, 0, got.blocks[i].metadata->payload_bytes().value()};
        ASSERT_TRUE(f_.store().Check(got.blocks[i], all));
      }
    }
    reading.lease = std::move(got.lease);
    leases_.push_back(std::move(reading));
    if (leases_.size() > 10) DoRelease();
  }

  void CheckBytes(const Reading& reading) {
    for (const auto& [extent, seed] : reading.blocks) {
      ASSERT_EQ(f_.store().Bytes(extent)[0], Fill(seed)) << "a leased block changed";
    }
  }

  void DoRelease() {
    if (leases_.empty()) return;
    const size_t i = run_.Below(leases_.size());
    CheckBytes(leases_[i]);
    leases_.erase(leases_.begin() + static_cast<ptrdiff_t>(i));
  }

  void DoDrop() {
    const uint32_t seed = static_cast<uint32_t>(run_.Below(200));
    f_.store().Drop(f_.variant(), Name(seed));
    ASSERT_EQ(AcquireOf(seed).size(), 0u);
  }

  void DoQuarantine() {
    const ProcessId process{1 + run_.Below(3)};
    if (run_.OneIn(3)) {
      quarantine_.Release(process);
    } else if (!leases_.empty()) {
      CheckBytes(leases_.back());
      std::vector<BlockLease> lost;
      lost.push_back(std::move(leases_.back().lease));
      quarantine_.Put(process, SessionId{++lost_}, std::move(lost), {});
      leases_.pop_back();
    } else if (!reservations_.empty()) {
      std::vector<ExtentReservation> lost;
      lost.push_back(std::move(reservations_.back().reservation));
      quarantine_.Put(process, SessionId{++lost_}, {}, std::move(lost));
      reservations_.pop_back();
    }
  }

  void CheckAccounts() {
    const auto s = f_.store().stats();
    ASSERT_EQ(s.pool_online, s.pool_limit);
    ASSERT_LE(s.pool_free + s.pool_reserved, s.pool_limit);
    for (const Reading& reading : leases_) CheckBytes(reading);
  }

  FuzzRun run_;
  StoreFixture f_{MiB(8), MiB(2)};
  Quarantine quarantine_;
  std::vector<Open> reservations_;
  std::vector<Reading> leases_;
  uint64_t lost_ = 0;  // sessions
};

TEST(BlockStoreFuzz, AgreesWithTheModel) { StoreFuzz().Run(); }

}  // namespace
}  // namespace larder
