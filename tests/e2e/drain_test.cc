// Sends SIGTERM to a daemon under load, many times.  Every call that had begun before the signal
// succeeds (a short run, which shares its machine, may have two late ones), leases and reservations
// stay valid until they are given back, the daemon's health turns to NOT_SERVING, and the daemon
// ends within its limit.
//
// LARDER_TEST_SCALE scales the 200 rounds.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/sessions/session.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr size_t kLayerBytes = 100'000;
constexpr uint32_t kNumbers = 40;  // blocks of an engine; the pool holds those of all engines

// The counts of one daemon's life and end, written by all threads of the round.
struct Round {
  std::atomic<Clock::rep> asked{Clock::time_point::max().time_since_epoch().count()};  // SIGTERM
  std::atomic<bool> over{false};  // the daemon is gone
  std::atomic<uint64_t> calls{0}, in_flight{0}, failed{0}, refused{0}, late{0};

  [[nodiscard]] bool Asked(Clock::time_point at) const {
    return at.time_since_epoch().count() >= asked.load();
  }
  // Counts a call that ran since `begun`.  Returns false if it failed, which it may only if it
  // began after SIGTERM: the daemon refused it.  A call that began before and fails after the
  // daemon's grace counts as late: on a busy machine it may have reached the daemon only then.
  bool Took(Clock::time_point begun, bool ok, const std::string& what) {
    ++calls;
    const bool flew = !Asked(begun) && Asked(Clock::now());
    if (flew) ++in_flight;
    if (ok) return true;
    if (Asked(begun)) {
      ++refused;
      return false;
    }
    if (Asked(Clock::now() - AttachedSession::kDrainGrace)) {
      ++late;
      return false;
    }
    ++failed;
    ADD_FAILURE() << (flew ? "in flight at SIGTERM: " : "before SIGTERM: ") << what;
    return false;
  }
};

// An engine with its own session.
class Engine {
 public:
  Engine(const std::string& folder, WriteMode mode, uint32_t first, Round& round)
      : first_(first), round_(round) {
    client_ = *Client::Connect({.socket_dir = folder, .retry_budget = 0});
    session_ = *client_->Attach(
        {.engine_id = absl::StrCat("drain-", first), .write_mode = mode, .staging_bytes = MiB(4)});
    EXPECT_EQ(session_->write_mode(), mode) << session_->write_mode_reason();
    variant_ = session_->Register({&maker_.content, 1}, {&maker_.variant, 1})->front();
  }
  // Puts and gets until the daemon refuses a call.
  void Work() {
    std::mt19937 random(first_);
    uint32_t put = 0;
    for (bool going = true; going;) {
      going = put < kNumbers && (put == 0 || random() % 2 == 0)
                  ? Put(first_ + put++)
                  : Get(first_ + static_cast<uint32_t>(random() % put));
      if (put == kNumbers) put = kNumbers / 2;  // the next puts are duplicates
    }
    session_.reset();
  }
  // Holds a lease and a reservation across SIGTERM.  Only when the daemon tells the session to
  // finish does it read through the lease, publish the reservation and give both back.
  void Hold() {
    ASSERT_TRUE(Put(first_));
    const TestBlock held = maker_.Block(first_), filled = maker_.Block(first_ + 1);
    auto lease = session_->Acquire(variant_, {&held.digest, 1}, {.deadline = kDeadline});
    ASSERT_TRUE(lease.ok()) << lease.status();
    const SegmentTable table = UniformTable(maker_.variant.layers, kLayerBytes);
    const ByteCount bytes = table.PayloadBytes();
    auto reservation = session_->Reserve({&bytes, 1}, {.deadline = kDeadline});
    ASSERT_TRUE(reservation.ok()) << reservation.status();
    ready = true;
    EXPECT_TRUE(Eventually([&] { return session_->draining() || !session_->status().ok(); }));
    EXPECT_TRUE(session_->draining()) << session_->status();
    EXPECT_TRUE(LayerIsRight(held.digest, 0, lease->View(0).first(kLayerBytes)) && lease->Valid());
    const Reservation::Block block{.extent = 0,
                                   .digest = filled.digest,
                                   .parent = filled.parent,
                                   .tokens = filled.tokens,
                                   .table = table};
    const auto published = reservation->Publish(variant_, {&block, 1}, {});
    if (!published.ok() || published->front() != BlockStatus::kOk) {
      ++round_.failed;
      ADD_FAILURE() << "Publish of the reservation failed: " << published.status();
    }
    lease->Release();
    session_.reset();
  }
  // Calls Lookup all the time, as a router does, until the daemon refuses.
  void LookUp() {
    wire::LookupQuery query;
    query.content = maker_.content;
    query.digests = {maker_.Block(first_).digest};
    for (;;) {
      const Clock::time_point begun = Clock::now();
      const auto found = client_->Lookup(query);
      if (!round_.Took(begun, found.ok(), absl::StrCat("Lookup: ", found.status().ToString())))
        return;
    }
  }
  std::atomic<bool> ready{false};

 private:
  static constexpr std::chrono::milliseconds kDeadline{60'000};

  bool Put(uint32_t number) {
    const FilledBlock block(maker_, maker_.Block(number), kLayerBytes);
    const PutBlock put = block.ToPut();
    const Clock::time_point begun = Clock::now();
    const auto status = session_->Put(variant_, {&put, 1});
    const bool ok = status.ok() && (status->front() == BlockStatus::kOk ||
                                    status->front() == BlockStatus::kDuplicate);
    return Took(begun, ok, "Put", status);
  }
  bool Get(uint32_t number) {
    const LayerSpace space(maker_.Block(number).digest, maker_.variant.layers, kLayerBytes);
    const GetBlock get = space.ToGet();
    const Clock::time_point begun = Clock::now();
    const auto status = session_->Get(variant_, {&get, 1});
    const bool ok = status.ok() && status->front() == BlockStatus::kOk;
    if (ok) {
      EXPECT_TRUE(LayerIsRight(get.digest, 0, space.layers()[0])) << number;
    }
    return Took(begun, ok, "Get", status);
  }
  bool Took(Clock::time_point begun, bool ok, const char* what,
            const absl::StatusOr<std::vector<BlockStatus>>& status) {
    const std::string said = status.ok() ? ToString(status->front()) : status.status().ToString();
    return round_.Took(begun, ok,
                       absl::StrCat(what, ", ", ToString(session_->write_mode()), ": ", said));
  }
  const BlockMaker maker_;
  const uint32_t first_;
  Round& round_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
};

double At(std::vector<double> all, double share) {
  std::ranges::sort(all);
  return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))];
}

TEST(DrainTest, SigtermUnderLoadFailsNoCallThatHadBegun) {
  std::mt19937 random(testing::TestSeed());
  const uint64_t rounds = testing::Scaled(200);
  uint64_t calls = 0, in_flight = 0, failed = 0, refused = 0, late = 0;
  std::vector<double> health_ms, exit_ms;
  for (uint64_t number = 0; number < rounds && !::testing::Test::HasFailure(); ++number) {
    DaemonProcess daemon({"--session-sockets", number % 2 == 0 ? "true" : "false"});
    ASSERT_TRUE(daemon.serves()) << daemon.errors();
    Round round;
    const std::string folder = daemon.folder()->path();
    Engine mapped(folder, WriteMode::kMapped, 0, round),
        staged(folder, WriteMode::kStaged, 1000, round),
        stream(folder, WriteMode::kStream, 2000, round),
        holder(folder, WriteMode::kMapped, 3000, round);
    std::vector<std::thread> threads;
    for (Engine* engine : {&mapped, &staged, &stream})
      threads.emplace_back([engine] { engine->Work(); });
    threads.emplace_back([&] { holder.Hold(); });
    threads.emplace_back([&] { mapped.LookUp(); });
    EXPECT_TRUE(Eventually([&] { return holder.ready.load(); }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));

    const Clock::time_point asked = Clock::now();
    round.asked = asked.time_since_epoch().count();
    daemon.Signal(SIGTERM);
    EXPECT_TRUE(Eventually([&] { return daemon.Health() != "SERVING"; }));
    health_ms.push_back(Milliseconds(Clock::now() - asked).count());
    EXPECT_EQ(daemon.Wait(std::chrono::seconds(45)), 0) << daemon.errors();
    exit_ms.push_back(Milliseconds(Clock::now() - asked).count());
    for (std::thread& thread : threads) thread.join();
    calls += round.calls;
    in_flight += round.in_flight;
    failed += round.failed;
    refused += round.refused;
    late += round.late;
  }
  std::printf(
      "%llu times SIGTERM: %llu calls, %llu of them in flight at the signal; %llu calls failed; "
      "%llu calls after the signal were refused, %llu late ones failed; health turned after %.1f "
      "ms (p50), %.1f ms (max); "
      "the daemon had ended after %.0f ms (p50), %.0f ms (max)\n",
      static_cast<unsigned long long>(exit_ms.size()), static_cast<unsigned long long>(calls),
      static_cast<unsigned long long>(in_flight), static_cast<unsigned long long>(failed),
      static_cast<unsigned long long>(refused), static_cast<unsigned long long>(late),
      At(health_ms, 0.5), At(health_ms, 1), At(exit_ms, 0.5), At(exit_ms, 1));
  // A short run shares its machine.
  EXPECT_LE(late, testing::TestScale() >= 1 ? 0 : 2);
}

}  // namespace
}  // namespace larder::e2e
