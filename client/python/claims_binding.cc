// Binds client/claims: restores of an engine whose scheduler and workers are apart.  What a worker
// does is EngineCache.serve_claims.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "client/claims/restore_driver.h"
#include "client/python/buffer.h"
#include "client/python/claim_board.h"

namespace larder::python {
namespace {

std::vector<Tier> TiersOf(nb::handle packed) {
  std::vector<Tier> tiers = ValuesOf<Tier>(packed);
  for (const Tier tier : tiers) {
    if (tier != Tier::kHost && tier != Tier::kDisk)
      Raise(absl::InvalidArgumentError("a tier is HOST or DISK"));
  }
  return tiers;
}

class PyRestoreDriver {
 public:
  PyRestoreDriver(const Profile& profile, const std::vector<nb::object>& boards, uint16_t ranks,
                  uint32_t block_tokens, uint32_t chunk_tokens, uint64_t block_bytes,
                  double patience) {
    if (ranks == 0 || block_tokens == 0 || block_bytes == 0 || boards.size() != 2u * ranks ||
        profile.channels.size() != boards.size()) {
      Raise(absl::InvalidArgumentError(
          "there must be a board and a channel for HOST and for DISK of each rank, and blocks must "
          "have tokens and bytes"));
    }
    RestoreDriver::Options options{.profile = profile,
                                   .ranks = ranks,
                                   .block_tokens = block_tokens,
                                   .chunk_tokens = chunk_tokens,
                                   .block_bytes = ByteCount(block_bytes),
                                   .patience = patience};
    for (const nb::object& memory : boards) {
      boards_.push_back(std::make_unique<PyClaimBoard>(memory));
      options.boards.push_back(&boards_.back()->board);
    }
    driver_ = std::make_unique<RestoreDriver>(std::move(options), clock_);
  }
  ~PyRestoreDriver() { Close(); }

  [[nodiscard]] RestoreDriver& Open() const {
    if (driver_ == nullptr) Raise(absl::InvalidArgumentError("the driver is closed"));
    if (getpid() != owner_)
      Raise(absl::FailedPreconditionError("the driver is another process's: this one was forked"));
    return *driver_;
  }
  void Close() {
    if (getpid() != owner_) {  // a forked child does not have the driver's thread
      (void)driver_.release();
      for (auto& board : boards_) (void)board.release();
      return;
    }
    const WithoutGil released;
    driver_.reset();
  }

 private:
  const pid_t owner_ = getpid();
  const SteadyClock clock_;
  std::vector<std::unique_ptr<PyClaimBoard>> boards_;
  std::unique_ptr<RestoreDriver> driver_;
};

// The calls hold the GIL: each takes microseconds, and its lock is never held for longer.
void BindDriver(nb::class_<PyRestoreDriver>& cls) {
  cls.def(
         "pays",
         [](const PyRestoreDriver& self, nb::handle tiers, uint32_t have_blocks) {
           return self.Open().Pays(TiersOf(tiers), have_blocks);
         },
         "tiers"_a, "have_blocks"_a,
         "Returns whether blocks in these tiers (one byte each), from have_blocks on, should be "
         "computed and loaded at once: loading them alone is predicted to take longer than one "
         "more chunk.")
      .def(
          "begin",
          [](const PyRestoreDriver& self, RequestId id, nb::handle digests, nb::handle pages,
             nb::handle tiers, uint32_t have_blocks, LeaseId promise) {
            OrRaise(self.Open().Begin({.id = id,
                                       .blocks = DigestsOf(digests),
                                       .pages = NumbersOf(pages),
                                       .tiers = TiersOf(tiers),
                                       .have_blocks = have_blocks,
                                       .promise = promise}));
          },
          "id"_a, "digests"_a, "pages"_a, "tiers"_a, nb::kw_only(), "have_blocks"_a,
          "promise"_a = LeaseId(),
          "Begins a restore of a whole prefix; its loads begin at once.  The engine has the first "
          "have_blocks, or computes them in a step before any grant.  The pages are used for "
          "nothing else until take_news says that they are free.  Raises ValueError if the lists "
          "do not fit each other, RuntimeError if too many restores are under way.")
      .def(
          "next_step",
          [](const PyRestoreDriver& self, uint32_t tokens, uint32_t decode_tokens, double seconds) {
            std::vector<std::tuple<RequestId, uint32_t, uint32_t>> grants;
            for (const RestoreDriver::Grant& one : self.Open().NextStep(
                     {.tokens = tokens, .decode_tokens = decode_tokens, .seconds = seconds}))
              grants.emplace_back(one.id, one.tokens.begin, one.tokens.end);
            return grants;
          },
          nb::kw_only(), "tokens"_a, "decode_tokens"_a = 0, "seconds"_a = kNoDeadline,
          "Returns what the engine may compute of each restore in its next step, (id, begin, end): "
          "positions of tokens.  tokens: the step's limit, decode_tokens of which the engine "
          "decodes itself; seconds: how long the step may last.  Counts the grants of the step "
          "before as computed, unless they were refused.")
      .def(
          "refuse", [](const PyRestoreDriver& self, RequestId id) { self.Open().Refuse(id); },
          "id"_a, "The engine does not compute the grant of this step.")
      .def(
          "observe",
          [](const PyRestoreDriver& self, const std::vector<std::pair<uint32_t, uint32_t>>& ranges,
             uint32_t decode_tokens, double seconds) {
            std::vector<TokenRange> computed;
            for (const auto& [begin, end] : ranges) computed.push_back({begin, end});
            self.Open().Observe(computed, decode_tokens, seconds);
          },
          "ranges"_a, nb::kw_only(), "decode_tokens"_a, "seconds"_a,
          "The engine took so long for a step that computed these ranges, (begin, end), and "
          "decoded.")
      .def(
          "observe_load",
          [](const PyRestoreDriver& self, uint16_t rank, Tier tier, uint64_t bytes,
             double seconds) { self.Open().ObserveLoad(rank, tier, ByteCount(bytes), seconds); },
          nb::kw_only(), "rank"_a, "tier"_a, "bytes"_a, "seconds"_a,
          "A load of one rank that is none of this driver's, from one tier, took so long.")
      .def(
          "end", [](const PyRestoreDriver& self, RequestId id) { self.Open().End(id); }, "id"_a,
          "Ends a restore whose prefix is no longer wanted.  Does nothing if it is not under way.")
      .def(
          "take_news",
          [](const PyRestoreDriver& self) {
            const RestoreDriver::News news = self.Open().TakeNews();
            std::vector<std::tuple<RequestId, uint32_t, uint32_t, double>> restored;
            for (const RestoreDriver::Restored& one : news.restored)
              restored.emplace_back(one.id, one.computed_blocks, one.loaded_blocks, one.seconds);
            return std::pair(restored, news.free);
          },
          "Returns what has happened since the last call: restores whose whole prefix is in the "
          "pages, (id, blocks computed, blocks loaded, seconds), and ids of restores that are over "
          "and to whose pages no worker writes any more.");
}

}  // namespace

void BindClaims(nb::module_& module) {
  module.attr("CLAIM_BOARD_BYTES") = ClaimBoard::kBytes;
  nb::class_<PyRestoreDriver> cls(
      module, "RestoreDriver",
      "Restores prefixes of an engine whose scheduler and workers are apart: the engine computes "
      "the head of a prefix in its own steps, while workers load its tail into the engine's pages, "
      "until both meet (client/claims/restore_driver.h).  Any thread may call it, and no call but "
      "close waits.");
  cls.def(
         "__init__",
         [](PyRestoreDriver* self, const Profile& profile, const std::vector<nb::object>& boards,
            uint16_t ranks, uint32_t block_tokens, uint32_t chunk_tokens, uint64_t block_bytes,
            double patience) {
           new (self) PyRestoreDriver(profile, boards, ranks, block_tokens, chunk_tokens,
                                      block_bytes, patience);
         },
         nb::kw_only(), "profile"_a, "boards"_a, "ranks"_a, "block_tokens"_a, "chunk_tokens"_a,
         "block_bytes"_a, "patience"_a = RestoreDriver::Options().patience,
         "profile: its channels are HOST and DISK of rank 0, HOST and DISK of rank 1, and so on.  "
         "boards: one for each channel, writable buffers of CLAIM_BOARD_BYTES, aligned to 64, that "
         "a worker serves (EngineCache.serve_claims).  block_bytes: of one rank.  chunk_tokens: of "
         "the engine's steps.  patience: loads that take so many times as long as predicted are "
         "late, and computed.")
      .def_prop_ro("under_way", [](const PyRestoreDriver& self) { return self.Open().under_way(); })
      .def(
          "learnt", [](const PyRestoreDriver& self) { return self.Open().Learnt(); },
          "Returns the profile with what was measured so far.")
      .def("close", &PyRestoreDriver::Close,
           "Withdraws all that workers have yet to load.  A page that a worker is writing is free "
           "some milliseconds later.  Later calls raise ValueError.");
  BindDriver(cls);
}

}  // namespace larder::python
