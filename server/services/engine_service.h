// Engine: Attach and the byte streams.  Finds out who calls, asks admission, and hands over to the
// reactors.
//
// Thread-safety: as gRPC's callback API wants.  Limits: proto/larder/v1/engine.proto.
#pragma once

#include <optional>
#include <string>

#include "larder/v1/engine.grpc.pb.h"
#include "server/admission.h"
#include "server/session_table.h"

namespace larder {

class EngineService final : public v1::Engine::CallbackService {
 public:
  EngineService(SessionDeps& deps, SessionTable& sessions, Admission& admission)
      : deps_(deps), sessions_(sessions), admission_(admission) {}

  grpc::ServerBidiReactor<v1::Up, v1::Down>* Attach(grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::StoreBlocksRequest>* StoreBlocks(
      grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply) override;
  grpc::ServerWriteReactor<v1::FetchBlocksReply>* FetchBlocks(
      grpc::CallbackServerContext* context, const v1::FetchBlocksRequest* request) override;

 private:
  SessionDeps& deps_;
  SessionTable& sessions_;
  Admission& admission_;
};

}  // namespace larder
