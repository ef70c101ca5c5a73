#include "server/sessions/hold_ledger.h"

#include "storage/check.h"

namespace larder {

LedgerHold& LedgerHold::operator=(LedgerHold&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  ledger_ = std::move(other.ledger_);
  blocks_ = std::exchange(other.blocks_, {});
  return *this;
}

void LedgerHold::Reset() {
  if (ledger_ == nullptr) return;
  ledger_->Remove(blocks_);
  blocks_.clear();
  ledger_.reset();
}

bool HoldLedger::Add(std::span<const Block> blocks, LedgerHold* hold) {
  MutexLock lock(mu_);
  ByteCount more;
  for (const Block& block : blocks) {
    Held& held = held_[block.ref.value];
    if (held.holds++ > 0) continue;
    held.bytes = block.bytes;
    more += block.bytes;
  }
  Shares::Answer charge = account_.Take(ShareKind::kLeasedBytes, more);
  for (const Block& block : blocks) {
    if (charge.admitted()) {
      hold->blocks_.push_back(block.ref);
    } else if (--held_[block.ref.value].holds == 0) {
      held_.erase(block.ref.value);
    }
  }
  if (!charge.admitted()) return false;
  charged_.Merge(std::move(charge.ticket));
  hold->ledger_ = shared_from_this();
  return true;
}

ByteCount HoldLedger::AddKnown(std::span<const Block> blocks, LedgerHold* hold) {
  MutexLock lock(mu_);
  ByteCount known;
  for (const Block& block : blocks) {
    const auto held = held_.find(block.ref.value);
    if (held == held_.end()) continue;
    ++held->second.holds;
    known += held->second.bytes;
    hold->blocks_.push_back(block.ref);
  }
  if (!hold->blocks_.empty()) hold->ledger_ = shared_from_this();
  return known;
}

void HoldLedger::Remove(std::span<const EntryRef> blocks) {
  MutexLock lock(mu_);
  ByteCount less;
  for (const EntryRef block : blocks) {
    const auto held = held_.find(block.value);
    LARDER_CHECK(held != held_.end());
    if (--held->second.holds > 0) continue;
    less += held->second.bytes;
    held_.erase(held);
  }
  charged_.ShrinkTo(charged_.amount() - less.value());
}

ByteCount HoldLedger::bytes() const {
  MutexLock lock(mu_);
  return ByteCount(charged_.amount());
}

}  // namespace larder
