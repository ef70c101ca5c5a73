#include "storage/disk/tier_facts.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

using Fact = DiskTier::Fact;

constexpr size_t kForgottenAtOnce = 4096;
constexpr size_t kOwedAtOnce = 64;  // few, because a caller of Put waits for these deletions too
constexpr size_t kCopiedBytesAtOnce = 1 << 20;

// The value of a fact as a shard stores it: the sequence number, then the caller's value.
std::string Stored(uint64_t sequence, std::string_view value) {
  std::string stored(sizeof sequence, '\0');
  std::memcpy(stored.data(), &sequence, sizeof sequence);
  return stored.append(value);
}

}  // namespace

TierFacts::Shards TierFacts::Read(const Shards& open, Visit visit) {
  Shards whole;
  for (const std::shared_ptr<DiskShard>& shard : open) {
    const absl::Status status = shard->catalog().ForEachFact(
        [&](const std::string& key, const std::string& stored) LARDER_NO_THREAD_SAFETY_ANALYSIS {
          uint64_t sequence = 0;
          if (stored.size() < sizeof sequence) return;
          std::memcpy(&sequence, stored.data(), sizeof sequence);
          sequence_ = std::max(sequence_, sequence);
          visit(key, sequence, std::string_view(stored).substr(sizeof sequence));
        });
    if (status.ok()) whole.push_back(shard);
    if (!status.ok() && warn_) warn_(std::string(status.message()));
  }
  return whole;
}

void TierFacts::Load(const Shards& open) {
  MutexLock lock(mu_);
  std::map<std::string, Newest> newest;
  const Shards whole =
      Read(open, [&](const std::string& key, uint64_t sequence, std::string_view value) {
        Newest& known = newest[key];
        if (known.shards == 0 || sequence > known.sequence)
          known = {.sequence = sequence, .value_bytes = value.size()};
        known.shards += sequence == known.sequence ? 1 : 0;
      });
  budget_.Clear();
  owed_.clear();
  std::vector<Known> known;
  std::vector<Fact> forgotten;
  for (const auto& [key, fact] : newest) {
    budget_.Set(key, fact.value_bytes);
    if (fact.value_bytes == 0) {
      forgotten.push_back({key, ""});
    } else {
      known.push_back({key, fact.sequence, fact.value_bytes});
    }
  }
  std::vector<Fact> beyond = BeyondBudget(std::move(known));
  for (const Fact& fact : beyond) newest.erase(fact.key);
  std::erase_if(newest, [&](const auto& each) {
    return each.second.value_bytes == 0 || each.second.shards >= whole.size();
  });
  CopyToAll(whole, newest);
  if (!beyond.empty() && warn_) {
    warn_(
        absl::StrCat("of the registrations and pins that a former daemon left on disk, the oldest ",
                     beyond.size(), " are forgotten: all of them take ", budget_.bytes().value(),
                     " bytes, but only ", budget_.bytes_max().value(),
                     " are reserved for them, and blocks need the rest"));
  }
  forgotten.insert(forgotten.end(), std::make_move_iterator(beyond.begin()),
                   std::make_move_iterator(beyond.end()));
  for (size_t at = 0; at < forgotten.size(); at += kForgottenAtOnce) {
    const size_t count = std::min(kForgottenAtOnce, forgotten.size() - at);
    // A fact that could not be deleted still counts against the budget; at the latest the next Load
    // tries again.
    const absl::Status status = Write(open, std::span(forgotten).subspan(at, count));
    if (!status.ok() && warn_) warn_(std::string(status.message()));
  }
  TellUses(open);
}

// A shard whose catalog was set aside has lost all facts, and a shard that was closed may lack
// some.  Without copies, these facts would be lost if the shards that have them were damaged.  A
// shard that could not be read gets no copies, because it may have newer versions.
void TierFacts::CopyToAll(const Shards& whole, const std::map<std::string, Newest>& lacking) {
  if (lacking.empty()) return;
  const auto is_newest = [&](const std::string& key, uint64_t sequence) {
    const auto at = lacking.find(key);
    return at != lacking.end() && at->second.sequence == sequence;
  };
  std::map<std::string, std::string> stored;
  (void)Read(whole, [&](const std::string& key, uint64_t sequence, std::string_view value) {
    if (is_newest(key, sequence)) stored.try_emplace(key, Stored(sequence, value));
  });
  for (const std::shared_ptr<DiskShard>& shard : whole) {
    absl::flat_hash_set<std::string> has;
    (void)Read({shard}, [&](const std::string& key, uint64_t sequence, std::string_view) {
      if (is_newest(key, sequence)) has.insert(key);
    });
    std::vector<Fact> some;
    size_t bytes = 0;
    absl::Status status;
    for (const auto& [key, value] : stored) {
      if (has.contains(key)) continue;
      if (bytes > kCopiedBytesAtOnce) {
        status.Update(shard->PutFacts(some, DiskShard::Facts::kNew));
        some.clear();
        bytes = 0;
      }
      bytes += key.size() + value.size();
      some.push_back({key, value});
    }
    if (!some.empty()) status.Update(shard->PutFacts(some, DiskShard::Facts::kNew));
    if (!status.ok() && warn_)
      warn_(
          absl::StrCat("a shard of the disk lacks pins or registrations and does not accept copies "
                       "of them, so they would be lost with the other shards: ",
                       status.message()));
  }
}

// Returns those facts for which the budget has no space.  Pins may use up the shares of the other
// kinds, because engines send their registrations again.
std::vector<Fact> TierFacts::BeyondBudget(std::vector<Known> known) const {
  std::sort(known.begin(), known.end(),
            [](const Known& a, const Known& b) { return a.sequence > b.sequence; });
  std::vector<Fact> beyond;
  uint64_t left = budget_.bytes_max().value();
  for (size_t kind = 0; kind < DiskTier::kFactKinds; ++kind) {
    uint64_t mine = budget_.UseOf(static_cast<DiskTier::FactKind>(kind)).bytes_max.value();
    mine = kind == static_cast<size_t>(DiskTier::FactKind::kPin) ? left : std::min(left, mine);
    for (Known& fact : known) {
      if (static_cast<size_t>(DiskTier::KindOf(fact.key)) != kind) continue;
      const uint64_t bytes = FactBudget::BytesOf(fact.key, fact.value_bytes);
      if (bytes <= mine) {
        mine -= bytes;
        left -= bytes;
      } else {
        mine = 0;  // older facts of the kind are deleted, too, even smaller ones
        beyond.push_back({std::move(fact.key), ""});
        fact.key.clear();
      }
    }
  }
  return beyond;
}

absl::Status TierFacts::Put(const Shards& open, std::span<const Fact> facts) {
  MutexLock lock(mu_);
  LARDER_RETURN_IF_ERROR(budget_.Admit(facts));
  return Write(open, facts);
}

absl::Status TierFacts::Write(const Shards& open, std::span<const Fact> facts) {
  absl::Status result = WriteNow(open, facts);
  if (!result.ok() || owed_.empty() || open.size() < shards_) return result;
  std::vector<Fact> again;
  for (auto key = owed_.begin(); key != owed_.end() && again.size() < kOwedAtOnce; ++key)
    again.push_back({*key, ""});
  (void)WriteNow(open, again);  // if this fails, a later Write tries again
  return result;
}

absl::Status TierFacts::WriteNow(const Shards& open, std::span<const Fact> facts) {
  const uint64_t sequence = ++sequence_;
  std::vector<Fact> stored, forgotten;
  for (const Fact& fact : facts) {
    owed_.erase(fact.key);
    stored.push_back({fact.key, Stored(sequence, fact.value)});
    if (fact.value.empty()) forgotten.push_back(fact);
  }
  const auto what =
      forgotten.size() == facts.size() ? DiskShard::Facts::kForgotten : DiskShard::Facts::kNew;
  absl::Status result = absl::UnavailableError("no shard of the disk is open");
  uint32_t took = 0, forgot = 0;
  for (const std::shared_ptr<DiskShard>& shard : open) {
    absl::Status status = shard->PutFacts(stored, what);
    took += status.ok() ? 1 : 0;
    if (!result.ok()) result = std::move(status);
  }
  if (took > 0) {
    for (const Fact& fact : facts) budget_.Set(fact.key, fact.value.size());
  }
  if (!forgotten.empty() && took == shards_) {
    for (const std::shared_ptr<DiskShard>& shard : open)
      forgot += shard->PutFacts(forgotten, DiskShard::Facts::kForgotten).ok() ? 1 : 0;
  }
  for (const Fact& fact : forgotten) {
    if (forgot == shards_) {
      budget_.Remove(fact.key);
    } else if (took > 0) {
      owed_.insert(fact.key);
    }
  }
  TellUses(open);
  return result;
}

void TierFacts::ForEach(
    const Shards& open,
    absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) {
  std::map<std::string, std::pair<uint64_t, std::string>> newest;
  {
    MutexLock lock(mu_);
    (void)Read(open, [&](const std::string& key, uint64_t sequence, std::string_view value) {
      auto& known = newest[key];
      if (sequence >= known.first) known = {sequence, std::string(value)};
    });
  }
  for (const auto& [key, fact] : newest) {
    if (!fact.second.empty()) visit(key, fact.second);
  }
}

void TierFacts::TellUses(const Shards& open) {
  for (const std::shared_ptr<DiskShard>& shard : open) shard->SetFactBytes(budget_.bytes());
  MutexLock lock(uses_mu_);
  uses_ = budget_.uses();
}

DiskTier::FactUses TierFacts::uses() const {
  MutexLock lock(uses_mu_);
  return uses_;
}

}  // namespace larder
