// Admin: Stats, Verify and Config.
#include "larder/v1/admin.pb.h"
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"

namespace larder::wire {
namespace {

void DecodeTenant(const Field& at, const v1::TenantStats& in, TenantStats* out) {
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  out->pool_limit = ByteCount(in.pool_limit());
  out->pool_online = ByteCount(in.pool_online());
  out->pool_free = ByteCount(in.pool_free());
  out->pool_stored = ByteCount(in.pool_stored());
  out->pool_reserved = ByteCount(in.pool_reserved());
  out->pool_leased = ByteCount(in.pool_leased());
  out->pool_quarantined = ByteCount(in.pool_quarantined());
  out->blocks = in.blocks();
  out->leases = in.leases();
  out->reservations = in.reservations();
  out->pins = in.pins();
  out->sessions = in.sessions();
  out->index_bytes = ByteCount(in.index_bytes());
  out->metadata_bytes = ByteCount(in.metadata_bytes());
  DecodeString(at("pages"), in.pages(), kAnyString, &out->pages);
  DecodeString(at("durability"), in.durability(), kAnyString, &out->durability);
  DecodeString(at("pool_stalled"), in.pool_stalled(), kAnyString, &out->pool_stalled);
}

void DecodeHolder(const Field& at, const v1::ShareHolder& in, ShareUse::Holder* out) {
  DecodeString(at("who"), in.who(), kAnyString, &out->who);
  out->held = in.held();
}

void DecodeShare(const Field& at, const v1::ShareUse& in, ShareUse* out) {
  DecodeString(at("kind"), in.kind(), kAnyString, &out->kind);
  out->held = in.held();
  out->limit = in.limit();
  out->refused = in.refused();
  DecodeEach(at("holders"), in.holders(), kShareHoldersMax, DecodeHolder, &out->holders);
}

template <class Value>
void DecodeMetrics(const Field& at, const google::protobuf::Map<std::string, Value>& in,
                   std::map<std::string, Value>* out) {
  out->clear();
  if (in.size() > kMetricsMax) return at.Refuse(in.size(), " entries; the limit is ", kMetricsMax);
  for (const auto& [name, value] : in) {
    if (name.size() > kStringBytesMax)
      return at.Refuse("a name of ", name.size(), " bytes; the limit is ", kStringBytesMax);
    out->emplace(name, value);
  }
}

}  // namespace

absl::Status Decode(const v1::VerifyRequest& in, VerifyQuery* out) {
  absl::Status error;
  DecodeEnum(Field(&error)("tier"), in.tier(), &out->tier);
  out->bytes_per_s = in.bytes_per_s();
  return error;
}

void Encode(const VerifyQuery& in, v1::VerifyRequest* out) {
  out->set_tier(static_cast<v1::Tier>(in.tier));
  out->set_bytes_per_s(in.bytes_per_s);
}

void Encode(const VerifyProgress& in, v1::VerifyProgress* out) {
  out->set_blocks(in.blocks);
  out->set_bytes(in.bytes.value());
  out->set_blocks_done(in.blocks_done);
  out->set_bytes_done(in.bytes_done.value());
  out->set_whole(in.whole);
  out->set_damaged(in.damaged);
  out->set_missing(in.missing);
  out->set_unread(in.unread);
}

absl::Status Decode(const v1::VerifyProgress& in, VerifyProgress* out) {
  *out = {.blocks = in.blocks(),
          .blocks_done = in.blocks_done(),
          .bytes = ByteCount(in.bytes()),
          .bytes_done = ByteCount(in.bytes_done()),
          .whole = in.whole(),
          .damaged = in.damaged(),
          .missing = in.missing(),
          .unread = in.unread()};
  return absl::OkStatus();
}

absl::Status Decode(const v1::StatsReply& in, NodeStats* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("version"), in.version(), kAnyString, &out->version);
  DecodeString(at("boot_id"), in.boot_id(), kAnyString, &out->boot_id);
  if (!(in.uptime_s() >= 0)) at("uptime_s").Refuse("not a duration");
  out->uptime_s = in.uptime_s();
  out->draining = in.draining();
  DecodeEach(at("tenants"), in.tenants(), kTenantsMax, DecodeTenant, &out->tenants);
  DecodeMetrics(at("counters"), in.counters(), &out->counters);
  DecodeMetrics(at("gauges"), in.gauges(), &out->gauges);
  DecodeEach(at("shares"), in.shares(), kSharesMax, DecodeShare, &out->shares);
  return error;
}

absl::Status Decode(const v1::ConfigReply& in, std::string* out) {
  absl::Status error;
  DecodeString(Field(&error)("toml"), in.toml(), {0, kConfigBytesMax}, out);
  return error;
}

}  // namespace larder::wire
