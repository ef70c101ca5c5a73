#include "server/instances/device_table.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace larder {

void DeviceTable::SessionBegan(SessionId session, const std::string& engine_id,
                               const Shares::Account* who) {
  MutexLock lock(mu_);
  const uint32_t number = NumberOf(engine_id);
  ++EngineNumbered(number).sessions;
  Session began;
  began.engine = number;
  if (who != nullptr) began.account = *who;
  LARDER_CHECK(sessions_.try_emplace(session, std::move(began)).second);
}

void DeviceTable::SessionEnded(SessionId session) {
  Session ended;
  {
    MutexLock lock(mu_);
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) return;
    ended = std::move(it->second);
    sessions_.erase(it);
  }
  LetAllGo(session, ended.engine, ended.has);
}

size_t DeviceTable::Stored(SessionId session, const Report& report) {
  if (report.digests.empty()) return 0;
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return 0;
  Engine& engine = EngineNumbered(it->second.engine);
  const size_t each = report.tokens.size() / report.digests.size();
  size_t left_out = 0;
  bool full = false;  // after a refusal no more places are taken in this call
  for (size_t i = 0; i < report.digests.size(); ++i) {
    const Name name{report.variant, report.digests[i]};
    const bool had = it->second.has.contains(name);
    if (!had && (full || !(HasPlace(engine) && TakePlace(it->second)))) {
      full = true;
      ++left_out;
      continue;
    }
    Block& block = engine.blocks[name];
    if (!had) {
      it->second.has.insert(name);
      ++places_;
      ++engine.places;
      block.holders.push_back(session);
    }
    KeepChain(engine, block, i == 0 ? report.parent : report.digests[i - 1],
              report.tokens.subspan(i * each, each));
    if (had || block.holders.size() > 1) continue;
    blocks_.fetch_add(1, std::memory_order_relaxed);
    Tell(engine, {name.second, name.first, Tier::kDevice, true, false, it->second.engine});
  }
  return left_out;
}

bool DeviceTable::TakePlace(Session& session) {
  if (!session.account) return true;
  Shares::Answer place = session.account->Take(ShareKind::kDevicePlaces);
  if (!place.admitted()) return false;
  session.places.Merge(std::move(place.ticket));
  return true;
}

// The caller has checked the tokens against the digest, so tokens that are already known are the
// same.
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
    if (it->second.has.erase(name) == 0) continue;
    if (it->second.places) it->second.places.ShrinkTo(it->second.places.amount() - 1);
    if (LetGo(session, engine, name))
      Tell(engine, {digest, variant, Tier::kDevice, false, false, it->second.engine});
  }
}

void DeviceTable::Cleared(SessionId session) {
  Names had;
  uint32_t number = 0;
  {
    MutexLock lock(mu_);
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) return;
    had = std::exchange(it->second.has, {});
    it->second.places.Reset();
    number = it->second.engine;
    ++EngineNumbered(number).sessions;
  }
  LetAllGo(session, number, had);
}

// ---- the end of a session

// A block is erased and its event appended under one hold of the lock; otherwise the block could be
// stored again in between, and the two events would be in the wrong order.  Before ReportAgain no
// events are appended for erased blocks, because ReportAgain reports the engine as cleared and then
// every remaining block.
void DeviceTable::LetAllGo(SessionId session, uint32_t number, const Names& has) {
  if (LetEngineGo(number, has)) return;
  const bool reports_again = CheaperToReportAgain(number, has);
  for (auto name = has.begin(); name != has.end();) {
    MutexLock lock(mu_);
    Engine& engine = EngineNumbered(number);
    for (size_t i = 0; i < kSlice && name != has.end(); ++i, ++name) {
      if (LetGo(session, engine, *name) && !reports_again)
        Tell(engine, {name->second, name->first, Tier::kDevice, false, false, number});
    }
  }
  if (reports_again) ReportAgain(number);
  MutexLock lock(mu_);
  --EngineNumbered(number).sessions;
}

bool DeviceTable::LetEngineGo(uint32_t number, const Names& has) {
  absl::btree_map<Name, Block> gone;  // freed without the lock
  MutexLock lock(mu_);
  Engine& engine = EngineNumbered(number);
  if (engine.places != has.size()) return false;
  gone.swap(engine.blocks);
  blocks_.fetch_sub(gone.size(), std::memory_order_relaxed);
  places_ -= std::exchange(engine.places, 0);
  tokens_ -= std::exchange(engine.tokens, 0);
  if (!has.empty()) Tell(engine, {{}, VariantIndex::kNone, Tier::kDevice, false, true, number});
  --engine.sessions;
  return true;
}

bool DeviceTable::CheaperToReportAgain(uint32_t number, const Names& has) const {
  const size_t many = events_.events_max() / 4;
  if (has.size() <= many) return false;
  size_t gone = 0, there = 0;
  for (auto name = has.begin(); name != has.end();) {
    MutexLock lock(mu_);
    const auto& blocks = engines_.find(number)->second.blocks;
    there = blocks.size();
    for (size_t i = 0; i < kSlice && name != has.end(); ++i, ++name)
      gone += blocks.find(*name)->second.holders.size() == 1 ? 1 : 0;
  }
  return gone > many && there < 2 * gone;
}

// Other sessions of the engine may store and remove blocks meanwhile.  Their events may be
// interleaved with those of ReportAgain, but the last event of each block is right.
void DeviceTable::ReportAgain(uint32_t number) {
  Cursor left;
  left.engine_ = left.last_engine_ = number;
  {
    MutexLock lock(mu_);
    Tell(EngineNumbered(number), {{}, VariantIndex::kNone, Tier::kDevice, false, true, number});
  }
  while (!left.done()) {
    MutexLock lock(mu_);
    std::vector<Name> some;
    (void)Walk(&left, kSlice,
               [&](uint32_t, const Name& name, const Block&) { some.push_back(name); });
    for (const auto& [variant, digest] : some)
      Tell(EngineNumbered(number), {digest, variant, Tier::kDevice, true, false, number});
  }
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
  engine.told = events_.newest();  // may be a later event of another tier, which does no harm
}

uint32_t DeviceTable::NumberOf(const std::string& engine_id) {
  const auto it = numbers_.find(engine_id);
  if (it != numbers_.end()) return it->second;
  if (engines_.size() >= forget_at_) ForgetEngines();
  const uint32_t number = ++last_number_;
  engines_[number].id = engine_id;
  numbers_.emplace(engine_id, number);
  MutexLock lock(names_mu_);
  names_.emplace(number, engine_id);
  return number;
}

// Forgets engines that have no session, and of which the EventRing has no event.
void DeviceTable::ForgetEngines() {
  MutexLock lock(names_mu_);
  for (auto it = engines_.begin(); it != engines_.end();) {
    const Engine& engine = it->second;
    if (engine.sessions > 0 || events_.KnowsOfDevice(engine.told)) {
      ++it;
      continue;
    }
    numbers_.erase(engine.id);
    names_.erase(it->first);
    it = engines_.erase(it);
  }
  forget_at_ = 2 * engines_.size() + 64;
}

const DeviceTable::Engine* DeviceTable::Find(std::string_view engine_id) const {
  const auto number = numbers_.find(engine_id);
  return number == numbers_.end() ? nullptr : &engines_.find(number->second)->second;
}

// ---- queries

void DeviceTable::Lookup(std::string_view engine_id, VariantIndex variant,
                         std::span<const Digest> digests, std::span<char> there) const {
  LARDER_CHECK(there.size() == digests.size());
  for (size_t at = 0; at < digests.size();) {
    MutexLock lock(mu_);
    const Engine* const engine = Find(engine_id);
    for (const size_t end = std::min(at + kSlice, digests.size()); at < end; ++at)
      there[at] = engine != nullptr && engine->blocks.contains(Name{variant, digests[at]}) ? 1 : 0;
  }
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
  for (size_t from = 0; from < blocks.size(); from += kSlice) {
    const size_t end = std::min(from + kSlice, blocks.size());
    MutexLock lock(mu_);
    ForEachEngine(engine_id, [&](const Engine& engine) {
      if (engine.blocks.empty()) return;
      for (size_t i = from; i < end; ++i) {
        const auto block = engine.blocks.find(blocks[i]);
        if (block == engine.blocks.end()) continue;
        for (const SessionId session : block->second.holders) hold(i, session);
      }
    });
  }
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
  Cursor cursor;
  if (!engine_id.empty()) {
    MutexLock lock(mu_);
    const auto number = numbers_.find(engine_id);
    if (number == numbers_.end()) return;
    cursor.engine_ = cursor.last_engine_ = number->second;
  }
  while (!cursor.done()) {
    MutexLock lock(mu_);
    (void)Walk(&cursor, kSlice, [&](uint32_t, const Name& name, const Block& block) {
      visit(name.first, name.second, block.tokens.empty() ? nullptr : &block.parent);
    });
  }
}

size_t DeviceTable::Page(Cursor* cursor, std::span<TierEvent> to) const {
  MutexLock lock(mu_);
  size_t count = 0;
  return Walk(cursor, to.size(), [&](uint32_t number, const Name& name, const Block&) {
    to[count++] = {name.second, name.first, Tier::kDevice, true, false, number};
  });
}

template <class OnBlock>
size_t DeviceTable::Walk(Cursor* cursor, size_t most, OnBlock visit) const {
  size_t count = 0;
  for (auto engine = engines_.lower_bound(cursor->engine_);
       engine != engines_.end() && engine->first <= cursor->last_engine_; ++engine) {
    if (engine->first != cursor->engine_) cursor->last_.reset();
    cursor->engine_ = engine->first;
    const auto& blocks = engine->second.blocks;
    auto block = cursor->last_ ? blocks.upper_bound(*cursor->last_) : blocks.begin();
    for (; block != blocks.end(); ++block) {
      if (count == most) return count;
      cursor->last_ = block->first;
      ++count;
      visit(engine->first, block->first, block->second);
    }
  }
  cursor->engine_ = Cursor::kDone;
  return count;
}

std::string DeviceTable::EngineOf(const TierEvent& event) const {
  MutexLock lock(names_mu_);
  const auto name = names_.find(event.engine);
  return name == names_.end() ? std::string() : name->second;
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
  MutexLock names_lock(names_mu_);
  LARDER_CHECK(names_.size() == engines_.size());
  LARDER_CHECK(blocks == blocks_.load() && places <= limits_.places_max);
  LARDER_CHECK(tokens == tokens_ && tokens <= limits_.tokens_max);
}

}  // namespace larder
