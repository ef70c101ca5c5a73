// The extents that a session holds for writing: those in use by Puts and Reservations, and those
// that are stocked for the next Put.
//
// A small stock is reserved ahead, in sizes that were put lately, so that a Put often need not
// request extents first.  It is returned to the daemon about a second after the last Put.
// This is a state machine: it sends nothing, and takes `now` as a parameter.
//
// Ownership: Values only.
// Thread-safety: All methods may be called from any thread.
// Lifecycle: An extent of the stock: requested -> stocked -> in use, returned or revoked; one that
// a caller reserved is in use at once.  A reservation is forgotten when none of its extents is
// stocked or in use.
// Limits: Ask raises the stock, including extents that are requested but not granted yet, to at
// most kStockExtentsMax extents, kStockBytesMax, and this session's equal part of the stock limit
// (SetStockLimit).
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

// One extent of a reservation.
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
  // Deadline of the stock's reservations.  Expire takes out extents that were stocked for at least
  // half of that.
  static constexpr auto kStockDeadline = std::chrono::seconds(60);

  // `sharers`: the number of sessions that share the stock limit; null means only this session.
  explicit ReservationBook(std::shared_ptr<const std::atomic<size_t>> sharers = nullptr)
      : sharers_(std::move(sharers)) {}

  // Sets the limit, in bytes, for the extents that all sharing sessions together reserve ahead
  // (their stocks).  Until it is set, nothing is stocked.
  void SetStockLimit(ByteCount bytes_max) LARDER_EXCLUDES(mu_);

  // ---- the stock
  // Takes an extent of exactly `bytes` bytes out of the stock; it is in use from now on.  Returns
  // nullopt if the stock has none.
  [[nodiscard]] std::optional<HeldExtent> Take(ByteCount bytes, TimePoint now) LARDER_EXCLUDES(mu_);
  // Returns how many extents to request with this `id` so that the stock has `wanted` of this size,
  // counting those stocked and requested already; fewer if a limit requires it, none soon after a
  // refusal.  They count as requested until OnReserved.  To keep a limit, may take extents of other
  // sizes out of the stock and add them to `aborts`.
  [[nodiscard]] size_t Ask(uint64_t id, ByteCount bytes, size_t wanted, TimePoint now,
                           std::vector<wire::Abort>* aborts) LARDER_EXCLUDES(mu_);
  // Returns true if `reserved` answers an Ask.  If it does not match the Ask, its extents are not
  // used: the daemon takes them back at their deadline.
  [[nodiscard]] bool OnReserved(const wire::Reserved& reserved, TimePoint now) LARDER_EXCLUDES(mu_);
  // Takes extents out of the stock and adds them to `aborts`: with `all`, or if Take was not called
  // for kIdle, every extent; otherwise those that were stocked for half of kStockDeadline.  Returns
  // when to call Expire again, or nullopt if nothing is stocked.
  std::optional<TimePoint> Expire(TimePoint now, bool all, std::vector<wire::Abort>* aborts)
      LARDER_EXCLUDES(mu_);

  // ---- reservations of callers
  // From now on `count` extents of the reservation are in use.  Returns false, and changes nothing,
  // if the id is known already.
  [[nodiscard]] bool Add(ReservationId reservation, size_t count) LARDER_EXCLUDES(mu_);
  // One extent is no longer in use.  Returns true if it was the reservation's last one in use and
  // the daemon has revoked the reservation: the revocation can now be acknowledged.
  [[nodiscard]] bool Leave(ReservationId reservation) LARDER_EXCLUDES(mu_);
  // The daemon has revoked the reservation: its extents leave the stock.  Returns true if none of
  // them is in use, so that the revocation can be acknowledged now; otherwise Leave returns true
  // later.
  [[nodiscard]] bool Revoke(ReservationId reservation) LARDER_EXCLUDES(mu_);
  // Returns true if any extent is in use.
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
  uint64_t extents_ LARDER_GUARDED_BY(mu_) = 0;  // stocked and requested
  uint64_t bytes_ LARDER_GUARDED_BY(mu_) = 0;    // of these extents
  TimePoint last_use_ LARDER_GUARDED_BY(mu_);
  TimePoint full_until_ LARDER_GUARDED_BY(mu_);  // stock was refused: request none until then
};

}  // namespace larder
