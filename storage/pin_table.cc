#include "storage/pin_table.h"

#include <iterator>

#include "storage/check.h"

namespace larder {

PinTable::AddResult PinTable::Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms) {
  Name name(owner, key);
  if (const auto pin = pins_.find(name); pin != pins_.end()) {
    by_deadline_.erase({pin->second, &pin->first});
    pin->second = deadline_ms;
    by_deadline_.emplace(deadline_ms, &pin->first);
    return AddResult::kMoved;
  }
  if (pins_.size() >= pins_max_) return AddResult::kFull;
  const auto pin = pins_.emplace(std::move(name), deadline_ms).first;
  by_deadline_.emplace(deadline_ms, &pin->first);
  ++counts_[key];
  return AddResult::kAdded;
}

bool PinTable::Remove(std::string_view owner, const PinKey& key) {
  const auto pin = pins_.find(Name(owner, key));
  if (pin == pins_.end()) return false;
  Erase(pin);
  return true;
}

std::vector<Pin> PinTable::RemoveIf(
    absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which) {
  std::vector<Pin> removed;
  for (auto pin = pins_.begin(); pin != pins_.end();) {
    const auto next = std::next(pin);
    if (which(pin->first.first, pin->first.second)) {
      removed.push_back({pin->first.first, pin->first.second, pin->second});
      Erase(pin);
    }
    pin = next;
  }
  return removed;
}

std::vector<Pin> PinTable::Expire(uint64_t now_ms, size_t pins) {
  std::vector<Pin> expired;
  while (expired.size() < pins && !by_deadline_.empty()) {
    const auto [deadline_ms, name] = *by_deadline_.begin();
    if (deadline_ms > now_ms || deadline_ms == kNoDeadline_ms) break;
    expired.push_back({name->first, name->second, deadline_ms});
    Erase(pins_.find(*name));
  }
  return expired;
}

std::optional<uint64_t> PinTable::DeadlineOf(std::string_view owner, const PinKey& key) const {
  const auto pin = pins_.find(Name(owner, key));
  if (pin == pins_.end()) return std::nullopt;
  return pin->second;
}

uint32_t PinTable::Count(const PinKey& key) const {
  const auto count = counts_.find(key);
  return count == counts_.end() ? 0 : count->second;
}

void PinTable::Erase(Pins::iterator pin) {
  by_deadline_.erase({pin->second, &pin->first});
  const auto count = counts_.find(pin->first.second);
  if (--count->second == 0) counts_.erase(count);
  pins_.erase(pin);
}

void PinTable::CheckInvariants() const {
  LARDER_CHECK(pins_.size() <= pins_max_);
  LARDER_CHECK(by_deadline_.size() == pins_.size());
  for (const auto& [name, deadline_ms] : pins_) {
    LARDER_CHECK(by_deadline_.contains({deadline_ms, &name}));
    LARDER_CHECK(counts_.contains(name.second));
  }
  size_t counted = 0;
  for (const auto& [key, count] : counts_) {
    LARDER_CHECK(count > 0);
    counted += count;
  }
  LARDER_CHECK(counted == pins_.size());
}

}  // namespace larder
