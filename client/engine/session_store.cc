#include "client/engine/session_store.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "client/promise.h"
#include "cuda/paged_plan.h"
#include "storage/clock.h"
#include "storage/status_macros.h"
#include "storage/time_left.h"

namespace larder {

using Live = SessionKeeper::Live;

class SessionStore::Asked final : public Question {
 public:
  Asked(SessionKeeper& keeper, std::shared_ptr<Live> live, std::span<const Digest> steps,
        TokenCount first_token, std::chrono::milliseconds life)
      : keeper_(keeper),
        live_(std::move(live)),
        steps_(steps.begin(), steps.end()),
        first_token_(first_token),
        life_(life) {}

  // Sends the question.
  [[nodiscard]] absl::Status Ask() {
    again_.reset();
    promise_ = Promise();
    answered_ = false;
    absl::StatusOr<PendingPromise> pending = live_->session->BeginPromise(
        {.variants = live_->variants, .chain = steps_, .first_token = first_token_, .life = life_});
    if (!pending.ok()) {
      keeper_.Note(*live_, pending.status());
      return pending.status();
    }
    pending_ = *std::move(pending);
    extend_ = SteadyNow() + life_ / 2;
    return absl::OkStatus();
  }

  [[nodiscard]] bool Poll() override {
    if (answered_ && !held_) return true;  // there is nothing, which stays true enough
    if (answered_ && promise_.Valid()) {
      Extend();
      return true;
    }
    if (answered_) return !Ask().ok() && Nothing();
    if (retry_ && SteadyNow() < *retry_) return false;
    if (std::exchange(retry_, std::nullopt)) return !Ask().ok() && Nothing();
    if (!pending_.Poll()) return false;
    return Take();
  }
  [[nodiscard]] TokenCount tokens() const override {
    return held_ ? promise_.tokens() : TokenCount();
  }
  [[nodiscard]] LeaseId promise() const override { return held_ ? promise_.id() : LeaseId(); }
  [[nodiscard]] size_t pending() const override { return held_ ? promise_.pending() : 0; }
  [[nodiscard]] std::vector<Tier> tiers() const override {
    if (!held_) return {};
    std::vector<Tier> tiers;
    for (const PromisedBlocks& variant : promise_.blocks()) {
      tiers.resize(std::max(tiers.size(), variant.first_block + variant.tiers.size()), Tier::kHost);
      for (size_t i = 0; i < variant.tiers.size(); ++i) {
        Tier& slowest = tiers[variant.first_block + i];
        slowest = std::max(slowest, variant.tiers[i]);
      }
    }
    return tiers;
  }
  void GiveUp() override { keeper_.Note(*live_, absl::DeadlineExceededError("no answer in time")); }

 private:
  static constexpr std::chrono::milliseconds kRetryAfter{20};

  bool Nothing() {
    answered_ = true;
    held_ = false;
    return true;
  }
  [[nodiscard]] bool Take() {
    absl::StatusOr<Promise> promise = pending_.Take();
    const bool full = absl::IsResourceExhausted(promise.status());
    // That there is no prefix, or no capacity, is an answer in time.
    const bool served = promise.ok() || absl::IsNotFound(promise.status()) || full;
    keeper_.Note(*live_, served ? absl::OkStatus() : promise.status());
    if (full) {
      retry_ = SteadyNow() + kRetryAfter;
      return false;
    }
    if (!promise.ok()) return Nothing();
    promise_ = *std::move(promise);
    answered_ = held_ = true;
    return true;
  }
  // Keeps the promise for longer than its life, by holding it once more.
  void Extend() {
    const TimePoint now = SteadyNow();
    if (now >= extend_) {
      extend_ = now + life_ / 2;
      absl::StatusOr<PendingPromise> again = live_->session->HoldPromise(promise_.id(), life_);
      if (again.ok()) again_ = *std::move(again);
    }
    live_->session->Poll();
    if (!again_ || !again_->Poll()) return;
    absl::StatusOr<Promise> extended = again_->Take();
    if (extended.ok()) promise_ = *std::move(extended);  // lets go of the former hold
    again_.reset();
  }

  SessionKeeper& keeper_;
  const std::shared_ptr<Live> live_;  // destroyed after the promise
  const std::vector<Digest> steps_;
  const TokenCount first_token_;
  const std::chrono::milliseconds life_;
  TimePoint extend_;
  std::optional<TimePoint> retry_;  // when to ask again, after an answer that there is no room
  PendingPromise pending_;
  std::optional<PendingPromise> again_;
  bool answered_ = false;
  bool held_ = false;  // promise_ holds what was found
  Promise promise_;
};

// Remembers whether `reads` has refused a part of a Put.  The Cancelled that Put then returns does
// not tell, because it may also come from the daemon.
class WatchedReads final : public PageReads {
 public:
  explicit WatchedReads(PageReads* reads) : reads_(reads) {}
  [[nodiscard]] bool Begin() override {
    if (reads_->Begin()) return true;
    refused_ = true;
    return false;
  }
  void End() override { reads_->End(); }
  [[nodiscard]] bool refused() const { return refused_; }

 private:
  PageReads* const reads_;
  bool refused_ = false;
};

// Counts the blocks that `writes` has refused, because nothing else tells them apart from blocks
// that did not come in time.
class WatchedWrites final : public PageWrites {
 public:
  explicit WatchedWrites(PageWrites* writes) : writes_(writes) {}
  [[nodiscard]] bool Begin(size_t block) override {
    if (writes_->Begin(block)) return true;
    ++refused_;
    return false;
  }
  [[nodiscard]] bool Wanted(size_t block) const override { return writes_->Wanted(block); }
  [[nodiscard]] size_t refused() const { return refused_; }

 private:
  PageWrites* const writes_;
  size_t refused_ = 0;
};

class SessionStore::Moves final : public Mover {
 public:
  Moves(SessionKeeper& keeper, const Pages& pages) : keeper_(keeper), pages_(pages) {}

  [[nodiscard]] Moved Load(std::span<const PagedGet> blocks, LeaseId promise,
                           std::chrono::milliseconds deadline, const std::stop_token& stop,
                           PageWrites* writes) override {
    if (const absl::Status ready = Ready(); !ready.ok())
      return All(blocks.size(), BlockStatus::kMissing, ready);
    const CallOptions options = LoadOptions(promise, deadline, stop);
    const TimePoint until = SteadyNow() + deadline;
    WatchedWrites watched(writes);
    absl::StatusOr<PagedLoad> load = cache_->Load(blocks, {0, pages_.engine.layers}, nullptr,
                                                  options, writes == nullptr ? nullptr : &watched);
    absl::StatusOr<std::vector<BlockStatus>> status =
        load.ok() ? load->Wait(until) : absl::StatusOr<std::vector<BlockStatus>>(load.status());
    return Took(std::move(status), blocks.size(), stop, watched.refused());
  }
  [[nodiscard]] Moved LoadLayers(std::span<const PagedGet> blocks, LeaseId promise,
                                 std::chrono::milliseconds deadline, const std::stop_token& stop,
                                 LayerArrivals& arrivals) override {
    if (const absl::Status ready = Ready(); !ready.ok())
      return All(blocks.size(), BlockStatus::kMissing, ready);
    const CallOptions options = LoadOptions(promise, deadline, stop);
    const TimePoint until = SteadyNow() + deadline;
    // A session that does not read in place reads whole blocks, whichever layers are wanted.
    const bool in_place = live_->session->read_mode() == ReadMode::kMapped;
    const uint32_t layers = pages_.engine.layers, step = in_place ? 1 : layers;
    std::vector<PagedLoad> loads;  // of kLoadBlocksMax blocks each
    for (uint32_t layer = 0; layer < layers; layer += step) {
      absl::StatusOr<std::vector<BlockStatus>> status =
          LoadLayer(loads, blocks, {layer, step}, options, until);
      if (!status.ok() || !std::ranges::all_of(*status, IsOk)) {
        const auto others = status.ok() ? std::ranges::count_if(*status, IsOk) : 0;
        if (others > 0) std::ranges::replace(*status, BlockStatus::kOk, BlockStatus::kCancelled);
        return Took(std::move(status), blocks.size(), stop, static_cast<size_t>(others));
      }
      if (!arrivals.Arrived(layer + step))
        return All(blocks.size(), BlockStatus::kCancelled, absl::OkStatus());
    }
    return Took(std::vector<BlockStatus>(blocks.size(), BlockStatus::kOk), blocks.size(), stop);
  }
  [[nodiscard]] Moved Store(std::span<const PagedPut> blocks, const ContentSpec& content,
                            std::chrono::milliseconds deadline, const std::stop_token& stop,
                            PageReads* reads) override {
    if (const absl::Status ready = Ready(); !ready.ok())
      return All(blocks.size(), BlockStatus::kFull, ready);
    const TimePoint until = SteadyNow() + deadline;
    const Digest seed = live_->session->Seed(content);
    std::vector<PagedPut> puts(blocks.begin(), blocks.end());
    for (PagedPut& put : puts) put.content = seed;
    Moved moved;
    // The daemon may have forgotten a content that it knew, after very many others.
    for (const bool again : {false, true}) {
      if (const absl::Status known = Know(seed, content, until, stop, again); !known.ok())
        return Took(known, blocks.size(), stop);
      CallOptions options{.deadline = AtLeastOne(MillisecondsLeft(until))};
      options.stop = stop;
      WatchedReads watched(reads);
      auto put = cache_->Put(puts, nullptr, options, reads == nullptr ? nullptr : &watched);
      if (watched.refused()) return All(blocks.size(), BlockStatus::kCancelled, absl::OkStatus());
      moved = Took(std::move(put), blocks.size(), stop);
      if (std::ranges::count(moved.status, BlockStatus::kInvalid) == 0) break;
    }
    return moved;
  }
  void Rest() override {
    if (live_ != nullptr && keeper_.Get() != live_) Forget();
  }

 private:
  static constexpr size_t kKnownMax = 4'096;  // contents; more are registered again when used

  [[nodiscard]] static CallOptions LoadOptions(LeaseId promise, std::chrono::milliseconds deadline,
                                               const std::stop_token& stop) {
    CallOptions options{.deadline = deadline};
    options.promise = promise;
    options.stop = stop;
    return options;
  }
  [[nodiscard]] static bool IsOk(BlockStatus status) { return status == BlockStatus::kOk; }

  // Loads these layers of all blocks, and waits for them.  Returns a status for each block.
  // `loads` is empty for the first layers, and has what the others need afterwards.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> LoadLayer(std::vector<PagedLoad>& loads,
                                                                   std::span<const PagedGet> blocks,
                                                                   LayerRange layers,
                                                                   const CallOptions& options,
                                                                   TimePoint until) {
    std::vector<BlockStatus> all;
    for (size_t first = 0; first < blocks.size(); first += PagedCache::kLoadBlocksMax) {
      const size_t number = first / PagedCache::kLoadBlocksMax;
      const auto part =
          blocks.subspan(first, std::min(PagedCache::kLoadBlocksMax, blocks.size() - first));
      if (number == loads.size()) {
        CallOptions call = options;
        call.deadline = AtLeastOne(MillisecondsLeft(until));
        LARDER_ASSIGN_OR_RETURN(PagedLoad load, cache_->Load(part, layers, nullptr, call));
        loads.push_back(std::move(load));
      } else {
        LARDER_RETURN_IF_ERROR(cache_->LoadMore(loads[number], part, layers));
      }
      LARDER_ASSIGN_OR_RETURN(const std::vector<BlockStatus> status, loads[number].Wait(until));
      all.insert(all.end(), status.begin(), status.end());
    }
    return all;
  }
  void Forget() {
    cache_.reset();
    live_.reset();
    known_.clear();
  }
  // Makes a cache for the session that serves.
  [[nodiscard]] absl::Status Ready() {
    absl::StatusOr<std::shared_ptr<Live>> live = keeper_.Serving();
    if (!live.ok()) {
      Forget();
      return live.status();
    }
    if (*live == live_ && cache_ != nullptr) return absl::OkStatus();
    Forget();
    live_ = *std::move(live);
    LARDER_ASSIGN_OR_RETURN(
        cache_, PagedCache::Make(*live_->session, *pages_.device, live_->variants[pages_.variant],
                                 pages_.engine, pages_.payload, pages_.options));
    return absl::OkStatus();
  }
  // A call needs a deadline above 0; with 1 ms it times out by itself.
  [[nodiscard]] static std::chrono::milliseconds AtLeastOne(std::chrono::milliseconds left) {
    return std::max(left, std::chrono::milliseconds(1));
  }
  // Registers a content that this session may not know.
  [[nodiscard]] absl::Status Know(const Digest& seed, const ContentSpec& content, TimePoint until,
                                  const std::stop_token& stop, bool again) {
    if (!again && known_.contains(seed)) return absl::OkStatus();
    CallOptions options{.deadline = AtLeastOne(MillisecondsLeft(until))};
    options.stop = stop;
    LARDER_RETURN_IF_ERROR(live_->session->Register({&content, 1}, {}, options).status());
    if (known_.size() >= kKnownMax) known_.clear();
    known_.insert(seed);
    return absl::OkStatus();
  }
  [[nodiscard]] static Moved All(size_t blocks, BlockStatus status, const absl::Status& cause) {
    return {std::vector<BlockStatus>(blocks, status), cause};
  }
  // `refused`: how many blocks are kCancelled because their pages might not be written.
  [[nodiscard]] Moved Took(absl::StatusOr<std::vector<BlockStatus>> status, size_t blocks,
                           const std::stop_token& stop, size_t refused = 0) {
    // A call that was stopped ends as if its deadline had passed.
    if (stop.stop_requested()) {
      if (status.ok()) return {*std::move(status)};
      return All(blocks, BlockStatus::kCancelled, absl::OkStatus());
    }
    absl::Status cause = status.status();
    const auto late = status.ok() ? std::ranges::count(*status, BlockStatus::kCancelled) : 0;
    if (static_cast<size_t>(late) > refused)
      cause = absl::DeadlineExceededError("blocks were not moved in time");
    keeper_.Note(*live_, cause);
    if (status.ok()) return {*std::move(status), cause};
    return All(blocks,
               absl::IsResourceExhausted(cause) ? BlockStatus::kFull : BlockStatus::kCancelled,
               cause);
  }

  SessionKeeper& keeper_;
  const Pages& pages_;
  std::shared_ptr<Live> live_;         // destroyed after the cache
  std::unique_ptr<PagedCache> cache_;  // null: no session serves
  absl::flat_hash_set<Digest> known_;  // contents registered with live_
};

SessionStore::SessionStore(Options options)
    : pages_(std::move(options.pages)),
      promise_life_(options.promise_life),
      directives_(std::move(options.directives)),
      keeper_(std::move(options.keeper)) {
  if (options.device) device_ = std::make_unique<DeviceReporter>(keeper_, *options.device);
}

SessionStore::~SessionStore() {
  if (directives_ != nullptr) directives_->Close();  // the session's end waits for one under way
}

absl::Status SessionStore::Check(const Options& options) {
  if (!options.pages) return absl::OkStatus();
  const Pages& pages = *options.pages;
  if (pages.device == nullptr || pages.variant >= options.keeper.variants.size())
    return absl::InvalidArgumentError("pages: no device, or no such variant");
  const VariantSpec& variant = options.keeper.variants[pages.variant];
  if (pages.payload.block_tokens != variant.block_tokens || pages.engine.layers != variant.layers) {
    return absl::InvalidArgumentError("pages: other tokens or layers than the variant has");
  }
  return PagedPlan::Make(pages.engine, pages.payload).status();
}

absl::StatusOr<std::unique_ptr<SessionStore>> SessionStore::Make(Options options) {
  LARDER_RETURN_IF_ERROR(Check(options));
  if (options.pages) {
    Pages& pages = *options.pages;
    // Four blocks must fit, whatever their size (PagedCacheOptions).
    const ByteCount four(4 * (pages.payload.table.PayloadBytes().value() + kPageBytes));
    pages.options.staging_bytes = std::max(pages.options.staging_bytes, four);
    options.keeper.session.device = pages.device;
  }
  if (options.directives != nullptr) {
    options.keeper.session.on_directive =
        [inbox = options.directives](const wire::Directive& directive) {
          return inbox->Handle(directive);
        };
  }
  return std::unique_ptr<SessionStore>(new SessionStore(std::move(options)));
}

std::unique_ptr<PageStore::Question> SessionStore::Ask(std::span<const Digest> steps,
                                                       TokenCount first_token) {
  std::shared_ptr<Live> live = keeper_.Get();
  if (live == nullptr) return nullptr;
  constexpr size_t kStepsMax = kLookupTokensMax.value() / kStepTokens;
  auto asked = std::make_unique<Asked>(keeper_, std::move(live),
                                       steps.first(std::min(steps.size(), kStepsMax)), first_token,
                                       promise_life_);
  if (!asked->Ask().ok()) return nullptr;
  return asked;
}

std::optional<Digest> SessionStore::Seed(ContentSpec content) const {
  std::optional<std::string> tenant = keeper_.Tenant();
  if (!tenant) return std::nullopt;
  content.tenant = *std::move(tenant);
  return content.Id();
}

absl::StatusOr<std::unique_ptr<PageStore::Mover>> SessionStore::MakeMover() {
  if (!pages_) return absl::FailedPreconditionError("this process has registered no pages");
  return std::make_unique<Moves>(keeper_, *pages_);
}

}  // namespace larder
