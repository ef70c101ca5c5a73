#include "server/metrics/metrics_table.h"

#include <time.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/metrics/metrics_samples.h"
#include "server/runtime/version.h"
#include "storage/check.h"
#include "storage/text.h"

namespace larder {
namespace {

// The samples belong to the table; they are in a file of their own only because the table is long.
using namespace metric_samples;  // NOLINT(google-build-using-namespace)

constexpr MetricType kC = MetricType::kCounter;
constexpr MetricType kG = MetricType::kGauge;
constexpr MetricType kH = MetricType::kHistogram;
constexpr Metric kMetrics[] = {
    {"larder_build_info", kG, "1", "version", kBuild, "Always 1; the label is the version."},
    {"larder_start_time_seconds", kG, "seconds", "", kStarted,
     "When the daemon started, in seconds since 1970."},
    {"larder_cpu_seconds_total", kC, "seconds", "", kProcessor,
     "Processor time that all threads of the daemon have used."},
    {"larder_sessions_total", kC, "sessions", "result", kSessions,
     "Sessions by what happened to them: attached; refused (at the limit, or because the daemon "
     "drains); lost (the stream broke; what the session held is quarantined until its process is "
     "dead or has unmapped it)."},
    {"larder_requests_total", kC, "requests", "kind", kRequests,
     "Requests accepted, by kind. One message of a session's stream may contain several."},
    {"larder_calls_overloaded_total", kC, "calls", "", kOverloaded,
     "Calls refused with RESOURCE_EXHAUSTED and a retry hint, because too many were under way."},
    {"larder_invalid_messages_total", kC, "messages", "", kInvalid,
     "Messages and calls refused with INVALID_ARGUMENT: malformed, beyond a limit, or in the wrong "
     "order."},
    {"larder_calls_at_wrong_socket_total", kC, "calls", "", kWrongSocket,
     "Calls refused with PERMISSION_DENIED, because another socket serves their method; the answer "
     "names that socket."},
    {"larder_registrations_refused_total", kC, "registrations", "", kRegistrationsRefused,
     "Registrations of sessions that were refused: too long, invalid, or beyond a share or a "
     "limit."},
    {"larder_unknown_releases_total", kC, "leases", "", kUnknownReleases,
     "Releases of leases that the session does not hold, or no longer holds."},
    {"larder_blocks_put_total", kC, "blocks", "result", kPut,
     "Blocks that writers published, by result. A duplicate was already stored and counts as a "
     "success; refused: the block was invalid, there was no memory, or its reservation was not "
     "held."},
    {"larder_blocks_got_total", kC, "blocks", "result", kGot,
     "Blocks that readers requested, by result."},
    {"larder_put_bytes_total", kC, "bytes", "", kPutBytes,
     "Bytes of blocks that writers published, without duplicates and refused ones."},
    {"larder_put_tokens_total", kC, "tokens", "", kPutTokens, "Tokens of the same blocks."},
    {"larder_got_bytes_total", kC, "bytes", "tier", kGotBytes,
     "Bytes of blocks that readers were granted, by the tier in which they were found."},
    {"larder_got_tokens_total", kC, "tokens", "tier", kGotTokens, "Tokens of the same blocks."},
    {"larder_request_seconds", kH, "seconds", "kind", kSeconds,
     "How long the daemon took for a lookup; for the reserves and publishes of a session's message "
     "(write; without copies from staging segments, which come later); for the acquires of a "
     "session's message; and from an acquire until a block of it was read from disk (disk_read)."},
    {"larder_host_checks_total", kC, "blocks", "", kHostChecks,
     "Blocks read from host memory that the daemon checked against their hashes, or sent with "
     "their hashes so that the reader checks them."},
    {"larder_host_verified_total", kC, "blocks", "result", kHostVerified,
     "Blocks in host memory that the daemon reread to find damage: ok, or damaged (and dropped)."},
    {"larder_host_verify_walks_total", kC, "walks", "", kHostVerifyWalks,
     "Times that all blocks in host memory were reread."},
    {"larder_host_verify_seconds", kG, "seconds", "", kHostVerifySeconds,
     "Time within which the daemon finds a damaged block in host memory, with as much stored as "
     "now and at --host-verify-rate; 0 if that rate is 0."},
    {"larder_blocks_damaged_total", kC, "blocks", "tier", kDamaged,
     "Stored blocks whose bytes did not match their hashes. Each was dropped from the pool: it is "
     "a miss, or is read from its copy on disk."},
    {"larder_blocks_damaged_in_transit_total", kC, "blocks", "", kDamagedInTransit,
     "Blocks that StoreBlocks did not store, because their bytes did not match their hashes when "
     "they arrived."},
    {"larder_moved_bytes_total", kC, "bytes", "road", kMoved,
     "Bytes of blocks that the daemon itself moved: copied from staging segments (staged) and to "
     "them (copied), stored and fetched by the byte streams. The daemon does not see bytes that "
     "engines move through shared memory."},
    {"larder_holds_expired_total", kC, "holds", "kind", kExpired,
     "Leases and reservations that ended at their deadline, and not because their holder ended "
     "them."},
    {"larder_blocks_evicted_total", kC, "blocks", "cause", kEvicted,
     "Blocks evicted from the pool: because a writer needed the memory (demand), or ahead of need "
     "to keep the watermark."},
    {"larder_blocks_evicted_unspilled_total", kC, "blocks", "", kEvictedUnspilled,
     "Of the evicted blocks, those that were not on disk either, and so are lost; without a disk, "
     "all of them."},
    {"larder_reserve_full_total", kC, "requests", "", kReserveFull,
     "Reservations answered \"full, retry after\"."},
    {"larder_connections_total", kC, "connections", "socket", kConnections,
     "Connections accepted at the socket files that gRPC serves, including those that the daemon "
     "then refused, and those that the peer had closed by then."},
    {"larder_connections_open", kG, "connections", "socket", kConnectionsOpen,
     "Of these, the connections that are open. The daemon may notice only after a second that one "
     "was closed."},
    {"larder_connections_refused_total", kC, "connections", "cause", kConnectionsRefused,
     "Connections refused or ended, by socket and cause: the limit of all connections, of the uid "
     "or of the process was reached; the daemon had no descriptor left; the peer sent descriptors; "
     "or incomplete messages took too much memory, and this connection held the most of it "
     "(incoming)."},
    {"larder_incoming_bytes", kG, "bytes", "what", kIncoming,
     "Bytes of incomplete messages that have arrived, including what gRPC keeps for their calls, "
     "and their limit."},
    {"larder_sockets_reopened_total", kC, "events", "socket", kSocketsReopened,
     "Times that the daemon recreated a socket file, because it was removed, or took no "
     "connections."},
    {"larder_descriptors", kG, "descriptors", "what", kDescriptors,
     "Open files of the daemon, and their limit; and of the descriptors that peers sent without "
     "being asked, those being closed, which may take as long as the sender chose, and those that "
     "wait to be closed."},
    {"larder_stuck_total", kC, "events", "", kStuck,
     "Checks of the watchdog that found a part of the daemon which makes no progress."},
    {"larder_sideband_connections_total", kC, "connections", "step", kSidebandConnections,
     "Connections to the sideband: accepted, and of these welcomed after the handshake."},
    {"larder_sideband_refused_total", kC, "events", "cause", kSidebandRefused,
     "What the sideband refused, by cause: connections, packets and requests."},
    {"larder_sideband_given_total", kC, "requests", "what", kSidebandGiven,
     "What the sideband did for attached processes: descriptors handed out (slabs, session pages, "
     "session sockets), staging segments created, device memory shared and opened by descriptor "
     "and by handle, CLEAN acknowledged."},
    {"larder_sideband_connections_open", kG, "connections", "", kSidebandOpen,
     "Connections to the sideband that are open."},
    {"larder_disk_bytes", kG, "bytes", "part", kDiskBytes,
     "The disk tier: its limit, the part of that for records (room), the bytes of live records "
     "(used), and the bytes of all its files (allocated)."},
    {"larder_disk_blocks", kG, "blocks", "where", kDiskBlocks,
     "Blocks on disk: all; those that are not in host memory (disk_only); and those of an earlier "
     "daemon that this one cannot name yet, because its index has no capacity for them or their "
     "name is being written (unplaced). It tries these again."},
    {"larder_disk_moved_bytes_total", kC, "bytes", "how", kDiskMoved,
     "Bytes of blocks spilled and promoted, and bytes written to the disk for that, including its "
     "catalogs."},
    {"larder_disk_spill_total", kC, "blocks", "result", kSpilled,
     "Published blocks by what happened to their copy to the disk: offered; spilled; dropped "
     "because the queue was full, because they were evicted before their turn, because the disk "
     "had no space (dropped_room), or because the disk failed and the queue was full by then "
     "(otherwise they wait again); damaged (their bytes did not match their writer's hashes)."},
    {"larder_disk_promote_total", kC, "blocks", "result", kPromoted,
     "Blocks requested from the disk: promoted; joined (another request already read the block); "
     "missing (also if the disk failed or is left alone); damaged; full (the pool had no memory); "
     "refused (too many waited already, of the session or of all)."},
    {"larder_disk_failures_total", kC, "events", "kind", kDiskFailures,
     "Failures of the disk: writes, reads, syncs and calls of the catalog that failed; records "
     "found damaged; and blocks that did not fit into a catalog although there was space for their "
     "bytes."},
    {"larder_disk_left_alone_total", kC, "events", "for", kDiskLeftAlone,
     "Times that the daemon stopped using the disk for a while, because it had failed."},
    {"larder_disk_evicted_total", kC, "blocks", "", kDiskEvicted,
     "Blocks evicted from the disk to free space there, whether or not they are in host memory."},
    {"larder_disk_shards", kG, "shards", "state", kDiskShards,
     "Shards of the disk: all; and failed ones: a shard that cannot be opened or read (the daemon "
     "keeps trying), or that takes no writes since one failed, until a write succeeds."},
    {"larder_disk_shards_set_aside_total", kC, "shards", "", kShardsSetAside,
     "Shards that the daemon found damaged and set aside; each was replaced by an empty one."},
    {"larder_disk_facts_bytes", kG, "bytes", "part", kDiskFacts,
     "Space that pins and registrations take on the disk, each with its limit: at the limit no "
     "further ones become durable until others end."},
    {"larder_disk_registration_failures_total", kC, "events", "", kRegistrationsFailed,
     "Registrations of engines that could not be written to disk; the daemon retries each."},
    {"larder_disk_verified_total", kC, "blocks", "result", kVerified,
     "Blocks on disk only that the daemon reread to find damage: ok; damaged (and dropped); failed "
     "(the disk failed)."},
    {"larder_disk_verify_walks_total", kC, "walks", "", kVerifyWalks,
     "Times that all blocks on disk only were reread."},
    {"larder_disk_waiting", kG, "blocks", "for", kDiskWaiting,
     "Blocks that wait to be written to the disk or read from it."},
    {"larder_disk_recovering", kG, "boolean", "", kDiskRecovering,
     "1 while the daemon reads what an earlier daemon left on disk."},
    {"larder_pool_bytes", kG, "bytes", "part", kPool,
     "The pool: its limit; the part that is populated (online); and of that, the bytes that are "
     "free, stored, reserved and quarantined. leased is the part of stored that is under at least "
     "one lease."},
    {"larder_pool_stalled", kG, "boolean", "", kPoolStalled,
     "1 while the host has no memory for the next slab; the log and larderctl status give the "
     "reason, and the daemon retries every 5 seconds. Health is NOT_SERVING while there is no slab "
     "at all."},
    {"larder_blocks", kG, "blocks", "", kBlocks, "Blocks stored."},
    {"larder_blocks_cleared_total", kC, "blocks", "tier", kCleared,
     "Blocks that callers cleared (Cache.Clear); a block that was in both tiers counts in both."},
    {"larder_blocks_moved_total", kC, "blocks", "to", kMovedBlocks,
     "Blocks that callers moved to another tier (Cache.Move)."},
    {"larder_compressed_blocks_total", kC, "blocks", "to", kRecoded,
     "Copies of blocks that callers encoded or decoded in place (Cache.Compress), by tier and "
     "codec; a block that is in both tiers counts in both."},
    {"larder_decoded_for_leases_total", kC, "blocks", "", kDecodedForLease,
     "Encoded blocks in host memory that were decoded for a session that does not accept their "
     "codec."},
    {"larder_compressed_bytes_total", kC, "bytes", "room", kRecodedBytes,
     "Bytes that those copies took before and after that, by tier."},
    {"larder_device_blocks", kG, "blocks", "", kDeviceBlocks,
     "Blocks that engines report in device memory; a block that two engines have counts twice."},
    {"larder_device_blocks_left_out_total", kC, "blocks", "", kDeviceLeftOut,
     "Blocks of device memory that the daemon does not record: those beyond its limits (524,288 "
     "for one engine, twice as many for all), and those reported under an engine id that belongs "
     "to another user."},
    {"larder_device_reports_refused_total", kC, "reports", "", kDeviceRefused,
     "Reports of device memory that the daemon ignores because they are wrong: of a variant that "
     "the session has not registered, or with digests that do not follow from their tokens."},
    {"larder_promises", kG, "promises", "", kPromises,
     "Promises that sessions hold: the blocks of a prefix that an engine is about to load."},
    {"larder_promised_bytes", kG, "bytes", "", kPromised,
     "Bytes of the blocks that promises hold, each counted once for an engine."},
    {"larder_engine_id_conflicts_total", kC, "times", "", kIdConflicts,
     "Sessions and registrations under an engine id that belongs to another user. They work, but "
     "the daemon ignores what they report about the engine."},
    {"larder_directives_total", kC, "directives", "step", kDirectives,
     "Directives to engines for blocks in device memory (pin, unpin, drop, compress): sent; and of "
     "these done (answered, whatever the answer says of each block), unanswered within 5 seconds, "
     "or ended with their session; unsent: given up because their session did not answer earlier "
     "ones."},
    {"larder_events_told_total", kC, "events", "", kEventsTold,
     "Events that a block entered or left a tier, sent to a watcher (Cache.WatchEvents); an event "
     "counts once for each watcher."},
    {"larder_watchers_cut_off_total", kC, "watchers", "", kCutOff,
     "Watchers that were cut off, because they fell more than events_max events behind."},
    {"larder_pins", kG, "pins", "", kPins, "Pins and prefetches, one for each owner of a block."},
    {"larder_pinned_bytes", kG, "bytes", "tier", kPinned,
     "Bytes of pinned blocks, by tier. Some blocks pinned in host memory may still be on their way "
     "there, and a block pinned on disk counts as host until it is on disk."},
    {"larder_pins_expired_total", kC, "pins", "", kPinsExpired,
     "Pins and prefetches that ended at their deadline."},
    {"larder_pin_write_failures_total", kC, "writes", "", kPinWritesFailed,
     "Writes of pins to the disk that failed: their calls failed, and the daemon retries the "
     "writes."},
    {"larder_pins_not_restored_total", kC, "pins", "", kPinsNotRestored,
     "Pins of an earlier daemon that this one did not restore at its start, because they were more "
     "than pins_max."},
    {"larder_holds", kG, "holds", "kind", kHolds, "Leases and reservations held."},
    {"larder_kept_bytes", kG, "bytes", "what", kKept,
     "Memory outside the pool that stored blocks take: the index, and metadata such as token ids "
     "and segment tables."},
    {"larder_sessions", kG, "sessions", "write_mode", kAttached,
     "Attached sessions, by how they write: mapped (into the pool), staged (the daemon copies), "
     "stream (bytes over gRPC; includes sessions that have not said hello yet)."},
    {"larder_sessions_reading", kG, "sessions", "read_mode", kReading,
     "Attached sessions, by how they read: mapped (in place), copied (the daemon copies to their "
     "staging segments), stream."},
    {"larder_staging_bytes", kG, "bytes", "", kStaging,
     "Bytes of all staging segments: those that processes have now, and dropped ones until their "
     "memory is freed. Limits: staging_limit, staging_uid_limit, staging_total_limit."},
    {"larder_processes", kG, "processes", "", kProcesses,
     "Processes that the sideband knows: connected, attached, or with memory in quarantine."},
    {"larder_share_held", kG, "as named", "kind", kShareHeld,
     "What callers hold, by the kind of share (docs/shares.md)."},
    {"larder_shares_refused_total", kC, "requests", "kind", kShareRefused,
     "Requests refused because their process, their uid or all callers together hold too much of a "
     "kind; `larderctl status` shows the holders."},
    {"larder_damage_reports_dropped_total", kC, "blocks", "", kReportsDropped,
     "Blocks that readers reported as damaged and that the daemon did not check, because too many "
     "reports waited."},
    {"larder_draining", kG, "0 or 1", "", kDraining, "1 while the daemon drains."},
    {"larder_resident_bytes", kG, "bytes", "kind", kResident,
     "Resident memory of the daemon by what backs it. shmem is the pool (except hugetlb pages, "
     "which are not counted here); anonymous is the daemon's own."},
};

// Returns true for metrics that are counters, except those of seconds, which have fractions.
bool IsWholeCounter(const Metric& metric) { return metric.type == kC && metric.unit != "seconds"; }

const char* TypeName(MetricType type) {
  return type == kC ? "counter" : type == kG ? "gauge" : "histogram";
}

std::string SampleName(const Metric& metric, const MetricSample& sample) {
  if (metric.label_name.empty()) return std::string(metric.name);
  return absl::StrCat(AbslView(metric.name), "{", AbslView(metric.label_name), "=\"",
                      AbslView(sample.label), "\"}");
}

// Returns the name of a metric's label and its values, as `label`: `a`, `b`.
std::string Labels(const Metric& metric) {
  if (metric.label_name.empty()) return "";
  std::string out = absl::StrCat("`", std::string(metric.label_name), "`: ");
  return out + absl::StrJoin(metric.samples, ", ", [](std::string* to, const MetricSample& sample) {
           absl::StrAppend(to, "`", std::string(sample.label), "`");
         });
}

double ReadProcessorSeconds() {
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  uint64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &kib)) continue;
    if (words[0] == "RssAnon") memory.anonymous = KiB(kib);
    if (words[0] == "RssFile") memory.file = KiB(kib);
    if (words[0] == "RssShmem") memory.shmem = KiB(kib);
  }
  return memory;
}

MetricReadings ReadingsOf(Gauges daemon) {
  return {.daemon = std::move(daemon),
          .memory = ReadProcessMemory(),
          .processor_s = ReadProcessorSeconds()};
}

double MetricSample::Read(const Counters& counters, const MetricReadings& readings) const {
  LARDER_CHECK(histogram == nullptr && (counter == nullptr) != (reading == nullptr));
  return counter != nullptr ? Double((counters.*counter).value()) : reading(readings);
}

std::span<const Metric> Metrics() { return kMetrics; }

void VisitCounters(const Counters& counters, const MetricReadings& readings,
                   const std::function<void(const std::string&, uint64_t)>& visit) {
  for (const Metric& metric : kMetrics) {
    if (!IsWholeCounter(metric)) continue;
    for (const MetricSample& sample : metric.samples) {
      visit(SampleName(metric, sample), static_cast<uint64_t>(sample.Read(counters, readings)));
    }
  }
}

void VisitReadings(const MetricReadings& readings,
                   const std::function<void(const std::string&, double)>& visit) {
  for (const Metric& metric : kMetrics) {
    if (IsWholeCounter(metric)) continue;
    for (const MetricSample& sample : metric.samples) {
      if (sample.reading != nullptr) visit(SampleName(metric, sample), sample.reading(readings));
    }
  }
}

std::string MetricsReference() {
  std::string out =
      "# Metrics of larderd\n\n"
      "Printed by `larderd --print-metrics-reference`; do not edit. Prometheus reads them at\n"
      "`http://127.0.0.1:9464/metrics` (option `metrics_listen`); `Admin.Stats` has the counters "
      "too.\nCounters begin at zero with every start of the daemon.\n\n"
      "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const Metric& metric : kMetrics) {
    absl::StrAppend(&out, "| `", std::string(metric.name), "` | ", TypeName(metric.type), " | ",
                    std::string(metric.unit), " | ", Labels(metric), " | ",
                    std::string(metric.help), " |\n");
  }
  return out;
}

}  // namespace larder
