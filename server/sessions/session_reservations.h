// What a session may write: its reservations, and the publishes that fill them.
//
// A reservation is open from Reserve until its extents are published or aborted, its deadline
// passes, or the session ends.  In write mode staged a job of the worker pool copies published
// blocks out of the client's staging segment.  In write mode mapped blocks are published at once,
// unless the store must ask the disk: then a job does it, since it may wait.
//
// Ownership: the session owns it; jobs keep the session alive.
// Thread-safety: Reserve, Publish and Tick by the session, one at a time (its lock); everything
// else from any thread.
// Locks: Record::mu is acquired alone or after mu_, never before mu_.  It is held while a block of
// a mapped session is published into the store, which may wait for the disk.
// Limits: SessionPage::kWords reservations and leases; the share of reserved bytes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/sessions/session_context.h"
#include "server/sessions/session_registrations.h"
#include "storage/mutex.h"

namespace larder {

class SessionReservations {
 public:
  // `on_answered` is called without a lock after each publish that was a job.
  SessionReservations(SessionContext& context, const SessionRegistrations& registered,
                      std::function<void()> on_answered)
      : context_(context),
        deps_(context.deps),
        registered_(registered),
        on_answered_(std::move(on_answered)) {}

  [[nodiscard]] wire::Reserved Reserve(const wire::Reserve& request) LARDER_EXCLUDES(mu_);
  // Answers in *down, or later if the publish became a job.
  void Publish(wire::Publish request, wire::Down* down) LARDER_EXCLUDES(mu_);
  void Abort(const wire::Abort& request) LARDER_EXCLUDES(mu_);
  void Close(ReservationId id) LARDER_EXCLUDES(mu_);
  // Handles reservations whose deadline has passed: revokes those whose extents the client may have
  // mapped, and appends them to *revoked, for the client to acknowledge (Close); ends the others.
  // Returns true if there were any.
  bool Tick(TimePoint now, std::vector<ReservationId>* revoked) LARDER_EXCLUDES(mu_);
  // Returns true if nothing is reserved, and no publish is under way.
  [[nodiscard]] bool idle() const LARDER_EXCLUDES(mu_);
  // Ends all reservations.  If the end is not `clean` and the client may have mapped the extents,
  // moves them to *touchable.  Otherwise they are returned to the store, those that a publish uses
  // once the publish has ended.
  void End(bool clean, SessionHoldings* touchable) LARDER_EXCLUDES(mu_);

 private:
  // A reservation.  Shared with the jobs that publish its blocks.
  struct Record {
    Mutex mu;
    ExtentReservation reservation LARDER_GUARDED_BY(mu);
    ByteCount copying LARDER_GUARDED_BY(mu);  // in extents that are split off while they are filled
    Shares::Ticket charged LARDER_GUARDED_BY(mu);
    TimePoint deadline;
    uint32_t word = 0;
    size_t slots = 0;  // the number of extents reserved
    std::atomic<bool> revoked = false;
  };
  struct Job;

  // Sets *sizes to those of the blocks whose names are not taken, and answer->taken to the others.
  // Returns false if *answer is the whole answer.
  [[nodiscard]] bool LeaveOutTaken(const wire::Reserve& request, std::vector<ByteCount>* sizes,
                                   wire::Reserved* answer) const;
  [[nodiscard]] std::shared_ptr<Record> Find(ReservationId id) const LARDER_EXCLUDES(mu_);
  void CloseLocked(ReservationId id) LARDER_REQUIRES(mu_);
  // Reduces the charge of a reservation to what it still holds after a publish or an abort, and
  // closes it if it holds nothing.
  void Recharge(ReservationId id, Record& record) LARDER_EXCLUDES(mu_);

  [[nodiscard]] BlockStatus CheckBlock(const SessionVariant& variant,
                                       const wire::PublishBlock& block, std::string* message) const;
  [[nodiscard]] BlockStatus PublishMapped(Record& record, const SessionVariant& variant,
                                          const wire::PublishBlock& block, std::string* message);
  [[nodiscard]] BlockStatus PublishStaged(Record& record, const SessionVariant& variant,
                                          wire::PublishBlock& block, std::string* message);
  [[nodiscard]] BlockStatus CopyInto(ExtentReservation& one, const StagingSegment& staging,
                                     const SessionVariant& variant, wire::PublishBlock& block);
  // Makes a publish a job.  Returns false if the worker pool does not accept it now.
  [[nodiscard]] bool Submit(wire::Publish request, const SessionVariant& variant,
                            std::shared_ptr<Record> record) LARDER_EXCLUDES(mu_);
  void Run(Job& job) LARDER_EXCLUDES(mu_);
  void Answer(Job& job) LARDER_EXCLUDES(mu_);
  void OfferToDisk(VariantIndex variant, const Digest& digest);
  void CountPut(const SessionVariant& variant, const wire::PublishBlock& block);
  void CountPublished(const wire::Published& answer);

  SessionContext& context_;
  SessionDeps& deps_;
  const SessionRegistrations& registered_;
  const std::function<void()> on_answered_;
  mutable Mutex mu_;
  absl::flat_hash_map<ReservationId, std::shared_ptr<Record>> reservations_ LARDER_GUARDED_BY(mu_);
  TimePoint next_deadline_ LARDER_GUARDED_BY(mu_) = TimePoint::max();
  size_t jobs_ LARDER_GUARDED_BY(mu_) = 0;  // publishes as jobs, not answered yet
};

}  // namespace larder
