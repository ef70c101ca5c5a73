// Binds cuda/paged_layout.h: where an engine keeps its KV.
#include <nanobind/stl/string.h>

#include <utility>

#include "client/python/binding.h"
#include "client/python/pages.h"

namespace larder::python {
namespace {

Pages Checked(Pages pages) {
  OrRaise(pages.engine.Validate());
  OrRaise(pages.payload.Validate(pages.engine));
  return pages;
}

Pages MakePages(std::vector<uint64_t> bases, uint32_t layers, uint32_t planes, uint32_t heads,
                uint32_t row_bytes, uint32_t page_tokens, uint32_t pages, uint64_t page_stride,
                uint64_t token_stride, uint64_t head_stride, uint32_t block_tokens,
                const std::string& order) {
  if (order != "token_head" && order != "head_token")
    Raise(absl::InvalidArgumentError("order must be 'token_head' or 'head_token'"));
  const uint64_t segment = uint64_t{planes} * block_tokens * heads * row_bytes;
  if (layers == 0 || segment == 0 || segment > UINT32_MAX)
    Raise(absl::InvalidArgumentError("a block of one layer must have 1 byte to 4 GiB"));
  return Checked(
      {.engine = {.layers = layers,
                  .planes = planes,
                  .heads = heads,
                  .row_bytes = row_bytes,
                  .page_tokens = page_tokens,
                  .pages = pages,
                  .page_stride = page_stride,
                  .token_stride = token_stride,
                  .head_stride = head_stride,
                  .bases = std::move(bases)},
       .payload = {.block_tokens = block_tokens,
                   .order = order == "head_token" ? RowOrder::kHeadToken : RowOrder::kTokenHead,
                   .table = UniformTable(layers, static_cast<uint32_t>(segment))}});
}

Pages MakeOpaquePages(std::vector<uint64_t> bases, uint64_t page_bytes, uint64_t page_stride,
                      uint32_t pages, uint32_t page_tokens) {
  if (page_tokens == 0 || page_bytes % page_tokens != 0 || page_bytes > UINT32_MAX)
    Raise(absl::InvalidArgumentError(
        "page_bytes must be a multiple of page_tokens, and less than 4 GiB"));
  Pages made;
  made.engine = PagedLayout::Opaque(std::move(bases), static_cast<uint32_t>(page_bytes),
                                    page_stride, pages, page_tokens);
  OrRaise(made.engine.Validate());
  made.payload = PayloadLayout::Opaque(made.engine);
  return Checked(std::move(made));
}

}  // namespace

void BindPages(nb::module_& module) {
  nb::class_<Pages>(
      module, "PageLayout",
      "Where an engine keeps its KV: the row of (layer, plane, page, slot, head) is at bases[layer "
      "* planes + plane] + page * page_stride + slot * token_stride + head * head_stride.  bases "
      "are addresses; strides and row_bytes are bytes.  The caller keeps the memory alive for as "
      "long as an EngineCache uses it.  Raises ValueError if the numbers do not fit each other.")
      .def(
          "__init__",
          [](Pages* self, std::vector<uint64_t> bases, uint32_t layers, uint32_t planes,
             uint32_t heads, uint32_t row_bytes, uint32_t page_tokens, uint32_t pages,
             uint64_t page_stride, uint64_t token_stride, uint64_t head_stride,
             uint32_t block_tokens, const std::string& order) {
            new (self) Pages(MakePages(std::move(bases), layers, planes, heads, row_bytes,
                                       page_tokens, pages, page_stride, token_stride, head_stride,
                                       block_tokens, order));
          },
          nb::kw_only(), "bases"_a, "layers"_a, "planes"_a, "heads"_a, "row_bytes"_a,
          "page_tokens"_a, "pages"_a, "page_stride"_a, "token_stride"_a, "head_stride"_a,
          "block_tokens"_a, "order"_a = "token_head")
      .def_static("opaque", &MakeOpaquePages, "bases"_a, nb::kw_only(), "page_bytes"_a,
                  "page_stride"_a, "pages"_a, "page_tokens"_a,
                  "Pages that are moved whole, because only the engine knows what is in them: one "
                  "base for each layer, and a block is one page.")
      .def_prop_ro("block_bytes",
                   [](const Pages& self) { return self.payload.table.PayloadBytes().value(); })
      .def_prop_ro("block_tokens", [](const Pages& self) { return self.payload.block_tokens; })
      .def_prop_ro("layers", [](const Pages& self) { return self.engine.layers; })
      .def_prop_ro("pages", [](const Pages& self) { return self.engine.pages; });
}

}  // namespace larder::python
