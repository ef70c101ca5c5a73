// See ledger.h.
#include "tests/client/restore/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace larder::testing {

bool Ledger::Cell::there() const {
  return computed || std::all_of(landed.begin(), landed.end(), [](bool each) { return each; });
}

bool Ledger::Cell::claimed() const {
  for (size_t rank = 0; rank < landed.size(); ++rank) {
    if (!landed[rank] && !loading[rank]) return false;
  }
  return true;
}

Ledger::Ledger(uint32_t seed, LedgerOptions options, CostModel costs,
               std::unique_ptr<Policy> policy, uint16_t stages, uint16_t channels)
    : random_(seed),
      options_(options),
      scheduler_(options.scheduler, std::move(costs), std::move(policy)),
      stages_(stages),
      channels_(channels) {}

double Ledger::Real(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

uint32_t Ledger::ChunkTokens(const Book& book) const {
  return std::max(book.spec.chunk_tokens, book.spec.block_tokens);
}

Ledger::Cell& Ledger::At(Book& book, uint16_t stage, uint32_t block, uint16_t layer) {
  return book.cells[stage][block][layer];
}

void Ledger::Add(const RequestSpec& spec) {
  const absl::Status added = scheduler_.Add(spec, now_s_);
  ASSERT_TRUE(added.ok()) << added;
  Book book{spec, {}, {}, {}, {}};
  const uint32_t blocks = spec.tokens / spec.block_tokens;
  for (const StageSpec& stage : spec.stages) {
    const std::vector<bool> ranks(stage.ranks.size());
    const Cell cell{false, false, ranks, ranks};
    book.cells.push_back(std::vector(blocks, std::vector<Cell>(stage.layers.count(), cell)));
    for (uint32_t b = 0; b < spec.have_tokens / spec.block_tokens; ++b)
      for (Cell& had : book.cells.back()[b]) had.computed = true;
    book.boundary.emplace_back(blocks, stage.boundary.channel_of_block.empty());
    book.activations.emplace_back(blocks);
    book.through.emplace_back(blocks);
  }
  books_.emplace(spec.id.value, std::move(book));
}

void Ledger::RunToEnd() {
  const size_t wanted = outcomes_.size() + books_.size();
  for (int i = 0; outcomes_.size() < wanted; ++i) {
    ASSERT_TRUE(Step()) << "no event is left, but some requests have no outcome";
    ASSERT_LT(i, 1'000'000);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(scheduler_.requests(), 0u);
  EXPECT_TRUE(loads_.empty());
}

void Ledger::Ask() {
  for (uint16_t stage = 0; stage < stages_; ++stage) {
    const bool busy = std::any_of(steps_.begin(), steps_.end(),
                                  [&](const auto& step) { return step.stage == stage; });
    if (busy) continue;
    auto budget = static_cast<uint32_t>(
        options_.budget > 1'000'000 ? options_.budget : 1 + random_() % options_.budget);
    for (const auto& [id, book] : books_) budget = std::max(budget, book.spec.cut_tokens);
    const auto step = scheduler_.NextCompute(stage, budget, now_s_);
    if (!step) continue;
    // One cut is always allowed, with a remainder shorter than a cut at the end.
    const uint32_t cut = books_.at(step->request.value).spec.cut_tokens;
    if (step->kind == StepKind::kRestore) {
      EXPECT_LT(step->tokens.end - step->tokens.begin, budget + std::max(cut, 1u));
    }
    Check(*step);
  }
  for (uint16_t channel = 1; channel <= channels_; ++channel) {
    const auto mine = [&](const Load& load) { return load.channel == ChannelId{channel}; };
    while (std::count_if(loads_.begin(), loads_.end(), mine) <
           static_cast<std::ptrdiff_t>(options_.in_flight)) {
      std::vector<Load> loads;
      scheduler_.NextLoads(ChannelId{channel}, 1, now_s_, &loads);
      if (loads.empty()) break;
      for (const Load& load : loads) Check(load);
    }
  }
}

void Ledger::Check(const ComputeStep& step) {
  Book& book = books_.at(step.request.value);
  steps_.push_back(step);
  hedges_ += step.hedge;
  ASSERT_LT(step.tokens.begin, step.tokens.end);
  ASSERT_FALSE(step.layers.empty());
  if (step.kind == StepKind::kSuffix) {
    ASSERT_GE(step.tokens.begin, book.spec.tokens);
    for (auto& block : book.cells[0]) {
      for (uint16_t l = 0; l < step.layers.end; ++l) ASSERT_TRUE(block[l].there());
    }
    return;
  }
  const uint32_t chunk = step.tokens.begin / ChunkTokens(book);
  ASSERT_LE(step.tokens.end, std::min((chunk + 1) * ChunkTokens(book), book.spec.tokens));
  ASSERT_LE(step.tokens.end - step.tokens.begin, book.spec.chunk_tokens);
  const uint32_t cut = book.spec.cut_tokens;
  uint32_t first = chunk * ChunkTokens(book) / book.spec.block_tokens;
  if (cut > 0) {
    CheckCut(book, step);
    first = step.tokens.begin / book.spec.block_tokens;
  } else {
    ASSERT_EQ(book.activations[step.stage][chunk], step.layers.begin)
        << "activations of the layers below must be computed";
    ASSERT_EQ(step.tokens.begin, chunk * ChunkTokens(book) + book.through[step.stage][chunk])
        << "a chunk must continue where it was left";
  }
  for (uint32_t b = step.tokens.begin / book.spec.block_tokens;
       b * book.spec.block_tokens < step.tokens.end; ++b) {
    ASSERT_TRUE(book.boundary[step.stage][b])
        << "the activations that the step starts from must be there";
  }
  for (uint32_t b = 0; b < first; ++b) {
    for (uint16_t l = 0; l < step.layers.end; ++l) {
      ASSERT_TRUE(At(book, step.stage, b, l).there())
          << "block " << b << " layer " << l << " must be there before the step starts";
    }
  }
  const uint32_t last = (step.tokens.end - 1) / book.spec.block_tokens;
  bool of_use = false;  // no load brings a part of it, or of the layers above it
  for (uint32_t b = step.tokens.begin / book.spec.block_tokens; b <= last; ++b) {
    for (uint16_t l = step.layers.begin; l < book.cells[step.stage][b].size(); ++l) {
      Cell& cell = At(book, step.stage, b, l);
      of_use |= !cell.claimed() && !cell.there();
      if (l >= step.layers.end) continue;
      ASSERT_FALSE(cell.computing);
      cell.computing = true;
    }
  }
  // A part of a chunk may be there already; computing the rest needs the whole chunk.
  const uint32_t end = std::min((chunk + 1) * ChunkTokens(book), book.spec.tokens);
  const bool part = step.tokens.begin % ChunkTokens(book) != 0 || step.tokens.end != end;
  ASSERT_TRUE(step.hedge || part || of_use) << "the step computes only what is being loaded";
}

// A step begins with a cut that is not there and ends with one that no load has claimed, unless its
// budget ended it.
void Ledger::CheckCut(const Book& book, const ComputeStep& step) {
  const uint32_t cut = book.spec.cut_tokens, size = book.spec.block_tokens;
  const uint32_t begin = step.tokens.begin / ChunkTokens(book) * ChunkTokens(book);
  const uint32_t end = std::min(begin + ChunkTokens(book), book.spec.tokens);
  const uint32_t at_least = std::min(cut, end - begin);
  ASSERT_EQ(step.tokens.begin % cut, 0u);
  ASSERT_TRUE(step.tokens.end % cut == 0 || step.tokens.end == book.spec.tokens);
  ASSERT_GE(step.tokens.end - step.tokens.begin, at_least);
  ASSERT_TRUE(step.tokens.end == end || end - step.tokens.end >= at_least)
      << "the remainder of the chunk must be at least a cut";
  const auto any = [&](uint32_t from, uint32_t to, const auto& is) {
    for (uint32_t b = from / size; b < to / size; ++b) {
      const auto& cells = book.cells[step.stage][b];
      if (std::any_of(cells.begin(), cells.end(), is)) return true;
    }
    return false;
  };
  const auto lacks = [](const Cell& cell) { return !cell.there(); };
  const auto open = [](const Cell& cell) { return !cell.there() && !cell.claimed(); };
  const uint32_t cuts = (end - begin) / at_least;
  const uint32_t last =
      step.tokens.end == end ? begin + (cuts - 1) * at_least : step.tokens.end - cut;
  ASSERT_TRUE(any(step.tokens.begin, step.tokens.begin + at_least, lacks) ||
              (step.tokens.begin == last && any(last, step.tokens.end, lacks)))
      << "the step must begin with a cut that is not there";
  if (step.hedge) return;
  const bool limited = options_.budget <= 1'000'000;
  ASSERT_TRUE(any(last, limited ? end : step.tokens.end, open))
      << "the step must end with a cut that is not being loaded";
}

void Ledger::Check(const Load& load) {
  Book& book = books_.at(load.request.value);
  loads_.push_back(load);
  hedges_ += load.hedge;
  ASSERT_GT(load.deadline_s, now_s_);
  if (load.boundary) return;
  ASSERT_FALSE(load.layers.empty());
  const Copy& copy = book.spec.stages[load.stage].ranks[load.rank];
  ASSERT_EQ(copy.channel_of_block[load.block], load.channel);
  for (uint16_t l = load.layers.begin; l < load.layers.end; ++l) {
    Cell& cell = At(book, load.stage, load.block, l);
    ASSERT_FALSE(cell.loading[load.rank]) << "the cell is already being loaded";
    ASSERT_FALSE(cell.landed[load.rank]) << "the cell has landed already";
    ASSERT_FALSE(cell.computed) << "the cell is computed already";
    ASSERT_TRUE(load.hedge || !cell.computing) << "the cell is being computed";
    cell.loading[load.rank] = true;
  }
}

void Ledger::End(const ComputeStep& step) {
  Book& book = books_.at(step.request.value);
  if (Real(0, 1) < options_.refuses) {
    for (auto& block : book.cells[step.stage]) {
      for (Cell& cell : block) cell.computing = false;
    }
    return scheduler_.OnAbandoned(step.id, now_s_);
  }
  if (step.kind == StepKind::kRestore) {
    const uint32_t chunk = step.tokens.begin / ChunkTokens(book);
    const uint32_t end = std::min((chunk + 1) * ChunkTokens(book), book.spec.tokens);
    const bool all = step.tokens.end == end;
    if (all) book.activations[step.stage][chunk] = step.layers.end;
    book.through[step.stage][chunk] = all ? 0 : step.tokens.end - chunk * ChunkTokens(book);
    const bool hands_over = options_.scheduler.engine.hands_over;
    const bool last_layer = step.layers.end == book.spec.stages[step.stage].layers.count();
    for (uint32_t b = step.tokens.begin / book.spec.block_tokens;
         b * book.spec.block_tokens < step.tokens.end; ++b) {
      const bool whole = (b + 1) * book.spec.block_tokens <= step.tokens.end;
      for (uint16_t l = step.layers.begin; l < step.layers.end; ++l) {
        At(book, step.stage, b, l).computing = false;
        if (whole) At(book, step.stage, b, l).computed = true;
      }
      if (hands_over && last_layer && whole && step.stage + 1u < book.boundary.size())
        book.boundary[step.stage + 1u][b] = true;
    }
  }
  scheduler_.OnComputed(step.id, now_s_);
}

void Ledger::End(const Load& load) {
  Book& book = books_.at(load.request.value);
  for (uint16_t l = load.layers.begin; l < load.layers.end; ++l) {
    At(book, load.stage, load.block, l).loading[load.rank] = false;
  }
  const double draw = Real(0, 1);
  if (draw < options_.fails)
    return scheduler_.OnLoadFailed(load.id, LoadFailure::kTransient, now_s_);
  if (draw < options_.fails + options_.gone) {
    return scheduler_.OnLoadFailed(load.id, LoadFailure::kGone, now_s_);
  }
  bool useful = false;
  if (load.boundary) {
    const uint32_t per_chunk = std::max(book.spec.chunk_tokens / book.spec.block_tokens, 1u);
    for (uint32_t b = load.block;
         b < load.block + per_chunk && b < book.boundary[load.stage].size(); ++b) {
      useful |= !book.boundary[load.stage][b];
      book.boundary[load.stage][b] = true;
    }
  }
  for (uint16_t l = load.layers.begin; l < load.layers.end; ++l) {
    Cell& cell = At(book, load.stage, load.block, l);
    cell.landed[load.rank] = true;
    useful |= !cell.computed;
  }
  const Landing landing = scheduler_.OnLoaded(load.id, now_s_);
  EXPECT_EQ(landing, useful ? Landing::kPlace : Landing::kDrop);
}

bool Ledger::Step() {
  Ask();
  Collect();
  scheduler_.CheckInvariants();
  const double wakeup_s = scheduler_.NextWakeup(now_s_);
  const size_t choices = steps_.size() + loads_.size();
  if (choices == 0 && !std::isfinite(wakeup_s)) return !outcomes_.empty() && books_.empty();
  const size_t choice = choices == 0 ? 0 : random_() % choices;
  now_s_ += Real(0, 0.01);
  if (choice < steps_.size()) {
    const ComputeStep step = steps_[choice];
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(choice));
    End(step);
  } else if (choices > 0 && Real(0, 1) >= options_.stalls) {
    const Load load = loads_[choice - steps_.size()];
    loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(choice - steps_.size()));
    End(load);
  } else if (std::isfinite(wakeup_s)) {
    now_s_ = std::max(now_s_, wakeup_s);
  }
  scheduler_.OnTime(now_s_);
  Collect();
  scheduler_.CheckInvariants();
  return true;
}

void Ledger::Cancel(RequestId id) {
  scheduler_.Cancel(id, now_s_);
  Collect();
}

void Ledger::Collect() {
  for (const LoadId id : scheduler_.TakeCancelledLoads()) {
    const auto at =
        std::find_if(loads_.begin(), loads_.end(), [&](const Load& load) { return load.id == id; });
    ASSERT_NE(at, loads_.end()) << "a cancelled load must be under way";
    Book& book = books_.at(at->request.value);
    for (uint16_t l = at->layers.begin; l < at->layers.end; ++l) {
      At(book, at->stage, at->block, l).loading[at->rank] = false;
    }
    late_ += at->deadline_s <= now_s_;
    loads_.erase(at);
  }
  for (const StepId id : scheduler_.TakeAbandonedSteps()) {
    const auto at =
        std::find_if(steps_.begin(), steps_.end(), [&](const auto& step) { return step.id == id; });
    ASSERT_NE(at, steps_.end()) << "an abandoned step must be under way";
    Book& book = books_.at(at->request.value);
    for (auto& block : book.cells[at->stage]) {
      for (Cell& cell : block) cell.computing = false;
    }
    steps_.erase(at);
  }
  for (const Outcome& outcome : scheduler_.TakeOutcomes()) CheckOutcome(outcome);
}

void Ledger::CheckOutcome(const Outcome& outcome) {
  const Book& book = books_.at(outcome.request.value);
  for (size_t stage = 0; stage < book.cells.size() && !outcome.cancelled && !outcome.lost;
       ++stage) {
    for (size_t b = 0; b < book.cells[stage].size(); ++b) {
      for (uint16_t l = 0; l < book.cells[stage][b].size(); ++l) {
        const Cell& cell = book.cells[stage][b][l];
        ASSERT_TRUE(cell.there()) << "block " << b << " layer " << l << " is missing";
        const bool by_computing = l < outcome.stages[stage].depths[b];
        const bool landed =
            std::all_of(cell.landed.begin(), cell.landed.end(), [](bool each) { return each; });
        ASSERT_TRUE(by_computing ? cell.computed : landed)
            << "the outcome must say correctly whether the cell was computed or loaded";
      }
    }
  }
  outcomes_.push_back(outcome);
  books_.erase(outcome.request.value);
}

}  // namespace larder::testing
