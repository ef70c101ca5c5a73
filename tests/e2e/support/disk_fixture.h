// A daemon with a disk of 400 MiB behind a pool of 32, a client at it, and blocks to put into it.
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

// 120 KB: the pool of 32 MiB holds about 270 of them.
inline constexpr size_t kLayerBytes = 60'000;

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
  void Attach(WriteMode mode, bool accept_encoded = false) {
    auto session = client_->Attach(
        {.engine_id = "disk", .write_mode = mode, .accept_encoded = accept_encoded});
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
    for (uint32_t i = 0; i < layers.size(); ++i) maker_.Fill(block.digest, i, layers[i]);
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
      EXPECT_TRUE(maker_.IsRight(block.digest, i + first_layer, layers[i]))
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

  // It says so; a daemon that does not answer says neither.
  [[nodiscard]] bool Recovering() const { return daemon_->Metric("larder_disk_recovering") == 1; }
  [[nodiscard]] bool Recovered() const { return daemon_->Metric("larder_disk_recovering") == 0; }
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
  // Times that blocks were tried and are not on disk.
  [[nodiscard]] double NotWritten() const {
    return daemon_->Metric("larder_disk_left_alone_total{for=\"spill\"}") +
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
  // Starts a daemon that has blocks 0 .. count-1 on disk alone, and fails there as said; their
  // names.
  void StartWithOnDisk(uint32_t count, const std::string& faults, std::vector<Digest>* digests) {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_NO_FATAL_FAILURE(PutDurable(count));
    for (uint32_t number = 0; number < count; ++number)
      digests->push_back(maker_.Block(number).digest);
    ASSERT_NO_FATAL_FAILURE(StartAgain(faults));
  }
  // Blocks 0 .. count-1, while writes take seconds: all wait for one to end.  To be few enough for
  // a slow machine.
  void PutWaiting(uint32_t count) {
    for (uint32_t number = 0; number < count; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
    ASSERT_EQ(daemon_->Metric("larder_disk_waiting{for=\"spill\"}"), count);
  }
  // What is in the pool comes from the disk alone, which takes its time.
  void StartAgain(const std::string& faults) {
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", faults}));
    ASSERT_TRUE(Eventually([&] { return Recovered(); }));
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

  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  BlockMaker maker_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
};

}  // namespace larder::e2e
