// Cache: Lookup, ListInstances, QueryIp.  Answers from memory on the RPC thread.
//
// Thread-safety: as gRPC's callback API wants.  Limits: proto/larder/v1/cache.proto.
#pragma once

#include "larder/v1/cache.grpc.pb.h"
#include "server/admission.h"
#include "server/session.h"

namespace larder {

class CacheService final : public v1::Cache::CallbackService {
 public:
  CacheService(SessionDeps& deps, Admission& admission) : deps_(deps), admission_(admission) {}

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override;
  grpc::ServerUnaryReactor* ListInstances(grpc::CallbackServerContext* context,
                                          const v1::ListInstancesRequest* request,
                                          v1::ListInstancesReply* reply) override;
  grpc::ServerUnaryReactor* QueryIp(grpc::CallbackServerContext* context,
                                    const v1::QueryIpRequest* request,
                                    v1::QueryIpReply* reply) override;

 private:
  SessionDeps& deps_;
  Admission& admission_;
};

}  // namespace larder
