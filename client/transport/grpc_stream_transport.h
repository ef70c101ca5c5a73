// Blocks over gRPC byte streams, for callers without a sideband and between hosts.  It takes two
// copies and two hashes more than shared memory, but it is the only transport that needs nothing
// but a connection.
//
// It trusts what it reads only after it has checked that the record header is the key's, and that
// every segment has its hash.
// Ownership: Shares the channel.
// Thread-safety: All methods may be called from any thread.
// Limits: A message carries at most kDataBytesMax of data.  The daemon admits a bounded number of
// streams at once and refuses more with ResourceExhausted.
#pragma once

#include <memory>
#include <string>

#include "client/transport/transport.h"
#include "storage/mutex.h"

namespace larder {

class RpcChannel;  // client/rpc/rpc_channel.h

class GrpcStreamTransport final : public Transport {
 public:
  // An empty `tenant` is the caller's own.
  GrpcStreamTransport(std::shared_ptr<RpcChannel> channel, std::string tenant,
                      std::string engine_id)
      : channel_(std::move(channel)),
        tenant_(std::move(tenant)),
        engine_id_(std::move(engine_id)) {}

  // Adds a content that blocks may belong to, with the session's tenant.  The daemon registers it
  // with the first write of such a block.
  void AddContent(const ContentSpec& content) LARDER_EXCLUDES(mu_);

  [[nodiscard]] const char* name() const override { return "grpc stream"; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options) override;

 private:
  // Returns the index in contents_ of the content that the block belongs to.
  [[nodiscard]] size_t ContentOf(const PutBlock& block) const LARDER_EXCLUDES(mu_);

  const std::shared_ptr<RpcChannel> channel_;
  const std::string tenant_;
  const std::string engine_id_;
  mutable Mutex mu_;
  std::vector<ContentSpec> contents_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
