// Cache: Lookup, ListInstances, QueryIp (cache_service.cc), Pin, Unpin, Prefetch (pin_calls.cc),
// Clear (clear_calls.cc), Move (move_calls.cc), Compress (compress_calls.cc), WatchEvents
// (watch_call.cc).
// Answers from memory on the RPC thread; a pin when it is on disk; what takes long on others.
//
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: as gRPC's callback API wants.  Limits: proto/larder/v1/cache.proto.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "larder/v1/cache.grpc.pb.h"
#include "server/admission.h"
#include "server/block_cleaner.h"
#include "server/block_compressor.h"
#include "server/block_director.h"
#include "server/block_mover.h"
#include "server/block_scope.h"
#include "server/block_selection.h"
#include "server/device_table.h"
#include "server/directive_desk.h"
#include "server/pin_keeper.h"
#include "server/services/caller.h"
#include "server/services/event_streams.h"
#include "server/services/progress_stream.h"
#include "server/session.h"
#include "server/worker_pool.h"

namespace larder {

class CacheService final : public v1::Cache::CallbackService {
 public:
  // Verbs of many blocks, and the threads that they run on: of their own, since a Move may take
  // hours.
  struct LongCalls {
    WorkerPool& clearing;
    BlockCleaner& cleaner;
    WorkerPool& moving;
    BlockMover& mover;
    WorkerPool& compressing;
    BlockCompressor& compressor;
    BlockDirector& director;
  };
  static constexpr TierSet kStoredTiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk);
  CacheService(SessionDeps& deps, Admission& admission, PinKeeper& pins, LongCalls long_calls,
               EventStreams& events)
      : deps_(deps), admission_(admission), pins_(pins), long_calls_(long_calls), events_(events) {}

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override;
  grpc::ServerUnaryReactor* ListInstances(grpc::CallbackServerContext* context,
                                          const v1::ListInstancesRequest* request,
                                          v1::ListInstancesReply* reply) override;
  grpc::ServerUnaryReactor* QueryIp(grpc::CallbackServerContext* context,
                                    const v1::QueryIpRequest* request,
                                    v1::QueryIpReply* reply) override;

  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context, const v1::PinRequest* request,
                                v1::PinReply* reply) override;
  grpc::ServerUnaryReactor* Unpin(grpc::CallbackServerContext* context,
                                  const v1::UnpinRequest* request, v1::UnpinReply* reply) override;
  grpc::ServerUnaryReactor* Prefetch(grpc::CallbackServerContext* context,
                                     const v1::PrefetchRequest* request,
                                     v1::PrefetchReply* reply) override;
  grpc::ServerUnaryReactor* Clear(grpc::CallbackServerContext* context,
                                  const v1::ClearRequest* request, v1::ClearReply* reply) override;
  grpc::ServerWriteReactor<v1::MoveProgress>* Move(grpc::CallbackServerContext* context,
                                                   const v1::MoveRequest* request) override;
  grpc::ServerWriteReactor<v1::CompressProgress>* Compress(
      grpc::CallbackServerContext* context, const v1::CompressRequest* request) override;
  EventStreams::Reactor* WatchEvents(grpc::CallbackServerContext* context,
                                     const v1::WatchEventsRequest* request) override;

 private:
  // A place at the admission, for as long as the call goes on.  ResourceExhausted: there is none.
  [[nodiscard]] absl::StatusOr<Admission::Ticket> Admit(grpc::CallbackServerContext* context);
  // Likewise of the threads that long calls run on.
  [[nodiscard]] absl::Status TooManyLongCalls(grpc::CallbackServerContext* context);
  // As Admit; null: there is none, and the call was finished.  Shared with who answers later.
  [[nodiscard]] std::shared_ptr<UnaryCall> Begin(grpc::CallbackServerContext* context,
                                                 grpc::ServerUnaryReactor* reactor);
  [[nodiscard]] grpc::ServerUnaryReactor* Refuse(UnaryCall& call, const absl::Status& status);
  void RunClear(const BlockCleaner::What& what, v1::ClearReply* reply,
                std::function<void(const absl::Status&)> done);
  void RunCompress(const BlockCompressor::What& what, ProgressStream<v1::CompressProgress>* stream);
  // Not OK: it has not begun, and the stream is the caller's to end.
  [[nodiscard]] absl::Status BeginMove(grpc::CallbackServerContext* context,
                                       const v1::MoveRequest& request,
                                       ProgressStream<v1::MoveProgress>* stream);
  [[nodiscard]] absl::Status BeginCompress(grpc::CallbackServerContext* context,
                                           const v1::CompressRequest& request,
                                           ProgressStream<v1::CompressProgress>* stream);
  // Of the order's owner, in all tiers.
  void UnpinAll(const DirectiveDesk::Order& order, v1::UnpinReply* reply,
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

  SessionDeps& deps_;
  Admission& admission_;
  PinKeeper& pins_;
  const LongCalls long_calls_;
  EventStreams& events_;
};

}  // namespace larder
