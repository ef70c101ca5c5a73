// Admin: Stats, Drain, Verify and Config, at admin.sock only.
//
// Ownership: Daemon owns it; what it is constructed with outlives it.
// Thread-safety: any thread, as gRPC's callback API requires.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "larder/v1/admin.grpc.pb.h"
#include "server/grpc/method_table.h"
#include "server/metrics/gauges.h"
#include "server/runtime/worker_pool.h"
#include "server/verbs/verify.h"

namespace larder {

class AdminService final : public ServedAt<AdminMethods> {
 public:
  struct Hooks {
    std::function<Gauges()> gauges;
    std::function<size_t(std::chrono::milliseconds)> drain;
    // These return values with their metric names.
    std::function<std::vector<std::pair<std::string, uint64_t>>(const Gauges&)> counters;
    std::function<std::vector<std::pair<std::string, double>>(const Gauges&)> readings;
    std::string version, boot_id, tenant, config;
    TimePoint started;
  };
  // Verify runs on `verifying`.
  AdminService(Hooks hooks, const Clock& clock, WorkerPool& verifying, VerifyVerb& verifier)
      : ServedAt(Socket::kAdmin),
        hooks_(std::move(hooks)),
        clock_(clock),
        verifying_(verifying),
        verifier_(verifier) {}

  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request, v1::StatsReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainReply* reply) override;
  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(grpc::CallbackServerContext* context,
                                                       const v1::VerifyRequest* request) override;
  grpc::ServerUnaryReactor* Config(grpc::CallbackServerContext* context,
                                   const v1::ConfigRequest* request,
                                   v1::ConfigReply* reply) override;

 private:
  const Hooks hooks_;
  const Clock& clock_;
  WorkerPool& verifying_;
  VerifyVerb& verifier_;
};

}  // namespace larder
