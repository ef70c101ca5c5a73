#include "client/wire/session_stream.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/wire/convert.h"
#include "client/wire/rpc_channel.h"
#include "larder/v1/engine.grpc.pb.h"
#include "storage/clock.h"

namespace larder {

struct SessionStream::Impl {
  Impl(const std::shared_ptr<RpcChannel>& channel, Handlers the_handlers)
      : stub(v1::Engine::NewStub(channel->channel())), handlers(std::move(the_handlers)) {
    channel->Sign(context);
    context.set_wait_for_ready(true);  // the caller's deadline decides, not the first refused connect
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
    OnEnd(absl::UnavailableError(absl::StrCat("the daemon sent what no daemon sends: ", status.message())));
    return;
  }
  status = FromRpcStatus(stream->Finish());
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
    if (!in_time) return absl::DeadlineExceededError("the daemon did not answer the session's hello in time");
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

absl::StatusOr<std::unique_ptr<SessionStream>> SessionStream::Open(const std::shared_ptr<RpcChannel>& channel,
                                                                   wire::Hello hello, Handlers handlers,
                                                                   std::chrono::milliseconds deadline) {
  auto impl = std::make_unique<Impl>(channel, std::move(handlers));
  impl->stream = impl->stub->Attach(&impl->context);
  Impl* const reading = impl.get();
  impl->reader = std::thread([reading] { reading->Read(); });
  std::unique_ptr<SessionStream> stream(new SessionStream(std::move(impl)));
  wire::Up up;
  up.hello = std::move(hello);
  // A write may wait for the connection, so it has the deadline only by way of the cancel below: do it beside.
  std::thread writer([reading, &up] { (void)reading->Write(up); });  // why it failed, the reader knows
  absl::Status status = reading->WaitAttached(std::chrono::steady_clock::now() + deadline);
  if (!status.ok()) reading->context.TryCancel();
  writer.join();
  if (!status.ok()) return status;
  return stream;
}

SessionStream::SessionStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SessionStream::~SessionStream() { Close(std::chrono::milliseconds(0)); }

const wire::Attached& SessionStream::attached() const { return impl_->answer; }

absl::Status SessionStream::Send(wire::Up up) { return impl_->Write(up); }

void SessionStream::Close(std::chrono::milliseconds deadline) {
  if (!impl_->reader.joinable()) return;
  {
    MutexLock lock(impl_->write_mu);
    if (!impl_->closed) impl_->stream->WritesDone();
    impl_->closed = true;
  }
  if (!impl_->WaitEnded(std::chrono::steady_clock::now() + deadline)) impl_->context.TryCancel();
  impl_->Join();
}

}  // namespace larder
