#include "client/claims/claim_loader.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "storage/clock.h"

namespace larder {
namespace {

// Lets pages be written unless their claim was withdrawn.
class ClaimedWrites final : public PageWrites {
 public:
  ClaimedWrites(ClaimBoard& board, std::span<const ClaimBoard::Claim> claims)
      : board_(board), claims_(claims) {}
  [[nodiscard]] bool Begin(size_t block) override { return board_.BeginWrite(claims_[block].id); }
  [[nodiscard]] bool Wanted(size_t block) const override {
    return board_.Wanted(claims_[block].id);
  }

 private:
  ClaimBoard& board_;
  const std::span<const ClaimBoard::Claim> claims_;
};

}  // namespace

ClaimLoader::ClaimLoader(PageStore& store, ClaimBoard& board, const Options& options)
    : store_(store), board_(board), options_(options) {
  for (uint32_t i = 0; i < options_.threads; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { Run(stop); });
}

ClaimLoader::~ClaimLoader() {
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
}

ClaimLoader::Stats ClaimLoader::stats() const {
  return {loaded_.load(), failed_.load(), cancelled_.load()};
}

void ClaimLoader::Run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "claims");
  std::unique_ptr<PageStore::Mover> mover;
  while (!stop.stop_requested()) {
    const std::vector<ClaimBoard::Claim> claims = board_.Take(options_.at_once, kLookEvery);
    if (claims.empty()) {
      if (mover != nullptr) mover->Rest();
      continue;
    }
    if (mover == nullptr) {
      if (auto made = store_.MakeMover(); made.ok()) mover = *std::move(made);
    }
    const std::span all(claims);
    for (size_t first = 0; first < all.size();) {
      size_t last = first + 1;
      while (last < all.size() && all[last].work.promise == all[first].work.promise) ++last;
      Load(all.subspan(first, last - first), mover.get(), stop);
      first = last;
    }
  }
}

void ClaimLoader::Load(std::span<const ClaimBoard::Claim> claims, PageStore::Mover* mover,
                       const std::stop_token& stop) {
  std::vector<BlockStatus> status(claims.size(), BlockStatus::kCancelled);
  uint64_t deadline = 0;
  std::vector<PagedGet> gets;
  for (const ClaimBoard::Claim& claim : claims) {
    deadline = std::max(deadline, claim.work.deadline_unix_ms);
    gets.push_back({claim.work.digest, {&claim.work.page, 1}});
  }
  const uint64_t now = UnixMilliseconds();
  if (mover == nullptr) {
    std::ranges::fill(status, BlockStatus::kUnsupported);
  } else if (now < deadline) {
    ClaimedWrites writes(board_, claims);
    status = mover
                 ->Load(gets, claims.front().work.promise,
                        std::chrono::milliseconds(deadline - now), stop, &writes)
                 .status;
  }
  for (size_t i = 0; i < claims.size(); ++i) {
    ++(status[i] == BlockStatus::kOk          ? loaded_
       : status[i] == BlockStatus::kCancelled ? cancelled_
                                              : failed_);
    board_.End(claims[i].id, status[i]);
  }
}

}  // namespace larder
