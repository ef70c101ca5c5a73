#include "server/directive_desk.h"

#include <algorithm>
#include <future>
#include <utility>

#include "server/block_selection.h"

namespace larder {

void DirectiveDesk::Give(const Order& order, std::span<const Block> blocks, Answer answer) {
  auto call = std::make_shared<Call>();
  call->answer = std::move(answer);
  call->statuses.assign(blocks.size(), BlockStatus::kMissing);
  const std::vector<std::pair<uint64_t, Part>> parts = Divide(order, blocks, call);
  SendAll(order, blocks, parts, std::move(call));
}

std::vector<BlockStatus> DirectiveDesk::GiveAndWait(const Order& order,
                                                    std::span<const Block> blocks) {
  const auto said = std::make_shared<std::promise<std::vector<BlockStatus>>>();
  Give(order, blocks,
       [said](std::vector<BlockStatus> statuses) { said->set_value(std::move(statuses)); });
  return said->get_future().get();
}

void DirectiveDesk::GiveAll(const Order& order, std::span<const SessionId> sessions,
                            Answer answer) {
  auto call = std::make_shared<Call>();
  call->answer = std::move(answer);
  call->statuses.assign(sessions.size(), BlockStatus::kMissing);
  call->until = clock_.Now() + kPatience;
  std::vector<std::pair<uint64_t, Part>> parts;
  {
    MutexLock lock(mu_);
    call->open = 1;  // until all is sent
    for (uint32_t i = 0; i < sessions.size(); ++i) {
      Part part{
          .session = sessions[i], .variant = VariantIndex::kNone, .blocks = {i}, .call = call};
      parts.emplace_back(Add(part), std::move(part));
    }
  }
  SendAll(order, {}, parts, std::move(call));
}

std::vector<std::pair<uint64_t, DirectiveDesk::Part>> DirectiveDesk::Divide(
    const Order& order, std::span<const Block> blocks, const std::shared_ptr<Call>& call) {
  std::map<std::pair<SessionId, VariantIndex>, std::vector<uint32_t>> wanted;
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const auto& [variant, digest] = blocks[i];
    for (const SessionId session : devices_.HoldersOf(order.engine_id, variant, digest))
      wanted[{session, variant}].push_back(i);
  }
  std::vector<std::pair<uint64_t, Part>> parts;
  MutexLock lock(mu_);
  call->until = clock_.Now() + kPatience;
  call->open = 1;  // until all is sent
  for (const auto& [to, which] : wanted) {
    for (size_t at = 0; at < which.size(); at += wire::kKeysMax) {
      const std::span some =
          std::span(which).subspan(at, std::min(wire::kKeysMax, which.size() - at));
      Part part{.session = to.first,
                .variant = to.second,
                .blocks = {some.begin(), some.end()},
                .call = call};
      parts.emplace_back(Add(part), std::move(part));
    }
  }
  return parts;
}

uint64_t DirectiveDesk::Add(Part part) {
  ++part.call->open;
  parts_.emplace(++last_id_, std::move(part));
  return last_id_;
}

// A part may be answered, or its session end, before the next one is sent.
void DirectiveDesk::SendAll(const Order& order, std::span<const Block> blocks,
                            const std::vector<std::pair<uint64_t, Part>>& parts,
                            std::shared_ptr<Call> call) {
  Answered answered;
  for (const auto& [id, part] : parts) {
    wire::Directive directive{.directive_id = id,
                              .kind = order.kind,
                              .deadline_unix_ms = order.deadline_unix_ms,
                              .owner = order.owner,
                              .codec = order.codec,
                              .pinned = order.pinned};
    for (const uint32_t i : part.blocks) {
      if (!blocks.empty()) directive.digests.push_back(blocks[i].second);
    }
    const BlockStatus sent = send_(part.session, part.variant, std::move(directive));
    ++counters_.directives_sent;
    if (sent == BlockStatus::kOk) continue;
    MutexLock lock(mu_);
    if (const auto it = parts_.find(id); it != parts_.end()) Close(it, sent, {}, &answered);
  }
  {
    MutexLock lock(mu_);
    if (--call->open == 0) answered.push_back(std::move(call));
  }
  Tell(answered);
}

void DirectiveDesk::Close(Parts::iterator it, BlockStatus all,
                          std::span<const BlockStatus> statuses, Answered* answered) {
  const Part part = std::move(it->second);
  parts_.erase(it);
  for (size_t i = 0; i < part.blocks.size(); ++i) {
    BlockStatus& status = part.call->statuses[part.blocks[i]];
    status = Worse(status, statuses.empty() ? all : statuses[i]);
  }
  if (--part.call->open == 0) answered->push_back(part.call);
}

void DirectiveDesk::Tell(const Answered& answered) {
  for (const std::shared_ptr<Call>& call : answered) call->answer(std::move(call->statuses));
}

void DirectiveDesk::Done(SessionId session, const wire::DirectiveDone& done) {
  Answered answered;
  {
    MutexLock lock(mu_);
    const auto it = parts_.find(done.directive_id);
    if (it == parts_.end() || it->second.session != session) return;
    const bool of_blocks = it->second.variant != VariantIndex::kNone;
    if (of_blocks && done.status.size() != it->second.blocks.size()) return;
    ++counters_.directives_done;
    Close(it, BlockStatus::kOk, of_blocks ? std::span(done.status) : std::span<BlockStatus>(),
          &answered);
  }
  Tell(answered);
}

void DirectiveDesk::SessionEnded(SessionId session) {
  Answered answered;
  {
    MutexLock lock(mu_);
    for (auto it = parts_.begin(); it != parts_.end();) {
      const auto part = it++;
      if (part->second.session == session) Close(part, BlockStatus::kMissing, {}, &answered);
    }
  }
  Tell(answered);
}

// Ids ascend, and so does their patience.
void DirectiveDesk::Tick(TimePoint now) {
  Answered answered;
  {
    MutexLock lock(mu_);
    while (!parts_.empty() && parts_.begin()->second.call->until <= now) {
      ++counters_.directives_unanswered;
      Close(parts_.begin(), BlockStatus::kPending, {}, &answered);
    }
  }
  Tell(answered);
}

}  // namespace larder
