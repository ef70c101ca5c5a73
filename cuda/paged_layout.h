// The two layouts of the KV of a block: an engine's and a record's.  A PagedPlan (paged_plan.h) is
// for moves between them.
//
// An engine keeps KV in pages of its own: layer by layer or page by page, K and V apart or fused,
// tokens before heads (NHD) or heads before tokens (HND), one latent row for MLA.  PagedLayout
// describes all of these with an address per layer and plane, and three strides.  The payload of a
// record holds the same rows, layer by layer, in one of two orders.
//
// A plane is K, V, both fused, or MLA's latent.  A row is the bytes of one token and one head in
// one plane; it is contiguous in both layouts.
// Ownership: values.  Thread-safety: pure functions.
// Limits: those that the Validate functions check.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder {

inline constexpr uint32_t kPlanesMax = 2;
inline constexpr uint32_t kPagedTokensMax = 65536;

// An engine's paged cache.  The row of (layer, plane, page, slot in the page, head) is at
//   bases[layer * planes + plane] + page * page_stride + slot * token_stride + head * head_stride.
struct PagedLayout {
  uint32_t layers = 0;
  uint32_t planes = 2;  // 2 for K and V; 1 if they are fused into one row, or for MLA's latent
  uint32_t heads = 0;   // heads of this rank; 1 for MLA
  uint32_t row_bytes = 0;
  uint32_t page_tokens = 0;
  uint32_t pages = 0;
  uint64_t page_stride = 0, token_stride = 0, head_stride = 0;  // bytes
  std::vector<uint64_t> bases;                                  // addresses of device memory

  // Pages that are moved whole, because only the engine knows what is in them: one base for each
  // layer, `page_bytes` at each `page_stride`.  REQUIRES: page_tokens divides page_bytes.
  [[nodiscard]] static PagedLayout Opaque(std::vector<uint64_t> bases, uint32_t page_bytes,
                                          uint64_t page_stride, uint32_t pages,
                                          uint32_t page_tokens);

  [[nodiscard]] absl::Status Validate() const;
  friend bool operator==(const PagedLayout&, const PagedLayout&) = default;
};

// The order of rows inside one plane of one layer of a payload.
enum class RowOrder : uint8_t {
  kTokenHead = 1,  // "NHD"
  kHeadToken = 2,  // "HND"
};

// A record's payload: the layers in order, in each layer its planes in order, in each plane dense
// rows.
struct PayloadLayout {
  uint32_t block_tokens = 0;
  RowOrder order = RowOrder::kTokenHead;
  SegmentTable table;  // identity segments; each layer lies in one segment

  // Returns the layout of payloads that each hold one page of `engine`, byte by byte as it lies
  // there.  REQUIRES: PagedLayout::Opaque returned `engine`.
  [[nodiscard]] static PayloadLayout Opaque(const PagedLayout& engine);

  [[nodiscard]] absl::Status Validate(const PagedLayout& engine) const;
  friend bool operator==(const PayloadLayout&, const PayloadLayout&) = default;
};

struct LayerRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// One block: where its payload lies, and which pages of the engine hold it.
struct PagedBlock {
  // The address of the bytes of the first moved layer in the payload, a multiple of 16.
  uint64_t payload = 0;
  // Numbers of block_tokens / page_tokens pages, or of 1 page if the block is smaller than a page.
  std::span<const uint32_t> pages;
  // The slot of the block's first token in pages[0]; 0 unless the block is smaller than a page.
  uint32_t first_slot = 0;
};

}  // namespace larder
