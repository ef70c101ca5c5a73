// Blocks over gRPC byte streams: for callers without a sideband, and between hosts.  Two copies and
// two hashes slower than shared memory, and the only road that needs nothing but a connection.
//
// What is read is believed only after the record header was found to be that of the key, and every
// segment's hash to be that of the bytes.
// Ownership: shares the channel.  Thread-safety: all methods from any thread.
// Limits: pieces of kDataBytesMax.  The daemon admits a bounded number of streams at once:
// ResourceExhausted.
#pragma once

#include <memory>
#include <string>

#include "client/transport/transport.h"
#include "storage/mutex.h"

namespace larder {

class RpcChannel;  // client/rpc/rpc_channel.h

class GrpcStreamTransport final : public Transport {
 public:
  // `tenant` empty: the caller's own.
  GrpcStreamTransport(std::shared_ptr<RpcChannel> channel, std::string tenant,
                      std::string engine_id)
      : channel_(std::move(channel)),
        tenant_(std::move(tenant)),
        engine_id_(std::move(engine_id)) {}

  // A content that blocks may belong to, with the session's tenant; the daemon registers it with
  // the first write of one.
  void AddContent(const ContentSpec& content) LARDER_EXCLUDES(mu_);

  [[nodiscard]] const char* name() const override { return "grpc stream"; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options) override;

 private:
  // Which of them a block is of.
  [[nodiscard]] size_t ContentOf(const PutBlock& block) const LARDER_EXCLUDES(mu_);

  const std::shared_ptr<RpcChannel> channel_;
  const std::string tenant_;
  const std::string engine_id_;
  mutable Mutex mu_;
  std::vector<ContentSpec> contents_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
