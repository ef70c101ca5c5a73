#include "client/session/promise_book.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace larder {

PromiseState::PromiseState(wire::Promised answer) : promised(std::move(answer)) {
  for (const wire::PromisedBlocks& blocks : promised.blocks)
    pending += static_cast<size_t>(std::ranges::count(blocks.status, BlockStatus::kPending));
}

void PromiseBook::Add(const wire::Promised& promised) {
  MutexLock lock(mu_);
  Entry& entry = promises_[promised.promise];
  if (entry.state == nullptr) entry.state = std::make_shared<PromiseState>(promised);
  ++entry.holders;
}

std::shared_ptr<PromiseState> PromiseBook::Find(LeaseId promise) const {
  MutexLock lock(mu_);
  const auto found = promises_.find(promise);
  return found == promises_.end() ? nullptr : found->second.state;
}

void PromiseBook::OnReady(const wire::PromiseReady& ready) {
  const std::shared_ptr<PromiseState> state = Find(ready.promise);
  if (state == nullptr) return;
  MutexLock lock(state->mu);
  for (const wire::PromiseReady::Block& one : ready.blocks) {
    if (one.variant >= state->promised.blocks.size()) continue;
    wire::PromisedBlocks& blocks = state->promised.blocks[one.variant];
    if (one.block < blocks.first_block) continue;
    const size_t at = one.block - blocks.first_block;
    if (at >= blocks.status.size() || blocks.status[at] != BlockStatus::kPending) continue;
    // A block may not become pending again.
    blocks.status[at] = one.status == BlockStatus::kPending ? BlockStatus::kMissing : one.status;
    --state->pending;
  }
}

bool PromiseBook::OnEnded(LeaseId promise) {
  const std::shared_ptr<PromiseState> state = Find(promise);
  if (state == nullptr) return false;
  MutexLock lock(state->mu);
  state->ended = true;
  return true;
}

bool PromiseBook::Remove(LeaseId promise) {
  std::shared_ptr<PromiseState> state;
  {
    MutexLock lock(mu_);
    const auto found = promises_.find(promise);
    if (found == promises_.end()) return false;
    state = found->second.state;
    if (--found->second.holders == 0) promises_.erase(found);
  }
  MutexLock lock(state->mu);
  return !state->ended;
}

void PromiseBook::EndAll() {
  absl::flat_hash_map<LeaseId, Entry> all;
  {
    MutexLock lock(mu_);
    all.swap(promises_);
  }
  for (auto& [id, entry] : all) {
    MutexLock lock(entry.state->mu);
    entry.state->ended = true;
  }
}

}  // namespace larder
