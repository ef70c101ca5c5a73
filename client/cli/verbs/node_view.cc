#include "client/cli/verbs/node_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

std::string Bytes(ByteCount bytes) { return FormatBytes(static_cast<double>(bytes.value())); }
std::string Count(double count) { return FormatCount(static_cast<uint64_t>(count)); }

// "1 session", "2 sessions".
std::string Counted(uint64_t count, const char* what) {
  return absl::StrCat(FormatCount(count), " ", what, count == 1 ? "" : "s");
}

std::string PoolText(const wire::TenantStats& t) {
  std::string text =
      absl::StrCat(Bytes(t.pool_limit), ", ",
                   FormatShare(static_cast<double>(t.pool_stored.value()),
                               static_cast<double>(t.pool_limit.value())),
                   " stored, ", Bytes(t.pool_free), " free, ", Bytes(t.pool_reserved),
                   " reserved, ", Bytes(t.pool_leased), " leased, ", Bytes(t.pool_quarantined),
                   " in quarantine; pages of ", Printable(t.pages));
  if (t.pool_online < t.pool_limit) absl::StrAppend(&text, "; ", Bytes(t.pool_online), " online");
  if (!t.pool_stalled.empty()) absl::StrAppend(&text, "; cannot grow: ", Printable(t.pool_stalled));
  return text;
}

std::string DiskText(const wire::NodeStats& s) {
  if (!HasDisk(s)) return "none";
  const auto part = [&](const char* name) {
    return MetricOf(s, absl::StrCat("larder_disk_bytes{part=\"", name, "\"}"));
  };
  std::string text = absl::StrCat(
      FormatBytes(part("limit")), ", ", FormatShare(part("used"), part("room")), " used, ",
      Count(MetricOf(s, "larder_disk_waiting{for=\"spill\"}")), " blocks wait to be written, ",
      Count(MetricOf(s, "larder_disk_waiting{for=\"promote\"}")), " to be read");
  const auto facts = [&](const char* what) {
    return MetricOf(s, absl::StrCat("larder_disk_facts_bytes{part=\"", what, "\"}"));
  };
  const double limit = facts("pins_limit") + facts("registrations_limit") + facts("other_limit");
  if (limit > 0) {
    const double used = facts("pins") + facts("registrations") + facts("other");
    absl::StrAppend(&text, ", pins and registrations take ", FormatBytes(used), " of ",
                    FormatBytes(limit));
  }
  if (MetricOf(s, "larder_disk_recovering") != 0) text += "; recovery is still reading it";
  if (const double failed = MetricOf(s, "larder_disk_shards{state=\"failed\"}"); failed > 0)
    absl::StrAppend(&text, "; ", Count(failed), " of ",
                    Count(MetricOf(s, "larder_disk_shards{state=\"all\"}")), " shards failed");
  return text;
}

std::string HitText(const wire::NodeStats& s) {
  const double hit = MetricOf(s, "larder_blocks_got_total{result=\"hit\"}");
  const double disk = MetricOf(s, "larder_blocks_got_total{result=\"disk\"}");
  const double missing = MetricOf(s, "larder_blocks_got_total{result=\"missing\"}");
  if (hit + disk + missing == 0) return "no blocks have been requested";
  return absl::StrCat(FormatShare(hit + disk, hit + disk + missing),
                      " of the requested blocks: ", Count(hit), " in host, ", Count(disk),
                      " on disk, ", Count(missing), " missing");
}

std::string ConnectionText(const wire::NodeStats& s) {
  double refused = 0;
  for (const auto& [name, value] : s.gauges) {
    if (name.starts_with("larder_connections_refused_total")) refused += value;
  }
  return absl::StrCat(
      Count(MetricOf(s, "larder_connections_open{socket=\"data\"}")), " to data.sock, ",
      Count(MetricOf(s, "larder_connections_open{socket=\"admin\"}")), " to admin.sock, ",
      Count(refused), " refused; ", Count(MetricOf(s, "larder_descriptors{what=\"open\"}")), " of ",
      Count(MetricOf(s, "larder_descriptors{what=\"limit\"}")), " files open");
}

// Returns a text such as "12 of 1,024; uid 1000 12, uid 1000 pid 77 8; 3 refused".
std::string ShareText(const wire::ShareUse& share) {
  const bool bytes = share.kind.ends_with("_bytes");
  const auto amount = [bytes](uint64_t n) {
    return bytes ? FormatBytes(static_cast<double>(n)) : FormatCount(n);
  };
  std::string text = amount(share.held);
  if (share.limit != UINT64_MAX) absl::StrAppend(&text, " of ", amount(share.limit));
  for (size_t i = 0; i < share.holders.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "; " : ", ", Printable(share.holders[i].who), " ",
                    amount(share.holders[i].held));
  }
  if (share.refused > 0) absl::StrAppend(&text, "; ", FormatCount(share.refused), " refused");
  return text;
}

double Damage(const wire::NodeStats& s) {
  return MetricOf(s, "larder_blocks_damaged_total{tier=\"host\"}") +
         MetricOf(s, "larder_disk_failures_total{kind=\"damaged\"}");
}

}  // namespace

double MetricOf(const wire::NodeStats& stats, const std::string& name) {
  if (const auto found = stats.gauges.find(name); found != stats.gauges.end()) return found->second;
  const auto found = stats.counters.find(name);
  return found == stats.counters.end() ? 0 : static_cast<double>(found->second);
}

bool HasDisk(const wire::NodeStats& stats) {
  return MetricOf(stats, "larder_disk_bytes{part=\"limit\"}") > 0;
}

std::vector<std::pair<std::string, std::string>> FactsOf(const wire::NodeStats& s) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"larderd", absl::StrCat(Printable(s.version), ", ", s.draining ? "draining" : "serving",
                               ", up ", FormatSeconds(s.uptime_s))},
      {"boot", Printable(s.boot_id)}};
  for (const wire::TenantStats& t : s.tenants) {
    if (s.tenants.size() > 1) facts.emplace_back("tenant", Printable(t.tenant));
    facts.emplace_back("pool", PoolText(t));
    facts.emplace_back("disk", DiskText(s));
    const double disk_only = MetricOf(s, "larder_disk_blocks{where=\"disk_only\"}");
    const double all = static_cast<double>(t.blocks);
    facts.emplace_back("blocks",
                       absl::StrCat(Count(all - disk_only), " in host, ",
                                    Count(MetricOf(s, "larder_disk_blocks{where=\"all\"}")),
                                    " on disk, ", Count(disk_only), " of them on disk only"));
    facts.emplace_back("index", absl::StrCat(Bytes(t.index_bytes), ", and ",
                                             Bytes(t.metadata_bytes), " of metadata"));
    facts.emplace_back(
        "held", absl::StrJoin({Counted(t.sessions, "session"), Counted(t.leases, "lease"),
                               Counted(t.reservations, "reservation"), Counted(t.pins, "pin")},
                              ", "));
  }
  facts.emplace_back("connections", ConnectionText(s));
  facts.emplace_back("hits", HitText(s));
  facts.emplace_back("damage", absl::StrCat(Count(Damage(s)), " blocks dropped"));
  for (const wire::ShareUse& share : s.shares) {
    if (share.held == 0 && share.refused == 0) continue;
    facts.emplace_back(absl::StrCat("share of ", Printable(share.kind)), ShareText(share));
  }
  return facts;
}

Json ToJson(const wire::NodeStats& s) {
  Json out = {{"version", s.version},
              {"boot_id", s.boot_id},
              {"uptime_s", s.uptime_s},
              {"draining", s.draining}};
  Json& tenants = out["tenants"] = Json::array();
  for (const wire::TenantStats& t : s.tenants) {
    tenants.push_back({{"tenant", t.tenant},
                       {"pool_limit", t.pool_limit.value()},
                       {"pool_online", t.pool_online.value()},
                       {"pool_free", t.pool_free.value()},
                       {"pool_stored", t.pool_stored.value()},
                       {"pool_reserved", t.pool_reserved.value()},
                       {"pool_leased", t.pool_leased.value()},
                       {"pool_quarantined", t.pool_quarantined.value()},
                       {"blocks", t.blocks},
                       {"leases", t.leases},
                       {"reservations", t.reservations},
                       {"pins", t.pins},
                       {"sessions", t.sessions},
                       {"index_bytes", t.index_bytes.value()},
                       {"metadata_bytes", t.metadata_bytes.value()},
                       {"pages", t.pages},
                       {"durability", t.durability},
                       {"pool_stalled", t.pool_stalled}});
  }
  out["counters"] = s.counters;
  out["gauges"] = s.gauges;
  Json& shares = out["shares"] = Json::array();
  for (const wire::ShareUse& share : s.shares) {
    Json holders = Json::array();
    for (const wire::ShareUse::Holder& holder : share.holders)
      holders.push_back({{"who", holder.who}, {"held", holder.held}});
    shares.push_back({{"kind", share.kind},
                      {"held", share.held},
                      {"limit", share.limit},
                      {"refused", share.refused},
                      {"holders", holders}});
  }
  return out;
}

}  // namespace larder::cli
