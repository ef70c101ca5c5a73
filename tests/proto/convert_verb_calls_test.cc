// What larderctl sends and what a daemon may answer are encoded and decoded; answers that no
// correct daemon gives are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "larder/v1/admin.pb.h"
#include "larder/v1/cache.pb.h"
#include "proto/convert/convert.h"
#include "tests/proto/sample_messages.h"

namespace larder::wire {
namespace {

using sample::AnyDigest;
using sample::Digests;

BlockSelection Named() {
  return {.engine_id = "engine",
          .variants = Digests(2),
          .digests = Digests(3),
          .content = {},
          .tokens = {}};
}
BlockSelection OfContent() {
  return {.engine_id = "engine",
          .variants = Digests(1),
          .digests = {},
          .content = sample::Content(),
          .tokens = {}};
}

// Requests are decoded in place, so the tokens are compared separately.
template <class Wire, class Query>
Wire ExpectAsked(const Query& query) {
  Wire message;
  Encode(query, &message);
  Wire parsed;
  EXPECT_TRUE(parsed.ParseFromString(message.SerializeAsString()));
  Query out;
  const absl::Status status = DecodeInPlace(parsed, &out);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out == query);
  return parsed;
}

TEST(VerbCalls, RequestsSurviveARoundTrip) {
  ExpectAsked<v1::PinRequest>(PinQuery{.tenant = "t",
                                       .blocks = Named(),
                                       .owner = "o",
                                       .tier = Tier::kDisk,
                                       .ttl = std::chrono::milliseconds(7)});
  ExpectAsked<v1::UnpinRequest>(
      UnpinQuery{.tenant = "t", .blocks = Named(), .owner = "o", .tier = Tier::kDisk});
  ExpectAsked<v1::UnpinRequest>(
      UnpinQuery{.tenant = "t", .blocks = std::nullopt, .owner = "o", .tier = Tier::kHost});
  ExpectAsked<v1::PrefetchRequest>(
      PrefetchQuery{.tenant = "t", .blocks = Named(), .ttl = std::chrono::milliseconds(7)});
  ExpectAsked<v1::ClearRequest>(ClearQuery{.tenant = "t",
                                           .scope = SelectionScope::kContent,
                                           .blocks = OfContent(),
                                           .tiers = TierBit(Tier::kDisk),
                                           .pinned = true,
                                           .dry_run = true});
  ExpectAsked<v1::ClearRequest>(ClearQuery{.tenant = {},
                                           .scope = SelectionScope::kAll,
                                           .blocks = {},
                                           .tiers = TierBit(Tier::kDisk) | TierBit(Tier::kHost)});
  const auto clear_of = [](BlockWriter writer) {
    ClearQuery query{.tenant = {},
                     .scope = SelectionScope::kWriter,
                     .blocks = {},
                     .tiers = TierBit(Tier::kHost)};
    query.blocks.variants = Digests(2);
    query.blocks.writer = writer;
    return query;
  };
  for (const BlockWriter writer :
       {BlockWriter{.uid = 0}, BlockWriter{.uid = 7, .engine = 65'535}, BlockWriter{.engine = 1}})
    ExpectAsked<v1::ClearRequest>(clear_of(writer));
  ExpectAsked<v1::MoveRequest>(MoveQuery{.tenant = "t",
                                         .scope = SelectionScope::kBlocks,
                                         .blocks = Named(),
                                         .from = Tier::kDisk,
                                         .to = Tier::kHost,
                                         .copy = true});

  PinQuery by_tokens{.tenant = {}, .blocks = OfContent(), .owner = "o"};
  by_tokens.blocks.tokens = sample::Tokens(20);
  v1::PinRequest pin;
  Encode(by_tokens, &pin);
  PinQuery out;
  ASSERT_TRUE(DecodeInPlace(pin, &out).ok());
  EXPECT_TRUE(out.blocks.content == sample::Content());
  EXPECT_THAT(pin.blocks().tokens(), testing::ElementsAreArray(by_tokens.blocks.tokens));

  for (const WatchQuery& watch : {WatchQuery{.tenant = "t",
                                 .snapshot = true,
                                 .boot_id = {},
                                 .after = 0,
                                 .tiers = TierBit(Tier::kHost),
                                 .with_tokens = true},
                                  WatchQuery{.tenant = {},
                                  .snapshot = false,
                                  .boot_id = "b",
                                  .after = 9,
                                  .tiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk)}}) {
    v1::WatchEventsRequest request;
    Encode(watch, &request);
    WatchQuery decoded;
    ASSERT_TRUE(Decode(request, &decoded).ok());
    EXPECT_TRUE(decoded == watch);
  }
  v1::VerifyRequest verify;
  Encode(VerifyQuery{.tier = Tier::kDisk, .bytes_per_s = 5}, &verify);
  VerifyQuery decoded;
  ASSERT_TRUE(Decode(verify, &decoded).ok());
  EXPECT_TRUE(decoded == (VerifyQuery{.tier = Tier::kDisk, .bytes_per_s = 5}));
  verify.clear_tier();
  EXPECT_EQ(Decode(verify, &decoded).code(), absl::StatusCode::kInvalidArgument);
}

std::vector<BlockAnswer> Answers() {
  return {{AnyDigest(1), BlockStatus::kPending}, {AnyDigest(2), BlockStatus::kFull}};
}

WatchReply Watched() {
  WatchReply reply{.boot_id = "b", .events = {}, .sequence = 4, .snapshot_end = true};
  reply.events.push_back({.sequence = 3,
                          .stored = true,
                          .variant = AnyDigest(9),
                          .tier = Tier::kDisk,
                          .digests = Digests(2),
                          .chain = BlockEvent::Chain{.parent = AnyDigest(5),
                                                     .content = AnyDigest(6),
                                                     .block_tokens = 16,
                                                     .tokens = sample::Tokens(32),
                                                     .writer = {.uid = 7, .engine = 8}}});
  reply.events.push_back({.sequence = 4,
                          .stored = false,
                          .variant = AnyDigest(9),
                          .tier = Tier::kHost,
                          .digests = Digests(1),
                          .chain = std::nullopt});
  reply.events.push_back({.sequence = 4,
                          .stored = false,
                          .variant = AnyDigest(9),
                          .tier = Tier::kDevice,
                          .engine_id = "e",
                          .digests = Digests(1),
                          .chain = std::nullopt});
  reply.events.push_back({.sequence = 4,
                          .cleared = true,
                          .variant = {},
                          .tier = Tier::kDevice,
                          .engine_id = "e",
                          .digests = {},
                          .chain = std::nullopt});
  return reply;
}

template <class Wire, class Value>
void ExpectAnswered(const Value& value) {
  Wire message;
  Encode(value, &message);
  Value out;
  const absl::Status status = Decode(message, &out);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out == value);
  ASSERT_TRUE(Decode(Wire(), &out).ok());
  EXPECT_TRUE(out == Value{}) << "the former value must be replaced";
}

TEST(VerbCalls, RepliesSurviveARoundTrip) {
  ExpectAnswered<v1::ClearReply>(ClearResult{.host = {.blocks = 1, .bytes = ByteCount(2)},
                                             .disk = {.blocks = 3, .bytes = ByteCount(4)},
                                             .device = {.blocks = 10, .bytes = ByteCount(11)},
                                             .leased = 5,
                                             .kept_pinned = 6,
                                             .kept_in_use = 7,
                                             .pins_ended = 8,
                                             .unanswered = 9,
                                             .blocks = Answers()});
  ClearResult odd;  // which no daemon sends
  odd.device.bytes = ByteCount(1);
  ExpectAnswered<v1::ClearReply>(odd);
  ExpectAnswered<v1::MoveProgress>(MoveProgress{.blocks = 1,
                                                .blocks_done = 2,
                                                .bytes = ByteCount(3),
                                                .bytes_done = ByteCount(4),
                                                .moved = 5,
                                                .missing = 6,
                                                .no_room = 7,
                                                .kept_pinned = 8,
                                                .kept_in_use = 9});
  const CompressProgress compressed{.blocks = 1,
                                    .blocks_done = 2,
                                    .bytes_before = ByteCount(3),
                                    .bytes_after = ByteCount(4),
                                    .changed = 5,
                                    .unchanged = 6,
                                    .missing = 7,
                                    .kept_in_use = 8,
                                    .no_room = 9,
                                    .unsupported = 10,
                                    .answers = Answers()};
  ExpectAnswered<v1::CompressProgress>(compressed);
  ExpectAnswered<v1::VerifyProgress>(VerifyProgress{.blocks = 1,
                                                    .blocks_done = 2,
                                                    .bytes = ByteCount(3),
                                                    .bytes_done = ByteCount(4),
                                                    .whole = 5,
                                                    .damaged = 6,
                                                    .missing = 7,
                                                    .unread = 8});
  ExpectAnswered<v1::WatchEventsReply>(Watched());

  v1::PinReply pin;
  Encode(Answers(), pin.mutable_blocks());
  pin.set_deadline_unix_ms(7);
  pin.set_durable(true);
  PinResult pinned;
  ASSERT_TRUE(Decode(pin, &pinned).ok());
  EXPECT_TRUE(pinned == (PinResult{.blocks = Answers(), .deadline_unix_ms = 7, .durable = true}));
  v1::UnpinReply unpin;
  Encode(Answers(), unpin.mutable_blocks());
  unpin.set_unpinned(7);
  UnpinResult unpinned;
  ASSERT_TRUE(Decode(unpin, &unpinned).ok());
  EXPECT_TRUE(unpinned == (UnpinResult{.blocks = Answers(), .unpinned = 7}));
  v1::PrefetchReply prefetch;
  Encode(Answers(), prefetch.mutable_blocks());
  std::vector<BlockAnswer> prefetched;
  ASSERT_TRUE(Decode(prefetch, &prefetched).ok());
  EXPECT_TRUE(prefetched == Answers());
}

TEST(VerbCalls, StatsSurviveARoundTrip) {
  v1::StatsReply in;
  in.set_version("1");
  in.set_boot_id("b");
  in.set_uptime_s(2);
  in.set_draining(true);
  (*in.mutable_counters())["c"] = 3;
  (*in.mutable_gauges())["g"] = 0.5;
  v1::TenantStats& tenant = *in.add_tenants();
  uint64_t next = 0;
  // Each field gets a different number.
  for (int i = 0; i < tenant.GetDescriptor()->field_count(); ++i) {
    const auto* field = tenant.GetDescriptor()->field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64)
      tenant.GetReflection()->SetUInt64(&tenant, field, ++next);
  }
  NodeStats out;
  ASSERT_TRUE(Decode(in, &out).ok());
  TenantStats want;
  want.pool_limit = ByteCount(1);
  want.pool_online = ByteCount(2);
  want.pool_free = ByteCount(3);
  want.pool_stored = ByteCount(4);
  want.pool_reserved = ByteCount(5);
  want.pool_leased = ByteCount(6);
  want.pool_quarantined = ByteCount(7);
  want.blocks = 8;
  want.leases = 9;
  want.reservations = 10;
  want.pins = 11;
  want.sessions = 12;
  want.index_bytes = ByteCount(13);
  want.metadata_bytes = ByteCount(14);
  EXPECT_TRUE(out == (NodeStats{.version = "1",
                                .boot_id = "b",
                                .uptime_s = 2,
                                .draining = true,
                                .tenants = {want},
                                .counters = {{"c", 3}},
                                .gauges = {{"g", 0.5}},
                                .shares = {}}));
}

template <class Value, class Wire>
void ExpectRefused(const Wire& right,
                   const std::vector<std::pair<const char*, std::function<void(Wire*)>>>& breaks) {
  Value out;
  EXPECT_TRUE(Decode(right, &out).ok());
  for (const auto& [error, how] : breaks) {
    Wire wrong = right;
    how(&wrong);
    const absl::Status status = Decode(wrong, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << error;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(error));
  }
}

TEST(VerbCalls, RefusesInvalidAnswers) {
  using Pin = v1::PinReply;
  Pin pin;
  Encode(Answers(), pin.mutable_blocks());
  ExpectRefused<PinResult, Pin>(
      pin, {{"blocks.digests: 31 bytes is not a multiple of 16",
             [](Pin* r) { r->mutable_blocks()->mutable_digests()->pop_back(); }},
            {"blocks.status: 1 for 2 digests",
             [](Pin* r) { r->mutable_blocks()->mutable_status()->RemoveLast(); }},
            {"blocks.status[0]: 0 is unspecified",
             [](Pin* r) { r->mutable_blocks()->set_status(0, v1::BLOCK_STATUS_UNSPECIFIED); }},
            {"blocks.status[1]: 99 is unknown",
             [](Pin* r) { r->mutable_blocks()->set_status(1, v1::BlockStatus(99)); }},
            {"blocks.digests: 65537 digests; the limit is 65536",
             [](Pin* r) { r->mutable_blocks()->set_digests(std::string(16 * 65'537, 'x')); }}});
  using Clear = v1::ClearReply;
  Clear clear;
  clear.add_tiers()->set_tier(v1::TIER_HOST);
  ExpectRefused<ClearResult, Clear>(clear, {{"tiers[0].tier: 0 is unspecified",
                                             [](Clear* r) { r->mutable_tiers(0)->clear_tier(); }},
                                            {"tiers: 5 entries", [](Clear* r) {
                                               while (r->tiers_size() < 5)
                                                 r->add_tiers()->set_tier(v1::TIER_HOST);
                                             }}});
}

TEST(VerbCalls, RefusesInvalidEvents) {
  using Watch = v1::WatchEventsReply;
  Watch watch;
  Encode(Watched(), &watch);
  const auto stored = [](Watch* r) { return r->mutable_events(0)->mutable_stored(); };
  ExpectRefused<WatchReply, Watch>(
      watch,
      {{"boot_id: 257 bytes", [](Watch* r) { r->set_boot_id(std::string(257, 'x')); }},
       {"events[0].stored.variant_id: 0 bytes", [&](Watch* r) { stored(r)->clear_variant_id(); }},
       {"events[0].stored.tier: 7 is unknown", [&](Watch* r) { stored(r)->set_tier(v1::Tier(7)); }},
       {"events[0].stored.block_tokens: 17", [&](Watch* r) { stored(r)->set_block_tokens(17); }},
       {"events[0].stored.block_tokens: 4294967280",
        [&](Watch* r) { stored(r)->set_block_tokens(~15u); }},
       {"events[0].stored.tokens: 31 for 2 blocks",
        [&](Watch* r) { stored(r)->mutable_tokens()->RemoveLast(); }},
       {"events[0].stored.parent: 0 bytes", [&](Watch* r) { stored(r)->clear_parent(); }},
       {"events[0].stored.content_id: 1 bytes", [&](Watch* r) { stored(r)->set_content_id("x"); }},
       {"events[1].removed.digests: 15 bytes",
        [](Watch* r) { r->mutable_events(1)->mutable_removed()->mutable_digests()->pop_back(); }},
       {"events[1]: neither stored, removed nor cleared",
        [](Watch* r) { r->mutable_events(1)->clear_removed(); }},
       {"events[1].cleared.tier: 0", [](Watch* r) { r->mutable_events(1)->mutable_cleared(); }},
       {"events: 65537 entries",
        [](Watch* r) {
          while (r->events_size() < 65'537) r->add_events();
        }},
       {"events[1]: neither", [](Watch* r) { r->mutable_events(1)->clear_what(); }}});
}

TEST(VerbCalls, RefusesInvalidStats) {
  using Stats = v1::StatsReply;
  Stats stats;
  stats.add_tenants();
  ExpectRefused<NodeStats, Stats>(
      stats, {{"version: 257 bytes", [](Stats* r) { r->set_version(std::string(257, 'x')); }},
              {"uptime_s: not a duration",
               [](Stats* r) { r->set_uptime_s(std::numeric_limits<double>::quiet_NaN()); }},
              {"tenants: 1025 entries",
               [](Stats* r) {
                 while (r->tenants_size() < 1025) r->add_tenants();
               }},
              {"tenants[0].pages: 257 bytes",
               [](Stats* r) { r->mutable_tenants(0)->set_pages(std::string(257, 'x')); }},
              {"counters: 4097 entries",
               [](Stats* r) {
                 for (int i = 0; i < 4097; ++i) (*r->mutable_counters())[std::to_string(i)] = 1;
               }},
              {"gauges: a name of 257 bytes",
               [](Stats* r) { (*r->mutable_gauges())[std::string(257, 'x')] = 1; }}});
  v1::ConfigReply config;
  config.set_toml("pool = \"1GiB\"\n");
  ExpectRefused<std::string, v1::ConfigReply>(
      config, {{"toml: 1048577 bytes",
                [](v1::ConfigReply* r) { r->set_toml(std::string(kConfigBytesMax + 1, 'x')); }}});
}

}  // namespace
}  // namespace larder::wire
