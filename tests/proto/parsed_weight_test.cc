// ParsedWeight compared with the memory that protobuf reports for a message, and what SessionCodec
// refuses because of it.
#include "proto/convert/parsed_weight.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <string>

#include "larder/v1/cache.pb.h"
#include "larder/v1/engine.pb.h"
#include "proto/convert/convert.h"
#include "proto/frames/session_codec.h"
#include "storage/format/layout.h"

namespace larder {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
uint64_t WeightOf(const v1::Up& up, uint64_t most = UINT64_MAX) {
  return ParsedWeight(*v1::Up::descriptor(), Bytes(up.SerializeAsString()), most);
}
absl::Status Parsed(const v1::Up& up) {
  wire::Up out;
  return SessionCodec().Parse(Bytes(up.SerializeAsString()), &out);
}

v1::Up PublishOf(int blocks, uint32_t token) {
  v1::Up up;
  v1::Publish* const publish = up.add_publishes();
  publish->set_id(1);
  for (int i = 0; i < blocks; ++i) {
    v1::PublishBlock* const block = publish->add_blocks();
    block->set_digest(std::string(16, 'd'));
    block->set_parent(std::string(16, 'p'));
    for (int t = 0; t < 16; ++t) block->add_tokens(token);
    wire::Encode(UniformTable(2, 4'096), block->mutable_segments());
  }
  return up;
}

// The weight is at least half of the memory that the parsed message takes, and at most three times
// as much.
TEST(ParsedWeight, IsCloseToWhatProtobufTakes) {
  v1::Up aborts, ids;
  for (int i = 0; i < 10'000; ++i) aborts.add_aborts();
  for (uint64_t i = 0; i < 60'000; ++i) ids.mutable_release()->add_lease_ids(i);
  for (const v1::Up& up : {PublishOf(4'000, 7), PublishOf(4'000, 150'000), aborts, ids}) {
    v1::Up parsed;
    ASSERT_TRUE(parsed.ParseFromString(up.SerializeAsString()));
    const uint64_t takes = parsed.SpaceUsedLong();
    EXPECT_GE(WeightOf(up) * 2, takes);
    EXPECT_LE(WeightOf(up), takes * 3);
  }
}

// Also if the bytes are in many pieces, as in gRPC's buffers.
TEST(ParsedWeight, DoesNotDependOnHowTheBytesAreSplit) {
  const std::string text = PublishOf(300, 150'000).SerializeAsString();
  const uint64_t whole = ParsedWeight(*v1::Up::descriptor(), Bytes(text), UINT64_MAX);
  for (const int piece : {1, 7, 4'096}) {
    google::protobuf::io::ArrayInputStream in(text.data(), static_cast<int>(text.size()), piece);
    EXPECT_EQ(ParsedWeight(*v1::Up::descriptor(), in, UINT64_MAX), whole) << piece;
  }
}

TEST(ParsedWeight, StopsAtTheLimit) {
  v1::Up up;
  for (int i = 0; i < 10'000; ++i) up.add_aborts();
  EXPECT_GT(WeightOf(up, 1'000), 1'000u);
  EXPECT_LT(WeightOf(up, 1'000), 1'200u);
}

TEST(ParsedWeight, StopsAtInvalidBytes) {
  const std::string garbage(1'000, '\xff');
  EXPECT_LT(ParsedWeight(*v1::Up::descriptor(), Bytes(garbage), UINT64_MAX), 2'000u);
  std::string nested;  // lengths beyond the end
  for (int i = 0; i < 100; ++i) nested += "\x12\x7f";
  EXPECT_LT(ParsedWeight(*v1::Up::descriptor(), Bytes(nested), UINT64_MAX), 20'000u);
}

// The parser keeps fields that it does not know.
TEST(ParsedWeight, CountsUnknownFields) {
  std::string group = "\x73";  // field 14, a group
  for (int i = 0; i < 10'000; ++i) group += std::string("\x0a\x00", 2);
  group += "\x74";
  std::string numbers;
  for (int i = 0; i < 10'000; ++i) numbers += std::string("\x70\x01", 2);
  for (const std::string& text : {group, numbers}) {
    v1::Up parsed;
    ASSERT_TRUE(parsed.ParseFromString(text));
    const uint64_t weight = ParsedWeight(*v1::Up::descriptor(), Bytes(text), 100'000);
    EXPECT_GT(weight, 100'000u) << parsed.SpaceUsedLong();
    wire::Up out;
    EXPECT_TRUE(absl::IsInvalidArgument(SessionCodec().Parse(Bytes(text), &out)));
  }
}

// To the parser, a field whose type differs from its declaration is unknown.  An empty list takes
// parsing time.
TEST(ParsedWeight, CountsFieldsOfOtherTypesAndEmptyLists) {
  const auto often = [](std::string_view field) {
    std::string text;
    for (int i = 0; i < 10'000; ++i) text += field;
    return text;
  };
  const auto weight = [](const google::protobuf::Message& type, const std::string& text) {
    return ParsedWeight(*type.GetDescriptor(), Bytes(text), UINT64_MAX);
  };
  const v1::LookupRequest lookup;
  const int tokens = lookup.GetDescriptor()->FindFieldByName("tokens")->number();
  const auto tag = [](int number, int wire_type) {
    return std::string(1, static_cast<char>(number << 3 | wire_type));
  };
  for (const std::string& text :
       {often(tag(tokens, 0) + "\x01"), often(tag(tokens, 2) + std::string("\0", 1))}) {
    v1::LookupRequest parsed;
    ASSERT_TRUE(parsed.ParseFromString(text));
    EXPECT_EQ(parsed.tokens_size(), 0);
    EXPECT_GE(weight(lookup, text), 300'000u);
  }
}

// Each message is short, but together they fill many different places of a message.
TEST(SessionCodec, KeepsLittleOfManyDifferentMessages) {
  SessionCodec codec;
  wire::Up up;
  const size_t before = mallinfo2().uordblks;
  for (int publish = 0; publish < 60; ++publish) {
    v1::Up message;
    for (int i = 0; i <= publish; ++i) message.add_publishes()->set_id(static_cast<uint64_t>(i));
    *message.mutable_publishes(publish)->mutable_blocks() = PublishOf(100, 7).publishes(0).blocks();
    const std::string bytes = message.SerializeAsString();
    (void)codec.Parse(Bytes(bytes), &up);
    codec.Release(&up);
  }
  EXPECT_LT(mallinfo2().uordblks - before, 4 * SessionCodec::kKeptBytes);
  wire::Down down;
  std::string frame;
  for (size_t grant = 0; grant < 60; ++grant) {
    down.grants.assign(grant + 1, {});
    down.grants[grant].blocks.resize(500);
    frame.clear();
    codec.Append(down, &frame);
  }
  down = {};
  frame = {};
  EXPECT_LT(mallinfo2().uordblks - before, 6 * SessionCodec::kKeptBytes);
}

TEST(SessionCodec, AcceptsRealMessagesAndRefusesMessagesThatOnlyTakeMemory) {
  for (const uint32_t token : {1u, 150'000u, UINT32_MAX})
    EXPECT_TRUE(Parsed(PublishOf(4'096, token)).ok()) << token;
  v1::Up promises;
  for (int i = 0; i < 64; ++i) {
    promises.add_acquires()->set_id(static_cast<uint64_t>(i) + 1);
    promises.mutable_acquires(i)->set_what(v1::ACQUIRE_WHAT_PROMISE);
    promises.mutable_acquires(i)->set_digests(std::string(4'096 * 16, 'd'));
  }
  EXPECT_TRUE(Parsed(promises).ok()) << Parsed(promises);
  v1::Up empty;
  for (int i = 0; i < 1'000'000; ++i) empty.add_aborts();
  const absl::Status refused = Parsed(empty);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("it repeats empty fields"), std::string::npos) << refused;
}

}  // namespace
}  // namespace larder
