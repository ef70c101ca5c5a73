// See event_loop.h.
#include "bench/restore_sim/event_loop.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

#include "storage/check.h"

namespace larder::bench {
namespace {

constexpr uint64_t kEventsMax = 200'000'000;
constexpr size_t kInFlight = 2;  // loads that a channel has at a time
constexpr uint32_t kAnyBudget = 1 << 30;

struct Event {
  enum class Kind : uint8_t { kArrival, kStepEnd, kLoadEnd, kWakeup };
  double at_s = 0;
  uint64_t order = 0;
  Kind kind = Kind::kArrival;
  size_t index = 0;      // arrival, stage or channel
  uint64_t version = 0;  // of the stage or channel; an event with an older one is obsolete
  friend bool operator>(const Event& a, const Event& b) {
    return a.at_s != b.at_s ? a.at_s > b.at_s : a.order > b.order;
  }
};

struct Stage {
  bool busy = false;
  uint64_t version = 0;
  ComputeStep step = {};
  bool dropped = false;
  double began_s = 0, busy_s = 0;
};

struct Channel {
  std::deque<Load> loads = {};
  uint64_t version = 0;
  double began_s = 0, busy_s = 0;
  double due_s = kNoDeadline;  // of the first load, as the scheduler said when it became the first
  uint64_t due_version = 0;
};

class Loop {
 public:
  Loop(const Machine& machine, const std::vector<Arrival>& arrivals, Scheduler& scheduler)
      : machine_(machine),
        arrivals_(arrivals),
        scheduler_(scheduler),
        stages_(machine.stages),
        channels_(machine.rates.size()) {}

  RunResult Go() {
    for (size_t i = 0; i < arrivals_.size(); ++i)
      Post(arrivals_[i].at_s, Event::Kind::kArrival, i, 0);
    while (!events_.empty() && result_.outcomes.size() < arrivals_.size()) {
      const Event event = events_.top();
      events_.pop();
      LARDER_CHECK(++handled_ < kEventsMax);
      now_s_ = event.at_s;
      if (Handle(event)) Ask();
    }
    LARDER_CHECK(result_.outcomes.size() == arrivals_.size());
    result_.end_s = now_s_;
    Idle();
    return std::move(result_);
  }

 private:
  void Post(double at_s, Event::Kind kind, size_t index, uint64_t version) {
    events_.push({at_s, ++order_, kind, index, version});
  }

  // Returns false if the event is obsolete.
  bool Handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kArrival: {
        const absl::Status added = scheduler_.Add(arrivals_[event.index].spec, now_s_);
        LARDER_CHECK(added.ok());
        return true;
      }
      case Event::Kind::kStepEnd:
        return EndStep(event);
      case Event::Kind::kLoadEnd:
        return EndLoad(event);
      case Event::Kind::kWakeup:
        if (event.version != wakeups_) return false;
        scheduler_.OnTime(now_s_);
        return true;
    }
    return false;
  }

  bool EndStep(const Event& event) {
    Stage& stage = stages_[event.index];
    if (event.version != stage.version) return false;
    stage.busy = false;
    stage.busy_s += now_s_ - stage.began_s;
    if (!stage.dropped) scheduler_.OnComputed(stage.step.id, now_s_);
    return true;
  }

  bool EndLoad(const Event& event) {
    Channel& channel = channels_[event.index];
    if (event.version != channel.version) return false;
    const Load load = channel.loads.front();
    channel.loads.pop_front();
    channel.busy_s += now_s_ - channel.began_s;
    Serve(event.index);
    const Fate fate = machine_.fate ? machine_.fate(load) : Fate::kLands;
    if (fate == Fate::kLands) {
      const Landing landing = scheduler_.OnLoaded(load.id, now_s_);
      if (machine_.placed && landing == Landing::kPlace) machine_.placed(load);
    } else {
      scheduler_.OnLoadFailed(
          load.id, fate == Fate::kGone ? LoadFailure::kGone : LoadFailure::kTransient, now_s_);
    }
    return true;
  }

  // Begins the channel's first load, if there is one.
  void Serve(size_t index) {
    Channel& channel = channels_[index];
    ++channel.version;
    channel.began_s = now_s_;
    if (channel.loads.empty()) return;
    const Load& load = channel.loads.front();
    if (machine_.fate && machine_.fate(load) == Fate::kStalls) return;  // until it is cancelled
    const double seconds = load.bytes / machine_.rates[index];
    const double end_s = machine_.channel_speeds.empty()
                             ? now_s_ + seconds
                             : machine_.channel_speeds[index].End(now_s_, seconds);
    Post(end_s, Event::Kind::kLoadEnd, index, channel.version);
  }

  // Takes each deadline once: it stays, even if the scheduler changes its mind later.
  void TakeDeadlines() {
    for (Channel& channel : channels_) {
      if (channel.loads.empty() || channel.due_version == channel.version) continue;
      channel.due_version = channel.version;
      channel.due_s = scheduler_.DeadlineOf(channel.loads.front().id);
    }
  }
  // The channel's first load never ends, and the scheduler has given up waiting for it.
  void GaveUp(const Channel& channel) {
    result_.stalled_s = std::max(result_.stalled_s, now_s_ - channel.due_s);
    result_.stalled_since_given_s =
        std::max(result_.stalled_since_given_s, now_s_ - channel.loads.front().deadline_s);
  }

  void Drop(LoadId id) {
    for (size_t i = 0; i < channels_.size(); ++i) {
      Channel& channel = channels_[i];
      const auto at = std::find_if(channel.loads.begin(), channel.loads.end(),
                                   [&](const Load& l) { return l.id == id; });
      if (at == channel.loads.end()) continue;
      const bool served = at == channel.loads.begin();
      if (served && machine_.fate && machine_.fate(*at) == Fate::kStalls) GaveUp(channel);
      channel.loads.erase(at);
      if (!served) return;
      channel.busy_s += now_s_ - channel.began_s;
      return Serve(i);
    }
  }

  // An engine drops a step at the end of the layer that it is computing.
  void Drop(StepId id) {
    for (size_t i = 0; i < stages_.size(); ++i) {
      Stage& stage = stages_[i];
      if (!stage.busy || stage.dropped || stage.step.id != id) continue;
      stage.dropped = true;
      const double layer_s = Seconds(stage.step) / stage.step.layers.count();
      const double done = machine_.compute_speed.Work(stage.began_s, now_s_);
      const double left_s = std::ceil(done / layer_s) * layer_s - done;
      Post(machine_.compute_speed.End(now_s_, left_s), Event::Kind::kStepEnd, i, ++stage.version);
    }
  }

  [[nodiscard]] double Seconds(const ComputeStep& step) const {
    return machine_.ComputeSeconds(step.tokens, step.layers.count());
  }

  void Follow() {
    for (const LoadId id : scheduler_.TakeCancelledLoads()) Drop(id);
    for (const StepId id : scheduler_.TakeAbandonedSteps()) Drop(id);
    for (Outcome& outcome : scheduler_.TakeOutcomes())
      result_.outcomes.push_back(std::move(outcome));
  }

  void Ask() {
    Follow();
    for (uint16_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].busy) continue;
      ++result_.decisions;
      const auto step = scheduler_.NextCompute(i, kAnyBudget, now_s_);
      if (!step.has_value()) continue;
      Stage& stage = stages_[i];
      stage = {true, stage.version + 1, *step, false, now_s_, stage.busy_s};
      Post(machine_.compute_speed.End(now_s_, Seconds(*step)), Event::Kind::kStepEnd, i,
           stage.version);
    }
    for (size_t i = 0; i < channels_.size(); ++i) {
      Channel& channel = channels_[i];
      while (channel.loads.size() < kInFlight) {
        ++result_.decisions;
        loads_.clear();
        scheduler_.NextLoads(static_cast<ChannelId>(i + 1), 1, now_s_, &loads_);
        if (loads_.empty()) break;
        const bool idle = channel.loads.empty();
        channel.loads.insert(channel.loads.end(), loads_.begin(), loads_.end());
        if (idle) Serve(i);
      }
    }
    Follow();
    TakeDeadlines();
    const double wakeup_s = scheduler_.NextWakeup(now_s_);
    if (std::isfinite(wakeup_s))
      Post(std::max(wakeup_s, now_s_), Event::Kind::kWakeup, 0, ++wakeups_);
  }

  void Idle() {
    for (const Stage& stage : stages_) {
      result_.compute_busy_s.push_back(stage.busy_s + (stage.busy ? now_s_ - stage.began_s : 0));
    }
    for (const Channel& channel : channels_) {
      result_.channel_busy_s.push_back(channel.busy_s +
                                       (channel.loads.empty() ? 0 : now_s_ - channel.began_s));
    }
  }

  const Machine& machine_;
  const std::vector<Arrival>& arrivals_;
  Scheduler& scheduler_;
  std::vector<Stage> stages_;
  std::vector<Channel> channels_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Load> loads_;
  RunResult result_;
  double now_s_ = 0;
  uint64_t order_ = 0, handled_ = 0, wakeups_ = 0;
};

}  // namespace

RunResult Run(const Machine& machine, const std::vector<Arrival>& arrivals, Scheduler& scheduler) {
  return Loop(machine, arrivals, scheduler).Go();
}

}  // namespace larder::bench
