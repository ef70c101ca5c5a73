// What happened in the daemon so far, as plain numbers: cheap enough for every path.
//
// Names, units and help of each are in the table of metrics_table.cc, which a test holds complete.
// Counters only grow; gauges are read from their owners when somebody asks.
// Ownership: made by server/main, handed to every part that counts.
// Thread-safety: all of it; a reader may see one event's counters at different moments.
#pragma once

#include <atomic>
#include <cstdint>

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
  Counter unknown_releases;  // of leases that the session does not hold

  // Blocks.
  Counter blocks_published;
  Counter blocks_duplicate;
  Counter blocks_refused;    // invalid, full or not held
  Counter blocks_hit;        // in host memory
  Counter blocks_from_disk;  // read from there for the acquire
  Counter blocks_missing;
  Counter host_checks;  // reads checked against their hashes
  Counter blocks_damaged_in_transit;
  Counter staged_bytes;   // copied from staging segments
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

  // Holds that ended at their deadline.
  Counter leases_expired;
  Counter reservations_expired;
};

}  // namespace larder
