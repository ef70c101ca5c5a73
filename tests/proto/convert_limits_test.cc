// Each limit of the contract is broken once, in a message that is otherwise valid.  Decode returns
// InvalidArgument and names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "larder/v1/cache.pb.h"
#include "larder/v1/engine.pb.h"
#include "proto/convert/convert.h"
#include "storage/format/record.h"
#include "tests/proto/sample_messages.h"

namespace larder::wire {
namespace {

template <class Wire>
struct Break {
  const char* error;  // how the message begins
  std::function<void(Wire*)> how;
};

template <class Wire, class Value>
void ExpectRefused(const Value& right, const std::vector<Break<Wire>>& breaks) {
  for (const Break<Wire>& wrong : breaks) {
    Wire in;
    Encode(right, &in);
    Value out;
    ASSERT_TRUE(Decode(in, &out).ok());
    wrong.how(&in);
    const absl::Status status = Decode(in, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.error;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(wrong.error));
  }
}

// Accepts values that are exactly at the limit.
template <class Wire, class Value>
void ExpectAccepted(const Value& right, const std::vector<std::function<void(Wire*)>>& changes) {
  for (size_t i = 0; i < changes.size(); ++i) {
    Wire in;
    Encode(right, &in);
    changes[i](&in);
    Value out;
    const absl::Status status = Decode(in, &out);
    EXPECT_TRUE(status.ok()) << "change " << i << ": " << status;
  }
}

std::string Text(size_t bytes) { return std::string(bytes, 'x'); }
v1::PublishBlock* Block(v1::Up* up) { return up->mutable_publishes(0)->mutable_blocks(0); }
v1::Grant* Granted(v1::Down* down) { return down->mutable_grants(0); }

template <class List>
void Fill(List* list, int count) {
  const auto first = list->Get(0);
  while (list->size() < count) *list->Add() = first;
}

TEST(ConvertLimits, Hello) {
  ExpectRefused<v1::Up>(
      sample::FullUp(),
      {{"hello.engine_id: 0 bytes; allowed are 1 to 256",
        [](v1::Up* up) { up->mutable_hello()->clear_engine_id(); }},
       {"hello.engine_id: 257 bytes",
        [](v1::Up* up) { up->mutable_hello()->set_engine_id(Text(257)); }},
       {"hello.role: 0 is unspecified", [](v1::Up* up) { up->mutable_hello()->clear_role(); }},
       {"hello.role: 4 is unknown", [](v1::Up* up) { up->mutable_hello()->set_role(v1::Role(4)); }},
       {"hello.role: -1 is unknown",
        [](v1::Up* up) { up->mutable_hello()->set_role(v1::Role(-1)); }},
       {"hello.write_mode: 0 is unspecified",
        [](v1::Up* up) { up->mutable_hello()->clear_write_mode(); }},
       {"hello.write_mode: 257 is unknown",
        [](v1::Up* up) { up->mutable_hello()->set_write_mode(v1::WriteMode(257)); }},
       {"hello.tenant: 65 bytes", [](v1::Up* up) { up->mutable_hello()->set_tenant(Text(65)); }},
       {"hello.client: 257 bytes", [](v1::Up* up) { up->mutable_hello()->set_client(Text(257)); }},
       {"hello.device.kind: 0 bytes; allowed are 1 to 16",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->clear_kind(); }},
       {"hello.device.kind: 17 bytes",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->set_kind(Text(17)); }},
       {"hello.device.wish: 17 bytes",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->set_wish(Text(17)); }},
       {"hello.device.name: 257 bytes",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->set_name(Text(257)); }},
       {"hello.device.driver: 257 bytes",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->set_driver(Text(257)); }},
       {"hello.device.reason: 257 bytes",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->set_reason(Text(257)); }},
       {"hello.device.limits: 17 entries; the limit is 16",
        [](v1::Up* up) {
          while (up->hello().device().limits_size() < 17)
            up->mutable_hello()->mutable_device()->add_limits("slow");
        }},
       {"hello.device.limits[0]: 257 bytes",
        [](v1::Up* up) { up->mutable_hello()->mutable_device()->set_limits(0, Text(257)); }}});
}

TEST(ConvertLimits, Register) {
  const auto content = [](v1::Up* up) { return up->mutable_registers(0)->mutable_contents(0); };
  const auto variant = [](v1::Up* up) { return up->mutable_registers(0)->mutable_variants(1); };
  ExpectRefused<v1::Up>(
      sample::FullUp(),
      {{"registers[0].id: 0 is not an id",
        [](v1::Up* up) { up->mutable_registers(0)->clear_id(); }},
       {"registers: 65 entries; the limit is 64",
        [](v1::Up* up) { Fill(up->mutable_registers(), 65); }},
       {"registers[0].contents: 1025 entries",
        [](v1::Up* up) { Fill(up->mutable_registers(0)->mutable_contents(), 1025); }},
       {"registers[0].variants: 1025 entries",
        [](v1::Up* up) { Fill(up->mutable_registers(0)->mutable_variants(), 1025); }},
       {"registers[0].contents[0].model: 0 bytes", [&](v1::Up* up) { content(up)->clear_model(); }},
       {"registers[0].contents[0].model: 257 bytes",
        [&](v1::Up* up) { content(up)->set_model(Text(257)); }},
       {"registers[0].contents[0].revision: 257 bytes",
        [&](v1::Up* up) { content(up)->set_revision(Text(257)); }},
       {"registers[0].contents[0].salt: 65 bytes",
        [&](v1::Up* up) { content(up)->set_salt(Text(65)); }},
       {"registers[0].contents[0].lora: 257 bytes",
        [&](v1::Up* up) { content(up)->set_lora(Text(257)); }},
       {"registers[0].contents[0].multimodal: 65 bytes",
        [&](v1::Up* up) { content(up)->set_multimodal(Text(65)); }},
       {"registers[0].variants[1].dtype: 33 bytes",
        [&](v1::Up* up) { variant(up)->set_dtype(Text(33)); }},
       {"registers[0].variants[1].dtype: 0 bytes", [&](v1::Up* up) { variant(up)->clear_dtype(); }},
       {"registers[0].variants[1].layout: 129 bytes",
        [&](v1::Up* up) { variant(up)->set_layout(Text(129)); }},
       {"registers[0].variants[1].group: 65 bytes",
        [&](v1::Up* up) { variant(up)->set_group(Text(65)); }},
       {"registers[0].variants[1]: ranks is 0", [&](v1::Up* up) { variant(up)->clear_ranks(); }},
       {"registers[0].variants[1]: rank is 2", [&](v1::Up* up) { variant(up)->set_rank(2); }},
       {"registers[0].variants[1]: block_tokens is 24",
        [&](v1::Up* up) { variant(up)->set_block_tokens(24); }},
       {"registers[0].variants[1]: layers is 0", [&](v1::Up* up) { variant(up)->clear_layers(); }},
       {"registers[0].variants[1]: first_layer is 65536",
        [&](v1::Up* up) { variant(up)->set_first_layer(65'536); }}});
}

TEST(ConvertLimits, ReleasesAbortsAndCancels) {
  const auto ids = [](google::protobuf::RepeatedField<uint64_t>* list) {
    list->Resize(kIdsMax + 1, 1);
  };
  ExpectRefused<v1::Up>(
      sample::FullUp(),
      {{"release.lease_ids: 65537 entries",
        [&](v1::Up* up) { ids(up->mutable_release()->mutable_lease_ids()); }},
       {"revoke_ack.lease_ids: 65537 entries",
        [&](v1::Up* up) { ids(up->mutable_revoke_ack()->mutable_lease_ids()); }},
       {"revoke_ack.reservation_ids: 65537 entries",
        [&](v1::Up* up) { ids(up->mutable_revoke_ack()->mutable_reservation_ids()); }},
       {"aborts[0].extents: 4097 entries",
        [](v1::Up* up) { up->mutable_aborts(0)->mutable_extents()->Resize(4097, 1); }},
       {"aborts: 65 entries", [](v1::Up* up) { Fill(up->mutable_aborts(), 65); }},
       {"cancels[1].id: 0 is not an id", [](v1::Up* up) { up->mutable_cancels(1)->clear_id(); }},
       {"cancels: 65 entries", [](v1::Up* up) { Fill(up->mutable_cancels(), 65); }}});
}

TEST(ConvertLimits, PublishAndReserve) {
  ExpectRefused<v1::Up>(
      sample::FullUp(),
      {{"publishes[0].id: 0 is not an id",
        [](v1::Up* up) { up->mutable_publishes(0)->clear_id(); }},
       {"publishes: 65 entries", [](v1::Up* up) { Fill(up->mutable_publishes(), 65); }},
       {"publishes[0].blocks: 4097 entries",
        [](v1::Up* up) { Fill(up->mutable_publishes(0)->mutable_blocks(), 4097); }},
       {"publishes[0].blocks[0].digest: 15 bytes; a digest has 16",
        [](v1::Up* up) { Block(up)->set_digest(Text(15)); }},
       {"publishes[0].blocks[0].parent: 0 bytes", [](v1::Up* up) { Block(up)->clear_parent(); }},
       {"publishes[0].blocks[0].tokens: 0 tokens", [](v1::Up* up) { Block(up)->clear_tokens(); }},
       {"publishes[0].blocks[0].tokens: 65 tokens", [](v1::Up* up) { Block(up)->add_tokens(1); }},
       {"publishes[0].blocks[0].tokens: 4112 tokens",
        [](v1::Up* up) { Block(up)->mutable_tokens()->Resize(4112, 1); }},
       {"publishes[0].blocks[0].segments.bytes: 0 segments",
        [](v1::Up* up) { Block(up)->clear_segments(); }},
       {"reserves[0].id: 0 is not an id", [](v1::Up* up) { up->mutable_reserves(0)->clear_id(); }},
       {"reserves: 65 entries", [](v1::Up* up) { Fill(up->mutable_reserves(), 65); }},
       {"reserves[0].bytes: 4097 entries",
        [](v1::Up* up) { up->mutable_reserves(0)->mutable_bytes()->Resize(4097, 1); }},
       {"reserves[0].bytes[1]: a block of 0 bytes",
        [](v1::Up* up) { up->mutable_reserves(0)->set_bytes(1, 0); }}});
}

TEST(ConvertLimits, AcquireAndReports) {
  const auto acquire = [](v1::Up* up) { return up->mutable_acquires(1); };
  const auto device = [](v1::Up* up) { return up->mutable_device_blocks(0); };
  ExpectRefused<v1::Up>(
      sample::FullUp(),
      {{"acquires[1].id: 0 is not an id", [&](v1::Up* up) { acquire(up)->clear_id(); }},
       {"acquires: 65 entries", [](v1::Up* up) { Fill(up->mutable_acquires(), 65); }},
       {"acquires[1].digests: 17 bytes is not a multiple of 16",
        [&](v1::Up* up) { acquire(up)->set_digests(Text(17)); }},
       {"acquires[1].digests: 4097 digests; the limit is 4096",
        [&](v1::Up* up) { acquire(up)->set_digests(Text(16 * 4097)); }},
       {"acquires[1].accepted_codecs[0]: 5 is unknown",
        [&](v1::Up* up) { acquire(up)->add_accepted_codecs(v1::Codec(5)); }},
       {"acquires[1].accepted_codecs[0]: 0 is unspecified",
        [&](v1::Up* up) { acquire(up)->add_accepted_codecs(v1::CODEC_UNSPECIFIED); }},
       {"acquires[1].accepted_codecs: 5 entries",
        [&](v1::Up* up) { acquire(up)->mutable_accepted_codecs()->Resize(5, 1); }},
       {"acquires[1].what: 0 is unspecified", [&](v1::Up* up) { acquire(up)->clear_what(); }},
       {"acquires[1].what: 4 is unknown",
        [&](v1::Up* up) { acquire(up)->set_what(v1::AcquireWhat(4)); }},
       {"directives_done: 65 entries", [](v1::Up* up) { Fill(up->mutable_directives_done(), 65); }},
       {"directives_done[0].status: 4097 entries",
        [](v1::Up* up) { up->mutable_directives_done(0)->mutable_status()->Resize(4097, 1); }},
       {"directives_done[0].status[1]: 12 is unknown",
        [](v1::Up* up) { up->mutable_directives_done(0)->set_status(1, v1::BlockStatus(12)); }},
       {"device_blocks: 65 entries", [](v1::Up* up) { Fill(up->mutable_device_blocks(), 65); }},
       {"device_blocks[0].stored: 4097 digests",
        [&](v1::Up* up) { device(up)->set_stored(Text(16 * 4097)); }},
       {"device_blocks[0].removed: 15 bytes",
        [&](v1::Up* up) { device(up)->set_removed(Text(15)); }},
       {"device_blocks[0].parent: 17 bytes", [&](v1::Up* up) { device(up)->set_parent(Text(17)); }},
       {"device_blocks[0].tokens: 48 tokens",
        [&](v1::Up* up) { device(up)->mutable_tokens()->Resize(48, 1); }},
       {"device_blocks[0].tokens: 32 tokens", [&](v1::Up* up) { device(up)->clear_stored(); }},
       {"device_blocks[0].tokens: 1048592 entries",
        [&](v1::Up* up) { device(up)->mutable_tokens()->Resize((1 << 20) + 16, 1); }},
       {"damaged: 65 entries", [](v1::Up* up) { Fill(up->mutable_damaged(), 65); }},
       {"damaged[0].digests: 1 bytes",
        [](v1::Up* up) { up->mutable_damaged(0)->set_digests("x"); }}});
}

TEST(ConvertLimits, ValuesAtTheLimitAreAccepted) {
  ExpectAccepted<v1::Up>(
      sample::FullUp(),
      {[](v1::Up* up) { up->mutable_hello()->set_engine_id(Text(256)); },
       [](v1::Up* up) { Fill(up->mutable_registers(0)->mutable_contents(), 64); },
       [](v1::Up* up) { Fill(up->mutable_registers(0)->mutable_variants(), 1024); },
       [](v1::Up* up) { up->mutable_release()->mutable_lease_ids()->Resize(kIdsMax, 0); },
       [](v1::Up* up) { Fill(up->mutable_publishes(0)->mutable_blocks(), 4096); },
       [](v1::Up* up) { Block(up)->mutable_tokens()->Resize(4096, 1); },
       [](v1::Up* up) { up->mutable_reserves(0)->mutable_bytes()->Resize(4096, 1); },
       [](v1::Up* up) { Fill(up->mutable_acquires(), 64); },
       [](v1::Up* up) { up->mutable_acquires(0)->set_digests(Text(16 * 4096)); },
       [](v1::Up* up) { up->mutable_acquires(0)->clear_digests(); },
       [](v1::Up* up) { up->mutable_device_blocks(0)->clear_tokens(); }});
}

TEST(ConvertLimits, SegmentTable) {
  using Table = v1::SegmentTable;
  ExpectRefused<Table>(
      sample::Table(),
      {{"bytes: 0 segments; allowed are 1 to 1024", [](Table* t) { t->clear_bytes(); }},
       {"bytes: 1025 segments", [](Table* t) { t->mutable_bytes()->Resize(1025, 1); }},
       {"layers: 1 entries for 2 segments", [](Table* t) { t->mutable_layers()->Resize(1, 1); }},
       {"xxh3: 3 entries for 2 segments", [](Table* t) { t->mutable_xxh3()->Resize(3, 1); }},
       {"codecs: 1 entries for 2 segments", [](Table* t) { t->mutable_codecs()->Resize(1, 1); }},
       {"layers[1]: 0 layers", [](Table* t) { t->set_layers(1, 0); }},
       {"layers[0]: 65537 layers", [](Table* t) { t->set_layers(0, 65'537); }},
       {"layers: 1025 layers in all", [](Table* t) { t->set_layers(0, 1024); }},
       {"bytes[0]: 0 bytes", [](Table* t) { t->set_bytes(0, 0); }},
       {"bytes[1]: 1073741824 bytes", [](Table* t) { t->set_bytes(1, 1u << 30); }},
       {"codecs[0]: 0 is unspecified", [](Table* t) { t->set_codecs(0, v1::CODEC_UNSPECIFIED); }},
       {"codecs[1]: 5 is unknown", [](Table* t) { t->set_codecs(1, v1::Codec(5)); }},
       {"raw_bytes: 1 entries for 2 segments",
        [](Table* t) { t->mutable_raw_bytes()->Resize(1, 1); }},
       {"raw_bytes[0]: 1073741824 bytes", [](Table* t) { t->set_raw_bytes(0, 1u << 30); }},
       {"raw_bytes[0]: 9000 bytes; allowed are 0 to 0",
        [](Table* t) { t->set_codecs(0, v1::CODEC_IDENTITY); }}});
}

TEST(ConvertLimits, AttachedRegisteredReserved) {
  const auto attached = [](v1::Down* down) { return down->mutable_attached(); };
  const auto extent = [](v1::Down* down) { return down->mutable_reserved(0)->mutable_extents(0); };
  ExpectRefused<v1::Down>(
      sample::FullDown(),
      {{"attached.session_id: 0 is not an id",
        [&](v1::Down* down) { attached(down)->clear_session_id(); }},
       {"attached.boot_id: 257 bytes",
        [&](v1::Down* down) { attached(down)->set_boot_id(Text(257)); }},
       {"attached.tenant: 0 bytes", [&](v1::Down* down) { attached(down)->clear_tenant(); }},
       {"attached.write_mode: 0 is unspecified",
        [&](v1::Down* down) { attached(down)->clear_write_mode(); }},
       {"attached.write_mode_reason: 257 bytes",
        [&](v1::Down* down) { attached(down)->set_write_mode_reason(Text(257)); }},
       {"attached.keys_max: 0 keys", [&](v1::Down* down) { attached(down)->clear_keys_max(); }},
       {"registered[0].id: 0", [](v1::Down* down) { down->mutable_registered(0)->clear_id(); }},
       {"registered: 65 entries", [](v1::Down* down) { Fill(down->mutable_registered(), 65); }},
       {"registered[0].status: 0",
        [](v1::Down* down) { down->mutable_registered(0)->clear_status(); }},
       {"registered[0].message: 257 bytes",
        [](v1::Down* down) { down->mutable_registered(0)->set_message(Text(257)); }},
       {"registered[0].variants: 1025 entries",
        [](v1::Down* down) { down->mutable_registered(0)->mutable_variants()->Resize(1025, 1); }},
       {"registered[0].variant_ids: 1 digests for 2 variants",
        [](v1::Down* down) { down->mutable_registered(0)->set_variant_ids(Text(16)); }},
       {"registered[0].content_ids: 1025 digests",
        [](v1::Down* down) { down->mutable_registered(0)->set_content_ids(Text(16 * 1025)); }},
       {"reserved[0].id: 0", [](v1::Down* down) { down->mutable_reserved(0)->clear_id(); }},
       {"reserved: 65 entries", [](v1::Down* down) { Fill(down->mutable_reserved(), 65); }},
       {"reserved[0].message: 257 bytes",
        [](v1::Down* down) { down->mutable_reserved(0)->set_message(Text(257)); }},
       {"reserved[0].extents: 4097 entries",
        [](v1::Down* down) { Fill(down->mutable_reserved(0)->mutable_extents(), 4097); }},
       {"reserved[0].reservation_id: 0",
        [](v1::Down* down) {
          down->mutable_reserved(0)->clear_reservation_id();
          down->mutable_reserved(0)->set_status(v1::BLOCK_STATUS_OK);
        }},
       {"reserved[0].extents[0].slab: 65536",
        [&](v1::Down* down) { extent(down)->set_slab(65'536); }},
       {"reserved[0].extents[0].offset: 4161 is not a multiple of 64",
        [&](v1::Down* down) { extent(down)->set_offset(4161); }},
       {"reserved[0].extents[0].bytes: 5 bytes at 18446744073709551552 end beyond",
        [&](v1::Down* down) { extent(down)->set_offset(~0ull - 63); }},
       {"reserved[0].extents[0].bytes: 18446744073709551615 bytes",
        [&](v1::Down* down) { extent(down)->set_bytes(~0ull); }}});
}

TEST(ConvertLimits, Grants) {
  ExpectRefused<v1::Down>(
      sample::FullDown(),
      {{"published[0].id: 0", [](v1::Down* down) { down->mutable_published(0)->clear_id(); }},
       {"published: 65 entries", [](v1::Down* down) { Fill(down->mutable_published(), 65); }},
       {"published[0].message: 257 bytes",
        [](v1::Down* down) { down->mutable_published(0)->set_message(Text(257)); }},
       {"published[0].status[0]: 0",
        [](v1::Down* down) { down->mutable_published(0)->set_status(0, v1::BlockStatus(0)); }},
       {"published[0].status: 4097 entries",
        [](v1::Down* down) { down->mutable_published(0)->mutable_status()->Resize(4097, 1); }},
       {"grants[0].id: 0", [](v1::Down* down) { down->mutable_grants(0)->clear_id(); }},
       {"grants: 65 entries", [](v1::Down* down) { Fill(down->mutable_grants(), 65); }},
       {"grants[0].status: 4097 entries",
        [](v1::Down* down) { Granted(down)->mutable_status()->Resize(4097, 1); }},
       {"grants[0].lease_id: 0 is not a lease",
        [](v1::Down* down) { Granted(down)->clear_lease_id(); }},
       {"grants[0].status[0]: 0",
        [](v1::Down* down) { Granted(down)->set_status(0, v1::BLOCK_STATUS_UNSPECIFIED); }},
       {"grants[0].status[0]: 12",
        [](v1::Down* down) { Granted(down)->set_status(0, v1::BlockStatus(12)); }},
       {"grants[0].tiers[0]: 0",
        [](v1::Down* down) { Granted(down)->set_tiers(0, v1::TIER_UNSPECIFIED); }},
       {"grants[0].tiers[1]: 5", [](v1::Down* down) { Granted(down)->set_tiers(1, v1::Tier(5)); }},
       {"grants[0].tiers: ", [](v1::Down* down) { Granted(down)->add_tiers(v1::TIER_HOST); }},
       {"grants[0].slabs: ", [](v1::Down* down) { Granted(down)->add_slabs(0); }},
       {"grants[0].slabs[0]: 65536", [](v1::Down* down) { Granted(down)->set_slabs(0, 65536); }},
       {"grants[0].offsets: ", [](v1::Down* down) { Granted(down)->add_offsets(0); }},
       {"grants[0].offsets[0]: 1", [](v1::Down* down) { Granted(down)->set_offsets(0, 1); }},
       {"grants[0].bytes: ", [](v1::Down* down) { Granted(down)->add_bytes(0); }},
       {"grants[0].bytes[0]: 18446744073709551615 bytes",
        [](v1::Down* down) { Granted(down)->set_bytes(0, ~0ull); }},
       {"grants[0].tables: ", [](v1::Down* down) { Fill(Granted(down)->mutable_tables(), 4097); }},
       {"grants[0].tables[0].key: 4096",
        [](v1::Down* down) { Granted(down)->mutable_tables(0)->set_key(4096); }},
       {"grants[0].tables[1].key: 0",
        [](v1::Down* down) {
          *Granted(down)->add_tables() = Granted(down)->tables(0);
          Granted(down)->mutable_tables(0)->set_key(0);
          Granted(down)->mutable_tables(1)->set_key(0);
        }},
       {"grants[0].tables[0].table.bytes[0]: 0",
        [](v1::Down* down) { Granted(down)->mutable_tables(0)->mutable_table()->set_bytes(0, 0); }},
       {"ready: 4097 entries", [](v1::Down* down) { Fill(down->mutable_ready(), 4097); }},
       {"ready[0].id: 0", [](v1::Down* down) { down->mutable_ready(0)->clear_id(); }},
       {"ready[0].key: 4096", [](v1::Down* down) { down->mutable_ready(0)->set_key(4096); }},
       {"ready[0].block.status: 0", [](v1::Down* down) { down->mutable_ready(0)->clear_block(); }},
       {"ready[0].block.status: pending",
        [](v1::Down* down) {
          down->mutable_ready(0)->mutable_block()->set_status(v1::BLOCK_STATUS_PENDING);
        }},
       {"failed: 4097 entries", [](v1::Down* down) { Fill(down->mutable_failed(), 4097); }},
       {"failed[0].id: 0", [](v1::Down* down) { down->mutable_failed(0)->clear_id(); }},
       {"failed[0].key: 4096", [](v1::Down* down) { down->mutable_failed(0)->set_key(4096); }},
       {"failed[0].status: ok",
        [](v1::Down* down) { down->mutable_failed(0)->set_status(v1::BLOCK_STATUS_OK); }}});
}

TEST(ConvertLimits, MessagesOfTheDaemon) {
  ExpectRefused<v1::Down>(
      sample::FullDown(),
      {{"durable: 65 entries", [](v1::Down* down) { Fill(down->mutable_durable(), 65); }},
       {"durable[0].digests: 4097 digests",
        [](v1::Down* down) { down->mutable_durable(0)->set_digests(Text(16 * 4097)); }},
       {"revocations: 65 entries", [](v1::Down* down) { Fill(down->mutable_revocations(), 65); }},
       {"revocations[0].lease_ids: 65537 entries",
        [](v1::Down* down) {
          down->mutable_revocations(0)->mutable_lease_ids()->Resize(65'537, 1);
        }},
       {"revocations[0].reservation_ids: 65537 entries",
        [](v1::Down* down) {
          down->mutable_revocations(0)->mutable_reservation_ids()->Resize(65'537, 1);
        }},
       {"revocations[0].cause: 0",
        [](v1::Down* down) { down->mutable_revocations(0)->clear_cause(); }},
       {"directives: 65 entries", [](v1::Down* down) { Fill(down->mutable_directives(), 65); }},
       {"directives[0].kind: 0", [](v1::Down* down) { down->mutable_directives(0)->clear_kind(); }},
       {"directives[0].kind: 6",
        [](v1::Down* down) { down->mutable_directives(0)->set_kind(v1::DirectiveKind(6)); }},
       {"directives[0].digests: 8 bytes",
        [](v1::Down* down) { down->mutable_directives(0)->set_digests(Text(8)); }},
       {"directives[0].owner: 257 bytes",
        [](v1::Down* down) { down->mutable_directives(0)->set_owner(Text(257)); }},
       {"directives[0].codec: 0",
        [](v1::Down* down) { down->mutable_directives(0)->clear_codec(); }},
       {"directives[1].codec: 5",
        [](v1::Down* down) { down->mutable_directives(1)->set_codec(v1::Codec(5)); }}});
}

TEST(ConvertLimits, Lookup) {
  using Request = v1::LookupRequest;
  ExpectRefused<Request>(sample::LookupByTokens(),
                         {{"tenant: 65 bytes", [](Request* r) { r->set_tenant(Text(65)); }},
                          {"content.model: 0 bytes", [](Request* r) { r->clear_content(); }},
                          {"engine_id: 257 bytes", [](Request* r) { r->set_engine_id(Text(257)); }},
                          {"tokens: neither", [](Request* r) { r->clear_tokens(); }},
                          {"tokens: both", [](Request* r) { r->set_digests(Text(16)); }},
                          {"tokens: 1048577 entries",
                           [](Request* r) { r->mutable_tokens()->Resize((1 << 20) + 1, 1); }}});
  ExpectRefused<Request>(
      sample::LookupByDigests(),
      {{"digests: 31 bytes", [](Request* r) { r->set_digests(Text(31)); }},
       {"digests: 8193 digests", [](Request* r) { r->set_digests(Text(16 * 8193)); }}});
  ExpectAccepted<Request>(sample::LookupByDigests(),
                          {[](Request* r) { r->set_digests(Text(16 * 8192)); }});
  ExpectAccepted<Request>(sample::LookupByTokens(),
                          {[](Request* r) { r->mutable_tokens()->Resize(1 << 20, 1); }});

  using Reply = v1::LookupReply;
  const auto tier = [](Reply* r) { return r->mutable_instances(0)->mutable_tiers(0); };
  ExpectRefused<Reply>(
      sample::FullLookupResult(),
      {{"instances: 65537 entries", [](Reply* r) { Fill(r->mutable_instances(), 65'537); }},
       {"boot_id: 257 bytes", [](Reply* r) { r->set_boot_id(Text(257)); }},
       {"instances[0].engine_id: 0 bytes",
        [](Reply* r) { r->mutable_instances(0)->clear_engine_id(); }},
       {"instances[0].tiers: 5 entries",
        [](Reply* r) { Fill(r->mutable_instances(0)->mutable_tiers(), 5); }},
       {"instances[0].tiers[0].tier: 0", [&](Reply* r) { tier(r)->clear_tier(); }},
       {"instances[0].tiers[0].ranges: 65537 entries",
        [&](Reply* r) { Fill(tier(r)->mutable_ranges(), 65'537); }},
       {"instances[0].tiers[0].ranges[0]: [0, 0)",
        [&](Reply* r) { tier(r)->mutable_ranges(0)->clear_end(); }},
       {"instances[0].tiers[0].ranges[0]: [0, 17)",
        [&](Reply* r) { tier(r)->mutable_ranges(0)->set_end(17); }},
       {"instances[0].tiers[0].ranges[1]: [32, 64)",
        [&](Reply* r) { tier(r)->mutable_ranges(0)->set_end(48); }},
       {"instances[0].tiers[0].load_s: not a duration", [&](Reply* r) { tier(r)->set_load_s(-1); }},
       {"instances[0].tiers[0].load_s: not a duration",
        [&](Reply* r) { tier(r)->set_load_s(std::nan("")); }}});
}

TEST(ConvertLimits, ListInstances) {
  v1::ListInstancesRequest request;
  request.set_tenant(Text(65));
  InstancesQuery query;
  EXPECT_EQ(Decode(request, &query).message(), "tenant: 65 bytes; allowed are 0 to 64");
  request.clear_tenant();
  request.set_page_token(Text(257));
  EXPECT_EQ(Decode(request, &query).message(), "page_token: 257 bytes; allowed are 0 to 256");

  using Reply = v1::ListInstancesReply;
  const auto session = [](Reply* r) { return r->mutable_instances(0)->mutable_sessions(0); };
  ExpectRefused<Reply>(
      sample::FullInstances(),
      {{"instances: 65537 entries", [](Reply* r) { Fill(r->mutable_instances(), 65'537); }},
       {"instances[0].engine_id: 257 bytes",
        [](Reply* r) { r->mutable_instances(0)->set_engine_id(Text(257)); }},
       {"instances[0].sessions: 4097 entries",
        [](Reply* r) { Fill(r->mutable_instances(0)->mutable_sessions(), 4097); }},
       {"instances[0].contents: 65 entries",
        [](Reply* r) { Fill(r->mutable_instances(0)->mutable_contents(), 65); }},
       {"instances[0].variants: 1025 entries",
        [](Reply* r) { Fill(r->mutable_instances(0)->mutable_variants(), 1025); }},
       {"instances[0].sessions[0].role: unknown name", [&](Reply* r) { session(r)->clear_role(); }},
       {"instances[0].sessions[0].write_mode: unknown name",
        [&](Reply* r) { session(r)->set_write_mode("?"); }},
       {"instances[0].sessions[0].peer: 257 bytes",
        [&](Reply* r) { session(r)->set_peer(Text(257)); }},
       {"instances[0].sessions[0].device.kind: 17 bytes",
        [&](Reply* r) { session(r)->mutable_device()->set_kind(Text(17)); }},
       {"instances[0].sessions[0].age_s: not a duration",
        [&](Reply* r) { session(r)->set_age_s(-1); }}});
}

TEST(ConvertLimits, ByteStreams) {
  ExpectRefused<v1::StoreBlocksRequest>(
      sample::FullStorePart(),
      {{"content.model: 0 bytes", [](auto* r) { r->clear_content(); }},
       {"variant.dtype: 0 bytes", [](auto* r) { r->clear_variant(); }},
       {"engine_id: 257 bytes", [](auto* r) { r->set_engine_id(Text(257)); }},
       {"tenant: 65 bytes", [](auto* r) { r->set_tenant(Text(65)); }},
       {"block.parent: 17 bytes", [](auto* r) { r->mutable_block()->set_parent(Text(17)); }},
       {"block.tokens: 0 tokens", [](auto* r) { r->mutable_block()->clear_tokens(); }},
       {"block.segments.bytes: 0 segments", [](auto* r) { r->mutable_block()->clear_segments(); }},
       {"block.segments.xxh3: hashes are required",
        [](auto* r) { r->mutable_block()->mutable_segments()->clear_xxh3(); }},
       {"data: 1048577 bytes", [](auto* r) { r->set_data(Text((1 << 20) + 1)); }}});
  ExpectRefused<v1::StoreBlocksReply>(
      sample::FullStoreResult(),
      {{"status[0]: 0 is unspecified",
        [](auto* r) { r->set_status(0, v1::BLOCK_STATUS_UNSPECIFIED); }},
       {"status: 8193 entries", [](auto* r) { r->mutable_status()->Resize(8193, 1); }},
       {"digests: 0 digests for 1 blocks", [](auto* r) { r->clear_digests(); }},
       {"message: 257 bytes", [](auto* r) { r->set_message(Text(257)); }}});
  ExpectRefused<v1::FetchBlocksRequest>(
      sample::FullFetchQuery(),
      {{"tenant: 65 bytes", [](auto* r) { r->set_tenant(Text(65)); }},
       {"variant.dtype: 0 bytes", [](auto* r) { r->clear_variant(); }},
       {"digests: 4097 digests", [](auto* r) { r->set_digests(Text(16 * 4097)); }}});
  ExpectRefused<v1::FetchBlocksReply>(
      sample::FullFetchPart(),
      {{"start.key: 4096", [](auto* r) { r->mutable_start()->set_key(4096); }},
       {"start.status: 0 is unspecified", [](auto* r) { r->mutable_start()->clear_status(); }},
       {"start.record_header: 65537 bytes",
        [](auto* r) { r->mutable_start()->set_record_header(Text(kRecordHeaderBytesMax + 1)); }},
       {"start.segments: 4294967295 segments from 2",
        [](auto* r) { r->mutable_start()->set_segments(~0u); }},
       {"data: 1048577 bytes", [](auto* r) { r->set_data(Text((1 << 20) + 1)); }}});
}

}  // namespace
}  // namespace larder::wire
