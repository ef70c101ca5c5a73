// The daemon's end of one session socket: reads the client's messages (Up), writes the daemon's
// (Down), and finally writes how the session ended (docs/format.md, "Session socket").
// AttachStream is its counterpart over gRPC.
//
// All input is untrusted.  The socket never waits for its client, because other sessions share its
// thread (SessionLoop): answers that the client does not take are queued, and a worker handles a
// long message.
// Ownership: owns the socket; shares the session.  Borrows Context and Waker.
// Thread-safety: Send, Finish, Abort and id from any thread; Refuse and Begin before the socket is
// added to its loop; the other methods from one thread, that of the loop.
// Locks: mu_ may be held while Waker is called and a share is taken.  The session is called without
// it, and calls this object under the session's locks.
// Lifecycle: constructed -> Begin -> OnEvent ... until Next::over or Next::lingers -> destroyed.
// Or constructed -> Refuse -> destroyed.
// Limits: reading stops while more than kQueuedMax bytes of answers wait, and while there is no
// capacity (Shares) or no worker for a message beyond kSmallBodyBytes.  Answers that wait are
// charged (ChargeAnswers).  After its first byte a message must continue (kPauseMax) and be
// completed (kMessageMax); the time for which it waits for capacity does not count.
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
  static constexpr size_t kSmallBodyBytes = 12 << 10;     // a worker handles a longer message
  static constexpr std::chrono::seconds kPauseMax{10};    // within a message
  static constexpr std::chrono::seconds kMessageMax{60};  // from its first byte to its last
  static constexpr std::chrono::milliseconds kRetry{10};  // pause if no capacity or worker is free
  static constexpr std::chrono::seconds kAskAgain{1};     // least time between calls of HasItsPart
  static constexpr std::chrono::seconds kLinger{1};  // for the client to read how its session ended

  struct Context {
    SessionDeps& deps;
    SessionTable& sessions;
  };
  // Makes the loop call OnEvent soon.
  class Waker {
   public:
    virtual ~Waker() = default;
    virtual void Wake(uint64_t id) = 0;  // from any thread; does not call the socket
  };
  SessionSocket(const Context& context, FileDescriptor socket, uint64_t id, Waker& waker);
  ~SessionSocket() override;

  // Writes to the client why there is no session, and, with ResourceExhausted, when to try again.
  void Refuse(const absl::Status& why) LARDER_EXCLUDES(mu_);
  void Begin(std::shared_ptr<AttachedSession> session) {
    account_ = session->account();
    session_ = std::move(session);
  }

  void Send(wire::Down message) override LARDER_EXCLUDES(mu_);
  void Finish(absl::Status status) override LARDER_EXCLUDES(mu_);
  void Abort() override LARDER_EXCLUDES(mu_);

  // What the loop is to do with the socket next.
  struct Next {
    bool over = false;     // destroy it
    bool lingers = false;  // its session has ended, bytes wait to be sent; may be destroyed
    bool heard = false;    // a message came, so another one may come soon
    bool read = false;     // wait for input
    bool write = false;    // wait until the socket takes output
    TimePoint due = TimePoint::max();  // call OnEvent again then
  };
  // Handles input, output, a requested end and what is due.  `hung_up` means that the peer has
  // closed both directions; bytes that it sent before may still be unread.
  [[nodiscard]] Next OnEvent(TimePoint now, bool hung_up = false) LARDER_EXCLUDES(mu_);

  [[nodiscard]] uint64_t id() const { return id_; }
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  // The state of a session that has not ended.  Destroyed when it ends, so that a socket that
  // lingers takes little memory.
  struct Input {
    Input() {}  // not defaulted: clang accepts that only after the end of the enclosing class
    SessionFrameReader reader{wire::kMessageBytesMax};
    SessionCodec parser;
    wire::Up up;
    std::optional<SessionFrame> frame;    // complete, not handled yet; its bytes are in reader
    bool eof = false;                     // the client sends nothing more
    bool carried = false;                 // the client sent file descriptors
    bool working = false;                 // a worker handles the frame and uses reader and session
    bool stopped = false;                 // not reading: unread answers, no capacity or no worker
    bool more = false;                    // its turn has ended, and complete frames are left
    TimePoint begun, moved;               // first and latest byte of an incomplete message
    Shares::Ticket charged;               // for a long message; grows as its bytes come
    bool refused = false;                 // the message has been refused capacity at least once
    std::optional<TimePoint> waits_from;  // since when the message waits for capacity
    TimePoint asked;                      // when HasItsPart was last called
  };
  void LookAtSession(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status LookAtInput(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  // Returns true if bytes came.  Sets input_->eof if nothing more will come, and input_->carried if
  // the client sent file descriptors.
  [[nodiscard]] bool Receive(TimePoint now);
  // Handles the complete frames, until something stops it or its turn ends.
  [[nodiscard]] absl::Status HandleFrames(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Handle(const SessionFrame& frame, SessionCodec& parser, wire::Up& up);
  // Returns false if the worker pool does not accept the message now.
  [[nodiscard]] bool HandToWorker(const SessionFrame& frame) LARDER_EXCLUDES(mu_);
  void StopFor(TimePoint due);
  // Charges the next part of a long message that has begun, or stops reading for a while.  Returns
  // ResourceExhausted if there can never be enough capacity, or if there was none for too long and
  // the process holds at least its part of it (HasItsPart).
  [[nodiscard]] absl::Status MakeRoom(TimePoint now);
  // Returns DeadlineExceeded if an incomplete message pauses or lasts too long and this turn
  // received nothing.
  [[nodiscard]] absl::Status CheckBegun(TimePoint now, bool received);
  // Returns true if too many bytes of answers wait for the client.
  [[nodiscard]] bool Full() LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<absl::Status> TakeWorked() LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<absl::Status> WantedEnd() LARDER_EXCLUDES(mu_);
  // Ends the session with the error in which its client's input resulted.
  void Fail(const absl::Status& why, TimePoint now) LARDER_EXCLUDES(mu_);
  // Closes the session, then writes how it ended.  In this order, so that when a client learns that
  // its session has ended, the daemon has ended it already.
  void End(const absl::Status& why, TimePoint now) LARDER_EXCLUDES(mu_);
  void Flush() LARDER_REQUIRES(mu_);
  // Charges the process for the answers in queue_.  If its share does not allow them, requests the
  // end of the session.
  void ChargeQueue() LARDER_REQUIRES(mu_);
  void Wake() LARDER_REQUIRES(mu_);

  const Context context_;
  FileDescriptor socket_;
  const bool kernel_refuses_;  // the kernel refuses descriptors on this socket
  const uint64_t id_;
  Waker& waker_;

  // Used by the loop's thread only, except the session and Input::reader while a worker handles a
  // frame.
  std::shared_ptr<AttachedSession> session_;  // null once it has ended
  Shares::Account account_;                   // the session's
  std::optional<Input> input_;
  TimePoint due_ = TimePoint::max();
  bool hung_up_ = false;  // the peer has closed both directions

  Mutex mu_;
  SessionCodec writer_ LARDER_GUARDED_BY(mu_);
  SocketQueue queue_ LARDER_GUARDED_BY(mu_);
  Shares::Ticket answers_ LARDER_GUARDED_BY(mu_);  // charges the answers in queue_
  bool deaf_ LARDER_GUARDED_BY(mu_) = false;       // the socket takes nothing any more
  bool looking_ LARDER_GUARDED_BY(mu_) = false;    // OnEvent runs, and sees what changes meanwhile
  bool woken_ LARDER_GUARDED_BY(mu_) = false;      // Wake was called since the last OnEvent
  std::optional<absl::Status> end_ LARDER_GUARDED_BY(mu_);     // set if the session is to end
  std::optional<absl::Status> worked_ LARDER_GUARDED_BY(mu_);  // the result of the worker
};

}  // namespace larder
