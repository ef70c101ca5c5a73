// Binds client/engine: chains of requests, and lookups, loads and stores that do not wait.
//
// Python passes lists of digests, tokens and pages as packed buffers, a whole batch in one call.
// The threads of EngineCache run no Python code, so they never wait for the GIL.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <utility>

#include "client/claims/claim_loader.h"
#include "client/engine/engine_cache.h"
#include "client/engine/linked_store.h"
#include "client/engine/loopback_store.h"
#include "client/engine/session_store.h"
#include "client/engine/token_chain.h"
#include "client/python/buffer.h"
#include "client/python/claim_board.h"
#include "client/python/directive.h"
#include "client/python/pages.h"
#include "client/python/session.h"
#include "cuda/device.h"
#include "storage/clock.h"

namespace larder::python {
namespace {

// ---- a request's chain

class PyChain {
 public:
  PyChain(const Digest& seed, uint32_t block_tokens) : chain_(seed), block_tokens_(block_tokens) {
    if (block_tokens == 0 || block_tokens % kStepTokens != 0)
      Raise(absl::InvalidArgumentError("block_tokens must be a multiple of 16"));
  }
  size_t Extend(size_t first, nb::handle tokens) {
    const std::vector<uint32_t> numbers = NumbersOf(tokens);
    if (first > chain_.tokens().size())
      Raise(absl::InvalidArgumentError("tokens before `first` are missing"));
    const WithoutGil released;
    chain_.Extend(first, numbers);
    return Blocks();
  }
  [[nodiscard]] size_t Blocks() const { return chain_.Blocks(block_tokens_); }
  [[nodiscard]] size_t Known() const { return chain_.tokens().size(); }
  [[nodiscard]] std::vector<Digest> Digests(size_t first, size_t last) const {
    Check(first, last);
    std::vector<Digest> digests;
    for (size_t b = first; b < last; ++b) digests.push_back(chain_.DigestOf(b, block_tokens_));
    return digests;
  }
  [[nodiscard]] Digest Parent(size_t block) const {
    Check(block, block);
    return chain_.ParentOf(block, block_tokens_);
  }
  [[nodiscard]] std::span<const uint32_t> Tokens(size_t first, size_t last) const {
    Check(first, last);
    return chain_.tokens().subspan(first * block_tokens_, (last - first) * block_tokens_);
  }
  [[nodiscard]] std::span<const Digest> steps() const { return chain_.steps(); }

 private:
  void Check(size_t first, size_t last) const {
    if (first > last || last > Blocks()) Raise(absl::OutOfRangeError("there is no such block"));
  }
  TokenChain chain_;
  uint32_t block_tokens_;
};

void BindChain(nb::module_& module) {
  nb::class_<PyChain>(
      module, "TokenChain",
      "The digests of one request's blocks, which grow as tokens are computed.  One thread at a "
      "time uses it.  Blocks are counted from the beginning of the request; a range is [first, "
      "last), and raises RuntimeError if there is no such block.")
      .def(nb::init<Digest, uint32_t>(), "seed"_a, nb::kw_only(), "block_tokens"_a)
      .def("extend", &PyChain::Extend, "first"_a, "tokens"_a,
           "Appends those of `tokens` (a buffer of 32-bit ids, or a sequence of ints), which are "
           "the request's from number `first` on, that it does not have yet.  Returns the number "
           "of whole blocks.  Releases the GIL while it hashes.")
      .def_prop_ro("blocks", &PyChain::Blocks)
      .def_prop_ro("tokens_known", &PyChain::Known)
      .def_prop_ro(
          "steps",
          [](const PyChain& self) {
            return Packed(self.steps().data(), self.steps().size_bytes());
          },
          "16 bytes, a digest, for every 16 tokens (Session.promise).")
      .def(
          "digests",
          [](const PyChain& self, size_t first, size_t last) {
            const std::vector<Digest> digests = self.Digests(first, last);
            return Packed(digests.data(), digests.size() * sizeof(Digest));
          },
          "first"_a, "last"_a, "Returns 16 bytes for each block.")
      .def("parent", &PyChain::Parent, "block"_a,
           "Returns the digest of the block before this one; of the first one, the seed.")
      .def(
          "tokens",
          [](const PyChain& self, size_t first, size_t last) {
            const std::span<const uint32_t> tokens = self.Tokens(first, last);
            return Packed(tokens.data(), tokens.size_bytes());
          },
          "first"_a, "last"_a, "Returns 4 bytes, little-endian, for each token.");
}

// ---- the cache

// A PageFence over a buffer, which it keeps.
struct PyPageFence {
  explicit PyPageFence(nb::handle memory)
      : buffer(memory, /*writable=*/true), fence(Checked(buffer.bytes())) {}
  static std::span<std::byte> Checked(std::span<std::byte> bytes) {
    if (bytes.size() < PageFence::kBytes || reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0)
      Raise(absl::InvalidArgumentError("a fence needs 24 bytes or more, aligned to 8"));
    return bytes;
  }
  const Buffer buffer;
  PageFence fence;
};

class PyEngineCache {
 public:
  struct Options {
    SessionStore::Options store;
    EngineCache::Options cache;
    std::optional<Pages> pages;
    size_t own_variant = 0;
    nb::object page_fence;
    std::shared_ptr<LoopbackBlocks> loopback;  // instead of a daemon
    double link_bytes_per_s = 0;               // of an emulated link for loads; 0: none
  };
  explicit PyEngineCache(Options options) {
    if (options.pages) {
      auto opened = OpenDevice(DeviceWish::kHost);
      OrRaise(opened.status());
      device_ = std::move(opened->device);
      options.store.pages = SessionStore::Pages{.device = device_.get(),
                                                .engine = std::move(options.pages->engine),
                                                .payload = std::move(options.pages->payload),
                                                .variant = options.own_variant};
    }
    if (!options.page_fence.is_none()) {
      fence_ = std::make_unique<PyPageFence>(options.page_fence);
      options.cache.fence = &fence_->fence;
    }
    if (options.loopback != nullptr) {
      if (device_ == nullptr) Raise(absl::InvalidArgumentError("loopback needs pages"));
      OrRaise(SessionStore::Check(options.store));
      const SessionStore::Pages& pages = *options.store.pages;
      Make(OrRaise(LoopbackStore::Make(*device_, pages.engine, pages.payload, options.loopback)),
           options);
      return;
    }
    directives_ = options.store.directives;
    auto store = OrRaise(SessionStore::Make(options.store));
    session_ = store.get();
    Make(std::move(store), options);
  }
  ~PyEngineCache() { Close(); }

  // Returns the cache, which the returned pointer keeps alive during one call.
  [[nodiscard]] std::shared_ptr<EngineCache> Open() const {
    if (getpid() != owner_) {
      Raise(absl::FailedPreconditionError(
          "this process is a forked child of the one that made the cache: make another one"));
    }
    if (cache_ == nullptr) Raise(absl::InvalidArgumentError("the cache is closed"));
    return cache_;
  }
  // Raises ValueError unless the cache was made with device_blocks.
  [[nodiscard]] DeviceReporter& Reporter() const {
    (void)Open();
    if (session_ == nullptr || session_->device() == nullptr)
      Raise(absl::InvalidArgumentError("make the cache with device_blocks=True for this"));
    return *session_->device();
  }
  [[nodiscard]] DeviceReporter::Stats DeviceStats() const {
    const bool tells = session_ != nullptr && session_->device() != nullptr;
    return tells ? session_->device()->stats() : DeviceReporter::Stats();
  }
  [[nodiscard]] const std::shared_ptr<DirectiveInbox>& Directives() const {
    (void)Reporter();
    return directives_;
  }
  [[nodiscard]] SessionKeeper::Stats KeeperStats() const {
    (void)Open();
    return session_ == nullptr ? SessionKeeper::Stats() : session_->keeper().stats();
  }
  // Loads what a scheduler places on these boards, until Close.
  void ServeClaims(const std::vector<nb::object>& boards, uint32_t threads) {
    (void)Open();
    for (const nb::object& memory : boards) {
      claims_.push_back(std::make_unique<Served>(memory));
      claims_.back()->loader = std::make_unique<ClaimLoader>(
          *store_, claims_.back()->board.board, ClaimLoader::Options{.threads = threads});
    }
  }
  [[nodiscard]] ClaimLoader::Stats ClaimStats() const {
    ClaimLoader::Stats all;
    for (const auto& one : claims_) {
      const ClaimLoader::Stats stats = one->loader->stats();
      all.loaded += stats.loaded;
      all.failed += stats.failed;
      all.cancelled += stats.cancelled;
    }
    return all;
  }
  void Close() {
    if (getpid() != owner_) return Leak();
    std::shared_ptr<EngineCache> last = std::move(cache_);
    const std::vector<std::unique_ptr<Served>> claims = std::move(claims_);
    const WithoutGil released;
    for (const auto& one : claims) one->loader.reset();
    last.reset();
  }

 private:
  struct Served {
    explicit Served(nb::handle memory) : board(memory) {}
    PyClaimBoard board;
    std::unique_ptr<ClaimLoader> loader = nullptr;
  };

  void Make(std::unique_ptr<PageStore> store, const Options& options) {
    if (options.link_bytes_per_s > 0 && options.store.pages) {
      const ByteCount block = options.store.pages->payload.table.PayloadBytes();
      store = std::make_unique<LinkedStore>(std::move(store),
                                            std::make_shared<TokenBucket>(options.link_bytes_per_s),
                                            block, options.store.pages->engine.layers);
    }
    store_ = store.get();
    cache_ = std::make_shared<EngineCache>(std::move(store), options.cache);
  }
  // A forked child does not have the cache's threads and cannot join them.
  void Leak() {
    if (cache_ != nullptr) (void)new std::shared_ptr<EngineCache>(std::move(cache_));
    for (auto& one : claims_) (void)one.release();
    claims_.clear();
    (void)fence_.release();
    (void)device_.release();
  }

  const pid_t owner_ = getpid();
  std::unique_ptr<Device> device_;
  std::unique_ptr<PyPageFence> fence_;
  SessionStore* session_ = nullptr;  // cache_ owns it; null: a loopback
  std::shared_ptr<DirectiveInbox> directives_;
  PageStore* store_ = nullptr;  // cache_ owns it
  std::shared_ptr<EngineCache> cache_;
  std::vector<std::unique_ptr<Served>> claims_;  // use *store_
};

void BindResults(nb::module_& module) {
  nb::class_<EngineCache::Found>(module, "Found", "The answer of a lookup.")
      .def_prop_ro(
          "tokens", [](const EngineCache::Found& self) { return self.tokens.value(); },
          "Tokens from the beginning of the request; 0 is a miss.")
      .def_ro("promise", &EngineCache::Found::promise, "For begin_load; may be 0.")
      .def_ro("pending", &EngineCache::Found::pending, "Blocks that have yet to come from disk.");
  nb::class_<JobResult>(module, "JobResult", "A load or a store that has ended.")
      .def_ro("job", &JobResult::job)
      .def_ro("load", &JobResult::load)
      .def_prop_ro(
          "status",
          [](const JobResult& self) { return Packed(self.status.data(), self.status.size()); },
          "One byte, a BlockStatus, for each block.")
      .def_prop_ro(
          "cause",
          [](const JobResult& self) {
            return self.cause.ok() ? std::string()
                                   : std::string(absl::StatusCodeToString(self.cause.code()));
          },
          "'', or why blocks were not moved: 'DEADLINE_EXCEEDED', 'UNAVAILABLE', ...")
      .def_prop_ro("waited_s", [](const JobResult& self) { return self.waited.count(); })
      .def_prop_ro("moved_s", [](const JobResult& self) { return self.moved.count(); });
}

nb::dict StatsOf(const PyEngineCache& self) {
  const EngineCache::Stats stats = self.Open()->stats();
  const SessionKeeper::Stats keeper = self.KeeperStats();
  nb::dict all;
  all["lookups"] = stats.lookups;
  all["lookup_hits"] = stats.hits;
  all["lookup_misses"] = stats.misses;
  all["lookups_impatient"] = stats.impatient;
  all["lookups_refused"] = stats.refused;
  all["hit_tokens"] = stats.hit_tokens;
  all["blocks_loaded"] = stats.loaded;
  all["blocks_load_failed"] = stats.load_failed;
  all["blocks_stored"] = stats.stored;
  all["blocks_duplicate"] = stats.duplicates;
  all["blocks_store_failed"] = stats.store_failed;
  all["blocks_given_up"] = stats.given_up;
  all["blocks_dropped"] = stats.dropped;
  all["loads_ended"] = stats.loads_ended;
  all["stores_ended"] = stats.stores_ended;
  all["lookups_open"] = stats.lookups_open;
  all["load_blocks_waiting"] = stats.loads_waiting;
  all["store_blocks_waiting"] = stats.stores_waiting;
  all["sessions"] = keeper.attached;
  all["attach_failures"] = keeper.failed;
  all["breaker_opened"] = keeper.breaker_opened;
  all["breaker_open"] = keeper.breaker_open ? 1 : 0;
  const DeviceReporter::Stats device = self.DeviceStats();
  all["device_blocks"] = device.blocks;
  all["device_reports_failed"] = device.reports_failed;
  const ClaimLoader::Stats claims = self.ClaimStats();
  all["claims_loaded"] = claims.loaded;
  all["claims_failed"] = claims.failed;
  all["claims_cancelled"] = claims.cancelled;
  return all;
}

template <class Call>
auto Unlocked(const PyEngineCache& self, Call&& call) {
  const std::shared_ptr<EngineCache> cache = self.Open();
  const WithoutGil released;
  return call(*cache);
}

JobId BeginLoad(const PyEngineCache& self, nb::handle digests, nb::handle pages, LeaseId promise,
                double deadline_s, bool by_layer) {
  LoadJob job{.digests = DigestsOf(digests),
              .pages = NumbersOf(pages),
              .promise = promise,
              .deadline = Milliseconds(deadline_s, "deadline_s", 600),
              .by_layer = by_layer};
  return Unlocked(self, [&](EngineCache& cache) { return cache.BeginLoad(std::move(job)); });
}

JobId BeginStore(const PyEngineCache& self, const ContentSpec& content, const Digest& parent,
                 nb::handle digests, nb::handle tokens, nb::handle pages, double deadline_s,
                 uint64_t order, bool chained) {
  StoreJob job{.content = std::make_shared<const ContentSpec>(content),
               .parent = parent,
               .digests = DigestsOf(digests),
               .tokens = NumbersOf(tokens),
               .pages = NumbersOf(pages),
               .deadline = Milliseconds(deadline_s, "deadline_s", 600),
               .order = order,
               .chained = chained};
  return Unlocked(self, [&](EngineCache& cache) { return cache.BeginStore(std::move(job)); });
}

void BindCalls(nb::class_<PyEngineCache>& cls) {
  cls.def(
         "seed",
         [](const PyEngineCache& self, const ContentSpec& content) {
           return self.Open()->Seed(content);
         },
         "content"_a,
         "Returns the digest that the content's chains begin with; None until a daemon has said "
         "which tenant this user is.")
      .def(
          "begin_lookup",
          [](const PyEngineCache& self, const PyChain& chain, uint64_t first_token) {
            return Unlocked(self, [&](EngineCache& cache) {
              return cache.BeginLookup(chain.steps(), TokenCount(first_token));
            });
          },
          "chain"_a, "first_token"_a = 0,
          "Asks for the longest prefix that is stored beyond first_token.  Returns a job.")
      .def(
          "poll_lookup",
          [](const PyEngineCache& self, JobId job) {
            return Unlocked(self, [&](EngineCache& cache) { return cache.PollLookup(job); });
          },
          "job"_a,
          "Returns Found, or None if there is no answer yet; after lookup_patience_s since the "
          "first poll, a miss.  What was found is kept until end_lookup.")
      .def(
          "lookup_tiers",
          [](const PyEngineCache& self, JobId job) {
            const std::vector<Tier> tiers =
                Unlocked(self, [&](EngineCache& cache) { return cache.TiersOf(job); });
            return Packed(tiers.data(), tiers.size());
          },
          "job"_a,
          "Returns one byte, a Tier, for each block of a hit from block 0 on: the slowest of the "
          "variants.")
      .def(
          "end_lookup",
          [](const PyEngineCache& self, JobId job) {
            Unlocked(self, [&](EngineCache& cache) { cache.EndLookup(job); });
          },
          "job"_a)
      .def("begin_load", &BeginLoad, "digests"_a, "pages"_a, nb::kw_only(), "promise"_a = LeaseId(),
           "deadline_s"_a = 10.0, "by_layer"_a = false,
           "Loads blocks (16 bytes each) into pages (numbers).  Returns a job, which poll returns "
           "when it has ended, at the latest soon after the deadline.  by_layer: one layer of all "
           "blocks after the other (await_layers), before loads that wait; if a block cannot be "
           "loaded, none is.")
      .def(
          "await_layers",
          [](const PyEngineCache& self, JobId job, uint32_t layers, double timeout_s) {
            const TimePoint until = SteadyNow() + Milliseconds(timeout_s, "timeout_s", 600);
            return Unlocked(
                self, [&](EngineCache& cache) { return cache.AwaitLayers(job, layers, until); });
          },
          "job"_a, "layers"_a, nb::kw_only(), "timeout_s"_a,
          "Waits until the first `layers` layers of a load by_layer are in its pages.  Returns "
          "whether they are; False at once if the load has failed, or if poll has returned it.  "
          "Releases the GIL.")
      .def("begin_store", &BeginStore, nb::kw_only(), "content"_a, "parent"_a, "digests"_a,
           "tokens"_a, "pages"_a, "deadline_s"_a = 10.0, "order"_a = 0, "chained"_a = true,
           "Stores consecutive blocks of a chain, or, if not chained, blocks that all have this "
           "parent.  The pages must not change before the job has "
           "ended.  A store that does not fit into the queue ends at once, with FULL.  order: its "
           "number in the PageFence; 0 cannot be voided.")
      .def(
          "cancel",
          [](const PyEngineCache& self, JobId job, bool wait) {
            Unlocked(self, [&](EngineCache& cache) {
              if (wait) cache.Cancel(job);
              if (!wait) cache.BeginCancel(job);
            });
          },
          "job"_a, "wait"_a = false,
          "Ends a job soon; poll returns it.  If it waits, then nothing touches the job's pages "
          "any more when it returns.")
      .def("serve_claims", &PyEngineCache::ServeClaims, "boards"_a, nb::kw_only(), "threads"_a = 1,
           "Loads from now on what a RestoreDriver places on these boards: writable buffers of "
           "CLAIM_BOARD_BYTES, aligned to 64, all 0 at first, which both processes map.  threads: "
           "for each board.")
      .def(
          "poll",
          [](const PyEngineCache& self) {
            return Unlocked(self, [](EngineCache& cache) { return cache.Poll(); });
          },
          "Returns the jobs that have ended and that no earlier call returned.");
}

void BindDevice(nb::class_<PyEngineCache>& cls) {
  cls.def(
         "add_device_blocks",
         [](const PyEngineCache& self, const Digest& parent, nb::handle digests,
            nb::handle tokens) {
           const std::vector<Digest> names = DigestsOf(digests);
           const std::vector<uint32_t> numbers = NumbersOf(tokens);
           if (names.empty() ? !numbers.empty() : numbers.size() % names.size() != 0)
             Raise(absl::InvalidArgumentError("each block needs the same number of tokens"));
           DeviceReporter& device = self.Reporter();
           Unlocked(self, [&](EngineCache&) { device.Add(parent, names, numbers); });
         },
         "parent"_a, "digests"_a, "tokens"_a,
         "The engine's own memory has these consecutive blocks of a chain now, in one page more: "
         "Client.lookup shows them in DEVICE.  They are reported a moment later, and again to each "
         "new session.")
      .def(
          "remove_device_blocks",
          [](const PyEngineCache& self, nb::handle digests) {
            const std::vector<Digest> names = DigestsOf(digests);
            DeviceReporter& device = self.Reporter();
            Unlocked(self, [&](EngineCache&) { device.Remove(names); });
          },
          "digests"_a, "One page less has each of these blocks.")
      .def(
          "clear_device_blocks",
          [](const PyEngineCache& self) {
            DeviceReporter& device = self.Reporter();
            Unlocked(self, [&](EngineCache&) { device.Clear(); });
          },
          "The engine's own memory has no blocks any more.")
      .def(
          "flush_device_blocks",
          [](const PyEngineCache& self, double timeout_s) {
            DeviceReporter& device = self.Reporter();
            const auto most = Milliseconds(timeout_s, "timeout_s", 600);
            return Unlocked(self, [&](EngineCache&) { return device.Flush(most).ok(); });
          },
          nb::kw_only(), "timeout_s"_a,
          "Waits until the daemon was told all changes before.  Returns False if that takes "
          "longer.")
      .def(
          "take_directive",
          [](const PyEngineCache& self, double timeout_s) {
            return TakeDirective(self.Directives(), timeout_s, [&] { (void)self.Open(); });
          },
          nb::kw_only(), "timeout_s"_a = 0.0,
          "Returns the Directive that waits, or None if there is none within timeout_s (at most "
          "600).  Each directive holds up the next one until it is answered: answer all kinds.");
}

void BindFence(nb::module_& module) {
  nb::class_<PyPageFence>(
      module, "PageFence",
      "By which the process that orders stores knows when another one does not read their pages "
      "any more, although no message comes (client/engine/page_fence.h).  memory: a writable "
      "buffer of 24 bytes or more, aligned to 8, all 0 at first, which both processes map; "
      "EngineCache(page_fence=) takes it in the process that stores.")
      .def(nb::init<nb::handle>(), "memory"_a)
      .def(
          "void", [](PyPageFence& self, uint64_t last) { self.fence.Void(last); }, "last_order"_a,
          "Stores with numbers up to this one begin to read no pages any more, and end, CANCELLED.")
      .def_prop_ro(
          "reads", [](const PyPageFence& self) { return self.fence.Reads(); },
          "Whether pages of any store are being read.  Once it is false after `void`, nothing "
          "reads pages of the voided stores any more.")
      .def_prop_ro(
          "ended", [](const PyPageFence& self) { return self.fence.ended(); },
          "How many stores have ended.");
}

void BindLoopback(nb::module_& module) {
  nb::class_<LoopbackBlocks>(
      module, "LoopbackBlocks",
      "Blocks in the memory of this process, which EngineCaches share instead of a daemon, for "
      "tests of an adapter.  A block is kept until drop.  Any thread may call it.")
      .def(nb::init<>())
      .def("__len__", &LoopbackBlocks::size)
      .def("__contains__", &LoopbackBlocks::Has, "digest"_a)
      .def("drop", &LoopbackBlocks::Drop, "digest"_a, "Returns False if there is no such block.")
      .def(
          "weather",
          [](LoopbackBlocks& self, bool serves, bool answers, bool keeps) {
            self.Set({.serves = serves, .answers = answers, .keeps = keeps});
          },
          nb::kw_only(), "serves"_a = true, "answers"_a = true, "keeps"_a = true,
          "What goes wrong from now on: serves=False, as without a daemon; answers=False, lookups "
          "get no answer; keeps=False, stores end with FULL.");
}

void BindCache(nb::module_& module) {
  module.attr("LOOKUP_TOKENS_MAX") = kLookupTokensMax.value();
  nb::class_<PyEngineCache> cls(
      module, "EngineCache",
      "What an engine asks of Larder without waiting: how long a prefix is stored, and to move "
      "blocks between the pool and its pages.  It attaches by itself, and again after the daemon "
      "was restarted; while there is no daemon, lookups miss, loads and stores fail, at once.  Any "
      "thread may call it, and no call but close, await_layers and cancel(wait=True) waits.  "
      "Numbers of *_blocks "
      "are blocks that may wait; variants are those of all ranks, own_variant the one of `pages`.  "
      "Raises ValueError if pages and variant do not fit each other.");
  cls.def(
         "__init__",
         [](PyEngineCache* self, const std::string& engine_id, std::vector<VariantSpec> variants,
            const std::string& role, uint32_t rank, const std::string& socket_dir,
            const std::string& tenant, std::optional<Pages> pages, size_t own_variant,
            uint32_t loaders, uint32_t storers, size_t load_blocks, size_t store_blocks,
            size_t step_blocks, uint32_t copy_threads, double lookup_patience_s,
            double promise_life_s, nb::object page_fence, std::shared_ptr<LoopbackBlocks> loopback,
            double link_bytes_per_s, std::vector<ContentSpec> contents, bool device_blocks) {
           PyEngineCache::Options options;
           SessionKeeper::Options& keeper = options.store.keeper;
           keeper.client.socket_dir = socket_dir;
           keeper.client.tenant = tenant;
           keeper.session.engine_id = engine_id;
           keeper.session.role = RoleOf(role);
           keeper.session.rank = rank;
           keeper.session.copy_threads = copy_threads;
           keeper.variants = std::move(variants);
           keeper.contents = std::move(contents);
           options.store.promise_life = Milliseconds(promise_life_s, "promise_life_s", 600);
           options.cache.loaders = loaders;
           options.cache.storers = storers;
           options.cache.load_blocks_max = load_blocks;
           options.cache.store_blocks_max = store_blocks;
           options.cache.step_blocks = step_blocks;
           options.cache.lookup_patience =
               Milliseconds(lookup_patience_s, "lookup_patience_s", 600);
           options.pages = std::move(pages);
           options.own_variant = own_variant;
           options.page_fence = std::move(page_fence);
           options.loopback = std::move(loopback);
           options.link_bytes_per_s = link_bytes_per_s;
           if (device_blocks) {
             options.store.device.emplace();
             options.store.directives = std::make_shared<DirectiveInbox>();
           }
           new (self) PyEngineCache(std::move(options));
         },
         nb::kw_only(), "engine_id"_a, "variants"_a, "role"_a = "both", "rank"_a = 0,
         "socket_dir"_a = "", "tenant"_a = "", "pages"_a = nb::none(), "own_variant"_a = 0,
         "loaders"_a = 1, "storers"_a = 1, "load_blocks"_a = 65'536, "store_blocks"_a = 8'192,
         "step_blocks"_a = 64, "copy_threads"_a = 1, "lookup_patience_s"_a = 0.2,
         "promise_life_s"_a = 60.0, "page_fence"_a = nb::none(), "loopback"_a = nb::none(),
         "link_bytes_per_s"_a = 0.0, "contents"_a = std::vector<ContentSpec>(),
         "device_blocks"_a = false,
         "page_fence: the memory of a PageFence, if one is wanted.  loopback: for tests of an "
         "adapter, LoopbackBlocks to use instead of a daemon; it needs pages.  "
         "link_bytes_per_s, if not 0, emulates a slow link for all loads together.  contents: "
         "registered with each session, so that Client.lookup finds what is stored of them before "
         "this engine stores a block; others are registered with their first block.  "
         "device_blocks: "
         "this process tells what the engine has in its own memory (add_device_blocks), and takes "
         "directives for it, which must be answered (take_directive).")
      .def_prop_ro(
          "state",
          [](const PyEngineCache& self) {
            const absl::Status status = self.Open()->status();
            return std::string(status.message());
          },
          "'' while a daemon serves, otherwise why not.")
      .def("stats", &StatsOf, "Returns counts since the beginning.")
      .def("close", &PyEngineCache::Close,
           "Cancels all jobs, waits until nothing touches pages any more, and ends the session.  "
           "Later calls raise ValueError.");
  BindCalls(cls);
  BindDevice(cls);
}

}  // namespace

void BindEngine(nb::module_& module) {
  BindChain(module);
  BindResults(module);
  BindFence(module);
  BindLoopback(module);
  BindCache(module);
}

}  // namespace larder::python
