// Instruction-list fuzz of blocks between HOST and disk: the steps of spilling, promoting,
// encoding, decoding, evicting and dropping run in any order over the reference tier.  After each
// step:
//
// - A lease reads all bytes of the first writer that put the block under its name, at the place
//   where they were when the lease began, whatever other writers put meanwhile.  After a crash, it
//   reads those of the last writer whose bytes were written to disk.
// - Each location that the index names is in the tier, under that name.
// - When everything is released and all disk space is freed, the tier has nothing else.
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "storage/codec/payload_codec.h"
#include "storage/disk/memory_disk_tier.h"
#include "tests/fuzz/instruction_fuzz.h"
#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

using testing::StoreFixture;
using testing::TestTokens;

constexpr uint32_t kSeeds = 60;
constexpr uint32_t kBytesMax = 256 << 10;

class TiersFuzz {
 public:
  TiersFuzz() : run_("tiers_fuzz", 6000) { StartProcess(); }

  void Run() {
    for (uint64_t step = 0; step < run_.steps(); ++step) {
      Step();
      if (step % 16 == 0) Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EndAll();
    GiveBackRooms(SIZE_MAX);
    Check();
    MutexLock lock(medium_.mu);
    EXPECT_EQ(medium_.records.size(), PlacesInIndex().size()) << "disk space leaks";
  }

 private:
  struct Promotion {
    EntryRef ref;
    Digest digest;
    uint64_t location = 0;
    ExtentReservation reservation;
  };
  // A copy on disk that is being rewritten.
  struct Rewrite {
    EntryRef ref;
    BlockKey key;
    uint64_t from = 0, to = 0;
  };
  struct Read {
    EntryRef ref;
    uint32_t seed = 0;
    Extent extent;       // 0 pages: the block was on disk alone
    std::byte writer{};  // whose bytes it has
  };
  struct Reading {
    BlockLease lease;
    std::vector<Read> blocks;
  };

  void StartProcess() {
    EndAll();
    tier_.reset();
    f_.reset();
    f_ = std::make_unique<StoreFixture>(MiB(4), MiB(2));
    tier_ = std::make_unique<MemoryDiskTier>(MiB(6), medium_);
    testing::RecoverInto(store(), *tier_);
    writers_ = written_;
  }
  void EndAll() {
    for (Promotion& promotion : promotions_) {
      store().index().FailPromote(promotion.ref);
      store().Unhold({&promotion.ref, 1});
    }
    promotions_.clear();
    while (!rewrites_.empty()) EndRewrite();
    leases_.clear();
  }
  [[nodiscard]] BlockStore& store() { return f_->store(); }
  static Digest Name(uint32_t seed) { return Chain(Digest{}, TestTokens(seed)).back(); }
  static uint32_t BytesOf(uint32_t seed) { return 1 + seed * 7919 % kBytesMax; }
  uint32_t SomeSeed() { return static_cast<uint32_t>(run_.Below(kSeeds)); }

  void Step() {
    switch (run_.Below(25)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Put(SomeSeed());
      case 4:
      case 5:
      case 6:
      case 7:
        return Spill(SomeSeed());
      case 8:
      case 9:
      case 10:
        return Acquire();
      case 11:
      case 12:
        return BeginPromotion();
      case 13:
      case 14:
        return EndPromotion();
      case 15:
        return Release();
      case 16:
        return (void)store().EvictFromDisk(ByteCount(run_.Below(MiB(1).value())));
      case 17:
        return GiveBackRooms(run_.Below(20));
      case 18:
        return (void)store().Drop(f_->variant(), Name(SomeSeed()));
      case 19:
      case 20:
        return RecodeInHost(SomeSeed());
      case 21:
      case 22:
        return BeginRewrite(SomeSeed());
      case 23:
        return EndRewrite();
      default:
        if (run_.OneIn(40)) return StartProcess();
        if (run_.OneIn(4)) return DropHeld();
        return EvictOwners();
    }
  }

  // Each put is by another writer, whose number is in each byte.
  void Put(uint32_t seed) {
    const std::byte writer{++last_writer_};
    const BlockStatus status = f_->Put(Digest{}, seed, BytesOf(seed), writer);
    if (status == BlockStatus::kOk) writers_[seed] = writer;
  }

  void Spill(uint32_t seed) {
    const BlockIndex::Held held = store().HoldUntouched(f_->variant(), Name(seed));
    if (held.ref.value == 0) return;
    if (held.state == BlockState::kHost) {
      const SegmentTable table = held.metadata->Table();
      RecordHeader header;
      header.key = {store().index().VariantId(f_->variant()), Name(seed)};
      header.parent = held.metadata->parent();
      header.block_tokens = 16;
      header.layout = "test/rows/1";
      header.dtype = "f16";
      header.table = table;
      const DiskTier::NewBlock block{
          .header = &header,
          .tokens = held.metadata->tokens(),
          .payload = store().Bytes(held.extent).first(table.PayloadBytes().value())};
      DiskTier::PutResult put;
      tier_->Put({&block, 1}, {&put, 1});
      if (put.status == DiskTier::PutStatus::kOk) {
        written_[seed] = writers_.at(seed);
        if (run_.OneIn(8)) (void)store().Drop(f_->variant(), Name(seed));  // before SetOnDisk
        if (!store().SetOnDisk(held.ref, static_cast<uint64_t>(put.location))) {
          const DiskAddress gone{header.key, put.location};
          LARDER_CHECK(tier_->Erase({&gone, 1}).ok());
        }
      }
    }
    store().Unhold({&held.ref, 1});
  }

  void Acquire() {
    std::vector<Digest> names;
    std::vector<uint32_t> seeds;
    for (uint64_t n = 1 + run_.Below(8); n > 0; --n) {
      seeds.push_back(SomeSeed());
      names.push_back(Name(seeds.back()));
    }
    auto got = store().Acquire(f_->variant(), names, MiB(2), HoldWhat::kAnyTier);
    Reading reading;
    for (size_t i = 0; i < names.size(); ++i) {
      const BlockIndex::Held& held = got.blocks[i];
      if (held.ref.value == 0) continue;
      ASSERT_TRUE(InHost(held.state) || (OnDiskAlone(held.state) && held.disk_location != 0));
      ASSERT_TRUE(writers_.contains(seeds[i])) << "no writer put this block";
      reading.blocks.push_back(
          {held.ref, seeds[i], InHost(held.state) ? held.extent : Extent{}, writers_.at(seeds[i])});
    }
    reading.lease = std::move(got.lease);
    leases_.push_back(std::move(reading));
    CheckBytes(leases_.back());
    if (leases_.size() > 6) Release();
  }

  void CheckBytes(Reading& reading) {
    for (auto& [ref, seed, extent, writer] : reading.blocks) {
      const BlockIndex::Held now = store().index().LookAt(ref);
      ASSERT_TRUE(extent.pages == 0 || now.extent == extent)
          << "a block must not move while it is read";
      if (!InHost(now.state)) continue;
      SegmentTable table = now.metadata->Table();
      std::vector<std::byte> bytes(BytesOf(seed));
      ASSERT_TRUE(codec_.Decode(store().Bytes(now.extent), table, bytes, &table).ok()) << seed;
      ASSERT_EQ(bytes, std::vector(bytes.size(), writer)) << seed;
    }
  }

  void Release() {
    if (leases_.empty()) return;
    const auto it = leases_.begin() + static_cast<std::ptrdiff_t>(run_.Below(leases_.size()));
    CheckBytes(*it);
    leases_.erase(it);
  }

  // Promotes a block that a lease holds.
  void BeginPromotion() {
    if (leases_.empty()) return;
    const Reading& reading = leases_[run_.Below(leases_.size())];
    if (reading.blocks.empty()) return;
    const auto& [ref, seed, extent, writer] = reading.blocks[run_.Below(reading.blocks.size())];
    if (!store().HoldAgain({&ref, 1})) return;
    const BlockIndex::Held before = store().index().LookAt(ref);
    if (!store().index().BeginPromote(ref)) {
      ASSERT_NE(before.state, BlockState::kDisk);
      return store().Unhold({&ref, 1});
    }
    const ByteCount bytes(BytesOf(seed));
    auto room = store().Reserve({&bytes, 1}, MiB(4));
    if (room.status != BlockStatus::kOk) {
      store().index().FailPromote(ref);
      return store().Unhold({&ref, 1});
    }
    promotions_.push_back({ref, Name(seed), before.disk_location, std::move(room.reservation)});
  }

  void EndPromotion() {
    if (promotions_.empty()) return;
    const size_t i = run_.Below(promotions_.size());
    Promotion promotion = std::move(promotions_[i]);
    promotions_.erase(promotions_.begin() + static_cast<std::ptrdiff_t>(i));
    const DiskAddress address{{store().index().VariantId(f_->variant()), promotion.digest},
                              DiskLocation{promotion.location}};
    std::optional<DiskTier::Description> known;
    ASSERT_TRUE(tier_->Describe({&address, 1}, {&known, 1}).ok());
    ASSERT_TRUE(known) << "the disk space of a block that is being read was freed";
    const std::vector<std::byte> stored = ReadRecord(address, known->header);
    SegmentTable table;
    ASSERT_TRUE(codec_
                    .Decode(stored, known->header.table,
                            store().Bytes(promotion.reservation.extent(0)), &table)
                    .ok());
    if (run_.OneIn(5)) {
      store().index().FailPromote(promotion.ref);
    } else {
      (void)store().FinishPromote(promotion.ref, promotion.reservation,
                                  BlockMetadata::Make(known->header.parent, known->tokens, table));
    }
    store().Unhold({&promotion.ref, 1});
  }

  std::vector<std::byte> ReadRecord(const DiskAddress& address, const RecordHeader& header) {
    const ByteCount bytes = header.table.PayloadBytes();
    std::vector<std::byte> payload(RoundUp(bytes.value(), kPageBytes));
    const SegmentRange all{0, static_cast<uint32_t>(header.table.segments.size()), 0,
                           bytes.value()};
    EXPECT_EQ(tier_->Get({.block = address, .header = &header, .range = all, .to = payload}),
              DiskTier::GetStatus::kOk);
    return payload;
  }
  // Encodes raw bytes, or decodes encoded ones.  Returns nullopt if the bytes would not shrink.
  std::optional<SegmentTable> Recode(std::span<const std::byte> payload, SegmentTable table,
                                     std::vector<std::byte>* to) {
    to->resize(RoundUp(table.Decoded().PayloadBytes().value(), kPageBytes));
    if (!table.encoded())
      return codec_.Encode(Codec::kLossless, payload.first(table.PayloadBytes().value()), table, 2,
                           *to);
    EXPECT_TRUE(codec_.Decode(payload, table, *to, &table).ok());
    return table;
  }

  void RecodeInHost(uint32_t seed) {
    const BlockIndex::Held held = store().HoldUntouched(f_->variant(), Name(seed));
    if (held.ref.value == 0) return;
    std::vector<std::byte> to;
    std::optional<SegmentTable> table;
    if (InHost(held.state)) table = Recode(store().Bytes(held.extent), held.metadata->Table(), &to);
    if (table) {
      const ByteCount bytes = table->PayloadBytes();
      auto room = store().Reserve({&bytes, 1}, MiB(4));
      if (room.status == BlockStatus::kOk) {
        std::copy_n(to.begin(), bytes.value(), store().Bytes(room.reservation.extent(0)).begin());
        (void)store().ReplaceInHost(
            held.ref, room.reservation,
            BlockMetadata::Make(held.metadata->parent(), held.metadata->tokens(), *table));
      }
    }
    store().Unhold({&held.ref, 1});
  }

  void BeginRewrite(uint32_t seed) {
    const BlockIndex::Held held = store().HoldUntouched(f_->variant(), Name(seed));
    if (held.ref.value == 0) return;
    const DiskAddress address{{store().index().VariantId(f_->variant()), Name(seed)},
                              DiskLocation{held.disk_location}};
    std::optional<DiskTier::Description> known;
    if (held.disk_location == 0 || !store().index().BeginRewrite(held.ref, held.disk_location)) {
      return store().Unhold({&held.ref, 1});
    }
    ASSERT_TRUE(tier_->Describe({&address, 1}, {&known, 1}).ok());
    ASSERT_TRUE(known);
    std::vector<std::byte> to;
    const auto table = Recode(ReadRecord(address, known->header), known->header.table, &to);
    DiskTier::PutResult put;
    if (table) {
      known->header.table = *table;
      const DiskTier::NewBlock block{.header = &known->header,
                                     .tokens = known->tokens,
                                     .payload = std::span(to).first(table->PayloadBytes().value()),
                                     .instead_of = address.location};
      tier_->Put({&block, 1}, {&put, 1});
    }
    rewrites_.push_back(
        {held.ref, address.key, held.disk_location,
         put.status == DiskTier::PutStatus::kOk ? static_cast<uint64_t>(put.location) : 0});
  }

  void EndRewrite() {
    if (rewrites_.empty()) return;
    const size_t i = run_.Below(rewrites_.size());
    const Rewrite rewrite = rewrites_[i];
    rewrites_.erase(rewrites_.begin() + static_cast<std::ptrdiff_t>(i));
    const bool written = store().index().FinishRewrite(rewrite.ref, rewrite.to);
    const DiskAddress gone{rewrite.key, DiskLocation{written ? rewrite.from : rewrite.to}};
    if (rewrite.to != 0) LARDER_CHECK(tier_->Erase({&gone, 1}).ok());
    store().Unhold({&rewrite.ref, 1});
  }

  void DropHeld() {
    if (leases_.empty()) return;
    const Reading& reading = leases_[run_.Below(leases_.size())];
    if (!reading.blocks.empty()) store().DropDamaged(reading.blocks.front().ref);
  }

  void EvictOwners() {
    std::vector<EntryRef> refs;
    for (const auto& [digest, place] : PlacesInIndex()) {
      if (run_.OneIn(8)) refs.push_back(place.second);
    }
    store().EvictFromDisk(refs);
  }

  void GiveBackRooms(size_t count) {
    std::vector<DiskAddress> gone;
    for (const FreedExtent& room : store().TakeFreedExtents(count))
      gone.push_back(
          {{store().index().VariantId(room.variant), room.digest}, DiskLocation{room.location}});
    LARDER_CHECK(tier_->Erase(gone).ok());
  }

  // Digest -> {location, ref}.
  [[nodiscard]] std::map<Digest, std::pair<uint64_t, EntryRef>> PlacesInIndex() {
    std::map<Digest, std::pair<uint64_t, EntryRef>> places;
    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
      const Digest name = Name(seed);
      auto got = store().Acquire(f_->variant(), {&name, 1}, MiB(64), HoldWhat::kAnyTier);
      const BlockIndex::Held& held = got.blocks[0];
      if (held.ref.value != 0 && held.disk_location != 0)
        places[name] = {held.disk_location, held.ref};
    }
    return places;
  }

  void Check() {
    store().CheckInvariants();
    const auto places = PlacesInIndex();
    MutexLock lock(medium_.mu);
    for (const auto& [digest, place] : places) {
      const auto record = medium_.records.find(place.first);
      ASSERT_NE(record, medium_.records.end()) << "the index names disk space that was freed";
      ASSERT_EQ(record->second.key.digest, digest);
    }
    ASSERT_GE(medium_.records.size(), places.size());
  }

  FuzzRun run_;
  MemoryDiskTier::Medium medium_;
  std::unique_ptr<StoreFixture> f_;
  std::unique_ptr<MemoryDiskTier> tier_;
  std::vector<Promotion> promotions_;
  std::vector<Rewrite> rewrites_;
  std::vector<Reading> leases_;
  std::map<uint32_t, std::byte> writers_;  // of the stored block, by seed
  std::map<uint32_t, std::byte> written_;  // of the bytes last written to disk
  uint8_t last_writer_ = 0;
  PayloadCodec codec_;
};

TEST(TiersFuzzTest, BytesAndDiskSpaceAreWhereTheIndexSays) { TiersFuzz().Run(); }

}  // namespace
}  // namespace larder
