// Compress in HOST and on DISK: which blocks become smaller, which stay as they are, and that the
// bytes come back.
#include "server/verbs/compress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/contract/codec_shapes.h"
#include "tests/server/verbs/scope_fixture.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using testing::DiskProcess;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBoth;
using testing::kDiskBit;
using testing::kHostBit;
using wire::SelectionScope;

constexpr ByteCount kBlockRoom(RoundUp(DiskProcess::kBlockBytes, kPageBytes));

class CompressVerbTest : public testing::ScopeTest {
 protected:
  absl::Status TryCompress(
      const CompressVerb::What& what, wire::CompressProgress* last,
      const CompressVerb::Report& report = [](const auto&) { return true; }) {
    CompressVerb compressor(2, store(), {&process_->tier, &*process_->work}, process_->counters);
    return compressor.Compress(what, [&](const wire::CompressProgress& progress) {
      EXPECT_GE(progress.blocks_done, last->blocks_done);
      EXPECT_LE(progress.blocks_done, progress.blocks);
      *last = progress;
      return report(progress);
    });
  }
  wire::CompressProgress Compress(TierSet tiers, Codec codec,
                                  SelectionScope scope = SelectionScope::kAll,
                                  const std::string& model = "", uint32_t blocks = 0) {
    wire::CompressProgress last;
    const absl::Status status =
        TryCompress({.scope = Scope(scope, model, blocks), .tiers = tiers, .codec = codec}, &last);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(last.blocks_done, last.blocks);
    EXPECT_EQ(last.changed + last.unchanged + last.missing + last.kept_in_use + last.no_room +
                  last.unsupported,
              last.blocks);
    return last;
  }
  // Puts blocks and removes them from HOST, so that they are on disk alone.
  void PutOnDisk(const std::string& model, uint32_t blocks) {
    ASSERT_NO_FATAL_FAILURE(PutChain(model, blocks));
    LeaveHost(model, blocks);
    ASSERT_THAT(TiersOf(model, blocks), Each(kDiskBit));
  }
  void LeaveHost(const std::string& model, uint32_t blocks) {
    for (uint32_t number = 1; number <= blocks; ++number)
      (void)store().Clear(process_->f.variant(), Name(model, number), kHostBit,
                          ClearHow::kKeepLastCopy);
  }
  // Returns true if the copy of the block in HOST is encoded.
  bool Encoded(const std::string& model, uint32_t number) {
    const BlockIndex::Held held = store().HoldUntouched(process_->f.variant(), Name(model, number));
    const bool encoded = held.metadata != nullptr && held.metadata->encoded();
    if (held.ref.value != 0) store().Unhold({&held.ref, 1});
    return encoded;
  }
  // Brings blocks to HOST.  Returns how many have the right bytes there.
  uint32_t CountRight(const std::string& model, uint32_t blocks) {
    std::vector<Digest> names;
    for (uint32_t number = 1; number <= blocks; ++number) names.push_back(Name(model, number));
    std::atomic<uint32_t> answers{0};
    EXPECT_TRUE(process_->work->Promote(process_->f.variant(), names,
                                        [&](size_t, BlockStatus) { ++answers; }));
    EXPECT_TRUE(Eventually([&] { return answers == blocks; }));
    const auto got = store().Acquire(process_->f.variant(), names, store().pool().total_bytes());
    return static_cast<uint32_t>(std::ranges::count_if(
        got.blocks, [&](const BlockIndex::Held& held) { return IsRight(held); }));
  }
  bool IsRight(const BlockIndex::Held& held) {
    if (held.ref.value == 0) return false;
    std::vector<std::byte> raw(DiskProcess::kBlockBytes);
    SegmentTable table = held.metadata->Table();
    if (table.encoded()) {
      EXPECT_TRUE(PayloadCodec().Decode(store().Bytes(held.extent), table, raw, &table).ok());
    } else {
      std::ranges::copy(store().Bytes(held.extent).first(raw.size()), raw.begin());
    }
    EXPECT_EQ(table.segments[0].xxh3, HashBytes(raw));
    return std::ranges::all_of(raw, [](std::byte b) { return b == std::byte{1}; });
  }
  // Puts a block that does not shrink.
  Digest PutNoise() {
    const ByteCount size(DiskProcess::kBlockBytes);
    auto room = store().Reserve({&size, 1}, store().pool().total_bytes());
    const Bytes noise = Noise(size.value());
    std::ranges::copy(noise, store().Bytes(room.reservation.extent(0)).begin());
    SegmentTable table = UniformTable(1, DiskProcess::kBlockBytes);
    HashPayload(noise, &table);
    const std::vector<uint32_t> tokens = testing::TestTokens(77);
    const Digest name = Chain(Digest{}, tokens).back();
    EXPECT_EQ(store().Publish(room.reservation, 0,
                              {process_->f.variant(), name, Digest{}, tokens, &table, {}}),
              BlockStatus::kOk);
    return name;
  }
};

TEST_F(CompressVerbTest, EncodesOnDiskAndBack) {
  Start();
  constexpr uint32_t kBlocks = 70;  // more than one window
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", kBlocks));
  const auto before = medium_.records;
  const ByteCount used = process_->disk.stats().used;
  const wire::CompressProgress encoded = Compress(kDiskBit, Codec::kLossless);
  EXPECT_EQ(encoded.changed, kBlocks);
  EXPECT_EQ(encoded.bytes_before, ByteCount(kBlocks * kBlockRoom.value()));
  EXPECT_EQ(encoded.bytes_after, process_->disk.stats().used);
  EXPECT_LT(encoded.bytes_after.value() * 10, used.value());
  EXPECT_THAT(TiersOf("a", kBlocks), Each(kDiskBit));
  EXPECT_EQ(medium_.records.size(), kBlocks) << "the space of the former records must be free";
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).unchanged, kBlocks)
      << "a second call changes nothing";
  EXPECT_EQ(CountRight("a", kBlocks), kBlocks);
  EXPECT_FALSE(Encoded("a", 1)) << "the copy in HOST is decoded";
  EXPECT_EQ(Compress(kDiskBit, Codec::kIdentity).changed, kBlocks)
      << "records are decoded although HOST has the blocks";
  EXPECT_EQ(process_->disk.stats().used, used);
  auto back = medium_.records.begin();
  for (const auto& [location, record] : before) {
    const auto same = std::ranges::find_if(
        medium_.records, [&](const auto& each) { return each.second.key == record.key; });
    ASSERT_NE(same, medium_.records.end());
    EXPECT_EQ(same->second.header, record.header);
    EXPECT_EQ(same->second.payload, record.payload);
    EXPECT_EQ(same->second.tokens, record.tokens);
    ++back;
  }
  EXPECT_EQ(process_->counters.blocks_encoded_disk.value(), kBlocks);
  EXPECT_EQ(process_->counters.blocks_decoded_disk.value(), kBlocks);
  EXPECT_EQ(process_->counters.recoded_bytes_before_disk.value(),
            process_->counters.recoded_bytes_after_disk.value())
      << "decoding must undo the counts of encoding";
}

TEST_F(CompressVerbTest, ALaterProcessReadsEncodedRecords) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", 5));
  (void)Compress(kDiskBit, Codec::kLossless);
  Start();
  ASSERT_THAT(TiersOf("a", 5), Each(kDiskBit));
  const Digest name = Name("a", 1);
  BlockIndex::Presence there;
  store().index().Lookup(process_->f.variant(), {&name, 1}, {&there, 1});
  EXPECT_EQ(there.pages, kBlockRoom.value() / kPageBytes)
      << "the index must know the decoded size in HOST";
  EXPECT_EQ(CountRight("a", 5), 5u);
}

TEST_F(CompressVerbTest, EncodesInHostAndBack) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 6, /*spilled=*/false));
  const PinKey pinned = process_->Key(Name("a", 2));
  ASSERT_THAT(process_->Pin({pinned}, testing::kNow_ms + 1'000'000), ElementsAre(BlockStatus::kOk));
  const uint64_t events = store().index().events().newest();
  const wire::CompressProgress encoded = Compress(kHostBit, Codec::kLossless);
  EXPECT_EQ(encoded.changed, 6u);
  EXPECT_EQ(encoded.bytes_before, ByteCount(6 * kBlockRoom.value()));
  EXPECT_EQ(encoded.bytes_after, store().stats().pool_stored);
  EXPECT_EQ(store().index().TotalsOf(process_->f.variant()).bytes, encoded.bytes_after);
  EXPECT_LT(encoded.bytes_after.value() * 10, encoded.bytes_before.value());
  EXPECT_EQ(store().stats().pinned_host, ByteCount(encoded.bytes_after.value() / 6));
  EXPECT_EQ(store().index().events().newest(), events)
      << "no block entered or left a tier, so there is no event";
  EXPECT_TRUE(Encoded("a", 1));
  EXPECT_EQ(CountRight("a", 6), 6u);
  EXPECT_EQ(Compress(kHostBit, Codec::kLossless).unchanged, 6u);
  store().CheckInvariants();
  const wire::CompressProgress decoded = Compress(kHostBit, Codec::kIdentity);
  EXPECT_EQ(decoded.changed, 6u);
  EXPECT_EQ(store().stats().pool_stored, encoded.bytes_before);
  EXPECT_FALSE(Encoded("a", 1));
  EXPECT_EQ(CountRight("a", 6), 6u);
  EXPECT_EQ(store().stats().pinned_host, kBlockRoom);
}

// A block that is encoded in HOST is written to disk as it is.  It returns decoded, and the
// sessions that wait for it are charged for the decoded size.
TEST_F(CompressVerbTest, BlocksEncodedInHostGoToDiskAndBack) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 4, /*spilled=*/false));
  (void)Compress(kHostBit, Codec::kLossless);
  for (uint32_t number = 1; number <= 4; ++number)
    process_->work->spiller().Offer(SessionId{1}, process_->f.variant(), Name("a", number));
  ASSERT_TRUE(process_->work->spiller().WaitIdle(std::chrono::steady_clock::now() +
                                                 std::chrono::seconds(20)));
  EXPECT_LT(process_->disk.stats().used, kBlockRoom);
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).unchanged, 4u);
  LeaveHost("a", 4);
  ASSERT_THAT(TiersOf("a", 4), Each(kDiskBit));
  const Digest name = Name("a", 3);
  BlockIndex::Presence there;
  store().index().Lookup(process_->f.variant(), {&name, 1}, {&there, 1});
  EXPECT_EQ(there.pages, kBlockRoom.value() / kPageBytes);
  EXPECT_EQ(CountRight("a", 4), 4u);
  EXPECT_FALSE(Encoded("a", 3));
}

TEST_F(CompressVerbTest, EachTierHasItsOwnCodec) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  EXPECT_EQ(Compress(kBoth, Codec::kLossless, SelectionScope::kPrefix, "a", 2).changed, 5u - 1);
  EXPECT_EQ(Compress(kHostBit, Codec::kIdentity).changed, 2u);
  EXPECT_FALSE(Encoded("a", 1));
  EXPECT_EQ(Compress(kDiskBit, Codec::kIdentity).changed, 2u);
  EXPECT_EQ(CountRight("a", 3), 3u);
}

TEST_F(CompressVerbTest, BlocksThatDoNotShrinkStayAsTheyAre) {
  Start();
  const Digest noise = PutNoise();
  process_->work->spiller().Offer(SessionId{1}, process_->f.variant(), noise);
  ASSERT_TRUE(process_->work->spiller().WaitIdle(std::chrono::steady_clock::now() +
                                                 std::chrono::seconds(20)));
  const uint64_t puts = process_->disk.stats().puts;
  const wire::CompressProgress progress = Compress(kBoth, Codec::kLossless);
  EXPECT_EQ(progress.unchanged, 2u);
  EXPECT_EQ(progress.bytes_before, progress.bytes_after);
  EXPECT_EQ(process_->disk.stats().puts, puts);
}

TEST_F(CompressVerbTest, LeasedBlocksAndTheirLeasesStayAsTheyAre) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  const Digest leased = Name("a", 2);
  {
    const auto lease = store().Acquire(process_->f.variant(), {&leased, 1}, MiB(1));
    wire::CompressProgress last;
    const absl::Status status = TryCompress(
        {.scope = Scope(SelectionScope::kAll), .tiers = kBoth, .codec = Codec::kLossless}, &last);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(last.kept_in_use, 2u);
    EXPECT_EQ(last.changed, 4u);
    EXPECT_TRUE(IsRight(lease.blocks[0]));
  }
  const wire::CompressProgress again = Compress(kBoth, Codec::kLossless);
  EXPECT_EQ(again.changed, 2u);
  EXPECT_EQ(again.unchanged, 4u);
}

// Two calls about one block.  The other call has rewritten the record, so the block is not missing,
// and a further call succeeds.
TEST_F(CompressVerbTest, ARecordRewrittenByAnotherCallIsNotMissing) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", 1));
  const VariantIndex variant = process_->f.variant();
  Promoter& promoter = process_->work->promoter();
  const BlockIndex::Held other = store().HoldUntouched(variant, Name("a", 1));
  ASSERT_TRUE(promoter.Exclude(other.ref, other.disk_location));
  BlockRecoder recoder(store(), {&process_->tier, &*process_->work});
  PayloadCodec codec;
  BlockRecoder::Copy copy;
  copy.variant = variant;
  copy.digest = Name("a", 1);
  copy.tier = Tier::kDisk;
  recoder.Prepare(Codec::kLossless, codec, &copy);
  ASSERT_EQ(copy.outcome, BlockRecoder::Outcome::kReady);

  const DiskAddress old = {{store().index().VariantId(variant), copy.digest},
                           DiskLocation{other.disk_location}};
  std::optional<DiskTier::Description> known;
  ASSERT_TRUE(process_->tier.Describe({&old, 1}, {&known, 1}).ok());
  ASSERT_TRUE(known.has_value());
  const Bytes payload(DiskProcess::kBlockBytes, std::byte{1});
  const DiskTier::NewBlock again = {
      .header = &known->header, .tokens = known->tokens, .payload = payload};
  DiskTier::PutResult put;
  process_->tier.Put({&again, 1}, {&put, 1});
  ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
  process_->tier.SetOwner(put.location, other.ref.value);
  ASSERT_TRUE(promoter.Readmit(other.ref, static_cast<uint64_t>(put.location), codec));
  ASSERT_TRUE(process_->tier.Erase({&old, 1}).ok());
  store().Unhold({&other.ref, 1});

  recoder.Write({&copy, 1}, codec);
  EXPECT_EQ(copy.outcome, BlockRecoder::Outcome::kInUse);
  recoder.Release({&copy, 1});
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).changed, 1u);
  EXPECT_EQ(CountRight("a", 1), 1u);
}

TEST_F(CompressVerbTest, ARecordThatIsBeingRewrittenIsInUse) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", 1));
  Spiller& spiller = process_->work->spiller();
  const std::pair name(process_->f.variant(), Name("a", 1));
  ASSERT_TRUE(spiller.Claim(name.first, name.second));
  std::byte& first = medium_.records.begin()->second.payload[0];
  first ^= std::byte{1};  // as if description and place were of different records
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).kept_in_use, 1u);
  first ^= std::byte{1};
  spiller.Unclaim({&name, 1});
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).changed, 1u);
}

TEST_F(CompressVerbTest, AnswersForEachName) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 2));
  const Digest leased = Name("a", 2);
  const auto lease = store().Acquire(process_->f.variant(), {&leased, 1}, MiB(1));
  wire::CompressProgress last;
  ASSERT_TRUE(
      TryCompress({.scope = Scope(SelectionScope::kBlocks, "a", 3), .tiers = kBoth}, &last).ok());
  std::vector<BlockStatus> statuses;
  for (const wire::BlockAnswer& answer : last.answers) statuses.push_back(answer.status);
  EXPECT_THAT(statuses, ElementsAre(BlockStatus::kOk, BlockStatus::kKept, BlockStatus::kMissing));
}

TEST_F(CompressVerbTest, AnswersEachTimeThatABlockIsNamed) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 1));
  const BlockScope scope = NamedTwice("a");
  wire::CompressProgress last;
  ASSERT_TRUE(TryCompress({.scope = scope, .tiers = kBoth}, &last).ok());
  EXPECT_EQ(last.blocks, 2u) << "two copies of one block";
  ASSERT_EQ(last.answers.size(), 2u);
  EXPECT_EQ(last.answers[0].status, BlockStatus::kOk);
  EXPECT_EQ(last.answers[1].status, BlockStatus::kOk);
}

TEST_F(CompressVerbTest, ADryRunChangesNothing) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  wire::CompressProgress last;
  ASSERT_TRUE(
      TryCompress({.scope = Scope(SelectionScope::kAll), .tiers = kBoth, .dry_run = true}, &last)
          .ok());
  EXPECT_EQ(last.changed, 6u);
  EXPECT_LT(last.bytes_after.value() * 10, last.bytes_before.value());
  EXPECT_EQ(store().stats().pool_stored, ByteCount(3 * kBlockRoom.value()));
  EXPECT_EQ(process_->disk.stats().used, ByteCount(3 * kBlockRoom.value()));
  EXPECT_EQ(process_->counters.blocks_encoded_host.value(), 0u);
  const wire::CompressProgress done = Compress(kBoth, Codec::kLossless);
  EXPECT_EQ(done.bytes_after, last.bytes_after) << "the dry run must have predicted the result";
}

TEST_F(CompressVerbTest, StopsWhenTheCallerStops) {
  Start();
  constexpr uint32_t kBlocks = 70;
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", kBlocks));
  wire::CompressProgress last;
  const CompressVerb::What what{.scope = Scope(SelectionScope::kAll), .tiers = kDiskBit};
  EXPECT_TRUE(absl::IsCancelled(TryCompress(what, &last, [](const auto&) { return false; })));
  EXPECT_EQ(process_->counters.blocks_encoded_disk.value(), 0u);
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).changed, kBlocks)
      << "a further call encodes the rest";
}

TEST_F(CompressVerbTest, ADamagedRecordIsMissing) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", 3));
  medium_.records.begin()->second.payload[7] ^= std::byte{1};
  const wire::CompressProgress encoded = Compress(kDiskBit, Codec::kLossless);
  EXPECT_EQ(encoded.changed, 2u);
  EXPECT_EQ(encoded.missing, 1u);
  EXPECT_THAT(TiersOf("a", 3), ::testing::UnorderedElementsAre(0, kDiskBit, kDiskBit));
  process_->work->spiller().EraseFreedExtents();
  ASSERT_EQ(medium_.records.size(), 2u);
  medium_.records.begin()->second.payload[20] ^= std::byte{1};
  const wire::CompressProgress decoded = Compress(kDiskBit, Codec::kIdentity);
  EXPECT_EQ(decoded.changed, 1u);
  EXPECT_EQ(decoded.missing, 1u);
}

TEST_F(CompressVerbTest, ADamagedBlockOfHostIsMissing) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 2, /*spilled=*/false));
  const BlockIndex::Held held = store().HoldUntouched(process_->f.variant(), Name("a", 1));
  store().Bytes(held.extent)[5] ^= std::byte{1};
  store().Unhold({&held.ref, 1});
  const wire::CompressProgress progress = Compress(kHostBit, Codec::kLossless);
  EXPECT_EQ(progress.changed, 1u);
  EXPECT_EQ(progress.missing, 1u);
  EXPECT_EQ(store().stats().damaged, 1u);
  EXPECT_THAT(TiersOf("a", 2), ElementsAre(0, kHostBit));
}

// A record that a later version of the daemon encoded with a lossy codec is neither encoded again
// nor decoded by this version, which does not know the codec.
TEST_F(CompressVerbTest, LossyRecordsAreNeitherEncodedAgainNorDecoded) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", 2));
  (void)Compress(kDiskBit, Codec::kLossless);
  medium_.records.begin()->second.header.table.segments[0].codec = Codec::kQuantized;
  for (const Codec codec : {Codec::kLossless, Codec::kIdentity}) {
    const wire::CompressProgress progress = Compress(kDiskBit, codec);
    EXPECT_EQ(progress.unsupported, 1u);
    EXPECT_EQ(progress.changed + progress.unchanged, 1u);
  }
  wire::CompressProgress last;
  for (const Codec codec : {Codec::kQuantized, Codec::kJoint}) {
    const absl::Status status = TryCompress(
        {.scope = Scope(SelectionScope::kAll), .tiers = kDiskBit, .codec = codec}, &last);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  }
  EXPECT_THAT(TiersOf("a", 2), Each(kDiskBit));
}

// The space of the first large records could hold the rest, but no record can be rewritten without
// space for the first.
TEST_F(CompressVerbTest, WithoutDiskSpaceBlocksStayAsTheyAre) {
  constexpr uint32_t kBlocks = 10;
  disk_bytes_ = MiB(4);
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", kBlocks));
  const testing::DiskBlock other(1, 1, static_cast<uint32_t>(process_->disk.free_bytes().value()));
  ASSERT_EQ(testing::PutOne(process_->disk, other).status, DiskTier::PutStatus::kOk);
  ASSERT_EQ(process_->disk.free_bytes(), ByteCount(0));
  EXPECT_EQ(Compress(kDiskBit, Codec::kLossless).no_room, kBlocks);
  EXPECT_THAT(TiersOf("a", kBlocks), Each(kDiskBit));
  EXPECT_EQ(CountRight("a", kBlocks), kBlocks);
}

TEST_F(CompressVerbTest, ADiskThatFailsIsAnError) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutOnDisk("a", 3));
  medium_.records.begin()->second.unreadable = true;
  wire::CompressProgress last;
  const absl::Status status =
      TryCompress({.scope = Scope(SelectionScope::kAll), .tiers = kDiskBit}, &last);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(last.missing, 0u);
  EXPECT_THAT(TiersOf("a", 3), Each(kDiskBit));
}

TEST_F(CompressVerbTest, NeedsADiskForDisk) {
  testing::StoreFixture f;
  Counters counters;
  CompressVerb compressor(1, f.store(), {}, counters);
  const auto go_on = [](const auto&) { return true; };
  const absl::Status status = compressor.Compress({.scope = {}, .tiers = kDiskBit}, go_on);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--disk"));
  EXPECT_TRUE(compressor.Compress({.scope = {}, .tiers = kHostBit}, go_on).ok());
}

// Readers, spills, evictions and clears run at the same time, and see the right bytes or no block.
TEST_F(CompressVerbTest, OtherOperationsRunAtTheSameTime) {
  Start();
  constexpr uint32_t kBlocks = 40;
  ASSERT_NO_FATAL_FAILURE(PutChain("a", kBlocks));
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> wrong{0}, read{0};
  std::thread reader([&] {
    for (uint32_t i = 1; !stop; i = i % kBlocks + 1) {
      const Digest name = Name("a", i);
      std::atomic<bool> answered{false};
      std::atomic<BlockStatus> status{BlockStatus::kPending};
      if (process_->work->Promote(process_->f.variant(), {&name, 1}, [&](size_t, BlockStatus s) {
            status = s;
            answered = true;
          })) {
        EXPECT_TRUE(Eventually([&] { return answered.load(); }));
      }
      if (status != BlockStatus::kOk) ++wrong;
      const auto got = store().Acquire(process_->f.variant(), {&name, 1}, MiB(1));
      if (got.blocks[0].ref.value == 0) continue;
      if (!IsRight(got.blocks[0])) ++wrong;
      ++read;
    }
  });
  std::thread evictor([&] {
    for (uint32_t i = 1; !stop; i = i % kBlocks + 1)
      (void)store().Clear(process_->f.variant(), Name("a", i), kHostBit, ClearHow::kKeepLastCopy);
  });
  for (int round = 0; round < 20; ++round) {
    wire::CompressProgress last;
    EXPECT_TRUE(TryCompress({.scope = Scope(SelectionScope::kAll),
                             .tiers = kBoth,
                             .codec = round % 2 == 0 ? Codec::kLossless : Codec::kIdentity},
                            &last)
                    .ok());
  }
  stop = true;
  reader.join();
  evictor.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(read, 0u);
  EXPECT_EQ(CountRight("a", kBlocks), kBlocks);
}

}  // namespace
}  // namespace larder
