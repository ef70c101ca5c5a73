// CacheService: Pin, Unpin and Prefetch.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/convert/convert.h"
#include "server/instances/block_selection.h"
#include "server/services/cache_service.h"
#include "server/services/caller.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

std::vector<PinKey> KeysOf(const SelectedBlocks& selected, Tier tier) {
  std::vector<PinKey> keys;
  keys.reserve(selected.blocks.size());
  for (const SelectedBlocks::Block& block : selected.blocks)
    keys.push_back({block.variant, selected.names[block.name], tier});
  return keys;
}

std::vector<DirectiveQueue::Block> BlocksOf(const SelectedBlocks& selected) {
  std::vector<DirectiveQueue::Block> blocks;
  blocks.reserve(selected.blocks.size());
  for (const SelectedBlocks::Block& block : selected.blocks)
    blocks.emplace_back(block.variant, selected.names[block.name]);
  return blocks;
}

// Returns a function that passes the engines' statuses for pins of DEVICE on to `answer`.
DirectiveQueue::Answer OfDevice(PinVerb::Answer answer) {
  return [answer = std::move(answer)](std::vector<BlockStatus> statuses) {
    answer(absl::OkStatus(), std::move(statuses));
  };
}

// Takes the status of a session that was to end all pins of an owner.  A session that has ended
// (kMissing) and an engine that cannot pin (kUnsupported) hold none.
bool MayStillPin(BlockStatus status) {
  return status != BlockStatus::kOk && status != BlockStatus::kMissing &&
         status != BlockStatus::kUnsupported;
}

}  // namespace

absl::Status CacheService::CheckPinnedTier(Tier tier) const {
  if (tier == Tier::kRemote) return absl::UnimplementedError("tier: TIER_REMOTE cannot be pinned");
  if (tier == Tier::kDevice && for_engines_) {
    return absl::PermissionDeniedError(
        "tier: pins of TIER_DEVICE can be changed only at control.sock");
  }
  if (tier != Tier::kDisk || pins_.durable()) return absl::OkStatus();
  return absl::UnimplementedError("tier: this daemon has no disk; start it with --disk");
}

absl::Status CacheService::BindOwner(const grpc::CallbackServerContext& context,
                                     std::string* owner) const {
  if (!for_engines_) return absl::OkStatus();
  LARDER_ASSIGN_OR_RETURN(const std::optional<AttachedProcess> caller,
                          CallerOf(context, deps_.processes));
  if (!caller) {
    return absl::PermissionDeniedError(
        "owner: at data.sock a pin belongs to the caller's user, and no larder-token proves which "
        "user that is: send the token of a sideband, or call at control.sock");
  }
  *owner = absl::StrCat("uid:", caller->uid, "/", *owner);
  if (owner->size() <= PinVerb::kOwnerBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "owner: with the prefix for its user it has ", owner->size(), " bytes, and at most ",
      PinVerb::kOwnerBytesMax, " are allowed: choose a shorter one"));
}

void CacheService::AnswerPin(UnaryCall& call, const v1::PinRequest& request, v1::PinReply* reply) {
  ++deps_.counters.requests_pin;
  if (!Begin(call)) return;
  wire::PinQuery query;
  absl::Status status = wire::DecodeInPlace(request, &query);
  if (status.ok()) status = CheckPinnedTier(query.tier);
  if (status.ok()) status = BindOwner(call.context(), &query.owner);
  if (!status.ok()) return call.Refuse(status);
  auto selected = SelectBlocks(query.tenant, query.blocks, request.blocks());
  if (!selected.ok()) return call.Refuse(selected.status());
  if (status = call.ReserveAnswer(AnswerBytesOf(*selected)); !status.ok())
    return call.Finish(status);
  const uint64_t deadline_ms = pins_.DeadlineIn(query.ttl);
  reply->set_deadline_unix_ms(deadline_ms);
  reply->set_durable(pins_.durable() && query.tier != Tier::kDevice);
  DirectiveQueue::Order order{.kind = wire::DirectiveKind::kPin,
                              .engine_id = query.blocks.engine_id,
                              .owner = query.owner,
                              .deadline_unix_ms = deadline_ms};
  InTurn(call, *std::move(selected),
         [this, &call, reply, tier = query.tier, order](const Selected& blocks) {
           PinVerb::Answer answer = [&call, reply, blocks](
                                        const absl::Status& written,
                                        const std::vector<BlockStatus>& statuses) {
             wire::Encode(AnswersOf(*blocks, statuses), reply->mutable_blocks());
             call.Finish(written);
           };
           if (tier == Tier::kDevice)
             return deps_.directives.Give(order, BlocksOf(*blocks), OfDevice(std::move(answer)));
           pins_.Pin(order.owner, KeysOf(*blocks, tier), order.deadline_unix_ms, std::move(answer));
         });
}

void CacheService::AnswerUnpin(UnaryCall& call, const v1::UnpinRequest& request,
                               v1::UnpinReply* reply) {
  ++deps_.counters.requests_unpin;
  if (!Begin(call, Draining::kServed)) return;
  wire::UnpinQuery query;
  absl::Status status = wire::DecodeInPlace(request, &query);
  if (status.ok() && query.blocks) status = CheckPinnedTier(query.tier);
  if (status.ok()) status = BindOwner(call.context(), &query.owner);
  if (!status.ok()) return call.Refuse(status);
  DirectiveQueue::Order order{.kind = wire::DirectiveKind::kUnpin, .owner = query.owner};
  if (!query.blocks) {
    if (status = CheckTenant(query.tenant, deps_.tenant); !status.ok()) return call.Refuse(status);
    // On a thread for long requests, because it visits all pins.
    return OnLongThread(call, deps_, long_calls_.answering, 0, [this, &call, reply, order] {
      UnpinAll(order, reply, [&call](const absl::Status& done) { call.Finish(done); });
    });
  }
  auto selected = SelectBlocks(query.tenant, *query.blocks, request.blocks());
  if (!selected.ok()) return call.Refuse(selected.status());
  if (status = call.ReserveAnswer(AnswerBytesOf(*selected)); !status.ok())
    return call.Finish(status);
  order.engine_id = query.blocks->engine_id;
  InTurn(call, *std::move(selected),
         [this, &call, reply, tier = query.tier, order](const Selected& blocks) {
           PinVerb::Answer answer = [&call, reply, blocks](
                                        const absl::Status& written,
                                        const std::vector<BlockStatus>& statuses) {
             reply->set_unpinned(
                 static_cast<uint64_t>(std::ranges::count(statuses, BlockStatus::kOk)));
             wire::Encode(AnswersOf(*blocks, statuses), reply->mutable_blocks());
             call.Finish(written);
           };
           if (tier == Tier::kDevice)
             return deps_.directives.Give(order, BlocksOf(*blocks), OfDevice(std::move(answer)));
           pins_.Unpin(order.owner, KeysOf(*blocks, tier), std::move(answer));
         });
}

// The pins that the daemon keeps end at once, whatever the engines do.  The reply is sent when the
// disk, if there is one, has answered, and the engines that are asked have answered or their time
// is up.
void CacheService::UnpinAll(const DirectiveQueue::Order& order, v1::UnpinReply* reply,
                            std::function<void(const absl::Status&)> done) {
  struct Both {
    std::atomic<int> open{2};
    absl::Status written;
    size_t unpinned = 0;
    ptrdiff_t unanswered = 0;
  };
  const auto both = std::make_shared<Both>();
  if (for_engines_) both->open = 1;  // at data.sock no owner pins in device memory
  // The last of the two answers writes the reply.
  const auto one = [both, reply, done = std::move(done)] {
    if (both->open.fetch_sub(1) != 1) return;
    reply->set_unpinned(both->unpinned);
    reply->set_sessions_unanswered(static_cast<uint32_t>(both->unanswered));
    done(both->written);
  };
  pins_.UnpinAll(order.owner, [both, one](const absl::Status& written,
                                          const std::vector<BlockStatus>& statuses) {
    both->written = written;
    both->unpinned = statuses.size();
    one();
  });
  if (for_engines_) return;
  deps_.directives.GiveAll(order, deps_.devices.Holders(),
                           [both, one](const std::vector<BlockStatus>& engines) {
                             both->unanswered = std::ranges::count_if(engines, MayStillPin);
                             one();
                           });
}

void CacheService::AnswerPrefetch(UnaryCall& call, const v1::PrefetchRequest& request,
                                  v1::PrefetchReply* reply) {
  ++deps_.counters.requests_prefetch;
  if (!Begin(call)) return;
  wire::PrefetchQuery query;
  if (absl::Status status = wire::DecodeInPlace(request, &query); !status.ok())
    return call.Refuse(status);
  auto selected = SelectBlocks(query.tenant, query.blocks, request.blocks());
  if (!selected.ok()) return call.Refuse(selected.status());
  if (absl::Status room = call.ReserveAnswer(AnswerBytesOf(*selected)); !room.ok())
    return call.Finish(room);
  const uint64_t deadline_ms = pins_.DeadlineIn(query.ttl);
  InTurn(call, *std::move(selected), [this, &call, reply, deadline_ms](const Selected& blocks) {
    const std::vector<BlockStatus> statuses =
        pins_.Prefetch(KeysOf(*blocks, Tier::kHost), deadline_ms);
    wire::Encode(AnswersOf(*blocks, statuses), reply->mutable_blocks());
    call.Finish(absl::OkStatus());
  });
}

void CacheService::InTurn(UnaryCall& call, SelectedBlocks selected,
                          std::function<void(const Selected&)> work) {
  const bool few = selected.blocks.size() <= kInlineBlocks;
  const auto blocks = std::make_shared<const SelectedBlocks>(std::move(selected));
  if (few) return work(blocks);
  OnLongThread(call, deps_, long_calls_.answering, 0,
               [work = std::move(work), blocks] { work(blocks); });
}

absl::StatusOr<SelectedBlocks> CacheService::SelectBlocks(const std::string& tenant,
                                                          wire::BlockSelection& selection,
                                                          const v1::BlockSelection& request) const {
  LARDER_RETURN_IF_ERROR(CheckTenant(tenant, deps_.tenant));
  const std::span<const uint32_t> tokens = TokensOf(request);
  selection.content.tenant = deps_.tenant;
  const Digest content_id = tokens.empty() ? Digest() : selection.content.Id();
  return Select(selection, content_id, tokens, deps_.instances, deps_.store);
}

}  // namespace larder
