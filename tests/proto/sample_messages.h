// A value of each message with every member different from its default, for tests and as seeds of
// the fuzzers.
//
// These are only values; each call makes a new one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/messages/messages.h"

namespace larder::wire::sample {

inline Digest AnyDigest(int n) {
  Digest digest;
  for (size_t i = 0; i < kDigestBytes; ++i)
    digest.bytes[i] = static_cast<std::byte>(n + static_cast<int>(i));
  return digest;
}

inline std::vector<Digest> Digests(int count) {
  std::vector<Digest> out;
  for (int i = 0; i < count; ++i) out.push_back(AnyDigest(3 * i + 1));
  return out;
}

inline std::vector<uint32_t> Tokens(uint32_t count) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(0xffff'fff0 + i * 3);
  return out;
}

inline SegmentTable Table() {
  SegmentTable table;
  table.segments = {
      {.layers = 2, .codec = Codec::kLossless, .bytes = 4097, .xxh3 = ~0ull, .raw_bytes = 9000},
      {.layers = 1, .codec = Codec::kJoint, .bytes = kSegmentBytesMax, .xxh3 = 5}};
  table.hashed = true;
  return table;
}

inline ContentSpec Content() {
  return {.tenant = "",
          .model = "m",
          .revision = "r",
          .salt = std::string("\0\xff", 2),
          .lora = "l",
          .multimodal = "\xfe"};
}

inline VariantSpec Variant() {
  return {.dtype = "f16",
          .layout = "llama.cpp/rows/1",
          .rank = 1,
          .ranks = 2,
          .group = "full",
          .block_tokens = 64,
          .layers = 3,
          .first_layer = 7,
          .kind = GroupKind::kWindow,
          .window_tokens = 1'024};
}

inline EngineDevice Device() {
  return {.kind = "host",
          .wish = "auto",
          .name = "memory",
          .driver = "13.0",
          .reason = "no driver",
          .limits = {"slow", ""}};
}

inline Up FullUp() {
  Up up;
  up.hello = Hello{.engine_id = "engine",
                   .role = Role::kWorker,
                   .rank = 2,
                   .write_mode = WriteMode::kStaged,
                   .feature_bits = 3,
                   .tenant = "t",
                   .client = "test",
                   .device = Device()};
  up.registers = {{.id = 1, .contents = {Content()}, .variants = {Variant(), Variant()}}};
  up.releases = {LeaseId{1}, LeaseId{~0ull}};
  up.revoke_ack = RevokeAck{.leases = {LeaseId{2}}, .reservations = {ReservationId{3}}};
  up.aborts = {{.reservation = ReservationId{4}, .extents = {0, 5}}};
  up.cancels = {6, 7};
  PublishBlock block{.extent = 1,
                     .digest = AnyDigest(1),
                     .parent = AnyDigest(2),
                     .tokens = Tokens(64),
                     .segments = Table(),
                     .staging_offset = 64,
                     .staging_id = 2,
                     .content = AnyDigest(3)};
  PublishBlock uniform = block;
  uniform.content = {};
  uniform.segments = UniformTable(3, 100);
  up.publishes = {
      {.id = 8, .reservation = ReservationId{9}, .variant = 1, .blocks = {block, uniform}}};
  up.reserves = {{.id = 10, .bytes = {ByteCount(1), MiB(1)}, .deadline_ms = 5},
                 {.id = 12,
                  .bytes = {ByteCount(1), MiB(1)},
                  .deadline_ms = 5,
                  .variant = 1,
                  .digests = Digests(2)}};
  Acquire acquire{.id = 11,
                  .variant = 1,
                  .digests = Digests(16),
                  .first_layer = 1,
                  .layers = 2,
                  .deadline_ms = 6,
                  .remaining_bytes = 7,
                  .accepted_codecs = {Codec::kLossless, Codec::kIdentity},
                  .what = AcquireWhat::kView,
                  .want_tables = true,
                  .promised_lease = LeaseId{8},
                  .staging_id = 3,
                  .staging_offset = 128,
                  .staging_bytes = 4096};
  Acquire plain = acquire;
  plain.accepted_codecs = {Codec::kIdentity};
  up.acquires = {acquire, plain};
  up.directives_done = {
      {.directive_id = 12, .status = {BlockStatus::kOk, BlockStatus::kUnsupported}}};
  up.device_blocks = {{.variant = 1,
                       .stored = Digests(2),
                       .removed = Digests(1),
                       .cleared = true,
                       .parent = AnyDigest(9),
                       .tokens = Tokens(32)}};
  up.damaged = {{.variant = 1, .digests = Digests(1)}};
  up.bye = true;
  up.promises = {{.id = 13,
                  .variants = {0, 1},
                  .digests = Digests(4),
                  .first_token = 16,
                  .deadline_ms = 7,
                  .remaining_bytes = 8,
                  .promise = {}},
                 {.id = 14,
                  .variants = {},
                  .digests = {},
                  .first_token = 0,
                  .deadline_ms = 9,
                  .remaining_bytes = 0,
                  .promise = LeaseId{10}}};
  return up;
}

inline Down FullDown() {
  Down down;
  down.attached = Attached{.session = SessionId{1},
                           .boot_id = "b",
                           .tenant = "t",
                           .write_mode = WriteMode::kStaged,
                           .write_mode_reason = "uid",
                           .feature_bits = 1,
                           .slab_bytes = MiB(256),
                           .lease_bytes_max = GiB(1),
                           .check_one_in = 16,
                           .keys_max = 128,
                           .read_mode = ReadMode::kCopied,
                           .read_mode_reason = "uid"};
  down.registered = {{.id = 1,
                      .status = BlockStatus::kFull,
                      .message = "x",
                      .variants = {1, 2},
                      .variant_ids = Digests(2),
                      .content_ids = Digests(1)}};
  const ExtentGrant extent{.slab = 65'535, .offset = 4096 + 64, .bytes = 5};
  down.reserved = {{.id = 2,
                    .status = BlockStatus::kFull,
                    .retry_after_ms = 3,
                    .reservation = ReservationId{4},
                    .extents = {extent, {}},
                    .word = 5,
                    .message = "y",
                    .taken = {0, 3}}};
  down.published = {{.id = 3, .status = {BlockStatus::kDuplicate}, .message = "z"}};
  const BlockGrant block{
      .status = BlockStatus::kOk, .tier = Tier::kDisk, .extent = extent, .table = Table()};
  down.grants = {{.id = 4,
                  .lease = LeaseId{5},
                  .deadline_ms = 6,
                  .word = 7,
                  .blocks = {block, {}, block},
                  .retry_after_ms = 8}};
  down.ready = {{.id = 5, .key = 4095, .block = block}};
  down.failed = {{.id = 6, .key = 1, .status = BlockStatus::kCancelled, .bytes = 64}};
  down.durable = {{.variant = 1, .digests = Digests(3)}};
  down.revocations = {{.leases = {LeaseId{1}},
                       .reservations = {ReservationId{2}},
                       .cause = RevocationCause::kDamage}};
  down.directives = {{.directive_id = 7,
                      .kind = DirectiveKind::kCompress,
                      .variant = 1,
                      .digests = Digests(1),
                      .deadline_unix_ms = ~0ull,
                      .owner = "o",
                      .codec = Codec::kQuantized,
                      .pinned = true,
                      .valid_unix_ms = 8},
                     Directive{}};
  down.promised = {{.id = 8,
                    .status = BlockStatus::kOk,
                    .promise = LeaseId{9},
                    .deadline_ms = 10,
                    .tokens = 48,
                    .blocks = {{.first_block = 1,
                                .status = {BlockStatus::kOk, BlockStatus::kPending},
                                .tiers = {Tier::kHost, Tier::kDisk}},
                               {}},
                    .retry_after_ms = 11}};
  down.promise_ready = {{.promise = LeaseId{9},
                         .blocks = {{.variant = 1, .block = 2, .status = BlockStatus::kDamaged}}}};
  return down;
}

inline LookupQuery LookupByTokens() {
  return {
      .tenant = "t", .content = Content(), .tokens = Tokens(17), .digests = {}, .engine_id = "e"};
}

inline LookupQuery LookupByDigests() {
  return {.tenant = "", .content = Content(), .tokens = {}, .digests = Digests(3), .engine_id = ""};
}

inline LookupResult FullLookupResult() {
  const TierHit hit{.tier = Tier::kDisk,
                    .contiguous = TokenCount(16),
                    .ranges = {{0, 16}, {32, 64}},
                    .bytes = ByteCount(9),
                    .load_s = 0.5};
  return {.instances = {{.engine_id = "e", .attached = true, .tiers = {hit}}}, .boot_id = "b"};
}

inline InstancesPage FullInstances() {
  const InstanceSession session{.session = SessionId{1},
                                .role = Role::kScheduler,
                                .rank = 2,
                                .peer = "uid 1",
                                .write_mode = WriteMode::kMapped,
                                .age_s = 1.5,
                                .device = Device()};
  return {.instances = {{.engine_id = "e",
                         .attached = true,
                         .sessions = {session},
                         .contents = {Content()},
                         .variants = {Variant()},
                         .blocks = 3,
                         .bytes = ByteCount(4)}},
          .next_page_token = "e"};
}

inline StoreBlocksPart FullStorePart() {
  StoreBlocksPart part;
  part.head =
      StoreHead{.content = Content(), .variant = Variant(), .engine_id = "e", .tenant = "t"};
  part.block = StoreBlock{.parent = AnyDigest(1), .tokens = Tokens(64), .segments = Table()};
  part.data = "data";
  return part;
}

inline StoreBlocksResult FullStoreResult() {
  return {.status = {BlockStatus::kDamaged}, .digests = Digests(1), .message = "m"};
}

inline FetchBlocksQuery FullFetchQuery() {
  return {
      .tenant = "t", .variant = Variant(), .digests = Digests(2), .first_layer = 1, .layers = 2};
}

inline FetchBlocksPart FullFetchPart() {
  FetchBlocksPart part;
  part.start = FetchStart{.key = 1,
                          .status = BlockStatus::kDamaged,
                          .record_header = std::string("\0h", 2),
                          .first_segment = 2,
                          .segments = 3};
  part.data = "data";
  return part;
}

}  // namespace larder::wire::sample
