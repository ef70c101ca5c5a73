// What happened in the daemon so far, as plain numbers: cheap enough for every path.
//
// Names, units and help of each are in the table of metrics_table.cc, which a test holds complete.
// Counters only grow; gauges are read from their owners when somebody asks.
// Ownership: made by server/main, handed to every part that counts.
// Thread-safety: all of it; a reader may see one event's counters at different moments.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "storage/clock.h"

namespace larder {

// One cache line each: two hot counters of different threads must not slow each other.
class alignas(64) Counter {
 public:
  void operator++() { value_.fetch_add(1, std::memory_order_relaxed); }
  void operator+=(uint64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// How long something took: so many times up to each bound.  A reader may see one time in its bucket
// and not yet in the sum.
class alignas(64) Histogram {
 public:
  // Seconds; one more bucket is for what took longer.
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

// Of the daemon's own part: what a message waits for on its way is not in it.
struct Latencies {
  Histogram lookup;
  Histogram write;    // the reserves and publishes of a message
  Histogram acquire;  // the acquires of a message
  Histogram disk_read;
};

struct Counters {
  // Sessions.
  Counter sessions_attached;
  Counter sessions_refused;  // at the limit, or draining
  Counter sessions_lost;     // the stream broke with work under way

  // Requests, by kind.  A message of a session stream counts by what it holds.
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
  Counter requests_acquire;

  // Refusals.
  Counter calls_overloaded;  // RESOURCE_EXHAUSTED at the admission
  Counter invalid_messages;  // INVALID_ARGUMENT
  Counter calls_at_wrong_socket;
  Counter registrations_refused;   // of sessions
  Counter unknown_releases;        // of leases that the session does not hold
  Counter damage_reports_dropped;  // blocks, beyond what may wait

  // Blocks.
  Counter blocks_published;
  Counter blocks_duplicate;
  Counter blocks_refused;    // invalid, full or not held
  Counter blocks_hit;        // in host memory
  Counter blocks_from_disk;  // read from there for the acquire
  Counter blocks_missing;
  Counter host_checks;  // reads checked against their hashes
  Counter blocks_damaged_in_transit;
  Counter put_bytes;  // of blocks published
  Counter put_tokens;
  Counter got_host_bytes;  // of blocks that readers were granted there
  Counter got_host_tokens;
  Counter got_disk_bytes;
  Counter got_disk_tokens;
  Counter staged_bytes;   // copied from staging segments
  Counter copied_bytes;   // copied to staging segments, for sessions that may not map slabs
  Counter stored_bytes;   // received by StoreBlocks
  Counter fetched_bytes;  // sent by FetchBlocks

  // What engines said of themselves and could not be written to disk.
  Counter registrations_failed;

  // Clear.
  Counter blocks_cleared_host;
  Counter blocks_cleared_disk;

  // WatchEvents.
  Counter events_told;
  Counter watchers_cut_off;

  // Sessions and registrations under an engine id that another uid's sessions have.
  Counter engine_id_conflicts;

  // What engines have in device memory, and are asked to do with it.
  Counter device_blocks_left_out;  // beyond DeviceTable's limits, or of an engine of another one's
  Counter directives_sent;
  Counter directives_done;
  Counter directives_unanswered;
  Counter directives_ended;
  Counter directives_unsent;  // given up while their session owed too much

  // Move: to that tier.
  Counter blocks_moved_host;
  Counter blocks_moved_disk;

  // Compress: copies that were encoded or decoded there, and the room they took.
  Counter blocks_encoded_host;
  Counter blocks_encoded_disk;
  Counter blocks_decoded_host;
  Counter blocks_decoded_disk;
  Counter blocks_decoded_for_lease;  // in HOST, for who does not accept the codec
  Counter recoded_bytes_before_host;
  Counter recoded_bytes_after_host;
  Counter recoded_bytes_before_disk;
  Counter recoded_bytes_after_disk;

  // Pins.
  Counter pins_expired;       // prefetches too
  Counter pins_not_restored;  // at a start, beyond pins_max
  Counter pin_writes_failed;  // batches that are in memory alone

  // Looks of the watchdog that found a part which did not come round.
  Counter stuck;

  // Holds that ended at their deadline.
  Counter leases_expired;
  Counter reservations_expired;

  Latencies latencies;
};

}  // namespace larder
