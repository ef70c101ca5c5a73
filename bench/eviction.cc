// How many tokens does our eviction keep that plain LRU would have lost, at equal bytes?  Generated traces: users by
// Zipf 1.0, system prompts that many share, conversations of a geometric number of turns, each turn the whole history
// and something new.
//
// The index alone, without bytes: blocks of 16 tokens, a cache of a share of all that the trace touches.  LRU forgets
// the block whose last use is longest ago, block by block.
#include <algorithm>
#include <list>
#include <random>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "bench/harness.h"
#include "storage/block_index.h"

namespace larder::bench {
namespace {

constexpr int kSeeds = 5;
constexpr size_t kUsers = 300, kSystemPrompts = 8;
constexpr size_t kSystemBlocks = 64;                // 1,024 tokens
constexpr size_t kTurnBlocksMin = 4, kTurnBlocksMax = 40;
constexpr double kGoOn = 0.75;                      // another turn follows
constexpr size_t kConversationBlocksMax = 1024;
constexpr double kRequestsPerSecond = 2;

// A block is a number here; a request is a chain of them.
using Trace = std::vector<std::vector<uint64_t>>;

class TraceMaker {
 public:
  explicit TraceMaker(uint64_t seed) : random_(seed), users_(kUsers) {
    std::vector<double> weights;
    for (size_t i = 1; i <= kUsers; ++i) weights.push_back(1.0 / static_cast<double>(i));
    zipf_ = std::discrete_distribution<size_t>(weights.begin(), weights.end());
    for (size_t i = 0; i < kSystemPrompts; ++i) prompts_.push_back(NewBlocks(kSystemBlocks));
  }
  Trace Make(size_t requests) {
    Trace trace;
    for (size_t i = 0; i < requests; ++i) trace.push_back(Turn(zipf_(random_)));
    return trace;
  }

 private:
  std::vector<uint64_t> NewBlocks(size_t count) {
    std::vector<uint64_t> blocks;
    for (size_t i = 0; i < count; ++i) blocks.push_back(++next_);
    return blocks;
  }
  const std::vector<uint64_t>& Turn(size_t user) {
    std::vector<uint64_t>& history = users_[user];
    const bool go_on = std::bernoulli_distribution(kGoOn)(random_);
    if (history.empty() || !go_on || history.size() > kConversationBlocksMax) history = prompts_[user % kSystemPrompts];
    const size_t more = std::uniform_int_distribution<size_t>(kTurnBlocksMin, kTurnBlocksMax)(random_);
    for (const uint64_t block : NewBlocks(more)) history.push_back(block);
    return history;
  }

  std::mt19937_64 random_;
  std::discrete_distribution<size_t> zipf_;
  std::vector<std::vector<uint64_t>> prompts_, users_;
  uint64_t next_ = 0;
};

// Blocks of the longest prefix that it has; then it has all of the request, as far as there is room.
class Lru {
 public:
  explicit Lru(size_t blocks) : room_(blocks) {}
  size_t Request(const std::vector<uint64_t>& chain, uint32_t) {
    size_t hits = 0;
    while (hits < chain.size() && places_.contains(chain[hits])) ++hits;
    for (const uint64_t block : chain) Touch(block);
    return hits;
  }

 private:
  void Touch(uint64_t block) {
    const auto it = places_.find(block);
    if (it != places_.end()) order_.erase(it->second);
    order_.push_back(block);
    places_[block] = std::prev(order_.end());
    if (places_.size() <= room_) return;
    places_.erase(order_.front());
    order_.pop_front();
  }
  const size_t room_;
  std::list<uint64_t> order_;  // least recent first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

// Ours, of the disk or of HOST.
class Ours {
 public:
  Ours(size_t blocks, Tier tier) : room_(blocks), tier_(tier), variant_(*index_.InternVariant(Named(0))) {}
  size_t Request(const std::vector<uint64_t>& chain, uint32_t now_s) {
    std::vector<Digest> digests;
    for (const uint64_t block : chain) digests.push_back(Named(block));
    std::vector<BlockIndex::Held> held(chain.size());
    index_.Hold(variant_, digests, now_s, held, HoldWhat::kAnyTier);
    size_t hits = 0;
    while (hits < held.size() && held[hits].ref.value != 0) ++hits;
    std::vector<EntryRef> refs;
    for (const BlockIndex::Held& block : held) {
      if (block.ref.value != 0) refs.push_back(block.ref);
    }
    for (size_t i = 0; i < chain.size(); ++i) {
      if (held[i].ref.value == 0) Enter(digests[i], i == 0 ? Digest{} : digests[i - 1], now_s);
    }
    std::vector<Extent> freed;
    std::vector<DiskRoom> rooms;
    index_.Unhold(refs, &freed, &rooms);
    while (stored_ > room_ && EvictOne(now_s)) --stored_;
    return hits;
  }

 private:
  static Digest Named(uint64_t number) {
    Digest digest;
    const uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15;
    std::memcpy(digest.bytes.data(), &mixed, sizeof mixed);
    std::memcpy(digest.bytes.data() + sizeof mixed, &number, sizeof number);
    return digest;
  }
  void Enter(const Digest& digest, const Digest& parent, uint32_t now_s) {
    ++stored_;
    if (tier_ == Tier::kDisk) {
      EntryRef ref;
      LARDER_CHECK(index_.InsertOnDisk(variant_, digest, 1, 1, now_s, &ref) == BlockIndex::InsertResult::kInserted);
      return;
    }
    BlockIndex::NewBlock block;
    block.variant = variant_;
    block.digest = digest;
    block.extent = {.slab = {}, .page = 0, .pages = 1};
    block.metadata = BlockMetadata::Make(parent, std::vector<uint32_t>(16), UniformTable(1, 4096));
    LARDER_CHECK(index_.Insert(std::move(block), now_s) == BlockIndex::InsertResult::kInserted);
  }
  bool EvictOne(uint32_t now_s) {
    return tier_ == Tier::kDisk ? index_.EvictOneFromDisk(policy_, now_s).has_value()
                                : index_.EvictOne(policy_, now_s).has_value();
  }
  const size_t room_;
  const Tier tier_;
  const EvictionPolicy policy_;
  BlockIndex index_;
  const VariantIndex variant_;
  size_t stored_ = 0;
};

template <class Cache>
double HitTokens(const Trace& trace, Cache cache) {
  size_t hits = 0;
  for (size_t i = 0; i < trace.size(); ++i)
    hits += cache->Request(trace[i], static_cast<uint32_t>(static_cast<double>(i) / kRequestsPerSecond));
  return static_cast<double>(hits * kStepTokens);
}

size_t Footprint(const Trace& trace) {
  std::unordered_set<uint64_t> all;
  for (const auto& chain : trace) all.insert(chain.begin(), chain.end());
  return all.size();
}

void Measure(Harness& harness, const std::string& name, Tier tier) {
  if (!harness.Wants(name)) return;
  for (const int percent : {10, 20, 30}) {
    std::vector<double> ours, lru, ratios;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      const Trace trace = TraceMaker(static_cast<uint64_t>(seed)).Make(harness.quick() ? 4'000 : 12'000);
      const size_t room = Footprint(trace) * static_cast<size_t>(percent) / 100;
      ours.push_back(HitTokens(trace, std::make_unique<Ours>(room, tier)));
      lru.push_back(HitTokens(trace, std::make_unique<Lru>(room)));
      ratios.push_back(ours.back() / lru.back());
    }
    harness.Report({absl::StrCat(name, "_", percent), Median(ours), "tokens", Median(lru), Median(ratios), kSeeds});
    harness.Note(absl::StrCat("cache of ", percent, " % of the footprint; least of ", kSeeds, " seeds ",
                              *std::min_element(ratios.begin(), ratios.end())));
  }
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv, {"hit_tokens_disk", "hit_tokens_host"});
  if (harness.done()) return *harness.done();
  Measure(harness, "hit_tokens_disk", larder::Tier::kDisk);
  Measure(harness, "hit_tokens_host", larder::Tier::kHost);
  return 0;
}
