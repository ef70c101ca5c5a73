// Blocks that benchmarks store and read: names that never repeat, memory, puts and gets through the
// client library.
//
// Ownership: values; a Memory owns its mapping.  Thread-safety: none.
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
// Names with a different `salt` are different.
[[nodiscard]] Names MakeNames(const Digest& seed, uint64_t salt, size_t count);

// Memory whose pages have all been touched.
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

// The piece of `all` that the i-th block uses; the pieces are used in a ring.
[[nodiscard]] inline std::span<std::byte> RingPiece(std::span<std::byte> all, size_t i,
                                                    uint64_t bytes) {
  return all.subspan(i % (all.size() / bytes) * bytes, bytes);
}
// The numbers 0 to n-1, shuffled; the same salt gives the same order.
[[nodiscard]] std::vector<uint32_t> ShuffledOrder(size_t n, uint64_t salt);

// An attached session with one variant registered, which every benchmark of bytes needs.
struct Attachment {
  std::unique_ptr<Client> client;
  std::unique_ptr<Session> session;
  VariantHandle variant;
  Digest seed;
};
[[nodiscard]] absl::StatusOr<Attachment> AttachBench(const std::string& socket_dir,
                                                     const BlockShape& shape,
                                                     const SessionOptions& options);

// Blocks to put or get, prepared before the clock starts; a call takes some of them.  The call
// fails unless the answer for every block is kOk.
struct PutPlan {
  std::vector<std::span<const std::byte>> segments;
  std::vector<PutBlock> blocks;
};
// Block i of `names` gets the bytes of block order[i] in `source`.
// REQUIRES: `names` outlives the plan.
[[nodiscard]] PutPlan PlanPuts(const BlockShape& shape, const Names& names,
                               std::span<std::byte> source, std::span<const uint32_t> order);
[[nodiscard]] absl::Status PutAll(Attachment& to, std::span<const PutBlock> blocks,
                                  const CallOptions& options);

struct GetPlan {
  std::vector<std::span<std::byte>> segments;
  std::vector<GetBlock> blocks;
};
// Block i of the plan is digests[order[i]]; its bytes go to the i-th piece of the ring.
[[nodiscard]] GetPlan PlanGets(const BlockShape& shape, std::span<const Digest> digests,
                               std::span<const uint32_t> order, std::span<std::byte> ring);
[[nodiscard]] absl::Status GetAll(Attachment& from, std::span<const GetBlock> blocks);

// Calls call(batch) for every batch of `blocks`, until a call fails.
template <class Block, class Call>
[[nodiscard]] absl::Status InBatches(const std::vector<Block>& blocks, Call call) {
  for (size_t at = 0; at < blocks.size(); at += kBatchBlocks) {
    const auto batch = std::span(blocks).subspan(at, std::min(kBatchBlocks, blocks.size() - at));
    LARDER_RETURN_IF_ERROR(call(batch));
  }
  return absl::OkStatus();
}

// Where the session has mapped these blocks.  The memory stays mapped as long as the session lives,
// but no lease protects the bytes any more: meant for floors, over a pool that evicts nothing.
[[nodiscard]] absl::StatusOr<std::vector<std::span<const std::byte>>> MappedBlocks(
    Attachment& from, const BlockShape& shape, std::span<const Digest> digests);

}  // namespace larder::bench
