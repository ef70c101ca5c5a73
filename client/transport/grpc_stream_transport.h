// Blocks over gRPC byte streams, for callers that share no memory with the daemon.
//
// Get reports a block as kOk only after it has checked that the record header names the block's
// key, and that each wanted segment matches its hash.
// Ownership: Shares the channel.
// Thread-safety: All methods may be called from any thread.
// Limits: A message carries at most kDataBytesMax of data.  The daemon refuses a stream with
// ResourceExhausted if, for example, too many are under way.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "client/transport/transport.h"
#include "storage/format/block_key.h"
#include "storage/mutex.h"

namespace larder {

class RpcChannel;  // client/rpc/rpc_channel.h

class GrpcStreamTransport final : public Transport {
 public:
  // An empty `tenant` is the caller's own.  If `engine_id` is not empty, the daemon registers the
  // contents and variants of stored blocks under it.
  GrpcStreamTransport(std::shared_ptr<RpcChannel> channel, std::string tenant,
                      std::string engine_id)
      : channel_(std::move(channel)),
        tenant_(std::move(tenant)),
        engine_id_(std::move(engine_id)) {}

  static constexpr size_t kContentsMax = 65'536;

  // Adds a content that blocks may belong to.  `content.tenant` must be the caller's tenant.
  // Without any content, a Put of a valid block returns FailedPrecondition.  Of more than
  // kContentsMax contents, the one that was added longest ago is forgotten.
  void AddContent(const ContentSpec& content) LARDER_EXCLUDES(mu_);

  [[nodiscard]] const char* name() const override { return "grpc stream"; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options) override;

 private:
  // Returns the id of a content that the session registered: PutBlock::content; if that is not one,
  // the block's parent, which is the content's id in a chain's first block; otherwise the oldest
  // content that this transport still knows.
  [[nodiscard]] Digest ContentOf(const PutBlock& block) const LARDER_REQUIRES(mu_);

  const std::shared_ptr<RpcChannel> channel_;
  const std::string tenant_;
  const std::string engine_id_;
  mutable Mutex mu_;
  absl::flat_hash_map<Digest, ContentSpec> contents_ LARDER_GUARDED_BY(mu_);  // by id
  std::deque<Digest> by_age_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
