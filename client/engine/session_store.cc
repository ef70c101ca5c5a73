#include "client/engine/session_store.h"

#include <algorithm>
#include <utility>

#include "client/promise.h"
#include "cuda/paged_plan.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {

using Live = SessionKeeper::Live;

class SessionStore::Asked final : public Question {
 public:
  Asked(SessionKeeper& keeper, std::shared_ptr<Live> live, PendingPromise pending,
        std::chrono::milliseconds life)
      : keeper_(keeper),
        live_(std::move(live)),
        life_(life),
        extend_(SteadyNow() + life / 2),
        pending_(std::move(pending)) {}

  [[nodiscard]] bool Poll() override {
    if (answered_) {
      if (promise_.Valid()) Extend();
      return true;
    }
    if (!pending_.Poll()) return false;
    answered_ = true;
    absl::StatusOr<Promise> promise = pending_.Take();
    // That there is no prefix, or no capacity, is an answer in time.
    const bool served = promise.ok() || absl::IsNotFound(promise.status()) ||
                        absl::IsResourceExhausted(promise.status());
    keeper_.Note(*live_, served ? absl::OkStatus() : promise.status());
    if (promise.ok()) promise_ = *std::move(promise);
    return true;
  }
  [[nodiscard]] TokenCount tokens() const override {
    return promise_.Valid() ? promise_.tokens() : TokenCount();
  }
  [[nodiscard]] LeaseId promise() const override { return promise_.id(); }
  [[nodiscard]] size_t pending() const override { return promise_.pending(); }
  void GiveUp() override { keeper_.Note(*live_, absl::DeadlineExceededError("no answer in time")); }

 private:
  // Keeps the promise for longer than its life, by holding it once more.
  void Extend() {
    const TimePoint now = SteadyNow();
    if (now >= extend_) {
      extend_ = now + life_ / 2;
      absl::StatusOr<PendingPromise> again = live_->session->HoldPromise(promise_.id(), life_);
      if (again.ok()) again_ = *std::move(again);
    }
    live_->session->Poll();
    if (!again_.Poll()) return;
    if (absl::StatusOr<Promise> extended = again_.Take(); extended.ok())
      promise_ = *std::move(extended);  // lets go of the former hold
  }

  SessionKeeper& keeper_;
  const std::shared_ptr<Live> live_;  // destroyed after the promise
  const std::chrono::milliseconds life_;
  TimePoint extend_;
  PendingPromise pending_, again_;
  bool answered_ = false;
  Promise promise_;
};

class SessionStore::Moves final : public Mover {
 public:
  Moves(SessionKeeper& keeper, const Pages& pages) : keeper_(keeper), pages_(pages) {}

  [[nodiscard]] std::vector<BlockStatus> Load(std::span<const PagedGet> blocks, LeaseId promise,
                                              std::chrono::milliseconds deadline,
                                              const std::stop_token& stop) override {
    if (!Ready().ok()) return Refused(blocks.size(), BlockStatus::kMissing);
    CallOptions options{.deadline = deadline};
    options.promise = promise;
    options.stop = stop;
    const TimePoint until = SteadyNow() + deadline;
    absl::StatusOr<PagedLoad> load =
        cache_->Load(blocks, {0, pages_.engine.layers}, nullptr, options);
    absl::StatusOr<std::vector<BlockStatus>> status =
        load.ok() ? load->Wait(until) : absl::StatusOr<std::vector<BlockStatus>>(load.status());
    return Took(std::move(status), blocks.size(), stop);
  }
  [[nodiscard]] std::vector<BlockStatus> Store(std::span<const PagedPut> blocks,
                                               std::chrono::milliseconds deadline,
                                               const std::stop_token& stop) override {
    if (!Ready().ok()) return Refused(blocks.size(), BlockStatus::kFull);
    CallOptions options{.deadline = deadline};
    options.stop = stop;
    return Took(cache_->Put(blocks, nullptr, options), blocks.size(), stop);
  }
  void Rest() override {
    if (live_ == nullptr || keeper_.Get() == live_) return;
    cache_.reset();
    live_.reset();
  }

 private:
  // Makes a cache for the session that serves.
  [[nodiscard]] absl::Status Ready() {
    std::shared_ptr<Live> live = keeper_.Get();
    if (live == nullptr) {
      cache_.reset();
      live_.reset();
      return keeper_.status();
    }
    if (live == live_ && cache_ != nullptr) return absl::OkStatus();
    cache_.reset();
    live_ = std::move(live);
    LARDER_ASSIGN_OR_RETURN(
        cache_, PagedCache::Make(*live_->session, *pages_.device, live_->variants[pages_.variant],
                                 pages_.engine, pages_.payload, pages_.options));
    return absl::OkStatus();
  }
  [[nodiscard]] static std::vector<BlockStatus> Refused(size_t blocks, BlockStatus status) {
    return std::vector<BlockStatus>(blocks, status);
  }
  [[nodiscard]] std::vector<BlockStatus> Took(absl::StatusOr<std::vector<BlockStatus>> status,
                                              size_t blocks, const std::stop_token& stop) {
    // A call that was stopped ends as if its deadline had passed.
    if (!stop.stop_requested()) keeper_.Note(*live_, status.status());
    if (status.ok()) return *std::move(status);
    return Refused(blocks, absl::IsResourceExhausted(status.status()) ? BlockStatus::kFull
                                                                      : BlockStatus::kCancelled);
  }

  SessionKeeper& keeper_;
  const Pages& pages_;
  std::shared_ptr<Live> live_;         // destroyed after the cache
  std::unique_ptr<PagedCache> cache_;  // null: no session serves
};

SessionStore::SessionStore(Options options)
    : pages_(std::move(options.pages)),
      promise_life_(options.promise_life),
      keeper_(std::move(options.keeper)) {}

SessionStore::~SessionStore() = default;

absl::StatusOr<std::unique_ptr<SessionStore>> SessionStore::Make(Options options) {
  if (options.pages) {
    Pages& pages = *options.pages;
    if (pages.device == nullptr || pages.variant >= options.keeper.variants.size())
      return absl::InvalidArgumentError("pages: no device, or no such variant");
    const VariantSpec& variant = options.keeper.variants[pages.variant];
    if (pages.payload.block_tokens != variant.block_tokens ||
        pages.engine.layers != variant.layers) {
      return absl::InvalidArgumentError("pages: other tokens or layers than the variant has");
    }
    LARDER_RETURN_IF_ERROR(PagedPlan::Make(pages.engine, pages.payload).status());
    options.keeper.session.device = pages.device;
  }
  return std::unique_ptr<SessionStore>(new SessionStore(std::move(options)));
}

std::unique_ptr<PageStore::Question> SessionStore::Ask(std::span<const Digest> steps,
                                                       TokenCount first_token) {
  std::shared_ptr<Live> live = keeper_.Get();
  if (live == nullptr) return nullptr;
  constexpr size_t kStepsMax = 8'192;  // of a promise; a longer prefix is held up to there
  absl::StatusOr<PendingPromise> pending =
      live->session->BeginPromise({.variants = live->variants,
                                   .chain = steps.first(std::min(steps.size(), kStepsMax)),
                                   .first_token = first_token,
                                   .life = promise_life_});
  if (!pending.ok()) {
    keeper_.Note(*live, pending.status());
    return nullptr;
  }
  return std::make_unique<Asked>(keeper_, std::move(live), *std::move(pending), promise_life_);
}

absl::StatusOr<std::unique_ptr<PageStore::Mover>> SessionStore::MakeMover() {
  if (!pages_) return absl::FailedPreconditionError("this process has registered no pages");
  return std::make_unique<Moves>(keeper_, *pages_);
}

}  // namespace larder
