// Blocks to store and read in benchmarks: names that never repeat, memory, puts and gets through
// the client library.
//
// Ownership: values; Memory owns its mapping.  Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/harness/shapes.h"
#include "client/client.h"
#include "storage/format/block_key.h"
#include "storage/status_macros.h"
#include "storage/types.h"

namespace larder::bench {

inline constexpr size_t kBatchBlocks = 16;

// Names of consecutive blocks, in chains of kBatchBlocks.
struct Names {
  std::vector<Digest> digests, parents;
  std::vector<uint32_t> tokens;  // kBlockTokens each
  [[nodiscard]] size_t size() const { return digests.size(); }
  [[nodiscard]] std::span<const uint32_t> TokensOf(size_t i) const {
    return std::span(tokens).subspan(i * kBlockTokens, kBlockTokens);
  }
};
// Other `salt`: other names.
[[nodiscard]] Names MakeNames(const Digest& seed, uint64_t salt, size_t count);

// Touched memory.
class Memory {
 public:
  enum class Kind { kPrivate, kSharedMemfd };
  Memory(size_t bytes, Kind kind);  // CHECKs that there is enough
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  void FillRandom() const;

 private:
  std::span<std::byte> bytes_;
};

// The piece of `all` that the i-th block uses, round and round.
[[nodiscard]] inline std::span<std::byte> RingPiece(std::span<std::byte> all, size_t i,
                                                    uint64_t bytes) {
  return all.subspan(i % (all.size() / bytes) * bytes, bytes);
}
// 0 .. n-1 shuffled; the same for the same salt.
[[nodiscard]] std::vector<uint32_t> ShuffledOrder(size_t n, uint64_t salt);

// An attached session with one variant registered, as every benchmark of bytes needs it.
struct Attachment {
  std::unique_ptr<Client> client;
  std::unique_ptr<Session> session;
  VariantHandle variant;
  Digest seed;
};
[[nodiscard]] absl::StatusOr<Attachment> AttachBench(const std::string& socket_dir,
                                                     const BlockShape& shape,
                                                     const SessionOptions& options);

// Blocks to be put or got, made before the clock runs; a call takes some of them.  Every block must
// answer kOk.
struct PutPlan {
  std::vector<std::span<const std::byte>> segments;
  std::vector<PutBlock> blocks;
};
// Block i of `names` gets the bytes of block order[i] in `source`.  REQUIRES: names outlive the
// plan.
[[nodiscard]] PutPlan PlanPuts(const BlockShape& shape, const Names& names,
                               std::span<std::byte> source, std::span<const uint32_t> order);
[[nodiscard]] absl::Status PutAll(Attachment& to, std::span<const PutBlock> blocks,
                                  const CallOptions& options);

struct GetPlan {
  std::vector<std::span<std::byte>> segments;
  std::vector<GetBlock> blocks;
};
// Block i is digests[order[i]], into the i-th piece of the ring.
[[nodiscard]] GetPlan PlanGets(const BlockShape& shape, std::span<const Digest> digests,
                               std::span<const uint32_t> order, std::span<std::byte> ring);
[[nodiscard]] absl::Status GetAll(Attachment& from, std::span<const GetBlock> blocks);

// Calls call(batch) for the batches of `blocks`, until an error.
template <class Block, class Call>
[[nodiscard]] absl::Status InBatches(const std::vector<Block>& blocks, Call call) {
  for (size_t at = 0; at < blocks.size(); at += kBatchBlocks) {
    const auto batch = std::span(blocks).subspan(at, std::min(kBatchBlocks, blocks.size() - at));
    LARDER_RETURN_IF_ERROR(call(batch));
  }
  return absl::OkStatus();
}

// Where the session has mapped these blocks.  The memory stays mapped as long as the session, but
// nothing promises the bytes any more: for floors, over a pool that nothing is evicted from.
[[nodiscard]] absl::StatusOr<std::vector<std::span<const std::byte>>> MappedBlocks(
    Attachment& from, const BlockShape& shape, std::span<const Digest> digests);

}  // namespace larder::bench
