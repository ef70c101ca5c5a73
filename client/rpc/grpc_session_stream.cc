#include "client/rpc/grpc_session_stream.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rpc/rpc_channel.h"
#include "larder/v1/engine.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// What a completion reports: an operation of the gRPC call, or the alarm of Wake.  At most one of
// each kind is under way.
enum class Step : uintptr_t { kRead = 1, kWrite, kWritesDone, kFinish, kWake };

void* TagOf(Step step) { return reinterpret_cast<void*>(static_cast<uintptr_t>(step)); }

gpr_timespec ToGrpc(TimePoint time) {
  if (time == TimePoint::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto since = time.time_since_epoch();
  const auto whole = std::chrono::floor<std::chrono::seconds>(since);
  gpr_timespec result;
  result.tv_sec = whole.count();
  result.tv_nsec = static_cast<int32_t>((since - whole).count());
  result.clock_type = GPR_CLOCK_MONOTONIC;
  return result;
}

absl::Status Closed() {
  return absl::UnavailableError("the session's stream is closed: Attach again");
}

}  // namespace

struct GrpcSessionStream::Impl final : MessagePump {
  using Next = grpc::CompletionQueue::NextStatus;

  Impl(const std::shared_ptr<RpcChannel>& channel, SessionInbox::Handlers handlers)
      : stub(v1::Engine::NewStub(channel->channel())), inbox(std::move(handlers)) {
    channel->Sign(context);
    context.set_initial_metadata_corked(true);  // sent together with the hello
  }

  // ---- writing
  absl::Status Write(const wire::Up& up) LARDER_EXCLUDES(write_mu);
  void OnWritten(bool ok) LARDER_EXCLUDES(write_mu);
  void HalfClose() LARDER_EXCLUDES(write_mu);
  // Returns when the write under way counts as stuck, or, if there is none, when one that begins
  // now would.  Returns TimePoint::max() once the call was cancelled as stuck.
  TimePoint WriteDue() LARDER_EXCLUDES(write_mu);

  // ---- reading
  uint64_t arrivals() const override { return inbox.arrivals(); }
  void Pump(uint64_t seen, TimePoint look_until, TimePoint deadline) override
      LARDER_EXCLUDES(pump_mu);
  void Wake() override;
  // Handles completions that have arrived, unless another thread holds pump_mu.
  void PumpReady() LARDER_EXCLUDES(pump_mu);
  // Polls, yielding between polls, for the next completion.  Returns TIMEOUT if there is none by
  // `until`.  Does not sleep.
  Next SpinUntil(TimePoint until, void** tag, bool* ok) LARDER_REQUIRES(pump_mu);
  void OnStep(Step step, bool ok) LARDER_REQUIRES(pump_mu);
  void StartRead() LARDER_REQUIRES(pump_mu);
  void OnRead(bool ok) LARDER_REQUIRES(pump_mu);
  void OnFinished() LARDER_REQUIRES(pump_mu);

  const std::unique_ptr<v1::Engine::Stub> stub;
  SessionInbox inbox;
  grpc::ClientContext context;
  grpc::CompletionQueue steps;
  grpc::Alarm alarm;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::Up, v1::Down>> stream;

  Mutex write_mu;
  v1::Up scratch LARDER_GUARDED_BY(write_mu);  // reused, so that a busy stream stops allocating
  std::deque<v1::Up> queue LARDER_GUARDED_BY(write_mu);
  size_t queued_bytes LARDER_GUARDED_BY(write_mu) = 0;
  bool writing LARDER_GUARDED_BY(write_mu) = false;
  bool closing LARDER_GUARDED_BY(write_mu) = false;  // half-close once the queue is empty
  bool broken LARDER_GUARDED_BY(write_mu) = false;
  TimePoint write_due LARDER_GUARDED_BY(write_mu);
  std::atomic<bool> stuck{false};  // cancelled: the daemon accepts no data

  Mutex pump_mu;  // taken before write_mu
  v1::Down message LARDER_GUARDED_BY(pump_mu);
  wire::Down down LARDER_GUARDED_BY(pump_mu);  // the decoded `message`
  bool reading LARDER_GUARDED_BY(pump_mu) = false;
  bool woken LARDER_GUARDED_BY(pump_mu) = false;   // set by Wake: then only Close pumps
  bool ending LARDER_GUARDED_BY(pump_mu) = false;  // Close has begun
  bool read_over LARDER_GUARDED_BY(pump_mu) = false;
  absl::Status nonsense LARDER_GUARDED_BY(pump_mu);  // why this side ended the stream
  grpc::Status rpc_status LARDER_GUARDED_BY(pump_mu);
};

// ---- writing

absl::Status GrpcSessionStream::Impl::Write(const wire::Up& up) {
  {
    MutexLock lock(write_mu);
    if (closing || broken) return Closed();
    if (!writing) {
      wire::Encode(up, &scratch);
      writing = true;
      write_due = SteadyNow() + kWriteDeadline;
      stream->Write(scratch, TagOf(Step::kWrite));
      return absl::OkStatus();
    }
    wire::Encode(up, &queue.emplace_back());
    queued_bytes += queue.back().ByteSizeLong();
    if (queued_bytes > kQueuedBytesMax) {
      broken = true;
      stuck = true;
      context.TryCancel();
      return Closed();
    }
  }
  // The write before this one may have completed without a thread having handled its completion.
  PumpReady();
  return absl::OkStatus();
}

void GrpcSessionStream::Impl::OnWritten(bool ok) {
  MutexLock lock(write_mu);
  writing = false;
  if (!ok) {
    broken = true;  // the read under way gets the reason
    queue.clear();
    queued_bytes = 0;
  } else if (!queue.empty()) {
    writing = true;
    write_due = SteadyNow() + kWriteDeadline;
    stream->Write(queue.front(), TagOf(Step::kWrite));
    queued_bytes -= queue.front().ByteSizeLong();
    queue.pop_front();
  } else if (closing) {
    broken = true;  // nothing is written after this
    stream->WritesDone(TagOf(Step::kWritesDone));
  }
}

void GrpcSessionStream::Impl::HalfClose() {
  MutexLock lock(write_mu);
  if (closing || broken) return;
  closing = true;
  if (writing) return;  // OnWritten half-closes once the queue is empty
  broken = true;
  stream->WritesDone(TagOf(Step::kWritesDone));
}

TimePoint GrpcSessionStream::Impl::WriteDue() {
  MutexLock lock(write_mu);
  if (stuck.load()) return TimePoint::max();  // cancelled already
  // A write that another thread begins meanwhile cannot be due sooner.
  return writing ? write_due : SteadyNow() + kWriteDeadline;
}

// ---- reading

void GrpcSessionStream::Impl::Pump(uint64_t seen, TimePoint look_until, TimePoint deadline) {
  MutexLock lock(pump_mu);
  while (inbox.arrivals() == seen && !inbox.ended() && (ending || !woken)) {
    StartRead();
    const TimePoint write_until = WriteDue();
    void* tag = nullptr;
    bool ok = false;
    Next next = SpinUntil(look_until, &tag, &ok);
    if (next == Next::TIMEOUT) {
      next = steps.AsyncNext(&tag, &ok, ToGrpc(std::min(deadline, write_until)));
    }
    if (next == Next::SHUTDOWN) return;
    if (next == Next::GOT_EVENT) {
      OnStep(static_cast<Step>(reinterpret_cast<uintptr_t>(tag)), ok);
      continue;
    }
    const TimePoint now = SteadyNow();
    if (now >= write_until && WriteDue() <= now && !stuck.exchange(true)) context.TryCancel();
    if (now >= deadline) return;
  }
}

// Yields, because the daemon's thread may be waiting for this core.
GrpcSessionStream::Impl::Next GrpcSessionStream::Impl::SpinUntil(TimePoint until, void** tag,
                                                                 bool* ok) {
  for (;;) {
    const Next next = steps.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (next != Next::TIMEOUT || SteadyNow() >= until) return next;
    std::this_thread::yield();
  }
}

// Pump calls this before it waits, and not right after the previous read: gRPC would then send the
// daemon its flow-control update as a separate message instead of together with the next message.
void GrpcSessionStream::Impl::StartRead() {
  if (reading || read_over) return;
  reading = true;
  stream->Read(&message, TagOf(Step::kRead));
}

void GrpcSessionStream::Impl::PumpReady() {
  if (!pump_mu.TryLock()) return;
  void* tag = nullptr;
  bool ok = false;
  while (steps.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) ==
         grpc::CompletionQueue::GOT_EVENT) {
    OnStep(static_cast<Step>(reinterpret_cast<uintptr_t>(tag)), ok);
  }
  pump_mu.Unlock();
}

void GrpcSessionStream::Impl::OnStep(Step step, bool ok) {
  switch (step) {
    case Step::kRead:
      OnRead(ok);
      break;
    case Step::kWrite:
      OnWritten(ok);
      break;
    case Step::kFinish:
      OnFinished();
      break;
    case Step::kWake:
      woken = true;
      break;
    case Step::kWritesDone:
      break;
  }
}

void GrpcSessionStream::Impl::OnRead(bool ok) {
  reading = false;
  if (ok) {
    down = {};
    nonsense = wire::Decode(message, &down);
    if (nonsense.ok()) return inbox.HandOver(std::move(down));
    context.TryCancel();
  }
  read_over = true;
  stream->Finish(&rpc_status, TagOf(Step::kFinish));
}

void GrpcSessionStream::Impl::OnFinished() {
  {
    MutexLock lock(write_mu);
    broken = true;
  }
  if (stuck.load())
    return inbox.End(absl::DeadlineExceededError(
        "the daemon does not accept messages: it hangs or is overloaded"));
  inbox.End(nonsense.ok() ? FromRpcStatus(rpc_status) : Nonsense(nonsense));
}

void GrpcSessionStream::Impl::Wake() {
  alarm.Set(&steps, gpr_now(GPR_CLOCK_MONOTONIC), TagOf(Step::kWake));
}

// ---- the stream

absl::StatusOr<std::unique_ptr<SessionStream>> GrpcSessionStream::Open(
    const std::shared_ptr<RpcChannel>& channel, wire::Hello hello, SessionInbox::Handlers handlers,
    std::chrono::milliseconds deadline) {
  // The call itself does not wait for a connection: started without one, it would fail at the first
  // refused attempt, although the daemon may listen before the deadline.
  if (!channel->channel()->WaitForConnected(std::chrono::system_clock::now() + deadline)) {
    return absl::UnavailableError("no larderd answers: start it, then Attach again");
  }
  const TimePoint until = SteadyNow() + deadline;
  auto owned = std::make_unique<Impl>(channel, std::move(handlers));
  Impl& impl = *owned;
  std::unique_ptr<SessionStream> opened(new GrpcSessionStream(std::move(owned)));
  wire::Up up;
  up.hello = std::move(hello);
  impl.stream = impl.stub->PrepareAsyncAttach(&impl.context, &impl.steps);
  impl.stream->StartCall(nullptr);  // corked: it completes with the first write, and has no tag
  (void)impl.Write(up);             // if it failed, the read returns the reason
  LARDER_RETURN_IF_ERROR(impl.inbox.WaitAttached(impl, until));
  return opened;
}

GrpcSessionStream::GrpcSessionStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcSessionStream::~GrpcSessionStream() {
  if (impl_->stream != nullptr) (void)Close(std::chrono::milliseconds(0));
  impl_->steps.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (impl_->steps.Next(&tag, &ok)) {
  }
}

const wire::Attached& GrpcSessionStream::attached() const { return impl_->inbox.attached(); }

absl::Status GrpcSessionStream::Send(wire::Up up) { return impl_->Write(up); }

void GrpcSessionStream::Cancel() { impl_->context.TryCancel(); }

uint64_t GrpcSessionStream::arrivals() const { return impl_->arrivals(); }

void GrpcSessionStream::Pump(uint64_t seen, TimePoint look_until, TimePoint deadline) {
  impl_->Pump(seen, std::min(look_until, deadline), deadline);
}

void GrpcSessionStream::Wake() { impl_->Wake(); }

bool GrpcSessionStream::Close(std::chrono::milliseconds deadline) {
  const TimePoint until = SteadyNow() + deadline;
  impl_->HalfClose();
  {
    MutexLock lock(impl_->pump_mu);
    impl_->ending = true;
  }
  if (!impl_->inbox.WaitEnd(*impl_, until)) {
    impl_->context.TryCancel();
    (void)impl_->inbox.WaitEnd(*impl_, TimePoint::max());  // a cancelled call ends by itself
  }
  return impl_->inbox.ended_in_peace();
}

}  // namespace larder
