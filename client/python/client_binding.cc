// Binds client/client.h: attach, put and get through a running daemon.
//
// Calls that wait for the daemon or copy blocks release the GIL.  The binding does not copy blocks:
// the client library reads and writes the caller's buffers.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <span>

#include "client/client.h"
#include "client/paged_cache.h"
#include "client/python/buffer.h"
#include "client/python/pages.h"
#include "cuda/device.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"

namespace larder::python {
namespace {

// The buffers of a batch, and the spans over them.
struct Held {
  std::deque<Buffer> buffers;
  std::vector<std::vector<std::span<std::byte>>> segments;
  std::vector<std::vector<std::span<const std::byte>>> constant_segments;

  template <class Spans>
  void Hold(nb::handle objects, bool writable, std::vector<Spans>* spans) {
    Spans& block = spans->emplace_back();
    for (nb::handle object : objects)
      block.emplace_back(buffers.emplace_back(object, writable).bytes());
  }
};

// One block of a batch, as Python passes it.
struct PutItem {
  Digest digest, parent;
  std::vector<uint32_t> tokens;
  nb::object segments;
  Digest content;
};
struct GetItem {
  Digest digest;
  nb::object segments;
  uint32_t first_layer = 0;
};

CallOptions Within(double deadline_s) {
  if (!(deadline_s > 0)) Raise(absl::InvalidArgumentError("a deadline must be above 0 seconds"));
  CallOptions options;
  options.deadline =
      std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(deadline_s, 600.0) * 1e3)));
  return options;
}

std::string BytesOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes PyBytesOf(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// A Session for Python.  The session ends once Close was called (by close(), or by the destructor)
// and no call on it is under way.
class PySession {
 public:
  PySession(std::shared_ptr<Client> client, std::unique_ptr<Device> device,
            std::unique_ptr<Session> session)
      : client_(std::move(client)), device_(std::move(device)), session_(std::move(session)) {}
  ~PySession() { Close(); }

  // Returns the session, which the returned pointer keeps alive during one call.  Raises ValueError
  // if the session is closed.
  [[nodiscard]] std::shared_ptr<Session> Open() const {
    if (session_ == nullptr) Raise(absl::InvalidArgumentError("the session is closed"));
    return session_;
  }
  [[nodiscard]] Device& device() const { return *device_; }
  void Close() {
    std::shared_ptr<Session> last = std::move(session_);
    nb::gil_scoped_release released;
    last.reset();
  }

 private:
  std::shared_ptr<Client> client_;
  std::shared_ptr<Device> device_;  // the host's memory; destroyed after the session
  std::shared_ptr<Session> session_;
};

std::vector<VariantHandle> Register(const PySession& self, const std::vector<ContentSpec>& contents,
                                    const std::vector<VariantSpec>& variants, double deadline_s) {
  const auto session = self.Open();
  const CallOptions options = Within(deadline_s);
  absl::StatusOr<std::vector<VariantHandle>> handles;
  {
    nb::gil_scoped_release released;
    handles = session->Register(contents, variants, options);
  }
  return OrRaise(std::move(handles));
}

std::vector<BlockStatus> Put(const PySession& self, const VariantHandle& variant,
                             const std::vector<const PutItem*>& items, double deadline_s) {
  const auto session = self.Open();
  const CallOptions options = Within(deadline_s);
  Held held;
  held.constant_segments.reserve(items.size());
  std::vector<PutBlock> blocks;
  for (const PutItem* item : items) {
    held.Hold(item->segments, /*writable=*/false, &held.constant_segments);
    blocks.push_back(
        {item->digest, item->parent, item->tokens, held.constant_segments.back(), item->content});
  }
  absl::StatusOr<std::vector<BlockStatus>> statuses;
  {
    nb::gil_scoped_release released;
    statuses = session->Put(variant, blocks, options);
  }
  return OrRaise(std::move(statuses));
}

std::vector<BlockStatus> Get(const PySession& self, const VariantHandle& variant,
                             const std::vector<const GetItem*>& items, double deadline_s) {
  const auto session = self.Open();
  const CallOptions options = Within(deadline_s);
  Held held;
  held.segments.reserve(items.size());
  std::vector<GetBlock> blocks;
  for (const GetItem* item : items) {
    held.Hold(item->segments, /*writable=*/true, &held.segments);
    blocks.push_back({item->digest, held.segments.back(), item->first_layer});
  }
  absl::StatusOr<std::vector<BlockStatus>> statuses;
  {
    nb::gil_scoped_release released;
    statuses = session->Get(variant, blocks, options);
  }
  return OrRaise(std::move(statuses));
}

// What a call on pages needs; the GIL is not held while it is made.
absl::StatusOr<std::unique_ptr<PagedCache>> CacheOf(const PySession& self, Session& session,
                                                    const VariantHandle& variant,
                                                    const Pages& pages) {
  return PagedCache::Make(session, self.device(), variant, pages.engine, pages.payload, {});
}

// The pages of each of `blocks` blocks.
std::vector<std::span<const uint32_t>> PagesOf(const std::vector<uint32_t>& pages, size_t blocks) {
  if (blocks == 0 || pages.size() % blocks != 0 || pages.empty())
    Raise(absl::InvalidArgumentError("each block must have the same number of pages"));
  std::vector<std::span<const uint32_t>> parts;
  const size_t each = pages.size() / blocks;
  for (size_t i = 0; i < blocks; ++i) parts.push_back(std::span(pages).subspan(i * each, each));
  return parts;
}

nb::bytes GetPages(const PySession& self, const VariantHandle& variant, const Pages& pages,
                   nb::handle digests, nb::handle page_numbers, double deadline_s) {
  const auto session = self.Open();
  const CallOptions options = Within(deadline_s);
  const std::vector<Digest> names = ValuesOf<Digest>(digests);
  const std::vector<uint32_t> numbers = NumbersOf(page_numbers);
  const auto parts = PagesOf(numbers, names.size());
  absl::StatusOr<std::vector<BlockStatus>> all = std::vector<BlockStatus>();
  {
    nb::gil_scoped_release released;
    absl::StatusOr<std::unique_ptr<PagedCache>> cache = CacheOf(self, *session, variant, pages);
    if (!cache.ok()) all = cache.status();
    const TimePoint until = SteadyNow() + options.deadline;
    for (size_t at = 0; all.ok() && at < names.size(); at += PagedCache::kLoadBlocksMax) {
      std::vector<PagedGet> gets;
      for (size_t i = at; i < std::min(names.size(), at + PagedCache::kLoadBlocksMax); ++i)
        gets.push_back({names[i], parts[i]});
      absl::StatusOr<PagedLoad> load =
          (*cache)->Load(gets, {0, pages.engine.layers}, nullptr, options);
      absl::StatusOr<std::vector<BlockStatus>> some =
          load.ok() ? load->Wait(until) : absl::StatusOr<std::vector<BlockStatus>>(load.status());
      if (some.ok()) all->insert(all->end(), some->begin(), some->end());
      if (!some.ok()) all = some.status();
    }
  }
  const std::vector<BlockStatus> statuses = OrRaise(std::move(all));
  return Packed(statuses.data(), statuses.size());
}

nb::bytes PutPages(const PySession& self, const VariantHandle& variant, const Pages& pages,
                   const Digest& parent, nb::handle digests, nb::handle tokens,
                   nb::handle page_numbers, std::optional<Digest> content, double deadline_s) {
  const auto session = self.Open();
  const CallOptions options = Within(deadline_s);
  const std::vector<Digest> names = ValuesOf<Digest>(digests);
  const std::vector<uint32_t> numbers = NumbersOf(page_numbers), ids = NumbersOf(tokens);
  const auto parts = PagesOf(numbers, names.size());
  const size_t each = pages.payload.block_tokens;
  if (ids.size() != names.size() * each)
    Raise(absl::InvalidArgumentError("there must be block_tokens tokens for each block"));
  std::vector<PagedPut> puts;
  for (size_t i = 0; i < names.size(); ++i) {
    puts.push_back({.digest = names[i],
                    .parent = i == 0 ? parent : names[i - 1],
                    .tokens = std::span(ids).subspan(i * each, each),
                    .pages = parts[i],
                    .content = content.value_or(Digest())});
  }
  absl::StatusOr<std::vector<BlockStatus>> all = std::vector<BlockStatus>();
  {
    nb::gil_scoped_release released;
    absl::StatusOr<std::unique_ptr<PagedCache>> cache = CacheOf(self, *session, variant, pages);
    if (!cache.ok()) all = cache.status();
    if (cache.ok()) all = (*cache)->Put(puts, nullptr, options);
  }
  const std::vector<BlockStatus> statuses = OrRaise(std::move(all));
  return Packed(statuses.data(), statuses.size());
}

void BindSpecs(nb::module_& module) {
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
  nb::enum_<GroupKind>(module, "GroupKind",
                       "Which blocks of a prefix an engine needs to go on after it.")
      .value("FULL", GroupKind::kFull, "all of them: full attention")
      .value("WINDOW", GroupKind::kWindow, "those that cover its last window_tokens tokens")
      .value("STATE", GroupKind::kState, "the last one: recurrent layers");
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
      .def_ro("spec", &VariantHandle::spec);
}

void BindBlocks(nb::module_& module) {
  nb::class_<PutItem>(
      module, "PutBlock",
      "One block to store.  tokens are block_tokens ids.  segments are one contiguous buffer per "
      "layer (numpy array, bytes, memoryview), which Session.put reads.  parent is the digest of "
      "the block before, or the content's seed.")
      .def(
          "__init__",
          [](PutItem* self, Digest digest, Digest parent, std::vector<uint32_t> tokens,
             nb::typed<nb::sequence, nb::object> segments, std::optional<Digest> content) {
            new (self) PutItem{digest, parent, std::move(tokens), std::move(segments),
                               content.value_or(Digest())};
          },
          "digest"_a, "parent"_a, "tokens"_a, "segments"_a, "content"_a = nb::none());
  nb::class_<GetItem>(
      module, "GetBlock",
      "One block to read.  segments are one writable contiguous buffer per wanted layer, each of "
      "exactly the stored size, which Session.get fills.  first_layer counts within the block.")
      .def(
          "__init__",
          [](GetItem* self, Digest digest, nb::typed<nb::sequence, nb::object> segments,
             uint32_t first_layer) {
            new (self) GetItem{digest, std::move(segments), first_layer};
          },
          "digest"_a, "segments"_a, "first_layer"_a = 0);
}

void BindSession(nb::module_& module) {
  nb::class_<PySession>(
      module, "Session",
      "One attached process of an engine.  Any thread may call it, and calls that wait release the "
      "GIL.  After a fork the child must connect again.  Raises ConnectionError if no daemon "
      "answers, or if the daemon has restarted: then attach again.")
      .def("register", &Register, "contents"_a, "variants"_a, "deadline_s"_a = 10.0,
           "Returns one handle per variant, in their order.")
      .def(
          "seed",
          [](const PySession& self, const ContentSpec& content) {
            return self.Open()->Seed(content);
          },
          "content"_a, "Returns the digest (16 bytes) that the content's chains begin with.")
      .def("put", &Put, "variant"_a, "blocks"_a, "deadline_s"_a = 10.0,
           "Stores blocks, and returns a BlockStatus for each.  Raises BufferError or ValueError "
           "if a segment is not contiguous.")
      .def("get", &Get, "variant"_a, "blocks"_a, "deadline_s"_a = 10.0,
           "Reads blocks into the caller's buffers, and returns a BlockStatus for each; only the "
           "buffers of OK blocks are filled.  Raises BufferError or ValueError if a segment is not "
           "contiguous or not writable.")
      .def("get_pages", &GetPages, "variant"_a, "pages"_a, "digests"_a, "page_numbers"_a,
           "deadline_s"_a = 10.0,
           "Reads blocks (16 bytes each) into an engine's pages, and returns one byte, a "
           "BlockStatus, for each.  The pages of blocks that are not OK have undefined content.")
      .def("put_pages", &PutPages, "variant"_a, "pages"_a, nb::kw_only(), "parent"_a, "digests"_a,
           "tokens"_a, "page_numbers"_a, "content"_a = nb::none(), "deadline_s"_a = 10.0,
           "Stores consecutive blocks of a chain from an engine's pages, and returns one byte, a "
           "BlockStatus, for each.  The pages must not change meanwhile.")
      .def_prop_ro(
          "write_mode",
          [](const PySession& self) { return std::string(ToString(self.Open()->write_mode())); })
      .def_prop_ro(
          "write_mode_reason",
          [](const PySession& self) { return self.Open()->write_mode_reason(); },
          "Why write_mode is not 'mapped'; '' if it is.")
      .def_prop_ro(
          "read_mode",
          [](const PySession& self) { return std::string(ToString(self.Open()->read_mode())); })
      .def_prop_ro(
          "read_mode_reason", [](const PySession& self) { return self.Open()->read_mode_reason(); },
          "Why read_mode is not 'mapped'; '' if it is.")
      .def_prop_ro("tenant", [](const PySession& self) { return self.Open()->attached().tenant; })
      .def_prop_ro(
          "slab_bytes",
          [](const PySession& self) { return self.Open()->attached().slab_bytes.value(); },
          "The largest block that the daemon takes.")
      .def_prop_ro(
          "makes_promises",
          [](const PySession& self) {
            return (self.Open()->attached().feature_bits & wire::kFeaturePromises) != 0;
          },
          "Whether the daemon holds found blocks until an engine has read them; older ones do not.")
      .def("close", &PySession::Close,
           "Ends the session once its calls under way have ended.  Later calls raise ValueError.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](PySession& self, nb::handle, nb::handle, nb::handle) { self.Close(); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

std::shared_ptr<Client> Connect(const std::string& socket_dir, const std::string& tenant,
                                double connect_deadline_s) {
  ClientOptions options{.socket_dir = socket_dir, .tenant = tenant};
  options.connect_deadline = Within(connect_deadline_s).deadline;
  absl::StatusOr<std::unique_ptr<Client>> client = absl::UnknownError("");
  {
    nb::gil_scoped_release released;
    client = Client::Connect(options);
  }
  return OrRaise(std::move(client));
}

std::unique_ptr<PySession> Attach(const std::shared_ptr<Client>& self, const std::string& engine_id,
                                  uint32_t rank, uint32_t copy_threads) {
  absl::StatusOr<OpenedDevice> opened = OpenDevice(DeviceWish::kHost);
  OrRaise(opened.status());
  const SessionOptions options{.engine_id = engine_id,
                               .rank = rank,
                               .copy_threads = copy_threads,
                               .device = opened->device.get()};
  absl::StatusOr<std::unique_ptr<Session>> session = absl::UnknownError("");
  {
    nb::gil_scoped_release released;
    session = self->Attach(options);
  }
  return std::make_unique<PySession>(self, std::move(opened->device), OrRaise(std::move(session)));
}

}  // namespace

void BindClient(nb::module_& module) {
  BindSpecs(module);
  BindBlocks(module);
  BindSession(module);
  nb::class_<Client>(module, "Client",
                     "A connection to the daemon of this node.  Any thread may call it; its "
                     "sessions keep it alive.")
      .def("attach", &Attach, "engine_id"_a, "rank"_a = 0, "copy_threads"_a = 1,
           "Returns a new session.  Raises RuntimeError if there are too many sessions.");
  module.def("connect", &Connect, "socket_dir"_a = "", "tenant"_a = "",
             "connect_deadline_s"_a = 5.0,
             "Returns a client of the daemon whose socket files are in this folder; by default "
             "$LARDER_SOCKET_DIR, otherwise /run/larder, otherwise $XDG_RUNTIME_DIR/larder.  "
             "Raises ConnectionError, which says what to do, if no daemon answers there.");
  module.def(
      "chain",
      [](const Digest& seed, const std::vector<uint32_t>& tokens) { return Chain(seed, tokens); },
      "seed"_a, "tokens"_a,
      "Returns the digest chain of token ids (any sequence of ints), one digest for every 16 of "
      "them.  Each digest names its 16 tokens and all tokens before them.  The digest of a block "
      "is that of its last 16 tokens.");
}

}  // namespace larder::python
