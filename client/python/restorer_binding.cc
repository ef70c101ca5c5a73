// Binds client/restorer.h for engines whose pages are in the memory of the process: loaded blocks
// land in the pages while Python computes others.
#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "client/paged_restore.h"
#include "client/python/buffer.h"
#include "client/python/pages.h"
#include "client/python/session.h"
#include "storage/token_bucket.h"

namespace larder::python {
namespace {

// Called with [begin, end), positions of tokens.
using OnTokens = std::function<void(uint32_t begin, uint32_t end)>;

// An engine in Python.  An exception of its functions ends the restore, and is raised by it.
class PythonEngine final : public RestoreEngine {
 public:
  PythonEngine(OnTokens compute, OnTokens place, std::vector<PagedCache*> caches,
               std::vector<PagedGet> blocks, LayerRange layers)
      : compute_(std::move(compute)),
        place_(std::move(place)),
        pages_(std::move(caches), std::move(blocks), layers,
               [](TokenRange) { return absl::OkStatus(); }) {}

  [[nodiscard]] absl::Status Compute(TokenRange tokens) override { return Call(compute_, tokens); }
  [[nodiscard]] absl::Status Place(TokenRange tokens, std::span<const Layers> /*blocks*/) override {
    return Call(place_, tokens);
  }
  [[nodiscard]] bool lands() const override { return true; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Land(ChannelId channel,
                                                              std::span<const uint32_t> blocks,
                                                              const CallOptions& call) override {
    return pages_.Land(channel, blocks, call);
  }
  // Raises what a function has raised.  The caller holds the GIL.
  void Reraise() {
    if (raised_) throw *std::exchange(raised_, std::nullopt);
  }

 private:
  [[nodiscard]] absl::Status Call(const OnTokens& function, TokenRange tokens) {
    const nb::gil_scoped_acquire acquired;
    try {
      function(tokens.begin, tokens.end);
    } catch (nb::python_error& error) {
      raised_.emplace(std::move(error));
      return absl::AbortedError("the engine has raised an exception");
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    }
    return absl::OkStatus();
  }

  const OnTokens compute_, place_;
  PagedRestore pages_;
  std::optional<nb::python_error> raised_;
};

class PyRestorer {
  struct Busy {
    explicit Busy(bool& busy) : busy_(busy) { busy_ = true; }
    ~Busy() { busy_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    bool& busy_;
  };

 public:
  PyRestorer(const PySession& session, VariantHandle variant, const Profile& profile, bool computes,
             double link_bytes_per_s)
      : parts_(session.Parts()), variant_(std::move(variant)), channels_(profile.channels.size()) {
    if (profile.layers != variant_.spec.layers)
      Raise(absl::InvalidArgumentError("the profile is of a model with other layers"));
    Restorer::Options options;
    options.scheduler.hedges = false;
    options.scheduler.computes = computes;
    if (link_bytes_per_s > 0) {
      options.carry = [link = std::make_shared<TokenBucket>(link_bytes_per_s)](
                          ChannelId, ByteCount bytes, TimePoint now) {
        return link->Pass(bytes, now);
      };
    }
    restorer_ = std::make_unique<Restorer>(*parts_->session, variant_, profile, std::move(options));
  }
  PyRestorer(const PyRestorer&) = delete;
  PyRestorer& operator=(const PyRestorer&) = delete;
  ~PyRestorer() {
    const WithoutGil released;
    restorer_.reset();
  }

  Restorer::Restored Restore(const Pages& pages, nb::handle digests, nb::handle page_numbers,
                             const std::vector<ChannelId>& channels, OnTokens compute,
                             OnTokens place, uint32_t chunk_tokens, uint32_t cut_tokens,
                             uint32_t suffix_tokens, LeaseId promise, double aim_s) {
    if (!(aim_s > 0)) Raise(absl::InvalidArgumentError("aim_s must be above 0 seconds"));
    if (busy_) Raise(absl::FailedPreconditionError("this restorer has a restore under way"));
    const Busy busy(busy_);  // its destructor runs with the GIL held
    const std::vector<Digest> blocks = DigestsOf(digests);
    const std::vector<uint32_t> numbers = NumbersOf(page_numbers);
    std::vector<PagedGet> gets;
    const auto parts = PagesOf(numbers, blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) gets.push_back({blocks[i], parts[i]});
    std::vector<std::unique_ptr<PagedCache>> caches;
    std::vector<PagedCache*> of_channel;
    for (size_t i = 0; i < channels_; ++i) {
      caches.push_back(OrRaise(PagedCache::Make(*parts_->session, *parts_->device, variant_,
                                                pages.engine, pages.payload, {})));
      of_channel.push_back(caches.back().get());
    }
    std::vector<ByteCount> layer_bytes;
    for (const Segment& segment : pages.payload.table.segments)
      layer_bytes.emplace_back(segment.bytes);
    PythonEngine engine(std::move(compute), std::move(place), of_channel, std::move(gets),
                        {0, pages.engine.layers});
    absl::StatusOr<Restorer::Restored> restored = absl::UnknownError("");
    {
      const WithoutGil released;
      restored = restorer_->Restore({.blocks = blocks,
                                     .channel_of_block = channels,
                                     .layer_bytes = layer_bytes,
                                     .chunk_tokens = chunk_tokens,
                                     .cut_tokens = cut_tokens,
                                     .suffix_tokens = suffix_tokens,
                                     .promise = promise,
                                     .deadline_s = aim_s},
                                    engine);
    }
    engine.Reraise();
    return OrRaise(std::move(restored));
  }
  void Cancel() { restorer_->Cancel(); }
  [[nodiscard]] Profile Learnt() const { return restorer_->Learnt(); }

 private:
  const std::shared_ptr<SessionParts> parts_;
  const VariantHandle variant_;
  const size_t channels_;
  bool busy_ = false;  // the GIL guards it
  std::unique_ptr<Restorer> restorer_;
};

void BindRestored(nb::module_& module) {
  nb::class_<Restorer::Span>(module, "RestoreSpan",
                             "What happened to tokens.  channel 0: they were computed.")
      .def_ro("tokens", &Restorer::Span::tokens)
      .def_ro("channel", &Restorer::Span::channel)
      .def_ro("begin_s", &Restorer::Span::begin_s, "Since the restore began.")
      .def_ro("end_s", &Restorer::Span::end_s)
      .def_ro("used", &Restorer::Span::used, "False: the load failed or came too late.");
  nb::class_<Restorer::Restored>(module, "Restored", "What a restore did.")
      .def_ro("computed_tokens", &Restorer::Restored::computed_tokens)
      .def_ro("loaded_tokens", &Restorer::Restored::loaded_tokens)
      .def_prop_ro("bytes", [](const Restorer::Restored& self) { return self.bytes.value(); })
      .def_ro("restore_s", &Restorer::Restored::restore_s)
      .def_ro("compute_s", &Restorer::Restored::compute_s, "The part in which it computed.")
      .def_ro("load_s", &Restorer::Restored::load_s, "The part in which any channel loaded.")
      .def_ro("spans", &Restorer::Restored::spans);
}

}  // namespace

void BindRestorer(nb::module_& module) {
  BindRestored(module);
  nb::class_<PyRestorer>(
      module, "Restorer",
      "Restores a prefix by computing its head while its tail is loaded, so that both meet "
      "(client/restorer.h).  The profile says what computing costs and names the channels; a later "
      "restore begins with what was learnt.  One restore at a time.")
      .def(
          "__init__",
          [](PyRestorer* self, const PySession& session, const VariantHandle& variant,
             const Profile& profile, bool computes, double link_bytes_per_s) {
            new (self) PyRestorer(session, variant, profile, computes, link_bytes_per_s);
          },
          "session"_a, "variant"_a, "profile"_a, nb::kw_only(), "computes"_a = true,
          "link_bytes_per_s"_a = 0.0,
          "computes=False: everything is loaded, and a block that cannot be ends the restore.  "
          "link_bytes_per_s, if not 0, emulates a slow link for all channels together.")
      .def("restore", &PyRestorer::Restore, nb::kw_only(), "pages"_a, "digests"_a, "page_numbers"_a,
           "channels"_a, "compute"_a, "place"_a, "chunk_tokens"_a, "cut_tokens"_a = 0,
           "suffix_tokens"_a = 0, "promise"_a = LeaseId(),
           "aim_s"_a = std::numeric_limits<double>::infinity(),
           "Returns Restored once every block was computed or loaded.  digests, page_numbers, "
           "channels: by block; channel 0 is not stored.  compute(begin, end) computes tokens; all "
           "before `begin` are in the engine's cache then.  place(begin, end): these tokens, which "
           "follow those that the cache has, are in their pages now.  Both run on the calling "
           "thread, and what they raise ends the restore and is raised by it.  Other blocks may "
           "land in their pages at any time until restore returns.  cut_tokens, suffix_tokens: as "
           "in "
           "RequestSpec.  promise: the id of one that holds the blocks.  aim_s: loads that would "
           "end later are computed instead; it does not end the call.")
      .def("cancel", &PyRestorer::Cancel,
           "From another thread: ends the restore that is under way soon, with RuntimeError "
           "(CANCELLED).")
      .def("learnt", &PyRestorer::Learnt, "Returns the profile with what was measured.");
}

}  // namespace larder::python
