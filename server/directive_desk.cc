#include "server/directive_desk.h"

#include <algorithm>
#include <utility>

#include "server/block_selection.h"

namespace larder {
namespace {

size_t OwedFor(size_t blocks) { return blocks + DirectiveDesk::kOwedOfDirective; }

// What an engine may say of a block (engine.proto).
BlockStatus Sane(BlockStatus said) {
  switch (said) {
    case BlockStatus::kOk:
    case BlockStatus::kMissing:
    case BlockStatus::kKept:
    case BlockStatus::kFull:
      return said;
    default:
      return BlockStatus::kUnsupported;
  }
}

}  // namespace

DirectiveDesk::DirectiveDesk(const DeviceTable& devices, const Clock& clock, WallClock now_ms,
                             Counters& counters, Send send)
    : devices_(devices),
      clock_(clock),
      now_ms_(std::move(now_ms)),
      counters_(counters),
      send_(std::move(send)) {}

// ---- orders

void DirectiveDesk::Give(const Order& order, std::span<const Block> blocks, Answer answer) {
  const std::shared_ptr<Call> call = Begin(std::move(answer), blocks.size());
  std::map<std::pair<SessionId, VariantIndex>, std::vector<uint32_t>> wanted;
  devices_.ForEachHolder(order.engine_id, blocks, [&](size_t i, SessionId session) {
    wanted[{session, blocks[i].first}].push_back(static_cast<uint32_t>(i));
  });
  std::vector<Part> parts;
  for (const auto& [to, which] : wanted) {
    for (size_t at = 0; at < which.size(); at += wire::kKeysMax) {
      const std::span some =
          std::span(which).subspan(at, std::min(wire::kKeysMax, which.size() - at));
      parts.push_back({to.first, to.second, {some.begin(), some.end()}, call});
    }
  }
  SendAll(order, blocks, Open(std::move(parts), *call));
  End(call);
}

void DirectiveDesk::GiveAll(const Order& order, std::span<const SessionId> sessions,
                            Answer answer) {
  const std::shared_ptr<Call> call = Begin(std::move(answer), sessions.size());
  std::vector<Part> parts;
  for (uint32_t i = 0; i < sessions.size(); ++i)
    parts.push_back({sessions[i], VariantIndex::kNone, {i}, call});
  SendAll(order, {}, Open(std::move(parts), *call));
  End(call);
}

// It is open until all is sent.
std::shared_ptr<DirectiveDesk::Call> DirectiveDesk::Begin(Answer answer, size_t statuses) {
  auto call = std::make_shared<Call>();
  call->answer = std::move(answer);
  call->statuses.assign(statuses, BlockStatus::kMissing);
  call->until = clock_.Now() + kPatience;
  call->open = 1;
  return call;
}

void DirectiveDesk::End(std::shared_ptr<Call> call) {
  Answered answered;
  {
    MutexLock lock(mu_);
    if (--call->open == 0) answered.push_back(std::move(call));
  }
  Tell(answered);
}

std::vector<uint64_t> DirectiveDesk::Open(std::vector<Part> parts, Call& call) {
  std::vector<uint64_t> ids;
  Answered none;  // the call itself is open
  MutexLock lock(mu_);
  for (Part& part : parts) {
    ++call.open;
    size_t& owed = owed_[part.session];
    if (ended_ || owed + OwedFor(part.blocks.size()) > kOwedMax) {
      if (owed == 0) owed_.erase(part.session);
      Close(part, BlockStatus::kPending, {}, &none);
      continue;
    }
    owed += OwedFor(part.blocks.size());
    ids.push_back(++last_id_);
    parts_.emplace(last_id_, std::move(part));
  }
  return ids;
}

// A part may be answered, or its session end, before the next one is sent.
void DirectiveDesk::SendAll(const Order& order, std::span<const Block> blocks,
                            std::span<const uint64_t> ids) {
  Answered answered;
  for (const uint64_t id : ids) {
    SessionId session;
    VariantIndex variant{};
    std::optional<wire::Directive> directive = Write(order, blocks, id, &session, &variant);
    if (!directive) continue;
    const BlockStatus sent = send_(session, variant, *std::move(directive));
    if (sent == BlockStatus::kOk) {
      ++counters_.directives_sent;
      continue;
    }
    MutexLock lock(mu_);
    const auto it = parts_.find(id);
    if (it == parts_.end()) continue;
    Close(it->second, sent, {}, &answered);
    Erase(it);
  }
  Tell(answered);
}

std::optional<wire::Directive> DirectiveDesk::Write(const Order& order,
                                                    std::span<const Block> blocks, uint64_t id,
                                                    SessionId* session, VariantIndex* variant) {
  const uint64_t now_ms = now_ms_();
  MutexLock lock(mu_);
  const auto it = parts_.find(id);
  if (it == parts_.end()) return std::nullopt;
  *session = it->second.session;
  *variant = it->second.variant;
  wire::Directive directive{
      .directive_id = id,
      .kind = order.kind,
      .deadline_unix_ms = order.deadline_unix_ms,
      .owner = order.owner,
      .codec = order.codec,
      .pinned = order.pinned,
      .valid_unix_ms =
          now_ms + static_cast<uint64_t>(std::chrono::milliseconds(kPatience).count())};
  for (const uint32_t i : it->second.blocks) {
    if (!blocks.empty()) directive.digests.push_back(blocks[i].second);
  }
  return directive;
}

// ---- answers

void DirectiveDesk::Close(Part& part, BlockStatus all, std::span<const BlockStatus> statuses,
                          Answered* answered) {
  const std::shared_ptr<Call> call = std::exchange(part.call, nullptr);
  if (call == nullptr) return;
  for (size_t i = 0; i < part.blocks.size(); ++i) {
    BlockStatus& status = call->statuses[part.blocks[i]];
    status = Worse(status, statuses.empty() ? all : Sane(statuses[i]));
  }
  if (--call->open == 0) answered->push_back(call);
}

void DirectiveDesk::Erase(Parts::iterator part) {
  const auto owed = owed_.find(part->second.session);
  owed->second -= OwedFor(part->second.blocks.size());
  if (owed->second == 0) owed_.erase(owed);
  parts_.erase(part);
}

void DirectiveDesk::Tell(const Answered& answered) {
  for (const std::shared_ptr<Call>& call : answered) call->answer(std::move(call->statuses));
}

void DirectiveDesk::Done(SessionId session, const wire::DirectiveDone& done) {
  Answered answered;
  {
    MutexLock lock(mu_);
    const auto it = parts_.find(done.directive_id);
    const bool of_blocks = it != parts_.end() && it->second.variant != VariantIndex::kNone;
    if (it == parts_.end() || it->second.session != session ||
        (of_blocks && done.status.size() != it->second.blocks.size())) {
      ++counters_.invalid_messages;
      return;
    }
    if (it->second.call != nullptr) ++counters_.directives_done;
    Close(it->second, BlockStatus::kOk,
          of_blocks ? std::span(done.status) : std::span<const BlockStatus>(), &answered);
    Erase(it);
  }
  Tell(answered);
}

void DirectiveDesk::SessionEnded(SessionId session) {
  Answered answered;
  {
    MutexLock lock(mu_);
    if (!owed_.contains(session)) return;
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

// Ids ascend, and so does their patience.
void DirectiveDesk::Tick(TimePoint now) {
  Answered answered;
  {
    MutexLock lock(mu_);
    for (auto it = parts_.lower_bound(waiting_from_); it != parts_.end(); ++it) {
      Part& part = it->second;
      if (part.call != nullptr && part.call->until > now) break;
      if (part.call != nullptr) ++counters_.directives_unanswered;
      Close(part, BlockStatus::kPending, {}, &answered);
      waiting_from_ = it->first + 1;
    }
  }
  Tell(answered);
}

void DirectiveDesk::EndAll() {
  {
    MutexLock lock(mu_);
    ended_ = true;
  }
  Tick(TimePoint::max());
}

}  // namespace larder
