#include "storage/replay/known_policies.h"

#include <algorithm>
#include <array>
#include <limits>
#include <list>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace larder::replay {
namespace {

// Calls use(block) for all blocks of the request, in the order given.
template <class Use>
void UseAll(const std::vector<BlockId>& blocks, UseOrder order, Use use) {
  if (order == UseOrder::kHeadFirst) {
    std::for_each(blocks.begin(), blocks.end(), use);
  } else {
    std::for_each(blocks.rbegin(), blocks.rend(), use);
  }
}

// Returns how many blocks, from the first on and without a gap, has(block) is true for.
template <class Has>
size_t Prefix(const std::vector<BlockId>& blocks, Has has) {
  return static_cast<size_t>(std::find_if_not(blocks.begin(), blocks.end(), has) - blocks.begin());
}

// Blocks in several queues, each block in one at most.  The front of a queue leaves first.
template <size_t kQueues>
class Queues {
 public:
  static constexpr size_t kNone = kQueues;
  [[nodiscard]] size_t Of(BlockId block) const {
    const auto at = places_.find(block);
    return at == places_.end() ? kNone : at->second.first;
  }
  [[nodiscard]] size_t size(size_t queue) const { return queues_[queue].size(); }
  [[nodiscard]] BlockId front(size_t queue) const { return queues_[queue].front(); }
  // Moves the block, or puts it in, at the back of the queue.
  void MoveTo(BlockId block, size_t queue) {
    const auto [at, is_new] = places_.try_emplace(block);
    if (!is_new) queues_[at->second.first].erase(at->second.second);
    queues_[queue].push_back(block);
    at->second = {queue, std::prev(queues_[queue].end())};
  }
  void DropFront(size_t queue) {
    places_.erase(queues_[queue].front());
    queues_[queue].pop_front();
  }

 private:
  std::array<std::list<BlockId>, kQueues> queues_;
  absl::flat_hash_map<BlockId, std::pair<size_t, std::list<BlockId>::iterator>> places_;
};

class Lru final : public ReplayCache {
 public:
  Lru(size_t blocks, UseOrder order) : capacity_(blocks), order_(order) {}
  size_t Request(const TracedRequest& request) override {
    const size_t hits =
        Prefix(request.blocks, [this](BlockId block) { return used_.Of(block) == 0; });
    UseAll(request.blocks, order_, [this](BlockId block) {
      used_.MoveTo(block, 0);
      if (used_.size(0) > capacity_) used_.DropFront(0);
    });
    return hits;
  }

 private:
  const size_t capacity_;
  const UseOrder order_;
  Queues<1> used_;
};

// The names are those of the paper: T1 has the blocks used once, T2 those used again, B1 and B2 the
// names of those that have left T1 and T2; p is how large T1 should be.
class Arc final : public ReplayCache {
 public:
  Arc(size_t blocks, UseOrder order) : capacity_(blocks), order_(order) {}
  size_t Request(const TracedRequest& request) override {
    const size_t hits =
        Prefix(request.blocks, [this](BlockId block) { return lists_.Of(block) <= kT2; });
    UseAll(request.blocks, order_, [this](BlockId block) { Use(block); });
    return hits;
  }

 private:
  enum List : size_t { kT1, kT2, kB1, kB2 };

  [[nodiscard]] double size(List list) const { return static_cast<double>(lists_.size(list)); }
  void Use(BlockId block) {
    const auto capacity = static_cast<double>(capacity_);
    const size_t list = lists_.Of(block);
    if (list == kB1) {
      p_ = std::min(capacity, p_ + std::max(1.0, size(kB2) / size(kB1)));
      Replace(/*from_b2=*/false);
    } else if (list == kB2) {
      p_ = std::max(0.0, p_ - std::max(1.0, size(kB1) / size(kB2)));
      Replace(/*from_b2=*/true);
    } else if (list == Queues<4>::kNone) {
      MakeRoom();
    }
    lists_.MoveTo(block, list == Queues<4>::kNone ? kT1 : kT2);
  }
  // Makes room for a block whose name is on no list.
  void MakeRoom() {
    const size_t recent = lists_.size(kT1) + lists_.size(kB1);
    const size_t all = recent + lists_.size(kT2) + lists_.size(kB2);
    if (recent >= capacity_) {
      if (lists_.size(kT1) == capacity_) {
        lists_.DropFront(kT1);
        return;
      }
      lists_.DropFront(kB1);
      Replace(/*from_b2=*/false);
    } else if (all >= capacity_) {
      if (all >= 2 * capacity_) lists_.DropFront(kB2);
      Replace(/*from_b2=*/false);
    }
  }
  // Moves the name of a block of T1 or T2 to B1 or B2.  REQUIRES: T1 and T2 are full, as they are
  // while B1 or B2 has names.
  void Replace(bool from_b2) {
    const bool of_t1 = lists_.size(kT1) > 0 &&
                       (size(kT1) > p_ || (from_b2 && size(kT1) == p_) || lists_.size(kT2) == 0);
    if (of_t1) {
      lists_.MoveTo(lists_.front(kT1), kB1);
    } else {
      lists_.MoveTo(lists_.front(kT2), kB2);
    }
  }

  const size_t capacity_;
  const UseOrder order_;
  Queues<4> lists_;
  double p_ = 0;
};

class S3Fifo final : public ReplayCache {
 public:
  S3Fifo(size_t blocks, UseOrder order)
      : capacity_(blocks), small_(std::max<size_t>(1, blocks / 10)), order_(order) {}
  size_t Request(const TracedRequest& request) override {
    const size_t hits =
        Prefix(request.blocks, [this](BlockId block) { return queues_.Of(block) <= kMain; });
    UseAll(request.blocks, order_, [this](BlockId block) { Use(block); });
    return hits;
  }

 private:
  enum Queue : size_t { kSmall, kMain, kGhost };
  static constexpr int kUsesMax = 3;

  void Use(BlockId block) {
    const size_t queue = queues_.Of(block);
    if (queue <= kMain) {
      int& uses = uses_[block];
      uses = std::min(kUsesMax, uses + 1);
      return;
    }
    while (queues_.size(kSmall) + queues_.size(kMain) >= capacity_) Evict();
    queues_.MoveTo(block, queue == kGhost ? kMain : kSmall);
    uses_[block] = 0;
  }
  void Evict() {
    if (queues_.size(kSmall) >= small_ || queues_.size(kMain) == 0) {
      EvictFromSmall();
    } else {
      EvictFromMain();
    }
  }
  void EvictFromSmall() {
    const BlockId block = queues_.front(kSmall);
    if (uses_[block] > 1) {
      queues_.MoveTo(block, kMain);
      uses_[block] = 0;
      return;
    }
    uses_.erase(block);
    queues_.MoveTo(block, kGhost);
    if (queues_.size(kGhost) > capacity_ - small_) queues_.DropFront(kGhost);
  }
  void EvictFromMain() {
    const BlockId block = queues_.front(kMain);
    if (uses_[block] > 0) {
      queues_.MoveTo(block, kMain);
      --uses_[block];
      return;
    }
    uses_.erase(block);
    queues_.DropFront(kMain);
  }

  const size_t capacity_, small_;
  const UseOrder order_;
  Queues<3> queues_;
  // Uses of each block in kSmall or kMain since it was put there, at most kUsesMax.
  absl::flat_hash_map<BlockId, int> uses_;
};

class Clairvoyant final : public ReplayCache {
 public:
  Clairvoyant(size_t blocks, const RequestTrace& trace) : capacity_(blocks) {
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      for (const BlockId block : trace.requests[i].blocks) uses_[block].push_back(i);
    }
  }
  size_t Request(const TracedRequest& request) override {
    const size_t hits =
        Prefix(request.blocks, [this](BlockId block) { return places_.contains(block); });
    for (size_t depth = 0; depth < request.blocks.size(); ++depth)
      Place(request.blocks[depth], depth);
    while (places_.size() > capacity_) {
      const auto last = std::prev(by_next_use_.end());
      places_.erase(std::get<2>(*last));
      by_next_use_.erase(last);
    }
    ++now_;
    return hits;
  }

 private:
  using NextUse = std::tuple<size_t, size_t, BlockId>;  // request, depth
  void Place(BlockId block, size_t depth) {
    const std::vector<size_t>& uses = uses_[block];
    const auto next = std::upper_bound(uses.begin(), uses.end(), now_);
    const NextUse use = {next == uses.end() ? std::numeric_limits<size_t>::max() : *next, depth,
                         block};
    const auto [at, is_new] = places_.try_emplace(block, use);
    if (!is_new) by_next_use_.erase(std::exchange(at->second, use));
    by_next_use_.insert(use);
  }

  const size_t capacity_;
  size_t now_ = 0;                                          // the number of this request
  absl::flat_hash_map<BlockId, std::vector<size_t>> uses_;  // numbers of requests
  absl::flat_hash_map<BlockId, NextUse> places_;
  std::set<NextUse> by_next_use_;
};

}  // namespace

std::unique_ptr<ReplayCache> MakeLru(size_t blocks, UseOrder order) {
  return std::make_unique<Lru>(blocks, order);
}
std::unique_ptr<ReplayCache> MakeArc(size_t blocks, UseOrder order) {
  return std::make_unique<Arc>(blocks, order);
}
std::unique_ptr<ReplayCache> MakeS3Fifo(size_t blocks, UseOrder order) {
  return std::make_unique<S3Fifo>(blocks, order);
}
std::unique_ptr<ReplayCache> MakeClairvoyant(size_t blocks, const RequestTrace& trace) {
  return std::make_unique<Clairvoyant>(blocks, trace);
}

}  // namespace larder::replay
