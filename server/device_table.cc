#include "server/device_table.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace larder {

void DeviceTable::SessionBegan(SessionId session, const std::string& engine_id) {
  MutexLock lock(mu_);
  const uint32_t number = NumberOf(engine_id);
  ++EngineNumbered(number).sessions;
  LARDER_CHECK(sessions_.try_emplace(session, Session{.engine = number, .has = {}}).second);
}

void DeviceTable::SessionEnded(SessionId session) {
  MutexLock lock(mu_);
  LetAllGo(session);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  --EngineNumbered(it->second.engine).sessions;
  sessions_.erase(it);
}

size_t DeviceTable::Stored(SessionId session, const Report& report) {
  if (report.digests.empty()) return 0;
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return 0;
  Engine& engine = EngineNumbered(it->second.engine);
  const size_t each = report.tokens.size() / report.digests.size();
  size_t left_out = 0;
  for (size_t i = 0; i < report.digests.size(); ++i) {
    const Name name{report.variant, report.digests[i]};
    bool is_new = false;
    if (!it->second.has.contains(name)) {
      if (!HasPlace(engine)) {
        ++left_out;
        continue;
      }
      it->second.has.insert(name);
      ++places_;
      ++engine.places;
      engine.blocks[name].holders.push_back(session);
      is_new = engine.blocks[name].holders.size() == 1;
    }
    KeepChain(engine, engine.blocks[name], i == 0 ? report.parent : report.digests[i - 1],
              report.tokens.subspan(i * each, each));
    if (!is_new) continue;
    blocks_.fetch_add(1, std::memory_order_relaxed);
    Tell(engine, {name.second, name.first, Tier::kDevice, true, false, it->second.engine});
  }
  return left_out;
}

// They were checked: what is known already is the same.
void DeviceTable::KeepChain(Engine& engine, Block& block, const Digest& parent,
                            std::span<const uint32_t> tokens) {
  if (!block.tokens.empty() || tokens_ + tokens.size() > limits_.tokens_max ||
      engine.tokens + tokens.size() > limits_.tokens_max / 2) {
    return;
  }
  block.parent = parent;
  block.tokens.assign(tokens.begin(), tokens.end());
  tokens_ += tokens.size();
  engine.tokens += tokens.size();
}

void DeviceTable::Removed(SessionId session, VariantIndex variant,
                          std::span<const Digest> digests) {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  Engine& engine = EngineNumbered(it->second.engine);
  for (const Digest& digest : digests) {
    const Name name{variant, digest};
    if (it->second.has.erase(name) > 0 && LetGo(session, engine, name))
      Tell(engine, {digest, variant, Tier::kDevice, false, false, it->second.engine});
  }
}

void DeviceTable::Cleared(SessionId session) {
  MutexLock lock(mu_);
  LetAllGo(session);
}

void DeviceTable::LetAllGo(SessionId session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || it->second.has.empty()) return;
  const uint32_t number = it->second.engine;
  Engine& engine = EngineNumbered(number);
  std::vector<Name> gone;
  for (const Name& name : std::exchange(it->second.has, {})) {
    if (LetGo(session, engine, name)) gone.push_back(name);
  }
  if (engine.blocks.empty()) {
    return Tell(engine, {{}, VariantIndex::kNone, Tier::kDevice, false, true, number});
  }
  for (const auto& [variant, digest] : gone)
    Tell(engine, {digest, variant, Tier::kDevice, false, false, number});
}

bool DeviceTable::LetGo(SessionId session, Engine& engine, const Name& name) {
  --places_;
  --engine.places;
  const auto it = engine.blocks.find(name);
  auto& holders = it->second.holders;
  holders.erase(std::ranges::find(holders, session));
  if (!holders.empty()) return false;
  tokens_ -= it->second.tokens.size();
  engine.tokens -= it->second.tokens.size();
  engine.blocks.erase(it);
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

// Those without a session of which no event that is still known tells.
void DeviceTable::ForgetEngines() {
  for (auto it = engines_.begin(); it != engines_.end();) {
    const Engine& engine = it->second;
    if (engine.sessions > 0 || events_.KnowsOfDevice(engine.told)) {
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

bool DeviceTable::Has(std::string_view engine_id) const {
  MutexLock lock(mu_);
  const Engine* const engine = Find(engine_id);
  return engine != nullptr && !engine->blocks.empty();
}

template <class OnEngine>
void DeviceTable::ForEachEngine(std::string_view engine_id, OnEngine visit) const {
  if (engine_id.empty()) {
    for (const auto& [number, engine] : engines_) visit(engine);
  } else if (const Engine* const engine = Find(engine_id); engine != nullptr) {
    visit(*engine);
  }
}

void DeviceTable::ForEachHolder(std::string_view engine_id, std::span<const Name> blocks,
                                absl::FunctionRef<void(size_t i, SessionId)> hold) const {
  MutexLock lock(mu_);
  ForEachEngine(engine_id, [&](const Engine& engine) {
    if (engine.blocks.empty()) return;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto block = engine.blocks.find(blocks[i]);
      if (block == engine.blocks.end()) continue;
      for (const SessionId session : block->second.holders) hold(i, session);
    }
  });
}

std::vector<SessionId> DeviceTable::Holders() const {
  std::vector<SessionId> holders;
  MutexLock lock(mu_);
  for (const auto& [id, session] : sessions_) {
    if (!session.has.empty()) holders.push_back(id);
  }
  return holders;
}

void DeviceTable::ForEach(std::string_view engine_id, Visit visit) const {
  MutexLock lock(mu_);
  ForEachEngine(engine_id, [&](const Engine& engine) {
    for (const auto& [name, block] : engine.blocks)
      visit(name.first, name.second, block.tokens.empty() ? nullptr : &block.parent);
  });
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
  if (block == engine->second.blocks.end() || block->second.tokens.empty()) return std::nullopt;
  return Chain{block->second.parent, block->second.tokens};
}

void DeviceTable::CheckInvariants() const {
  MutexLock lock(mu_);
  size_t blocks = 0, places = 0, tokens = 0, sessions = 0;
  for (const auto& [number, engine] : engines_) {
    LARDER_CHECK(numbers_.at(engine.id) == number);
    size_t of_engine = 0;
    for (const auto& [name, block] : engine.blocks) {
      tokens += block.tokens.size();
      of_engine += block.holders.size();
      LARDER_CHECK(!block.holders.empty());
      for (const SessionId holder : block.holders) {
        LARDER_CHECK(sessions_.at(holder).engine == number);
        LARDER_CHECK(sessions_.at(holder).has.contains(name));
      }
    }
    LARDER_CHECK(of_engine == engine.places && of_engine <= limits_.places_max / 2);
    blocks += engine.blocks.size();
    places += of_engine;
    sessions += engine.sessions;
  }
  size_t had = 0;
  for (const auto& [id, session] : sessions_) had += session.has.size();
  LARDER_CHECK(sessions == sessions_.size() && had == places && places == places_);
  LARDER_CHECK(numbers_.size() == engines_.size());
  LARDER_CHECK(blocks == blocks_.load() && places <= limits_.places_max);
  LARDER_CHECK(tokens == tokens_ && tokens <= limits_.tokens_max);
}

}  // namespace larder
