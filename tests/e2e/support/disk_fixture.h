// A daemon with a pool of 32 MiB and a disk of 400 MiB, a client with a session, and blocks for
// them.
#pragma once

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/local/sideband_client.h"
#include "proto/convert/convert.h"
#include "tests/e2e/support/child_engine.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/raw_session.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {

// A block has two layers, so 120 KB: the pool of 32 MiB holds about 270 blocks.
inline constexpr size_t kLayerBytes = 60'000;

class DiskTest : public ::testing::Test {
 protected:
  // Starts a daemon on the fixture's folder and disk, in place of the previous daemon, and attaches
  // a session.
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
  void Attach(WriteMode mode, bool accept_encoded = false) {
    auto session = client_->Attach(
        {.engine_id = "disk", .write_mode = mode, .accept_encoded = accept_encoded});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    const auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    variant_ = variants->front();
  }
  // Returns an error if the daemon has ended.
  absl::StatusOr<BlockStatus> TryPut(uint32_t number) {
    const FilledBlock block(maker_, maker_.Block(number), kLayerBytes);
    const PutBlock put = block.ToPut();
    const auto status = session_->Put(variant_, {&put, 1});
    if (!status.ok()) return status.status();
    return status->front();
  }
  BlockStatus Put(uint32_t number) {
    const absl::StatusOr<BlockStatus> status = TryPut(number);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(BlockStatus::kInvalid);
  }
  // Whether a block is stored after a Put that returned `status`.
  static bool IsKept(BlockStatus status) {
    return status == BlockStatus::kOk || status == BlockStatus::kDuplicate;
  }
  // Fails the test if a block that is kOk has wrong bytes.  Returns an error if the daemon has
  // ended.
  absl::StatusOr<BlockStatus> TryGet(uint32_t number, uint32_t first_layer = 0) {
    const LayerSpace space(maker_.Block(number).digest, maker_.variant.layers - first_layer,
                           kLayerBytes, first_layer);
    const GetBlock get = space.ToGet();
    const auto status = session_->Get(variant_, {&get, 1});
    if (!status.ok()) return status.status();
    for (uint32_t i = 0; i < space.layers().size() && status->front() == BlockStatus::kOk; ++i)
      EXPECT_TRUE(maker_.IsRight(get.digest, i + first_layer, space.layers()[i]))
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

  // What the daemon's metric says.  Both are false if the daemon does not answer.
  [[nodiscard]] bool Recovering() const { return daemon_->Metric("larder_disk_recovering") == 1; }
  [[nodiscard]] bool Recovered() const { return daemon_->Metric("larder_disk_recovering") == 0; }
  // The number of blocks that wait to be read from disk or are being read.
  [[nodiscard]] double Promoting() const {
    return daemon_->Metric("larder_disk_waiting{for=\"promote\"}");
  }
  [[nodiscard]] double Promoted() const {
    return daemon_->Metric("larder_disk_promote_total{result=\"promoted\"}");
  }
  // Failed reads of the data files and of the catalogs.
  [[nodiscard]] double ReadFailures() const {
    return daemon_->Metric("larder_disk_failures_total{kind=\"read\"}") +
           daemon_->Metric("larder_disk_failures_total{kind=\"catalog\"}");
  }
  // How often the spiller could not put blocks on disk: it paused after a failure of the disk, or
  // dropped a block for lack of space.
  [[nodiscard]] double NotWritten() const {
    return daemon_->Metric("larder_disk_left_alone_total{for=\"spill\"}") +
           daemon_->Metric("larder_disk_spill_total{result=\"dropped_room\"}");
  }
  [[nodiscard]] double Leases() const { return daemon_->Metric("larder_holds{kind=\"lease\"}"); }
  // Puts blocks 0 .. count-1 in batches, and waits until each batch is on disk.  A batch goes to
  // the shard with the most free space, so the batches spread over the shards.
  void PutDurable(uint32_t count) {
    constexpr uint32_t kBatch = 16;
    for (uint32_t number = 0; number < count; ++number) {
      ASSERT_EQ(Put(number), BlockStatus::kOk);
      if (number % kBatch != kBatch - 1 && number != count - 1) continue;
      ASSERT_TRUE(Eventually([&] { return OnDisk() == number + 1; })) << OnDisk();
    }
  }
  // Starts a daemon that has blocks 0 .. count-1 on disk and not in the pool, with the fault points
  // `faults`.  Appends the names of the blocks to `digests`.
  void StartWithOnDisk(uint32_t count, const std::string& faults, std::vector<Digest>* digests) {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_NO_FATAL_FAILURE(PutDurable(count));
    for (uint32_t number = 0; number < count; ++number)
      digests->push_back(maker_.Block(number).digest);
    ASSERT_NO_FATAL_FAILURE(StartAgain(faults));
  }
  // Puts blocks 0 .. count-1 while a fault point makes each write take seconds, and expects that
  // all of them wait to be spilled.  `count` must be small enough that a slow machine puts them all
  // before the first write ends.
  void PutWaiting(uint32_t count) {
    for (uint32_t number = 0; number < count; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
    ASSERT_EQ(daemon_->Metric("larder_disk_waiting{for=\"spill\"}"), count);
  }
  // Kills the daemon and starts another with an empty pool and the fault points `faults`, so that
  // every block has to be read from disk.
  void StartAgain(const std::string& faults) {
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", faults}));
    ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  }
  // Expects that neither an engine nor a thread of the daemon holds anything, and that the daemon
  // is alive.
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

  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  BlockMaker maker_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
};

}  // namespace larder::e2e
