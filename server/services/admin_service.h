// Admin: Stats and Drain, on the operator's socket file alone.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "larder/v1/admin.grpc.pb.h"
#include "server/daemon.h"

namespace larder {

class AdminService final : public v1::Admin::CallbackService {
 public:
  struct Hooks {
    std::function<Daemon::Gauges()> gauges;
    std::function<size_t(std::chrono::milliseconds)> drain;
    std::function<std::vector<std::pair<std::string, uint64_t>>()> counters;  // by metric name
    std::string version, boot_id, tenant, pages;
    TimePoint started;
  };
  AdminService(Hooks hooks, const Clock& clock) : hooks_(std::move(hooks)), clock_(clock) {}

  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request, v1::StatsReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainReply* reply) override;

 private:
  const Hooks hooks_;
  const Clock& clock_;
};

}  // namespace larder
