#include "cuda/paged_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr uint32_t kHeadsMax = 4096;
constexpr uint32_t kRowBytesMax = 1u << 20;
constexpr uint64_t kStrideMax = uint64_t{1} << 40;

absl::Status Wrong(absl::string_view what, uint64_t got) {
  return absl::InvalidArgumentError(absl::StrCat("paged layout: ", what, ", not ", got));
}

}  // namespace

PagedLayout PagedLayout::Opaque(std::vector<uint64_t> bases, uint32_t page_bytes,
                                uint64_t page_stride, uint32_t pages, uint32_t page_tokens) {
  const uint32_t row = page_bytes / page_tokens;
  return {.layers = static_cast<uint32_t>(bases.size()),
          .planes = 1,
          .heads = 1,
          .row_bytes = row,
          .page_tokens = page_tokens,
          .pages = pages,
          .page_stride = page_stride,
          .token_stride = row,
          .head_stride = row,
          .bases = std::move(bases)};
}

absl::Status PagedLayout::Validate() const {
  if (layers == 0 || layers > kSegmentsMax)
    return Wrong(absl::StrCat("a cache has 1 to ", kSegmentsMax, " layers"), layers);
  if (planes == 0 || planes > kPlanesMax) return Wrong("a layer has 1 or 2 planes", planes);
  if (heads == 0 || heads > kHeadsMax)
    return Wrong(absl::StrCat("a plane has 1 to ", kHeadsMax, " heads"), heads);
  if (row_bytes == 0 || row_bytes > kRowBytesMax)
    return Wrong(absl::StrCat("a row has 1 to ", kRowBytesMax, " bytes"), row_bytes);
  if (page_tokens == 0 || page_tokens > kPagedTokensMax)
    return Wrong(absl::StrCat("a page has 1 to ", kPagedTokensMax, " tokens"), page_tokens);
  if (pages == 0) return Wrong("a cache has at least 1 page", pages);
  for (const uint64_t stride : {page_stride, token_stride, head_stride})
    if (stride > kStrideMax) return Wrong("a stride is at most 1 TiB", stride);
  if (page_tokens > 1 && token_stride < row_bytes)
    return Wrong("tokens are at least a row apart", token_stride);
  if (heads > 1 && head_stride < row_bytes)
    return Wrong("heads are at least a row apart", head_stride);
  if (bases.size() != size_t{layers} * planes)
    return Wrong(
        absl::StrCat("a cache needs a base for each of its ", size_t{layers} * planes, " planes"),
        bases.size());
  return absl::OkStatus();
}

PayloadLayout PayloadLayout::Opaque(const PagedLayout& engine) {
  return {.block_tokens = engine.page_tokens,
          .order = RowOrder::kTokenHead,
          .table = UniformTable(engine.layers, engine.row_bytes * engine.page_tokens)};
}

absl::Status PayloadLayout::Validate(const PagedLayout& engine) const {
  if (block_tokens == 0 || block_tokens > kPagedTokensMax)
    return Wrong(absl::StrCat("a block has 1 to ", kPagedTokensMax, " tokens"), block_tokens);
  if (block_tokens % engine.page_tokens != 0 && engine.page_tokens % block_tokens != 0)
    return Wrong(absl::StrCat("a block of ", block_tokens,
                              " tokens needs pages whose size divides it or is a multiple of it"),
                 engine.page_tokens);
  LARDER_RETURN_IF_ERROR(table.Validate(engine.layers));
  const uint64_t layer_bytes =
      uint64_t{engine.planes} * engine.heads * engine.row_bytes * block_tokens;
  for (const Segment& segment : table.segments) {
    if (segment.codec != Codec::kIdentity)
      return absl::InvalidArgumentError("paged layout: a segment is encoded; decode it first");
    if (segment.bytes != layer_bytes * segment.layers)
      return Wrong(absl::StrCat("a segment of ", segment.layers, " layers has ",
                                layer_bytes * segment.layers, " bytes"),
                   segment.bytes);
  }
  return absl::OkStatus();
}

}  // namespace larder
