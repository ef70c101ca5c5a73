// Row 12: a restore beside a burst of other users' requests, in the setting of Cake's Figure 6.
//
// An A100, LongAlpaca-7B, steps of 512 tokens: a stored prefix of 16k comes first, then, while it
// is restored, 22 requests of 32 to 448 tokens in spikes; each decodes 16 tokens.  Default, as vLLM
// did at that time: in order of arrival, the restore to its end, then whole prompts, as many as fit
// into a step, and steps that decode when no prompt waits.  Packed: the same order, but every step
// is filled.  Adaptive: decoding, then prefill, and the restore in what is left of each step, which
// lasts no longer than the decoding users were promised.
#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "bench/restore_sim/published_cake.h"
#include "bench/restore_sim/regimes.h"
#include "bench/restore_sim/row.h"
#include "storage/check.h"

namespace larder::bench {
namespace {

constexpr uint32_t kPrefixTokens = 16'384, kStep = 512, kBlock = 128, kDecoded = 16;
constexpr size_t kOthers = 22, kSpikes = 5, kInFlight = 2;
// From Table 2, as Figure 6 names none: the bar is at the SSD's.
constexpr double kGbps[] = {32, 56, 100};
constexpr double kBarGbps = 56;
constexpr RequestId kRestore{1};

enum class Order { kDefault, kPacked, kAdaptive };

struct Setting {
  Machine machine = {};
  RequestSpec restore = {};
  double decode_step_s = 0;  // promised to users that decode
  double alone_s = 0;        // of the undisturbed restore; the others arrive meanwhile
};

// A step of an engine costs its weights' bytes once, and each token its operations and its
// attention.
Setting Figure6(const CakeFit& fit, double gbps) {
  const ModelShape& shape = ShapeOf("7B");
  const Hardware& card = fit.hardware.at("A100");
  Setting setting;
  Machine& machine = setting.machine;
  machine.layers = static_cast<uint16_t>(shape.layers);
  machine.compute.fixed_s = shape.parameters * shape.bytes_per_parameter / card.bytes_per_s;
  machine.compute.linear_s = 2 * shape.parameters / card.flops_per_s;
  machine.compute.quadratic_s = 4 * shape.layers * shape.hidden / card.flops_per_s +
                                shape.kv_bytes_per_token / card.bytes_per_s / kStep;
  machine.rates = {gbps * 1e9 / 8};
  setting.restore = {
      .id = kRestore, .tokens = kPrefixTokens, .block_tokens = kBlock, .chunk_tokens = kStep};
  setting.restore.stages = {
      {{0, machine.layers},
       {{std::vector(kPrefixTokens / kBlock, ChannelId{1}), kBlock * shape.kv_bytes_per_token}}}};
  // The promise is the length of a full step in the middle of the prefix.
  setting.decode_step_s = machine.compute.Seconds({kPrefixTokens / 2, kPrefixTokens / 2 + kStep});
  return setting;
}

std::vector<Arrival> DrawOthers(const Setting& setting, std::mt19937_64& random) {
  std::uniform_real_distribution<double> at(0, setting.alone_s);
  std::vector<double> spikes;
  for (size_t i = 0; i < kSpikes; ++i) spikes.push_back(at(random));
  std::vector<Arrival> others;
  for (size_t i = 0; i < kOthers; ++i) {
    RequestSpec spec = setting.restore;
    spec.id = RequestId{kRestore.value + 1 + i};
    spec.tokens = 0;
    spec.suffix_tokens = std::uniform_int_distribution<uint32_t>(32, 448)(random);
    spec.stages[0].ranks[0].channel_of_block.clear();
    others.push_back({spikes[random() % kSpikes], spec});
  }
  std::sort(others.begin(), others.end(),
            [](const Arrival& a, const Arrival& b) { return a.at_s < b.at_s; });
  return others;
}

struct BurstResult {
  double end_s = 0, restored_s = 0;
  std::vector<double> first_token_s = {};   // of the other requests, from their arrival
  std::vector<double> decode_steps_s = {};  // the steps in which a user decodes
};

// One engine that computes step by step, one link, and users that decode after their prefill.
class Burst {
 public:
  Burst(const Setting& setting, const std::vector<Arrival>& others, const Profile& profile,
        Order order)
      : setting_(setting),
        others_(others.begin(), others.end()),
        order_(order),
        scheduler_({}, CostModel(profile), FinishFirst()) {}

  BurstResult Run() {
    LARDER_CHECK(scheduler_.Add(setting_.restore, 0).ok());
    while (true) {
      Arrive();
      Ask();
      // A request that has already arrived waits for the end of the step.
      const double come_s = ArrivalAt() > now_s_ ? ArrivalAt() : kNoDeadline;
      const double next_s = std::min({step_end_s_, load_end_s_, come_s});
      if (next_s == kNoDeadline) break;
      now_s_ = next_s;
      if (now_s_ == step_end_s_) EndStep();
      if (now_s_ == load_end_s_) EndLoad();
      Follow();
    }
    LARDER_CHECK(scheduler_.requests() == 0);
    result_.end_s = now_s_;
    return std::move(result_);
  }

 private:
  struct User {
    RequestId id;
    uint32_t position = 0, left = kDecoded;
  };

  [[nodiscard]] bool Admits() const { return order_ == Order::kAdaptive || restored_; }
  [[nodiscard]] double ArrivalAt() const {
    return others_.empty() || !Admits() ? kNoDeadline : std::max(others_.front().at_s, now_s_);
  }
  // By default, a step takes only whole prompts.
  void Arrive() {
    uint32_t room = kStep;
    if (order_ == Order::kDefault && step_end_s_ != kNoDeadline) return;
    for (; !others_.empty() && Admits() && others_.front().at_s <= now_s_; others_.pop_front()) {
      const Arrival& arrival = others_.front();
      if (order_ == Order::kDefault && arrival.spec.suffix_tokens > room) return;
      room -= std::min(room, arrival.spec.suffix_tokens);
      LARDER_CHECK(scheduler_.Add(arrival.spec, now_s_).ok());
      arrived_.push_back(arrival);
    }
  }

  void Ask() {
    if (step_end_s_ == kNoDeadline) BeginStep();
    while (loads_.size() < kInFlight) {
      std::vector<Load> given;
      scheduler_.NextLoads(ChannelId{1}, 1, now_s_, &given);
      if (given.empty()) break;
      loads_.insert(loads_.end(), given.begin(), given.end());
    }
    Follow();
    Serve();
  }

  void BeginStep() {
    StepRoom room{.tokens = kStep, .decode_tokens = static_cast<uint32_t>(users_.size())};
    if (order_ == Order::kAdaptive && !users_.empty()) room.seconds = setting_.decode_step_s;
    steps_ = scheduler_.NextStep(0, room, now_s_);
    if (steps_.empty() && users_.empty()) return;
    const bool alone = order_ == Order::kDefault && !steps_.empty();  // the step does not decode
    decoding_ = alone ? 0 : room.decode_tokens;
    const ComputeCost& cost = setting_.machine.compute;
    step_s_ = cost.fixed_s;
    for (const ComputeStep& step : steps_) step_s_ += cost.Seconds(step.tokens) - cost.fixed_s;
    for (size_t i = 0; i < decoding_; ++i) {
      User& user = users_[i];
      step_s_ += cost.Seconds({user.position, user.position + 1}) - cost.fixed_s;
      ++user.position;
    }
    step_end_s_ = now_s_ + step_s_;
  }

  void EndStep() {
    step_end_s_ = kNoDeadline;
    if (decoding_ > 0) result_.decode_steps_s.push_back(step_s_);
    for (size_t i = 0; i < decoding_; ++i) --users_[i].left;
    std::erase_if(users_, [](const User& user) { return user.left == 0; });
    scheduler_.OnStepComputed(steps_, decoding_, now_s_, step_s_);
  }

  void Serve() {
    if (load_end_s_ != kNoDeadline || loads_.empty()) return;
    load_end_s_ = now_s_ + loads_.front().bytes / setting_.machine.rates[0];
  }
  void EndLoad() {
    const LoadId id = loads_.front().id;
    loads_.pop_front();
    load_end_s_ = kNoDeadline;
    (void)scheduler_.OnLoaded(id, now_s_);
  }

  void Follow() {
    for (const LoadId id : scheduler_.TakeCancelledLoads()) {
      if (loads_.empty()) continue;
      if (loads_.front().id == id) load_end_s_ = kNoDeadline;
      std::erase_if(loads_, [&](const Load& load) { return load.id == id; });
    }
    for (const Outcome& outcome : scheduler_.TakeOutcomes()) {
      if (outcome.request == kRestore) {
        restored_ = true;
        result_.restored_s = now_s_;
        users_.push_back({outcome.request, kPrefixTokens});
        continue;
      }
      const auto mine = [&](const Arrival& one) { return one.spec.id == outcome.request; };
      const Arrival& arrival = *std::find_if(arrived_.begin(), arrived_.end(), mine);
      result_.first_token_s.push_back(now_s_ - arrival.at_s);
      users_.push_back({outcome.request, arrival.spec.suffix_tokens});
    }
  }

  const Setting& setting_;
  std::deque<Arrival> others_;
  std::vector<Arrival> arrived_;
  const Order order_;
  Scheduler scheduler_;
  std::vector<User> users_;  // decode; the step under way has the first `decoding_` of them
  std::vector<ComputeStep> steps_;
  std::deque<Load> loads_;
  uint32_t decoding_ = 0;
  double now_s_ = 0, step_s_ = 0, step_end_s_ = kNoDeadline, load_end_s_ = kNoDeadline;
  bool restored_ = false;
  BurstResult result_;
};

double RestoreAlone(const Setting& setting) {
  std::mt19937_64 random(0);
  const Profile profile = WrongProfile(setting.machine, 0, random);
  return Burst(setting, {}, profile, Order::kDefault).Run().restored_s;
}

// Of many bursts; arrays have one value per order.
struct Sums {
  double end_s[3] = {}, first_token_s[3] = {}, least_gain = kNoDeadline;
  size_t steps = 0, beyond = 0;  // steps of the adaptive order that decode
};

Sums RunBursts(const Setting& setting, uint64_t first_seed, uint64_t bursts) {
  Sums sums;
  for (uint64_t seed = first_seed; seed < first_seed + bursts; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<Arrival> others = DrawOthers(setting, random);
    const Profile profile = WrongProfile(setting.machine, 0.3, random);
    double end_s[3] = {};
    for (const Order order : {Order::kDefault, Order::kPacked, Order::kAdaptive}) {
      const BurstResult result = Burst(setting, others, profile, order).Run();
      const auto at = static_cast<size_t>(order);
      const auto& first = result.first_token_s;
      end_s[at] = result.end_s;
      sums.end_s[at] += result.end_s / static_cast<double>(bursts);
      sums.first_token_s[at] +=
          std::accumulate(first.begin(), first.end(), 0.0) / static_cast<double>(bursts * kOthers);
      if (order != Order::kAdaptive) continue;
      sums.steps += result.decode_steps_s.size();
      for (const double step_s : result.decode_steps_s)
        sums.beyond += step_s > setting.decode_step_s * (1 + 1e-9);
    }
    sums.least_gain = std::min(sums.least_gain, end_s[0] / end_s[2]);
  }
  return sums;
}

// `part` is a part of the figures' names.
void ReportBursts(Reporter& report, const std::string& part, uint64_t first_seed) {
  const uint64_t bursts = report.quick() ? 40 : 400;
  const CakeFit fit = FitCake();
  size_t steps = 0, beyond = 0;
  for (const double gbps : kGbps) {
    Setting setting = Figure6(fit, gbps);
    setting.alone_s = RestoreAlone(setting);
    const Sums sums = RunBursts(setting, first_seed, bursts);
    const double gain = sums.end_s[0] / sums.end_s[2];
    if (gbps == kBarGbps)
      report.Bar("restore_adaptive_" + part + "throughput", gain, Sense::kAtLeast, 1.2);
    report.Note(absl::StrFormat(
        "%.0f Gbps: %.3f; all done in %.3f s, in default order %.3f s, with filled steps %.3f "
        "s, the restore alone %.3f s; least of %d bursts %.3f; others' first token after %.3f s, "
        "default %.3f s; steps that decode are promised %.1f ms",
        gbps, gain, sums.end_s[2], sums.end_s[0], sums.end_s[1], setting.alone_s, bursts,
        sums.least_gain, sums.first_token_s[2], sums.first_token_s[0],
        setting.decode_step_s * 1e3));
    steps += sums.steps;
    beyond += sums.beyond;
  }
  report.Bar("restore_adaptive_" + part + "steps_beyond_budget", static_cast<double>(beyond),
             Sense::kAtMost, 0, "steps");
  report.Note(absl::StrFormat("of %d that decode; profile wrong by up to 30 %%", steps));
}

void AdaptiveScheduling(Reporter& report) {
  ReportBursts(report, "", 0);
  ReportBursts(report, "held_out_", report.seed_base());
}

}  // namespace

std::vector<Row> AdaptiveRows() {
  return {
      {"12",
       {"restore_adaptive_throughput", "restore_adaptive_steps_beyond_budget",
        "restore_adaptive_held_out_throughput", "restore_adaptive_held_out_steps_beyond_budget"},
       AdaptiveScheduling}};
}

}  // namespace larder::bench
