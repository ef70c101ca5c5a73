// How many tokens does Larder's eviction keep that plain LRU would have lost, at equal bytes?  The
// traces are generated: users by Zipf 1.0, system prompts shared by many users, conversations of a
// geometric number of turns, each turn the whole history and something new.
//
// The index alone is measured, without bytes: blocks of 16 tokens, a cache of a share of all that
// the trace touches.  LRU evicts the block whose last use is longest ago, block by block.  A
// request uses its chain from the head to the tail or, as in engines that give up tails first, from
// the tail to the head: the floor is the better of the two.  The notes say what an eviction that
// knows the future would reach (it evicts the block whose next use is latest, tails first): where
// that is little more than LRU, there is nothing to win.
#include <algorithm>
#include <list>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "bench/harness/harness.h"
#include "storage/index/block_index.h"

namespace larder::bench {
namespace {

constexpr int kSeeds = 5;

// The users: those of one assistant; of a service with a hundred teams' prompts; and agents, each
// of which has long instructions and tools of its own.
struct Population {
  const char* name;
  size_t users, prompts, prompt_blocks;
};
constexpr Population kPopulations[] = {
    {"assistant", 300, 8, 64}, {"teams", 1000, 100, 128}, {"agents", 1000, 256, 256}};

constexpr size_t kTurnBlocksMin = 4, kTurnBlocksMax = 40;
constexpr double kGoOn = 0.75;  // probability of another turn
constexpr size_t kConversationBlocksMax = 1024;
constexpr double kRequestsPerSecond = 2;

// A block is a number here; a request is a chain of them.
using Trace = std::vector<std::vector<uint64_t>>;

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
    if (history.empty() || !go_on || history.size() > kConversationBlocksMax)
      history = prompts_[user % prompts_.size()];
    const size_t more =
        std::uniform_int_distribution<size_t>(kTurnBlocksMin, kTurnBlocksMax)(random_);
    for (const uint64_t block : NewBlocks(more)) history.push_back(block);
    return history;
  }

  std::mt19937_64 random_;
  std::discrete_distribution<size_t> zipf_;
  std::vector<std::vector<uint64_t>> prompts_, users_;
  uint64_t next_ = 0;
};

// Request returns the blocks of the longest prefix that the cache has.  Then the cache stores all
// of the request, as far as its capacity allows.
class Lru {
 public:
  enum class Order { kHeadFirst, kTailFirst };
  Lru(size_t blocks, Order order) : room_(blocks), uses_(order) {}
  size_t Request(const std::vector<uint64_t>& chain, uint32_t) {
    size_t hits = 0;
    while (hits < chain.size() && places_.contains(chain[hits])) ++hits;
    if (uses_ == Order::kHeadFirst) {
      for (const uint64_t block : chain) Touch(block);
    } else {
      for (size_t i = chain.size(); i-- > 0;) Touch(chain[i]);
    }
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
  const Order uses_;
  std::list<uint64_t> order_;  // least recently used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

// Not possible in practice, as it knows the future: evicts the block whose next use is latest, and
// within a chain the tail first.
class Clairvoyant {
 public:
  Clairvoyant(size_t blocks, const Trace& trace) : room_(blocks) {
    for (uint32_t i = 0; i < trace.size(); ++i) {
      for (const uint64_t block : trace[i]) uses_[block].push_back(i);
    }
  }
  size_t Request(const std::vector<uint64_t>& chain, uint32_t) {
    size_t hits = 0;
    while (hits < chain.size() && places_.contains(chain[hits])) ++hits;
    for (uint32_t depth = 0; depth < chain.size(); ++depth) Touch(chain[depth], depth);
    while (places_.size() > room_) {
      const auto last = std::prev(order_.end());
      places_.erase(std::get<2>(*last));
      order_.erase(last);
    }
    ++now_;
    return hits;
  }

 private:
  using Place = std::tuple<uint32_t, uint32_t, uint64_t>;  // next use, depth, block
  void Touch(uint64_t block, uint32_t depth) {
    if (const auto it = places_.find(block); it != places_.end()) order_.erase(it->second);
    const std::vector<uint32_t>& uses = uses_[block];
    const auto next = std::upper_bound(uses.begin(), uses.end(), now_);
    const Place place{next == uses.end() ? UINT32_MAX : *next, depth, block};
    order_.insert(place);
    places_[block] = place;
  }
  const size_t room_;
  uint32_t now_ = 0;
  std::unordered_map<uint64_t, std::vector<uint32_t>> uses_;
  std::set<Place> order_;
  std::unordered_map<uint64_t, Place> places_;
};

// Larder's index, evicting from HOST; or from DISK, with a HOST that only holds the blocks of the
// current request.
class Ours {
 public:
  Ours(size_t blocks, Tier tier)
      : room_(blocks), tier_(tier), variant_(*index_.InternVariant(Named(0))) {}
  size_t Request(const std::vector<uint64_t>& chain, uint32_t now_s) {
    std::vector<Digest> digests;
    for (const uint64_t block : chain) digests.push_back(Named(block));
    std::vector<BlockIndex::Held> held(chain.size());
    index_.Hold(variant_, digests, now_s, held, HoldWhat::kAnyTier);
    size_t hits = 0;
    while (hits < held.size() && held[hits].ref.value != 0) ++hits;
    std::vector<EntryRef> refs, all;
    for (size_t i = 0; i < chain.size(); ++i) {
      const Digest parent = i == 0 ? Digest{} : digests[i - 1];
      if (held[i].ref.value == 0) {
        all.push_back(Enter(digests[i], parent, now_s));
        continue;
      }
      refs.push_back(held[i].ref);
      all.push_back(held[i].ref);
      if (tier_ == Tier::kDisk) Promote(held[i].ref, parent, now_s);
    }
    std::vector<Extent> freed;
    std::vector<FreedExtent> on_disk;
    index_.Unhold(refs, &freed, &on_disk);
    if (tier_ == Tier::kDisk) {
      for (size_t i = all.size(); i-- > 0;) LARDER_CHECK(index_.EvictRef(all[i])->kept_on_disk);
    }
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
  static std::unique_ptr<const BlockMetadata> Metadata(const Digest& parent) {
    return BlockMetadata::Make(parent, std::vector<uint32_t>(kStepTokens), UniformTable(1, 4096));
  }
  EntryRef Enter(const Digest& digest, const Digest& parent, uint32_t now_s) {
    ++stored_;
    BlockIndex::NewBlock block;
    block.variant = variant_;
    block.digest = digest;
    block.extent = kOnePage;
    block.metadata = Metadata(parent);
    EntryRef ref;
    LARDER_CHECK(index_.Insert(std::move(block), now_s, &ref) ==
                 BlockIndex::InsertResult::kInserted);
    if (tier_ == Tier::kDisk) Spill(digest, ref, now_s);
    return ref;
  }
  void Spill(const Digest& digest, EntryRef ref, uint32_t now_s) {
    BlockIndex::Held held;
    index_.Hold(variant_, {&digest, 1}, now_s, {&held, 1}, HoldWhat::kUntouched);
    LARDER_CHECK(held.ref == ref && index_.SetOnDisk(ref, 1));
    std::vector<Extent> freed;
    index_.Unhold({&ref, 1}, &freed);
  }
  void Promote(EntryRef held, const Digest& parent, uint32_t now_s) {
    LARDER_CHECK(index_.BeginPromote(held) &&
                 index_.FinishPromote(held, kOnePage, Metadata(parent), now_s));
  }
  bool EvictOne(uint32_t now_s) {
    return tier_ == Tier::kDisk ? index_.EvictOneFromDisk(now_s).has_value()
                                : index_.EvictOne(now_s).has_value();
  }
  static constexpr Extent kOnePage = {.slab = {}, .page = 0, .pages = 1};
  const size_t room_;
  const Tier tier_;
  BlockIndex index_;
  const VariantIndex variant_;
  size_t stored_ = 0;
};

template <class Cache>
double HitTokens(const Trace& trace, Cache cache) {
  size_t hits = 0;
  for (size_t i = 0; i < trace.size(); ++i)
    hits += cache->Request(trace[i],
                           static_cast<uint32_t>(static_cast<double>(i) / kRequestsPerSecond));
  return static_cast<double>(hits * kStepTokens);
}

size_t Footprint(const Trace& trace) {
  std::unordered_set<uint64_t> all;
  for (const auto& chain : trace) all.insert(chain.begin(), chain.end());
  return all.size();
}

constexpr int kPercents[] = {10, 20, 30};  // of the footprint

// One cache size of one population, all seeds.
struct Compared {
  std::vector<double> ours, head_first, tail_first, lru;  // tokens; lru is the better of the two
  std::vector<double> ratios, bounds;                     // to lru: ours; Clairvoyant's
};
Compared Compare(const Population& population, int percent, Tier tier, size_t requests) {
  Compared c;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Trace trace = TraceMaker(static_cast<uint64_t>(seed), population).Make(requests);
    const size_t room = Footprint(trace) * static_cast<size_t>(percent) / 100;
    c.ours.push_back(HitTokens(trace, std::make_unique<Ours>(room, tier)));
    c.head_first.push_back(HitTokens(trace, std::make_unique<Lru>(room, Lru::Order::kHeadFirst)));
    c.tail_first.push_back(HitTokens(trace, std::make_unique<Lru>(room, Lru::Order::kTailFirst)));
    c.lru.push_back(std::max(c.head_first.back(), c.tail_first.back()));
    c.ratios.push_back(c.ours.back() / c.lru.back());
    c.bounds.push_back(HitTokens(trace, std::make_unique<Clairvoyant>(room, trace)) / c.lru.back());
  }
  return c;
}

std::string NameOf(const std::string& figure, const Population& population, int percent) {
  return absl::StrCat(figure, "_", population.name, "_", percent);
}

void Measure(Harness& harness, const std::string& figure, Tier tier) {
  const std::string mean = figure + "_mean", least = figure + "_least";
  const bool wants_all = harness.Wants(mean) || harness.Wants(least);
  std::vector<double> all;
  for (const Population& population : kPopulations) {
    for (const int percent : kPercents) {
      const std::string name = NameOf(figure, population, percent);
      if (!wants_all && !harness.Wants(name)) continue;
      const Compared c = Compare(population, percent, tier, harness.quick() ? 4'000 : 12'000);
      all.insert(all.end(), c.ratios.begin(), c.ratios.end());
      harness.Report({name, Median(c.ours), "tokens", Median(c.lru), Median(c.ratios), kSeeds});
      harness.Note(
          absl::StrCat("cache of ", percent, " % of the footprint; the least ratio of ", kSeeds,
                       " seeds ", *std::min_element(c.ratios.begin(), c.ratios.end()),
                       "; LRU head first ", Median(c.head_first), ", tail first ",
                       Median(c.tail_first), "; with the future known ", Median(c.bounds)));
    }
  }
  if (!wants_all) return;
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  const int rounds = static_cast<int>(all.size());
  harness.Report(
      {mean, sum / static_cast<double>(all.size()), "of LRU", std::nullopt, std::nullopt, rounds});
  harness.Report({least, *std::min_element(all.begin(), all.end()), "of LRU", std::nullopt,
                  std::nullopt, rounds});
}

std::vector<std::string> Figures() {
  std::vector<std::string> all;
  for (const std::string figure : {"hit_tokens_disk", "hit_tokens_host"}) {
    for (const Population& population : kPopulations) {
      for (const int percent : kPercents) all.push_back(NameOf(figure, population, percent));
    }
    all.push_back(figure + "_mean");
    all.push_back(figure + "_least");
  }
  return all;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv, Figures());
  if (harness.done()) return *harness.done();
  Measure(harness, "hit_tokens_disk", larder::Tier::kDisk);
  Measure(harness, "hit_tokens_host", larder::Tier::kHost);
  return 0;
}
