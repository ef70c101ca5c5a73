#include "server/metrics/metrics_table.h"

#include <time.h>

#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/metrics/metrics_samples.h"
#include "server/runtime/version.h"
#include "storage/check.h"

namespace larder {
namespace {

// The samples are one namespace with the table, in a file of their own for length.
using namespace metric_samples;  // NOLINT(google-build-using-namespace)

constexpr MetricType kC = MetricType::kCounter;
constexpr MetricType kG = MetricType::kGauge;
constexpr MetricType kH = MetricType::kHistogram;
constexpr Metric kMetrics[] = {
    {"larder_build_info", kG, "1", "version", kBuild, "Always 1; the label says what runs."},
    {"larder_start_time_seconds", kG, "seconds", "", kStarted,
     "When the daemon started, in seconds since 1970."},
    {"larder_cpu_seconds_total", kC, "seconds", "", kProcessor,
     "Processor time that the daemon took, of all its threads."},
    {"larder_sessions_total", kC, "sessions", "result", kSessions,
     "Sessions by what became of them: attached, refused (at the limit, or draining), lost (the "
     "stream broke; what it held is quarantined until its process is gone)."},
    {"larder_requests_total", kC, "requests", "kind", kRequests,
     "Requests taken, by kind. Several may travel in one message of a session's stream."},
    {"larder_calls_overloaded_total", kC, "calls", "", kOverloaded,
     "Calls refused with RESOURCE_EXHAUSTED and a retry hint, as too many were under way."},
    {"larder_invalid_messages_total", kC, "messages", "", kInvalid,
     "Messages and calls refused with INVALID_ARGUMENT: garbage, broken limits, wrong order."},
    {"larder_calls_at_wrong_socket_total", kC, "calls", "", kWrongSocket,
     "Calls refused with PERMISSION_DENIED, as another socket serves their method; the caller is "
     "told which."},
    {"larder_registrations_refused_total", kC, "registrations", "", kRegistrationsRefused,
     "Registrations of sessions that were refused: of another user's engine, too long, invalid, or "
     "for want of a share."},
    {"larder_unknown_releases_total", kC, "leases", "", kUnknownReleases,
     "Releases of leases that the session does not hold (any more)."},
    {"larder_blocks_put_total", kC, "blocks", "result", kPut,
     "Blocks that writers published, by result. A duplicate was there already and counts as "
     "success; refused is invalid, full or not held."},
    {"larder_blocks_got_total", kC, "blocks", "result", kGot,
     "Blocks that readers asked for, by result."},
    {"larder_put_bytes_total", kC, "bytes", "", kPutBytes,
     "Bytes of blocks that writers published, duplicates and refused ones left out."},
    {"larder_put_tokens_total", kC, "tokens", "", kPutTokens, "Tokens of the same blocks."},
    {"larder_got_bytes_total", kC, "bytes", "tier", kGotBytes,
     "Bytes of blocks that readers were granted, by the tier where they were found."},
    {"larder_got_tokens_total", kC, "tokens", "tier", kGotTokens, "Tokens of the same blocks."},
    {"larder_request_seconds", kH, "seconds", "kind", kSeconds,
     "The daemon's own part of lookups; of a session's message, of its reserves and publishes "
     "(write; copies from staging segments come after) and of its acquires; and from an acquire "
     "until a block of it was read from disk."},
    {"larder_host_checks_total", kC, "blocks", "", kHostChecks,
     "Blocks read from host memory that were checked against their hashes, or sent out with them "
     "to be checked."},
    {"larder_host_verified_total", kC, "blocks", "result", kHostVerified,
     "Blocks in host memory that were read again to see whether they are whole: ok, damaged (given "
     "up)."},
    {"larder_host_verify_walks_total", kC, "walks", "", kHostVerifyWalks,
     "Times that all of them were."},
    {"larder_host_verify_seconds", kG, "seconds", "", kHostVerifySeconds,
     "Time within which damage of a block in host memory is found, with as much stored as now and "
     "at the rate of --host-verify-rate; 0 where that is 0."},
    {"larder_blocks_damaged_total", kC, "blocks", "tier", kDamaged,
     "Stored blocks whose bytes did not match their hashes. Each left the pool; it is a miss, or "
     "read from its copy on disk."},
    {"larder_blocks_damaged_in_transit_total", kC, "blocks", "", kDamagedInTransit,
     "Blocks whose bytes did not match their hashes when they arrived by StoreBlocks; not stored."},
    {"larder_moved_bytes_total", kC, "bytes", "road", kMoved,
     "Bytes of blocks that the daemon itself moved: copied from staging segments and to them, "
     "stored and fetched by the byte streams. What engines move through shared memory it does not "
     "see."},
    {"larder_holds_expired_total", kC, "holds", "kind", kExpired,
     "Leases and reservations that ended at their deadline, not by their holder."},
    {"larder_blocks_evicted_total", kC, "blocks", "cause", kEvicted,
     "Blocks evicted, on demand of a writer or ahead of need to keep the watermark."},
    {"larder_blocks_evicted_unspilled_total", kC, "blocks", "", kEvictedUnspilled,
     "Of the blocks evicted, those that were not on disk, too, and so are gone; without a disk "
     "all."},
    {"larder_reserve_full_total", kC, "requests", "", kReserveFull,
     "Reservations answered \"full, retry after\"."},
    {"larder_connections_total", kC, "connections", "socket", kConnections,
     "Connections accepted at the socket files that gRPC serves, those refused right after too."},
    {"larder_connections_open", kG, "connections", "socket", kConnectionsOpen,
     "Of these, those that are open; it may take a second until one that was closed is noticed."},
    {"larder_connections_refused_total", kC, "connections", "cause", kConnectionsRefused,
     "Connections refused, by socket and cause: all places are taken, those of the uid or of the "
     "process, the daemon has no descriptor left, or the peer sent descriptors; and those ended as "
     "they held most of what had come of messages that were not whole."},
    {"larder_incoming_bytes", kG, "bytes", "what", kIncoming,
     "What has come of messages that are not whole, with what gRPC keeps of their calls, and how "
     "much that may be."},
    {"larder_sockets_reopened_total", kC, "events", "socket", kSocketsReopened,
     "Times that a socket file was made again, because it was gone or took no connections."},
    {"larder_descriptors", kG, "descriptors", "what", kDescriptors,
     "Open files of the daemon and how many there may be; of those that peers sent unasked, the "
     "ones being closed, which may take for as long as the sender chose, and the ones that wait "
     "for "
     "that."},
    {"larder_stuck_total", kC, "events", "", kStuck,
     "Looks of the watchdog that found a part of the daemon which did not come round."},
    {"larder_sideband_connections_total", kC, "connections", "step", kSidebandConnections,
     "Connections to the sideband: accepted, and of these welcomed after the handshake."},
    {"larder_sideband_refused_total", kC, "events", "cause", kSidebandRefused,
     "What the sideband refused, by cause: connections, packets and requests."},
    {"larder_sideband_given_total", kC, "requests", "what", kSidebandGiven,
     "What the sideband did for attached processes: descriptors handed out (slabs, session pages, "
     "session sockets), staging segments made, device memory shared and opened by path, CLEAN "
     "acknowledged."},
    {"larder_sideband_connections_open", kG, "connections", "", kSidebandOpen,
     "Connections to the sideband that are open."},
    {"larder_disk_bytes", kG, "bytes", "part", kDiskBytes,
     "The disk tier: its limit, what of it is for records, what live records take, what all its "
     "files take."},
    {"larder_disk_blocks", kG, "blocks", "where", kDiskBlocks,
     "Blocks on disk: all; those that are not in host memory; and those that a former daemon left "
     "and this one cannot name yet, for want of room in memory or as their name is being written, "
     "which it tries again."},
    {"larder_disk_moved_bytes_total", kC, "bytes", "how", kDiskMoved,
     "Bytes of blocks spilled and promoted, and bytes that were written to the disk for that, its "
     "catalog included."},
    {"larder_disk_spill_total", kC, "blocks", "result", kSpilled,
     "Published blocks by what became of their copy to the disk: spilled; dropped because the "
     "queue was full, they were evicted before their turn, the disk had no room, or failed and the "
     "queue was full by then (else they wait again); damaged (not what their writer's hashes "
     "say)."},
    {"larder_disk_promote_total", kC, "blocks", "result", kPromoted,
     "Blocks wanted from the disk: promoted, joined (another's read), missing (it failed or is "
     "left alone), damaged, full (no room in the pool), refused (too many wait already, of their "
     "session or of all)."},
    {"larder_disk_failures_total", kC, "events", "kind", kDiskFailures,
     "What failed on the disk; records that were found damaged; and blocks that found no room in a "
     "catalog though there was room for their bytes."},
    {"larder_disk_left_alone_total", kC, "events", "for", kDiskLeftAlone,
     "Times that the disk was left alone for a while, as it had failed."},
    {"larder_disk_evicted_total", kC, "blocks", "", kDiskEvicted,
     "Blocks that left the disk to make room there, whether or not they are in host memory."},
    {"larder_disk_shards", kG, "shards", "state", kDiskShards,
     "Shards of the disk: all, and those that could not be opened or read, until that works (it is "
     "tried again and again), or that take no writes since one failed, until the next one works."},
    {"larder_disk_shards_set_aside_total", kC, "shards", "", kShardsSetAside,
     "Shards that were found damaged, set aside, and began empty."},
    {"larder_disk_facts_bytes", kG, "bytes", "part", kDiskFacts,
     "What pins and registrations take of the disk, each with its limit: beyond it no more become "
     "durable until some end."},
    {"larder_disk_registration_failures_total", kC, "events", "", kRegistrationsFailed,
     "Registrations of engines that could not be written to disk; each is tried again."},
    {"larder_disk_verified_total", kC, "blocks", "result", kVerified,
     "Blocks on disk alone that were read again to see whether they are whole: ok, damaged (given "
     "up), failed (the disk did)."},
    {"larder_disk_verify_walks_total", kC, "walks", "", kVerifyWalks,
     "Times that all of them were."},
    {"larder_disk_waiting", kG, "blocks", "for", kDiskWaiting,
     "Blocks that wait to be written or read."},
    {"larder_disk_recovering", kG, "boolean", "", kDiskRecovering,
     "1 while it finds out what a former daemon left on disk."},
    {"larder_pool_bytes", kG, "bytes", "part", kPool,
     "The pool: its limit, what is populated (online), and of that free, stored, reserved and "
     "quarantined; leased is the part of stored under at least one lease."},
    {"larder_pool_stalled", kG, "boolean", "", kPoolStalled,
     "1 while the host has no memory for the next slab; the log and larderctl status say why, and "
     "it is asked again every 5 seconds.  Health is NOT_SERVING while there is no slab at all."},
    {"larder_blocks", kG, "blocks", "", kBlocks, "Blocks stored."},
    {"larder_blocks_cleared_total", kC, "blocks", "tier", kCleared,
     "Blocks that callers took away (Cache.Clear); one that lay in both tiers counts in both."},
    {"larder_blocks_moved_total", kC, "blocks", "to", kMovedBlocks,
     "Blocks that callers brought into another tier (Cache.Move)."},
    {"larder_compressed_blocks_total", kC, "blocks", "to", kRecoded,
     "Copies of blocks that callers encoded or decoded where they lie (Cache.Compress), by tier "
     "and codec; one that lies in both tiers counts in both."},
    {"larder_decoded_for_leases_total", kC, "blocks", "", kDecodedForLease,
     "Blocks that host memory has encoded, decoded for a session that does not accept their "
     "codec."},
    {"larder_compressed_bytes_total", kC, "bytes", "room", kRecodedBytes,
     "Room that those copies took before, and after."},
    {"larder_device_blocks", kG, "blocks", "", kDeviceBlocks,
     "Blocks that engines say they have in device memory; one that two engines have counts twice."},
    {"larder_device_blocks_left_out_total", kC, "blocks", "", kDeviceLeftOut,
     "Blocks of device memory that are not kept account of: an engine has at most 524,288 places, "
     "all of them twice as many; and what is reported under an engine id that another user's "
     "sessions have."},
    {"larder_engine_id_conflicts_total", kC, "times", "", kIdConflicts,
     "Sessions and registrations under an engine id that another user's sessions have: they work, "
     "and what they say of the engine is left out."},
    {"larder_directives_total", kC, "directives", "step", kDirectives,
     "What engines were asked to do with blocks in device memory (pin, unpin, drop, compress): "
     "sent, and of these done, whatever was said of each block, unanswered within 5 seconds, or "
     "ended with their session; unsent: given up while their session answered nothing of what it "
     "owed."},
    {"larder_events_told_total", kC, "events", "", kEventsTold,
     "Blocks that came to a tier or left one, told to a watcher (Cache.WatchEvents); one for each "
     "watcher."},
    {"larder_watchers_cut_off_total", kC, "watchers", "", kCutOff,
     "Watchers that read more slowly than events are kept (events_max)."},
    {"larder_pins", kG, "pins", "", kPins, "Pins and prefetches, one for each owner of a block."},
    {"larder_pinned_bytes", kG, "bytes", "tier", kPinned,
     "Blocks that pins keep: in host memory (some may still be on their way there; what is pinned "
     "on "
     "disk counts until it is there), on disk."},
    {"larder_pins_expired_total", kC, "pins", "", kPinsExpired,
     "Pins and prefetches that ended at their deadline."},
    {"larder_pin_write_failures_total", kC, "writes", "", kPinWritesFailed,
     "Writes of pins that the disk did not take: their calls failed, and it is tried again."},
    {"larder_pins_not_restored_total", kC, "pins", "", kPinsNotRestored,
     "Pins of a former daemon that were more than pins_max, when this one started."},
    {"larder_holds", kG, "holds", "kind", kHolds, "Leases and reservations held."},
    {"larder_kept_bytes", kG, "bytes", "what", kKept,
     "Memory beside the pool that stored blocks take: the index, and metadata such as token ids "
     "and segment tables."},
    {"larder_sessions", kG, "sessions", "write_mode", kAttached,
     "Sessions attached, by how they write: mapped (into the pool), staged (the daemon copies), "
     "stream (bytes over gRPC; those that have not said hello yet, too)."},
    {"larder_sessions_reading", kG, "sessions", "read_mode", kReading,
     "The same, by how they read: mapped (in place), copied (the daemon copies to their staging "
     "segments), stream."},
    {"larder_staging_bytes", kG, "bytes", "", kStaging,
     "Staging segments that there are, by their size: those that processes have now, and dropped "
     "ones until their memory is free. Limits: staging_limit, staging_uid_limit, "
     "staging_total_limit."},
    {"larder_processes", kG, "processes", "", kProcesses,
     "Processes known by the sideband: connected, attached, or with something in quarantine."},
    {"larder_share_held", kG, "as named", "kind", kShareHeld,
     "What callers hold of each kind of thing that they have a share of (docs/shares.md)."},
    {"larder_shares_refused_total", kC, "requests", "kind", kShareRefused,
     "Requests refused for want of a share: their process, their uid or all hold too much of it; "
     "`larderctl status` shows who."},
    {"larder_damage_reports_dropped_total", kC, "blocks", "", kReportsDropped,
     "Blocks that readers reported as damaged and that were not looked at, as too many waited."},
    {"larder_draining", kG, "0 or 1", "", kDraining, "1 while the daemon drains."},
    {"larder_resident_bytes", kG, "bytes", "kind", kResident,
     "Resident memory of the daemon by what backs it. shmem is the pool (but for hugetlb pages, "
     "which nothing counts here); anonymous is the daemon's own."},
};

// Seconds have fractions.
bool IsWholeCounter(const Metric& metric) { return metric.type == kC && metric.unit != "seconds"; }

const char* TypeName(MetricType type) {
  return type == kC ? "counter" : type == kG ? "gauge" : "histogram";
}

std::string SampleName(const Metric& metric, const MetricSample& sample) {
  const absl::string_view name(metric.name.data(), metric.name.size());
  if (metric.label_name.empty()) return std::string(metric.name);
  return absl::StrCat(name, "{",
                      absl::string_view(metric.label_name.data(), metric.label_name.size()), "=\"",
                      absl::string_view(sample.label.data(), sample.label.size()), "\"}");
}

// The values of a metric's label, as `a`, `b`.
std::string Labels(const Metric& metric) {
  if (metric.label_name.empty()) return "";
  std::string out = absl::StrCat("`", std::string(metric.label_name), "`: ");
  return out + absl::StrJoin(metric.samples, ", ", [](std::string* to, const MetricSample& sample) {
           absl::StrAppend(to, "`", std::string(sample.label), "`");
         });
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

double ReadProcessorSeconds() {
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
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
      "Made by `larderd --print-metrics-reference`; do not edit. Prometheus reads them at\n"
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
