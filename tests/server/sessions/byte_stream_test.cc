#include "server/sessions/byte_stream.h"

#include <gtest/gtest.h>

#include "storage/format/record.h"
#include "tests/server/sessions/session_fixture.h"

namespace larder {
namespace {

using testing::SessionFixture;
using testing::TestTokens;
using testing::TestVariant;

constexpr uint32_t kLayers = 3;

std::vector<std::byte> Bytes(size_t n, unsigned seed) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed);
  return bytes;
}

// A block of three layers of odd sizes, as a byte stream carries it.
struct Sent {
  explicit Sent(uint32_t seed) {
    block.tokens = TestTokens(seed);
    for (const size_t n : {100u, 4097u, 1u}) {
      const auto part = Bytes(n, seed);
      block.segments.segments.push_back(
          {.bytes = static_cast<uint32_t>(n), .xxh3 = HashBytes(part)});
      data.insert(data.end(), part.begin(), part.end());
    }
    block.segments.hashed = true;
  }
  wire::StoreBlock block;
  std::vector<std::byte> data;
};

class ByteStreamTest : public ::testing::Test {
 protected:
  ContentSpec Content() {
    ContentSpec content;
    content.model = "m";
    return content;
  }
  Digest Name(uint32_t seed) {
    ContentSpec content = Content();
    content.tenant = "default";
    return Chain(content.Id(), TestTokens(seed)).back();
  }
  std::unique_ptr<BlockReceiver> Open() {
    auto receiver = std::make_unique<BlockReceiver>(f_.deps(), f_.shares().Of({}));
    EXPECT_TRUE(receiver->Open(Content(), TestVariant(16, kLayers), "engine").ok());
    return receiver;
  }
  void Store(uint32_t seed) {
    const Sent sent(seed);
    auto receiver = Open();
    ASSERT_TRUE(receiver->Begin(sent.block).ok());
    ASSERT_TRUE(receiver->Append(sent.data).ok());
    ASSERT_TRUE(receiver->Close().ok());
    ASSERT_EQ(receiver->status().at(0), BlockStatus::kOk) << receiver->message();
  }

  SessionFixture f_;
};

TEST_F(ByteStreamTest, AStoredBlockIsFetchedByteForByte) {
  const Sent sent(1);
  auto receiver = Open();
  ASSERT_TRUE(receiver->Begin(sent.block).ok());
  for (size_t at = 0; at < sent.data.size(); at += 33) {  // in pieces that cut across segments
    ASSERT_TRUE(
        receiver
            ->Append(std::span(sent.data).subspan(at, std::min<size_t>(33, sent.data.size() - at)))
            .ok());
  }
  ASSERT_TRUE(receiver->Close().ok());
  ASSERT_EQ(receiver->status(), std::vector<BlockStatus>{BlockStatus::kOk}) << receiver->message();
  EXPECT_EQ(receiver->digests(), std::vector<Digest>{Name(1)});

  BlockSender sender(f_.deps(), f_.shares().Of({}), TestVariant(16, kLayers), {Name(2), Name(1)}, 0,
                     0);
  BlockSender::Piece piece;
  ASSERT_TRUE(sender.Next(&piece));
  EXPECT_EQ(piece.status, BlockStatus::kMissing);
  ASSERT_TRUE(sender.Next(&piece));
  ASSERT_EQ(piece.status, BlockStatus::kOk);
  const auto header = DecodeRecordHeaderOf({TestVariant(16, kLayers).Id(), Name(1)},
                                           std::as_bytes(std::span(piece.record_header)));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->header.table, sent.block.segments);
  std::vector<std::byte> got;
  while (sender.Next(&piece)) got.insert(got.end(), piece.data.begin(), piece.data.end());
  EXPECT_EQ(got, sent.data);
  EXPECT_EQ(f_.store().stats().leases, 0u);
}

TEST_F(ByteStreamTest, FetchesARangeOfLayers) {
  Store(1);
  BlockSender sender(f_.deps(), f_.shares().Of({}), TestVariant(16, kLayers), {Name(1)}, 1, 1);
  BlockSender::Piece piece;
  ASSERT_TRUE(sender.Next(&piece));
  EXPECT_EQ(piece.first_segment, 1u);
  EXPECT_EQ(piece.segments, 1u);
  std::vector<std::byte> got;
  while (sender.Next(&piece)) got.insert(got.end(), piece.data.begin(), piece.data.end());
  EXPECT_EQ(got, Bytes(4097, 1));
}

TEST_F(ByteStreamTest, WrongBytesAreNeverStored) {
  Sent sent(1);
  sent.data[200] ^= std::byte{1};
  auto receiver = Open();
  ASSERT_TRUE(receiver->Begin(sent.block).ok());
  ASSERT_TRUE(receiver->Append(sent.data).ok());
  EXPECT_EQ(receiver->status().at(0), BlockStatus::kDamaged);
  EXPECT_EQ(f_.store().stats().blocks, 0u);
  const Sent good(2);
  ASSERT_TRUE(receiver->Begin(good.block).ok());  // the stream continues
  ASSERT_TRUE(receiver->Append(good.data).ok());
  EXPECT_EQ(receiver->status().at(1), BlockStatus::kOk);
  EXPECT_EQ(f_.store().stats().reservations, 0u);
}

TEST_F(ByteStreamTest, BrokenStreamsAreRefusedAndLeaveNothing) {
  const Sent sent(1);
  {
    auto receiver = Open();
    EXPECT_TRUE(absl::IsInvalidArgument(receiver->Append(sent.data)));  // no block was begun
    ASSERT_TRUE(receiver->Begin(sent.block).ok());
    ASSERT_TRUE(receiver->Append(std::span(sent.data).first(50)).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(receiver->Begin(sent.block)));  // the first is incomplete
    EXPECT_TRUE(absl::IsInvalidArgument(receiver->Close()));
    EXPECT_TRUE(absl::IsInvalidArgument(receiver->Append(sent.data)));  // beyond the table
  }
  {
    auto receiver = Open();
    wire::StoreBlock block = sent.block;
    block.segments.hashed = false;
    EXPECT_TRUE(absl::IsInvalidArgument(receiver->Begin(block)));
    block = sent.block;
    block.tokens.resize(32);
    EXPECT_TRUE(absl::IsInvalidArgument(receiver->Begin(block)));
  }
  BlockReceiver unopened(f_.deps(), f_.shares().Of({}));
  EXPECT_TRUE(absl::IsInvalidArgument(unopened.Begin(sent.block)));
  EXPECT_EQ(f_.store().stats().reservations, 0u);
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(0));
}

TEST_F(ByteStreamTest, ADamagedBlockIsNotSent) {
  Store(1);
  const Digest name = Name(1);
  const VariantIndex variant = *f_.store().index().FindVariant(TestVariant(16, kLayers).Id());
  f_.store().Bytes(f_.store().Acquire(variant, {&name, 1}, GiB(1)).blocks[0].extent)[300] ^=
      std::byte{1};
  BlockSender sender(f_.deps(), f_.shares().Of({}), TestVariant(16, kLayers), {name}, 0, 0);
  BlockSender::Piece piece;
  ASSERT_TRUE(sender.Next(&piece));
  EXPECT_EQ(piece.status, BlockStatus::kDamaged);
  EXPECT_FALSE(sender.Next(&piece));
  EXPECT_EQ(f_.store().Acquire(variant, {&name, 1}, GiB(1)).lease.size(), 0u);
}

TEST_F(ByteStreamTest, AnUnknownVariantIsMissing) {
  BlockSender sender(f_.deps(), f_.shares().Of({}), TestVariant(32), {Name(1)}, 0, 0);
  BlockSender::Piece piece;
  ASSERT_TRUE(sender.Next(&piece));
  EXPECT_EQ(piece.status, BlockStatus::kMissing);
  EXPECT_FALSE(sender.Next(&piece));
}

}  // namespace
}  // namespace larder
