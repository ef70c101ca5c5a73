// Cache: the daemon's side of Pin, Unpin, Prefetch, Clear, Move, Compress and WatchEvents.
#include "larder/v1/cache.pb.h"
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"

namespace larder::wire {
namespace {

// Refuses a writer with any scope except kWriter, and refuses kWriter without a writer.
void DecodeWriter(const Field& at, SelectionScope scope, const v1::BlockSelection& in,
                  BlockWriter* out) {
  *out = {};
  if (scope != SelectionScope::kWriter) {
    if (in.has_writer()) at("writer").Refuse("allowed only with SELECTION_SCOPE_WRITER");
    return;
  }
  if (!in.has_writer()) return at("writer").Refuse("required with SELECTION_SCOPE_WRITER");
  DecodeBlockWriter(at("writer"), in.writer(), out);
}

void DecodeSelection(const Field& at, const v1::BlockSelection& in, BlockSelection* out) {
  DecodeString(at("engine_id"), in.engine_id(), kAnyString, &out->engine_id);
  DecodeDigests(at("variant_ids"), in.variant_ids(), kVariantsMax, &out->variants);
  DecodeDigests(at("digests"), in.digests(), kLookupDigestsMax, &out->digests);
  out->content = {};
  out->tokens.clear();
  (void)CheckCount(at("tokens"), in.tokens_size(), kLookupTokensMax);
  if (in.tokens().empty() == in.digests().empty()) {
    at("tokens").Refuse(in.tokens().empty() ? "neither tokens nor digests are given"
                                            : "both tokens and digests are given");
  }
  if (!in.tokens().empty()) DecodeContent(at("content"), in.content(), &out->content);
  DecodeWriter(at, SelectionScope::kBlocks, in, &out->writer);
}

// Decodes the selection of a call that has a scope.  With a scope other than kBlocks, refuses
// digests, tokens, content or a writer that the scope does not use, because the caller may want
// other blocks than the scope selects.
void DecodeScoped(const Field& at, SelectionScope scope, const v1::BlockSelection& in,
                  BlockSelection* out) {
  if (scope == SelectionScope::kBlocks) return DecodeSelection(at, in, out);
  *out = {};
  DecodeString(at("engine_id"), in.engine_id(), kAnyString, &out->engine_id);
  DecodeDigests(at("variant_ids"), in.variant_ids(), kVariantsMax, &out->variants);
  if (!in.digests().empty()) at("digests").Refuse("not allowed with this scope");
  (void)CheckCount(at("tokens"), in.tokens_size(), kLookupTokensMax);
  if (in.tokens().empty() == (scope == SelectionScope::kPrefix))
    at("tokens").Refuse(in.tokens().empty() ? "required with SELECTION_SCOPE_PREFIX"
                                            : "not allowed with this scope");
  DecodeWriter(at, scope, in, &out->writer);
  if (scope == SelectionScope::kPrefix || scope == SelectionScope::kContent) {
    DecodeContent(at("content"), in.content(), &out->content);
  } else if (in.has_content()) {
    at("content").Refuse("not allowed with this scope");
  }
}

// Decodes tenant, scope and selection, which the requests of Clear, Move and Compress all have.
template <class Request, class Query>
void DecodeScope(const Field& at, const Request& in, Query* out) {
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeEnum(at("scope"), in.scope(), &out->scope);
  if (at.ok()) DecodeScoped(at("blocks"), out->scope, in.blocks(), &out->blocks);
}

void DecodeTiers(const Field& at, const google::protobuf::RepeatedField<int>& in, TierSet* out) {
  *out = 0;
  if (!CheckCount(at, in.size(), 16)) return;
  for (int i = 0; i < in.size(); ++i) {
    Tier tier{};
    DecodeEnum(at[i], in[i], &tier);
    *out |= TierBit(tier);
  }
  if (in.empty()) *out = TierBit(Tier::kHost) | TierBit(Tier::kDisk);
}

void DecodeTiersOf(SelectionScope scope, const Field& at,
                   const google::protobuf::RepeatedField<int>& in, TierSet* out) {
  DecodeTiers(at, in, out);
  if (at.ok() && scope == SelectionScope::kWriter && (*out & TierBit(Tier::kDevice)) != 0)
    at.Refuse("TIER_DEVICE has no known writers, so SELECTION_SCOPE_WRITER cannot select there");
}

void EncodeTier(Tier tier, const ClearResult::OfTier& in, v1::ClearReply* out) {
  if (in == ClearResult::OfTier()) return;
  v1::TierCleared& cleared = *out->add_tiers();
  cleared.set_tier(static_cast<v1::Tier>(tier));
  cleared.set_blocks(in.blocks);
  cleared.set_bytes(in.bytes.value());
}

void EncodeEvent(const BlockEvent& in, v1::Event* out) {
  out->set_sequence(in.sequence);
  if (in.cleared) {
    out->mutable_cleared()->set_tier(static_cast<v1::Tier>(in.tier));
    out->mutable_cleared()->set_engine_id(in.engine_id);
    return;
  }
  if (!in.stored) {
    v1::Event::Removed& removed = *out->mutable_removed();
    EncodeDigests(in.digests, removed.mutable_digests());
    EncodeDigest(in.variant, removed.mutable_variant_id());
    removed.set_tier(static_cast<v1::Tier>(in.tier));
    removed.set_engine_id(in.engine_id);
    return;
  }
  v1::Event::Stored& stored = *out->mutable_stored();
  EncodeDigests(in.digests, stored.mutable_digests());
  EncodeDigest(in.variant, stored.mutable_variant_id());
  stored.set_tier(static_cast<v1::Tier>(in.tier));
  stored.set_engine_id(in.engine_id);
  if (!in.chain) return;
  EncodeDigest(in.chain->parent, stored.mutable_parent());
  if (in.chain->content != Digest()) EncodeDigest(in.chain->content, stored.mutable_content_id());
  stored.set_block_tokens(in.chain->block_tokens);
  stored.mutable_tokens()->Add(in.chain->tokens.begin(), in.chain->tokens.end());
  const BlockWriter& writer = in.chain->writer;
  if (writer.uid == BlockWriter::kUnknownUid) return;
  stored.mutable_writer()->set_uid(writer.uid);
  stored.mutable_writer()->set_engine(writer.engine);
}

void DecodeTtl(const Field& at, uint64_t in, std::chrono::milliseconds usual,
               std::chrono::milliseconds most, std::chrono::milliseconds* out) {
  const auto most_ms = static_cast<uint64_t>(most.count());
  if (in > most_ms) return at.Refuse(in, " is more than ", most_ms);
  *out = in == 0 ? usual : std::chrono::milliseconds(in);
}

}  // namespace

absl::Status DecodeInPlace(const v1::PinRequest& in, PinQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeSelection(at("blocks"), in.blocks(), &out->blocks);
  DecodeString(at("owner"), in.owner(), {1, kStringBytesMax}, &out->owner);
  DecodeEnum(at("tier"), in.tier(), &out->tier);
  DecodeTtl(at("ttl_ms"), in.ttl_ms(), kPinTtlDefault, kPinTtlMax, &out->ttl);
  return error;
}

absl::Status DecodeInPlace(const v1::UnpinRequest& in, UnpinQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeString(at("owner"), in.owner(), {1, kStringBytesMax}, &out->owner);
  out->blocks.reset();
  if (in.all()) {
    if (in.has_blocks()) at("blocks").Refuse("not allowed together with all");
    if (in.tier() != 0) at("tier").Refuse("not allowed together with all");
    return error;
  }
  DecodeSelection(at("blocks"), in.blocks(), &out->blocks.emplace());
  DecodeEnum(at("tier"), in.tier(), &out->tier);
  return error;
}

absl::Status DecodeInPlace(const v1::PrefetchRequest& in, PrefetchQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeSelection(at("blocks"), in.blocks(), &out->blocks);
  DecodeTtl(at("ttl_ms"), in.ttl_ms(), kPrefetchTtlDefault, kPrefetchTtlMax, &out->ttl);
  return error;
}

absl::Status DecodeInPlace(const v1::ClearRequest& in, ClearQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeScope(at, in, out);
  DecodeTiersOf(out->scope, at("tiers"), in.tiers(), &out->tiers);
  out->pinned = in.pinned();
  out->dry_run = in.dry_run();
  return error;
}

absl::Status DecodeInPlace(const v1::MoveRequest& in, MoveQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeScope(at, in, out);
  DecodeEnum(at("from"), in.from(), &out->from);
  DecodeEnum(at("to"), in.to(), &out->to);
  if (error.ok() && out->from == out->to) at("to").Refuse("the same tier as from");
  out->copy = in.copy();
  return error;
}

void Encode(const MoveProgress& in, v1::MoveProgress* out) {
  out->Clear();
  out->set_blocks(in.blocks);
  out->set_bytes(in.bytes.value());
  out->set_blocks_done(in.blocks_done);
  out->set_bytes_done(in.bytes_done.value());
  out->set_moved(in.moved);
  out->set_missing(in.missing);
  out->set_no_room(in.no_room);
  out->set_kept_pinned(in.kept_pinned);
  out->set_kept_in_use(in.kept_in_use);
}

absl::Status DecodeInPlace(const v1::CompressRequest& in, CompressQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeScope(at, in, out);
  DecodeTiersOf(out->scope, at("tiers"), in.tiers(), &out->tiers);
  DecodeEnum(at("codec"), in.codec(), &out->codec);
  out->dry_run = in.dry_run();
  return error;
}

void Encode(const CompressProgress& in, v1::CompressProgress* out) {
  out->Clear();
  out->set_blocks(in.blocks);
  out->set_blocks_done(in.blocks_done);
  out->set_bytes_before(in.bytes_before.value());
  out->set_bytes_after(in.bytes_after.value());
  out->set_changed(in.changed);
  out->set_unchanged(in.unchanged);
  out->set_missing(in.missing);
  out->set_kept_in_use(in.kept_in_use);
  out->set_no_room(in.no_room);
  out->set_unsupported(in.unsupported);
  if (!in.answers.empty()) Encode(in.answers, out->mutable_answers());
}

absl::Status Decode(const v1::WatchEventsRequest& in, WatchQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeString(at("boot_id"), in.boot_id(), kAnyString, &out->boot_id);
  if (in.snapshot() && !in.boot_id().empty()) at("boot_id").Refuse("not allowed with snapshot");
  if (in.after() != 0 && in.boot_id().empty()) at("after").Refuse("allowed only with boot_id");
  DecodeTiers(at("tiers"), in.tiers(), &out->tiers);
  out->snapshot = in.snapshot();
  out->after = in.after();
  out->with_tokens = in.with_tokens();
  return error;
}

void Encode(const WatchReply& in, v1::WatchEventsReply* out) {
  out->Clear();
  out->set_boot_id(in.boot_id);
  out->set_sequence(in.sequence);
  out->set_snapshot_end(in.snapshot_end);
  for (const BlockEvent& event : in.events) EncodeEvent(event, out->add_events());
}

void Encode(const ClearResult& in, v1::ClearReply* out) {
  out->Clear();
  EncodeTier(Tier::kHost, in.host, out);
  EncodeTier(Tier::kDisk, in.disk, out);
  EncodeTier(Tier::kDevice, in.device, out);
  out->set_leased(in.leased);
  out->set_kept_pinned(in.kept_pinned);
  out->set_kept_in_use(in.kept_in_use);
  out->set_pins_ended(in.pins_ended);
  out->set_unanswered(in.unanswered);
  if (!in.blocks.empty()) Encode(in.blocks, out->mutable_blocks());
}

void Encode(const std::vector<BlockAnswer>& in, v1::BlockAnswers* out) {
  out->Clear();
  out->mutable_digests()->reserve(in.size() * sizeof(Digest));
  for (const BlockAnswer& answer : in) {
    out->mutable_digests()->append(reinterpret_cast<const char*>(answer.digest.bytes.data()),
                                   answer.digest.bytes.size());
    out->add_status(static_cast<v1::BlockStatus>(answer.status));
  }
}

}  // namespace larder::wire
