#include "server/services/admin_service.h"

#include "proto/convert/convert.h"
#include "server/services/caller.h"
#include "server/services/progress_stream.h"
#include "server/services/rpc_status.h"

namespace larder {

grpc::ServerUnaryReactor* AdminService::Stats(grpc::CallbackServerContext* context,
                                              const v1::StatsRequest*, v1::StatsReply* reply) {
  const Gauges gauges = hooks_.gauges();
  reply->set_version(hooks_.version);
  reply->set_boot_id(hooks_.boot_id);
  reply->set_uptime_s(std::chrono::duration<double>(clock_.Now() - hooks_.started).count());
  reply->set_draining(gauges.draining);
  v1::TenantStats* tenant = reply->add_tenants();
  const BlockStore::Stats& s = gauges.store;
  tenant->set_tenant(hooks_.tenant);
  tenant->set_pool_limit(s.pool_limit.value());
  tenant->set_pool_online(s.pool_online.value());
  tenant->set_pool_free(s.pool_free.value());
  tenant->set_pool_stored(s.pool_stored.value());
  tenant->set_pool_reserved(s.pool_reserved.value());
  tenant->set_pool_leased(s.pool_leased.value());
  tenant->set_pool_quarantined(gauges.quarantined.value());
  tenant->set_blocks(s.blocks);
  tenant->set_leases(s.leases);
  tenant->set_reservations(s.reservations);
  tenant->set_pins(s.pins);
  tenant->set_sessions(gauges.sessions.all());
  tenant->set_index_bytes(s.index_bytes.value());
  tenant->set_metadata_bytes(s.metadata_bytes.value());
  tenant->set_pages(gauges.pages);
  tenant->set_pool_stalled(gauges.pool_stalled);
  tenant->set_durability(gauges.disk ? "disk: spilled blocks and pins outlive the process"
                                     : "memory only: blocks and pins live until exit");
  for (const auto& [name, value] : hooks_.counters(gauges))
    (*reply->mutable_counters())[name] = value;
  for (const auto& [name, value] : hooks_.readings(gauges))
    (*reply->mutable_gauges())[name] = value;
  for (const Shares::Use& use : gauges.shares) {
    v1::ShareUse* const share = reply->add_shares();
    share->set_kind(std::string(NameOf(use.kind)));
    share->set_held(use.held);
    share->set_limit(use.limit);
    share->set_refused(use.refused);
    for (const Shares::Use::Holder& holder : use.holders) {
      v1::ShareHolder* const who = share->add_holders();
      who->set_who(holder.holder.ToString());
      who->set_held(holder.held);
    }
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const double limit_s = request->limit_s() == 0 ? 30.0 : request->limit_s();
  if (!(limit_s > 0 && limit_s <= 86'400)) {
    reactor->Finish(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                     "limit_s: must be more than 0 and at most 86400, or 0 for the default of 30"));
    return reactor;
  }
  reply->set_sessions(static_cast<uint32_t>(
      hooks_.drain(std::chrono::milliseconds(static_cast<int64_t>(limit_s * 1e3)))));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::VerifyProgress>* AdminService::Verify(
    grpc::CallbackServerContext* context, const v1::VerifyRequest* request) {
  auto* const stream = new ProgressStream<v1::VerifyProgress>(*context);
  wire::VerifyQuery query;
  if (const absl::Status status = wire::Decode(*request, &query); !status.ok()) {
    stream->End(status);
    return stream;
  }
  const bool taken = verifying_.Submit([this, stream, query] {
    stream->End(verifier_.Verify(query, [stream](const wire::VerifyProgress& progress) {
      return stream->ReportEncoded(progress);
    }));
  });
  if (!taken)
    stream->End(Overloaded(*context, std::chrono::seconds(10), "too many calls of Verify wait"));
  return stream;
}

grpc::ServerUnaryReactor* AdminService::Config(grpc::CallbackServerContext* context,
                                               const v1::ConfigRequest*, v1::ConfigReply* reply) {
  reply->set_toml(hooks_.config);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace larder
