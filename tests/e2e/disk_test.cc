// The daemon with a disk, used through the client library: blocks that leave the pool are read from
// disk, and what a bad disk cannot read is a miss and never an error.
#include <filesystem>
#include <functional>

#include "tests/e2e/support/disk_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

TEST_F(DiskTest, BlocksThatLeftThePoolAreReadFromDiskInEveryMode) {
  ASSERT_NO_FATAL_FAILURE(Start());
  constexpr uint32_t kBlocks = 600;  // more than twice as many as the pool holds
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

TEST_F(DiskTest, BlocksOnDiskSurviveKill9) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (uint32_t number = 0; number < 200; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
  ASSERT_TRUE(Eventually([&] { return OnDisk() == 200; }));
  for (int time = 0; time < 3; ++time) {
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_TRUE(Eventually([&] { return Recovered(); }));
    EXPECT_EQ(CountHits(0, 200), 200u);
    const auto found = client_->Lookup(QueryOf(5));
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->instances.size(), 1u);
    EXPECT_EQ(found->instances[0].tiers.back().tier, Tier::kDisk);
  }
}

// A router calls Lookup before any engine has attached to the new daemon.
TEST_F(DiskTest, LookupListsTheEnginesOfThePreviousDaemon) {
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
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  const auto found = (*client)->Lookup(QueryOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->instances.size(), 1u);
  EXPECT_EQ(found->instances[0].engine_id, "disk");
  EXPECT_FALSE(found->instances[0].attached);
  ASSERT_EQ(found->instances[0].tiers.size(), 1u);
  EXPECT_EQ(found->instances[0].tiers[0].tier, Tier::kDisk);
  EXPECT_EQ(found->instances[0].tiers[0].contiguous, TokenCount(16));
}

// ---- during recovery, which takes tens of milliseconds per block and reports its blocks shard by
// shard

// The engine publishes blocks that the disk has and recovery has not found yet, and new blocks, and
// reads all of them.  What it published is a hit, what has not been found yet is a miss, and in the
// end no block is lost.
TEST_F(DiskTest, EnginesWorkWhileItRecovers) {
  constexpr uint32_t kDurable = 150, kAll = 200;  // all of them fit the pool
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kDurable));
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "catalog.scan=sleep:40ms"}));
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
  // Some are published after each shard, so that blocks are published before, while and after
  // recovery finds them.
  uint32_t published = 0;
  for (double found = -1; Recovering() && published < kAll; found = OnDisk()) {
    for (uint32_t i = 0; i < kAll / 10 && published < kAll; ++i, ++published) {
      const uint32_t number = published * 37 % kAll;  // visits all numbers, in another order
      EXPECT_TRUE(IsKept(Put(number)));
      EXPECT_EQ(Get(number), BlockStatus::kOk) << "a block that was just published";
    }
    EXPECT_TRUE(Eventually([&] { return OnDisk() > found || Recovered(); }));
  }
  EXPECT_GT(published, kAll / 4) << "recovery ended before enough blocks were published";
  EXPECT_TRUE(Eventually([&] { return Recovered(); }));
  over = true;
  reader.join();
  EXPECT_GT(hits, 0u);
  EXPECT_GT(misses, 0u);
  for (uint32_t i = published; i < kAll; ++i) EXPECT_TRUE(IsKept(Put(i * 37 % kAll)));
  EXPECT_EQ(CountHits(0, kAll), kAll);
  EXPECT_TRUE(Eventually([&] { return OnDisk() == kAll; })) << OnDisk();
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:1us"));
  EXPECT_EQ(OnDisk(), kAll) << "not every block is on disk once";
  EXPECT_EQ(CountHits(0, kAll), kAll);
  ExpectNothingHeld();
}

// Blocks that recovery finds while they are also in the pool are evicted from the pool before
// anything can be written to disk.  The durable copy is then the only one and must not be lost.
TEST_F(DiskTest, EnginesPublishMoreThanThePoolWhileItRecovers) {
  constexpr uint32_t kDurable = 150, kAll = 750;
  constexpr uint32_t kMoreThanThePool = 320;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kDurable));
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "catalog.scan=sleep:100ms"}));
  for (uint32_t number = 0; number < kDurable; ++number) EXPECT_TRUE(IsKept(Put(number)));
  ASSERT_TRUE(Eventually([&] { return OnDisk() >= kDurable / 3; }));
  bool meanwhile = false;
  for (uint32_t number = kDurable; number < kAll; ++number) {
    EXPECT_TRUE(IsKept(Put(number)));
    EXPECT_EQ(Get(number), BlockStatus::kOk) << "a block that was just published";
    const BlockStatus other = Get(number * 37 % kAll);
    EXPECT_TRUE(other == BlockStatus::kOk || other == BlockStatus::kMissing) << ToString(other);
    if (number == kMoreThanThePool) meanwhile = Recovering();
  }
  EXPECT_TRUE(meanwhile) << "recovery ended before the pool was full";
  EXPECT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(CountHits(0, kDurable), kDurable) << "durable blocks were lost";
  ExpectNothingHeld();
}

// ---- while blocks are read from disk, several at a time, by four threads

// An engine that asks for the same blocks afterwards gets them.
TEST_F(DiskTest, AnEngineIsKilledWhileItsBlocksAreRead) {
  constexpr uint32_t kBlocks = 32;  // as many as a ChildEngine puts and wants
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
    EXPECT_LT(Promoted(), kBlocks) << "all blocks were read although no engine wants them any more";
    ChildEngine reader(*daemon_, mode, "want", 0);
    ASSERT_EQ(reader.Hear(), "ready");
    reader.Signal(SIGCONT);
    EXPECT_EQ(reader.Wait(), 0);
    EXPECT_EQ(Promoted(), kBlocks);
    ExpectNothingHeld();
  }
}

// Two engines wait for the same blocks, and one of them is killed.  The other gets all blocks.
TEST_F(DiskTest, OneOfTwoEnginesIsKilledWhileTheirBlocksAreRead) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ChildEngine writer(*daemon_, "mapped", "put", 0);
  ASSERT_EQ(writer.Wait(), 0);
  ASSERT_TRUE(Eventually([&] { return OnDisk() == 32; }));
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:500ms"));
  ChildEngine victim(*daemon_, "mapped", "want", 0);
  ChildEngine other(*daemon_, "mapped", "want", 0);
  for (ChildEngine* engine : {&victim, &other}) ASSERT_EQ(engine->Hear(), "ready");
  for (const ChildEngine* engine : {&victim, &other}) engine->Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return Promoting() > 32; })) << "only one engine waits";
  (void)victim.KillAndProve();
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_EQ(Promoted(), 32) << "not every block was read once";
  ExpectNothingHeld();
}

// The deadline of Acquire passes while the library waits for the reads, and the caller then
// releases the lease.
TEST_F(DiskTest, ALeaseIsReleasedBeforeItsBlocksAreRead) {
  constexpr uint32_t kBlocks = 32;
  std::vector<Digest> digests;
  ASSERT_NO_FATAL_FAILURE(StartWithOnDisk(kBlocks, "data.read=sleep:150ms", &digests));
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

// A session acquires blocks and gives them up at once, by a release or by a bye.
TEST_F(DiskTest, ASessionGivesUpBlocksThatAreBeingRead) {
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
    // The daemon sends the grant before its reads begin.
    ASSERT_TRUE(Eventually([&] { return Promoting() > 0; }));
    if (bye) {
      EXPECT_TRUE(session.Bye().ok());
    } else {
      up.Clear();
      up.mutable_release()->add_lease_ids(granted->grants(0).lease_id());
      ASSERT_TRUE(session.Send(up));
    }
    ExpectNothingHeld();
    EXPECT_LT(Promoted(), kBlocks)
        << "all blocks were read although no session wants them any more";
    EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
    if (!bye) {
      EXPECT_TRUE(session.Bye().ok());
    }
    ExpectNothingHeld();
  }
}

// ---- a bad disk

// A block that cannot be read is a miss, and is a hit again once the disk works again.
TEST_F(DiskTest, AFailedReadIsAMissAndNeverAnError) {
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
    EXPECT_EQ(CountHits(0, kBlocks), kBlocks)
        << "blocks were dropped because the disk could not be read";
  }
}

// One read of three fails.  The daemon reads again, and gives up a block that fails four times
// while others can be read.
TEST_F(DiskTest, ReadsThatFailSometimesAreRepeated) {
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

TEST_F(DiskTest, AFailedWriteCostsOnlyTheDiskCopy) {
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

// Every operation of the disk takes seconds, but no call on the pool may wait for it.
TEST_F(DiskTest, ASlowDiskDoesNotSlowThePool) {
  constexpr uint32_t kBlocks = 150;
  ASSERT_NO_FATAL_FAILURE(Start(
      {"--fault-points", "data.write=sleep:10s,data.read=sleep:10s,catalog.commit=sleep:10s"}));
  std::chrono::steady_clock::duration longest{};
  const auto timed = [&longest](const std::function<BlockStatus()>& call) {
    const auto start = std::chrono::steady_clock::now();
    const BlockStatus status = call();
    longest = std::max(longest, std::chrono::steady_clock::now() - start);
    return status;
  };
  for (uint32_t number = 0; number < kBlocks; ++number)
    ASSERT_EQ(timed([&] { return Put(number); }), BlockStatus::kOk);
  for (uint32_t number = 0; number < kBlocks; ++number)
    ASSERT_EQ(timed([&] { return Get(number); }), BlockStatus::kOk);
  EXPECT_LT(longest, std::chrono::seconds(4)) << "a call waited for the disk";
}

TEST_F(DiskTest, TheDaemonReportsItsDiskAndMissingSpace) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_->output(), HasSubstr("400MiB in " + folder_->File("disk")));
  EXPECT_THAT(daemon_->errors(),
              HasSubstr(" disk=" + folder_->File("disk") + " disk_limit=419430400"));
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
