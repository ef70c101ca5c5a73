#include "server/instances/directive_queue.h"

#include <algorithm>
#include <utility>

#include "server/instances/block_selection.h"

namespace larder {
namespace {

size_t OwedFor(size_t blocks) { return blocks + DirectiveQueue::kOwedOfDirective; }

// Returns true if DirectiveDone (engine.proto) lists `said` for this kind, and it is not CANCELLED
// or UNSUPPORTED.
bool MaySay(wire::DirectiveKind kind, BlockStatus said) {
  using Kind = wire::DirectiveKind;
  switch (said) {
    case BlockStatus::kOk:
    case BlockStatus::kMissing:
      return true;
    case BlockStatus::kKept:
      return kind == Kind::kDrop || kind == Kind::kCompress;
    case BlockStatus::kFull:
      return kind == Kind::kPin || kind == Kind::kCompress;
    default:
      return false;
  }
}

// Returns the status to report for an engine's answer.  kCancelled means that the directive came
// too late to be done.
BlockStatus Sane(wire::DirectiveKind kind, BlockStatus said) {
  if (said == BlockStatus::kCancelled) return BlockStatus::kPending;
  return MaySay(kind, said) ? said : BlockStatus::kUnsupported;
}

}  // namespace

DirectiveQueue::DirectiveQueue(const DeviceTable& devices, const Clock& clock, WallClock now_ms,
                               Counters& counters, Send send)
    : devices_(devices),
      clock_(clock),
      now_ms_(std::move(now_ms)),
      counters_(counters),
      send_(std::move(send)) {}

// ---- orders

void DirectiveQueue::Give(Order order, std::vector<Block> blocks, Answer answer) {
  const size_t count = blocks.size();
  const std::shared_ptr<Call> call =
      Begin(std::move(order), std::move(blocks), count, std::move(answer));
  std::map<std::pair<SessionId, VariantIndex>, std::vector<uint32_t>> wanted;
  devices_.ForEachHolder(call->order.engine_id, call->blocks, [&](size_t i, SessionId session) {
    wanted[{session, call->blocks[i].first}].push_back(static_cast<uint32_t>(i));
  });
  std::vector<Part> parts;
  for (const auto& [to, which] : wanted) {
    for (size_t at = 0; at < which.size(); at += wire::kKeysMax) {
      const std::span some =
          std::span(which).subspan(at, std::min(wire::kKeysMax, which.size() - at));
      parts.push_back({to.first, to.second, {some.begin(), some.end()}, call});
    }
  }
  Queue(std::move(parts));
  End(call);
}

void DirectiveQueue::GiveAll(Order order, std::span<const SessionId> sessions, Answer answer) {
  const std::shared_ptr<Call> call =
      Begin(std::move(order), {}, sessions.size(), std::move(answer));
  std::vector<Part> parts;
  for (uint32_t i = 0; i < sessions.size(); ++i)
    parts.push_back({sessions[i], VariantIndex::kNone, {i}, call});
  Queue(std::move(parts));
  End(call);
}

// `open` starts at 1 and End takes that 1 back, so that the call cannot be answered before all of
// its parts are queued.
std::shared_ptr<DirectiveQueue::Call> DirectiveQueue::Begin(Order order, std::vector<Block> blocks,
                                                            size_t statuses, Answer answer) {
  return std::make_shared<Call>(
      Call{.order = std::move(order),
           .blocks = std::move(blocks),
           .answer = std::move(answer),
           .statuses = std::vector<BlockStatus>(statuses, BlockStatus::kMissing),
           .open = 1});
}

void DirectiveQueue::End(std::shared_ptr<Call> call) {
  Answered answered;
  {
    MutexLock lock(mu_);
    if (--call->open == 0) answered.push_back(std::move(call));
  }
  Tell(answered);
}

void DirectiveQueue::Queue(std::vector<Part> parts) {
  std::vector<SessionId> sessions;
  {
    Answered none;  // stays empty: the call is open until End
    MutexLock lock(mu_);
    const TimePoint until = clock_.Now() + kPatience;
    for (Part& part : parts) {
      ++part.call->open;
      if (ended_) {
        Close(part, BlockStatus::kPending, {}, &none);
        continue;
      }
      if (sessions.empty() || sessions.back() != part.session) sessions.push_back(part.session);
      Line& line = lines_[part.session];
      if (line.waiting.empty()) line.until = until;
      line.waiting.push_back(std::move(part));
    }
  }
  for (const SessionId session : sessions) SendWaiting(session);
}

// Sends one part at a time, and looks the session up again for each: a part may be answered, or the
// session may end, before the next part is sent.
void DirectiveQueue::SendWaiting(SessionId session) {
  for (;;) {
    std::optional<wire::Directive> directive;
    VariantIndex variant{};
    {
      MutexLock lock(mu_);
      directive = TakeNext(session, &variant);
    }
    if (!directive) return;
    const uint64_t id = directive->directive_id;
    const BlockStatus sent = send_(session, variant, *std::move(directive));
    if (sent == BlockStatus::kOk) {
      ++counters_.directives_sent;
      continue;
    }
    Answered answered;
    {
      MutexLock lock(mu_);
      const auto it = parts_.find(id);
      if (it == parts_.end()) continue;
      Close(it->second, sent, {}, &answered);
      Erase(it);
    }
    Tell(answered);
  }
}

// The directive must expire no later than the queue stops waiting for its answer, so the wall clock
// is read before the steady clock.
std::optional<wire::Directive> DirectiveQueue::TakeNext(SessionId session, VariantIndex* variant) {
  const auto line = lines_.find(session);
  if (line == lines_.end() || line->second.waiting.empty()) return std::nullopt;
  std::deque<Part>& waiting = line->second.waiting;
  const size_t takes = OwedFor(waiting.front().blocks.size());
  if (line->second.owed + takes > kOwedMax) return std::nullopt;
  line->second.owed += takes;
  const uint64_t valid_ms =
      now_ms_() + static_cast<uint64_t>(std::chrono::milliseconds(kPatience).count());
  Part& part = parts_[++last_id_] = std::move(waiting.front());
  waiting.pop_front();
  part.until = clock_.Now() + kPatience;
  *variant = part.variant;
  const Order& order = part.call->order;
  wire::Directive directive{.directive_id = last_id_,
                            .kind = order.kind,
                            .deadline_unix_ms = order.deadline_unix_ms,
                            .owner = order.owner,
                            .codec = order.codec,
                            .pinned = order.pinned,
                            .valid_unix_ms = valid_ms};
  if (part.variant == VariantIndex::kNone) return directive;
  for (const uint32_t i : part.blocks) directive.digests.push_back(part.call->blocks[i].second);
  return directive;
}

// ---- answers

void DirectiveQueue::Close(Part& part, BlockStatus all, std::span<const BlockStatus> statuses,
                           Answered* answered) {
  const std::shared_ptr<Call> call = std::exchange(part.call, nullptr);
  if (call == nullptr) return;
  for (size_t i = 0; i < part.blocks.size(); ++i) {
    BlockStatus& status = call->statuses[part.blocks[i]];
    status = Worse(status, statuses.empty() ? all : Sane(call->order.kind, statuses[i]));
  }
  if (--call->open == 0) answered->push_back(call);
}

void DirectiveQueue::CloseWaiting(Line& line, BlockStatus all, Answered* answered) {
  for (Part& part : std::exchange(line.waiting, {})) Close(part, all, {}, answered);
}

void DirectiveQueue::Erase(Parts::iterator part) {
  const auto line = lines_.find(part->second.session);
  line->second.owed -= OwedFor(part->second.blocks.size());
  if (line->second.owed == 0 && line->second.waiting.empty()) lines_.erase(line);
  parts_.erase(part);
}

void DirectiveQueue::Tell(const Answered& answered) {
  for (const std::shared_ptr<Call>& call : answered) call->answer(std::move(call->statuses));
}

void DirectiveQueue::Done(SessionId session, const wire::DirectiveDone& done) {
  Answered answered;
  {
    MutexLock lock(mu_);
    const auto it = parts_.find(done.directive_id);
    const bool of_blocks = it != parts_.end() && it->second.variant != VariantIndex::kNone;
    if (it == parts_.end() || it->second.session != session ||
        (of_blocks ? done.status.size() != it->second.blocks.size() : done.status.size() > 1)) {
      ++counters_.invalid_messages;
      return;
    }
    if (it->second.call != nullptr) ++counters_.directives_done;
    Close(it->second, BlockStatus::kOk, done.status, &answered);
    lines_.find(session)->second.until = clock_.Now() + kPatience;
    Erase(it);
  }
  Tell(answered);
  SendWaiting(session);
}

void DirectiveQueue::SessionEnded(SessionId session) {
  Answered answered;
  {
    MutexLock lock(mu_);
    const auto line = lines_.find(session);
    if (line == lines_.end()) return;
    CloseWaiting(line->second, BlockStatus::kMissing, &answered);
    if (line->second.owed == 0) lines_.erase(line);
    for (auto it = parts_.begin(); it != parts_.end();) {
      const auto part = it++;
      if (part->second.session != session) continue;
      if (part->second.call != nullptr) ++counters_.directives_ended;
      Close(part->second, BlockStatus::kMissing, {}, &answered);
      Erase(part);
    }
  }
  Tell(answered);
}

// Ids and `until` of parts_ ascend together, because both are assigned under the lock.
void DirectiveQueue::Tick(TimePoint now) {
  Answered answered;
  {
    MutexLock lock(mu_);
    for (auto it = parts_.lower_bound(waiting_from_); it != parts_.end(); ++it) {
      Part& part = it->second;
      if (part.call != nullptr && part.until > now) break;
      if (part.call != nullptr) ++counters_.directives_unanswered;
      Close(part, BlockStatus::kPending, {}, &answered);
      waiting_from_ = it->first + 1;
    }
    for (auto it = lines_.begin(); it != lines_.end();) {
      const auto line = it++;
      if (line->second.until > now) continue;
      counters_.directives_unsent += line->second.waiting.size();
      CloseWaiting(line->second, BlockStatus::kPending, &answered);
      if (line->second.owed == 0) lines_.erase(line);
    }
  }
  Tell(answered);
}

void DirectiveQueue::EndAll() {
  {
    MutexLock lock(mu_);
    ended_ = true;
  }
  Tick(TimePoint::max());
}

}  // namespace larder
