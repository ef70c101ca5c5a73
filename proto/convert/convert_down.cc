// Down: the messages from the daemon to the client.
#include <algorithm>

#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"

namespace larder::wire {
namespace {

// The limits of the types of storage/types.h: 2^16 slabs of 2^32 pages.
constexpr uint64_t kSlabsMax = uint64_t{1} << 16;
constexpr uint64_t kSlabBytesMax = kPageBytes << 32;

// An older daemon does not send the read mode, which then follows from the write mode.
void DecodeReadMode(const Field& at, const v1::Attached& in, Attached* out) {
  if (in.read_mode() != v1::READ_MODE_UNSPECIFIED)
    return DecodeEnum(at, in.read_mode(), &out->read_mode);
  out->read_mode = out->write_mode == WriteMode::kStream ? ReadMode::kStream : ReadMode::kMapped;
}

void DecodeAttached(const Field& at, const v1::Attached& in, Attached* out) {
  DecodeRequestId(at("session_id"), in.session_id(), &out->session.value);
  DecodeString(at("boot_id"), in.boot_id(), kAnyString, &out->boot_id);
  DecodeString(at("tenant"), in.tenant(), {1, kTenantBytesMax}, &out->tenant);
  DecodeEnum(at("write_mode"), in.write_mode(), &out->write_mode);
  DecodeString(at("write_mode_reason"), in.write_mode_reason(), kAnyString,
               &out->write_mode_reason);
  out->feature_bits = in.feature_bits();
  out->slab_bytes = ByteCount(in.slab_bytes());
  out->lease_bytes_max = ByteCount(in.lease_bytes_max());
  out->check_one_in = in.check_one_in();
  // If keys_max were 0, a client that splits batches by it would never end.  If the daemon
  // accepts more keys than this library can decode, the library's limit holds.
  if (in.keys_max() == 0)
    return at("keys_max").Refuse("0 keys per request; at least 1 is required");
  out->keys_max = std::min(in.keys_max(), static_cast<uint32_t>(kKeysMax));
  DecodeReadMode(at("read_mode"), in, out);
  DecodeString(at("read_mode_reason"), in.read_mode_reason(), kAnyString, &out->read_mode_reason);
}

void EncodeAttached(const Attached& in, v1::Attached* out) {
  out->set_session_id(in.session.value);
  out->set_boot_id(in.boot_id);
  out->set_tenant(in.tenant);
  out->set_write_mode(static_cast<v1::WriteMode>(in.write_mode));
  out->mutable_write_mode_reason()->assign(CutSentence(in.write_mode_reason));
  out->set_feature_bits(in.feature_bits);
  out->set_slab_bytes(in.slab_bytes.value());
  out->set_lease_bytes_max(in.lease_bytes_max.value());
  out->set_check_one_in(in.check_one_in);
  out->set_keys_max(in.keys_max);
  out->set_read_mode(static_cast<v1::ReadMode>(in.read_mode));
  out->mutable_read_mode_reason()->assign(CutSentence(in.read_mode_reason));
}

void DecodeRegistered(const Field& at, const v1::Registered& in, Registered* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeEnum(at("status"), in.status(), &out->status);
  DecodeString(at("message"), in.message(), kAnyString, &out->message);
  if (!CheckCount(at("variants"), in.variants_size(), kVariantsMax)) return;
  out->variants.assign(in.variants().begin(), in.variants().end());
  DecodeDigests(at("variant_ids"), in.variant_ids(), kVariantsMax, &out->variant_ids);
  DecodeDigests(at("content_ids"), in.content_ids(), kRegisterContentsMax, &out->content_ids);
  if (out->variant_ids.size() != out->variants.size()) {
    at("variant_ids")
        .Refuse(out->variant_ids.size(), " digests for ", out->variants.size(), " variants");
  }
}

void EncodeRegistered(const Registered& in, v1::Registered* out) {
  out->set_id(in.id);
  out->set_status(static_cast<v1::BlockStatus>(in.status));
  out->mutable_message()->assign(CutSentence(in.message));
  out->mutable_variants()->Add(in.variants.begin(), in.variants.end());
  EncodeDigests(in.variant_ids, out->mutable_variant_ids());
  EncodeDigests(in.content_ids, out->mutable_content_ids());
}

// After this check no sum of the extent's numbers can overflow.  Whether the slab or staging
// segment has this range is checked when it is used.  A range may begin at any segment of a block,
// so offsets are aligned as segments are, not as pages.
void CheckExtent(const Field& slab, const Field& offset, const Field& bytes,
                 const ExtentGrant& extent) {
  if (extent.slab >= kSlabsMax) return slab.Refuse(extent.slab, " is not below ", kSlabsMax);
  if (extent.offset % kSegmentAlign != 0) {
    return offset.Refuse(extent.offset, " is not a multiple of ", kSegmentAlign);
  }
  if (extent.offset > kSlabBytesMax || extent.bytes > kSlabBytesMax - extent.offset) {
    return bytes.Refuse(extent.bytes, " bytes at ", extent.offset, " end beyond ", kSlabBytesMax);
  }
}

void DecodeExtent(const Field& at, const v1::ExtentGrant& in, ExtentGrant* out) {
  *out = {in.slab(), in.offset(), in.bytes()};
  CheckExtent(at("slab"), at("offset"), at("bytes"), *out);
}

void EncodeExtent(const ExtentGrant& in, v1::ExtentGrant* out) {
  out->set_slab(in.slab);
  out->set_offset(in.offset);
  out->set_bytes(in.bytes);
}

void DecodeReserved(const Field& at, const v1::Reserved& in, Reserved* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeEnum(at("status"), in.status(), &out->status);
  out->retry_after_ms = in.retry_after_ms();
  out->reservation = ReservationId{in.reservation_id()};
  DecodeEach(at("extents"), in.extents(), kKeysMax, DecodeExtent, &out->extents);
  out->word = in.word();
  DecodeString(at("message"), in.message(), kAnyString, &out->message);
  if (!CheckCount(at("taken"), in.taken_size(), kKeysMax)) return;
  out->taken.assign(in.taken().begin(), in.taken().end());
  if (at.ok() && out->status == BlockStatus::kOk && !out->reservation) {
    at("reservation_id").Refuse("0 is not a reservation, although the status is OK");
  }
}

void EncodeReserved(const Reserved& in, v1::Reserved* out) {
  out->set_id(in.id);
  out->set_status(static_cast<v1::BlockStatus>(in.status));
  out->set_retry_after_ms(in.retry_after_ms);
  out->set_reservation_id(in.reservation.value);
  EncodeEach(in.extents, EncodeExtent, out->mutable_extents());
  out->set_word(in.word);
  out->mutable_message()->assign(CutSentence(in.message));
  out->mutable_taken()->Add(in.taken.begin(), in.taken.end());
}

void DecodePublished(const Field& at, const v1::Published& in, Published* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeEnums(at("status"), in.status(), kKeysMax, &out->status);
  DecodeString(at("message"), in.message(), kAnyString, &out->message);
}

void EncodePublished(const Published& in, v1::Published* out) {
  out->set_id(in.id);
  EncodeEnums(in.status, out->mutable_status());
  out->mutable_message()->assign(CutSentence(in.message));
}

[[nodiscard]] bool IsHeld(BlockStatus status) {
  return status == BlockStatus::kOk || status == BlockStatus::kPending;
}

void DecodeBlockGrant(const Field& at, const v1::BlockGrant& in, BlockGrant* out) {
  DecodeEnum(at("status"), in.status(), &out->status);
  out->tier = BlockGrant{}.tier;
  // A block that is not held need not have a tier.
  if (in.tier() != v1::TIER_UNSPECIFIED || IsHeld(out->status))
    DecodeEnum(at("tier"), in.tier(), &out->tier);
  out->extent = {};
  if (in.has_extent()) DecodeExtent(at("extent"), in.extent(), &out->extent);
  out->table.reset();
  if (in.has_table()) DecodeTable(at("table"), in.table(), &out->table.emplace());
}

void EncodeBlockGrant(const BlockGrant& in, v1::BlockGrant* out) {
  out->set_status(static_cast<v1::BlockStatus>(in.status));
  out->set_tier(static_cast<v1::Tier>(in.tier));
  if (in.extent != ExtentGrant{}) EncodeExtent(in.extent, out->mutable_extent());
  if (in.table) Encode(*in.table, out->mutable_table());
}

// Refuses a list that is neither empty nor has one entry per key.
bool CheckList(const Field& at, int size, int keys) {
  if (size == keys || size == 0) return true;
  at.Refuse(size, " for ", keys, " keys");
  return false;
}

// Decodes the parallel lists of a Grant into one value per key.
void DecodeGrantBlocks(const Field& at, const v1::Grant& in, std::vector<BlockGrant>* out) {
  const int keys = in.status_size();
  if (!CheckCount(at("status"), keys, kKeysMax) || !CheckList(at("tiers"), in.tiers_size(), keys) ||
      !CheckList(at("slabs"), in.slabs_size(), keys)) {
    return;
  }
  if (in.offsets_size() != in.slabs_size()) {
    return at("offsets").Refuse(in.offsets_size(), " for ", in.slabs_size(), " slabs");
  }
  if (in.bytes_size() != in.slabs_size()) {
    return at("bytes").Refuse(in.bytes_size(), " for ", in.slabs_size(), " slabs");
  }
  out->resize(static_cast<size_t>(keys));
  for (int i = 0; i < keys && at.ok(); ++i) {
    BlockGrant& block = (*out)[static_cast<size_t>(i)];
    block = {};
    DecodeEnum(at("status")[i], in.status(i), &block.status);
    const int tier = in.tiers().empty() ? v1::TIER_UNSPECIFIED : in.tiers(i);
    // A block that is not held need not have a tier.
    if (tier != v1::TIER_UNSPECIFIED || IsHeld(block.status))
      DecodeEnum(at("tiers")[i], tier, &block.tier);
    if (in.slabs().empty()) continue;
    block.extent = {in.slabs(i), in.offsets(i), in.bytes(i)};
    CheckExtent(at("slabs")[i], at("offsets")[i], at("bytes")[i], block.extent);
  }
}

void DecodeGrantTables(const Field& at, const v1::Grant& in, std::vector<BlockGrant>* out) {
  if (!CheckCount(at, in.tables_size(), out->size())) return;
  for (int i = 0; i < in.tables_size() && at.ok(); ++i) {
    const v1::GrantTable& table = in.tables(i);
    if (table.key() >= out->size() || (i > 0 && table.key() <= in.tables(i - 1).key())) {
      return at[i]("key").Refuse(table.key(), " is not in ascending order, or not below ",
                                 out->size(), " (the number of keys)");
    }
    DecodeTable(at[i]("table"), table.table(), &(*out)[table.key()].table.emplace());
  }
}

void DecodeGrant(const Field& at, const v1::Grant& in, Grant* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  out->lease = LeaseId{in.lease_id()};
  out->deadline_ms = std::min(in.deadline_ms(), kDeadlineMaxMs);
  out->word = in.word();
  out->retry_after_ms = in.retry_after_ms();
  DecodeGrantBlocks(at, in, &out->blocks);
  if (at.ok()) DecodeGrantTables(at("tables"), in, &out->blocks);
  if (!at.ok() || out->lease) return;
  for (const BlockGrant& block : out->blocks) {
    if (IsHeld(block.status))
      return at("lease_id").Refuse("0 is not a lease, although the grant holds blocks");
  }
}

void EncodeGrant(const Grant& in, v1::Grant* out) {
  out->set_id(in.id);
  out->set_lease_id(in.lease.value);
  out->set_deadline_ms(in.deadline_ms);
  out->set_word(in.word);
  out->set_retry_after_ms(in.retry_after_ms);
  const int keys = static_cast<int>(in.blocks.size());
  out->mutable_status()->Reserve(keys);
  out->mutable_tiers()->Reserve(keys);
  bool extents = false;
  for (const BlockGrant& block : in.blocks) {
    out->mutable_status()->AddAlreadyReserved(static_cast<int>(block.status));
    out->mutable_tiers()->AddAlreadyReserved(static_cast<int>(block.tier));
    extents = extents || block.extent != ExtentGrant{};
  }
  if (extents) {
    out->mutable_slabs()->Reserve(keys);
    out->mutable_offsets()->Reserve(keys);
    out->mutable_bytes()->Reserve(keys);
  }
  for (int i = 0; i < keys; ++i) {
    const BlockGrant& block = in.blocks[static_cast<size_t>(i)];
    if (extents) {
      out->mutable_slabs()->AddAlreadyReserved(block.extent.slab);
      out->mutable_offsets()->AddAlreadyReserved(block.extent.offset);
      out->mutable_bytes()->AddAlreadyReserved(block.extent.bytes);
    }
    if (!block.table) continue;
    v1::GrantTable* table = out->add_tables();
    table->set_key(static_cast<uint32_t>(i));
    Encode(*block.table, table->mutable_table());
  }
}

void DecodeKey(const Field& at, uint32_t in, uint32_t* out) {
  if (in >= kKeysMax) return at.Refuse(in, " is not below ", kKeysMax);
  *out = in;
}

void DecodeReady(const Field& at, const v1::BlockReady& in, BlockReady* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeKey(at("key"), in.key(), &out->key);
  DecodeBlockGrant(at("block"), in.block(), &out->block);
  if (at.ok() && out->block.status != BlockStatus::kOk) {
    at("block")("status").Refuse(ToString(out->block.status), ", but a block that is ready is ok");
  }
}

void EncodeReady(const BlockReady& in, v1::BlockReady* out) {
  out->set_id(in.id);
  out->set_key(in.key);
  EncodeBlockGrant(in.block, out->mutable_block());
}

void DecodeFailed(const Field& at, const v1::BlockFailed& in, BlockFailed* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeKey(at("key"), in.key(), &out->key);
  DecodeEnum(at("status"), in.status(), &out->status);
  if (at.ok() && IsHeld(out->status)) {
    at("status").Refuse(ToString(out->status),
                        ", but a block that failed is neither ok nor pending");
  }
  out->bytes = in.bytes();
}

void EncodeFailed(const BlockFailed& in, v1::BlockFailed* out) {
  out->set_id(in.id);
  out->set_key(in.key);
  out->set_status(static_cast<v1::BlockStatus>(in.status));
  out->set_bytes(in.bytes);
}

void DecodeDurable(const Field& at, const v1::Durable& in, Durable* out) {
  out->variant = in.variant();
  DecodeDigests(at("digests"), in.digests(), kKeysMax, &out->digests);
}

void EncodeDurable(const Durable& in, v1::Durable* out) {
  out->set_variant(in.variant);
  EncodeDigests(in.digests, out->mutable_digests());
}

void DecodeRevocation(const Field& at, const v1::Revocation& in, Revocation* out) {
  DecodeIds(at("lease_ids"), in.lease_ids(), &out->leases);
  DecodeIds(at("reservation_ids"), in.reservation_ids(), &out->reservations);
  DecodeEnum(at("cause"), in.cause(), &out->cause);
}

void EncodeRevocation(const Revocation& in, v1::Revocation* out) {
  EncodeIds(in.leases, out->mutable_lease_ids());
  EncodeIds(in.reservations, out->mutable_reservation_ids());
  out->set_cause(static_cast<v1::RevocationCause>(in.cause));
}

void DecodeDirective(const Field& at, const v1::Directive& in, Directive* out) {
  out->directive_id = in.directive_id();
  DecodeEnum(at("kind"), in.kind(), &out->kind);
  out->variant = in.variant();
  DecodeDigests(at("digests"), in.digests(), kKeysMax, &out->digests);
  out->deadline_unix_ms = in.deadline_unix_ms();
  DecodeString(at("owner"), in.owner(), kAnyString, &out->owner);
  out->codec.reset();
  const bool needed = at.ok() && out->kind == DirectiveKind::kCompress;
  if (needed || in.codec() != v1::CODEC_UNSPECIFIED)
    DecodeEnum(at("codec"), in.codec(), &out->codec.emplace());
  out->pinned = in.pinned();
  out->valid_unix_ms = in.valid_unix_ms();
}

void EncodeDirective(const Directive& in, v1::Directive* out) {
  out->set_directive_id(in.directive_id);
  out->set_kind(static_cast<v1::DirectiveKind>(in.kind));
  out->set_variant(in.variant);
  EncodeDigests(in.digests, out->mutable_digests());
  out->set_deadline_unix_ms(in.deadline_unix_ms);
  out->set_owner(in.owner);
  if (in.codec) out->set_codec(static_cast<v1::Codec>(*in.codec));
  out->set_pinned(in.pinned);
  out->set_valid_unix_ms(in.valid_unix_ms);
}

void DecodePromisedBlocks(const Field& at, const v1::PromisedBlocks& in, PromisedBlocks* out) {
  out->first_block = in.first_block();
  DecodeEnums(at("status"), in.status(), kLookupDigestsMax, &out->status);
  DecodeEnums(at("tiers"), in.tiers(), kLookupDigestsMax, &out->tiers);
  if (at.ok() && out->tiers.size() != out->status.size()) {
    at("tiers").Refuse(out->tiers.size(), " for ", out->status.size(), " blocks");
  }
}

void EncodePromisedBlocks(const PromisedBlocks& in, v1::PromisedBlocks* out) {
  out->set_first_block(in.first_block);
  EncodeEnums(in.status, out->mutable_status());
  EncodeEnums(in.tiers, out->mutable_tiers());
}

void DecodePromised(const Field& at, const v1::Promised& in, Promised* out) {
  DecodeRequestId(at("id"), in.id(), &out->id);
  DecodeEnum(at("status"), in.status(), &out->status);
  out->promise = LeaseId{in.promise_id()};
  out->deadline_ms = std::min(in.deadline_ms(), kDeadlineMaxMs);
  out->tokens = in.tokens();
  DecodeEach(at("blocks"), in.blocks(), kVariantsMax, DecodePromisedBlocks, &out->blocks);
  out->retry_after_ms = in.retry_after_ms();
  if (at.ok() && out->status == BlockStatus::kOk && !out->promise) {
    at("promise_id").Refuse("0 is not a promise, although the status is OK");
  }
}

void EncodePromised(const Promised& in, v1::Promised* out) {
  out->set_id(in.id);
  out->set_status(static_cast<v1::BlockStatus>(in.status));
  out->set_promise_id(in.promise.value);
  out->set_deadline_ms(in.deadline_ms);
  out->set_tokens(in.tokens);
  EncodeEach(in.blocks, EncodePromisedBlocks, out->mutable_blocks());
  out->set_retry_after_ms(in.retry_after_ms);
}

void DecodePromiseReady(const Field& at, const v1::PromiseReady& in, PromiseReady* out) {
  out->promise = LeaseId{in.promise_id()};
  const int count = in.blocks_size();
  if (!CheckCount(at("blocks"), count, kPromiseReadyMax)) return;
  if (in.variants_size() != count || in.status_size() != count) {
    return at("blocks").Refuse(count, " blocks, ", in.variants_size(), " variants and ",
                               in.status_size(), " statuses");
  }
  out->blocks.resize(static_cast<size_t>(count));
  for (int i = 0; i < count && at.ok(); ++i) {
    PromiseReady::Block& block = out->blocks[static_cast<size_t>(i)];
    block.variant = in.variants(i);
    block.block = in.blocks(i);
    DecodeEnum(at("status")[i], in.status(i), &block.status);
  }
}

void EncodePromiseReady(const PromiseReady& in, v1::PromiseReady* out) {
  out->set_promise_id(in.promise.value);
  for (const PromiseReady::Block& block : in.blocks) {
    out->add_variants(block.variant);
    out->add_blocks(block.block);
    out->add_status(static_cast<v1::BlockStatus>(block.status));
  }
}

}  // namespace

absl::Status Decode(const v1::Down& in, Down* out) {
  absl::Status error;
  const Field at(&error);
  out->attached.reset();
  if (in.has_attached()) DecodeAttached(at("attached"), in.attached(), &out->attached.emplace());
  DecodeEach(at("registered"), in.registered(), kPartsMax, DecodeRegistered, &out->registered);
  DecodeEach(at("reserved"), in.reserved(), kPartsMax, DecodeReserved, &out->reserved);
  DecodeEach(at("published"), in.published(), kPartsMax, DecodePublished, &out->published);
  DecodeEach(at("grants"), in.grants(), kPartsMax, DecodeGrant, &out->grants);
  DecodeEach(at("ready"), in.ready(), kKeysMax, DecodeReady, &out->ready);
  DecodeEach(at("failed"), in.failed(), kKeysMax, DecodeFailed, &out->failed);
  DecodeEach(at("durable"), in.durable(), kPartsMax, DecodeDurable, &out->durable);
  DecodeEach(at("revocations"), in.revocations(), kPartsMax, DecodeRevocation, &out->revocations);
  DecodeEach(at("directives"), in.directives(), kPartsMax, DecodeDirective, &out->directives);
  DecodeEach(at("promised"), in.promised(), kPartsMax, DecodePromised, &out->promised);
  DecodeEach(at("promise_ready"), in.promise_ready(), kPartsMax, DecodePromiseReady,
             &out->promise_ready);
  return error;
}

void Encode(const Down& in, v1::Down* out) {
  out->Clear();
  if (in.attached) EncodeAttached(*in.attached, out->mutable_attached());
  EncodeEach(in.registered, EncodeRegistered, out->mutable_registered());
  EncodeEach(in.reserved, EncodeReserved, out->mutable_reserved());
  EncodeEach(in.published, EncodePublished, out->mutable_published());
  EncodeEach(in.grants, EncodeGrant, out->mutable_grants());
  EncodeEach(in.ready, EncodeReady, out->mutable_ready());
  EncodeEach(in.failed, EncodeFailed, out->mutable_failed());
  EncodeEach(in.durable, EncodeDurable, out->mutable_durable());
  EncodeEach(in.revocations, EncodeRevocation, out->mutable_revocations());
  EncodeEach(in.directives, EncodeDirective, out->mutable_directives());
  EncodeEach(in.promised, EncodePromised, out->mutable_promised());
  EncodeEach(in.promise_ready, EncodePromiseReady, out->mutable_promise_ready());
}

}  // namespace larder::wire
