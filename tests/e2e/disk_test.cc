// The daemon with a disk, through the client library: what leaves the pool comes back, kill -9 loses nothing that was
// durable, and a bad disk is a miss and never an error.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/sideband.h"
#include "client/wire/convert.h"
#include "tests/e2e/child_engine.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/raw_session.h"
#include "tests/e2e/test_blocks.h"
#include "tests/test_scale.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

// 120 KB: the pool of 32 MiB holds about 270 of them.
constexpr size_t kLayerBytes = 60'000;

class DiskTest : public ::testing::Test {
 protected:
  // Another daemon over the same folder and the same disk.
  void Start(std::vector<std::string> flags = {}) {
    session_.reset();
    client_.reset();
    const std::vector<std::string> ours = {"--pool",       "32MiB", "--disk", folder_->File("disk"),
                                           "--disk-limit", "400MiB"};
    flags.insert(flags.begin(), ours.begin(), ours.end());
    daemon_.reset();
    daemon_ = std::make_unique<DaemonProcess>(flags, DaemonProcess::Options{.folder = folder_});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    auto client = Client::Connect({.socket_dir = folder_->path()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    Attach(WriteMode::kMapped);
  }
  void Attach(WriteMode mode) {
    auto session = client_->Attach({.engine_id = "disk", .write_mode = mode});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    const auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    variant_ = variants->front();
  }
  // An error when the daemon is gone.
  absl::StatusOr<BlockStatus> TryPut(uint32_t number) {
    const TestBlock block = maker_.Block(number);
    std::vector<std::vector<std::byte>> layers(maker_.variant.layers,
                                               std::vector<std::byte>(kLayerBytes));
    for (uint32_t i = 0; i < layers.size(); ++i) FillLayer(block.digest, i, layers[i]);
    const std::vector<std::span<const std::byte>> views(layers.begin(), layers.end());
    const PutBlock put{
        .digest = block.digest, .parent = block.parent, .tokens = block.tokens, .segments = views};
    const auto status = session_->Put(variant_, {&put, 1});
    if (!status.ok()) return status.status();
    return status->front();
  }
  BlockStatus Put(uint32_t number) {
    const absl::StatusOr<BlockStatus> status = TryPut(number);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(BlockStatus::kInvalid);
  }
  // As a Put answers.
  static bool IsKept(BlockStatus status) {
    return status == BlockStatus::kOk || status == BlockStatus::kDuplicate;
  }
  // kOk only when the bytes are right, too.  An error when the daemon is gone.
  absl::StatusOr<BlockStatus> TryGet(uint32_t number, uint32_t first_layer = 0) {
    const TestBlock block = maker_.Block(number);
    std::vector<std::vector<std::byte>> layers(maker_.variant.layers - first_layer,
                                               std::vector<std::byte>(kLayerBytes));
    const std::vector<std::span<std::byte>> views(layers.begin(), layers.end());
    const GetBlock get{.digest = block.digest, .segments = views, .first_layer = first_layer};
    const auto status = session_->Get(variant_, {&get, 1});
    if (!status.ok()) return status.status();
    for (uint32_t i = 0; i < layers.size() && status->front() == BlockStatus::kOk; ++i)
      EXPECT_TRUE(LayerIsRight(block.digest, i + first_layer, layers[i]))
          << "wrong bytes of " << number;
    return status->front();
  }
  BlockStatus Get(uint32_t number, uint32_t first_layer = 0) {
    const absl::StatusOr<BlockStatus> status = TryGet(number, first_layer);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(BlockStatus::kInvalid);
  }
  [[nodiscard]] wire::LookupQuery QueryOf(uint32_t number) const {
    wire::LookupQuery query;
    query.content = maker_.content;
    query.content.tenant.clear();
    query.tokens = maker_.Block(number).tokens;
    return query;
  }
  size_t CountHits(uint32_t from, uint32_t to) {
    size_t hits = 0;
    for (uint32_t number = from; number < to; ++number)
      hits += Get(number) == BlockStatus::kOk ? 1 : 0;
    return hits;
  }
  [[nodiscard]] double OnDisk() const {
    return daemon_->Metric("larder_disk_blocks{where=\"all\"}");
  }

  [[nodiscard]] bool Recovering() const { return daemon_->Metric("larder_disk_recovering") != 0; }
  // Those that wait for the disk, or are read.
  [[nodiscard]] double Promoting() const {
    return daemon_->Metric("larder_disk_waiting{for=\"promote\"}");
  }
  [[nodiscard]] double Promoted() const {
    return daemon_->Metric("larder_disk_promote_total{result=\"promoted\"}");
  }
  // Of the data files and of the catalogs.
  [[nodiscard]] double ReadFailures() const {
    return daemon_->Metric("larder_disk_failures_total{kind=\"read\"}") +
           daemon_->Metric("larder_disk_failures_total{kind=\"catalog\"}");
  }
  // Blocks that were tried and are not on disk.
  [[nodiscard]] double NotWritten() const {
    return daemon_->Metric("larder_disk_spill_total{result=\"dropped_failed\"}") +
           daemon_->Metric("larder_disk_spill_total{result=\"dropped_room\"}");
  }
  [[nodiscard]] double Leases() const { return daemon_->Metric("larder_holds{kind=\"lease\"}"); }
  // Blocks 0 .. count-1, in batches: each goes to another shard.
  void PutDurable(uint32_t count) {
    constexpr uint32_t kBatch = 16;
    for (uint32_t number = 0; number < count; ++number) {
      ASSERT_EQ(Put(number), BlockStatus::kOk);
      if (number % kBatch != kBatch - 1 && number != count - 1) continue;
      ASSERT_TRUE(Eventually([&] { return OnDisk() == number + 1; })) << OnDisk();
    }
  }
  // Blocks 0 .. count-1, while writes take seconds: all but the first wait for one to end.
  void PutWaiting(uint32_t count) {
    const auto waiting = [&] { return daemon_->Metric("larder_disk_waiting{for=\"spill\"}"); };
    for (uint32_t number = 0; number < count; ++number) {
      ASSERT_EQ(Put(number), BlockStatus::kOk);
      if (number < 2) {  // each thread that writes has one
        ASSERT_TRUE(Eventually([&] { return waiting() == 0; }));
      }
    }
    ASSERT_EQ(waiting(), count - 2);
  }
  // What is in the pool comes from the disk alone, which takes its time.
  void StartAgain(const std::string& faults) {
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", faults}));
    ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
  }
  // By no engine and no thread of the daemon, which is well.
  void ExpectNothingHeld() {
    EXPECT_TRUE(Eventually([&] { return Promoting() == 0; }));
    EXPECT_TRUE(Eventually([&] {
      const v1::TenantStats t = daemon_->Tenant();
      return Leases() == 0 && daemon_->Metric("larder_pool_bytes{part=\"leased\"}") == 0 &&
             t.reservations() == 0 && t.pool_reserved() == 0 && t.pool_quarantined() == 0 &&
             t.pool_limit() > 0 && t.pool_stored() + t.pool_free() == t.pool_limit();
    })) << daemon_->Tenant().ShortDebugString();
    EXPECT_TRUE(daemon_->alive()) << daemon_->errors();
  }

  const std::shared_ptr<TemporaryFolder> folder_ = std::make_shared<TemporaryFolder>();
  const BlockMaker maker_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
};

TEST_F(DiskTest, WhatLeftThePoolComesBackInEveryMode) {
  ASSERT_NO_FATAL_FAILURE(Start());
  constexpr uint32_t kBlocks = 600;  // more than twice the pool
  for (uint32_t number = 0; number < kBlocks; ++number) {
    ASSERT_EQ(Put(number), BlockStatus::kOk);
    if (number % 100 == 99) {
      ASSERT_TRUE(Eventually([&] { return OnDisk() == number + 1; })) << OnDisk();
    }
  }
  ASSERT_TRUE(Eventually([&] { return OnDisk() == kBlocks; })) << OnDisk();
  EXPECT_GT(daemon_->Metric("larder_disk_blocks{where=\"disk_only\"}"), 200);
  for (const WriteMode mode : {WriteMode::kMapped, WriteMode::kStaged}) {
    SCOPED_TRACE(wire::ToString(mode));
    session_.reset();
    ASSERT_NO_FATAL_FAILURE(Attach(mode));
    EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  }
  EXPECT_EQ(Get(3, 1), BlockStatus::kOk) << "a range of layers";
  EXPECT_GT(daemon_->Metric("larder_blocks_got_total{result=\"disk\"}"), 300);
}

TEST_F(DiskTest, SurvivesKill9) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (uint32_t number = 0; number < 200; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
  ASSERT_TRUE(Eventually([&] { return OnDisk() == 200; }));
  for (int time = 0; time < 3; ++time) {
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
    EXPECT_EQ(CountHits(0, 200), 200u);
    const auto found = client_->Lookup(QueryOf(5));
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->instances.size(), 1u);
    EXPECT_EQ(found->instances[0].tiers.back().tier, Tier::kDisk);
  }
}

// A router asks before any engine is back.
TEST_F(DiskTest, LookupKnowsTheEnginesOfTheFormerDaemon) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  ASSERT_TRUE(Eventually([&] { return OnDisk() == 1; }));
  session_.reset();
  client_.reset();
  daemon_->Kill9();
  daemon_ = std::make_unique<DaemonProcess>(
      std::vector<std::string>{"--pool", "32MiB", "--disk", folder_->File("disk"), "--disk-limit",
                               "400MiB"},
      DaemonProcess::Options{.folder = folder_});
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  auto client = Client::Connect({.socket_dir = folder_->path()});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
  const auto found = (*client)->Lookup(QueryOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->instances.size(), 1u);
  EXPECT_EQ(found->instances[0].engine_id, "disk");
  EXPECT_FALSE(found->instances[0].attached);
  ASSERT_EQ(found->instances[0].tiers.size(), 1u);
  EXPECT_EQ(found->instances[0].tiers[0].tier, Tier::kDisk);
  EXPECT_EQ(found->instances[0].tiers[0].contiguous, TokenCount(16));
}

// ---- while it recovers: tens of milliseconds a block, and what is found is told shard by shard

// They publish what the disk has and is not found yet, and what is new, and read all of it: what
// they published is there, what is not found yet is a miss, and in the end nothing is lost.
TEST_F(DiskTest, EnginesWorkWhileItRecovers) {
  constexpr uint32_t kDurable = 150, kAll = 200;  // all of them fit the pool
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kDurable));
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "catalog.scan=sleep:20ms"}));
  std::atomic<bool> over{false};
  std::atomic<uint64_t> hits{0}, misses{0};
  std::thread reader([&] {
    std::mt19937 random(1);
    while (!over) {
      const BlockStatus status = Get(static_cast<uint32_t>(random() % kAll));
      ++(status == BlockStatus::kOk ? hits : misses);
      EXPECT_TRUE(status == BlockStatus::kOk || status == BlockStatus::kMissing)
          << ToString(status);
    }
  });
  // Some after each shard, so that blocks are published before, while and after they are found.
  uint32_t published = 0;
  for (double found = -1; Recovering() && published < kAll; found = OnDisk()) {
    for (uint32_t i = 0; i < kAll / 10 && published < kAll; ++i, ++published) {
      const uint32_t number = published * 37 % kAll;  // all of them, in another order
      EXPECT_TRUE(IsKept(Put(number)));
      EXPECT_EQ(Get(number), BlockStatus::kOk) << "just published";
    }
    EXPECT_TRUE(Eventually([&] { return OnDisk() > found || !Recovering(); }));
  }
  EXPECT_GT(published, kAll / 4) << "it recovered sooner than anybody could work";
  EXPECT_TRUE(Eventually([&] { return !Recovering(); }));
  over = true;
  reader.join();
  EXPECT_GT(hits, 0u);
  EXPECT_GT(misses, 0u);
  for (uint32_t i = published; i < kAll; ++i) EXPECT_TRUE(IsKept(Put(i * 37 % kAll)));
  EXPECT_EQ(CountHits(0, kAll), kAll);
  EXPECT_TRUE(Eventually([&] { return OnDisk() == kAll; })) << OnDisk();
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:1us"));
  EXPECT_EQ(OnDisk(), kAll) << "each once";
  EXPECT_EQ(CountHits(0, kAll), kAll);
  ExpectNothingHeld();
}

// What is found while the pool has it, too, leaves the pool before anything can be written to the
// disk: its durable copy is all there is.
TEST_F(DiskTest, EnginesPublishMoreThanThePoolWhileItRecovers) {
  constexpr uint32_t kDurable = 150, kAll = 750;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kDurable));
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "catalog.scan=sleep:40ms"}));
  for (uint32_t number = 0; number < kDurable; ++number) EXPECT_TRUE(IsKept(Put(number)));
  ASSERT_TRUE(Eventually([&] { return OnDisk() >= kDurable / 3; }));
  bool meanwhile = false;
  for (uint32_t number = kDurable; number < kAll; ++number) {
    EXPECT_TRUE(IsKept(Put(number)));
    EXPECT_EQ(Get(number), BlockStatus::kOk) << "just published";
    const BlockStatus other = Get(number * 37 % kAll);
    EXPECT_TRUE(other == BlockStatus::kOk || other == BlockStatus::kMissing) << ToString(other);
    if (number == kAll * 2 / 3) meanwhile = Recovering();
  }
  EXPECT_TRUE(meanwhile) << "it recovered sooner than the pool was full";
  EXPECT_TRUE(Eventually([&] { return !Recovering(); }));
  EXPECT_EQ(CountHits(0, kDurable), kDurable) << "durable blocks are lost";
  ExpectNothingHeld();
}

// ---- while blocks are read: some at a time, by four threads

// Another engine asks for the same blocks, and has them.
TEST_F(DiskTest, AnEngineIsKilledWhileItsBlocksAreRead) {
  constexpr uint32_t kBlocks = 32;  // of a ChildEngine's calls
  ASSERT_NO_FATAL_FAILURE(Start());
  ChildEngine writer(*daemon_, "mapped", "put", 0);
  ASSERT_EQ(writer.Wait(), 0);
  ASSERT_TRUE(Eventually([&] { return OnDisk() == kBlocks; }));
  for (const char* mode : {"mapped", "staged"}) {
    SCOPED_TRACE(mode);
    ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:250ms"));
    ChildEngine victim(*daemon_, mode, "want", 0);
    ASSERT_EQ(victim.Hear(), "ready");
    victim.Signal(SIGCONT);
    ASSERT_TRUE(Eventually([&] { return Promoting() > 0; }));
    EXPECT_GT(Leases(), 0);
    EXPECT_GT(daemon_->Metric("larder_pool_bytes{part=\"leased\"}"), 0);
    (void)victim.KillAndProve();
    ExpectNothingHeld();
    EXPECT_LT(Promoted(), kBlocks) << "what nobody wants any more was read to the last block";
    ChildEngine reader(*daemon_, mode, "want", 0);
    ASSERT_EQ(reader.Hear(), "ready");
    reader.Signal(SIGCONT);
    EXPECT_EQ(reader.Wait(), 0);
    EXPECT_EQ(Promoted(), kBlocks);
    ExpectNothingHeld();
  }
}

// One engine is killed while two wait for the same blocks: the other has them all.
TEST_F(DiskTest, OneOfTwoEnginesIsKilledWhileTheirBlocksAreRead) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ChildEngine writer(*daemon_, "mapped", "put", 0);
  ASSERT_EQ(writer.Wait(), 0);
  ASSERT_TRUE(Eventually([&] { return OnDisk() == 32; }));
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:100ms"));
  ChildEngine victim(*daemon_, "mapped", "want", 0);
  ChildEngine other(*daemon_, "mapped", "want", 0);
  for (ChildEngine* engine : {&victim, &other}) ASSERT_EQ(engine->Hear(), "ready");
  for (const ChildEngine* engine : {&victim, &other}) engine->Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return Promoting() > 32; })) << "both wait";
  (void)victim.KillAndProve();
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_EQ(Promoted(), 32) << "each is read once";
  ExpectNothingHeld();
}

// By the library: its caller's deadline passes, and the lease goes.
TEST_F(DiskTest, ALeaseIsReleasedBeforeItsBlocksAreThere) {
  constexpr uint32_t kBlocks = 32;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  std::vector<Digest> digests;
  for (uint32_t number = 0; number < kBlocks; ++number)
    digests.push_back(maker_.Block(number).digest);
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:150ms"));
  auto lease = session_->Acquire(variant_, digests, {.deadline = std::chrono::milliseconds(300)});
  ASSERT_TRUE(lease.ok()) << lease.status();
  size_t cancelled = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    cancelled += lease->status(i) == BlockStatus::kCancelled ? 1 : 0;
    EXPECT_TRUE(lease->status(i) == BlockStatus::kCancelled ||
                LayerIsRight(digests[i], 0, lease->View(i).first(kLayerBytes)));
  }
  EXPECT_GT(cancelled, 0u);
  lease->Release();
  ExpectNothingHeld();
  EXPECT_LT(Promoted(), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  session_.reset();
  ExpectNothingHeld();
}

// A session that says what it wants and takes it back at once, by each word there is for that.
TEST_F(DiskTest, ASessionGivesBackWhatIsBeingRead) {
  constexpr uint32_t kBlocks = 32;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  std::string digests;
  for (uint32_t number = 0; number < kBlocks; ++number)
    digests += Packed(maker_.Block(number).digest);
  for (const bool bye : {false, true}) {
    SCOPED_TRACE(bye ? "bye" : "release");
    ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:150ms"));
    auto sideband = SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    RawSession session(daemon_->DataChannel(),
                       {.token = (*sideband)->TokenHex(), .mode = v1::WRITE_MODE_MAPPED});
    v1::Up up;
    up.add_registers()->set_id(1);
    wire::Encode(maker_.content, up.mutable_registers(0)->add_contents());
    wire::Encode(maker_.variant, up.mutable_registers(0)->add_variants());
    ASSERT_TRUE(session.Ask(up)) << session.End().error_message();
    up.Clear();
    up.add_acquires()->set_id(2);
    up.mutable_acquires(0)->set_digests(digests);
    up.mutable_acquires(0)->set_what(v1::ACQUIRE_WHAT_BYTES);
    const std::optional<v1::Down> granted = session.Ask(up);
    ASSERT_TRUE(granted && granted->grants_size() == 1);
    EXPECT_EQ(granted->grants(0).status_size(), static_cast<int>(kBlocks));
    for (const int status : granted->grants(0).status())
      EXPECT_EQ(status, v1::BLOCK_STATUS_PENDING);
    ASSERT_GT(Promoting(), 0);
    if (bye) {
      EXPECT_TRUE(session.Bye().ok());
    } else {
      up.Clear();
      up.mutable_release()->add_lease_ids(granted->grants(0).lease_id());
      ASSERT_TRUE(session.Send(up));
    }
    ExpectNothingHeld();
    EXPECT_LT(Promoted(), kBlocks) << "what nobody wants any more was read to the last block";
    EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
    if (!bye) {
      EXPECT_TRUE(session.Bye().ok());
    }
    ExpectNothingHeld();
  }
}

// ---- SIGTERM

TEST_F(DiskTest, StopsWhenAllItWasGivenIsOnDisk) {
  constexpr uint32_t kBlocks = 64;
  ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "data.write=sleep:4s"}));
  ASSERT_NO_FATAL_FAILURE(PutWaiting(kBlocks));
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
  EXPECT_EQ(OnDisk(), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
}

TEST_F(DiskTest, StopsAtTheLimitOfADrainWhateverIsNotOnDisk) {
  ASSERT_NO_FATAL_FAILURE(
      Start({"--fault-points", "data.write=sleep:4s", "--drain-limit", "100ms"}));
  ASSERT_NO_FATAL_FAILURE(PutWaiting(64));
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  EXPECT_THAT(daemon_->errors(), HasSubstr("not_spilled"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
  EXPECT_EQ(static_cast<double>(CountHits(0, 64)), OnDisk()) << "all that is there is right";
}

TEST_F(DiskTest, StopsWhileItRecovers) {
  constexpr uint32_t kDurable = 64;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kDurable));
  uint32_t all = kDurable;
  for (const bool publishes : {false, true}) {
    SCOPED_TRACE(publishes);
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "catalog.scan=sleep:20ms"}));
    for (uint32_t i = 0; publishes && i < 8; ++i) ASSERT_EQ(Put(all++), BlockStatus::kOk);
    ASSERT_TRUE(Recovering());
    EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
    EXPECT_EQ(OnDisk(), all);
    EXPECT_EQ(CountHits(0, all), all);
  }
}

TEST_F(DiskTest, StopsWhenWhatIsBeingReadIsThere) {
  constexpr uint32_t kBlocks = 32;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  std::vector<Digest> digests;
  for (uint32_t number = 0; number < kBlocks; ++number)
    digests.push_back(maker_.Block(number).digest);
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:100ms"));
  std::thread reader([&] {
    const auto lease = session_->Acquire(variant_, digests, {.deadline = std::chrono::seconds(30)});
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (size_t i = 0; i < kBlocks; ++i) EXPECT_EQ(lease->status(i), BlockStatus::kOk) << i;
  });
  EXPECT_TRUE(Eventually([&] { return Promoting() > 0; }));
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  reader.join();
}

// ---- kill -9

// Killed at random while it is written to and read from, also before it has found what a former one
// left: what it said is durable is there, name by name.
class DiskKillTest : public DiskTest {
 protected:
  static constexpr uint32_t kNumbers = 800;  // all of them fit the disk

  [[nodiscard]] bool SaysOnDisk(uint32_t number) {
    const auto found = client_->Lookup(QueryOf(number));
    if (!found.ok() || found->instances.empty()) return false;
    const std::vector<wire::TierHit>& tiers = found->instances[0].tiers;
    return std::any_of(tiers.begin(), tiers.end(), [](const wire::TierHit& hit) {
      return hit.tier == Tier::kDisk && hit.contiguous > TokenCount(0);
    });
  }
  // Puts one block after the other, reads one that is durable, and asks which are by now.  False:
  // the daemon is gone.
  bool Work(std::mt19937& random, bool recovering) {
    const absl::StatusOr<BlockStatus> put = TryPut(next_);
    if (!put.ok()) return false;
    EXPECT_TRUE(IsKept(*put)) << ToString(*put);
    waiting_.push_back(next_);
    next_ = (next_ + 1) % kNumbers;
    for (size_t i = std::min<size_t>(waiting_.size(), 4); i > 0; --i) {
      const uint32_t oldest = waiting_.front();
      waiting_.pop_front();
      if (!SaysOnDisk(oldest)) {
        waiting_.push_back(oldest);
      } else if (std::find(durable_.begin(), durable_.end(), oldest) == durable_.end()) {
        durable_.push_back(oldest);
      }
    }
    if (durable_.empty()) return true;
    const absl::StatusOr<BlockStatus> got = TryGet(durable_[random() % durable_.size()]);
    EXPECT_TRUE(!got.ok() || *got == BlockStatus::kOk ||
                (recovering && *got == BlockStatus::kMissing))
        << ToString(*got);
    return got.ok();
  }
  void ExpectDurableThere() {
    ASSERT_TRUE(Eventually([&] { return !Recovering(); }));
    for (const uint32_t number : durable_)
      ASSERT_EQ(Get(number), BlockStatus::kOk) << number << " was durable";
  }

  uint32_t next_ = 0;
  std::deque<uint32_t> waiting_;  // published, not known to be durable
  std::vector<uint32_t> durable_;
};

TEST_F(DiskKillTest, WhatWasDurableIsThere) {
  std::mt19937 random(testing::TestSeed());
  const uint64_t kills = testing::Scaled(100);
  uint64_t recovering_kills = 0;
  for (uint64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    const bool early = i % 3 == 2;
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", early ? "catalog.scan=sleep:5ms" : ""}));
    if (!early) {
      ASSERT_NO_FATAL_FAILURE(ExpectDurableThere());
    }
    waiting_.clear();
    std::thread killer([&, after = std::chrono::microseconds(random() % 150'000)] {
      std::this_thread::sleep_for(after);
      kill(daemon_->pid(), SIGKILL);
    });
    bool recovering = early;
    while (Work(random, recovering)) recovering = early && Recovering();
    recovering_kills += recovering ? 1 : 0;
    killer.join();
    ASSERT_TRUE(daemon_->Wait().has_value());
  }
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(ExpectDurableThere());
  EXPECT_EQ(static_cast<double>(CountHits(0, kNumbers)), OnDisk()) << "all that is there is right";
  EXPECT_GT(durable_.size(), kills);
  EXPECT_GT(recovering_kills, 0u);
  std::printf("%lu kills, %lu of them while it recovered; %zu blocks were durable\n", kills,
              recovering_kills, durable_.size());
}

// ---- a bad disk

// What cannot be read is a miss, and is there again as soon as the disk is.
TEST_F(DiskTest, ABadDiskIsAMissAndNeverAnError) {
  constexpr uint32_t kBlocks = 100;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  for (const std::string faults : {"data.read=error", "catalog.read=error", "data.read=short"}) {
    SCOPED_TRACE(faults);
    ASSERT_NO_FATAL_FAILURE(StartAgain(faults));
    const bool all_fail = faults.ends_with("error");
    for (uint32_t number = 0; number < kBlocks; ++number)
      EXPECT_EQ(Get(number), all_fail ? BlockStatus::kMissing : BlockStatus::kOk);
    EXPECT_EQ(ReadFailures() > 0, all_fail);
    ASSERT_NO_FATAL_FAILURE(StartAgain(""));
    EXPECT_EQ(CountHits(0, kBlocks), kBlocks) << "dropped for a disk that could not be read";
  }
}

// One read of three fails: the disk is asked again, and what fails twice while others can be read is
// given up.
TEST_F(DiskTest, ADiskThatFailsNowAndThenIsAskedAgain) {
  constexpr uint32_t kBlocks = 100;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=error/3"));
  EXPECT_TRUE(Eventually([&] {
    size_t hits = 0;
    for (uint32_t number = 0; number < kBlocks; ++number) {
      const BlockStatus status = Get(number);
      EXPECT_TRUE(status == BlockStatus::kOk || status == BlockStatus::kMissing ||
                  status == BlockStatus::kDamaged)
          << ToString(status);
      hits += status == BlockStatus::kOk ? 1 : 0;
    }
    return static_cast<double>(hits) == OnDisk();
  }));
  EXPECT_GT(ReadFailures(), 0);
  const double left = OnDisk();
  EXPECT_EQ(left + daemon_->Metric("larder_disk_promote_total{result=\"damaged\"}"), kBlocks);
  EXPECT_GT(left, kBlocks * 3 / 4);
  ASSERT_NO_FATAL_FAILURE(StartAgain(""));
  EXPECT_EQ(CountHits(0, kBlocks), left);
}

TEST_F(DiskTest, WritesThatFailCostTheDiskCopyOnly) {
  for (const char* faults :
       {"data.write=error", "data.sync=error", "data.create=full", "catalog.commit=error"}) {
    SCOPED_TRACE(faults);
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", faults}));
    for (uint32_t number = 0; number < 50; ++number) {
      EXPECT_TRUE(IsKept(Put(number)));
    }
    EXPECT_TRUE(Eventually([&] { return NotWritten() > 0; })) << "no write was tried";
    EXPECT_EQ(CountHits(0, 50), 50u);
    EXPECT_EQ(OnDisk(), 0);
    daemon_->Kill9();
    std::filesystem::remove_all(folder_->File("disk"));
  }
}

// Every operation of the disk takes half a second: the pool does not notice.
TEST_F(DiskTest, ASlowDiskDoesNotSlowThePool) {
  ASSERT_NO_FATAL_FAILURE(
      Start({"--fault-points",
             "data.write=sleep:500ms,data.read=sleep:500ms,catalog.commit=sleep:500ms"}));
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t number = 0; number < 150; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
  EXPECT_EQ(CountHits(0, 150), 150u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20))
      << "300 calls, none waits for the disk";
}

TEST_F(DiskTest, TheDaemonSaysWhatItHasAndWhatItLacks) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_->output(), HasSubstr("400MiB in " + folder_->File("disk")));
  EXPECT_THAT(daemon_->errors(), HasSubstr(" disk=" + folder_->File("disk") + " disk_limit=419430400"));
  EXPECT_THAT(daemon_->errors(), ::testing::Not(HasSubstr("disk_small")));
  const DaemonProcess greedy({"--disk", folder_->File("other"), "--disk-limit", "900TiB"});
  EXPECT_THAT(greedy.errors(), HasSubstr("disk_small directory=" + folder_->File("other")));
}

TEST_F(DiskTest, ASecondDaemonOnTheDirectoryIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Start());
  DaemonProcess second({"--disk", folder_->File("disk"), "--disk-limit", "400MiB"});
  EXPECT_EQ(second.Wait(), 3) << "cannot start";
  EXPECT_THAT(second.errors(), HasSubstr("is used by another process"));
}

}  // namespace
}  // namespace larder::e2e
