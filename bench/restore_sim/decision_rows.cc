// Row 11: what one decision costs, with 64 requests of 512 blocks under way, and with one request,
// whose last few cells are searched for the best staircase.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/restore_sim/row.h"
#include "client/restore/scheduler.h"
#include "storage/check.h"

namespace larder::bench {
namespace {

constexpr uint32_t kRequests = 64, kBlocks = 512;

std::unique_ptr<Scheduler> MakeScheduler() {
  Profile profile{.layers = 32,
                  .compute = {1e-3, 1e-4, 3e-9},
                  .channels = {{"a", 1e9}, {"b", 2e9}, {"c", 3e9}}};
  SchedulerOptions options;
  options.engine = {.splits_layers = true, .abandons_steps = true};
  options.trace_capacity = 1024;
  return std::make_unique<Scheduler>(options, CostModel(profile), FinishFirst());
}

// Keeps `count` requests under way: a new one replaces each that ends.
class Requests {
 public:
  explicit Requests(uint32_t count) : count_(count) {}
  void Refill(Scheduler& scheduler, double now_s) {
    for (; scheduler.requests() < count_; ++next_) {
      RequestSpec spec{.id = RequestId{next_ + 1},
                       .tokens = kBlocks * 128,
                       .block_tokens = 128,
                       .chunk_tokens = 512};
      spec.stages = {
          {{0, 32}, {{std::vector(kBlocks, static_cast<ChannelId>(1 + next_ % 3)), 128 * 1e5}}}};
      LARDER_CHECK(scheduler.Add(spec, now_s).ok());
    }
    (void)scheduler.TakeCancelledLoads();
    (void)scheduler.TakeAbandonedSteps();
    (void)scheduler.TakeOutcomes();
  }

 private:
  const uint32_t count_;
  uint64_t next_ = 0;
};

struct Times {
  std::vector<double> computes = {}, loads = {}, reports = {};
  [[nodiscard]] std::vector<double> Decisions() const {
    std::vector<double> all = computes;
    all.insert(all.end(), loads.begin(), loads.end());
    return all;
  }
};

Times Time(uint32_t count, int rounds) {
  const std::unique_ptr<Scheduler> scheduler = MakeScheduler();
  Requests requests(count);
  Times times;
  std::vector<Load> given;
  double now_s = 1;
  const auto timed = [](std::vector<double>* of, const auto& work) {
    const double begin_s = SecondsNow();
    work();
    of->push_back(SecondsNow() - begin_s);
  };
  for (int i = 0; i < rounds; ++i, now_s += 1e-3) {
    requests.Refill(*scheduler, now_s);
    std::optional<ComputeStep> step;
    timed(&times.computes, [&] { step = scheduler->NextCompute(0, 512, now_s); });
    for (uint16_t channel = 1; channel <= 3; ++channel) {
      given.clear();
      timed(&times.loads, [&] { scheduler->NextLoads(ChannelId{channel}, 1, now_s, &given); });
      now_s += 1e-3;
      for (const Load& load : given)
        timed(&times.reports, [&] { (void)scheduler->OnLoaded(load.id, now_s); });
    }
    if (step.has_value()) timed(&times.reports, [&] { scheduler->OnComputed(step->id, now_s); });
  }
  return times;
}

void Decisions(Reporter& report) {
  const int rounds = report.quick() ? 5'000 : 50'000;
  const Times times = Time(kRequests, rounds);
  const std::vector<double> all = times.Decisions();
  report.Bar("restore_decision_us", Median(all) * 1e6, Sense::kAtMost, 2, "us");
  const auto both = [](const std::vector<double>& some) {
    return absl::StrFormat("%.2f us, p99 %.2f", Median(some) * 1e6, Quantile(some, 0.99) * 1e6);
  };
  report.Note(absl::StrFormat("%d decisions; NextCompute %s; NextLoads %s; a report %s", all.size(),
                              both(times.computes), both(times.loads), both(times.reports)));
  const std::vector<double> lone = Time(1, rounds).Decisions();
  report.Show("restore_decision_lone_p999_us", Quantile(lone, 0.999) * 1e6, "us");
  report.Note(absl::StrFormat("%d decisions; %s; worst %.2f", lone.size(), both(lone),
                              *std::max_element(lone.begin(), lone.end()) * 1e6));
}

}  // namespace

std::vector<Row> DecisionRows() {
  return {{"11", {"restore_decision_us", "restore_decision_lone_p999_us"}, Decisions}};
}

}  // namespace larder::bench
