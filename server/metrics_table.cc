#include "server/metrics_table.h"

#include <time.h>

#include <atomic>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/sideband_connection.h"
#include "server/version.h"
#include "storage/check.h"

namespace larder {
namespace {

using R = MetricReadings;

constexpr MetricSample Count(std::string_view label, Counter Counters::*counter) {
  return {.label = label, .counter = counter, .reading = nullptr, .histogram = nullptr};
}
constexpr MetricSample Read(std::string_view label, double (*reading)(const R&)) {
  return {.label = label, .counter = nullptr, .reading = reading, .histogram = nullptr};
}
constexpr MetricSample Time(std::string_view label, Histogram Latencies::*histogram) {
  return {.label = label, .counter = nullptr, .reading = nullptr, .histogram = histogram};
}
double Double(uint64_t n) { return static_cast<double>(n); }
double Double(ByteCount bytes) { return Double(bytes.value()); }

// Zero until the sideband is up.
template <std::atomic<uint64_t> SidebandCounters::*member>
double OfSideband(const R& r) {
  const SidebandCounters* const counters = r.daemon.sideband;
  return counters == nullptr ? 0 : Double((counters->*member).load(std::memory_order_relaxed));
}
template <ByteCount BlockStore::Stats::*member>
double OfStore(const R& r) {
  return Double(r.daemon.store.*member);
}
template <uint64_t BlockStore::Stats::*member>
double OfStore(const R& r) {
  return Double(r.daemon.store.*member);
}

// Zero where there is no disk.
template <auto part, auto member>
double OfDisk(const R& r) {
  return r.daemon.disk ? Double((*r.daemon.disk).*part.*member) : 0;
}

using S = SidebandCounters;
using B = BlockStore::Stats;
using C = Counters;

constexpr MetricSample kSessions[] = {Count("attached", &C::sessions_attached),
                                      Count("refused", &C::sessions_refused),
                                      Count("lost", &C::sessions_lost)};
constexpr MetricSample kRequests[] = {Count("lookup", &C::requests_lookup),
                                      Count("list_instances", &C::requests_list_instances),
                                      Count("query_ip", &C::requests_query_ip),
                                      Count("pin", &C::requests_pin),
                                      Count("unpin", &C::requests_unpin),
                                      Count("prefetch", &C::requests_prefetch),
                                      Count("clear", &C::requests_clear),
                                      Count("move", &C::requests_move),
                                      Count("compress", &C::requests_compress),
                                      Count("watch_events", &C::requests_watch),
                                      Count("store_blocks", &C::requests_store_blocks),
                                      Count("fetch_blocks", &C::requests_fetch_blocks),
                                      Count("register", &C::requests_register),
                                      Count("reserve", &C::requests_reserve),
                                      Count("publish", &C::requests_publish),
                                      Count("acquire", &C::requests_acquire)};
constexpr MetricSample kCleared[] = {Count("host", &C::blocks_cleared_host),
                                     Count("disk", &C::blocks_cleared_disk)};
constexpr MetricSample kMovedBlocks[] = {Count("host", &C::blocks_moved_host),
                                         Count("disk", &C::blocks_moved_disk)};
constexpr MetricSample kRecoded[] = {Count("host_lossless", &C::blocks_encoded_host),
                                     Count("disk_lossless", &C::blocks_encoded_disk),
                                     Count("host_identity", &C::blocks_decoded_host),
                                     Count("disk_identity", &C::blocks_decoded_disk)};
constexpr MetricSample kDecodedForLease[] = {Count("", &C::blocks_decoded_for_lease)};
constexpr MetricSample kRecodedBytes[] = {Count("host_before", &C::recoded_bytes_before_host),
                                          Count("host_after", &C::recoded_bytes_after_host),
                                          Count("disk_before", &C::recoded_bytes_before_disk),
                                          Count("disk_after", &C::recoded_bytes_after_disk)};
constexpr MetricSample kDeviceBlocks[] = {
    Read("", [](const R& r) { return Double(r.daemon.device_blocks); })};
constexpr MetricSample kDeviceLeftOut[] = {Count("", &C::device_blocks_left_out)};
constexpr MetricSample kDirectives[] = {
    Count("sent", &C::directives_sent), Count("done", &C::directives_done),
    Count("unanswered", &C::directives_unanswered), Count("ended", &C::directives_ended),
    Count("unsent", &C::directives_unsent)};
constexpr MetricSample kEventsTold[] = {Count("", &C::events_told)};
constexpr MetricSample kCutOff[] = {Count("", &C::watchers_cut_off)};
constexpr MetricSample kPins[] = {Read("", OfStore<&B::pins>)};
constexpr MetricSample kPinned[] = {Read("host", OfStore<&B::pinned_host>),
                                    Read("disk", OfStore<&B::pinned_disk>)};
constexpr MetricSample kPinsExpired[] = {Count("", &C::pins_expired)};
constexpr MetricSample kPinsNotRestored[] = {Count("", &C::pins_not_restored)};
constexpr MetricSample kPinWritesFailed[] = {Count("", &C::pin_writes_failed)};
constexpr MetricSample kOverloaded[] = {Count("", &C::calls_overloaded)};
constexpr MetricSample kInvalid[] = {Count("", &C::invalid_messages)};
constexpr MetricSample kUnknownReleases[] = {Count("", &C::unknown_releases)};
constexpr MetricSample kPut[] = {Count("published", &C::blocks_published),
                                 Count("duplicate", &C::blocks_duplicate),
                                 Count("refused", &C::blocks_refused)};
constexpr MetricSample kGot[] = {Count("hit", &C::blocks_hit), Count("disk", &C::blocks_from_disk),
                                 Count("missing", &C::blocks_missing)};
constexpr MetricSample kPutBytes[] = {Count("", &C::put_bytes)};
constexpr MetricSample kPutTokens[] = {Count("", &C::put_tokens)};
constexpr MetricSample kGotBytes[] = {Count("host", &C::got_host_bytes),
                                      Count("disk", &C::got_disk_bytes)};
constexpr MetricSample kGotTokens[] = {Count("host", &C::got_host_tokens),
                                       Count("disk", &C::got_disk_tokens)};
constexpr MetricSample kSeconds[] = {
    Time("lookup", &Latencies::lookup), Time("write", &Latencies::write),
    Time("acquire", &Latencies::acquire), Time("disk_read", &Latencies::disk_read)};
constexpr MetricSample kHostChecks[] = {Count("", &C::host_checks)};
constexpr MetricSample kDamaged[] = {Read("host", OfStore<&B::damaged>)};
constexpr MetricSample kDamagedInTransit[] = {Count("", &C::blocks_damaged_in_transit)};
constexpr MetricSample kMoved[] = {Count("staged", &C::staged_bytes),
                                   Count("stored", &C::stored_bytes),
                                   Count("fetched", &C::fetched_bytes)};
constexpr MetricSample kExpired[] = {Count("lease", &C::leases_expired),
                                     Count("reservation", &C::reservations_expired)};
constexpr MetricSample kEvicted[] = {Read("demand", OfStore<&B::evicted_demand>),
                                     Read("watermark", OfStore<&B::evicted_watermark>)};
constexpr MetricSample kRegistrationsFailed[] = {Count("", &C::registrations_failed)};
constexpr MetricSample kEvictedUnspilled[] = {Read("", OfStore<&B::evicted_unspilled>)};
constexpr MetricSample kReserveFull[] = {Read("", OfStore<&B::full>)};

constexpr MetricSample kSidebandConnections[] = {Read("accepted", OfSideband<&S::accepted>),
                                                 Read("welcomed", OfSideband<&S::welcomed>)};
constexpr MetricSample kSidebandRefused[] = {
    Read("over_limit", OfSideband<&S::over_limit>),
    Read("handshake_late", OfSideband<&S::handshake_late>),
    Read("process_unseen", OfSideband<&S::process_unseen>),
    Read("wrong_answer", OfSideband<&S::wrong_answer>),
    Read("bad_packet", OfSideband<&S::bad_packets>),
    Read("bad_descriptor", OfSideband<&S::bad_descriptors>),
    Read("unread_answer", OfSideband<&S::unread_answers>),
    Read("write_denied", OfSideband<&S::writes_denied>),
    Read("staging_refused", OfSideband<&S::staging_refused>),
    Read("request_failed", OfSideband<&S::requests_failed>)};
constexpr MetricSample kSidebandGiven[] = {Read("slab_read", OfSideband<&S::slabs_read>),
                                           Read("slab_write", OfSideband<&S::slabs_write>),
                                           Read("session_page", OfSideband<&S::session_pages>),
                                           Read("session_socket", OfSideband<&S::session_sockets>),
                                           Read("staging", OfSideband<&S::staging_added>),
                                           Read("share_descriptor", OfSideband<&S::shared_memory>),
                                           Read("share_handle", OfSideband<&S::shared_handle>),
                                           Read("open_descriptor", OfSideband<&S::opened_memory>),
                                           Read("open_handle", OfSideband<&S::opened_handle>),
                                           Read("clean", OfSideband<&S::cleans>)};
constexpr MetricSample kSidebandOpen[] = {Read("", OfSideband<&S::connections_open>)};

constexpr MetricSample kPool[] = {
    Read("limit", OfStore<&B::pool_limit>),
    Read("online", OfStore<&B::pool_online>),
    Read("free", OfStore<&B::pool_free>),
    Read("stored", OfStore<&B::pool_stored>),
    Read("reserved", OfStore<&B::pool_reserved>),
    Read("leased", OfStore<&B::pool_leased>),
    Read("quarantined", [](const R& r) { return Double(r.daemon.quarantined); })};
constexpr MetricSample kBlocks[] = {Read("", OfStore<&B::blocks>)};
using D = DiskWork::Stats;
using T = DiskTier::Stats;
using P = Promoter::Stats;
constexpr MetricSample kDiskBytes[] = {
    Read("limit", OfDisk<&D::tier, &T::limit>), Read("room", OfDisk<&D::tier, &T::room>),
    Read("used", OfDisk<&D::tier, &T::used>), Read("allocated", OfDisk<&D::tier, &T::allocated>)};
constexpr MetricSample kDiskBlocks[] = {Read("all", OfDisk<&D::tier, &T::blocks>),
                                        Read("disk_only", OfStore<&B::disk_only>)};
constexpr MetricSample kDiskMoved[] = {
    Read("spilled", OfDisk<&D::spiller, &Spiller::Stats::spilled_bytes>),
    Read("written", OfDisk<&D::tier, &T::written_bytes>),
    Read("promoted", OfDisk<&D::promoter, &P::promoted_bytes>)};
constexpr MetricSample kSpilled[] = {
    Read("offered", OfDisk<&D::spiller, &Spiller::Stats::offered>),
    Read("spilled", OfDisk<&D::spiller, &Spiller::Stats::spilled>),
    Read("dropped_queue", OfDisk<&D::spiller, &Spiller::Stats::dropped_queue>),
    Read("dropped_evicted", OfDisk<&D::spiller, &Spiller::Stats::dropped_evicted>),
    Read("dropped_room", OfDisk<&D::spiller, &Spiller::Stats::dropped_room>),
    Read("dropped_failed", OfDisk<&D::spiller, &Spiller::Stats::dropped_failed>),
    Read("damaged", OfDisk<&D::spiller, &Spiller::Stats::damaged>)};
constexpr MetricSample kPromoted[] = {Read("promoted", OfDisk<&D::promoter, &P::promoted>),
                                      Read("joined", OfDisk<&D::promoter, &P::joined>),
                                      Read("missing", OfDisk<&D::promoter, &P::missing>),
                                      Read("damaged", OfDisk<&D::promoter, &P::damaged>),
                                      Read("full", OfDisk<&D::promoter, &P::full>),
                                      Read("refused", OfDisk<&D::promoter, &P::refused>)};
constexpr MetricSample kDiskFailures[] = {Read("write", OfDisk<&D::tier, &T::write_failures>),
                                          Read("read", OfDisk<&D::tier, &T::read_failures>),
                                          Read("sync", OfDisk<&D::tier, &T::sync_failures>),
                                          Read("catalog", OfDisk<&D::tier, &T::catalog_failures>),
                                          Read("damaged", OfDisk<&D::tier, &T::damaged>)};
constexpr MetricSample kDiskLeftAlone[] = {
    Read("spill", OfDisk<&D::spiller, &Spiller::Stats::breaker_opened>),
    Read("promote", OfDisk<&D::promoter, &P::breaker_opened>)};
constexpr MetricSample kDiskEvicted[] = {Read("", OfStore<&B::evicted_disk>)};
constexpr MetricSample kDiskShards[] = {Read("all", OfDisk<&D::tier, &T::shards>),
                                        Read("failed", OfDisk<&D::tier, &T::shards_failed>)};
constexpr MetricSample kShardsSetAside[] = {Read("", OfDisk<&D::tier, &T::shards_set_aside>)};
constexpr MetricSample kVerified[] = {
    Read("ok", OfDisk<&D::verifier, &DiskVerifier::Stats::blocks>),
    Read("damaged", OfDisk<&D::verifier, &DiskVerifier::Stats::damaged>),
    Read("failed", OfDisk<&D::verifier, &DiskVerifier::Stats::failed>)};
constexpr MetricSample kVerifyWalks[] = {
    Read("", OfDisk<&D::verifier, &DiskVerifier::Stats::walks>)};
constexpr MetricSample kDiskWaiting[] = {
    Read("spill", OfDisk<&D::spiller, &Spiller::Stats::queued>),
    Read("promote", OfDisk<&D::promoter, &P::waiting>)};
constexpr MetricSample kDiskRecovering[] = {
    Read("", [](const R& r) { return r.daemon.disk && r.daemon.disk->recovering ? 1.0 : 0.0; })};
constexpr MetricSample kHolds[] = {Read("lease", OfStore<&B::leases>),
                                   Read("reservation", OfStore<&B::reservations>)};
constexpr MetricSample kKept[] = {Read("index", OfStore<&B::index_bytes>),
                                  Read("metadata", OfStore<&B::metadata_bytes>)};
constexpr MetricSample kAttached[] = {
    Read("mapped", [](const R& r) { return Double(r.daemon.sessions.mapped); }),
    Read("staged", [](const R& r) { return Double(r.daemon.sessions.staged); }),
    Read("stream", [](const R& r) { return Double(r.daemon.sessions.stream); })};
constexpr MetricSample kProcesses[] = {
    Read("", [](const R& r) { return Double(r.daemon.processes); })};
constexpr MetricSample kDraining[] = {
    Read("", [](const R& r) { return r.daemon.draining ? 1.0 : 0.0; })};
const MetricSample kBuild[] = {Read(Version(), [](const R&) { return 1.0; })};
constexpr MetricSample kStarted[] = {Read("", [](const R& r) { return r.daemon.started_unix_s; })};
constexpr MetricSample kProcessor[] = {Read("", [](const R& r) { return r.processor_s; })};
constexpr MetricSample kResident[] = {
    Read("anonymous", [](const R& r) { return Double(r.memory.anonymous); }),
    Read("file", [](const R& r) { return Double(r.memory.file); }),
    Read("shmem", [](const R& r) { return Double(r.memory.shmem); })};

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
    {"larder_blocks_damaged_total", kC, "blocks", "tier", kDamaged,
     "Stored blocks whose bytes did not match their hashes. Each was dropped and read as a miss."},
    {"larder_blocks_damaged_in_transit_total", kC, "blocks", "", kDamagedInTransit,
     "Blocks whose bytes did not match their hashes when they arrived by StoreBlocks; not stored."},
    {"larder_moved_bytes_total", kC, "bytes", "road", kMoved,
     "Bytes of blocks that the daemon itself moved: copied from staging segments, stored and "
     "fetched by the byte streams. What engines move through shared memory it does not see."},
    {"larder_holds_expired_total", kC, "holds", "kind", kExpired,
     "Leases and reservations that ended at their deadline, not by their holder."},
    {"larder_blocks_evicted_total", kC, "blocks", "cause", kEvicted,
     "Blocks evicted, on demand of a writer or ahead of need to keep the watermark."},
    {"larder_blocks_evicted_unspilled_total", kC, "blocks", "", kEvictedUnspilled,
     "Of the blocks evicted, those that were not on disk, too, and so are gone; without a disk "
     "all."},
    {"larder_reserve_full_total", kC, "requests", "", kReserveFull,
     "Reservations answered \"full, retry after\"."},
    {"larder_sideband_connections_total", kC, "connections", "step", kSidebandConnections,
     "Connections to the sideband: accepted, and of these welcomed after the handshake."},
    {"larder_sideband_refused_total", kC, "events", "cause", kSidebandRefused,
     "What the sideband refused, by cause: connections, packets and requests."},
    {"larder_sideband_given_total", kC, "requests", "what", kSidebandGiven,
     "What the sideband did for attached processes: descriptors handed out (slabs, session pages, "
     "session sockets), staging segments taken, device memory shared and opened by path, CLEAN "
     "acknowledged."},
    {"larder_sideband_connections_open", kG, "connections", "", kSidebandOpen,
     "Connections to the sideband that are open."},
    {"larder_disk_bytes", kG, "bytes", "part", kDiskBytes,
     "The disk tier: its limit, what of it is for records, what live records take, what all its "
     "files take."},
    {"larder_disk_blocks", kG, "blocks", "where", kDiskBlocks,
     "Blocks on disk: all, and those that are not in host memory."},
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
     "What failed on the disk, and records that were found damaged."},
    {"larder_disk_left_alone_total", kC, "events", "for", kDiskLeftAlone,
     "Times that the disk was left alone for a while, as it had failed."},
    {"larder_disk_evicted_total", kC, "blocks", "", kDiskEvicted,
     "Blocks that left the disk to make room there, whether or not they are in host memory."},
    {"larder_disk_shards", kG, "shards", "state", kDiskShards,
     "Shards of the disk: all, and those that could not be opened or read, until that works (it is "
     "tried again and again), or that take no writes since one failed, until the next one works."},
    {"larder_disk_shards_set_aside_total", kC, "shards", "", kShardsSetAside,
     "Shards that were found damaged, set aside, and began empty."},
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
     "all of them twice as many."},
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
    {"larder_processes", kG, "processes", "", kProcesses,
     "Processes known by the sideband: connected, attached, or with something in quarantine."},
    {"larder_draining", kG, "0 or 1", "", kDraining, "1 while the daemon drains."},
    {"larder_resident_bytes", kG, "bytes", "kind", kResident,
     "Resident memory of the daemon by what backs it. shmem is the pool (but for hugetlb pages, "
     "which nothing counts here); anonymous is the daemon's own."},
};

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

void VisitCounters(const Counters& counters,
                   const std::function<void(const std::string&, uint64_t)>& visit) {
  for (const Metric& metric : kMetrics) {
    for (const MetricSample& sample : metric.samples) {
      if (sample.counter == nullptr) continue;
      visit(SampleName(metric, sample), (counters.*sample.counter).value());
    }
  }
}

void VisitReadings(const MetricReadings& readings,
                   const std::function<void(const std::string&, double)>& visit) {
  for (const Metric& metric : kMetrics) {
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
