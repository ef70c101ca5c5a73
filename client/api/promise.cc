#include "client/promise.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/api/session_impl.h"
#include "client/session/promise_book.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status StatusOf(BlockStatus status) {
  switch (status) {
    case BlockStatus::kOk:
      return absl::OkStatus();
    case BlockStatus::kMissing:
      return absl::NotFoundError("nothing of the prefix is stored, or there is no such promise");
    case BlockStatus::kFull:
      return absl::ResourceExhaustedError(
          "the pool or this user's share of leased bytes is full: ask again later");
    case BlockStatus::kCancelled:
      return absl::UnavailableError("the daemon drains");
    default:
      return absl::InvalidArgumentError(absl::StrCat("the daemon answered ", ToString(status)));
  }
}

uint32_t LifeMs(std::chrono::milliseconds life) {
  return static_cast<uint32_t>(std::clamp<int64_t>(life.count(), 1, wire::kDeadlineMaxMs));
}

absl::Status Check(const PromiseQuery& query, const wire::Attached& session) {
  if (query.variants.empty() || query.variants.size() > wire::kVariantsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a promise is for 1 to ", wire::kVariantsMax,
                                                   " variants, not ", query.variants.size()));
  }
  if (query.chain.size() > wire::kLookupDigestsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a promise is for at most ", wire::kLookupDigestsMax, " steps, not ", query.chain.size()));
  }
  for (const VariantHandle& variant : query.variants) {
    LARDER_RETURN_IF_ERROR(CheckVariant(variant, session));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- a promise

Promise& Promise::operator=(Promise&& other) noexcept {
  if (this == &other) return *this;
  Release();
  core_ = std::move(other.core_);
  state_ = std::move(other.state_);
  return *this;
}

void Promise::Release() {
  if (state_ == nullptr) return;
  core_->EndPromise(id());
  state_.reset();
  core_.reset();
}

LeaseId Promise::id() const {
  if (state_ == nullptr) return {};
  MutexLock lock(state_->mu);
  return state_->promised.promise;
}

TokenCount Promise::tokens() const {
  if (state_ == nullptr) return {};
  MutexLock lock(state_->mu);
  return TokenCount(state_->promised.tokens);
}

std::vector<PromisedBlocks> Promise::blocks() const {
  std::vector<PromisedBlocks> blocks;
  if (state_ == nullptr) return blocks;
  MutexLock lock(state_->mu);
  for (const wire::PromisedBlocks& one : state_->promised.blocks)
    blocks.push_back({one.first_block, one.status, one.tiers});
  return blocks;
}

size_t Promise::pending() const {
  if (state_ == nullptr) return 0;
  MutexLock lock(state_->mu);
  return state_->pending;
}

bool Promise::Valid() const {
  if (state_ == nullptr || core_->in_child()) return false;
  MutexLock lock(state_->mu);
  return !state_->ended;
}

// ---- a request for one

struct PendingPromise::Impl {
  std::shared_ptr<SessionCore> core;
  OpenCall call;
  std::optional<absl::StatusOr<wire::Promised>> answer;

  ~Impl() {
    call = {};  // an answer that it did not take is released
    if (answer && answer->ok() && (*answer)->status == BlockStatus::kOk)
      core->EndPromise((*answer)->promise);
  }
};

PendingPromise::PendingPromise() = default;
PendingPromise::PendingPromise(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PendingPromise::PendingPromise(PendingPromise&&) noexcept = default;
PendingPromise& PendingPromise::operator=(PendingPromise&&) noexcept = default;
PendingPromise::~PendingPromise() = default;

bool PendingPromise::Poll() {
  if (impl_ == nullptr) return false;
  if (impl_->answer) return true;
  impl_->core->Poll();
  impl_->answer = impl_->call.Take<wire::Promised>();
  return impl_->answer.has_value();
}

bool PendingPromise::Wait(std::chrono::milliseconds at_most) {
  if (impl_ == nullptr) return false;
  if (impl_->answer) return true;
  const auto longest = std::chrono::milliseconds(wire::kDeadlineMaxMs);
  absl::StatusOr<wire::Promised> answer = impl_->call.Wait<wire::Promised>(
      SteadyNow() + std::clamp(at_most, std::chrono::milliseconds(0), longest));
  if (absl::IsDeadlineExceeded(answer.status())) return false;
  impl_->answer = std::move(answer);
  return true;
}

absl::StatusOr<Promise> PendingPromise::Take() {
  if (impl_ == nullptr || !impl_->answer)
    return absl::FailedPreconditionError("the promise has not been answered, or was taken");
  const std::unique_ptr<Impl> taken = std::move(impl_);
  const absl::StatusOr<wire::Promised> answer = *std::exchange(taken->answer, std::nullopt);
  LARDER_RETURN_IF_ERROR(answer.status());
  LARDER_RETURN_IF_ERROR(StatusOf(answer->status));
  std::shared_ptr<PromiseState> state = taken->core->FindPromise(answer->promise);
  if (state == nullptr) return absl::UnavailableError("the session was lost");
  return Promise(taken->core, std::move(state));
}

// ---- Session

absl::StatusOr<PendingPromise> Session::Begin(wire::Promise request) {
  const std::shared_ptr<SessionCore>& core = impl_->core;
  LARDER_RETURN_IF_ERROR(core->status());
  if ((attached().feature_bits & wire::kFeaturePromises) == 0)
    return absl::UnimplementedError("this larderd makes no promises: update it");
  auto pending = std::make_unique<PendingPromise::Impl>();
  pending->core = core;
  pending->call = core->Open();
  request.id = pending->call.id();
  wire::Up up;
  up.promises.push_back(std::move(request));
  LARDER_RETURN_IF_ERROR(core->Send(std::move(up)));
  return PendingPromise(std::move(pending));
}

absl::StatusOr<PendingPromise> Session::BeginPromise(const PromiseQuery& query) {
  LARDER_RETURN_IF_ERROR(Check(query, attached()));
  wire::Promise request;
  for (const VariantHandle& variant : query.variants) request.variants.push_back(variant.index);
  request.digests.assign(query.chain.begin(), query.chain.end());
  request.first_token = static_cast<uint32_t>(query.first_token.value());
  request.deadline_ms = LifeMs(query.life);
  request.remaining_bytes = query.remaining.value();
  return Begin(std::move(request));
}

absl::StatusOr<PendingPromise> Session::HoldPromise(LeaseId promise,
                                                    std::chrono::milliseconds life) {
  if (!promise) return absl::InvalidArgumentError("0 is not a promise");
  wire::Promise request;
  request.promise = promise;
  request.deadline_ms = LifeMs(life);
  return Begin(std::move(request));
}

void Session::Poll() { impl_->core->Poll(); }

}  // namespace larder
