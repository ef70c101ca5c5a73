// Binds the Session of client/client.h: put and get, promises, and what it knows of itself.
//
// Calls that wait for the daemon or copy blocks release the GIL.  The binding does not copy blocks:
// the client library reads and writes the caller's buffers.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <span>
#include <utility>

#include "client/paged_cache.h"
#include "client/promise.h"
#include "client/python/buffer.h"
#include "client/python/pages.h"
#include "client/python/session.h"
#include "proto/messages/messages.h"
#include "storage/status_macros.h"
#include "storage/time_left.h"

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

std::vector<VariantHandle> Register(const PySession& self, const std::vector<ContentSpec>& contents,
                                    const std::vector<VariantSpec>& variants, double deadline_s) {
  const auto session = self.Open();
  const CallOptions options = Within(deadline_s);
  absl::StatusOr<std::vector<VariantHandle>> handles;
  {
    const WithoutGil released;
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
    const WithoutGil released;
    statuses = session->Put(variant, blocks, options);
  }
  return OrRaise(std::move(statuses));
}

std::vector<BlockStatus> Get(const PySession& self, const VariantHandle& variant,
                             const std::vector<const GetItem*>& items, LeaseId promise,
                             double deadline_s) {
  const auto session = self.Open();
  CallOptions options = Within(deadline_s);
  options.promise = promise;
  Held held;
  held.segments.reserve(items.size());
  std::vector<GetBlock> blocks;
  for (const GetItem* item : items) {
    held.Hold(item->segments, /*writable=*/true, &held.segments);
    blocks.push_back({item->digest, held.segments.back(), item->first_layer});
  }
  absl::StatusOr<std::vector<BlockStatus>> statuses;
  {
    const WithoutGil released;
    statuses = session->Get(variant, blocks, options);
  }
  return OrRaise(std::move(statuses));
}

// Lends a cache of these pages to one call.  The GIL is held when it is made, and when it ends.
class LentCache {
 public:
  LentCache(SessionParts& parts, const VariantHandle& variant, const Pages& pages)
      : parts_(parts), variant_(variant), pages_(pages) {
    const auto same = [&](const SessionParts::IdleCache& one) {
      return one.variant == variant.index && one.pages == pages;
    };
    const auto found = std::ranges::find_if(parts.idle, same);
    if (found == parts.idle.end()) return;
    cache_ = std::move(found->cache);
    parts.idle.erase(found);
  }
  LentCache(const LentCache&) = delete;
  LentCache& operator=(const LentCache&) = delete;
  ~LentCache() {
    if (cache_ == nullptr || !good_) return;
    const bool host = parts_.device->info().kind == DeviceKind::kHost;
    if (parts_.idle.size() >= (host ? kIdleMax : kIdleMaxOnGpu))
      parts_.idle.erase(parts_.idle.begin());
    parts_.idle.push_back({variant_.index, pages_, std::move(cache_)});
  }
  // Makes the cache if there was none.  The GIL need not be held.
  [[nodiscard]] absl::StatusOr<PagedCache*> Get() {
    if (cache_ == nullptr) {
      LARDER_ASSIGN_OR_RETURN(cache_, PagedCache::Make(*parts_.session, *parts_.device, variant_,
                                                       pages_.engine, pages_.payload, {}));
    }
    return cache_.get();
  }
  void Drop() { good_ = false; }  // after an error, the next call makes another one

 private:
  static constexpr size_t kIdleMax = 8;
  static constexpr size_t kIdleMaxOnGpu = 1;  // each has staging memory of the GPU
  SessionParts& parts_;
  const VariantHandle& variant_;
  const Pages& pages_;
  std::unique_ptr<PagedCache> cache_;
  bool good_ = true;
};

nb::bytes GetPages(const PySession& self, const VariantHandle& variant, const Pages& pages,
                   nb::handle digests, nb::handle page_numbers, LeaseId promise,
                   double deadline_s) {
  const auto parts = self.Parts();
  CallOptions options = Within(deadline_s);
  options.promise = promise;
  const std::vector<Digest> names = DigestsOf(digests);
  const std::vector<uint32_t> numbers = NumbersOf(page_numbers);
  const auto page_parts = PagesOf(numbers, names.size());
  absl::StatusOr<std::vector<BlockStatus>> all = std::vector<BlockStatus>();
  LentCache lent(*parts, variant, pages);
  {
    const WithoutGil released;
    const absl::StatusOr<PagedCache*> cache = lent.Get();
    if (!cache.ok()) all = cache.status();
    const TimePoint until = SteadyNow() + options.deadline;
    for (size_t at = 0; all.ok() && at < names.size(); at += PagedCache::kLoadBlocksMax) {
      std::vector<PagedGet> gets;
      for (size_t i = at; i < std::min(names.size(), at + PagedCache::kLoadBlocksMax); ++i)
        gets.push_back({names[i], page_parts[i]});
      options.deadline = MillisecondsLeft(until);
      absl::StatusOr<PagedLoad> load = absl::DeadlineExceededError("the deadline has passed");
      if (options.deadline.count() > 0)
        load = (*cache)->Load(gets, {0, pages.engine.layers}, nullptr, options);
      absl::StatusOr<std::vector<BlockStatus>> some =
          load.ok() ? load->Wait(until) : absl::StatusOr<std::vector<BlockStatus>>(load.status());
      if (some.ok()) all->insert(all->end(), some->begin(), some->end());
      if (!some.ok()) all = some.status();
    }
  }
  if (!all.ok()) lent.Drop();
  const std::vector<BlockStatus> statuses = OrRaise(std::move(all));
  return Packed(statuses.data(), statuses.size());
}

nb::bytes PutPages(const PySession& self, const VariantHandle& variant, const Pages& pages,
                   const Digest& parent, nb::handle digests, nb::handle tokens,
                   nb::handle page_numbers, std::optional<Digest> content, double deadline_s) {
  const auto parts = self.Parts();
  const CallOptions options = Within(deadline_s);
  const std::vector<Digest> names = DigestsOf(digests);
  const std::vector<uint32_t> numbers = NumbersOf(page_numbers), ids = NumbersOf(tokens);
  const auto page_parts = PagesOf(numbers, names.size());
  const size_t each = pages.payload.block_tokens;
  if (ids.size() != names.size() * each)
    Raise(absl::InvalidArgumentError("there must be block_tokens tokens for each block"));
  std::vector<PagedPut> puts;
  for (size_t i = 0; i < names.size(); ++i) {
    puts.push_back({.digest = names[i],
                    .parent = i == 0 ? parent : names[i - 1],
                    .tokens = std::span(ids).subspan(i * each, each),
                    .pages = page_parts[i],
                    .content = content.value_or(Digest())});
  }
  absl::StatusOr<std::vector<BlockStatus>> all = std::vector<BlockStatus>();
  LentCache lent(*parts, variant, pages);
  {
    const WithoutGil released;
    const absl::StatusOr<PagedCache*> cache = lent.Get();
    if (!cache.ok()) all = cache.status();
    if (cache.ok()) all = (*cache)->Put(puts, nullptr, options);
  }
  if (!all.ok()) lent.Drop();
  const std::vector<BlockStatus> statuses = OrRaise(std::move(all));
  return Packed(statuses.data(), statuses.size());
}

// A Promise for Python, which keeps its session alive.
class PyPromise {
 public:
  PyPromise(std::shared_ptr<Session> session, Promise promise)
      : session_(std::move(session)), promise_(std::move(promise)) {}
  PyPromise(const PyPromise&) = delete;
  PyPromise& operator=(const PyPromise&) = delete;
  // Returns the promise with the news that have arrived.
  [[nodiscard]] const Promise& Now() const {
    session_->Poll();
    return promise_;
  }
  [[nodiscard]] LeaseId id() const { return promise_.id(); }
  [[nodiscard]] TokenCount tokens() const { return promise_.tokens(); }
  void Release() { promise_.Release(); }

 private:
  std::shared_ptr<Session> session_;
  Promise promise_;  // destroyed first
};

// Waits for the answer.  Returns null if nothing is stored, or there is no such promise.
std::unique_ptr<PyPromise> Answer(const std::shared_ptr<Session>& session,
                                  absl::StatusOr<PendingPromise> pending, double deadline_s) {
  const CallOptions options = Within(deadline_s);
  OrRaise(pending.status());
  absl::StatusOr<Promise> promise = absl::DeadlineExceededError("no answer within the deadline");
  {
    const WithoutGil released;
    if (pending->Wait(options.deadline)) promise = pending->Take();
  }
  if (absl::IsNotFound(promise.status())) return nullptr;
  return std::make_unique<PyPromise>(session, OrRaise(std::move(promise)));
}

std::unique_ptr<PyPromise> MakePromise(const PySession& self,
                                       const std::vector<VariantHandle>& variants, nb::handle steps,
                                       uint64_t first_token, double life_s, double deadline_s) {
  const auto session = self.Open();
  const std::vector<Digest> chain = DigestsOf(steps);
  return Answer(session,
                session->BeginPromise({.variants = variants,
                                       .chain = chain,
                                       .first_token = TokenCount(first_token),
                                       .life = Milliseconds(life_s, "life_s", 600)}),
                deadline_s);
}

std::unique_ptr<PyPromise> HoldPromise(const PySession& self, LeaseId promise, double life_s,
                                       double deadline_s) {
  const auto session = self.Open();
  return Answer(session, session->HoldPromise(promise, Milliseconds(life_s, "life_s", 600)),
                deadline_s);
}

void ReportDevice(const PySession& self, const VariantHandle& variant, nb::handle stored,
                  nb::handle removed, bool cleared, std::optional<Digest> parent,
                  nb::handle tokens) {
  const auto session = self.Open();
  const std::vector<Digest> in = DigestsOf(stored), out = DigestsOf(removed);
  const std::vector<uint32_t> ids = NumbersOf(tokens);
  absl::Status status;
  {
    const WithoutGil released;
    status = session->ReportDevice(variant, {.cleared = cleared,
                                             .removed = out,
                                             .stored = in,
                                             .parent = parent.value_or(Digest()),
                                             .tokens = ids});
  }
  OrRaise(status);
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

void BindPromises(nb::module_& module) {
  nb::class_<PromisedBlocks>(module, "PromisedBlocks", "Consecutive blocks of one variant.")
      .def_ro("first_block", &PromisedBlocks::first_block,
              "Counted in blocks of the variant, from the beginning of the chain.")
      .def_prop_ro(
          "status",
          [](const PromisedBlocks& self) { return Packed(self.status.data(), self.status.size()); },
          "One byte, a BlockStatus, for each block: OK; PENDING while it is read from disk; or why "
          "it is not there.")
      .def_prop_ro(
          "tiers",
          [](const PromisedBlocks& self) { return Packed(self.tiers.data(), self.tiers.size()); },
          "One byte, the Tier where it was found, for each block.");
  nb::class_<PyPromise>(
      module, "Promise",
      "Blocks that the daemon keeps until all sessions that hold the promise have released it or "
      "have ended, or until its life is over.  One thread at a time uses it.  It keeps its session "
      "alive.")
      .def_prop_ro("id", &PyPromise::id,
                   "For Session.get, EngineCache.begin_load and Session.hold_promise, also in "
                   "other processes of the same engine and user.")
      .def_prop_ro(
          "tokens", [](const PyPromise& self) { return self.tokens().value(); },
          "The longest prefix that all variants can serve; 0 for one that is only held.")
      .def_prop_ro(
          "blocks", [](const PyPromise& self) { return self.Now().blocks(); },
          "A PromisedBlocks for each variant of the query, as far as is known now.")
      .def_prop_ro(
          "pending", [](const PyPromise& self) { return self.Now().pending(); },
          "How many blocks have yet to be read from disk.")
      .def_prop_ro(
          "valid", [](const PyPromise& self) { return self.Now().Valid(); },
          "False once its life is over, or its session has ended.")
      .def("release", &PyPromise::Release, "Lets go of it.  Other holders keep it.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](PyPromise& self, nb::handle, nb::handle, nb::handle) { self.Release(); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

void BindCalls(nb::class_<PySession>& cls) {
  cls.def("register", &Register, "contents"_a, "variants"_a, "deadline_s"_a = 10.0,
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
      .def(
          "get", &Get, "variant"_a, "blocks"_a, nb::kw_only(), "promise"_a = LeaseId(),
          "deadline_s"_a = 10.0,
          "Reads blocks into the caller's buffers, and returns a BlockStatus for each; only the "
          "buffers of OK blocks are filled.  Raises BufferError or ValueError if a segment is not "
          "contiguous or not writable.  promise: the id of a promise of this engine that holds the "
          "blocks.")
      .def(
          "get_pages", &GetPages, "variant"_a, "pages"_a, "digests"_a, "page_numbers"_a,
          nb::kw_only(), "promise"_a = LeaseId(), "deadline_s"_a = 10.0,
          "Reads blocks (16 bytes each) into an engine's pages, and returns one byte, a "
          "BlockStatus, for each.  The pages of blocks that are not OK have undefined content.  On "
          "a GPU, nothing that was queued before may still use the pages, and the bytes are there "
          "when it returns.")
      .def("put_pages", &PutPages, "variant"_a, "pages"_a, nb::kw_only(), "parent"_a, "digests"_a,
           "tokens"_a, "page_numbers"_a, "content"_a = nb::none(), "deadline_s"_a = 10.0,
           "Stores consecutive blocks of a chain from an engine's pages, and returns one byte, a "
           "BlockStatus, for each.  The pages must not change meanwhile.  On a GPU, what computes "
           "them must be done.")
      .def("promise", &MakePromise,
           nb::sig("def promise(self, variants: collections.abc.Sequence[VariantHandle], steps: "
                   "object, *, first_token: int = 0, life_s: float = 30.0, deadline_s: float = "
                   "10.0) -> Promise | None"),
           "variants"_a, "steps"_a, nb::kw_only(), "first_token"_a = 0, "life_s"_a = 30.0,
           "deadline_s"_a = 10.0,
           "Asks for the longest stored prefix that all of these variants can serve, and has the "
           "daemon keep it; blocks on disk are brought to HOST meanwhile.  steps: the digest of "
           "every 16 tokens (chain, TokenChain.steps).  Returns a Promise, or None if nothing is "
           "stored beyond first_token.  Raises RuntimeError if there is no room for it: ask again "
           "later.")
      .def("hold_promise", &HoldPromise,
           nb::sig("def hold_promise(self, promise: int, *, life_s: float = 30.0, deadline_s: "
                   "float = 10.0) -> Promise | None"),
           "promise"_a, nb::kw_only(), "life_s"_a = 30.0, "deadline_s"_a = 10.0,
           "Holds a promise of another session of this engine, by its id, for life_s from now on. "
           " Returns a Promise, or None if there is no such promise any more.")
      .def("report_device", &ReportDevice, "variant"_a, nb::kw_only(),
           "stored"_a = nb::bytes("", 0), "removed"_a = nb::bytes("", 0), "cleared"_a = false,
           "parent"_a = nb::none(), "tokens"_a = nb::bytes("", 0),
           "Tells the daemon which blocks are in this engine's device memory now, and which have "
           "left it, for Client.lookup and events.  cleared: all others are gone.  With `tokens` "
           "(of all stored blocks), `stored` is one chain that goes on after `parent`.");
}

void BindFacts(nb::class_<PySession>& cls) {
  cls.def_prop_ro(
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
      .def_prop_ro(
          "device",
          [](const PySession& self) {
            return std::string(ToString(self.Parts()->device->info().kind));
          },
          "Where this session's pages are: 'host' or 'cuda'.")
      .def_prop_ro(
          "device_reason",
          [](const PySession& self) { return self.Parts()->device->info().reason; },
          "Why device is not 'cuda' although 'auto' was asked for; '' if it is.")
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
           "Ends the session, once its calls under way have ended and its Promises, Leases, "
           "Reservations, Directives and Restorers are gone.  Later calls raise ValueError.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](PySession& self, nb::handle, nb::handle, nb::handle) { self.Close(); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

}  // namespace

CallOptions Within(double deadline_s) {
  if (!(deadline_s > 0)) Raise(absl::InvalidArgumentError("a deadline must be above 0 seconds"));
  CallOptions options;
  options.deadline =
      std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(deadline_s, 600.0) * 1e3)));
  return options;
}

std::chrono::milliseconds Milliseconds(double seconds, const char* name, double most) {
  if (!(seconds >= 0) || seconds > most) {
    Raise(absl::InvalidArgumentError(std::string(name) + " must be 0 to " +
                                     std::to_string(static_cast<int>(most)) + " seconds"));
  }
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1e3)));
}

void BindSession(nb::module_& module) {
  BindBlocks(module);
  BindPromises(module);
  nb::class_<PySession> cls(
      module, "Session",
      "One attached process of an engine.  Any thread may call it, and calls that wait release the "
      "GIL.  After a fork the child must connect again.  Raises ConnectionError if no daemon "
      "answers, or if the daemon has restarted: then attach again.  Lists of digests are sequences "
      "of them, or one buffer of 16 bytes for each.");
  BindCalls(cls);
  BindFacts(cls);
  BindInPlace(module, cls);
  BindDirectives(module, cls);
}

}  // namespace larder::python
