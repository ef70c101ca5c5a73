#include "bench/eviction/generated_traces.h"

#include <random>
#include <utility>
#include <vector>

#include "storage/types.h"

namespace larder::bench {
namespace {

using replay::BlockId;

constexpr size_t kTurnBlocksMin = 4, kTurnBlocksMax = 40;
constexpr double kGoOn = 0.75;  // probability of another turn
constexpr size_t kConversationBlocksMax = 1024;
constexpr double kRequestsPerSecond = 2;

class TraceMaker {
 public:
  TraceMaker(uint64_t seed, const Population& population)
      : random_(seed), users_(population.users) {
    std::vector<double> weights;
    for (size_t i = 1; i <= population.users; ++i) weights.push_back(1.0 / static_cast<double>(i));
    zipf_ = std::discrete_distribution<size_t>(weights.begin(), weights.end());
    for (size_t i = 0; i < population.prompts; ++i)
      prompts_.push_back(NewBlocks(population.prompt_blocks));
  }
  const std::vector<BlockId>& Next() { return Turn(zipf_(random_)); }

 private:
  std::vector<BlockId> NewBlocks(size_t count) {
    std::vector<BlockId> blocks;
    for (size_t i = 0; i < count; ++i) blocks.push_back(++next_);
    return blocks;
  }
  const std::vector<BlockId>& Turn(size_t user) {
    std::vector<BlockId>& history = users_[user];
    const bool go_on = std::bernoulli_distribution(kGoOn)(random_);
    if (history.empty() || !go_on || history.size() > kConversationBlocksMax)
      history = prompts_[user % prompts_.size()];
    const size_t more =
        std::uniform_int_distribution<size_t>(kTurnBlocksMin, kTurnBlocksMax)(random_);
    for (const BlockId block : NewBlocks(more)) history.push_back(block);
    return history;
  }

  std::mt19937_64 random_;
  std::discrete_distribution<size_t> zipf_;
  std::vector<std::vector<BlockId>> prompts_, users_;
  BlockId next_ = 0;
};

}  // namespace

replay::RequestTrace GenerateTrace(uint64_t seed, const Population& population, size_t requests) {
  replay::RequestTrace trace;
  trace.block_tokens = kStepTokens;
  TraceMaker maker(seed, population);
  for (size_t i = 0; i < requests; ++i)
    trace.requests.push_back({static_cast<double>(i) / kRequestsPerSecond, maker.Next()});
  return trace;
}

}  // namespace larder::bench
