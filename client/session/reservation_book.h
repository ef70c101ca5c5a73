// The extents that a session holds for writing: which are in use by a Put, which lie ready for the
// next one.
//
// A small stock is reserved ahead, of the sizes last put, so that a Put need not ask first.  It is
// given back when it was not used for a second.  A state machine: sends nothing, takes `now` as a
// parameter.
//
// Ownership: values.  Thread-safety: all methods from any thread.
// Lifecycle of an extent: (asked) -> stocked -> in use -> left.  A reservation is forgotten when
// nothing of it is stocked or in use.
// Limits: the stock is at most kStockExtentsMax extents and a part of `bytes_max`, those under way
// included: the sessions that share it have equal parts.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// One extent in use.
struct HeldExtent {
  ReservationId reservation;
  uint32_t index = 0;  // in the reservation
  wire::ExtentGrant where;
};

class ReservationBook {
 public:
  static constexpr uint64_t kStockExtentsMax = 64;
  static constexpr ByteCount kStockBytesMax = MiB(64);
  static constexpr auto kIdle = std::chrono::seconds(1);
  // Asked of the daemon for the stock; it is given back when half of it is over.
  static constexpr auto kStockDeadline = std::chrono::seconds(60);

  // `sharers`: how many sessions there are that share what may be stocked; null: this one alone.
  explicit ReservationBook(std::shared_ptr<const std::atomic<size_t>> sharers = nullptr)
      : sharers_(std::move(sharers)) {}

  // Of all that share it.  Before it there is no stock.
  void SetStockLimit(ByteCount bytes_max) LARDER_EXCLUDES(mu_);

  // ---- the stock
  // An extent of exactly so many bytes, now in use.
  [[nodiscard]] std::optional<HeldExtent> Take(ByteCount bytes, TimePoint now) LARDER_EXCLUDES(mu_);
  // How many to ask for so that `wanted` of this size lie ready; counted as under way until
  // OnReserved. Extents of other sizes that are in the way go to `aborts`.
  [[nodiscard]] size_t Ask(uint64_t id, ByteCount bytes, size_t wanted, TimePoint now,
                           std::vector<wire::Abort>* aborts) LARDER_EXCLUDES(mu_);
  // True: it answers an Ask.  What it brings beyond that is to be aborted.
  [[nodiscard]] bool OnReserved(const wire::Reserved& reserved, TimePoint now) LARDER_EXCLUDES(mu_);
  // What lies idle, or all of it.  Answers when to call again.
  std::optional<TimePoint> Expire(TimePoint now, bool all, std::vector<wire::Abort>* aborts)
      LARDER_EXCLUDES(mu_);

  // ---- reservations of callers
  // `count` extents are in use from here on.  False: the id is known already.
  [[nodiscard]] bool Add(ReservationId reservation, size_t count) LARDER_EXCLUDES(mu_);
  // One extent is no longer in use.  True: the daemon revoked it and now waits for the
  // acknowledgement.
  [[nodiscard]] bool Leave(ReservationId reservation) LARDER_EXCLUDES(mu_);
  // True: nobody uses it, acknowledge now.
  [[nodiscard]] bool Revoke(ReservationId reservation) LARDER_EXCLUDES(mu_);
  // Any extent.
  [[nodiscard]] bool in_use() LARDER_EXCLUDES(mu_);

 private:
  struct Entry {
    size_t in_use = 0;
    size_t stocked = 0;
    bool revoked = false;
  };
  struct Stocked {
    HeldExtent extent;
    TimePoint since;
  };
  struct Asked {
    ByteCount bytes;
    size_t count = 0;
  };
  void ForgetIfUnused(ReservationId reservation) LARDER_REQUIRES(mu_);
  void Unstock(const HeldExtent& extent, std::vector<wire::Abort>* aborts) LARDER_REQUIRES(mu_);
  void DropOtherSizes(ByteCount keep, std::vector<wire::Abort>* aborts) LARDER_REQUIRES(mu_);

  const std::shared_ptr<const std::atomic<size_t>> sharers_;
  Mutex mu_;
  uint64_t bytes_max_ LARDER_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ReservationId, Entry> entries_ LARDER_GUARDED_BY(mu_);
  std::map<ByteCount, std::deque<Stocked>> stock_ LARDER_GUARDED_BY(mu_);  // by size, oldest first
  absl::flat_hash_map<uint64_t, Asked> asked_ LARDER_GUARDED_BY(mu_);
  uint64_t extents_ LARDER_GUARDED_BY(mu_) = 0;  // stocked and asked for
  uint64_t bytes_ LARDER_GUARDED_BY(mu_) = 0;    // likewise
  TimePoint last_use_ LARDER_GUARDED_BY(mu_);
  TimePoint full_until_ LARDER_GUARDED_BY(mu_);  // the pool was full: do not hoard
};

}  // namespace larder
