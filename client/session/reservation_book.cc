#include "client/session/reservation_book.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace larder {

void ReservationBook::SetStockLimit(ByteCount bytes_max) {
  MutexLock lock(mu_);
  bytes_max_ = bytes_max.value();
}

void ReservationBook::ForgetIfUnused(ReservationId reservation) {
  const auto found = entries_.find(reservation);
  if (found != entries_.end() && found->second.in_use == 0 && found->second.stocked == 0) {
    entries_.erase(found);
  }
}

void ReservationBook::Unstock(const HeldExtent& extent, std::vector<wire::Abort>* aborts) {
  --extents_;
  bytes_ -= extent.where.bytes;
  --entries_[extent.reservation].stocked;
  ForgetIfUnused(extent.reservation);
  for (wire::Abort& abort : *aborts) {
    if (abort.reservation != extent.reservation) continue;
    abort.extents.push_back(extent.index);
    return;
  }
  aborts->push_back({extent.reservation, {extent.index}});
}

void ReservationBook::DropOtherSizes(ByteCount keep, std::vector<wire::Abort>* aborts) {
  for (auto it = stock_.begin(); it != stock_.end();) {
    if (it->first == keep) {
      ++it;
      continue;
    }
    for (const Stocked& stocked : it->second) Unstock(stocked.extent, aborts);
    it = stock_.erase(it);
  }
}

std::optional<HeldExtent> ReservationBook::Take(ByteCount bytes, TimePoint now) {
  MutexLock lock(mu_);
  last_use_ = now;
  const auto found = stock_.find(bytes);
  if (found == stock_.end()) return std::nullopt;
  const HeldExtent extent = found->second.front().extent;
  found->second.pop_front();
  if (found->second.empty()) stock_.erase(found);
  --extents_;
  bytes_ -= bytes.value();
  Entry& entry = entries_[extent.reservation];
  --entry.stocked;
  ++entry.in_use;
  return extent;
}

size_t ReservationBook::Ask(uint64_t id, ByteCount bytes, size_t wanted, TimePoint now,
                            std::vector<wire::Abort>* aborts) {
  MutexLock lock(mu_);
  if (now < full_until_ || bytes.value() == 0) return 0;
  const size_t sharers = sharers_ == nullptr ? 1 : std::max<size_t>(1, sharers_->load());
  const uint64_t bytes_max = std::min(bytes_max_ / sharers, kStockBytesMax.value());
  uint64_t have = 0;
  if (const auto found = stock_.find(bytes); found != stock_.end()) have = found->second.size();
  for (const auto& [asked_id, asked] : asked_) have += asked.bytes == bytes ? asked.count : 0;
  const uint64_t target = std::min({uint64_t{wanted}, kStockExtentsMax, bytes_max / bytes.value()});
  if (target <= have) return 0;
  uint64_t count = target - have;
  if (extents_ + count > kStockExtentsMax || bytes_ + count * bytes.value() > bytes_max) {
    DropOtherSizes(bytes, aborts);
  }
  const uint64_t room_bytes =
      bytes_max > bytes_ ? bytes_max - bytes_ : 0;  // the limit may have been lowered
  const uint64_t room = kStockExtentsMax > extents_ ? kStockExtentsMax - extents_ : 0;
  count = std::min({count, room, room_bytes / bytes.value()});
  if (count == 0) return 0;
  asked_.emplace(id, Asked{bytes, count});
  extents_ += count;
  bytes_ += count * bytes.value();
  return count;
}

bool ReservationBook::OnReserved(const wire::Reserved& reserved, TimePoint now) {
  MutexLock lock(mu_);
  const auto found = asked_.find(reserved.id);
  if (found == asked_.end()) return false;
  const Asked asked = found->second;
  asked_.erase(found);
  extents_ -= asked.count;
  bytes_ -= asked.count * asked.bytes.value();
  if (reserved.status != BlockStatus::kOk) {
    full_until_ = now + kIdle;
    return true;
  }
  const bool sound = reserved.reservation && reserved.extents.size() == asked.count &&
                     !entries_.contains(reserved.reservation);
  if (!sound) return true;  // not a possible grant: its extents end at the deadline
  entries_[reserved.reservation].stocked = asked.count;
  extents_ += asked.count;
  bytes_ += asked.count * asked.bytes.value();
  std::deque<Stocked>& stock = stock_[asked.bytes];
  for (uint32_t i = 0; i < asked.count; ++i) {
    HeldExtent extent{reserved.reservation, i, reserved.extents[i]};
    extent.where.bytes = asked.bytes.value();  // as requested; its place is checked on use
    stock.push_back({extent, now});
  }
  return true;
}

std::optional<TimePoint> ReservationBook::Expire(TimePoint now, bool all,
                                                 std::vector<wire::Abort>* aborts) {
  MutexLock lock(mu_);
  const bool idle = all || now >= last_use_ + kIdle;
  for (auto it = stock_.begin(); it != stock_.end();) {
    std::deque<Stocked>& stock = it->second;
    while (!stock.empty() && (idle || now >= stock.front().since + kStockDeadline / 2)) {
      Unstock(stock.front().extent, aborts);
      stock.pop_front();
    }
    it = stock.empty() ? stock_.erase(it) : std::next(it);
  }
  if (stock_.empty()) return std::nullopt;
  return std::max(last_use_ + kIdle, now + kIdle / 10);
}

bool ReservationBook::Add(ReservationId reservation, size_t count) {
  MutexLock lock(mu_);
  return entries_.try_emplace(reservation, Entry{.in_use = count}).second;
}

bool ReservationBook::Leave(ReservationId reservation) {
  MutexLock lock(mu_);
  const auto found = entries_.find(reservation);
  if (found == entries_.end() || found->second.in_use == 0) return false;
  const bool last = --found->second.in_use == 0;
  const bool acknowledge = last && found->second.revoked;
  ForgetIfUnused(reservation);
  return acknowledge;
}

bool ReservationBook::in_use() {
  MutexLock lock(mu_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry.second.in_use > 0; });
}

bool ReservationBook::Revoke(ReservationId reservation) {
  MutexLock lock(mu_);
  const auto found = entries_.find(reservation);
  if (found == entries_.end()) return true;
  found->second.revoked = true;
  std::vector<wire::Abort> void_now;  // not sent: the daemon already has these back
  for (auto it = stock_.begin(); it != stock_.end();) {
    std::deque<Stocked>& stock = it->second;
    std::deque<Stocked> kept;
    for (Stocked& stocked : stock) {
      if (stocked.extent.reservation != reservation) {
        kept.push_back(std::move(stocked));
      } else if (entries_.contains(reservation)) {
        Unstock(stocked.extent, &void_now);
      }
    }
    stock = std::move(kept);
    it = stock.empty() ? stock_.erase(it) : std::next(it);
  }
  return !entries_.contains(reservation);
}

}  // namespace larder
