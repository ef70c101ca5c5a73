// Binds costs, profiles and plans:
// client/restore/{costs/cost_model,costs/profile,plan,staircase}.h.
#include "client/python/binding.h"
#include "client/restore/costs/profile.h"
#include "client/restore/plan.h"
#include "client/restore/staircase.h"

namespace larder::python {
namespace {

void BindRanges(nb::module_& module) {
  nb::class_<TokenRange>(module, "TokenRange", "Token positions [begin, end).")
      .def(nb::init<uint32_t, uint32_t>(), "begin"_a, "end"_a)
      .def_ro("begin", &TokenRange::begin)
      .def_ro("end", &TokenRange::end)
      .def("__len__", [](TokenRange range) { return range.end - range.begin; });
  nb::class_<StageLayers>(module, "StageLayers", "Layers [begin, end).")
      .def(nb::init<uint16_t, uint16_t>(), "begin"_a, "end"_a)
      .def_ro("begin", &StageLayers::begin)
      .def_ro("end", &StageLayers::end)
      .def("__len__", &StageLayers::count);
}

void BindProfile(nb::module_& module) {
  nb::class_<ComputeCost>(
      module, "ComputeCost",
      "Computing tokens [a, b) through all layers takes fixed_s + linear_s * (b - a) + "
      "quadratic_s * (b**2 - a**2) / 2 seconds.")
      .def(
          "__init__",
          [](ComputeCost* self, double fixed_s, double linear_s, double quadratic_s) {
            new (self) ComputeCost{fixed_s, linear_s, quadratic_s};
          },
          "fixed_s"_a = 0.0, "linear_s"_a = 0.0, "quadratic_s"_a = 0.0)
      .def_ro("fixed_s", &ComputeCost::fixed_s)
      .def_ro("linear_s", &ComputeCost::linear_s)
      .def_ro("quadratic_s", &ComputeCost::quadratic_s);
  nb::class_<ChannelCost>(module, "ChannelCost", "A channel and its rate, bytes per second.")
      .def(
          "__init__",
          [](ChannelCost* self, std::string name, double bytes_per_s) {
            new (self) ChannelCost{std::move(name), bytes_per_s};
          },
          "name"_a, "bytes_per_s"_a)
      .def_ro("name", &ChannelCost::name)
      .def_ro("bytes_per_s", &ChannelCost::bytes_per_s);
  nb::class_<Profile>(
      module, "Profile",
      "What a measurement found for a machine and a model.  Channels are numbered 1, 2, ... in "
      "this order; 0 is nowhere.  layer_shares are each layer's share of a step's time, with sum "
      "1; if empty, all layers have the same.  doubt is a relative standard deviation.")
      .def(
          "__init__",
          [](Profile* self, std::string model, uint16_t layers, ComputeCost compute,
             std::vector<ChannelCost> channels, std::vector<double> layer_shares,
             uint32_t crossover_tokens, double doubt) {
            new (self)
                Profile{std::move(model),    layers,           compute, std::move(layer_shares),
                        std::move(channels), crossover_tokens, doubt};
          },
          nb::kw_only(), "model"_a = "", "layers"_a, "compute"_a, "channels"_a,
          "layer_shares"_a = std::vector<double>(), "crossover_tokens"_a = 0,
          "doubt"_a = Profile().doubt)
      .def_ro("model", &Profile::model)
      .def_ro("layers", &Profile::layers)
      .def_ro("compute", &Profile::compute)
      .def_ro("channels", &Profile::channels)
      .def_ro("layer_shares", &Profile::layer_shares)
      .def_ro("crossover_tokens", &Profile::crossover_tokens)
      .def_ro("doubt", &Profile::doubt);
  module.def(
      "read_profile", [](const std::string& path) { return OrRaise(ReadProfile(path)); }, "path"_a,
      "Reads a profile from its file (TOML).  Raises LookupError if there is no such file, and "
      "ValueError with file, line and what to do if it is malformed.");
  module.def(
      "write_profile",
      [](const Profile& profile, const std::string& path) { OrRaise(WriteProfile(profile, path)); },
      "profile"_a, "path"_a,
      "Writes a profile to a file.  An existing file is replaced as a whole or not at all.");
}

}  // namespace

void BindCosts(nb::module_& module) {
  BindRanges(module);
  BindProfile(module);
  nb::class_<CostModel>(
      module, "CostModel",
      "Predicts the seconds of computing and loading, at first from a profile, later from what it "
      "observes.  Not thread-safe.")
      .def(nb::init<Profile>(), "profile"_a)
      .def("compute_seconds", nb::overload_cast<TokenRange>(&CostModel::ComputeSeconds, nb::const_),
           "tokens"_a)
      .def("compute_seconds",
           nb::overload_cast<TokenRange, StageLayers>(&CostModel::ComputeSeconds, nb::const_),
           "tokens"_a, "layers"_a)
      .def("load_seconds", &CostModel::LoadSeconds, "channel"_a, "bytes"_a)
      .def("observe_compute", &CostModel::ObserveCompute, "tokens"_a, "layers"_a, "seconds"_a)
      .def("observe_load", &CostModel::ObserveLoad, "channel"_a, "bytes"_a, "seconds"_a)
      .def("set_rate", &CostModel::SetRate, "channel"_a, "bytes_per_s"_a)
      .def("compute_doubt", &CostModel::ComputeDoubt, "tokens"_a)
      .def("load_doubt", &CostModel::LoadDoubt, "channel"_a)
      .def("learnt", &CostModel::Learnt,
           "Returns what it has learnt so far, as the profile for a later start.");
}

namespace {

void BindPlanInput(nb::module_& module) {
  nb::class_<PlanLoad>(module, "PlanLoad",
                       "The part of a channel in loading a chunk, for all layers.")
      .def(
          "__init__",
          [](PlanLoad* self, ChannelId channel, double seconds) {
            new (self) PlanLoad{channel, seconds};
          },
          "channel"_a, "seconds"_a)
      .def_ro("channel", &PlanLoad::channel)
      .def_ro("seconds", &PlanLoad::seconds);
  nb::class_<PlanChunk>(
      module, "PlanChunk",
      "The tokens that one step computes.  A chunk without loads is a hole: it is not stored and "
      "must be computed.")
      .def(
          "__init__",
          [](PlanChunk* self, double compute_s, std::vector<PlanLoad> loads) {
            new (self) PlanChunk{compute_s, std::move(loads)};
          },
          "compute_s"_a, "loads"_a = std::vector<PlanLoad>())
      .def_ro("compute_s", &PlanChunk::compute_s)
      .def_ro("loads", &PlanChunk::loads);
  nb::class_<PlanInput>(
      module, "PlanInput",
      "What make_plan starts from.  Attributes that are lists are copies: assign a whole list to "
      "change one.")
      .def(nb::init<>())
      .def_rw("layers", &PlanInput::layers)
      .def_rw("layer_compute_shares", &PlanInput::layer_compute_shares)
      .def_rw("layer_load_shares", &PlanInput::layer_load_shares)
      .def_rw("chunks", &PlanInput::chunks)
      .def_rw("splits_layers", &PlanInput::splits_layers)
      .def_rw("crossover_chunks", &PlanInput::crossover_chunks)
      .def_rw("deadline_s", &PlanInput::deadline_s)
      .def_rw("suffix_s", &PlanInput::suffix_s)
      .def_rw("overlaps_suffix", &PlanInput::overlaps_suffix);
  module.def("make_plan_input", &MakePlanInput, "costs"_a, "tokens"_a, "block_tokens"_a,
             "chunk_tokens"_a, "channel_of_block"_a, "block_bytes"_a,
             "channel_of_block has a channel per block; 0 is a hole.  block_bytes are the bytes of "
             "all layers of a block.");
}

void BindPlanAnswer(nb::module_& module) {
  nb::enum_<PlanMode>(module, "PlanMode")
      .value("BOTH", PlanMode::kBoth)
      .value("COMPUTE_ONLY", PlanMode::kComputeOnly)
      .value("LOAD_ONLY", PlanMode::kLoadOnly);
  nb::enum_<PlanShape>(module, "PlanShape")
      .value("TOKEN_WISE", PlanShape::kTokenWise)
      .value("LAYER_WISE", PlanShape::kLayerWise)
      .value("STAIRCASE", PlanShape::kStaircase);
  nb::class_<Plan>(module, "Plan",
                   "depths has a depth per chunk, and none is larger than the one before: layers "
                   "[0, depth) are computed, the rest is loaded.  Times are in seconds; "
                   "load_only_s is infinite if there is a hole.")
      .def_ro("mode", &Plan::mode)
      .def_ro("shape", &Plan::shape)
      .def_ro("depths", &Plan::depths)
      .def_ro("restore_s", &Plan::restore_s)
      .def_ro("first_token_s", &Plan::first_token_s)
      .def_ro("compute_only_s", &Plan::compute_only_s)
      .def_ro("load_only_s", &Plan::load_only_s)
      .def_ro("token_wise_s", &Plan::token_wise_s)
      .def_ro("in_time", &Plan::in_time);
  nb::class_<DepthCost>(module, "DepthCost", "How long a restore with given depths takes, seconds.")
      .def_ro("compute_s", &DepthCost::compute_s)
      .def_ro("load_s", &DepthCost::load_s)
      .def_prop_ro("seconds", &DepthCost::seconds);
}

// CostOf requires one depth (a number of layers) for each chunk, none above input.layers.  It
// aborts if there are more or fewer, and its result is undefined if one is above, so Python gets a
// ValueError instead.
DepthCost CheckedCostOf(const PlanInput& input, const std::vector<uint16_t>& depths) {
  bool fits = depths.size() == input.chunks.size();
  for (const uint16_t depth : depths) fits = fits && depth <= input.layers;
  if (!fits)
    Raise(absl::InvalidArgumentError("depths must have a depth per chunk, none above the layers"));
  return CostOf(input, depths);
}

}  // namespace

void BindPlan(nb::module_& module) {
  BindPlanInput(module);
  BindPlanAnswer(module);
  module.def("make_plan", &MakePlan, "input"_a);
  module.def("cost_of", &CheckedCostOf, "input"_a, "depths"_a,
             "Raises ValueError if there is not a depth per chunk, or one is above the layers.");
  module.def("divisible_bound", &DivisibleBound, "compute_s"_a, "load_s"_a,
             "Returns T* = Tc Ti / (Tc + Ti), the time with perfectly divisible work.");
  module.def("overlap_bound", &OverlapBound, "compute_s"_a, "load_s"_a, "suffix_s"_a, "layers"_a,
             "Returns the bound of the time to the first token, with an overlapped suffix.");
  module.def(
      "best_staircase_depths",
      [](const PlanInput& input) -> std::optional<std::vector<uint16_t>> {
        auto best = BestStaircase(input);
        if (!best.has_value()) return std::nullopt;
        return std::move(best->depths);
      },
      "input"_a,
      "Returns the fastest of all depths that do not increase, or None if finding them takes too "
      "much memory.");
  module.def(
      "lower_bound", [](const PlanInput& input) { return LowerBound(input); }, "input"_a,
      "Returns seconds; no order of computing and loading restores faster.");
}

}  // namespace larder::python
