#include "server/device_table.h"

#include <algorithm>

#include "storage/check.h"

namespace larder {

size_t DeviceTable::Stored(SessionId session, const std::string& engine_id, const Report& report) {
  if (report.digests.empty()) return 0;
  MutexLock lock(mu_);
  const uint32_t number = NumberOf(engine_id);
  sessions_[session] = number;
  Engine& engine = engines_.find(number)->second;
  const size_t each = report.tokens.size() / report.digests.size();
  std::optional<Digest> parent = report.parent;
  size_t left_out = 0;
  for (size_t i = 0; i < report.digests.size(); ++i) {
    const Name name{report.variant, report.digests[i]};
    if (!Add(session, number, engine, name, parent, report.tokens.subspan(i * each, each)))
      ++left_out;
    if (parent) parent = report.digests[i];
  }
  return left_out;
}

bool DeviceTable::Add(SessionId session, uint32_t number, Engine& engine, const Name& name,
                      std::optional<Digest> parent, std::span<const uint32_t> tokens) {
  const auto [it, is_new] = engine.blocks.try_emplace(name);
  Block& block = it->second;
  if (is_new && blocks() >= limits_.blocks_max) {
    engine.blocks.erase(it);
    return false;
  }
  if (std::ranges::find(block.holders, session) == block.holders.end())
    block.holders.push_back(session);
  if (!block.parent) block.parent = parent;
  if (block.tokens.empty() && tokens.size() <= limits_.tokens_max - tokens_) {
    block.tokens.assign(tokens.begin(), tokens.end());
    tokens_ += tokens.size();
  }
  if (!is_new) return true;
  blocks_.fetch_add(1, std::memory_order_relaxed);
  Tell(engine, {.digest = name.second,
                .variant = name.first,
                .tier = Tier::kDevice,
                .stored = true,
                .engine = number});
  return true;
}

void DeviceTable::Removed(SessionId session, VariantIndex variant,
                          std::span<const Digest> digests) {
  MutexLock lock(mu_);
  const auto of = sessions_.find(session);
  if (of == sessions_.end()) return;
  Engine& engine = engines_.find(of->second)->second;
  for (const Digest& digest : digests) {
    const auto it = engine.blocks.find(Name{variant, digest});
    if (it == engine.blocks.end() || !LetGo(session, it->second)) continue;
    engine.blocks.erase(it);
    Tell(engine, {digest, variant, Tier::kDevice, false, false, of->second});
  }
}

void DeviceTable::Cleared(SessionId session) {
  MutexLock lock(mu_);
  const auto of = sessions_.find(session);
  if (of == sessions_.end()) return;
  const uint32_t number = of->second;
  sessions_.erase(of);
  Engine& engine = engines_.find(number)->second;
  std::vector<Name> gone;
  for (auto it = engine.blocks.begin(); it != engine.blocks.end();) {
    if (!LetGo(session, it->second)) {
      ++it;
      continue;
    }
    gone.push_back(it->first);
    it = engine.blocks.erase(it);
  }
  if (gone.empty()) return;
  if (engine.blocks.empty()) {
    return Tell(engine, {.tier = Tier::kDevice, .cleared = true, .engine = number});
  }
  for (const auto& [variant, digest] : gone)
    Tell(engine, {digest, variant, Tier::kDevice, false, false, number});
}

bool DeviceTable::LetGo(SessionId session, Block& block) {
  const auto holder = std::ranges::find(block.holders, session);
  if (holder == block.holders.end()) return false;
  block.holders.erase(holder);
  if (!block.holders.empty()) return false;
  tokens_ -= block.tokens.size();
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// ---- engines

void DeviceTable::Tell(Engine& engine, const TierEvent& event) {
  events_.Append(event);
  engine.told = events_.newest();  // or one of another tier that came since: later is enough
}

uint32_t DeviceTable::NumberOf(const std::string& engine_id) {
  const auto it = numbers_.find(engine_id);
  if (it != numbers_.end()) return it->second;
  if (engines_.size() >= forget_at_) ForgetEngines();
  const uint32_t number = ++last_number_;
  engines_[number].id = engine_id;
  numbers_.emplace(engine_id, number);
  return number;
}

// Those that have nothing, and of which no event that is still known tells.
void DeviceTable::ForgetEngines() {
  absl::flat_hash_map<uint32_t, bool> attached;
  for (const auto& [session, number] : sessions_) attached[number] = true;
  for (auto it = engines_.begin(); it != engines_.end();) {
    const auto& [number, engine] = *it;
    const bool known = engine.told > 0 && events_.Read(engine.told - 1, {}).has_value();
    if (known || !engine.blocks.empty() || attached.contains(number)) {
      ++it;
      continue;
    }
    numbers_.erase(engine.id);
    it = engines_.erase(it);
  }
  forget_at_ = 2 * engines_.size() + 64;
}

const DeviceTable::Engine* DeviceTable::Find(std::string_view engine_id) const {
  const auto number = numbers_.find(engine_id);
  return number == numbers_.end() ? nullptr : &engines_.find(number->second)->second;
}

// ---- what is there

void DeviceTable::Lookup(std::string_view engine_id, VariantIndex variant,
                         std::span<const Digest> digests, std::span<char> there) const {
  LARDER_CHECK(there.size() == digests.size());
  MutexLock lock(mu_);
  const Engine* const engine = Find(engine_id);
  for (size_t i = 0; i < digests.size(); ++i)
    there[i] = engine != nullptr && engine->blocks.contains(Name{variant, digests[i]}) ? 1 : 0;
}

std::vector<SessionId> DeviceTable::HoldersOf(std::string_view engine_id, VariantIndex variant,
                                              const Digest& digest) const {
  std::vector<SessionId> holders;
  MutexLock lock(mu_);
  for (const auto& [number, engine] : engines_) {
    if (!engine_id.empty() && engine.id != engine_id) continue;
    const auto it = engine.blocks.find(Name{variant, digest});
    if (it == engine.blocks.end()) continue;
    holders.insert(holders.end(), it->second.holders.begin(), it->second.holders.end());
  }
  return holders;
}

std::vector<SessionId> DeviceTable::Sessions() const {
  std::vector<SessionId> sessions;
  MutexLock lock(mu_);
  for (const auto& [session, number] : sessions_) sessions.push_back(session);
  return sessions;
}

void DeviceTable::ForEach(std::string_view engine_id, Visit visit) const {
  MutexLock lock(mu_);
  for (const auto& [number, engine] : engines_) {
    if (!engine_id.empty() && engine.id != engine_id) continue;
    for (const auto& [name, block] : engine.blocks)
      visit(name.first, name.second, block.parent ? &*block.parent : nullptr);
  }
}

size_t DeviceTable::Page(Cursor* cursor, std::span<TierEvent> to) const {
  MutexLock lock(mu_);
  size_t count = 0;
  for (auto engine = engines_.lower_bound(cursor->engine_); engine != engines_.end(); ++engine) {
    if (engine->first != cursor->engine_) cursor->last_.reset();
    cursor->engine_ = engine->first;
    const auto& blocks = engine->second.blocks;
    auto block = cursor->last_ ? blocks.upper_bound(*cursor->last_) : blocks.begin();
    for (; block != blocks.end(); ++block) {
      if (count == to.size()) return count;
      cursor->last_ = block->first;
      to[count++] = {.digest = block->first.second,
                     .variant = block->first.first,
                     .tier = Tier::kDevice,
                     .stored = true,
                     .engine = engine->first};
    }
  }
  cursor->engine_ = Cursor::kDone;
  return count;
}

std::string DeviceTable::EngineOf(const TierEvent& event) const {
  MutexLock lock(mu_);
  const auto engine = engines_.find(event.engine);
  return engine == engines_.end() ? std::string() : engine->second.id;
}

std::optional<DeviceTable::Chain> DeviceTable::ChainOf(const TierEvent& event) const {
  MutexLock lock(mu_);
  const auto engine = engines_.find(event.engine);
  if (engine == engines_.end()) return std::nullopt;
  const auto block = engine->second.blocks.find(Name{event.variant, event.digest});
  if (block == engine->second.blocks.end() || !block->second.parent || block->second.tokens.empty())
    return std::nullopt;
  return Chain{*block->second.parent, block->second.tokens};
}

void DeviceTable::CheckInvariants() const {
  MutexLock lock(mu_);
  size_t blocks = 0, tokens = 0;
  for (const auto& [number, engine] : engines_) {
    LARDER_CHECK(numbers_.at(engine.id) == number);
    blocks += engine.blocks.size();
    for (const auto& [name, block] : engine.blocks) {
      tokens += block.tokens.size();
      LARDER_CHECK(!block.holders.empty());
      for (const SessionId holder : block.holders) LARDER_CHECK(sessions_.at(holder) == number);
    }
  }
  LARDER_CHECK(numbers_.size() == engines_.size());
  LARDER_CHECK(blocks == blocks_.load() && blocks <= limits_.blocks_max);
  LARDER_CHECK(tokens == tokens_ && tokens <= limits_.tokens_max);
}

}  // namespace larder
