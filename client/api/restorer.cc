#include "client/restorer.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/restore/scheduler.h"
#include "client/session/fork_guard.h"
#include "proto/messages/messages.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr uint16_t kStage = 0;
// Bounds of the pause before the scheduler is asked again.
constexpr double kLookMin_s = 1e-3, kLookMax_s = 0.5;
// A batch has as many loads as take about this long together, within other limits.  Longer batches
// save round trips; after shorter ones the scheduler can change its plan sooner.
constexpr double kBatch_s = 0.02;
constexpr double kLandAtOnce = 256;  // blocks; half of PagedCache::kLoadBlocksMax
constexpr std::chrono::milliseconds kRecall{20};
constexpr std::chrono::milliseconds kFullPause{20};

TimePoint At(TimePoint start, double seconds) {
  return start + std::chrono::duration_cast<Duration>(
                     std::chrono::duration<double>(std::min(seconds, 1e6)));
}

// Sets the options that the restorer decides itself.
Restorer::Options Sane(Restorer::Options options) {
  options.scheduler.engine = {};  // steps run through all layers and to the end
  return options;
}

// A block that was kFull or kCancelled may be loaded by a later request; any other failure counts
// as final.
LoadFailure WhyNot(BlockStatus status) {
  return status == BlockStatus::kFull || status == BlockStatus::kCancelled ? LoadFailure::kTransient
                                                                           : LoadFailure::kGone;
}

// Returns true if this error of RestoreEngine::Land ends the restore.
bool IsOfEngine(const absl::Status& status) {
  return absl::IsInternal(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

// Returns the statuses of a call that loads `blocks` blocks.  If the whole call failed, all are
// kCancelled (the scheduler may request them again) after DeadlineExceeded or ResourceExhausted,
// and kMissing after any other error.
std::vector<BlockStatus> StatusesOf(absl::StatusOr<std::vector<BlockStatus>> got, size_t blocks) {
  if (got.ok()) return *std::move(got);
  const bool may_come =
      absl::IsDeadlineExceeded(got.status()) || absl::IsResourceExhausted(got.status());
  return std::vector(blocks, may_come ? BlockStatus::kCancelled : BlockStatus::kMissing);
}

}  // namespace

struct Restorer::Impl {
  // Blocks that one call of RestoreEngine::Land loads, and the means to stop it.
  struct Flight {
    std::vector<uint32_t> blocks;
    std::stop_source stop;
  };
  // One restore.  A call that loads may return after the restore has ended, so the loading threads
  // share ownership of the Run.
  struct Run {
    RestorePrefix prefix;
    RequestId id;
    uint32_t block_tokens = 0;
    uint64_t block_bytes = 0;
    std::vector<Digest> blocks;
    std::vector<ByteCount> layer_bytes;
    // For each block the memory that receives its bytes, allocated by the thread that loads it
    // first.
    std::vector<std::unique_ptr<std::byte[]>> bytes;
    // Used instead of `bytes` if RestoreEngine::lands(): the engine, and the loads into it that are
    // under way.
    RestoreEngine* lander = nullptr;
    std::list<Flight> flights;
    std::vector<char> landed;  // the block arrived and is used
    uint32_t cached = 0;       // tokens that the engine has
    Restored restored;
    double loading_since_s = 0;
    size_t loading = 0;  // channels that load now
    bool cancelled = false;
    bool stuck = false;          // a block does not arrive, and nothing may be computed
    absl::Status failed = {};    // set if nothing can land in the engine
    std::stop_source over = {};  // stops the calls that are under way

    void StopCalls() {
      over.request_stop();
      for (Flight& flight : flights) flight.stop.request_stop();
    }
  };

  Impl(Session& s, VariantHandle v, Profile p, Options o)
      : session(s),
        variant(std::move(v)),
        options(Sane(std::move(o))),
        scheduler(options.scheduler, CostModel(p), FinishFirst()) {
    for (size_t i = 0; i < p.channels.size(); ++i) {
      loaders.emplace_back(
          [this, channel = static_cast<ChannelId>(i + 1)] { RunChannel(channel); });
    }
  }
  ~Impl() {
    {
      MutexLock lock(mu);
      stop = true;
      if (run != nullptr) run->StopCalls();
      changed.NotifyAll();
    }
    for (std::thread& loader : loaders) loader.join();
  }
  [[nodiscard]] double Now() const {
    return std::chrono::duration<double>(SteadyNow() - start).count();
  }

  [[nodiscard]] TimePoint NextLook(double now_s) const LARDER_REQUIRES(mu) {
    return At(start,
              std::clamp(scheduler.NextWakeup(now_s), now_s + kLookMin_s, now_s + kLookMax_s));
  }
  [[nodiscard]] absl::Status Begin(const RestorePrefix& prefix) LARDER_REQUIRES(mu);
  [[nodiscard]] absl::Status Drive(Run& mine, RestoreEngine& engine) LARDER_EXCLUDES(mu);
  // What the engine does next.  If neither `step` nor `over` is set, it has nothing to compute now.
  struct Next {
    std::optional<ComputeStep> step = {};
    bool over = false;  // the prefix is restored, or cannot be
  };
  [[nodiscard]] Next NextStep(Run& mine, bool waits) LARDER_REQUIRES(mu);
  [[nodiscard]] uint32_t TokenBudget(const Run& mine) const LARDER_REQUIRES(mu);
  [[nodiscard]] absl::Status PlaceUpTo(Run& mine, uint32_t token, RestoreEngine& engine)
      LARDER_EXCLUDES(mu);
  [[nodiscard]] absl::Status Place(Run& mine, TokenRange tokens, RestoreEngine& engine)
      LARDER_EXCLUDES(mu);
  [[nodiscard]] absl::Status Check(const RestorePrefix& prefix) const;
  void RunChannel(ChannelId channel) LARDER_EXCLUDES(mu);
  // Waits until no Flight (a call of RestoreEngine::Land) loads blocks of `tokens`.  Stops such a
  // call only after kRecall, because the stop also ends the loads of its other blocks.
  void ClearPlaces(Run& mine, TokenRange tokens) LARDER_REQUIRES(mu);
  [[nodiscard]] double RoomBytes(ChannelId channel) const LARDER_REQUIRES(mu);
  // Loads the blocks of these loads into the memory of `run`.  Returns a status for each load.
  [[nodiscard]] std::vector<BlockStatus> Fetch(Run& run, std::span<const Load> loads,
                                               ByteCount remaining);
  // Loads the blocks of these loads with RestoreEngine::Land, and removes `flight`.  Returns a
  // status for each load.
  [[nodiscard]] std::vector<BlockStatus> Land(Run& run, Flight& flight, std::span<const Load> loads,
                                              ByteCount remaining) LARDER_EXCLUDES(mu);
  [[nodiscard]] CallOptions CallOf(const Run& run, std::span<const Load> loads, ByteCount remaining,
                                   std::stop_token ends) const;
  // Waits until `when`, or until the restore ends or is cancelled if that is sooner.
  void WaitUntil(const Run& mine, TimePoint when) LARDER_REQUIRES(mu);
  // Returns about how many bytes the restore still has to load after this many loads.
  [[nodiscard]] ByteCount Remaining(const Run& run, size_t loads) const LARDER_REQUIRES(mu);
  void Report(Run& run, std::span<const Load> loads, std::span<const BlockStatus> statuses,
              double began_s) LARDER_REQUIRES(mu);
  void CountLoading(Run& run, int change) LARDER_REQUIRES(mu);

  Session& session;
  const VariantHandle variant;
  const Options options;
  const TimePoint start = SteadyNow();
  const ForkGuard fork_guard;

  mutable Mutex mu;
  CondVar changed;
  bool stop LARDER_GUARDED_BY(mu) = false;
  uint64_t requests LARDER_GUARDED_BY(mu) = 0;
  Scheduler scheduler LARDER_GUARDED_BY(mu);
  std::shared_ptr<Run> run LARDER_GUARDED_BY(mu);  // null: no restore is under way
  std::vector<std::thread> loaders;
};

Restorer::Restorer(Session& session, VariantHandle variant, Profile profile, Options options)
    : impl_(std::make_unique<Impl>(session, std::move(variant), std::move(profile),
                                   std::move(options))) {}

// A forked child does not have the restorer's threads and cannot join them, so it leaks them.
Restorer::~Restorer() {
  if (impl_->fork_guard.left()) (void)impl_.release();
}

Profile Restorer::Learnt() const {
  MutexLock lock(impl_->mu);
  return impl_->scheduler.costs().Learnt();
}

void Restorer::Cancel() {
  MutexLock lock(impl_->mu);
  if (impl_->run == nullptr) return;
  impl_->run->cancelled = true;
  impl_->run->StopCalls();
  impl_->scheduler.Cancel(impl_->run->id, impl_->Now());
  impl_->changed.NotifyAll();
}

absl::StatusOr<Restorer::Restored> Restorer::Restore(const RestorePrefix& prefix,
                                                     RestoreEngine& engine) {
  Impl& impl = *impl_;
  if (prefix.blocks.empty()) return Restored();
  if (engine.lands() && impl.options.scheduler.hedges) {
    return absl::InvalidArgumentError(
        "scheduler.hedges must be false: a block cannot land in this engine while the engine "
        "computes it");
  }
  const double begun_s = impl.Now();
  std::shared_ptr<Impl::Run> run;
  {
    MutexLock lock(impl.mu);
    LARDER_CHECK(impl.run == nullptr);
    LARDER_RETURN_IF_ERROR(impl.Begin(prefix));
    run = impl.run;
    if (engine.lands()) run->lander = &engine;
    impl.changed.NotifyAll();
  }
  const absl::Status status = impl.Drive(*run, engine);
  MutexLock lock(impl.mu);
  impl.run = nullptr;
  run->StopCalls();
  while (!run->flights.empty()) impl.changed.Wait(impl.mu);  // the engine owns the places again
  impl.scheduler.Cancel(run->id, impl.Now());  // drops the rest of the request, such as the suffix
  (void)impl.scheduler.TakeOutcomes();
  (void)impl.scheduler.TakeCancelledLoads();
  (void)impl.scheduler.TakeAbandonedSteps();
  LARDER_RETURN_IF_ERROR(status);
  if (run->cancelled) return absl::CancelledError("the restore was cancelled");
  if (run->stuck) {
    return absl::FailedPreconditionError(
        "a block is no longer stored or did not arrive in time, and SchedulerOptions.computes "
        "forbids computing it");
  }
  if (run->loading > 0) impl.CountLoading(*run, -static_cast<int>(run->loading));
  run->restored.restore_s = impl.Now() - begun_s;
  for (Span& span : run->restored.spans) {
    span.begin_s -= begun_s;
    span.end_s -= begun_s;
  }
  return std::move(run->restored);
}

// Checks what the scheduler cannot check.
absl::Status Restorer::Impl::Check(const RestorePrefix& prefix) const {
  if (options.room.value() == 0)
    return absl::InvalidArgumentError("room must not be 0 bytes: nothing could be loaded");
  for (const ChannelId channel : prefix.channel_of_block) {
    if (static_cast<size_t>(channel) > loaders.size()) {
      return absl::InvalidArgumentError(absl::StrCat("channel ", static_cast<size_t>(channel),
                                                     " is not in the profile, which has ",
                                                     loaders.size()));
    }
    if (channel == ChannelId::kNowhere && !options.scheduler.computes)
      return absl::InvalidArgumentError(
          "the prefix has a hole, and SchedulerOptions.computes forbids computing it");
  }
  return absl::OkStatus();
}

absl::Status Restorer::Impl::Begin(const RestorePrefix& prefix) {
  LARDER_RETURN_IF_ERROR(Check(prefix));
  auto next = std::make_shared<Run>();
  next->prefix = prefix;
  next->blocks.assign(prefix.blocks.begin(), prefix.blocks.end());
  next->layer_bytes.assign(prefix.layer_bytes.begin(), prefix.layer_bytes.end());
  next->block_tokens = variant.spec.block_tokens;
  for (const ByteCount bytes : next->layer_bytes) next->block_bytes += bytes.value();
  next->bytes.resize(next->blocks.size());
  next->landed.resize(next->blocks.size());
  next->id = RequestId{++requests};
  const auto layers = static_cast<uint16_t>(scheduler.costs().layers());
  RequestSpec spec{.id = next->id,
                   .tokens = static_cast<uint32_t>(next->blocks.size()) * next->block_tokens,
                   .block_tokens = next->block_tokens,
                   .chunk_tokens = prefix.chunk_tokens,
                   .cut_tokens = prefix.cut_tokens,
                   .suffix_tokens = prefix.suffix_tokens,
                   .deadline_s = Now() + prefix.deadline_s,
                   .stages = {{.layers = {0, layers},
                               .ranks = {{.channel_of_block = prefix.channel_of_block,
                                          .block_bytes = static_cast<double>(next->block_bytes)}},
                               .boundary = {}}},
                   .depths = {}};
  LARDER_RETURN_IF_ERROR(scheduler.Add(std::move(spec), Now()));
  run = std::move(next);
  return absl::OkStatus();
}

// ---- the engine's thread

absl::Status Restorer::Impl::Drive(Run& mine, RestoreEngine& engine) {
  for (;;) {
    LARDER_ASSIGN_OR_RETURN(const bool busy, engine.Between());
    Next next;
    {
      MutexLock lock(mu);
      next = NextStep(mine, /*waits=*/!busy);
      if (!mine.failed.ok()) return mine.failed;
      if (mine.cancelled || mine.stuck) return absl::OkStatus();
    }
    if (next.over) break;
    if (!next.step) continue;
    const ComputeStep& step = *next.step;
    LARDER_RETURN_IF_ERROR(PlaceUpTo(mine, step.tokens.begin, engine));
    if (mine.lander != nullptr) {
      MutexLock lock(mu);
      ClearPlaces(mine, step.tokens);
    }
    const double began_s = Now();
    LARDER_RETURN_IF_ERROR(engine.Compute(step.tokens));
    MutexLock lock(mu);
    const double now_s = Now();
    scheduler.OnComputed(step.id, now_s, now_s - began_s);
    mine.cached = step.tokens.end;
    mine.restored.compute_s += now_s - began_s;
    mine.restored.computed_tokens += step.tokens.end - step.tokens.begin;
    mine.restored.spans.push_back({step.tokens, ChannelId::kNowhere, began_s, now_s, true});
    changed.NotifyAll();
  }
  return PlaceUpTo(mine, static_cast<uint32_t>(mine.blocks.size()) * mine.block_tokens, engine);
}

Restorer::Impl::Next Restorer::Impl::NextStep(Run& mine, bool waits) {
  for (;;) {
    const double now_s = Now();
    scheduler.OnTime(now_s);
    (void)scheduler.TakeCancelledLoads();  // batches are not cancelled; unwanted blocks are dropped
    (void)scheduler.TakeAbandonedSteps();
    const std::vector<Outcome> outcomes = scheduler.TakeOutcomes();
    for (const Outcome& outcome : outcomes) mine.stuck = mine.stuck || outcome.lost;
    if (mine.cancelled || !mine.failed.ok() || !outcomes.empty()) return {.over = true};
    std::optional<ComputeStep> step = scheduler.NextCompute(kStage, TokenBudget(mine), now_s);
    // After the restore, the engine itself computes the tokens that follow the prefix.
    if (step && step->kind != StepKind::kRestore) return {.over = true};
    if (step || !waits) return {.step = step};
    changed.WaitUntil(mu, NextLook(now_s));
  }
}

uint32_t Restorer::Impl::TokenBudget(const Run& mine) const {
  const uint32_t chunk = mine.prefix.chunk_tokens;
  if (options.step_s_max == kNoDeadline) return chunk;
  const uint32_t cut = mine.prefix.cut_tokens > 0 ? mine.prefix.cut_tokens : mine.block_tokens;
  const uint32_t granule = std::min(cut, chunk);
  return std::clamp(scheduler.TokenBudget(options.step_s_max, 0, mine.cached, granule), granule,
                    chunk);
}

// Places the blocks from `mine.cached` up to `token`, all of which were loaded: the scheduler has
// said that they need not be computed.  Calls RestoreEngine::Between after at most a chunk, or a
// block if that is larger.
absl::Status Restorer::Impl::PlaceUpTo(Run& mine, uint32_t token, RestoreEngine& engine) {
  const uint32_t most = std::max(mine.prefix.chunk_tokens, mine.block_tokens);
  while (mine.cached < token) {
    const TokenRange tokens{mine.cached, std::min(token, (mine.cached / most + 1) * most)};
    LARDER_RETURN_IF_ERROR(Place(mine, tokens, engine));
    if (absl::StatusOr<bool> busy = engine.Between(); !busy.ok()) return busy.status();
  }
  return absl::OkStatus();
}

absl::Status Restorer::Impl::Place(Run& mine, TokenRange tokens, RestoreEngine& engine) {
  LARDER_CHECK(tokens.begin % mine.block_tokens == 0 && tokens.end % mine.block_tokens == 0);
  std::vector<std::vector<std::span<const std::byte>>> layers;
  for (uint32_t b = tokens.begin / mine.block_tokens; b < tokens.end / mine.block_tokens; ++b) {
    LARDER_CHECK(mine.landed[b]);
    if (mine.lander != nullptr) continue;
    const std::byte* next = mine.bytes[b].get();
    auto& block = layers.emplace_back();
    for (const ByteCount bytes : mine.layer_bytes) {
      block.emplace_back(next, bytes.value());
      next += bytes.value();
    }
  }
  const std::vector<RestoreEngine::Layers> blocks(layers.begin(), layers.end());
  LARDER_RETURN_IF_ERROR(engine.Place(tokens, blocks));
  MutexLock lock(mu);
  mine.restored.loaded_tokens += tokens.end - tokens.begin;
  mine.cached = tokens.end;
  return absl::OkStatus();
}

// ---- the channels' threads

void Restorer::Impl::RunChannel(ChannelId channel) {
  pthread_setname_np(pthread_self(), "restore");
  std::vector<Load> loads;
  MutexLock lock(mu);
  while (!stop) {
    if (run == nullptr || run->cancelled) {
      changed.Wait(mu);
      continue;
    }
    const double now_s = Now();
    loads.clear();
    scheduler.OnTime(now_s);  // the engine's thread may be busy computing
    scheduler.NextLoads(channel, RoomBytes(channel), now_s, &loads);
    if (loads.empty()) {
      changed.WaitUntil(mu, NextLook(now_s));
      continue;
    }
    const std::shared_ptr<Run> mine = run;
    const ByteCount remaining = Remaining(*mine, loads.size());
    Flight* flight = nullptr;
    if (mine->lander != nullptr) {
      flight = &mine->flights.emplace_back();
      for (const Load& load : loads) flight->blocks.push_back(load.block);
    }
    CountLoading(*mine, 1);
    mu.Unlock();
    TimePoint here = SteadyNow();
    if (options.carry)
      here = options.carry(channel, ByteCount(loads.size() * mine->block_bytes), here);
    const std::vector<BlockStatus> statuses =
        flight == nullptr ? Fetch(*mine, loads, remaining) : Land(*mine, *flight, loads, remaining);
    mu.Lock();
    WaitUntil(*mine, here);
    Report(*mine, loads, statuses, now_s);
    if (mine == run) CountLoading(*mine, -1);
    changed.NotifyAll();
    // A block is kFull if it cannot be read now, usually for lack of memory; an immediate retry
    // would probably fail again.
    if (std::ranges::count(statuses, BlockStatus::kFull) > 0)
      WaitUntil(*mine, SteadyNow() + kFullPause);
  }
}

void Restorer::Impl::WaitUntil(const Run& mine, TimePoint when) {
  while (!stop && &mine == run.get() && !mine.cancelled && SteadyNow() < when)
    changed.WaitUntil(mu, when);
}

ByteCount Restorer::Impl::Remaining(const Run& mine, size_t loads) const {
  size_t wanted = 0;
  for (size_t b = mine.cached / mine.block_tokens; b < mine.blocks.size(); ++b)
    wanted += mine.landed[b] == 0 && mine.prefix.channel_of_block[b] != ChannelId::kNowhere ? 1 : 0;
  return ByteCount((wanted - std::min(wanted, loads)) * mine.block_bytes);
}

double Restorer::Impl::RoomBytes(ChannelId channel) const {
  const double rate = 1 / scheduler.costs().LoadSeconds(channel, 1);
  const double blocks = run->lander == nullptr ? wire::kKeysMax : kLandAtOnce;
  double room = blocks * static_cast<double>(run->block_bytes);
  if (run->lander == nullptr) room = std::min(room, static_cast<double>(options.room.value()));
  return std::min(room, kBatch_s * rate);
}

std::vector<BlockStatus> Restorer::Impl::Fetch(Run& mine, std::span<const Load> loads,
                                               ByteCount remaining) {
  std::vector<std::vector<std::span<std::byte>>> segments(loads.size());
  std::vector<GetBlock> wanted;
  for (size_t i = 0; i < loads.size(); ++i) {
    auto& bytes = mine.bytes[loads[i].block];
    if (bytes == nullptr) bytes = std::make_unique_for_overwrite<std::byte[]>(mine.block_bytes);
    std::byte* next = bytes.get();
    for (const ByteCount layer : mine.layer_bytes) {
      segments[i].emplace_back(next, layer.value());
      next += layer.value();
    }
    wanted.push_back({.digest = mine.blocks[loads[i].block], .segments = segments[i]});
  }
  return StatusesOf(
      session.Get(variant, wanted, CallOf(mine, loads, remaining, mine.over.get_token())),
      loads.size());
}

CallOptions Restorer::Impl::CallOf(const Run& mine, std::span<const Load> loads,
                                   ByteCount remaining, std::stop_token ends) const {
  double deadline_s = loads.front().deadline_s;
  for (const Load& load : loads) deadline_s = std::max(deadline_s, load.deadline_s);
  const double left_s = std::clamp(deadline_s - Now(), 0.001, 600.0);
  CallOptions call;
  call.remaining = remaining;
  call.promise = mine.prefix.promise;
  call.stop = std::move(ends);
  call.deadline = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(left_s * 1e3)));
  return call;
}

std::vector<BlockStatus> Restorer::Impl::Land(Run& mine, Flight& flight,
                                              std::span<const Load> loads, ByteCount remaining) {
  absl::StatusOr<std::vector<BlockStatus>> landed =
      mine.lander->Land(loads.front().channel, flight.blocks,
                        CallOf(mine, loads, remaining, flight.stop.get_token()));
  if (landed.ok() && landed->size() != loads.size())
    landed =
        absl::InternalError("Land returned another number of statuses than it was given blocks");
  MutexLock lock(mu);
  mine.flights.remove_if([&](const Flight& one) { return &one == &flight; });
  if (IsOfEngine(landed.status())) mine.failed.Update(landed.status());
  changed.NotifyAll();
  return StatusesOf(std::move(landed), loads.size());
}

void Restorer::Impl::ClearPlaces(Run& mine, TokenRange tokens) {
  // If the engine's chunks are smaller than blocks, a step covers a part of a block.
  const uint32_t begin = tokens.begin / mine.block_tokens;
  const uint32_t end = (tokens.end + mine.block_tokens - 1) / mine.block_tokens;
  const auto concerns = [=](const Flight& flight) {
    return std::ranges::any_of(flight.blocks, [=](uint32_t b) { return b >= begin && b < end; });
  };
  const TimePoint patient_until = SteadyNow() + kRecall;
  while (std::ranges::any_of(mine.flights, concerns)) {
    if (SteadyNow() < patient_until) {
      changed.WaitUntil(mu, patient_until);
      continue;
    }
    for (Flight& flight : mine.flights) {
      if (concerns(flight)) flight.stop.request_stop();
    }
    changed.Wait(mu);
  }
}

void Restorer::Impl::Report(Run& mine, std::span<const Load> loads,
                            std::span<const BlockStatus> statuses, double began_s) {
  if (run.get() != &mine) return;  // the restore has ended: nothing uses the blocks
  const double end_s = Now(), each_s = (end_s - began_s) / static_cast<double>(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    const Load& load = loads[i];
    // For the estimate of the channel's rate, the loads of a batch count as if they had arrived one
    // after the other.
    const double now_s = end_s - each_s * static_cast<double>(loads.size() - 1 - i);
    const TokenRange tokens{load.block * mine.block_tokens, (load.block + 1) * mine.block_tokens};
    bool used = false;
    if (statuses[i] == BlockStatus::kOk) {
      used = scheduler.OnLoaded(load.id, now_s) == Landing::kPlace;
    } else {
      scheduler.OnLoadFailed(load.id, WhyNot(statuses[i]), now_s);
    }
    if (used) mine.landed[load.block] = 1;
    if (used) mine.restored.bytes += ByteCount(mine.block_bytes);
    mine.restored.spans.push_back({tokens, load.channel, now_s - each_s, now_s, used});
  }
}

// Adds up the time in which any channel loads.
void Restorer::Impl::CountLoading(Run& mine, int change) {
  const double now_s = Now();
  if (mine.loading > 0) mine.restored.load_s += now_s - mine.loading_since_s;
  mine.loading_since_s = now_s;
  mine.loading = static_cast<size_t>(static_cast<int>(mine.loading) + change);
}

}  // namespace larder
