#include "server/services/event_streams.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "proto/convert/convert.h"
#include "server/services/call_deadline.h"
#include "server/services/caller.h"
#include "server/services/refused_call.h"
#include "storage/clock.h"

namespace larder {
namespace {

// How long the thread may wait before it looks for events, while there are watchers.
constexpr Duration kPollEvery = std::chrono::milliseconds(10);
constexpr Duration kRetryAfterWatchers = std::chrono::seconds(10);
// After about this many events of tiers that a watcher does not watch, it gets a message with the
// number of the latest event.
constexpr uint64_t kUntold = 4096;

absl::Status Ending() {
  return absl::UnavailableError("larderd is stopping: watch again when it is back");
}

}  // namespace

// The thread of EventStreams sends the events and finishes the stream; gRPC's threads only set
// `writing_` and `cancelled_` and wake that thread.  Watch finishes a stream that begins after
// EndAll.
class EventStreams::Stream final : public Reactor {
 public:
  enum class Told { kNothing, kMore, kEnded };

  Stream(grpc::CallbackServerContext& context, EventFeed feed, EventStreams& streams,
         Shares::Ticket place)
      : context_(context), feed_(std::move(feed)), streams_(streams), place_(std::move(place)) {}

  // Sends the next events if the watcher can take more.  Returns kMore if there may be more to send
  // at once.  After kEnded the stream has finished and must not be used any more.
  [[nodiscard]] Told Tell() {
    if (cancelled_) return End(absl::CancelledError("the watcher has ended the call"));
    if (feed_.lost()) return CutOff();
    if (writing_ || !feed_.ready()) return Told::kNothing;
    absl::StatusOr<wire::WatchReply> reply = feed_.Next();
    if (!reply.ok()) return CutOff();
    // Events of tiers that the watcher does not watch are reported only by a number now and then,
    // so that the watcher can continue from there.
    if (reply->events.empty() && !reply->snapshot_end && reply->sequence < told_ + kUntold)
      return Told::kMore;
    told_ = reply->sequence;
    if (std::exchange(first_, false)) reply->boot_id = streams_.boot_id_;
    for (const wire::BlockEvent& event : reply->events)
      streams_.counters_.events_told += event.cleared ? 1 : event.digests.size();
    wire::Encode(*reply, &message_);
    writing_ = true;
    StartWrite(&message_);
    return Told::kNothing;
  }
  Told End(const absl::Status& status) {
    linger_.emplace(context_, CallDeadline::kLinger);
    Finish(ToRpcStatus(status));
    return Told::kEnded;
  }

  void OnWriteDone(bool ok) override {
    if (!ok) cancelled_ = true;  // never set back to false: OnCancel may run at the same time
    writing_ = false;
    streams_.Wake();
  }
  void OnCancel() override {
    cancelled_ = true;
    streams_.Wake();
  }
  void OnDone() override { delete this; }

 private:
  Told CutOff() {
    ++streams_.counters_.watchers_cut_off;
    return End(EventFeed::CutOff());
  }

  grpc::CallbackServerContext& context_;
  std::optional<CallDeadline> linger_;  // set by End
  EventFeed feed_;
  uint64_t told_ = 0;
  EventStreams& streams_;
  v1::WatchEventsReply message_;  // the message that is being written
  bool first_ = true;
  const Shares::Ticket place_;
  std::atomic<bool> writing_{false}, cancelled_{false};
};

EventStreams::EventStreams(BlockStore& store, DiskTier* disk, const DeviceTable& devices,
                           std::string boot_id, Counters& counters)
    : store_(store),
      disk_(disk),
      devices_(devices),
      boot_id_(std::move(boot_id)),
      counters_(counters),
      thread_([this] { Run(); }) {}

EventStreams::~EventStreams() {
  EndAll();
  thread_.join();
}

void EventStreams::EndAll() {
  MutexLock lock(mu_);
  stop_ = true;
  wake_.NotifyAll();
}

EventStreams::Reactor* EventStreams::Refuse(const absl::Status& why) {
  return new RefusedCall<Reactor>(why);
}

EventStreams::Reactor* EventStreams::Watch(grpc::CallbackServerContext& context,
                                           const Shares::Account& account,
                                           const wire::WatchQuery& query) {
  auto feed = EventFeed::Make(query, store_, disk_, &devices_, boot_id_);
  if (!feed.ok()) return Refuse(feed.status());
  Shares::Answer place = account.Take(ShareKind::kWatchers);
  if (!place.admitted()) {
    ++counters_.calls_overloaded;
    return Refuse(Overloaded(context, kRetryAfterWatchers, place.why));
  }
  auto* const stream = new Stream(context, *std::move(feed), *this, std::move(place.ticket));
  MutexLock lock(mu_);
  if (stop_) {
    (void)stream->End(Ending());
    return stream;
  }
  new_.push_back(stream);
  woken_ = true;
  wake_.NotifyOne();
  return stream;
}

void EventStreams::Wake() {
  MutexLock lock(mu_);
  woken_ = true;
  wake_.NotifyOne();
}

// The thread sleeps while there is no watcher.  Otherwise it polls, because an event does not wake
// it.
void EventStreams::Run() {
  pthread_setname_np(pthread_self(), "events");
  std::vector<Stream*> streams;
  for (bool more = false;;) {
    {
      MutexLock lock(mu_);
      const TimePoint until = SteadyNow() + kPollEvery;
      while (!stop_ && !woken_ && !more) {
        if (streams.empty()) {
          wake_.Wait(mu_);
        } else if (!wake_.WaitUntil(mu_, until)) {
          break;
        }
      }
      woken_ = false;
      streams.insert(streams.end(), new_.begin(), new_.end());
      new_.clear();
      if (stop_ && streams.empty()) return;
      if (stop_) {
        for (Stream* const stream : streams) (void)stream->End(Ending());
        return;
      }
    }
    more = TellAll(&streams);
  }
}

bool EventStreams::TellAll(std::vector<Stream*>* streams) {
  bool more = false;
  std::erase_if(*streams, [&](Stream* stream) {
    const Stream::Told told = stream->Tell();
    more = more || told == Stream::Told::kMore;
    return told == Stream::Told::kEnded;
  });
  return more;
}

}  // namespace larder
