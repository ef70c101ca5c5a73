// Cache: Lookup, ListInstances, QueryIp (cache_service.cc), Pin, Unpin, Prefetch (pin_calls.cc),
// Clear (clear_calls.cc), Move (move_calls.cc), Compress (compress_calls.cc), WatchEvents
// (watch_call.cc).
// Answers from memory on the RPC thread, long requests on others (charged_request.h); a pin when it
// is on disk; what takes long on others.
//
// There is one at each socket that has a method of Cache (method_table.h).  That of data.sock tells
// engines no salts, and keeps their pins apart by user.
//
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: as gRPC's callback API wants.  Limits: proto/larder/v1/cache.proto.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "larder/v1/cache.grpc.pb.h"
#include "server/grpc/method_table.h"
#include "server/instances/block_selection.h"
#include "server/instances/device_table.h"
#include "server/instances/directive_queue.h"
#include "server/runtime/worker_pool.h"
#include "server/services/caller.h"
#include "server/services/charged_request.h"
#include "server/services/event_streams.h"
#include "server/services/progress_stream.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"
#include "server/verbs/block_scope.h"
#include "server/verbs/clear.h"
#include "server/verbs/compress.h"
#include "server/verbs/device_verbs.h"
#include "server/verbs/move.h"
#include "server/verbs/pin.h"

namespace larder {

class CacheService final : public ChargedAt<CacheMethods> {
 public:
  // Verbs of many blocks, and the threads that they run on: of their own, since a Move may take
  // hours.
  struct LongCalls {
    WorkerPool& answering;  // of long requests
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

  // The single calls.  Each finishes `call`, now or later.
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
  // What a call does while the daemon drains.
  enum class Draining : uint8_t { kServed, kRefused };
  // A place for as long as the call goes on.  ResourceExhausted: there is none.  Unavailable: the
  // daemon drains.
  [[nodiscard]] absl::StatusOr<Shares::Ticket> Admit(grpc::CallbackServerContext& context,
                                                     const Shares::Account& account,
                                                     Draining draining = Draining::kRefused);
  // Likewise of the threads that long calls run on.
  [[nodiscard]] absl::Status TooManyLongCalls(grpc::CallbackServerContext* context);
  // As Admit.  False: there is none, and the call was finished.
  [[nodiscard]] bool Begin(UnaryCall& call, Draining draining = Draining::kRefused);
  void RunClear(const ClearVerb::What& what, v1::ClearReply* reply,
                std::function<void(const absl::Status&)> done);
  void RunCompress(const CompressVerb::What& what, ProgressStream<v1::CompressProgress>* stream);
  // Not OK: it has not begun, and the stream is the caller's to end.
  [[nodiscard]] absl::Status BeginMove(grpc::CallbackServerContext* context,
                                       const v1::MoveRequest& request,
                                       ProgressStream<v1::MoveProgress>* stream);
  [[nodiscard]] absl::Status BeginCompress(grpc::CallbackServerContext* context,
                                           const v1::CompressRequest& request,
                                           ProgressStream<v1::CompressProgress>* stream);
  // Whose pins a call means.  At data.sock an owner is one of the caller's user, and no engine is
  // told what to do with its device memory; elsewhere it is as the caller says.
  // PermissionDenied: the call does not prove who it is from; or the tier.
  [[nodiscard]] absl::Status BindOwner(const grpc::CallbackServerContext& context,
                                       std::string* owner) const;
  [[nodiscard]] absl::Status CheckPinnedTier(Tier tier) const;
  // Has `work` finish the call: on this thread where the selection has few blocks, else by
  // OnLongThread, so that gRPC's few threads serve others meanwhile.
  using Selected = std::shared_ptr<const SelectedBlocks>;
  static constexpr size_t kInlineBlocks = 2'048;  // to pin or prefetch them takes about a ms
  void InTurn(UnaryCall& call, SelectedBlocks selected, std::function<void(const Selected&)> work);
  // Of the order's owner, in all tiers.
  void UnpinAll(const DirectiveQueue::Order& order, v1::UnpinReply* reply,
                std::function<void(const absl::Status&)> done);
  // `selection` is the request's, decoded.
  [[nodiscard]] absl::StatusOr<SelectedBlocks> SelectBlocks(
      const std::string& tenant, wire::BlockSelection& selection,
      const v1::BlockSelection& request) const;
  [[nodiscard]] absl::StatusOr<BlockScope> ScopeOf(const std::string& tenant,
                                                   wire::SelectionScope scope,
                                                   wire::BlockSelection& selection,
                                                   const v1::BlockSelection& request) const;
  // Where they lie: they are many.
  [[nodiscard]] static std::span<const uint32_t> TokensOf(const v1::BlockSelection& request) {
    return {request.tokens().data(), static_cast<size_t>(request.tokens_size())};
  }

  const bool for_engines_;  // at data.sock
  SessionDeps& deps_;
  const SessionTable& sessions_;
  PinVerb& pins_;
  const LongCalls long_calls_;
  EventStreams& events_;
};

}  // namespace larder
