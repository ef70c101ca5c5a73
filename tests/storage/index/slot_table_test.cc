#include "storage/index/slot_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace larder {
namespace {

class SlotTableTest : public testing::Test {
 private:
  [[nodiscard]] auto HashOf() const {
    return [this](uint32_t slot) { return hashes_[slot]; };
  }

 protected:
  void Insert(uint64_t hash) {
    const auto slot = static_cast<uint32_t>(hashes_.size());
    hashes_.push_back(hash);
    table_.Insert(hash, slot, HashOf(), [](uint32_t) {});
    live_.insert(slot);
  }
  void Erase(uint32_t slot) {
    table_.Erase(hashes_[slot], slot, HashOf(), [](uint32_t) {});
    live_.erase(slot);
  }
  [[nodiscard]] bool Finds(uint32_t slot) const {
    SlotTable::Probe probe = table_.First(hashes_[slot]);
    while (probe.slot != SlotTable::kNone && probe.slot != slot) {
      probe = table_.Next(hashes_[slot], probe);
    }
    return probe.slot == slot;
  }
  void CheckAll() const {
    ASSERT_EQ(table_.size(), live_.size());
    for (uint32_t slot = 1; slot < hashes_.size(); ++slot) {
      ASSERT_EQ(Finds(slot), live_.contains(slot)) << slot;
    }
  }
  [[nodiscard]] uint32_t SomeLive() {
    return *std::next(live_.begin(), static_cast<ptrdiff_t>(rng_() % live_.size()));
  }

  SlotTable table_;
  std::vector<uint64_t> hashes_ = {0};  // by slot; 0 means none
  std::set<uint32_t> live_;
  std::mt19937_64 rng_{7};
};

TEST_F(SlotTableTest, ErasingKeepsLongRunsWhole) {
  // Few home cells, some at the end of the table, so that runs are long and wrap around.
  for (int step = 0; step < 2000; ++step) {
    if (live_.size() < 60 && (live_.empty() || rng_() % 2 == 0)) {
      Insert(((1016 + rng_() % 16) & 1023) | rng_() % 4 << 52);
    } else {
      Erase(SomeLive());
    }
    ASSERT_NO_FATAL_FAILURE(CheckAll());
  }
}

TEST_F(SlotTableTest, GrowsAndFindsAll) {
  for (int i = 0; i < 5000; ++i) Insert(rng_());
  CheckAll();
  EXPECT_LE(table_.memory_bytes(), 5000 * 4 * 16 / 7);
  while (live_.size() > 2000) Erase(SomeLive());
  CheckAll();
}

TEST_F(SlotTableTest, TagsSkipForeignCells) {
  for (int i = 0; i < 800; ++i) Insert(rng_());
  uint32_t candidates = 0;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t hash = rng_();
    for (auto probe = table_.First(hash); probe.slot != SlotTable::kNone;
         probe = table_.Next(hash, probe)) {
      ++candidates;
    }
  }
  EXPECT_LT(candidates, 1000u) << "of 10,000 absent keys, in a table that is 78 % full";
}

}  // namespace
}  // namespace larder
