// Counts what happened in the daemon since its start, as plain numbers.
//
// The name, unit and help of each counter are in the table of metrics_table.cc; a test checks that
// the table is complete.  Counters only grow; gauges are read from their owners on request.
// Ownership: server/main.cc creates it and passes it to the parts that count.
// Thread-safety: any thread may count and read.  A reader may see some counters of an event before
// the others.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "storage/clock.h"

namespace larder {

// Each counter has a cache line of its own, so that two hot counters of different threads do not
// slow each other down.
class alignas(64) Counter {
 public:
  void operator++() { value_.fetch_add(1, std::memory_order_relaxed); }
  void operator+=(uint64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// The distribution of durations, by buckets.  A reader may see a duration in its bucket before it
// is in the sum.
class alignas(64) Histogram {
 public:
  // The upper bounds of the buckets, in seconds; one more bucket counts longer durations.
  static constexpr std::array<double, 12> kBounds = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3,
                                                     0.01, 0.03, 0.1,  0.3,  1,    3};

  void Observe(Duration took) {
    const double seconds = std::chrono::duration<double>(took).count();
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count()),
        std::memory_order_relaxed);
  }
  // REQUIRES: bucket <= kBounds.size().
  [[nodiscard]] uint64_t bucket(size_t bucket) const {
    return buckets_[bucket].load(std::memory_order_relaxed);
  }
  [[nodiscard]] double sum_s() const {
    return static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9;
  }

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<uint64_t> sum_ns_{0};
};

// How long the daemon itself took.  The time in which a message is on its way is not included.
struct Latencies {
  Histogram lookup;
  Histogram write;  // the reserves and publishes of a message, without copies from staging segments
  Histogram acquire;    // the acquires of a message
  Histogram disk_read;  // from an acquire until a block of it was read from disk
};

struct Counters {
  // Sessions.
  Counter sessions_attached;
  Counter sessions_refused;  // most at the limit, or because the daemon drains
  Counter sessions_lost;     // ended with something in quarantine

  // Requests, by kind, including some that are then refused.  A message of a session counts as the
  // requests of these kinds that it contains.
  Counter requests_lookup;
  Counter requests_list_instances;
  Counter requests_query_ip;
  Counter requests_pin;
  Counter requests_unpin;
  Counter requests_prefetch;
  Counter requests_clear;
  Counter requests_move;
  Counter requests_compress;
  Counter requests_watch;
  Counter requests_store_blocks;
  Counter requests_fetch_blocks;
  Counter requests_register;
  Counter requests_reserve;
  Counter requests_publish;
  Counter requests_promise;
  Counter requests_acquire;

  // Refusals.
  Counter calls_overloaded;  // mostly RESOURCE_EXHAUSTED
  Counter invalid_messages;  // mostly INVALID_ARGUMENT, and ignored answers to directives
  Counter calls_at_wrong_socket;
  Counter registrations_refused;   // of sessions
  Counter unknown_releases;        // of leases that the session does not hold
  Counter damage_reports_dropped;  // reported blocks, while too many waited to be checked

  // Blocks.
  Counter blocks_published;
  Counter blocks_duplicate;
  Counter blocks_refused;    // that a session could not publish
  Counter blocks_hit;        // found in host memory
  Counter blocks_from_disk;  // read from disk for the acquire
  Counter blocks_missing;
  Counter host_checks;  // reads from host memory that are checked by hash
  Counter blocks_damaged_in_transit;
  Counter put_bytes;  // of published blocks
  Counter put_tokens;
  Counter got_host_bytes;  // of blocks that readers were granted from host memory
  Counter got_host_tokens;
  Counter got_disk_bytes;
  Counter got_disk_tokens;
  Counter staged_bytes;   // copied from staging segments
  Counter copied_bytes;   // copied to staging segments
  Counter stored_bytes;   // received by StoreBlocks
  Counter fetched_bytes;  // sent by FetchBlocks

  // Failed writes of engines' registrations to disk.
  Counter registrations_failed;

  // Clear.
  Counter blocks_cleared_host;
  Counter blocks_cleared_disk;

  // WatchEvents.
  Counter events_told;
  Counter watchers_cut_off;

  // Uses of an engine id that belongs to another caller.
  Counter engine_id_conflicts;

  // Blocks of device memory that were left out of DeviceTable, and directives to engines.
  Counter device_blocks_left_out;  // beyond a limit or share, or under another uid's engine id
  Counter device_reports_refused;  // wrong reports of device memory
  Counter directives_sent;
  Counter directives_done;
  Counter directives_unanswered;
  Counter directives_ended;
  Counter directives_unsent;  // given up while their session had too many unanswered

  // Move: blocks moved to host memory, and to disk.
  Counter blocks_moved_host;
  Counter blocks_moved_disk;

  // Copies of blocks that Compress encoded or decoded, by tier, and the bytes that they took before
  // and after.
  Counter blocks_encoded_host;
  Counter blocks_encoded_disk;
  Counter blocks_decoded_host;
  Counter blocks_decoded_disk;
  Counter blocks_decoded_for_lease;  // for a session that does not accept the codec
  Counter recoded_bytes_before_host;
  Counter recoded_bytes_after_host;
  Counter recoded_bytes_before_disk;
  Counter recoded_bytes_after_disk;

  // Pins.
  Counter pins_expired;       // including prefetches
  Counter pins_not_restored;  // beyond pins_max when the daemon started
  Counter pin_writes_failed;  // failed writes of pins to disk, which are retried

  // Checks of the watchdog that found a part of the daemon that makes no progress.
  Counter stuck;

  // Most leases and reservations that expired.
  Counter leases_expired;
  Counter reservations_expired;

  Latencies latencies;
};

}  // namespace larder
