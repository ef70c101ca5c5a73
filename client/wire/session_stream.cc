#include "client/wire/session_stream.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/wire/call_watchdog.h"
#include "client/wire/convert.h"
#include "client/wire/rpc_channel.h"
#include "larder/v1/engine.grpc.pb.h"

namespace larder {
namespace {

// A daemon that lives takes a message at once; what it thinks of it may take longer.
constexpr std::chrono::seconds kWriteDeadline{10};

}  // namespace

struct SessionStream::Impl {
  Impl(const std::shared_ptr<RpcChannel>& channel, Handlers the_handlers)
      : stub(v1::Engine::NewStub(channel->channel())), handlers(std::move(the_handlers)) {
    channel->Sign(context);
    context.set_initial_metadata_corked(
        true);  // goes with the hello; else starting the call would wait for it
  }

  absl::Status Write(const wire::Up& up) LARDER_EXCLUDES(write_mu);
  void Read() LARDER_EXCLUDES(mu);
  void OnDown(wire::Down down) LARDER_EXCLUDES(mu);
  void OnEnd(absl::Status status) LARDER_EXCLUDES(mu);
  // The answer to the hello.
  absl::Status WaitAttached(TimePoint until) LARDER_EXCLUDES(mu);
  bool WaitEnded(TimePoint until) LARDER_EXCLUDES(mu);
  void Join();

  const std::unique_ptr<v1::Engine::Stub> stub;
  const Handlers handlers;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream;
  std::thread reader;
  CallWatchdog watchdog{[this] { context.TryCancel(); }};

  Mutex write_mu;
  v1::Up scratch LARDER_GUARDED_BY(write_mu);  // used again, so that a busy stream stops allocating
  bool closed LARDER_GUARDED_BY(write_mu) = false;

  Mutex mu;
  CondVar changed;
  std::optional<wire::Attached> attached LARDER_GUARDED_BY(mu);
  std::optional<absl::Status> ended LARDER_GUARDED_BY(mu);
  wire::Attached answer;  // const once Open returned
};

absl::Status SessionStream::Impl::Write(const wire::Up& up) {
  MutexLock lock(write_mu);
  if (closed) return absl::UnavailableError("the session was closed");
  wire::Encode(up, &scratch);
  const CallWatchdog::Watch watch(watchdog, std::chrono::steady_clock::now() + kWriteDeadline);
  if (stream->Write(scratch)) return absl::OkStatus();
  return absl::UnavailableError("the session's stream is broken");
}

// Only the first message may say `attached`; a later one would change what the session is.
void SessionStream::Impl::OnDown(wire::Down down) {
  bool first;
  {
    MutexLock lock(mu);
    first = !attached;
    if (first && down.attached) {
      attached = std::move(down.attached);
      changed.NotifyAll();
    }
  }
  down.attached.reset();
  handlers.on_down(std::move(down));
}

void SessionStream::Impl::Read() {
  v1::Down message;
  absl::Status status;
  while (status.ok() && stream->Read(&message)) {
    wire::Down down;
    status = wire::Decode(message, &down);
    if (status.ok()) OnDown(std::move(down));
  }
  if (!status.ok()) {
    context.TryCancel();
    (void)stream->Finish();
    OnEnd(absl::UnavailableError(
        absl::StrCat("the daemon sent what no daemon sends: ", status.message())));
    return;
  }
  status = FromRpcStatus(stream->Finish());
  if (watchdog.cancelled()) status = absl::DeadlineExceededError("the daemon does not answer");
  OnEnd(status.ok() ? absl::UnavailableError("the daemon ended the session") : status);
}

void SessionStream::Impl::OnEnd(absl::Status status) {
  handlers.on_broken(status);
  MutexLock lock(mu);
  ended = std::move(status);
  changed.NotifyAll();
}

absl::Status SessionStream::Impl::WaitAttached(TimePoint until) {
  MutexLock lock(mu);
  bool in_time = true;
  while (!attached) {
    if (ended) return *ended;
    if (!in_time)
      return absl::DeadlineExceededError("the daemon did not answer the session's hello in time");
    in_time = changed.WaitUntil(mu, until);
  }
  answer = *attached;
  return absl::OkStatus();
}

bool SessionStream::Impl::WaitEnded(TimePoint until) {
  MutexLock lock(mu);
  while (!ended) {
    if (!changed.WaitUntil(mu, until)) return ended.has_value();
  }
  return true;
}

void SessionStream::Impl::Join() {
  if (reader.joinable()) reader.join();
}

absl::StatusOr<std::unique_ptr<SessionStream>> SessionStream::Open(
    const std::shared_ptr<RpcChannel>& channel, wire::Hello hello, Handlers handlers,
    std::chrono::milliseconds deadline) {
  // A call that starts without a connection would wait for one beyond any deadline of ours.
  if (!channel->channel()->WaitForConnected(std::chrono::system_clock::now() + deadline)) {
    return absl::UnavailableError("no larderd answers");
  }
  const TimePoint until = std::chrono::steady_clock::now() + deadline;
  std::unique_ptr<SessionStream> stream(
      new SessionStream(std::make_unique<Impl>(channel, std::move(handlers))));
  Impl& impl = *stream->impl_;
  const CallWatchdog::Watch watch(impl.watchdog, until);
  impl.stream = impl.stub->Attach(&impl.context);
  wire::Up up;
  up.hello = std::move(hello);
  (void)impl.Write(up);  // why it failed, the reader knows
  impl.reader = std::thread([&impl] { impl.Read(); });
  if (absl::Status status = impl.WaitAttached(until); !status.ok()) return status;
  return stream;
}

SessionStream::SessionStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SessionStream::~SessionStream() { Close(std::chrono::milliseconds(0)); }

const wire::Attached& SessionStream::attached() const { return impl_->answer; }

absl::Status SessionStream::Send(wire::Up up) { return impl_->Write(up); }

void SessionStream::Cancel() { impl_->context.TryCancel(); }

void SessionStream::CancelAt(TimePoint due) { impl_->watchdog.Arm(due); }

void SessionStream::Close(std::chrono::milliseconds deadline) {
  if (!impl_->reader.joinable()) return;
  const TimePoint until = std::chrono::steady_clock::now() + deadline;
  const CallWatchdog::Watch watch(impl_->watchdog, until);
  {
    MutexLock lock(impl_->write_mu);
    if (!impl_->closed) impl_->stream->WritesDone();
    impl_->closed = true;
  }
  if (!impl_->WaitEnded(until)) impl_->context.TryCancel();
  impl_->Join();
}

}  // namespace larder
