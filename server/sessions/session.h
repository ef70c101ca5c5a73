// One session of an engine's process: handles the messages that come on a session socket or in a
// stream of the gRPC call Attach.  Does not use gRPC itself.
//
// A session consists of parts, which share a SessionContext: what it registered
// (SessionRegistrations), may write (SessionReservations), reads (SessionLeases) and has in device
// memory (SessionDevice).  This class does what concerns all of them: the hello, which is the first
// message, the order in which the contents of a message are handled, drain and the end.  When a
// session ends, its leases and reservations are returned to the store; if it ends without a `bye`,
// those that its process may still access go through the quarantine.
//
// Ownership: shared by its stream, the SessionTable, and jobs.  The SessionSink, to which it sends
// its answers, must stay valid until OnClosed returns.
// Thread-safety: OnUp from one thread at a time; everything else from any thread.
// Locks: mu_ is held while most of a message is handled, and is acquired before the locks of the
// parts.  Jobs do not acquire it, except for the job of a publish, which does so after its answer.
// Lifecycle: Create -> OnUp... -> OnClosed.  Tick ends the stream if the hello is late.
// Limits: those of the parts and of proto/larder/v1/engine.proto.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/sessions/session_context.h"
#include "server/sessions/session_device.h"
#include "server/sessions/session_leases.h"
#include "server/sessions/session_registrations.h"
#include "server/sessions/session_reservations.h"
#include "storage/mutex.h"

namespace larder {

class AttachedSession {
 public:
  static constexpr std::chrono::seconds kHelloDeadline{5};
  // How long after Drain the session still grants reservations and leases, which its client may
  // have requested before it was told to finish.
  static constexpr std::chrono::milliseconds kDrainGrace{100};
  static constexpr size_t kKeysPerMessageMax = 4 * wire::kKeysMax;  // in all acquires of one Up

  // `process` is empty for a caller without a sideband token, whose blocks go by byte streams.
  // `holder` says whose shares the session uses.
  // Returns Unauthenticated if the process is dead or not attached any more, or another error if
  // the session cannot be created.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<AttachedSession>> Create(
      SessionDeps& deps, SessionId id, std::optional<AttachedProcess> process,
      const ShareHolder& holder, std::string peer, SessionSink& sink);

  // Handles a message, and may move its contents away.  After OnClosed does nothing and returns OK.
  // If it returns an error, such as InvalidArgument for a message that is not valid, the caller
  // must end the stream.
  [[nodiscard]] absl::Status OnUp(wire::Up& up) LARDER_EXCLUDES(mu_);
  // To be called when the stream has ended; further calls do nothing.  If the client sent a `bye`,
  // the leases and reservations are returned to the store; otherwise those whose memory the process
  // may still access go to the quarantine.
  void OnClosed() LARDER_EXCLUDES(mu_);
  // To be called when the process is proven dead (a forked child may keep the stream open), or when
  // it has reported that it unmapped everything of this session.  Ends the stream, and returns to
  // the store the leases and reservations that the session still has.
  void OnUnmapped() LARDER_EXCLUDES(mu_);
  // To be called several times per second.  Handles the deadlines of leases and reservations, of
  // the hello, and of a drain.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_);
  // Tells the client to finish.  After kDrainGrace the session grants no new lease or reservation,
  // and its stream ends with OK once it has no lease, no reservation and no publish under way.
  void Drain() LARDER_EXCLUDES(mu_);
  // Ends the stream, because the daemon stops.
  void Abandon();
  // Sends the engine a directive about its device memory.  Returns kMissing if that is not
  // possible, for example because the session has ended; kUnsupported if the client takes no
  // directives; otherwise kOk.
  [[nodiscard]] BlockStatus Direct(VariantIndex variant, wire::Directive directive)
      LARDER_EXCLUDES(mu_);
  // Tells the client that blocks which it published have become durable.  Does nothing if the
  // client does not understand such messages.
  void OnDurable(VariantIndex variant, std::span<const Digest> digests) LARDER_EXCLUDES(mu_);

  [[nodiscard]] SessionId id() const { return context_.id; }
  [[nodiscard]] ProcessId process() const {
    return context_.process ? context_.process->id : ProcessId{};
  }
  [[nodiscard]] const Shares::Account& account() const { return context_.account; }
  // Returns a read-only descriptor, which the caller must close, of the session's shared page
  // (SessionPage); FailedPrecondition if the session has no page.
  [[nodiscard]] absl::StatusOr<int> OpenPage() const;
  [[nodiscard]] ByteCount page_bytes() const;
  [[nodiscard]] wire::WriteMode write_mode() const { return context_.write_mode; }
  [[nodiscard]] wire::ReadMode read_mode() const { return context_.read_mode; }

 private:
  AttachedSession(SessionDeps& deps, SessionId id, std::optional<AttachedProcess> process,
                  const ShareHolder& holder, std::string peer, SessionSink& sink);

  // Checks a message before it is handled, and attaches the session if the message has a hello.
  [[nodiscard]] absl::Status Admit(const wire::Up& up) LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status Attach(const wire::Hello& hello) LARDER_REQUIRES(mu_);
  [[nodiscard]] wire::WriteMode ChooseWriteMode(wire::WriteMode wanted, std::string* reason) const;
  void ChooseModes(const wire::Hello& hello, wire::Attached* attached);
  // Handles the publishes and reserves of a message.  Returns how many extents it reserved.
  size_t HandleWrites(wire::Up& up, wire::Down* down) LARDER_REQUIRES(mu_);
  // Answers the promises of a message.  Appends to *reads what must be started once the answers are
  // sent.
  void HandlePromises(const wire::Up& up, wire::Down* down, std::vector<Promoter::Prepared>* reads)
      LARDER_REQUIRES(mu_);
  // Answers the acquires of a message.  If a block of an acquire is FULL and *released is false,
  // handles the message's releases, sets *released, and tries the acquire again.
  void HandleAcquires(const wire::Up& up, bool* released, wire::Down* down) LARDER_REQUIRES(mu_);
  void CountRequests(const wire::Up& up);
  void FinishIfDrained() LARDER_REQUIRES(mu_);
  void PutInQuarantine(SessionHoldings holdings);

  SessionContext context_;
  SessionDeps& deps_;
  const std::string peer_;

  Mutex mu_;
  bool attached_ LARDER_GUARDED_BY(mu_) = false;
  bool draining_ LARDER_GUARDED_BY(mu_) = false;
  bool closed_ LARDER_GUARDED_BY(mu_) = false;
  bool bye_ LARDER_GUARDED_BY(mu_) = false;  // the client uses nothing of this session any more
  // A message is being handled and its answers are not sent yet; a drain must not end the stream
  // before they are sent.
  bool answering_ LARDER_GUARDED_BY(mu_) = false;
  // When Tick must act for the session itself: at the deadline of the first message
  // (kHelloDeadline), and at the end of a drain's grace period (kDrainGrace); max if it need not.
  TimePoint next_deadline_ LARDER_GUARDED_BY(mu_);

  SessionRegistrations registrations_;
  SessionReservations reservations_;
  SessionLeases leases_;
  SessionDevice device_;
};

}  // namespace larder
