// Binds what engines say of their KV, and the enumerations of the API: storage/types.h,
// storage/format/block_key.h.
#include <nanobind/stl/tuple.h>

#include "client/client.h"
#include "client/python/binding.h"
#include "client/python/session.h"
#include "proto/messages/client_messages.h"

namespace larder::python {
namespace {

std::string BytesOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes PyBytesOf(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

void BindEnumerations(nb::module_& module) {
  nb::enum_<BlockStatus>(module, "BlockStatus")
      .value("OK", BlockStatus::kOk)
      .value("MISSING", BlockStatus::kMissing)
      .value("PENDING", BlockStatus::kPending)
      .value("DUPLICATE", BlockStatus::kDuplicate)
      .value("FULL", BlockStatus::kFull)
      .value("INVALID", BlockStatus::kInvalid)
      .value("DAMAGED", BlockStatus::kDamaged)
      .value("NOT_HELD", BlockStatus::kNotHeld)
      .value("CANCELLED", BlockStatus::kCancelled)
      .value("UNSUPPORTED", BlockStatus::kUnsupported)
      .value("KEPT", BlockStatus::kKept);
  nb::enum_<Tier>(module, "Tier")
      .value("DEVICE", Tier::kDevice)
      .value("HOST", Tier::kHost)
      .value("DISK", Tier::kDisk)
      .value("REMOTE", Tier::kRemote);
  nb::enum_<wire::SelectionScope>(module, "SelectionScope", "What Client.clear removes.")
      .value("BLOCKS", wire::SelectionScope::kBlocks, "the blocks that a BlockSelection names")
      .value("PREFIX", wire::SelectionScope::kPrefix, "these blocks and all that continue them")
      .value("CONTENT", wire::SelectionScope::kContent, "every block of a content")
      .value("ALL", wire::SelectionScope::kAll, "every block of the tenant")
      .value("WRITER", wire::SelectionScope::kWriter, "what one user or engine has stored");
  nb::enum_<GroupKind>(module, "GroupKind",
                       "Which blocks of a prefix an engine needs to go on after it.")
      .value("FULL", GroupKind::kFull, "all of them: full attention")
      .value("WINDOW", GroupKind::kWindow, "those that cover its last window_tokens tokens")
      .value("STATE", GroupKind::kState, "the last one: recurrent layers");
}

void BindContent(nb::module_& module) {
  nb::class_<ContentSpec>(module, "ContentSpec",
                          "What gives token ids their meaning: the model, its revision and so on.")
      .def(
          "__init__",
          [](ContentSpec* self, std::string model, std::string revision, const nb::bytes& salt,
             std::string lora, const nb::bytes& multimodal) {
            new (self) ContentSpec{"",
                                   std::move(model),
                                   std::move(revision),
                                   BytesOf(salt),
                                   std::move(lora),
                                   BytesOf(multimodal)};
          },
          "model"_a, "revision"_a = "", "salt"_a = nb::bytes("", 0), "lora"_a = "",
          "multimodal"_a = nb::bytes("", 0))
      .def_ro("model", &ContentSpec::model)
      .def_ro("revision", &ContentSpec::revision)
      .def_prop_ro("salt", [](const ContentSpec& self) { return PyBytesOf(self.salt); })
      .def_ro("lora", &ContentSpec::lora)
      .def_prop_ro("multimodal", [](const ContentSpec& self) { return PyBytesOf(self.multimodal); })
      .def("__eq__",
           [](const ContentSpec& self, const ContentSpec& other) { return self == other; })
      .def("__hash__",
           [](const ContentSpec& self) {
             return nb::hash(nb::make_tuple(self.model, self.revision, PyBytesOf(self.salt),
                                            self.lora, PyBytesOf(self.multimodal)));
           })
      .def("__getstate__",
           [](const ContentSpec& self) {
             return nb::make_tuple(self.model, self.revision, PyBytesOf(self.salt), self.lora,
                                   PyBytesOf(self.multimodal));
           })
      .def(
          "__setstate__",
          [](ContentSpec& self,
             const std::tuple<std::string, std::string, nb::bytes, std::string, nb::bytes>& state) {
            new (&self) ContentSpec{"",
                                    std::get<0>(state),
                                    std::get<1>(state),
                                    BytesOf(std::get<2>(state)),
                                    std::get<3>(state),
                                    BytesOf(std::get<4>(state))};
          });
}

void BindVariant(nb::module_& module) {
  nb::class_<VariantSpec>(module, "VariantSpec",
                          "How an engine lays out its KV.  block_tokens is a multiple of 16.")
      .def(
          "__init__",
          [](VariantSpec* self, std::string dtype, std::string layout, uint32_t block_tokens,
             uint32_t layers, uint32_t first_layer, std::string group, uint32_t rank,
             uint32_t ranks, GroupKind kind, uint32_t window_tokens) {
            new (self) VariantSpec{std::move(dtype),
                                   std::move(layout),
                                   rank,
                                   ranks,
                                   std::move(group),
                                   block_tokens,
                                   layers,
                                   first_layer,
                                   kind,
                                   window_tokens};
          },
          nb::kw_only(), "dtype"_a, "layout"_a, "block_tokens"_a, "layers"_a, "first_layer"_a = 0,
          "group"_a = "", "rank"_a = 0, "ranks"_a = 1, "kind"_a = GroupKind::kFull,
          "window_tokens"_a = 0)
      .def_ro("layers", &VariantSpec::layers)
      .def_ro("block_tokens", &VariantSpec::block_tokens);
  nb::class_<VariantHandle>(module, "VariantHandle", "A variant that one session has registered.")
      .def_ro("id", &VariantHandle::id)
      .def_ro("index", &VariantHandle::index)
      .def_ro("spec", &VariantHandle::spec);
}

}  // namespace

Role RoleOf(const std::string& role) {
  for (const Role one : {Role::kScheduler, Role::kWorker, Role::kBoth})
    if (role == ToString(one)) return one;
  Raise(absl::InvalidArgumentError("role must be 'scheduler', 'worker' or 'both'"));
}

void BindSpecs(nb::module_& module) {
  BindEnumerations(module);
  BindContent(module);
  BindVariant(module);
}

}  // namespace larder::python
