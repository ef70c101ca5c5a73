#include "storage/store/pin_table.h"

#include <iterator>

#include "storage/check.h"

namespace larder {

namespace {

// Returns "uid:N" for "uid:N/NAME", "" for prefetches, and nullopt for operators.
std::optional<std::string> UserOf(std::string_view owner) {
  if (owner.empty()) return "";
  const size_t slash = owner.find('/');
  if (!owner.starts_with("uid:") || slash == std::string_view::npos) return std::nullopt;
  return std::string(owner.substr(0, slash));
}

}  // namespace

PinTable::AddResult PinTable::Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms,
                                  uint64_t pages) {
  Name name(owner, key);
  if (const auto pin = pins_.find(name); pin != pins_.end()) {
    by_deadline_.erase({pin->second.deadline_ms, &pin->first});
    pin->second.deadline_ms = deadline_ms;
    by_deadline_.emplace(deadline_ms, &pin->first);
    return AddResult::kMoved;
  }
  if (pins_.size() >= pins_max_) return AddResult::kFull;
  const auto pin = pins_.emplace(std::move(name), Value{deadline_ms, pages}).first;
  by_deadline_.emplace(deadline_ms, &pin->first);
  ++counts_[key];
  Account(pin->first, pages, /*add=*/true);
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
      removed.push_back({pin->first.first, pin->first.second, pin->second.deadline_ms});
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
  return pin->second.deadline_ms;
}

std::optional<PinTable::Holding> PinTable::HoldingOf(std::string_view owner) const {
  const std::optional<std::string> user = UserOf(owner);
  if (!user) return std::nullopt;
  const auto holding = holdings_.find(*user);
  return holding == holdings_.end() ? Holding{} : holding->second;
}

void PinTable::Account(const Name& name, uint64_t pages, bool add) {
  const std::optional<std::string> user = UserOf(name.first);
  if (!user) return;
  Holding& holding = holdings_[*user];
  uint64_t& of_tier = name.second.tier == Tier::kHost ? holding.host_pages : holding.disk_pages;
  if (add) {
    ++holding.pins;
    of_tier += pages;
    return;
  }
  of_tier -= pages;
  if (--holding.pins == 0) holdings_.erase(*user);
}

uint32_t PinTable::Count(const PinKey& key) const {
  const auto count = counts_.find(key);
  return count == counts_.end() ? 0 : count->second;
}

void PinTable::Erase(Pins::iterator pin) {
  by_deadline_.erase({pin->second.deadline_ms, &pin->first});
  Account(pin->first, pin->second.pages, /*add=*/false);
  const auto count = counts_.find(pin->first.second);
  if (--count->second == 0) counts_.erase(count);
  pins_.erase(pin);
}

void PinTable::CheckInvariants() const {
  LARDER_CHECK(pins_.size() <= pins_max_);
  LARDER_CHECK(by_deadline_.size() == pins_.size());
  absl::flat_hash_map<std::string, Holding> held;
  for (const auto& [name, value] : pins_) {
    LARDER_CHECK(by_deadline_.contains({value.deadline_ms, &name}));
    LARDER_CHECK(counts_.contains(name.second));
    if (const std::optional<std::string> user = UserOf(name.first)) {
      Holding& holding = held[*user];
      ++holding.pins;
      (name.second.tier == Tier::kHost ? holding.host_pages : holding.disk_pages) += value.pages;
    }
  }
  LARDER_CHECK(held == holdings_);
  size_t counted = 0;
  for (const auto& [key, count] : counts_) {
    LARDER_CHECK(count > 0);
    counted += count;
  }
  LARDER_CHECK(counted == pins_.size());
}

}  // namespace larder
