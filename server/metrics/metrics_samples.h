// The counter, reading or histogram that each sample of each metric shows: the first half of the
// table of metrics.  The second half, in metrics_table.cc, has the names and the help of the
// metrics.
//
// Only metrics_table.cc includes this file.
// Ownership: constants.  Thread-safety: a reading is as thread-safe as the gauges that it reads.
#pragma once

#include <atomic>

#include "server/metrics/metrics_table.h"
#include "server/processes/sideband_connection.h"
#include "server/runtime/version.h"

namespace larder::metric_samples {

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
inline double Double(uint64_t n) { return static_cast<double>(n); }
inline double Double(ByteCount bytes) { return Double(bytes.value()); }

// Reads zero until the sideband exists.
template <std::atomic<uint64_t> SidebandCounters::*member>
double OfSideband(const R& r) {
  const SidebandCounters* const counters = r.daemon.sideband;
  return counters == nullptr ? 0 : Double((counters->*member).load(std::memory_order_relaxed));
}
template <std::atomic<uint64_t> ConnectionCounters::*member>
double OfSidebandDoor(const R& r) {
  const SidebandCounters* const counters = r.daemon.sideband;
  return counters == nullptr ? 0 : Double((counters->door.*member).load(std::memory_order_relaxed));
}
template <ByteCount BlockStore::Stats::*member>
double OfStore(const R& r) {
  return Double(r.daemon.store.*member);
}
template <uint64_t BlockStore::Stats::*member>
double OfStore(const R& r) {
  return Double(r.daemon.store.*member);
}

// Reads zero if there is no disk.
template <auto part, auto member>
double OfDisk(const R& r) {
  return r.daemon.disk ? Double((*r.daemon.disk).*part.*member) : 0;
}

// Reads zero until the sockets exist.
template <auto socket, auto member>
double OfSocket(const R& r) {
  const SocketCounters* const sockets = r.daemon.sockets;
  return sockets == nullptr ? 0
                            : Double(((*sockets).*socket.*member).load(std::memory_order_relaxed));
}

using F = SocketCounters;
using N = ConnectionCounters;
template <ShareKind kind, uint64_t Shares::Use::*member>
double OfShare(const R& r) {
  const auto of = static_cast<size_t>(kind);
  return of < r.daemon.shares.size() ? Double(r.daemon.shares[of].*member) : 0;
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
                                      Count("promise", &C::requests_promise),
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
constexpr MetricSample kIdConflicts[] = {Count("", &C::engine_id_conflicts)};
constexpr MetricSample kDeviceLeftOut[] = {Count("", &C::device_blocks_left_out)};
constexpr MetricSample kDeviceRefused[] = {Count("", &C::device_reports_refused)};
constexpr MetricSample kPromises[] = {
    Read("", [](const R& r) { return Double(r.daemon.promises); })};
constexpr MetricSample kPromised[] = {
    Read("", [](const R& r) { return Double(r.daemon.promised.value()); })};
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
constexpr MetricSample kWrongSocket[] = {Count("", &C::calls_at_wrong_socket)};
constexpr MetricSample kRegistrationsRefused[] = {Count("", &C::registrations_refused)};
constexpr MetricSample kUnknownReleases[] = {Count("", &C::unknown_releases)};
constexpr MetricSample kReportsDropped[] = {Count("", &C::damage_reports_dropped)};
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
constexpr MetricSample kHostVerified[] = {
    Read("ok", [](const R& r) { return Double(r.daemon.host_verifier.blocks); }),
    Read("damaged", [](const R& r) { return Double(r.daemon.host_verifier.damaged); })};
constexpr MetricSample kHostVerifyWalks[] = {
    Read("", [](const R& r) { return Double(r.daemon.host_verifier.walks); })};
constexpr MetricSample kHostVerifySeconds[] = {
    Read("", [](const R& r) { return r.daemon.host_verify_s; })};
constexpr MetricSample kDamaged[] = {Read("host", OfStore<&B::damaged>)};
constexpr MetricSample kDamagedInTransit[] = {Count("", &C::blocks_damaged_in_transit)};
constexpr MetricSample kMoved[] = {
    Count("staged", &C::staged_bytes), Count("copied", &C::copied_bytes),
    Count("stored", &C::stored_bytes), Count("fetched", &C::fetched_bytes)};
constexpr MetricSample kExpired[] = {Count("lease", &C::leases_expired),
                                     Count("reservation", &C::reservations_expired)};
constexpr MetricSample kEvicted[] = {Read("demand", OfStore<&B::evicted_demand>),
                                     Read("watermark", OfStore<&B::evicted_watermark>)};
constexpr MetricSample kRegistrationsFailed[] = {Count("", &C::registrations_failed)};
constexpr MetricSample kEvictedUnspilled[] = {Read("", OfStore<&B::evicted_unspilled>)};
constexpr MetricSample kReserveFull[] = {Read("", OfStore<&B::full>)};

constexpr MetricSample kSidebandConnections[] = {Read("accepted", OfSidebandDoor<&N::accepted>),
                                                 Read("welcomed", OfSideband<&S::welcomed>)};
constexpr MetricSample kSidebandRefused[] = {
    Read("over_limit", OfSideband<&S::over_limit>),
    Read("no_descriptor", OfSidebandDoor<&N::over_descriptors>),
    Read("handshake_late", OfSideband<&S::handshake_late>),
    Read("process_unseen", OfSideband<&S::process_unseen>),
    Read("wrong_answer", OfSideband<&S::wrong_answer>),
    Read("bad_packet", OfSideband<&S::bad_packets>),
    Read("bad_descriptor", OfSideband<&S::bad_descriptors>),
    Read("unread_answer", OfSideband<&S::unread_answers>),
    Read("write_denied", OfSideband<&S::writes_denied>),
    Read("slab_denied", OfSideband<&S::slabs_denied>),
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
constexpr MetricSample kConnections[] = {Read("data", OfSocket<&F::data, &N::accepted>),
                                         Read("control", OfSocket<&F::control, &N::accepted>),
                                         Read("admin", OfSocket<&F::admin, &N::accepted>)};
constexpr MetricSample kConnectionsOpen[] = {Read("data", OfSocket<&F::data, &N::open>),
                                             Read("control", OfSocket<&F::control, &N::open>),
                                             Read("admin", OfSocket<&F::admin, &N::open>)};
constexpr MetricSample kConnectionsRefused[] = {
    Read("data_all", OfSocket<&F::data, &N::over_all>),
    Read("data_uid", OfSocket<&F::data, &N::over_uid>),
    Read("data_process", OfSocket<&F::data, &N::over_process>),
    Read("data_no_descriptor", OfSocket<&F::data, &N::over_descriptors>),
    Read("data_brought_descriptors", OfSocket<&F::data, &N::carried_rights>),
    Read("data_incoming", OfSocket<&F::data, &N::held_most>),
    Read("control_all", OfSocket<&F::control, &N::over_all>),
    Read("control_uid", OfSocket<&F::control, &N::over_uid>),
    Read("control_process", OfSocket<&F::control, &N::over_process>),
    Read("control_no_descriptor", OfSocket<&F::control, &N::over_descriptors>),
    Read("control_brought_descriptors", OfSocket<&F::control, &N::carried_rights>),
    Read("control_incoming", OfSocket<&F::control, &N::held_most>),
    Read("admin_all", OfSocket<&F::admin, &N::over_all>),
    Read("admin_uid", OfSocket<&F::admin, &N::over_uid>),
    Read("admin_process", OfSocket<&F::admin, &N::over_process>),
    Read("admin_no_descriptor", OfSocket<&F::admin, &N::over_descriptors>),
    Read("admin_brought_descriptors", OfSocket<&F::admin, &N::carried_rights>),
    Read("admin_incoming", OfSocket<&F::admin, &N::held_most>)};
constexpr MetricSample kSocketsReopened[] = {Read("data", OfSocket<&F::data, &N::reopened>),
                                             Read("control", OfSocket<&F::control, &N::reopened>),
                                             Read("admin", OfSocket<&F::admin, &N::reopened>),
                                             Read("sideband", OfSidebandDoor<&N::reopened>)};
constexpr MetricSample kIncoming[] = {
    Read("held", [](const R& r) { return static_cast<double>(r.daemon.incoming.held); }),
    Read("limit", [](const R& r) { return static_cast<double>(r.daemon.incoming.limit); })};
constexpr MetricSample kDescriptors[] = {
    Read("open", [](const R& r) { return static_cast<double>(r.daemon.descriptors.open); }),
    Read("limit", [](const R& r) { return static_cast<double>(r.daemon.descriptors.limit); }),
    Read("closing", [](const R& r) { return static_cast<double>(r.daemon.closer.closing); }),
    Read("to_close", [](const R& r) { return static_cast<double>(r.daemon.closer.waiting); })};
constexpr MetricSample kStuck[] = {Count("", &C::stuck)};
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
using D = TierWorker::Stats;
using T = DiskTier::Stats;
using P = Promoter::Stats;
constexpr MetricSample kDiskBytes[] = {
    Read("limit", OfDisk<&D::tier, &T::limit>), Read("room", OfDisk<&D::tier, &T::room>),
    Read("used", OfDisk<&D::tier, &T::used>), Read("allocated", OfDisk<&D::tier, &T::allocated>)};
constexpr MetricSample kDiskBlocks[] = {Read("all", OfDisk<&D::tier, &T::blocks>),
                                        Read("disk_only", OfStore<&B::disk_only>),
                                        Read("unplaced", OfDisk<&D::tier, &T::unplaced>)};
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
constexpr MetricSample kDiskFailures[] = {
    Read("write", OfDisk<&D::tier, &T::write_failures>),
    Read("read", OfDisk<&D::tier, &T::read_failures>),
    Read("sync", OfDisk<&D::tier, &T::sync_failures>),
    Read("catalog", OfDisk<&D::tier, &T::catalog_failures>),
    Read("damaged", OfDisk<&D::tier, &T::damaged>),
    Read("catalog_full", OfDisk<&D::tier, &T::refused_catalog>)};
constexpr MetricSample kDiskLeftAlone[] = {
    Read("spill", OfDisk<&D::spiller, &Spiller::Stats::breaker_opened>),
    Read("promote", OfDisk<&D::promoter, &P::breaker_opened>)};
constexpr MetricSample kDiskEvicted[] = {Read("", OfStore<&B::evicted_disk>)};
constexpr MetricSample kDiskShards[] = {Read("all", OfDisk<&D::tier, &T::shards>),
                                        Read("failed", OfDisk<&D::tier, &T::shards_failed>)};
template <DiskTier::FactKind kind, ByteCount DiskTier::FactUse::*member>
double OfFacts(const R& r) {
  return r.daemon.disk ? Double(r.daemon.disk->tier.facts[static_cast<size_t>(kind)].*member) : 0;
}
using Q = DiskTier::FactUse;
constexpr MetricSample kDiskFacts[] = {
    Read("pins", OfFacts<DiskTier::FactKind::kPin, &Q::bytes>),
    Read("pins_limit", OfFacts<DiskTier::FactKind::kPin, &Q::bytes_max>),
    Read("registrations", OfFacts<DiskTier::FactKind::kRegistration, &Q::bytes>),
    Read("registrations_limit", OfFacts<DiskTier::FactKind::kRegistration, &Q::bytes_max>),
    Read("other", OfFacts<DiskTier::FactKind::kOther, &Q::bytes>),
    Read("other_limit", OfFacts<DiskTier::FactKind::kOther, &Q::bytes_max>)};
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
constexpr MetricSample kPoolStalled[] = {
    Read("", [](const R& r) { return r.daemon.pool_stalled.empty() ? 0.0 : 1.0; })};
constexpr MetricSample kHolds[] = {Read("lease", OfStore<&B::leases>),
                                   Read("reservation", OfStore<&B::reservations>)};
constexpr MetricSample kKept[] = {Read("index", OfStore<&B::index_bytes>),
                                  Read("metadata", OfStore<&B::metadata_bytes>)};
constexpr MetricSample kAttached[] = {
    Read("mapped", [](const R& r) { return Double(r.daemon.sessions.mapped); }),
    Read("staged", [](const R& r) { return Double(r.daemon.sessions.staged); }),
    Read("stream", [](const R& r) { return Double(r.daemon.sessions.stream); })};
constexpr MetricSample kReading[] = {
    Read("mapped", [](const R& r) { return Double(r.daemon.sessions.reading_mapped); }),
    Read("copied", [](const R& r) { return Double(r.daemon.sessions.reading_copied); }),
    Read("stream", [](const R& r) { return Double(r.daemon.sessions.reading_stream); })};
constexpr MetricSample kStaging[] = {Read("", [](const R& r) { return Double(r.daemon.staging); })};
constexpr MetricSample kProcesses[] = {
    Read("", [](const R& r) { return Double(r.daemon.processes); })};
using U = Shares::Use;
constexpr MetricSample kShareHeld[] = {
    Read("calls", OfShare<ShareKind::kCalls, &U::held>),
    Read("sessions", OfShare<ShareKind::kSessions, &U::held>),
    Read("processes", OfShare<ShareKind::kProcesses, &U::held>),
    Read("byte_streams", OfShare<ShareKind::kByteStreams, &U::held>),
    Read("message_bytes", OfShare<ShareKind::kMessageBytes, &U::held>),
    Read("waiting_bytes", OfShare<ShareKind::kWaitingBytes, &U::held>),
    Read("unread_bytes", OfShare<ShareKind::kUnreadBytes, &U::held>),
    Read("watchers", OfShare<ShareKind::kWatchers, &U::held>),
    Read("engines", OfShare<ShareKind::kEngines, &U::held>),
    Read("variants", OfShare<ShareKind::kVariants, &U::held>),
    Read("variant_numbers", OfShare<ShareKind::kNumbers, &U::held>),
    Read("contents", OfShare<ShareKind::kContents, &U::held>),
    Read("registration_bytes", OfShare<ShareKind::kRegistrationBytes, &U::held>),
    Read("leases", OfShare<ShareKind::kLeases, &U::held>),
    Read("leased_bytes", OfShare<ShareKind::kLeasedBytes, &U::held>),
    Read("reserved_bytes", OfShare<ShareKind::kReservedBytes, &U::held>),
    Read("device_places", OfShare<ShareKind::kDevicePlaces, &U::held>)};
constexpr MetricSample kShareRefused[] = {
    Read("calls", OfShare<ShareKind::kCalls, &U::refused>),
    Read("sessions", OfShare<ShareKind::kSessions, &U::refused>),
    Read("processes", OfShare<ShareKind::kProcesses, &U::refused>),
    Read("byte_streams", OfShare<ShareKind::kByteStreams, &U::refused>),
    Read("message_bytes", OfShare<ShareKind::kMessageBytes, &U::refused>),
    Read("waiting_bytes", OfShare<ShareKind::kWaitingBytes, &U::refused>),
    Read("unread_bytes", OfShare<ShareKind::kUnreadBytes, &U::refused>),
    Read("watchers", OfShare<ShareKind::kWatchers, &U::refused>),
    Read("engines", OfShare<ShareKind::kEngines, &U::refused>),
    Read("variants", OfShare<ShareKind::kVariants, &U::refused>),
    Read("variant_numbers", OfShare<ShareKind::kNumbers, &U::refused>),
    Read("contents", OfShare<ShareKind::kContents, &U::refused>),
    Read("registration_bytes", OfShare<ShareKind::kRegistrationBytes, &U::refused>),
    Read("leases", OfShare<ShareKind::kLeases, &U::refused>),
    Read("leased_bytes", OfShare<ShareKind::kLeasedBytes, &U::refused>),
    Read("reserved_bytes", OfShare<ShareKind::kReservedBytes, &U::refused>),
    Read("device_places", OfShare<ShareKind::kDevicePlaces, &U::refused>)};
constexpr MetricSample kDraining[] = {
    Read("", [](const R& r) { return r.daemon.draining ? 1.0 : 0.0; })};
const MetricSample kBuild[] = {Read(Version(), [](const R&) { return 1.0; })};
constexpr MetricSample kStarted[] = {Read("", [](const R& r) { return r.daemon.started_unix_s; })};
constexpr MetricSample kProcessor[] = {Read("", [](const R& r) { return r.processor_s; })};
constexpr MetricSample kResident[] = {
    Read("anonymous", [](const R& r) { return Double(r.memory.anonymous); }),
    Read("file", [](const R& r) { return Double(r.memory.file); }),
    Read("shmem", [](const R& r) { return Double(r.memory.shmem); })};

}  // namespace larder::metric_samples
