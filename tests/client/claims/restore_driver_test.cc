// RestoreDriver with workers that are slow, fail and are late, and an engine that admits, refuses,
// preempts and aborts at random.  Every page has one user at a time, and the right content in the
// end.
#include "client/claims/restore_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint32_t kBlockTokens = 16, kChunkTokens = 64;
constexpr uint64_t kPoison = ~uint64_t{0};

// What a page must have in the end: its restore and block.
uint64_t ContentOf(uint64_t restore, uint32_t block) { return restore << 20 | block; }

Digest DigestOf(uint64_t content) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &content, sizeof content);
  return digest;
}
uint64_t ContentOf(const Digest& digest) {
  uint64_t content = 0;
  std::memcpy(&content, digest.bytes.data(), sizeof content);
  return content;
}

// The pages of an engine and of one worker.
class Pages {
 public:
  static constexpr uint32_t kPages = 256;
  enum User : uint32_t { kNobody, kEngine, kWorker };

  void Write(uint32_t page, User user, uint64_t content, microseconds takes) {
    if (pages_[page].user.exchange(user) != kNobody) ++clashes_;
    pages_[page].content = kPoison - 1;  // half written
    if (takes.count() > 0) std::this_thread::sleep_for(takes);
    pages_[page].content = content;
    if (pages_[page].user.exchange(kNobody) != user) ++clashes_;
  }
  [[nodiscard]] uint64_t Read(uint32_t page) const { return pages_[page].content; }
  [[nodiscard]] uint64_t clashes() const { return clashes_; }

 private:
  struct Page {
    std::atomic<uint32_t> user{kNobody};
    std::atomic<uint64_t> content{kPoison};
  };
  std::array<Page, kPages> pages_;
  std::atomic<uint64_t> clashes_{0};
};

// How the workers behave.
struct Weather {
  std::atomic<int> delay_us{300}, missing_percent{0}, transient_percent{0};
  std::atomic<bool> stalls{false};
};

class Worker {
 public:
  Worker(std::span<std::byte> memory, Pages& pages, Weather& weather, uint32_t seed)
      : board_(memory), pages_(pages), weather_(weather) {
    for (uint32_t i = 0; i < 2; ++i) {
      threads_.emplace_back([this, seed, i](const std::stop_token& stop) {
        std::mt19937 random(seed + i);
        while (!stop.stop_requested()) {
          for (const ClaimBoard::Claim& claim : board_.Take(2, milliseconds(5)))
            Load(claim, random, stop);
        }
      });
    }
  }

 private:
  void Load(const ClaimBoard::Claim& claim, std::mt19937& random, const std::stop_token& stop) {
    std::this_thread::sleep_for(
        microseconds(random() % (2 * static_cast<uint32_t>(weather_.delay_us) + 1)));
    while (weather_.stalls && !stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
    const auto draw = static_cast<int>(random() % 100);
    if (draw < weather_.missing_percent) return board_.End(claim.id, BlockStatus::kMissing);
    if (draw < weather_.missing_percent + weather_.transient_percent)
      return board_.End(claim.id, BlockStatus::kFull);
    if (!board_.BeginWrite(claim.id)) return board_.End(claim.id, BlockStatus::kCancelled);
    pages_.Write(claim.work.page, Pages::kWorker, ContentOf(claim.work.digest),
                 microseconds(random() % 100));
    board_.End(claim.id, BlockStatus::kOk);
  }

  ClaimBoard board_;
  Pages& pages_;
  Weather& weather_;
  std::vector<std::jthread> threads_;
};

class RestoreDriverTest : public ::testing::Test {
 protected:
  static constexpr uint16_t kRanks = 2;

  RestoreDriverTest() {
    RestoreDriver::Options options;
    options.profile.layers = 4;
    options.profile.compute = {.fixed_s = 2e-4, .linear_s = 2e-5, .quadratic_s = 0};
    options.ranks = kRanks;
    options.block_tokens = kBlockTokens;
    options.chunk_tokens = kChunkTokens;
    options.block_bytes = ByteCount(1000);
    for (size_t i = 0; i < size_t{2} * kRanks; ++i) {
      memory_.emplace_back(ClaimBoard::kBytes + 64);
      options.profile.channels.push_back({"", 1000 / 3e-4});
      boards_.push_back(std::make_unique<ClaimBoard>(Aligned(i)));
      options.boards.push_back(boards_.back().get());
    }
    for (size_t i = 0; i < memory_.size(); ++i) {
      workers_.push_back(std::make_unique<Worker>(Aligned(i), pages_[i / 2], weather_,
                                                  static_cast<uint32_t>(random_())));
    }
    driver_ = std::make_unique<RestoreDriver>(std::move(options), clock_);
    for (uint32_t page = 0; page < Pages::kPages; ++page) free_.push_back(page);
  }
  ~RestoreDriverTest() override { driver_.reset(); }

  struct Live {
    RestoreDriver::Restore restore;
    bool restored = false;
  };

  // Admits a request whose prefix has so many blocks.  An id is used again once it is free.
  bool Admit(uint32_t blocks, uint32_t have) {
    if (free_.size() < blocks) return false;
    const RequestId id{1 + last_++ % 50};
    if (live_.contains(id.value)) return false;
    Live& live = live_[id.value];
    RestoreDriver::Restore& restore = live.restore;
    restore.id = id;
    restore.have_blocks = have;
    restore.promise = {7};
    for (uint32_t b = 0; b < blocks; ++b) {
      restore.blocks.push_back(DigestOf(ContentOf(id.value, b)));
      restore.tiers.push_back(random_() % 4 == 0 ? Tier::kDisk : Tier::kHost);
      restore.pages.push_back(free_.back());
      free_.pop_back();
      for (const Pages& rank : pages_) EXPECT_EQ(rank.Read(restore.pages[b]), kPoison);
    }
    const absl::Status begun = driver_->Begin(restore);
    EXPECT_TRUE(begun.ok()) << begun;
    for (uint32_t b = 0; b < have; ++b) Write(live, b, microseconds(0));
    return true;
  }
  void Write(const Live& live, uint32_t block, microseconds takes) {
    for (Pages& rank : pages_) {
      rank.Write(live.restore.pages[block], Pages::kEngine, ContentOf(live.restore.id.value, block),
                 takes);
    }
  }
  void Compute(const RestoreDriver::Grant& grant) {
    const Live& live = live_.at(grant.id.value);
    EXPECT_FALSE(live.restored);
    EXPECT_EQ(grant.tokens.begin % kBlockTokens, 0u);
    for (uint32_t b = 0; b < grant.tokens.begin / kBlockTokens; ++b) ExpectRight(live, b);
    for (uint32_t b = grant.tokens.begin / kBlockTokens; b < grant.tokens.end / kBlockTokens; ++b)
      Write(live, b, microseconds(random_() % 50));
    computed_ += (grant.tokens.end - grant.tokens.begin) / kBlockTokens;
  }
  void ExpectRight(const Live& live, uint32_t block) const {
    for (const Pages& rank : pages_) {
      EXPECT_EQ(rank.Read(live.restore.pages[block]), ContentOf(live.restore.id.value, block))
          << block;
    }
  }
  void Step() {
    const TimePoint begun = SteadyNow();
    std::vector<TokenRange> ranges;
    for (const RestoreDriver::Grant& grant : driver_->NextStep({.tokens = 4 * kChunkTokens})) {
      if (random_() % 16 == 0) {
        driver_->Refuse(grant.id);
        continue;
      }
      Compute(grant);
      ranges.push_back(grant.tokens);
    }
    if (ranges.empty()) std::this_thread::sleep_for(microseconds(200));
    driver_->Observe(ranges, 0, std::chrono::duration<double>(SteadyNow() - begun).count());
    Collect();
  }
  void Collect() {
    const RestoreDriver::News news = driver_->TakeNews();
    for (const RestoreDriver::Restored& done : news.restored) {
      Live& live = live_.at(done.id.value);
      live.restored = true;
      ++restored_;
      loaded_ += done.loaded_blocks;
      EXPECT_EQ(done.computed_blocks + done.loaded_blocks + live.restore.have_blocks,
                live.restore.pages.size());
      for (uint32_t b = 0; b < live.restore.pages.size(); ++b) ExpectRight(live, b);
    }
    for (const RequestId id : news.free) {
      const auto found = live_.find(id.value);
      ASSERT_NE(found, live_.end());
      for (const uint32_t page : found->second.restore.pages) {
        for (Pages& rank : pages_) rank.Write(page, Pages::kEngine, kPoison, microseconds(0));
        free_.push_back(page);
      }
      live_.erase(found);
    }
  }
  void ExpectAllFree() {
    EXPECT_TRUE(Eventually([&] {
      Collect();
      return live_.empty() && driver_->under_way() == 0;
    }));
    EXPECT_EQ(free_.size(), size_t{Pages::kPages});
    for (const Pages& rank : pages_) EXPECT_EQ(rank.clashes(), 0u);
    for (const auto& board : boards_) EXPECT_FALSE(board->broken());
    for (const uint32_t page : free_) {
      for (const Pages& rank : pages_) EXPECT_EQ(rank.Read(page), kPoison);
    }
  }

  std::mt19937 random_{testing::TestSeed()};
  SteadyClock clock_;
  Weather weather_;
  std::vector<std::vector<std::byte>> memory_;
  std::array<Pages, kRanks> pages_;
  std::vector<std::unique_ptr<ClaimBoard>> boards_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<RestoreDriver> driver_;
  std::vector<uint32_t> free_;
  std::map<uint64_t, Live> live_;
  uint64_t last_ = 0, restored_ = 0, loaded_ = 0, computed_ = 0;

  [[nodiscard]] std::span<std::byte> Aligned(size_t i) {
    void* at = memory_[i].data();
    size_t space = memory_[i].size();
    return {static_cast<std::byte*>(std::align(64, ClaimBoard::kBytes, at, space)),
            ClaimBoard::kBytes};
  }
};

TEST_F(RestoreDriverTest, HeadAndTailMeet) {
  for (uint64_t round = 1; round <= 20; ++round) {
    ASSERT_TRUE(Admit(40, static_cast<uint32_t>(round % 3 * 4)));
    for (int step = 0; step < 20'000 && restored_ < round; ++step) Step();
    ASSERT_EQ(restored_, round);
    ExpectAllFree();
  }
  EXPECT_GT(loaded_, 0u);
}

TEST_F(RestoreDriverTest, WhatDoesNotComeIsComputed) {
  weather_.missing_percent = 50;
  ASSERT_TRUE(Admit(40, 0));
  for (int step = 0; step < 20'000 && restored_ == 0; ++step) Step();
  EXPECT_EQ(restored_, 1u);
  ExpectAllFree();
  weather_.missing_percent = 0;
  weather_.stalls = true;  // as when the daemon hangs
  for (uint64_t round = 2; round < 5; ++round) {
    ASSERT_TRUE(Admit(40, 0));
    for (int step = 0; step < 100'000 && restored_ < round; ++step) Step();
    EXPECT_EQ(restored_, round);
  }
  weather_.stalls = false;
  ExpectAllFree();
}

// The memory of a board was overwritten, or its worker is gone: the engine computes what is left.
TEST_F(RestoreDriverTest, WhatABrokenBoardHadToLoadIsComputed) {
  for (const size_t board : {size_t{0}, size_t{3}}) {
    std::ranges::fill(Aligned(board), std::byte{0xff});
    const uint64_t before = restored_;
    ASSERT_TRUE(Admit(40, 0));
    for (int step = 0; step < 100'000 && restored_ == before; ++step) Step();
    EXPECT_EQ(restored_, before + 1);
  }
}

TEST_F(RestoreDriverTest, PagesOfARestoreThatEndsAreFreeOnceNobodyWritesThem) {
  for (uint64_t round = 0; round < testing::Scaled(2'000); ++round) {
    ASSERT_TRUE(Admit(8 + static_cast<uint32_t>(random_() % 30), 0));
    const uint64_t id = live_.begin()->first;
    for (auto step = random_() % 8; step > 0; --step) Step();
    driver_->End(RequestId{id});
    ExpectAllFree();
  }
}

TEST_F(RestoreDriverTest, ManyRestoresInBadWeather) {
  weather_.missing_percent = 3;
  weather_.transient_percent = 3;
  for (uint64_t step = 0; step < testing::Scaled(30'000); ++step) {
    if (live_.size() < 6) {
      const auto blocks = static_cast<uint32_t>(2 + random_() % 40);
      (void)Admit(blocks, static_cast<uint32_t>(random_() % blocks));
    }
    Step();
    if (!live_.empty() && random_() % 40 == 0) driver_->End(RequestId{live_.begin()->first});
    if (random_() % 500 == 0) weather_.delay_us = static_cast<int>(random_() % 2'000);
    if (random_() % 300 == 0) weather_.stalls = !weather_.stalls;
  }
  weather_.stalls = false;
  for (int step = 0; step < 100'000 && !live_.empty(); ++step) Step();
  ExpectAllFree();
  EXPECT_GT(restored_, 0u);
  EXPECT_GT(loaded_, 0u);
}

}  // namespace
}  // namespace larder
