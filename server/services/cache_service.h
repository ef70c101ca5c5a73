// The gRPC service Cache: Lookup, ListInstances, QueryIp (cache_service.cc), Pin, Unpin, Prefetch
// (pin_calls.cc), Clear (clear_calls.cc), Move (move_calls.cc), Compress (compress_calls.cc),
// WatchEvents (watch_call.cc).
//
// Most calls are handled on gRPC's thread.  Calls with a long request (charged_request.h), and Pin,
// Unpin and Prefetch of many blocks (kInlineBlocks), are handled on threads for long requests;
// Clear, Move and Compress on threads of their own (LongCalls).
//
// There is one CacheService at each socket that serves a method of Cache (method_table.h).  The one
// at data.sock does not reveal the salts of contents, and keeps the pins of different users apart.
//
// Ownership: Daemon owns it; what it is constructed with outlives it.
// Thread-safety: any thread, as gRPC's callback API requires.
// Limits: proto/larder/v1/cache.proto.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "server/grpc/method_table.h"
#include "server/instances/block_selection.h"
#include "server/instances/device_table.h"
#include "server/instances/directive_queue.h"
#include "server/runtime/worker_pool.h"
#include "server/services/caller.h"
#include "server/services/charged_request.h"
#include "server/services/event_streams.h"
#include "server/services/progress_stream.h"
#include "server/sessions/session_context.h"
#include "server/sessions/session_table.h"
#include "server/verbs/block_scope.h"
#include "server/verbs/clear.h"
#include "server/verbs/compress.h"
#include "server/verbs/device_verbs.h"
#include "server/verbs/move.h"
#include "server/verbs/pin.h"
#include "storage/status_macros.h"

namespace larder {

class CacheService final : public ChargedAt<CacheMethods> {
 public:
  // The verbs of many blocks and the threads that they run on.  Clear, Move and Compress have
  // threads of their own, because a Move may take hours.
  struct LongCalls {
    WorkerPool& answering;  // for long requests of the other methods
    WorkerPool& clearing;
    ClearVerb& clear;
    WorkerPool& moving;
    MoveVerb& move;
    WorkerPool& compressing;
    CompressVerb& compress;
    DeviceVerbs& device_verbs;
  };
  static constexpr TierSet kStoredTiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk);
  CacheService(Socket socket, SessionDeps& deps, const SessionTable& sessions, PinVerb& pins,
               LongCalls long_calls, EventStreams& events);

  // The unary calls.  Each of these methods finishes `call` exactly once, before or after it
  // returns.
  void AnswerLookup(UnaryCall& call, const v1::LookupRequest& request, v1::LookupReply* reply);
  void AnswerListInstances(UnaryCall& call, const v1::ListInstancesRequest& request,
                           v1::ListInstancesReply* reply);
  void AnswerQueryIp(UnaryCall& call, const v1::QueryIpRequest& request, v1::QueryIpReply* reply);

  void AnswerPin(UnaryCall& call, const v1::PinRequest& request, v1::PinReply* reply);
  void AnswerUnpin(UnaryCall& call, const v1::UnpinRequest& request, v1::UnpinReply* reply);
  void AnswerPrefetch(UnaryCall& call, const v1::PrefetchRequest& request,
                      v1::PrefetchReply* reply);
  void AnswerClear(UnaryCall& call, const v1::ClearRequest& request, v1::ClearReply* reply);
  grpc::ServerWriteReactor<v1::MoveProgress>* Move(grpc::CallbackServerContext* context,
                                                   const v1::MoveRequest* request) override;
  grpc::ServerWriteReactor<v1::CompressProgress>* Compress(
      grpc::CallbackServerContext* context, const v1::CompressRequest* request) override;
  EventStreams::Reactor* WatchEvents(grpc::CallbackServerContext* context,
                                     const v1::WatchEventsRequest* request) override;

 private:
  // What happens to a call that begins while the daemon drains.  kRefused refuses it once
  // SessionTable::RefusesCalls returns true.
  enum class Draining : uint8_t { kServed, kRefused };
  // Takes a place in the caller's share of calls (ShareKind::kCalls).  Returns ResourceExhausted if
  // the share is full, and Unavailable if the daemon drains and refuses the call (Draining).
  [[nodiscard]] absl::StatusOr<Shares::Ticket> Admit(grpc::CallbackServerContext& context,
                                                     const Shares::Account& account,
                                                     Draining draining = Draining::kRefused);
  // Counts a refused call and returns ResourceExhausted: too many calls of the same method wait.
  [[nodiscard]] absl::Status TooManyLongCalls(grpc::CallbackServerContext* context);
  // Admits a unary call (Admit).  Returns false if the call was refused; Begin has then finished
  // it.
  [[nodiscard]] bool Begin(UnaryCall& call, Draining draining = Draining::kRefused);
  void RunClear(const ClearVerb::What& what, v1::ClearReply* reply,
                std::function<void(const absl::Status&)> done);
  void RunCompress(const CompressVerb::What& what, ProgressStream<v1::CompressProgress>* stream);
  // The beginning that Move and Compress share: takes the call's place (Admit), which `stream`
  // keeps until it ends, decodes `request` into *query, calls `check()`, and returns the blocks
  // that the call is about.  Returns an error if one of these steps fails.
  template <class Message, class Request, class Query, class Check>
  [[nodiscard]] absl::StatusOr<BlockScope> BeginLongCall(grpc::CallbackServerContext& context,
                                                         const Request& request,
                                                         ProgressStream<Message>& stream,
                                                         Query* query, Check check) {
    LARDER_ASSIGN_OR_RETURN(Shares::Ticket call, Admit(context, AccountOf(context, deps_)));
    stream.Hold(std::move(call));
    absl::Status status = wire::DecodeInPlace(request, query);
    if (status.ok()) status = check();
    auto scope = status.ok() ? ScopeOf(query->tenant, query->scope, query->blocks, request.blocks())
                             : absl::StatusOr<BlockScope>(status);
    if (!scope.ok()) ++deps_.counters.invalid_messages;
    return scope;
  }
  // Checks the request and queues the work.  Returns an error if the work was not queued; the
  // caller must then end the stream.
  [[nodiscard]] absl::Status BeginMove(grpc::CallbackServerContext* context,
                                       const v1::MoveRequest& request,
                                       ProgressStream<v1::MoveProgress>* stream);
  [[nodiscard]] absl::Status BeginCompress(grpc::CallbackServerContext* context,
                                           const v1::CompressRequest& request,
                                           ProgressStream<v1::CompressProgress>* stream);
  // Completes the name of the owner of pins.  At data.sock the name gets a prefix for the caller's
  // user; returns PermissionDenied if the call has no token, or another error.  At other sockets it
  // stays as it is.
  [[nodiscard]] absl::Status BindOwner(const grpc::CallbackServerContext& context,
                                       std::string* owner) const;
  // Returns PermissionDenied for DEVICE at data.sock, where no caller may direct engines, and
  // Unimplemented for a tier that this daemon cannot pin.
  [[nodiscard]] absl::Status CheckPinnedTier(Tier tier) const;
  using Selected = std::shared_ptr<const SelectedBlocks>;
  static constexpr size_t kInlineBlocks = 2'048;  // pinning or prefetching them takes about 1 ms
  // Runs `work`, which must finish the call, on the calling thread if the selection has at most
  // kInlineBlocks blocks; otherwise passes it to OnLongThread, so that gRPC's few threads serve
  // other calls meanwhile.
  void InTurn(UnaryCall& call, SelectedBlocks selected, std::function<void(const Selected&)> work);
  // Ends all pins of the order's owner: those that the daemon keeps, and, except at data.sock,
  // those of DEVICE, which the engines are asked to end.
  void UnpinAll(const DirectiveQueue::Order& order, v1::UnpinReply* reply,
                std::function<void(const absl::Status&)> done);
  // Returns the blocks that a selection names, or an error.  `selection` is the decoded `request`,
  // except the tokens, which are read from `request`.
  [[nodiscard]] absl::StatusOr<SelectedBlocks> SelectBlocks(
      const std::string& tenant, wire::BlockSelection& selection,
      const v1::BlockSelection& request) const;
  [[nodiscard]] absl::StatusOr<BlockScope> ScopeOf(const std::string& tenant,
                                                   wire::SelectionScope scope,
                                                   wire::BlockSelection& selection,
                                                   const v1::BlockSelection& request) const;
  // Returns a view of the tokens in the request; they may be many, so they are not copied.
  [[nodiscard]] static std::span<const uint32_t> TokensOf(const v1::BlockSelection& request) {
    return {request.tokens().data(), static_cast<size_t>(request.tokens_size())};
  }

  const bool for_engines_;  // this is the service of data.sock
  SessionDeps& deps_;
  const SessionTable& sessions_;
  PinVerb& pins_;
  const LongCalls long_calls_;
  EventStreams& events_;
};

}  // namespace larder
