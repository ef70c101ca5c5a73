// Cache: the caller's side of Pin, Unpin, Prefetch, Clear, Move, Compress and WatchEvents.
#include "larder/v1/cache.pb.h"
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"

namespace larder::wire {
namespace {

void EncodeSelection(const BlockSelection& in, v1::BlockSelection* out) {
  out->set_engine_id(in.engine_id);
  EncodeDigests(in.variants, out->mutable_variant_ids());
  EncodeDigests(in.digests, out->mutable_digests());
  if (!in.content.model.empty()) Encode(in.content, out->mutable_content());
  out->mutable_tokens()->Add(in.tokens.begin(), in.tokens.end());
}

template <class Query, class Request>
void EncodeScope(const Query& in, Request* out) {
  out->set_tenant(in.tenant);
  out->set_scope(static_cast<v1::SelectionScope>(in.scope));
  EncodeSelection(in.blocks, out->mutable_blocks());
  if (in.scope != SelectionScope::kWriter) return;
  out->mutable_blocks()->mutable_writer()->set_uid(in.blocks.writer.uid);
  out->mutable_blocks()->mutable_writer()->set_engine(in.blocks.writer.engine);
}

template <class Request>
void EncodeTiers(TierSet in, Request* out) {
  for (int tier = 1; tier <= v1::Tier_MAX; ++tier) {
    if ((in & TierBit(static_cast<Tier>(tier))) != 0) out->add_tiers(static_cast<v1::Tier>(tier));
  }
}

void DecodeAnswers(const Field& at, const v1::BlockAnswers& in, std::vector<BlockAnswer>* out) {
  out->clear();
  std::vector<Digest> digests;
  std::vector<BlockStatus> statuses;
  DecodeDigests(at("digests"), in.digests(), kAnswersMax, &digests);
  DecodeEnums(at("status"), in.status(), kAnswersMax, &statuses);
  if (at.ok() && digests.size() != statuses.size())
    at("status").Refuse(statuses.size(), " for ", digests.size(), " digests");
  if (!at.ok()) return;
  out->reserve(digests.size());
  for (size_t i = 0; i < digests.size(); ++i) out->push_back({digests[i], statuses[i]});
}

// Ignores TIER_REMOTE, which no call clears.
void DecodeCleared(const Field& at, const v1::TierCleared& in, ClearResult* out) {
  Tier tier{};
  DecodeEnum(at("tier"), in.tier(), &tier);
  const ClearResult::OfTier cleared{.blocks = in.blocks(), .bytes = ByteCount(in.bytes())};
  if (tier == Tier::kHost) out->host = cleared;
  if (tier == Tier::kDisk) out->disk = cleared;
  if (tier == Tier::kDevice) out->device = cleared;
}

void DecodeChain(const Field& at, const v1::Event::Stored& in, BlockEvent* out) {
  if (in.block_tokens() == 0 && in.tokens().empty()) return;
  out->chain = BlockEvent::Chain();
  BlockEvent::Chain& chain = *out->chain;
  chain.block_tokens = in.block_tokens();
  if (chain.block_tokens == 0 || chain.block_tokens > kBlockTokensMax ||
      chain.block_tokens % kStepTokens != 0) {
    return at("block_tokens")
        .Refuse(chain.block_tokens, " is not a multiple of 16 from 16 to 4096");
  }
  if (static_cast<uint64_t>(in.tokens_size()) != uint64_t{chain.block_tokens} * out->digests.size())
    return at("tokens").Refuse(in.tokens_size(), " for ", out->digests.size(), " blocks");
  DecodeDigest(at("parent"), in.parent(), &chain.parent);
  if (!in.content_id().empty()) DecodeDigest(at("content_id"), in.content_id(), &chain.content);
  chain.tokens.assign(in.tokens().begin(), in.tokens().end());
  if (in.has_writer()) DecodeBlockWriter(at("writer"), in.writer(), &chain.writer);
}

// `What` is v1::Event::Stored or v1::Event::Removed.
template <class What>
void DecodeWhat(const Field& at, const What& in, BlockEvent* out) {
  DecodeDigests(at("digests"), in.digests(), kLookupDigestsMax, &out->digests);
  DecodeDigest(at("variant_id"), in.variant_id(), &out->variant);
  DecodeEnum(at("tier"), in.tier(), &out->tier);
  DecodeString(at("engine_id"), in.engine_id(), kAnyString, &out->engine_id);
}

void DecodeEvent(const Field& at, const v1::Event& in, BlockEvent* out) {
  *out = {};
  out->sequence = in.sequence();
  out->stored = in.has_stored();
  if (in.has_stored()) {
    DecodeWhat(at("stored"), in.stored(), out);
    DecodeChain(at("stored"), in.stored(), out);
  } else if (in.has_removed()) {
    DecodeWhat(at("removed"), in.removed(), out);
  } else if (in.has_cleared()) {
    out->cleared = true;
    DecodeEnum(at("cleared")("tier"), in.cleared().tier(), &out->tier);
    DecodeString(at("cleared")("engine_id"), in.cleared().engine_id(), kAnyString, &out->engine_id);
  } else {
    at.Refuse("neither stored, removed nor cleared");
  }
}

}  // namespace

void Encode(const PinQuery& in, v1::PinRequest* out) {
  out->Clear();
  out->set_tenant(in.tenant);
  EncodeSelection(in.blocks, out->mutable_blocks());
  out->set_owner(in.owner);
  out->set_tier(static_cast<v1::Tier>(in.tier));
  out->set_ttl_ms(static_cast<uint64_t>(in.ttl.count()));
}

void Encode(const UnpinQuery& in, v1::UnpinRequest* out) {
  out->Clear();
  out->set_tenant(in.tenant);
  out->set_owner(in.owner);
  out->set_all(!in.blocks.has_value());
  if (!in.blocks) return;
  EncodeSelection(*in.blocks, out->mutable_blocks());
  out->set_tier(static_cast<v1::Tier>(in.tier));
}

void Encode(const PrefetchQuery& in, v1::PrefetchRequest* out) {
  out->Clear();
  out->set_tenant(in.tenant);
  EncodeSelection(in.blocks, out->mutable_blocks());
  out->set_ttl_ms(static_cast<uint64_t>(in.ttl.count()));
}

void Encode(const ClearQuery& in, v1::ClearRequest* out) {
  out->Clear();
  EncodeScope(in, out);
  EncodeTiers(in.tiers, out);
  out->set_pinned(in.pinned);
  out->set_dry_run(in.dry_run);
}

void Encode(const MoveQuery& in, v1::MoveRequest* out) {
  out->Clear();
  EncodeScope(in, out);
  out->set_from(static_cast<v1::Tier>(in.from));
  out->set_to(static_cast<v1::Tier>(in.to));
  out->set_copy(in.copy);
}

void Encode(const CompressQuery& in, v1::CompressRequest* out) {
  out->Clear();
  EncodeScope(in, out);
  EncodeTiers(in.tiers, out);
  out->set_codec(static_cast<v1::Codec>(in.codec));
  out->set_dry_run(in.dry_run);
}

void Encode(const WatchQuery& in, v1::WatchEventsRequest* out) {
  out->Clear();
  out->set_tenant(in.tenant);
  out->set_snapshot(in.snapshot);
  out->set_boot_id(in.boot_id);
  out->set_after(in.after);
  EncodeTiers(in.tiers, out);
  out->set_with_tokens(in.with_tokens);
}

absl::Status Decode(const v1::PinReply& in, PinResult* out) {
  absl::Status error;
  DecodeAnswers(Field(&error)("blocks"), in.blocks(), &out->blocks);
  out->deadline_unix_ms = in.deadline_unix_ms();
  out->durable = in.durable();
  return error;
}

absl::Status Decode(const v1::UnpinReply& in, UnpinResult* out) {
  absl::Status error;
  DecodeAnswers(Field(&error)("blocks"), in.blocks(), &out->blocks);
  out->unpinned = in.unpinned();
  out->sessions_unanswered = in.sessions_unanswered();
  return error;
}

absl::Status Decode(const v1::PrefetchReply& in, std::vector<BlockAnswer>* out) {
  absl::Status error;
  DecodeAnswers(Field(&error)("blocks"), in.blocks(), out);
  return error;
}

absl::Status Decode(const v1::ClearReply& in, ClearResult* out) {
  absl::Status error;
  const Field at(&error);
  *out = {};
  const Field tiers = at("tiers");
  if (CheckCount(tiers, in.tiers_size(), kTiersMax)) {
    for (int i = 0; i < in.tiers_size(); ++i) DecodeCleared(tiers[i], in.tiers(i), out);
  }
  out->leased = in.leased();
  out->kept_pinned = in.kept_pinned();
  out->kept_in_use = in.kept_in_use();
  out->pins_ended = in.pins_ended();
  out->unanswered = in.unanswered();
  DecodeAnswers(at("blocks"), in.blocks(), &out->blocks);
  return error;
}

absl::Status Decode(const v1::MoveProgress& in, MoveProgress* out) {
  *out = {.blocks = in.blocks(),
          .blocks_done = in.blocks_done(),
          .bytes = ByteCount(in.bytes()),
          .bytes_done = ByteCount(in.bytes_done()),
          .moved = in.moved(),
          .missing = in.missing(),
          .no_room = in.no_room(),
          .kept_pinned = in.kept_pinned(),
          .kept_in_use = in.kept_in_use()};
  return absl::OkStatus();
}

absl::Status Decode(const v1::CompressProgress& in, CompressProgress* out) {
  absl::Status error;
  *out = {.blocks = in.blocks(),
          .blocks_done = in.blocks_done(),
          .bytes_before = ByteCount(in.bytes_before()),
          .bytes_after = ByteCount(in.bytes_after()),
          .changed = in.changed(),
          .unchanged = in.unchanged(),
          .missing = in.missing(),
          .kept_in_use = in.kept_in_use(),
          .no_room = in.no_room(),
          .unsupported = in.unsupported(),
          .answers = {}};
  DecodeAnswers(Field(&error)("answers"), in.answers(), &out->answers);
  return error;
}

absl::Status Decode(const v1::WatchEventsReply& in, WatchReply* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("boot_id"), in.boot_id(), kAnyString, &out->boot_id);
  DecodeEach(at("events"), in.events(), kEventsMax, DecodeEvent, &out->events);
  out->sequence = in.sequence();
  out->snapshot_end = in.snapshot_end();
  return error;
}

}  // namespace larder::wire
