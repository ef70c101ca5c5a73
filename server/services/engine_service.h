// Engine: Attach and the byte streams.  Finds out who calls, asks for a share, and hands over to
// the reactors.
//
// Thread-safety: as gRPC's callback API wants.  Limits: proto/larder/v1/engine.proto.
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
  // Attach and StoreBlocks, as bytes: the stream parses them when it has room for what they say.
  [[nodiscard]] grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttachRaw(
      grpc::CallbackServerContext* context);
  [[nodiscard]] grpc::ServerReadReactor<grpc::ByteBuffer>* StoreRaw(
      grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply);

  SessionDeps& deps_;
  SessionTable& sessions_;
  // A place for a byte stream.  ResourceExhausted: there is none; Unavailable: draining.
  [[nodiscard]] absl::StatusOr<StreamShare> EnterStream(
      grpc::CallbackServerContext& context, const std::optional<AttachedProcess>& caller);
};

}  // namespace larder
