// Each message is encoded and decoded, with every field of the contract set.  convert_limits_test
// has the refusals.
#include "proto/convert/convert.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "larder/v1/cache.pb.h"
#include "larder/v1/engine.pb.h"
#include "tests/proto/sample_messages.h"

namespace larder::wire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Encodes and decodes through bytes, as on the wire, into an `*out` that held another value.
template <class Wire, class Value>
absl::Status ThereAndBack(const Value& in, Value* out) {
  Wire encoded;
  Encode(in, &encoded);
  Wire parsed;
  EXPECT_TRUE(parsed.ParseFromString(encoded.SerializeAsString()));
  return Decode(parsed, out);
}

template <class Wire, class Value>
void ExpectRoundTrip(const Value& in) {
  Value out;
  const absl::Status status = ThereAndBack<Wire>(in, &out);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out == in);
}

template <class Wire, class Value>
void ExpectViewRoundTrip(const Value& in) {
  Wire encoded;
  Encode(in, &encoded);
  Value out;
  const absl::Status status = Decode(encoded, &out);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out == in);
  EXPECT_EQ(out.data.data(), encoded.data().data()) << "data must not be copied";
}

TEST(Convert, EveryMessageSurvivesARoundTrip) {
  ExpectRoundTrip<v1::Up>(sample::FullUp());
  ExpectRoundTrip<v1::Down>(sample::FullDown());
  ExpectRoundTrip<v1::LookupRequest>(sample::LookupByTokens());
  ExpectRoundTrip<v1::LookupRequest>(sample::LookupByDigests());
  ExpectRoundTrip<v1::LookupReply>(sample::FullLookupResult());
  ExpectRoundTrip<v1::ListInstancesReply>(sample::FullInstances());
  ExpectRoundTrip<v1::StoreBlocksReply>(sample::FullStoreResult());
  ExpectRoundTrip<v1::FetchBlocksRequest>(sample::FullFetchQuery());
  ExpectRoundTrip<v1::Content>(sample::Content());
  ExpectRoundTrip<v1::Variant>(sample::Variant());
  ExpectRoundTrip<v1::SegmentTable>(sample::Table());
  ExpectRoundTrip<v1::SegmentTable>(UniformTable(kSegmentsMax, 1));
  ExpectViewRoundTrip<v1::StoreBlocksRequest>(sample::FullStorePart());
  ExpectViewRoundTrip<v1::FetchBlocksReply>(sample::FullFetchPart());

  v1::ListInstancesRequest list;
  const InstancesQuery query{.tenant = "tenant", .page_size = 7, .page_token = "engine"};
  Encode(query, &list);
  InstancesQuery decoded;
  ASSERT_TRUE(Decode(list, &decoded).ok());
  EXPECT_TRUE(decoded == query);
  for (const uint32_t size : {0u, kInstancesPerPage + 1}) {
    list.set_page_size(size);
    ASSERT_TRUE(Decode(list, &decoded).ok());
    EXPECT_EQ(decoded.page_size, kInstancesPerPage);
  }
}

TEST(Convert, NearlyEmptyMessagesSurviveARoundTrip) {
  ExpectRoundTrip<v1::Up>(Up{});
  ExpectRoundTrip<v1::Down>(Down{});
  ExpectRoundTrip<v1::LookupReply>(LookupResult{});
  ExpectRoundTrip<v1::ListInstancesReply>(InstancesPage{});
  ExpectViewRoundTrip<v1::StoreBlocksRequest>(StoreBlocksPart{});
  ExpectViewRoundTrip<v1::FetchBlocksReply>(FetchBlocksPart{});
}

TEST(Convert, DecodeReplacesTheFormerValue) {
  Up up = sample::FullUp();
  ASSERT_TRUE(ThereAndBack<v1::Up>(Up{}, &up).ok());
  EXPECT_TRUE(up == Up{});

  Up plain = sample::FullUp();
  for (PublishBlock& block : plain.publishes[0].blocks) block.segments = UniformTable(1, 8);
  plain.device_blocks[0].parent.reset();
  up = sample::FullUp();
  ASSERT_TRUE(ThereAndBack<v1::Up>(plain, &up).ok());
  EXPECT_TRUE(up == plain);

  Down bare = sample::FullDown();
  bare.grants[0].blocks[0] = {};
  bare.directives[0] = {};
  Down down = sample::FullDown();
  ASSERT_TRUE(ThereAndBack<v1::Down>(bare, &down).ok());
  EXPECT_TRUE(down == bare);

  StoreBlocksPart part = sample::FullStorePart();
  ASSERT_TRUE(ThereAndBack<v1::StoreBlocksRequest>(StoreBlocksPart{}, &part).ok());
  EXPECT_TRUE(part == StoreBlocksPart{});

  // Encode replaces the former contents as well.
  v1::Up wire;
  Encode(sample::FullUp(), &wire);
  Encode(Up{}, &wire);
  EXPECT_EQ(wire.ByteSizeLong(), 0u);
}

// Collects the full names of the fields that are set in a message and in all messages inside it.
void CollectSet(const Message& message, std::set<std::string>* names) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    names->insert(field->full_name());
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      CollectSet(reflection.GetMessage(message, field), names);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      CollectSet(reflection.GetRepeatedMessage(message, field, i), names);
    }
  }
}

void CollectAll(const Descriptor& type, std::set<std::string>* names) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (names->insert(field->full_name()).second && field->message_type() != nullptr) {
      CollectAll(*field->message_type(), names);
    }
  }
}

// A field that was added to the contract but not to the samples or to Encode makes this test fail.
// A field that was not added to Decode makes the tests above fail.
TEST(Convert, SamplesSetEveryFieldOfTheContract) {
  std::set<std::string> all;
  std::set<std::string> set;
  const auto sample_of = [&](const auto& value, auto wire) {
    Encode(value, &wire);
    CollectAll(*wire.GetDescriptor(), &all);
    CollectSet(wire, &set);
  };
  sample_of(sample::FullUp(), v1::Up());
  sample_of(sample::FullDown(), v1::Down());
  sample_of(sample::LookupByTokens(), v1::LookupRequest());
  sample_of(sample::LookupByDigests(), v1::LookupRequest());
  sample_of(sample::FullLookupResult(), v1::LookupReply());
  sample_of(sample::FullInstances(), v1::ListInstancesReply());
  sample_of(sample::FullStorePart(), v1::StoreBlocksRequest());
  sample_of(sample::FullStoreResult(), v1::StoreBlocksReply());
  sample_of(sample::FullFetchQuery(), v1::FetchBlocksRequest());
  sample_of(sample::FullFetchPart(), v1::FetchBlocksReply());
  std::vector<std::string> unset;
  std::ranges::set_difference(all, set, std::back_inserter(unset));
  EXPECT_EQ(unset, std::vector<std::string>());
}

TEST(Convert, DeadlinesHaveADefaultAndAMaximum) {
  v1::Up in;
  v1::Acquire* acquire = in.add_acquires();
  acquire->set_id(1);
  acquire->set_what(v1::ACQUIRE_WHAT_BYTES);
  in.add_reserves()->set_id(2);
  Up out;
  ASSERT_TRUE(Decode(in, &out).ok());
  EXPECT_EQ(out.acquires[0].deadline_ms, kDeadlineDefaultMs);
  EXPECT_EQ(out.reserves[0].deadline_ms, kDeadlineDefaultMs);
  EXPECT_THAT(out.acquires[0].accepted_codecs, testing::ElementsAre(Codec::kIdentity));

  acquire->set_deadline_ms(kDeadlineMaxMs + 1);
  in.mutable_reserves(0)->set_deadline_ms(~0u);
  ASSERT_TRUE(Decode(in, &out).ok());
  EXPECT_EQ(out.acquires[0].deadline_ms, kDeadlineMaxMs);
  EXPECT_EQ(out.reserves[0].deadline_ms, kDeadlineMaxMs);
}

TEST(Convert, LimitsOfADaemonAreLoweredToOurs) {
  v1::Down in;
  Encode(sample::FullDown(), &in);
  in.mutable_attached()->set_keys_max(1'000'000);
  in.mutable_grants(0)->set_deadline_ms(~0u);
  Down out;
  ASSERT_TRUE(Decode(in, &out).ok());
  EXPECT_EQ(out.attached->keys_max, kKeysMax);
  EXPECT_EQ(out.grants[0].deadline_ms, kDeadlineMaxMs);
}

TEST(Convert, AMissingBlockNeedsNoTier) {
  v1::Down in;
  v1::Grant* grant = in.add_grants();
  grant->set_id(1);
  grant->add_status(v1::BLOCK_STATUS_MISSING);
  Down out;
  ASSERT_TRUE(Decode(in, &out).ok());
  EXPECT_EQ(out.grants[0].blocks[0].status, BlockStatus::kMissing);
}

TEST(Convert, TextsAreCutBetweenCharacters) {
  Down down;
  down.published = {{.id = 1, .status = {}, .message = std::string(255, 'a') + "\xc3\xa9" + "b"}};
  Down out;
  ASSERT_TRUE(ThereAndBack<v1::Down>(down, &out).ok());
  EXPECT_EQ(out.published[0].message, std::string(255, 'a'));
}

TEST(Convert, AnInfiniteDurationSurvivesARoundTrip) {
  LookupResult in = sample::FullLookupResult();
  in.instances[0].tiers[0].load_s = std::numeric_limits<double>::infinity();
  ExpectRoundTrip<v1::LookupReply>(in);
}

TEST(Convert, NamesOfEnums) {
  EXPECT_STREQ(ToString(WriteMode::kMapped), "mapped");
  EXPECT_STREQ(ToString(WriteMode::kStaged), "staged");
  EXPECT_STREQ(ToString(WriteMode::kStream), "stream");
  EXPECT_STREQ(ToString(Role::kScheduler), "scheduler");
  EXPECT_STREQ(ToString(Role::kWorker), "worker");
  EXPECT_STREQ(ToString(Role::kBoth), "both");
}

}  // namespace
}  // namespace larder::wire
