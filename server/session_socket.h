// The daemon's end of one session socket: reads Up, writes Down, and its last word is how the
// session ended (docs/format.md, "Session socket").  What AttachStream is over gRPC.
//
// Everything that it reads is hostile.  It does not wait: what the client does not take queues.
// Ownership: owns the socket; shares the session.  Borrows Context and Waker.
// Thread-safety: as SessionSink; Refuse and Begin before anybody else knows it; the rest from one
// thread, that of its loop.
// Lifecycle: made -> Begin -> OnEvent ... until it says that it is over -> destroyed.  Or made ->
// Refuse -> destroyed.
// Back-pressure: reading stops while more than kQueuedMax bytes of answers wait, so a client that
// does not read cannot make the daemon grow; a message that is long in coming, or too long for what
// all messages may take, ends the session.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client/file_descriptor.h"
#include "client/wire/session_codec.h"
#include "client/wire/session_frames.h"
#include "server/admission.h"
#include "server/session_table.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class SessionSocket final : public SessionSink {
 public:
  static constexpr size_t kQueuedMax = 1 << 20;                // bytes
  static constexpr size_t kFreeBodyBytes = 64 << 10;           // longer messages pass the admission
  static constexpr std::chrono::seconds kMessageDeadline{10};  // from its first byte to its last
  static constexpr std::chrono::seconds kLinger{2};  // of the last words, for who reads late

  struct Context {
    SessionDeps& deps;
    SessionTable& sessions;
    Admission& admission;
  };
  // Has OnEvent called soon.
  class Waker {
   public:
    virtual ~Waker() = default;
    virtual void Wake(uint64_t id) = 0;  // any thread; does not call back
  };
  SessionSocket(const Context& context, FileDescriptor socket, uint64_t id, Waker& waker)
      : context_(context), socket_(std::move(socket)), id_(id), waker_(waker) {}
  ~SessionSocket() override;

  // Tells the client why there is no session.
  void Refuse(const absl::Status& why) LARDER_EXCLUDES(mu_);
  void Begin(std::shared_ptr<AttachedSession> session) { session_ = std::move(session); }

  void Send(wire::Down message) override LARDER_EXCLUDES(mu_);
  void Finish(absl::Status status) override LARDER_EXCLUDES(mu_);
  void Abort() override LARDER_EXCLUDES(mu_);

  // What its loop is to do with it next.
  struct Next {
    bool over = false;                 // destroy it
    bool heard = false;                // a message came: maybe another one soon
    bool read = false;                 // wait for input
    bool write = false;                // wait for room for output
    TimePoint due = TimePoint::max();  // look again then
  };
  // Looks at input, output, the wish to end and what is due.
  [[nodiscard]] Next OnEvent(TimePoint now) LARDER_EXCLUDES(mu_);

  [[nodiscard]] uint64_t id() const { return id_; }
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  void LookAtInput(TimePoint now, Next* next) LARDER_EXCLUDES(mu_);
  void Receive();
  // All that is whole, until the answers are too many.
  [[nodiscard]] absl::Status HandleFrames(Next* next) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Handle(const SessionFrame& frame) LARDER_EXCLUDES(mu_);
  // May the message that has begun go on?
  [[nodiscard]] absl::Status CheckAwaited(TimePoint now);
  // Of answers that wait.
  [[nodiscard]] bool Full() LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<absl::Status> WantedEnd() LARDER_EXCLUDES(mu_);
  // Gives back what the session holds, then says the last word: a client that knows that its
  // session has ended finds nothing of it any more.
  void End(const absl::Status& why, TimePoint now) LARDER_EXCLUDES(mu_);
  void Flush() LARDER_REQUIRES(mu_);
  void DropQueue() LARDER_REQUIRES(mu_);
  void Wake() LARDER_REQUIRES(mu_);

  const Context context_;
  const FileDescriptor socket_;
  const uint64_t id_;
  Waker& waker_;

  // The loop's.
  std::shared_ptr<AttachedSession> session_;  // until it ended
  SessionFrameReader reader_{wire::kMessageBytesMax};
  SessionCodec parser_;
  wire::Up up_;
  bool eof_ = false;                  // nothing more comes
  Admission::Ticket ticket_;          // of a long message that has begun
  uint32_t retry_after_ms_ = 0;       // when there was none
  TimePoint due_ = TimePoint::max();  // of that message; after the end, of the last words

  Mutex mu_;
  SessionCodec writer_ LARDER_GUARDED_BY(mu_);
  std::string queue_ LARDER_GUARDED_BY(mu_);                // frames
  size_t written_ LARDER_GUARDED_BY(mu_) = 0;               // of the queue
  bool deaf_ LARDER_GUARDED_BY(mu_) = false;                // the client takes nothing any more
  bool woken_ LARDER_GUARDED_BY(mu_) = false;               // since the last OnEvent
  std::optional<absl::Status> end_ LARDER_GUARDED_BY(mu_);  // wanted
};

}  // namespace larder
