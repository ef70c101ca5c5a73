// Calls Compress on the real daemon through the generated stubs.
#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlocks = 100;
constexpr double kBlockRoom = 30 * 4096;

class CompressTest : public VerbTest {
 protected:
  CompressTest() { maker_.floats = true; }
  static v1::CompressRequest All(v1::Codec codec, std::vector<v1::Tier> tiers = {}) {
    v1::CompressRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.set_codec(codec);
    for (const v1::Tier tier : tiers) request.add_tiers(tier);
    return request;
  }
  // Reads until the end, or cancels the call once it has read `answers` messages.
  grpc::Status TryCompress(const v1::CompressRequest& request,
                           std::vector<v1::CompressProgress>* progress, size_t answers = SIZE_MAX) {
    return Ask([&](auto& stub, auto& context) {
      const auto reader = stub.Compress(&context, request);
      v1::CompressProgress one;
      while (progress->size() < answers && reader->Read(&one)) progress->push_back(one);
      if (progress->size() == answers) context.TryCancel();
      return reader->Finish();
    });
  }
  v1::CompressProgress Compress(const v1::CompressRequest& request) {
    std::vector<v1::CompressProgress> progress;
    const grpc::Status status = TryCompress(request, &progress);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (progress.empty()) return {};
    EXPECT_EQ(progress.back().blocks_done(), progress.back().blocks());
    return progress.back();
  }
  void MoveAll(v1::Tier from, v1::Tier to) {
    v1::MoveRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.set_from(from);
    request.set_to(to);
    v1::MoveProgress last;
    const grpc::Status status = Ask([&](auto& stub, auto& context) {
      const auto reader = stub.Move(&context, request);
      while (reader->Read(&last)) continue;
      return reader->Finish();
    });
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(last.moved(), last.blocks());
  }
  [[nodiscard]] double PoolStored() const {
    return daemon_->Metric("larder_pool_bytes{part=\"stored\"}");
  }
  [[nodiscard]] double DiskUsed() const {
    return daemon_->Metric("larder_disk_bytes{part=\"used\"}");
  }
  [[nodiscard]] double DecodedForLeases() const {
    return daemon_->Metric("larder_decoded_for_leases_total");
  }
};

TEST_F(CompressTest, BlocksEncodedOnDiskSurviveKill9AndAreDecoded) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  MoveAll(v1::TIER_HOST, v1::TIER_DISK);
  const double used = DiskUsed();
  const v1::CompressProgress encoded = Compress(All(v1::CODEC_LOSSLESS, {v1::TIER_DISK}));
  EXPECT_EQ(encoded.changed(), kBlocks) << encoded.ShortDebugString();
  EXPECT_LT(encoded.bytes_after() * 10, encoded.bytes_before() * 8);
  EXPECT_EQ(OnDisk(), kBlocks);
  EXPECT_EQ(DiskUsed(), used - static_cast<double>(encoded.bytes_before() - encoded.bytes_after()))
      << "the used bytes do not match the reported ones";
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  EXPECT_EQ(Compress(All(v1::CODEC_LOSSLESS, {v1::TIER_DISK})).unchanged(), kBlocks);
  EXPECT_EQ(Compress(All(v1::CODEC_IDENTITY)).changed(), kBlocks);
  EXPECT_EQ(DiskUsed(), used);
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  ExpectNothingHeld();
}

TEST_F(CompressTest, BlocksEncodedInHostAreReadByEverySession) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (uint32_t number = 0; number < kBlocks; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
  const double stored = PoolStored();
  const v1::CompressProgress encoded = Compress(All(v1::CODEC_LOSSLESS, {v1::TIER_HOST}));
  EXPECT_EQ(encoded.changed(), kBlocks) << encoded.ShortDebugString();
  EXPECT_EQ(PoolStored(),
            stored - static_cast<double>(encoded.bytes_before() - encoded.bytes_after()));
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks) << "the daemon decodes";
  EXPECT_EQ(DecodedForLeases(), kBlocks);
  EXPECT_EQ(Get(7, 1), BlockStatus::kOk) << "one layer, decoded by the daemon";
  ExpectNothingHeld();
  Attach(WriteMode::kMapped, /*accept_encoded=*/true);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks) << "the client decodes";
  EXPECT_EQ(Get(7, 1), BlockStatus::kOk) << "one layer, of a session that accepts encoded blocks";
  EXPECT_EQ(DecodedForLeases(), kBlocks + 1);
  {
    const Digest digest = maker_.Block(3).digest;
    const auto lease = session_->Acquire(variant_, {&digest, 1});
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_EQ(lease->status(0), BlockStatus::kOk);
    EXPECT_TRUE(maker_.IsRight(digest, 0, lease->View(0).first(kLayerBytes)))
        << "a view is not decoded";
  }
  Attach(WriteMode::kStream);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks) << "read by byte stream";
  EXPECT_LT(PoolStored(), stored) << "the reads left blocks decoded in the pool";
  EXPECT_EQ(Compress(All(v1::CODEC_IDENTITY, {v1::TIER_HOST})).changed(), kBlocks);
  EXPECT_EQ(PoolStored(), stored);
  session_.reset();
  ExpectNothingHeld();
}

// A session that accepts no encoded blocks reads more blocks than the pool holds decoded.  Each
// lease needs extents for the decoded blocks, beside the encoded blocks that it holds meanwhile.
TEST_F(CompressTest, ThePoolsLimitHoldsWhileLeasesAreDecoded) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const uint32_t many = kPoolBlocks + 40;
  for (uint32_t number = 0; number < kPoolBlocks; ++number)
    ASSERT_EQ(Put(number), BlockStatus::kOk);
  (void)Compress(All(v1::CODEC_LOSSLESS, {v1::TIER_HOST}));
  for (uint32_t number = kPoolBlocks; number < many; ++number)
    ASSERT_EQ(Put(number), BlockStatus::kOk);
  (void)Compress(All(v1::CODEC_LOSSLESS, {v1::TIER_HOST}));
  const auto acquire = [&](uint32_t first, size_t* ok, size_t* full) {
    std::vector<Digest> digests;
    for (uint32_t number = first; number < many; ++number)
      digests.push_back(maker_.Block(number).digest);
    const auto lease = session_->Acquire(variant_, digests);
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (size_t i = 0; i < digests.size(); ++i) {
      *full += lease->status(i) == BlockStatus::kFull ? 1 : 0;
      if (lease->status(i) != BlockStatus::kOk) continue;
      ++*ok;
      EXPECT_TRUE(maker_.IsRight(digests[i], 1, lease->View(i).last(kLayerBytes))) << i;
    }
    EXPECT_LE(static_cast<double>(*ok) * kBlockRoom, 8 << 20) << "more than a quarter of the pool";
    const v1::TenantStats t = daemon_->Tenant();
    EXPECT_EQ(t.pool_stored() + t.pool_free() + t.pool_reserved(), t.pool_limit());
  };
  // The newest encoded blocks take two thirds of what a session may lease, so some are decoded.
  size_t ok = 0, full = 0;
  ASSERT_NO_FATAL_FAILURE(acquire(many - 60, &ok, &full));
  EXPECT_GT(ok, 10u);
  EXPECT_GT(DecodedForLeases(), 10);
  EXPECT_GT(full, 10u);
  // All encoded blocks together take everything that a session may lease.
  ok = full = 0;
  ASSERT_NO_FATAL_FAILURE(acquire(0, &ok, &full));
  EXPECT_GT(full, many / 2);
}

TEST_F(CompressTest, EncodedBlocksAreMovedPinnedAndCleared) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  (void)Compress(All(v1::CODEC_LOSSLESS));
  MoveAll(v1::TIER_HOST, v1::TIER_DISK);
  MoveAll(v1::TIER_DISK, v1::TIER_HOST);
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), kBlocks);
  (void)Compress(All(v1::CODEC_LOSSLESS));
  MoveAll(v1::TIER_HOST, v1::TIER_DISK);
  EXPECT_EQ(Compress(All(v1::CODEC_LOSSLESS)).unchanged(), kBlocks)
      << "the blocks were moved to disk decoded";
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  v1::PinRequest pin;
  pin.set_owner("router");
  pin.set_tier(v1::TIER_HOST);
  Name(0, 10, &pin);
  v1::PinReply pinned;
  ASSERT_TRUE(
      Ask([&](auto& stub, auto& context) { return stub.Pin(&context, pin, &pinned); }).ok());
  (void)Compress(All(v1::CODEC_LOSSLESS));
  ASSERT_NO_FATAL_FAILURE(Press(3));
  EXPECT_EQ(CountIn(Tier::kHost, 0, 10), 10u) << "pinned blocks were evicted";
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  v1::ClearRequest clear;
  clear.set_scope(v1::SELECTION_SCOPE_ALL);
  clear.set_pinned(true);
  v1::ClearReply cleared;
  ASSERT_TRUE(
      Ask([&](auto& stub, auto& context) { return stub.Clear(&context, clear, &cleared); }).ok());
  EXPECT_EQ(CountHits(0, kBlocks), 0u);
  EXPECT_TRUE(Eventually([&] { return OnDisk() == 0; }));
  ExpectNothingHeld();
}

// Blocks that were encoded stay encoded, whether the caller or the daemon's death ends the call.
TEST_F(CompressTest, ARepeatedCallContinuesAnInterruptedOne) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:100ms"));
  std::vector<v1::CompressProgress> progress;
  const v1::CompressRequest request = All(v1::CODEC_LOSSLESS, {v1::TIER_DISK});
  EXPECT_EQ(TryCompress(request, &progress, 1).error_code(), grpc::StatusCode::CANCELLED);
  ExpectNothingHeld();
  // The cancelled call may have finished what it had under way.  The counters of the next daemon
  // begin at zero.
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:100ms"));
  std::thread compressing([&] {
    progress.clear();
    EXPECT_EQ(TryCompress(request, &progress).error_code(), grpc::StatusCode::UNAVAILABLE);
  });
  EXPECT_TRUE(Eventually(
      [&] { return daemon_->Metric("larder_compressed_blocks_total{to=\"disk_lossless\"}") > 0; }));
  daemon_->Kill9();
  compressing.join();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(OnDisk(), kBlocks);
  const v1::CompressProgress rest = Compress(request);
  EXPECT_GT(rest.unchanged(), 0u);
  EXPECT_EQ(rest.changed() + rest.unchanged(), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  ExpectNothingHeld();
}

// The daemon crashes at each step of a put to disk.
TEST_F(CompressTest, ACrashLeavesTheOldOrTheNewRecord) {
  constexpr uint32_t kFew = 20;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kFew));
  for (const char* step :
       {"put.allocated", "put.written", "put.synced", "put.committed", "erase.written"}) {
    for (const v1::Codec codec : {v1::CODEC_LOSSLESS, v1::CODEC_IDENTITY}) {
      SCOPED_TRACE(absl::StrCat(step, " to ", codec));
      ASSERT_NO_FATAL_FAILURE(StartAgain(absl::StrCat(step, "=crash")));
      std::vector<v1::CompressProgress> progress;
      EXPECT_EQ(TryCompress(All(codec, {v1::TIER_DISK}), &progress).error_code(),
                grpc::StatusCode::UNAVAILABLE);
      daemon_->Kill9();
      ASSERT_NO_FATAL_FAILURE(Start());
      ASSERT_TRUE(Eventually([&] { return Recovered(); }));
      EXPECT_EQ(OnDisk(), kFew);
      const v1::CompressProgress rest = Compress(All(codec, {v1::TIER_DISK}));
      EXPECT_EQ(rest.changed() + rest.unchanged(), kFew) << rest.ShortDebugString();
      EXPECT_EQ(CountHits(0, kFew), kFew);
    }
  }
}

// A damaged record never gives wrong bytes: it is a miss, and it is counted.
TEST_F(CompressTest, ADamagedEncodedRecordIsAMiss) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  MoveAll(v1::TIER_HOST, v1::TIER_DISK);
  (void)Compress(All(v1::CODEC_LOSSLESS));
  daemon_->Kill9();
  size_t damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_->File("disk"))) {
    if (entry.path().extension() != ".kv") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 0; at + 4096 < entry.file_size() && damaged < 10; at += 4096) {
      char magic[8] = {};
      file.seekg(static_cast<std::streamoff>(at));
      file.read(magic, sizeof magic);
      if (std::string_view(magic, 4) != "LRDR" || magic[4] != 3) continue;
      file.seekp(static_cast<std::streamoff>(at + 4096 + 700 + 97 * damaged));
      file.put(static_cast<char>(0x5a));
      ++damaged;
    }
  }
  ASSERT_EQ(damaged, 10u);
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  const size_t hits = CountHits(0, kBlocks);
  // A damaged page may belong to a former record that is not used any more, and a written byte may
  // equal the one that was there.
  EXPECT_GE(hits, kBlocks - damaged);
  EXPECT_EQ(daemon_->Metric("larder_disk_failures_total{kind=\"damaged\"}"),
            static_cast<double>(kBlocks - hits));
  EXPECT_LT(hits, kBlocks);
}

TEST_F(CompressTest, RefusesInvalidRequests) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  const auto refused = [&](const char* what, grpc::StatusCode code, auto change) {
    v1::CompressRequest request = All(v1::CODEC_LOSSLESS);
    change(&request);
    std::vector<v1::CompressProgress> progress;
    const grpc::Status status = TryCompress(request, &progress);
    EXPECT_EQ(status.error_code(), code) << what << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(what));
  };
  using Request = v1::CompressRequest;
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  constexpr auto kUnimplemented = grpc::StatusCode::UNIMPLEMENTED;
  refused("scope", kInvalid, [](Request* r) { r->clear_scope(); });
  refused("codec", kInvalid, [](Request* r) { r->clear_codec(); });
  refused("codec", kInvalid, [](Request* r) { r->set_codec(static_cast<v1::Codec>(77)); });
  refused("codec", kUnimplemented, [](Request* r) { r->set_codec(v1::CODEC_QUANTIZED); });
  refused("codec", kUnimplemented, [](Request* r) { r->set_codec(v1::CODEC_JOINT); });
  refused("tiers", kUnimplemented, [](Request* r) { r->add_tiers(v1::TIER_REMOTE); });
  refused("tiers", kInvalid, [](Request* r) { r->add_tiers(v1::TIER_UNSPECIFIED); });
  refused("tenant", grpc::StatusCode::PERMISSION_DENIED, [](Request* r) { r->set_tenant("x"); });
}

TEST_F(CompressTest, ADryRunSaysWhatItWouldSave) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(10));
  v1::CompressRequest request = All(v1::CODEC_LOSSLESS);
  request.set_scope(v1::SELECTION_SCOPE_BLOCKS);
  Name(0, 12, &request);
  request.set_dry_run(true);
  const double stored = PoolStored(), used = DiskUsed();
  const v1::CompressProgress would = Compress(request);
  EXPECT_EQ(would.changed(), 20u);
  EXPECT_EQ(PoolStored(), stored);
  EXPECT_EQ(DiskUsed(), used);
  ASSERT_EQ(would.answers().status_size(), 12);
  EXPECT_EQ(would.answers().status(9), v1::BLOCK_STATUS_OK);
  EXPECT_EQ(would.answers().status(11), v1::BLOCK_STATUS_MISSING);
  request.set_dry_run(false);
  EXPECT_EQ(Compress(request).bytes_after(), would.bytes_after());
}

// A call for HOST and DEVICE counts the blocks of both tiers from its first report on, and gives
// the answers of both together, once.
TEST_F(CompressTest, HostAndDeviceShareOneCountAndOneAnswer) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(2));
  auto gpu =
      client_->Attach({.engine_id = "gpu", .on_directive = [](const wire::Directive& directive) {
                         return std::vector(directive.digests.size(), BlockStatus::kFull);
                       }});
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const auto variants = (*gpu)->Register({&maker_.content, 1}, {&maker_.variant, 1});
  ASSERT_TRUE(variants.ok()) << variants.status();
  const Digest digest = maker_.Block(1).digest;
  ASSERT_TRUE((*gpu)->ReportDevice(variants->front(), {.stored = {&digest, 1}}).ok());
  ASSERT_TRUE(Eventually([&] { return daemon_->Metric("larder_device_blocks") == 1; }));
  v1::CompressRequest request;
  request.set_scope(v1::SELECTION_SCOPE_BLOCKS);
  request.set_codec(v1::CODEC_LOSSLESS);
  request.add_tiers(v1::TIER_HOST);
  request.add_tiers(v1::TIER_DEVICE);
  Name(0, 2, &request);
  std::vector<v1::CompressProgress> progress;
  const grpc::Status status = TryCompress(request, &progress);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_FALSE(progress.empty());
  for (size_t i = 0; i + 1 < progress.size(); ++i) {
    EXPECT_EQ(progress[i].answers().status_size(), 0) << "answers came before the last report";
    EXPECT_GE(progress[i].blocks(), 1u) << "the block in DEVICE is not counted from the beginning";
  }
  EXPECT_EQ(progress.back().blocks(), 3u);
  EXPECT_EQ(progress.back().blocks_done(), 3u);
  EXPECT_EQ(progress.back().no_room(), 1u);
  EXPECT_THAT(StatusesOf(progress.back().answers()),
              ::testing::ElementsAre(v1::BLOCK_STATUS_OK, v1::BLOCK_STATUS_FULL));
}

}  // namespace
}  // namespace larder::e2e
