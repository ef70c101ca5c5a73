// The gRPC service Engine: Attach, StoreBlocks and FetchBlocks.  Identifies the caller and creates
// the reactor that handles the call; for StoreBlocks and FetchBlocks it takes the shares first.
//
// Ownership: Daemon owns it; what it is constructed with outlives it.
// Thread-safety: any thread, as gRPC's callback API requires.
// Limits: proto/larder/v1/engine.proto.
#pragma once

#include <optional>
#include <string>

#include "larder/v1/engine.grpc.pb.h"
#include "server/grpc/method_table.h"
#include "server/services/byte_streams.h"
#include "server/services/charged_request.h"
#include "server/sessions/session_table.h"

namespace larder {

class EngineService final : public ChargedAt<EngineMethods> {
 public:
  EngineService(SessionDeps& deps, SessionTable& sessions);

  grpc::ServerWriteReactor<v1::FetchBlocksReply>* FetchBlocks(
      grpc::CallbackServerContext* context, const v1::FetchBlocksRequest* request) override;

 private:
  // Attach and StoreBlocks get their messages as bytes, so that their streams can charge a message
  // before they parse it.
  [[nodiscard]] grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttachRaw(
      grpc::CallbackServerContext* context);
  [[nodiscard]] grpc::ServerReadReactor<grpc::ByteBuffer>* StoreRaw(
      grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply);

  SessionDeps& deps_;
  SessionTable& sessions_;
  // Takes the shares of a byte stream.  Returns ResourceExhausted if one is full, Unavailable if
  // the daemon drains and refuses calls (SessionTable::RefusesCalls).
  [[nodiscard]] absl::StatusOr<StreamShare> EnterStream(
      grpc::CallbackServerContext& context, const std::optional<AttachedProcess>& caller);
};

}  // namespace larder
