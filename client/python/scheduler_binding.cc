// Binds requests and the scheduler: client/restore/{request/request,scheduler,policy,trace}.h.
#include "client/python/binding.h"
#include "client/restore/scheduler.h"

namespace larder::python {
namespace {

std::unique_ptr<Policy> PolicyOf(const std::string& name) {
  if (name == "finish_first") return FinishFirst();
  if (name == "algorithm_one") return AlgorithmOne();
  if (name == "oldest_first") return OldestFirst();
  if (name == "take_turns") return TakeTurns();
  Raise(absl::InvalidArgumentError(
      "no such policy; give finish_first, algorithm_one, oldest_first or take_turns"));
}

void BindStages(nb::module_& module) {
  nb::class_<EngineTraits>(module, "EngineTraits", "What the engine can do.")
      .def(
          "__init__",
          [](EngineTraits* self, bool splits_layers, bool abandons_steps, bool hands_over,
             bool overlaps_suffix) {
            new (self) EngineTraits{splits_layers, abandons_steps, hands_over, overlaps_suffix};
          },
          nb::kw_only(), "splits_layers"_a = false, "abandons_steps"_a = false,
          "hands_over"_a = false, "overlaps_suffix"_a = false)
      .def_ro("splits_layers", &EngineTraits::splits_layers)
      .def_ro("abandons_steps", &EngineTraits::abandons_steps)
      .def_ro("hands_over", &EngineTraits::hands_over)
      .def_ro("overlaps_suffix", &EngineTraits::overlaps_suffix);
  nb::class_<Copy>(module, "Copy",
                   "Where the blocks of one rank of one stage are.  channel_of_block has a channel "
                   "per block; 0 is a hole.  block_bytes are the bytes of all layers of the stage.")
      .def(
          "__init__",
          [](Copy* self, std::vector<ChannelId> channel_of_block, double block_bytes) {
            new (self) Copy{std::move(channel_of_block), block_bytes};
          },
          "channel_of_block"_a, "block_bytes"_a)
      .def_ro("channel_of_block", &Copy::channel_of_block)
      .def_ro("block_bytes", &Copy::block_bytes);
  nb::class_<StageSpec>(
      module, "StageSpec",
      "The layers of the stage, counted in the model, a Copy per rank, and where the activations "
      "are that computing starts from (None if it needs none).")
      .def(
          "__init__",
          [](StageSpec* self, StageLayers layers, std::vector<Copy> ranks,
             std::optional<Copy> boundary) {
            new (self) StageSpec{layers, std::move(ranks), std::move(boundary).value_or(Copy())};
          },
          "layers"_a, "ranks"_a, "boundary"_a = nb::none())
      .def_ro("layers", &StageSpec::layers)
      .def_ro("ranks", &StageSpec::ranks);
}

void BindAnswers(nb::module_& module) {
  nb::enum_<StepKind>(module, "StepKind")
      .value("RESTORE", StepKind::kRestore)
      .value("SUFFIX", StepKind::kSuffix);
  nb::enum_<LoadFailure>(module, "LoadFailure")
      .value("GONE", LoadFailure::kGone, "The block is missing or damaged, and a hole from now on.")
      .value("TRANSIENT", LoadFailure::kTransient, "The load may be tried again.");
  nb::enum_<Landing>(module, "Landing")
      .value("PLACE", Landing::kPlace)
      .value("DROP", Landing::kDrop,
             "The bytes are not needed: they were computed meanwhile, or the load was cancelled, "
             "or its request has ended.");
  nb::class_<ComputeStep>(module, "ComputeStep",
                          "Work that one stage computes in one go.  layers count within the stage.")
      .def_ro("id", &ComputeStep::id)
      .def_ro("request", &ComputeStep::request)
      .def_ro("stage", &ComputeStep::stage)
      .def_ro("kind", &ComputeStep::kind)
      .def_ro("tokens", &ComputeStep::tokens)
      .def_ro("layers", &ComputeStep::layers)
      .def_ro("hedge", &ComputeStep::hedge)
      .def_ro("began_s", &ComputeStep::began_s)
      .def_ro("estimate_s", &ComputeStep::estimate_s);
  nb::class_<Load>(
      module, "Load",
      "Layers of a block to load, or if boundary is true the activations of a chunk from this "
      "block on.")
      .def_ro("id", &Load::id)
      .def_ro("request", &Load::request)
      .def_ro("stage", &Load::stage)
      .def_ro("rank", &Load::rank)
      .def_ro("channel", &Load::channel)
      .def_ro("boundary", &Load::boundary)
      .def_ro("hedge", &Load::hedge)
      .def_ro("block", &Load::block)
      .def_ro("layers", &Load::layers)
      .def_ro("bytes", &Load::bytes)
      .def_ro("began_s", &Load::began_s)
      .def_ro("deadline_s", &Load::deadline_s);
  nb::class_<Outcome>(module, "Outcome",
                      "What became of a request.  stages has the depths per block of each stage: "
                      "the engine computed layers [0, depth), the rest was loaded.")
      .def_ro("request", &Outcome::request)
      .def_ro("arrived_s", &Outcome::arrived_s)
      .def_ro("restored_s", &Outcome::restored_s)
      .def_ro("first_token_s", &Outcome::first_token_s)
      .def_prop_ro("stages",
                   [](const Outcome& self) {
                     std::vector<std::vector<uint16_t>> depths;
                     for (const StageOutcome& stage : self.stages) depths.push_back(stage.depths);
                     return depths;
                   })
      .def_ro("bytes_loaded", &Outcome::bytes_loaded)
      .def_ro("bytes_dropped", &Outcome::bytes_dropped)
      .def_ro("tokens_recomputed", &Outcome::tokens_recomputed)
      .def_ro("cancelled", &Outcome::cancelled)
      .def_ro("lost", &Outcome::lost);
}

void BindTrace(nb::module_& module) {
  nb::class_<Decision>(module, "Decision", "One record of the trace.")
      .def_ro("now_s", &Decision::now_s)
      .def_prop_ro("kind", [](const Decision& self) { return std::string(ToString(self.kind)); })
      .def_ro("request", &Decision::request)
      .def_ro("stage", &Decision::stage)
      .def_ro("rank", &Decision::rank)
      .def_ro("channel", &Decision::channel)
      .def_ro("tokens", &Decision::tokens)
      .def_ro("layers", &Decision::layers)
      .def_ro("chosen_s", &Decision::chosen_s)
      .def_ro("other_s", &Decision::other_s)
      .def("__str__", [](const Decision& self) {
        const auto range = [](unsigned begin, unsigned end) {
          return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
        };
        return std::to_string(self.now_s) + " " + ToString(self.kind) + " request " +
               std::to_string(self.request.value) + " stage " + std::to_string(self.stage) +
               " tokens " + range(self.tokens.begin, self.tokens.end) + " layers " +
               range(self.layers.begin, self.layers.end);
      });
}

void BindOptions(nb::module_& module) {
  using Options = SchedulerOptions;
  nb::class_<Options>(module, "SchedulerOptions", "See scheduler.h.  Times are in seconds.")
      .def(
          "__init__",
          [](Options* self, EngineTraits engine, bool computes, bool loads, bool falls_back,
             bool hedges, double patience, double patience_s_min, double finest,
             size_t trace_capacity) {
            new (self) Options{engine,   computes,       loads,  falls_back,    hedges,
                               patience, patience_s_min, finest, trace_capacity};
          },
          nb::kw_only(), "engine"_a = EngineTraits(), "computes"_a = true, "loads"_a = true,
          "falls_back"_a = true, "hedges"_a = true, "patience"_a = Options().patience,
          "patience_s_min"_a = Options().patience_s_min, "finest"_a = Options().finest,
          "trace_capacity"_a = 0)
      .def_ro("engine", &Options::engine)
      .def_ro("trace_capacity", &Options::trace_capacity);
}

std::vector<Load> NextLoads(Scheduler& self, ChannelId channel, double room_bytes, double now_s) {
  std::vector<Load> loads;
  self.NextLoads(channel, room_bytes, now_s, &loads);
  return loads;
}

std::vector<Decision> TraceOf(const Scheduler& self) {
  std::vector<Decision> decisions;
  self.trace().ForEach([&](const Decision& decision) { decisions.push_back(decision); });
  return decisions;
}

}  // namespace

void BindRequests(nb::module_& module) {
  BindStages(module);
  nb::class_<RequestSpec>(
      module, "RequestSpec",
      "A restore.  tokens is the number of tokens of the prefix, which is whole blocks.  No load "
      "begins that would end after deadline_s.  depths has a depth per chunk, none larger than the "
      "one before; if it is empty, the scheduler chooses.  cut_tokens: where part of a chunk is "
      "loaded, a step may also begin and end within the chunk, at multiples of this; a budget "
      "below it may compute nothing; 0 means that steps are whole chunks.  "
      "have_tokens: tokens that the engine has already, from the beginning; whole blocks.")
      .def(
          "__init__",
          [](RequestSpec* self, RequestId id, uint32_t tokens, uint32_t block_tokens,
             uint32_t chunk_tokens, std::vector<StageSpec> stages, uint32_t suffix_tokens,
             double deadline_s, std::vector<uint16_t> depths, uint32_t cut_tokens,
             uint32_t have_tokens) {
            new (self) RequestSpec{
                id,          tokens,        block_tokens, chunk_tokens,      cut_tokens,
                have_tokens, suffix_tokens, deadline_s,   std::move(stages), std::move(depths)};
          },
          nb::kw_only(), "id"_a, "tokens"_a, "block_tokens"_a, "chunk_tokens"_a, "stages"_a,
          "suffix_tokens"_a = 0, "deadline_s"_a = kNoDeadline, "depths"_a = std::vector<uint16_t>(),
          "cut_tokens"_a = 0, "have_tokens"_a = 0)
      .def_ro("id", &RequestSpec::id)
      .def_ro("tokens", &RequestSpec::tokens)
      .def_ro("block_tokens", &RequestSpec::block_tokens)
      .def_ro("chunk_tokens", &RequestSpec::chunk_tokens)
      .def_ro("cut_tokens", &RequestSpec::cut_tokens)
      .def_ro("have_tokens", &RequestSpec::have_tokens)
      .def_ro("suffix_tokens", &RequestSpec::suffix_tokens)
      .def_ro("stages", &RequestSpec::stages)
      .def_ro("depths", &RequestSpec::depths);
  BindAnswers(module);
  BindTrace(module);
  BindOptions(module);
}

void BindScheduler(nb::module_& module) {
  nb::class_<Scheduler>(
      module, "Scheduler",
      "Decides what an engine computes and what its channels load; scheduler.h is its contract.  "
      "Times are seconds on any clock that never goes back.  Calls take microseconds and hold the "
      "GIL.  Several threads need a lock of their own around calls that belong together.")
      .def(
          "__init__",
          [](Scheduler* self, const SchedulerOptions& options, CostModel costs,
             const std::string& policy) {
            new (self) Scheduler(options, std::move(costs), PolicyOf(policy));
          },
          "options"_a, "costs"_a, "policy"_a = "finish_first",
          "policy is finish_first, algorithm_one, oldest_first or take_turns.")
      .def(
          "add",
          [](Scheduler& self, RequestSpec spec, double now_s) {
            OrRaise(self.Add(std::move(spec), now_s));
          },
          "spec"_a, "now_s"_a,
          "Raises ValueError with what is wrong, or RuntimeError if a request with this id or "
          "4,096 requests are under way.")
      .def("cancel", &Scheduler::Cancel, "request"_a, "now_s"_a)
      .def("next_compute", &Scheduler::NextCompute, "stage"_a, "token_budget"_a, "now_s"_a,
           "Returns what an idle stage computes next, or None if no step would help now.")
      .def("on_computed", &Scheduler::OnComputed, "step"_a, "now_s"_a, "took_s"_a = nb::none())
      .def("next_loads", &NextLoads, "channel"_a, "room_bytes"_a, "now_s"_a,
           "Returns loads to begin in this order: at least one, if there is any and room_bytes is "
           "above 0, and more while they fit into room_bytes.")
      .def("on_loaded", &Scheduler::OnLoaded, "load"_a, "now_s"_a)
      .def("on_load_failed", &Scheduler::OnLoadFailed, "load"_a, "why"_a, "now_s"_a)
      .def("on_rate_change", &Scheduler::OnRateChange, "channel"_a, "bytes_per_s"_a)
      .def("on_time", &Scheduler::OnTime, "now_s"_a)
      .def("next_wakeup", &Scheduler::NextWakeup, "now_s"_a)
      .def("next_deadline", &Scheduler::NextDeadline)
      .def("take_cancelled_loads", &Scheduler::TakeCancelledLoads)
      .def("take_abandoned_steps", &Scheduler::TakeAbandonedSteps)
      .def("take_outcomes", &Scheduler::TakeOutcomes)
      .def("token_budget", &Scheduler::TokenBudget, "step_s"_a, "decode_tokens"_a, "position"_a,
           "granule"_a)
      .def_prop_ro("costs", [](const Scheduler& self) { return self.costs(); })
      .def_prop_ro("requests", &Scheduler::requests, "The number of requests under way.")
      .def("trace", &TraceOf, "Returns the last decisions, the oldest first.");
}

}  // namespace larder::python
