#include "client/claims/restore_driver.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr uint16_t kStage = 0;
constexpr size_t kTiers = 2;  // HOST and DISK
constexpr double kBlocksAtOnce = 256;
// A worker gives up fetching a block when the scheduler would call the load late, but not before
// kFetchLeast_s and not after kFetchMost_s: a worker that fetches is cheap, and claims can be
// withdrawn meanwhile.
constexpr double kFetchLeast_s = 2, kFetchMost_s = 600;

SchedulerOptions OptionsOf(const RestoreDriver::Options& options) {
  SchedulerOptions chosen;
  // What a load is late with, or would bring later than the engine, is computed: the claim is then
  // withdrawn, so that the page has one writer all the same.
  chosen.hedges = true;
  chosen.patience = options.patience;
  return chosen;
}

RestoreDriver::Options Checked(RestoreDriver::Options options) {
  LARDER_CHECK(options.ranks > 0 && options.boards.size() == options.ranks * kTiers &&
               options.profile.channels.size() == options.boards.size());
  LARDER_CHECK(options.block_tokens > 0 && options.block_bytes.value() > 0);
  options.chunk_tokens =
      std::max(1u, options.chunk_tokens / options.block_tokens) * options.block_tokens;
  return options;
}

// Returns why a block that ended so was not loaded; whether it may be tried again.
LoadFailure WhyNot(BlockStatus status) {
  return status == BlockStatus::kFull || status == BlockStatus::kCancelled ? LoadFailure::kTransient
                                                                           : LoadFailure::kGone;
}

}  // namespace

RestoreDriver::RestoreDriver(Options options, const Clock& clock)
    : options_(Checked(std::move(options))),
      clock_(clock),
      start_(clock.Now()),
      scheduler_(OptionsOf(options_), CostModel(options_.profile), FinishFirst()),
      flights_(options_.boards.size()),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

RestoreDriver::~RestoreDriver() {
  thread_.request_stop();
  {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  thread_.join();
  MutexLock lock(mu_);
  for (size_t board = 0; board < flights_.size(); ++board) {
    for (auto& [claim, flight] : flights_[board]) (void)Withdraw(board, claim, flight);
  }
}

double RestoreDriver::Now() const {
  return std::chrono::duration<double>(clock_.Now() - start_).count();
}

ChannelId RestoreDriver::ChannelOf(uint16_t rank, Tier tier) const {
  return static_cast<ChannelId>(1 + rank * kTiers + (tier == Tier::kDisk ? 1 : 0));
}

RequestSpec RestoreDriver::SpecOf(const Restore& restore) const {
  RequestSpec spec;
  spec.id = restore.id;
  spec.tokens = static_cast<uint32_t>(restore.blocks.size()) * options_.block_tokens;
  spec.block_tokens = options_.block_tokens;
  spec.chunk_tokens = options_.chunk_tokens;
  spec.cut_tokens = options_.block_tokens;
  spec.have_tokens = restore.have_blocks * options_.block_tokens;
  StageSpec& stage = spec.stages.emplace_back();
  stage.layers = {0, options_.profile.layers};
  for (uint16_t rank = 0; rank < options_.ranks; ++rank) {
    Copy& copy = stage.ranks.emplace_back();
    copy.block_bytes = static_cast<double>(options_.block_bytes.value());
    for (const Tier tier : restore.tiers) copy.channel_of_block.push_back(ChannelOf(rank, tier));
  }
  return spec;
}

// ---- the engine's scheduler

bool RestoreDriver::Pays(std::span<const Tier> tiers, uint32_t have_blocks) const {
  std::vector<double> bytes(options_.boards.size());
  for (size_t b = have_blocks; b < tiers.size(); ++b) {
    for (uint16_t rank = 0; rank < options_.ranks; ++rank) {
      bytes[static_cast<size_t>(ChannelOf(rank, tiers[b])) - 1] +=
          static_cast<double>(options_.block_bytes.value());
    }
  }
  const uint32_t from = have_blocks * options_.block_tokens;
  const TokenRange chunk{from, from + options_.chunk_tokens};
  MutexLock lock(mu_);
  const CostModel& costs = scheduler_.costs();
  double loads_s = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    loads_s = std::max(loads_s, costs.LoadSeconds(static_cast<ChannelId>(i + 1), bytes[i]));
  return loads_s > costs.ComputeSeconds(chunk) * (1 + costs.ComputeDoubt(chunk));
}

absl::Status RestoreDriver::Begin(Restore restore) {
  const size_t blocks = restore.blocks.size();
  if (restore.tiers.size() != blocks || restore.pages.size() != blocks ||
      restore.have_blocks >= blocks) {
    return absl::InvalidArgumentError(
        "a restore needs blocks that the engine lacks, with a page and a tier for each");
  }
  MutexLock lock(mu_);
  const double now_s = Now();
  const RequestId id = restore.id;
  if (live_.contains(id) || std::ranges::find(news_.free, id) != news_.free.end())
    return absl::AlreadyExistsError("a restore of this id is under way");
  LARDER_RETURN_IF_ERROR(scheduler_.Add(SpecOf(restore), now_s));
  live_.emplace(id, Live{.restore = std::move(restore), .began_s = now_s});
  Look();
  changed_.NotifyAll();
  return absl::OkStatus();
}

std::vector<RestoreDriver::Grant> RestoreDriver::NextStep(const StepRoom& room) {
  MutexLock lock(mu_);
  const double now_s = Now();
  for (auto& [id, live] : live_) {
    if (live.step) scheduler_.OnComputed(std::exchange(live.step, std::nullopt)->id, now_s, 0);
  }
  Look();
  std::vector<Grant> grants;
  for (const ComputeStep& step : scheduler_.NextStep(kStage, room, now_s)) {
    Live& live = live_.at(step.request);
    if (!TakeBack(live, step.tokens)) {
      scheduler_.OnAbandoned(step.id, now_s);  // its writes end within a copy
      continue;
    }
    live.step = step;
    grants.push_back({step.request, step.tokens});
  }
  changed_.NotifyAll();
  return grants;
}

void RestoreDriver::Refuse(RequestId id) {
  MutexLock lock(mu_);
  const auto found = live_.find(id);
  if (found == live_.end() || !found->second.step) return;
  scheduler_.OnAbandoned(std::exchange(found->second.step, std::nullopt)->id, Now());
}

void RestoreDriver::Observe(std::span<const TokenRange> ranges, uint32_t decode_tokens,
                            double seconds) {
  MutexLock lock(mu_);
  scheduler_.ObserveStep(ranges, decode_tokens, seconds);
}

void RestoreDriver::ObserveLoad(uint16_t rank, Tier tier, ByteCount bytes, double seconds) {
  if (rank >= options_.ranks) return;
  MutexLock lock(mu_);
  scheduler_.ObserveLoad(ChannelOf(rank, tier), static_cast<double>(bytes.value()), seconds);
}

void RestoreDriver::End(RequestId id) {
  MutexLock lock(mu_);
  const double now_s = Now();
  scheduler_.Cancel(id, now_s);
  Settle(now_s);
}

RestoreDriver::News RestoreDriver::TakeNews() {
  MutexLock lock(mu_);
  return std::exchange(news_, {});
}

size_t RestoreDriver::under_way() const {
  MutexLock lock(mu_);
  return scheduler_.requests();
}

Profile RestoreDriver::Learnt() const {
  MutexLock lock(mu_);
  return scheduler_.costs().Learnt();
}

// ---- who writes a page

bool RestoreDriver::TakeBack(const Live& live, TokenRange tokens) {
  if (live.flights == 0) return true;
  const uint32_t begin = tokens.begin / options_.block_tokens;
  const uint32_t end = tokens.end / options_.block_tokens;
  std::vector<std::pair<size_t, ClaimId>> concerned;
  for (size_t board = 0; board < flights_.size(); ++board) {
    for (const auto& [claim, flight] : flights_[board]) {
      if (flight.withdrawn || flight.restore != live.restore.id) continue;
      if (flight.block < begin || flight.block >= end) continue;
      if (options_.boards[board]->Writes(claim)) return false;  // the others need not be withdrawn
      concerned.emplace_back(board, claim);
    }
  }
  return std::ranges::all_of(concerned, [&](const auto& one) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return Withdraw(one.first, one.second, flights_[one.first].at(one.second));
  });
}

bool RestoreDriver::Withdraw(size_t board, ClaimId claim, Flight& flight) {
  if (flight.withdrawn) return true;
  if (!options_.boards[board]->Withdraw(claim)) return false;
  flight.withdrawn = true;
  flight.since = clock_.Now();
  --live_.at(flight.restore).flights;
  return true;
}

void RestoreDriver::FreeIfIdle(RequestId id) {
  const auto found = live_.find(id);
  if (found == live_.end() || !found->second.over || found->second.flights > 0) return;
  live_.erase(found);
  news_.free.push_back(id);
}

// ---- the boards

void RestoreDriver::Run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "restore");
  MutexLock lock(mu_);
  while (!stop.stop_requested()) {
    Look();
    const bool claims = std::ranges::any_of(flights_, [](const auto& one) { return !one.empty(); });
    if (claims || !live_.empty()) {
      changed_.WaitUntil(mu_, SteadyNow() + kLookEvery);
    } else {
      changed_.Wait(mu_);
    }
  }
}

void RestoreDriver::Look() {
  const double now_s = Now();
  for (size_t board = 0; board < flights_.size(); ++board) TakeEnded(board, now_s);
  scheduler_.OnTime(now_s);
  Settle(now_s);
  for (size_t board = 0; board < flights_.size(); ++board) PlaceLoads(board, now_s);
  Settle(now_s);  // loads that could not be placed may have ended a request
}

void RestoreDriver::TakeEnded(size_t board, double now_s) {
  for (const ClaimBoard::Ended& ended : options_.boards[board]->TakeEnded()) {
    const auto found = flights_[board].find(ended.id);
    if (found == flights_[board].end()) continue;  // of another driver, before this one
    const Flight flight = found->second;
    flights_[board].erase(found);
    if (!flight.dropped) {
      if (ended.status == BlockStatus::kOk && !flight.withdrawn) {
        (void)scheduler_.OnLoaded(flight.load, now_s);
      } else {
        scheduler_.OnLoadFailed(
            flight.load, flight.withdrawn ? LoadFailure::kWithdrawn : WhyNot(ended.status), now_s);
      }
    }
    if (flight.withdrawn) continue;
    --live_.at(flight.restore).flights;
    FreeIfIdle(flight.restore);
  }
}

void RestoreDriver::Settle(double now_s) {
  for (const Outcome& outcome : scheduler_.TakeOutcomes()) {
    Live& live = live_.at(outcome.request);
    live.over = true;
    live.step.reset();
    if (outcome.cancelled) continue;
    Restored done{.id = outcome.request, .seconds = now_s - live.began_s};
    const std::vector<uint16_t>& depths = outcome.stages[kStage].depths;
    for (size_t b = live.restore.have_blocks; b < depths.size(); ++b)
      ++(depths[b] > 0 ? done.computed_blocks : done.loaded_blocks);
    news_.restored.push_back(done);
  }
  (void)scheduler_.TakeAbandonedSteps();
  DropCancelled();
  std::vector<RequestId> over;
  for (const auto& [id, live] : live_) {
    if (live.over) over.push_back(id);
  }
  for (const RequestId id : over) FreeIfIdle(id);
}

void RestoreDriver::DropCancelled() {
  const std::vector<LoadId> cancelled = scheduler_.TakeCancelledLoads();
  if (cancelled.empty()) return;
  const absl::flat_hash_set<LoadId> gone(cancelled.begin(), cancelled.end());
  for (size_t board = 0; board < flights_.size(); ++board) {
    for (auto& [claim, flight] : flights_[board]) {
      if (!gone.contains(flight.load)) continue;
      flight.dropped = true;
      flight.since = clock_.Now();
      (void)Withdraw(board, claim, flight);
    }
  }
}

bool RestoreDriver::IsDead(size_t board) const {
  if (options_.boards[board]->broken()) return true;
  const TimePoint since = clock_.Now() - kDeadAfter;
  return std::ranges::any_of(flights_[board], [&](const auto& one) {
    const Flight& flight = one.second;
    return (flight.withdrawn || flight.dropped) && flight.since < since;
  });
}

void RestoreDriver::PlaceLoads(size_t board, double now_s) {
  const auto channel = static_cast<ChannelId>(board + 1);
  const bool dead = IsDead(board);
  const auto under_way = static_cast<double>(std::ranges::count_if(
      flights_[board], [](const auto& one) { return !one.second.withdrawn; }));
  const double block = static_cast<double>(options_.block_bytes.value());
  const double most = options_.under_way_s / scheduler_.costs().LoadSeconds(channel, block);
  // Two blocks, so that the worker need not wait for the next one.
  const double room = dead ? kBlocksAtOnce : std::clamp(most, 2.0, kBlocksAtOnce) - under_way;
  if (room <= 0) return;
  std::vector<Load> loads;
  scheduler_.NextLoads(channel, room * block, now_s, &loads);
  for (const Load& load : loads) {
    if (dead) {
      scheduler_.OnLoadFailed(load.id, LoadFailure::kGone, now_s);
    } else if (!Place(board, load, now_s)) {
      scheduler_.OnLoadFailed(load.id, LoadFailure::kTransient, now_s);
    }
  }
}

bool RestoreDriver::Place(size_t board, const Load& load, double now_s) {
  // The scheduler has given up a load that the worker still writes.
  const bool writes = std::ranges::any_of(flights_[board], [&](const auto& one) {
    return !one.second.withdrawn && one.second.restore == load.request &&
           one.second.block == load.block;
  });
  if (writes) return false;
  Live& live = live_.at(load.request);
  // The scheduler withdraws what is late; this ends what a daemon that hangs does not answer.
  const double most_s = std::clamp(load.deadline_s - now_s, kFetchLeast_s, kFetchMost_s);
  const std::optional<ClaimId> claim = options_.boards[board]->Place(
      {.digest = live.restore.blocks[load.block],
       .page = live.restore.pages[load.block],
       .promise = live.restore.promise,
       .deadline_unix_ms = UnixMilliseconds() + static_cast<uint64_t>(std::ceil(most_s * 1e3))});
  if (!claim) return false;
  ++live.flights;
  flights_[board].emplace(*claim, Flight{load.request, load.block, load.id});
  return true;
}

}  // namespace larder
