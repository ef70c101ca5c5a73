// The daemon's end of one session socket: reads Up, writes Down, and its last word is how the
// session ended (docs/format.md, "Session socket").  What AttachStream is over gRPC.
//
// Everything that it reads is hostile.  It does not wait: what the client does not take queues, and
// a long message is handled by a worker, since others share the loop.
// Ownership: owns the socket; shares the session.  Borrows Context and Waker.
// Thread-safety: as SessionSink; Refuse and Begin before anybody else knows it; the rest from one
// thread, that of its loop.
// Lifecycle: made -> Begin -> OnEvent ... until it says that it is over -> destroyed.  Or made ->
// Refuse -> destroyed.
// Limits: reading stops while more than kQueuedMax bytes of answers wait, so a client that does not
// read cannot make the daemon grow, and while there is no room (Shares) or no worker for a
// message beyond kSmallBodyBytes.  Answers that wait are charged (ChargeAnswers).  A message that
// has begun must come on, and come to its end.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/session_codec.h"
#include "proto/frames/session_frames.h"
#include "proto/frames/socket_queue.h"
#include "server/runtime/shares.h"
#include "server/sessions/session_table.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class SessionSocket final : public SessionSink {
 public:
  static constexpr size_t kSmallBodyBytes = 12 << 10;     // longer ones take what all share
  static constexpr std::chrono::seconds kPauseMax{10};    // within a message
  static constexpr std::chrono::seconds kMessageMax{60};  // from its first byte to its last
  static constexpr std::chrono::milliseconds kRetry{10};  // when there is no room for it
  static constexpr std::chrono::seconds kAskAgain{
      1};                                            // between two questions whether it HasItsPart
  static constexpr std::chrono::seconds kLinger{1};  // of the last words, for who reads late

  struct Context {
    SessionDeps& deps;
    SessionTable& sessions;
  };
  // Has OnEvent called soon.
  class Waker {
   public:
    virtual ~Waker() = default;
    virtual void Wake(uint64_t id) = 0;  // any thread; does not call back
  };
  SessionSocket(const Context& context, FileDescriptor socket, uint64_t id, Waker& waker);
  ~SessionSocket() override;

  // Tells the client why there is no session.
  void Refuse(const absl::Status& why) LARDER_EXCLUDES(mu_);
  void Begin(std::shared_ptr<AttachedSession> session) {
    account_ = session->account();
    session_ = std::move(session);
  }

  void Send(wire::Down message) override LARDER_EXCLUDES(mu_);
  void Finish(absl::Status status) override LARDER_EXCLUDES(mu_);
  void Abort() override LARDER_EXCLUDES(mu_);

  // What its loop is to do with it next.
  struct Next {
    bool over = false;     // destroy it
    bool lingers = false;  // its session is over, its last words are not read: may be destroyed
    bool heard = false;    // a message came: maybe another one soon
    bool read = false;     // wait for input
    bool write = false;    // wait for room for output
    TimePoint due = TimePoint::max();  // look again then
  };
  // Looks at input, output, the wish to end and what is due.  `hung_up`: the peer has closed both
  // ways, though what it sent before may still lie there.
  [[nodiscard]] Next OnEvent(TimePoint now, bool hung_up = false) LARDER_EXCLUDES(mu_);

  [[nodiscard]] uint64_t id() const { return id_; }
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  // Of a session that lives; gone when it ends, so that what lingers takes little.
  struct Input {
    Input() {}  // not defaulted: clang does not know that one before the class around it ends
    SessionFrameReader reader{wire::kMessageBytesMax};
    SessionCodec parser;
    wire::Up up;
    std::optional<SessionFrame> frame;    // whole, and not handled yet; lies in the reader
    bool eof = false;                     // nothing more comes
    bool carried = false;                 // descriptors came
    bool working = false;                 // a worker handles the frame: hands off
    bool stopped = false;                 // for answers that wait, room or a worker
    bool more = false;                    // its turn is over, and whole frames are left
    TimePoint begun, moved;               // of a message that is not whole: first byte, last byte
    Shares::Ticket charged;               // for its bytes, more as it comes
    bool refused = false;                 // once there was no room for it
    std::optional<TimePoint> waits_from;  // while there is none
    TimePoint asked;                      // when HasItsPart was asked last
  };
  void LookAtSession(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status LookAtInput(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  // False: nothing was there.
  [[nodiscard]] bool Receive(TimePoint now);
  // All that is whole, until something stops it or its turn is over.
  [[nodiscard]] absl::Status HandleFrames(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Handle(const SessionFrame& frame, SessionCodec& parser, wire::Up& up);
  // False: no worker has time.
  [[nodiscard]] bool HandToWorker(const SessionFrame& frame) LARDER_EXCLUDES(mu_);
  void StopFor(TimePoint due);
  // For more of a long message that has begun; ResourceExhausted: there never is, or not in time.
  [[nodiscard]] absl::Status MakeRoom(TimePoint now);
  // Is the message that has begun on its way?
  [[nodiscard]] absl::Status CheckBegun(TimePoint now, bool received);
  [[nodiscard]] bool Full() LARDER_EXCLUDES(mu_);  // of answers that wait
  [[nodiscard]] std::optional<absl::Status> TakeWorked() LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<absl::Status> WantedEnd() LARDER_EXCLUDES(mu_);
  // Ends the session for what its client sent.
  void Fail(const absl::Status& why, TimePoint now) LARDER_EXCLUDES(mu_);
  // Gives back what the session holds, then says the last word: a client that knows that its
  // session has ended finds nothing of it any more.
  void End(const absl::Status& why, TimePoint now) LARDER_EXCLUDES(mu_);
  void Flush() LARDER_REQUIRES(mu_);
  // Charges the process for the answers in queue_; where its share has no room for them, the next
  // OnEvent ends the session.
  void ChargeQueue() LARDER_REQUIRES(mu_);
  void Wake() LARDER_REQUIRES(mu_);

  const Context context_;
  FileDescriptor socket_;
  const bool kernel_refuses_;  // descriptors
  const uint64_t id_;
  Waker& waker_;

  // The loop's; while a worker is at it, session and reader are the worker's.
  std::shared_ptr<AttachedSession> session_;  // until it ended
  Shares::Account account_;                   // the session's
  std::optional<Input> input_;
  TimePoint due_ = TimePoint::max();
  bool hung_up_ = false;  // the peer has closed both ways

  Mutex mu_;
  SessionCodec writer_ LARDER_GUARDED_BY(mu_);
  SocketQueue queue_ LARDER_GUARDED_BY(mu_);
  Shares::Ticket answers_ LARDER_GUARDED_BY(mu_);  // for what waits in it
  bool deaf_ LARDER_GUARDED_BY(mu_) = false;       // the client takes nothing any more
  bool looking_ LARDER_GUARDED_BY(mu_) = false;    // in OnEvent, which sees what comes meanwhile
  bool woken_ LARDER_GUARDED_BY(mu_) = false;      // since the last OnEvent
  std::optional<absl::Status> end_ LARDER_GUARDED_BY(mu_);     // wanted
  std::optional<absl::Status> worked_ LARDER_GUARDED_BY(mu_);  // what the worker says
};

}  // namespace larder
