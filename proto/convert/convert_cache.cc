// Cache: Lookup and ListInstances.
#include <algorithm>
#include <limits>

#include "larder/v1/cache.pb.h"
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"

namespace larder::wire {
namespace {

constexpr size_t kRangesMax = kLookupTokensMax / kStepTokens;

void DecodeSeconds(const Field& at, double in, double* out) {
  if (!(in >= 0)) return at.Refuse("not a duration");  // refuses NaN too, and accepts infinity
  *out = in;
}

void DecodeRanges(const Field& at, const google::protobuf::RepeatedPtrField<v1::TokenRange>& in,
                  std::vector<TokenRange>* out) {
  if (!CheckCount(at, in.size(), kRangesMax)) return;
  out->clear();
  out->reserve(static_cast<size_t>(in.size()));
  uint32_t after = 0;
  for (int i = 0; i < in.size(); ++i) {
    const TokenRange range{in[i].begin(), in[i].end()};
    if (range.begin >= range.end || range.begin < after ||
        (range.begin | range.end) % kStepTokens != 0) {
      return at[i].Refuse("[", range.begin, ", ", range.end,
                          ") is not a range of whole steps after ", after);
    }
    after = range.end;
    out->push_back(range);
  }
}

void DecodeTierHit(const Field& at, const v1::TierHit& in, TierHit* out) {
  DecodeEnum(at("tier"), in.tier(), &out->tier);
  out->contiguous = TokenCount(in.contiguous_tokens());
  DecodeRanges(at("ranges"), in.ranges(), &out->ranges);
  out->bytes = ByteCount(in.bytes());
  DecodeSeconds(at("load_s"), in.load_s(), &out->load_s);
}

void EncodeTierHit(const TierHit& in, v1::TierHit* out) {
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max();
  out->set_tier(static_cast<v1::Tier>(in.tier));
  out->set_contiguous_tokens(static_cast<uint32_t>(std::min(in.contiguous.value(), kMax)));
  out->mutable_ranges()->Reserve(static_cast<int>(in.ranges.size()));
  for (const TokenRange& range : in.ranges) {
    v1::TokenRange* to = out->add_ranges();
    to->set_begin(range.begin);
    to->set_end(range.end);
  }
  out->set_bytes(in.bytes.value());
  out->set_load_s(in.load_s);
}

void DecodeInstanceHit(const Field& at, const v1::InstanceHit& in, InstanceHit* out) {
  DecodeString(at("engine_id"), in.engine_id(), {1, kStringBytesMax}, &out->engine_id);
  out->attached = in.attached();
  DecodeEach(at("tiers"), in.tiers(), kTiersMax, DecodeTierHit, &out->tiers);
}

void EncodeInstanceHit(const InstanceHit& in, v1::InstanceHit* out) {
  out->set_engine_id(in.engine_id);
  out->set_attached(in.attached);
  EncodeEach(in.tiers, EncodeTierHit, out->mutable_tiers());
}

// Decodes an enum that is sent as the name that ToString returns.
template <class Enum>
void DecodeName(const Field& at, const std::string& in, Enum* out) {
  for (int i = 1; i <= LastOf(Enum{}); ++i) {
    if (in != ToString(static_cast<Enum>(i))) continue;
    *out = static_cast<Enum>(i);
    return;
  }
  at.Refuse("unknown name");
}

void DecodeSession(const Field& at, const v1::InstanceSession& in, InstanceSession* out) {
  out->session = SessionId{in.session_id()};
  DecodeName(at("role"), in.role(), &out->role);
  out->rank = in.rank();
  DecodeString(at("peer"), in.peer(), kAnyString, &out->peer);
  DecodeName(at("write_mode"), in.write_mode(), &out->write_mode);
  DecodeSeconds(at("age_s"), in.age_s(), &out->age_s);
  if (in.has_device()) DecodeDevice(at("device"), in.device(), &out->device);
}

void EncodeSession(const InstanceSession& in, v1::InstanceSession* out) {
  out->set_session_id(in.session.value);
  out->set_role(ToString(in.role));
  out->set_rank(in.rank);
  out->set_peer(in.peer);
  out->set_write_mode(ToString(in.write_mode));
  out->set_age_s(in.age_s);
  if (!in.device.kind.empty()) EncodeDevice(in.device, out->mutable_device());
}

void DecodeInstance(const Field& at, const v1::Instance& in, InstanceInfo* out) {
  DecodeString(at("engine_id"), in.engine_id(), {1, kStringBytesMax}, &out->engine_id);
  out->attached = in.attached();
  DecodeEach(at("sessions"), in.sessions(), kKeysMax, DecodeSession, &out->sessions);
  DecodeEach(at("contents"), in.contents(), kContentsMax, DecodeContent, &out->contents);
  DecodeEach(at("variants"), in.variants(), kVariantsMax, DecodeVariant, &out->variants);
  out->blocks = in.blocks();
  out->bytes = ByteCount(in.bytes());
}

void EncodeInstance(const InstanceInfo& in, v1::Instance* out) {
  out->set_engine_id(in.engine_id);
  out->set_attached(in.attached);
  EncodeEach(in.sessions, EncodeSession, out->mutable_sessions());
  EncodeEach<v1::Content, ContentSpec>(in.contents, Encode, out->mutable_contents());
  EncodeEach<v1::Variant, VariantSpec>(in.variants, Encode, out->mutable_variants());
  out->set_blocks(in.blocks);
  out->set_bytes(in.bytes.value());
}

}  // namespace

absl::Status Decode(const v1::LookupRequest& in, LookupQuery* out) {
  absl::Status status = DecodeInPlace(in, out);
  if (status.ok()) out->tokens.assign(in.tokens().begin(), in.tokens().end());
  return status;
}

absl::Status DecodeInPlace(const v1::LookupRequest& in, LookupQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeContent(at("content"), in.content(), &out->content);
  DecodeString(at("engine_id"), in.engine_id(), kAnyString, &out->engine_id);
  if (in.tokens().empty() == in.digests().empty()) {
    at("tokens").Refuse(in.tokens().empty() ? "neither tokens nor digests are given"
                                            : "both tokens and digests are given");
  }
  out->tokens.clear();
  (void)CheckCount(at("tokens"), in.tokens_size(), kLookupTokensMax);
  DecodeDigests(at("digests"), in.digests(), kLookupDigestsMax, &out->digests);
  return error;
}

absl::Status Decode(const v1::LookupReply& in, LookupResult* out) {
  absl::Status error;
  const Field at(&error);
  DecodeEach(at("instances"), in.instances(), kInstancesMax, DecodeInstanceHit, &out->instances);
  DecodeString(at("boot_id"), in.boot_id(), kAnyString, &out->boot_id);
  return error;
}

absl::Status Decode(const v1::ListInstancesRequest& in, InstancesQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeString(at("page_token"), in.page_token(), kAnyString, &out->page_token);
  out->page_size =
      in.page_size() == 0 ? kInstancesPerPage : std::min(in.page_size(), kInstancesPerPage);
  return error;
}

absl::Status Decode(const v1::ListInstancesReply& in, InstancesPage* out) {
  absl::Status error;
  const Field at(&error);
  DecodeEach(at("instances"), in.instances(), kInstancesMax, DecodeInstance, &out->instances);
  DecodeString(at("next_page_token"), in.next_page_token(), kAnyString, &out->next_page_token);
  return error;
}

void Encode(const LookupQuery& in, v1::LookupRequest* out) {
  out->Clear();
  out->set_tenant(in.tenant);
  Encode(in.content, out->mutable_content());
  out->mutable_tokens()->Add(in.tokens.begin(), in.tokens.end());
  EncodeDigests(in.digests, out->mutable_digests());
  out->set_engine_id(in.engine_id);
}

void Encode(const LookupResult& in, v1::LookupReply* out) {
  out->Clear();
  EncodeEach(in.instances, EncodeInstanceHit, out->mutable_instances());
  out->set_boot_id(in.boot_id);
}

void Encode(const InstancesQuery& in, v1::ListInstancesRequest* out) {
  out->set_tenant(in.tenant);
  out->set_page_size(in.page_size);
  out->set_page_token(in.page_token);
}

void Encode(const InstancesPage& in, v1::ListInstancesReply* out) {
  out->Clear();
  EncodeEach(in.instances, EncodeInstance, out->mutable_instances());
  out->set_next_page_token(in.next_page_token);
}

}  // namespace larder::wire
