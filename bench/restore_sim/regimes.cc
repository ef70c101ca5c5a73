// See regimes.h.
#include "bench/restore_sim/regimes.h"

#include <algorithm>
#include <cmath>

namespace larder::bench {
namespace {

double Uniform(std::mt19937_64& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}
double LogUniform(std::mt19937_64& random, double low, double high) {
  return std::exp(Uniform(random, std::log(low), std::log(high)));
}
template <class T, size_t N>
T OneOf(std::mt19937_64& random, const T (&values)[N]) {
  return values[std::uniform_int_distribution<size_t>(0, N - 1)(random)];
}

// From a small model on a fast machine to a large one on a slow machine; attention from no cost to
// most of it.
void DrawMachine(std::mt19937_64& random, const RegimeOptions& options, Machine* machine) {
  constexpr uint16_t kLayers[] = {16, 28, 32, 40, 80};
  machine->layers =
      options.tiny ? static_cast<uint16_t>(Uniform(random, 1, 7)) : OneOf(random, kLayers);
  machine->compute.linear_s = LogUniform(random, 5e-6, 5e-3);
  machine->compute.fixed_s = machine->compute.linear_s * Uniform(random, 0, 256);
  constexpr double kAttention[] = {0, 0.2, 1, 4};  // at 32k, as a multiple of the linear part
  machine->compute.quadratic_s = machine->compute.linear_s * OneOf(random, kAttention) / 32'768;
  machine->rates = {LogUniform(random, options.gbps_min, options.gbps_max) * 1e9 / 8};
}

void DrawRequest(std::mt19937_64& random, const RegimeOptions& options, Regime* regime) {
  RequestSpec& spec = regime->spec;
  constexpr uint32_t kBlocks[] = {64, 128, 256, 512};
  constexpr uint32_t kChunks[] = {256, 512, 1024};
  spec.id = RequestId{1};
  spec.block_tokens = OneOf(random, kBlocks);
  spec.chunk_tokens = std::max(OneOf(random, kChunks), spec.block_tokens);
  double most = options.tokens_max;
  if (options.tiny) most = std::min(most, 12.0 * spec.chunk_tokens);
  const double tokens = LogUniform(random, options.tokens_min, most);
  spec.tokens = std::max(1u, static_cast<uint32_t>(tokens / spec.block_tokens)) * spec.block_tokens;
  const uint32_t blocks = spec.tokens / spec.block_tokens;
  Copy copy;
  copy.block_bytes = spec.block_tokens * LogUniform(random, 16e3, 1e6);
  copy.channel_of_block.assign(blocks, ChannelId{1});
  if (Uniform(random, 0, 1) < options.second_channel) {
    regime->machine.rates.push_back(regime->machine.rates[0] * LogUniform(random, 0.2, 5));
    const auto cut = static_cast<uint32_t>(Uniform(random, 0, blocks));
    for (uint32_t b = cut; b < blocks; ++b) copy.channel_of_block[b] = ChannelId{2};
  }
  if (Uniform(random, 0, 1) < options.holes) {
    const int holes = static_cast<int>(Uniform(random, 1, 4));
    for (int i = 0; i < holes; ++i) {
      copy.channel_of_block[static_cast<uint32_t>(Uniform(random, 0, blocks))] =
          ChannelId::kNowhere;
    }
  }
  spec.stages = {{{0, regime->machine.layers}, {copy}}};
}

// Every channel loads in ascending order at full speed; a chunk with a hole is computed when
// everything before it is there.
double LoadAndFill(const Regime& regime) {
  double compute_s = 0;
  std::vector<double> channels(regime.machine.rates.size(), 0);
  for (const PlanChunk& chunk : regime.truth.chunks) {
    for (const PlanLoad& load : chunk.loads)
      channels[static_cast<size_t>(load.channel) - 1] += load.seconds;
    const double loaded_s = *std::max_element(channels.begin(), channels.end());
    if (chunk.loads.empty()) compute_s = std::max(compute_s, loaded_s) + chunk.compute_s;
  }
  return std::max(compute_s, *std::max_element(channels.begin(), channels.end()));
}

}  // namespace

Profile WrongProfile(const Machine& machine, double error, std::mt19937_64& random) {
  const auto factor = [&] { return 1 + Uniform(random, -error, error); };
  Profile profile;
  profile.layers = machine.layers;
  profile.compute = machine.compute;
  const double compute = factor();
  profile.compute.fixed_s *= compute;
  profile.compute.linear_s *= compute;
  profile.compute.quadratic_s *= compute;
  for (const double rate : machine.rates) profile.channels.push_back({"channel", rate * factor()});
  profile.doubt = std::max(error, 0.02);
  return profile;
}

PlanInput Truth(const Machine& machine, const RequestSpec& spec, size_t rank) {
  PlanInput truth;
  truth.layers = machine.layers;
  const Copy& copy = spec.stages[0].ranks[rank];
  const uint32_t chunk_tokens = std::max(spec.chunk_tokens, spec.block_tokens);
  for (uint32_t begin = 0; begin < spec.tokens; begin += chunk_tokens) {
    const uint32_t end = std::min(begin + chunk_tokens, spec.tokens);
    PlanChunk chunk;
    for (uint32_t at = begin; at < end; at += spec.chunk_tokens) {
      chunk.compute_s += machine.compute.Seconds({at, std::min(at + spec.chunk_tokens, end)});
    }
    bool hole = false;
    for (uint32_t block = begin / spec.block_tokens; block < end / spec.block_tokens; ++block) {
      const ChannelId channel = copy.channel_of_block[block];
      hole |= channel == ChannelId::kNowhere;
      if (!hole)
        chunk.loads.push_back(
            {channel, copy.block_bytes / machine.rates[static_cast<size_t>(channel) - 1]});
    }
    if (hole) chunk.loads.clear();
    truth.chunks.push_back(std::move(chunk));
  }
  return truth;
}

void Complete(Regime* regime) {
  regime->truth = Truth(regime->machine, regime->spec, 0);
  regime->compute_only_s = 0;
  for (const PlanChunk& chunk : regime->truth.chunks) regime->compute_only_s += chunk.compute_s;
  regime->load_only_s = LoadAndFill(*regime);
}

Regime DrawRegime(uint64_t seed, const RegimeOptions& options) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15 + 1);
  Regime regime;
  DrawMachine(random, options, &regime.machine);
  DrawRequest(random, options, &regime);
  regime.profile = WrongProfile(regime.machine, options.profile_error, random);
  Complete(&regime);
  return regime;
}

}  // namespace larder::bench
