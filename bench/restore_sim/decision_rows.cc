// Row 11: what one decision costs, with 64 requests of 512 blocks under way.
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

// As many requests as there should be; whoever is through has a successor.
class Requests {
 public:
  void Refill(Scheduler& scheduler, double now_s) {
    for (; scheduler.requests() < kRequests; ++next_) {
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
  uint64_t next_ = 0;
};

void Decisions(Reporter& report) {
  const std::unique_ptr<Scheduler> scheduler = MakeScheduler();
  Requests requests;
  std::vector<double> computes, loads, reports;
  std::vector<Load> given;
  double now_s = 1;
  const auto timed = [](std::vector<double>* times, const auto& work) {
    const double begin_s = SecondsNow();
    work();
    times->push_back(SecondsNow() - begin_s);
  };
  const int rounds = report.quick() ? 5'000 : 50'000;
  for (int i = 0; i < rounds; ++i, now_s += 1e-3) {
    requests.Refill(*scheduler, now_s);
    std::optional<ComputeStep> step;
    timed(&computes, [&] { step = scheduler->NextCompute(0, 512, now_s); });
    for (uint16_t channel = 1; channel <= 3; ++channel) {
      given.clear();
      timed(&loads, [&] { scheduler->NextLoads(ChannelId{channel}, 1, now_s, &given); });
      now_s += 1e-3;
      for (const Load& load : given)
        timed(&reports, [&] { (void)scheduler->OnLoaded(load.id, now_s); });
    }
    if (step.has_value()) timed(&reports, [&] { scheduler->OnComputed(step->id, now_s); });
  }
  std::vector<double> all = computes;
  all.insert(all.end(), loads.begin(), loads.end());
  report.Bar("restore_decision_us", Median(all) * 1e6, Sense::kAtMost, 2, "us");
  const auto both = [](const std::vector<double>& times) {
    return absl::StrFormat("%.2f us, p99 %.2f", Median(times) * 1e6, Quantile(times, 0.99) * 1e6);
  };
  report.Note(absl::StrFormat("%d decisions; NextCompute %s; NextLoads %s; a report %s", all.size(),
                              both(computes), both(loads), both(reports)));
}

}  // namespace

std::vector<Row> DecisionRows() { return {{"11", {"restore_decision_us"}, Decisions}}; }

}  // namespace larder::bench
