#include "tests/e2e/storm/storm_chains.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace larder::e2e {
namespace {

using Clock = std::chrono::steady_clock;
// How far the daemon's wall clock may be ahead of the test's clock.
constexpr std::chrono::milliseconds kClockSlack{500};

std::string Name(StormState s) {
  std::string name;
  if ((s & kInHost) != 0) name += (s & kHostEncoded) != 0 ? "host(encoded) " : "host ";
  if ((s & kOnDisk) != 0) name += (s & kDiskEncoded) != 0 ? "disk(encoded) " : "disk ";
  if (Copies(s) == 0) name += "nowhere ";
  for (uint32_t owner = 0; owner < kOwners; ++owner) {
    if ((s & PinBit(owner, Tier::kHost)) != 0) absl::StrAppend(&name, "pin-host-", owner, " ");
    if ((s & PinBit(owner, Tier::kDisk)) != 0) absl::StrAppend(&name, "pin-disk-", owner, " ");
  }
  if ((s & kPrefetched) != 0) name += "prefetched ";
  return name;
}

StormCounts Sum(StormCounts a, const StormCounts& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Filters each block's outcomes: one stays if outcomes of the other blocks can complete it to
// `sums`.
class SumFilter {
 public:
  SumFilter(const std::vector<StormOutcomes>& all, const StormCounts& sums)
      : all_(all), sums_(sums), fits_(all.size()), kinds_(all.size()) {
    for (size_t i = 0; i < all.size(); ++i) {
      for (const StormOutcome& one : all[i]) kinds_[i].insert(one.counts);
    }
    (void)Try(0, {});
  }
  [[nodiscard]] std::vector<StormOutcomes> Left() const {
    std::vector<StormOutcomes> left(all_.size());
    for (size_t i = 0; i < all_.size(); ++i) {
      std::ranges::copy_if(all_[i], std::back_inserter(left[i]),
                           [&](const auto& one) { return fits_[i].contains(one.counts); });
    }
    return left;
  }

 private:
  bool Try(size_t i, const StormCounts& so_far) {
    for (size_t at = 0; at < so_far.size(); ++at) {
      if (so_far[at] > sums_[at]) return false;
    }
    if (i == all_.size()) return so_far == sums_;
    bool any = false;
    for (const StormCounts& kind : kinds_[i]) {
      if (!Try(i + 1, Sum(so_far, kind))) continue;
      fits_[i].insert(kind);
      any = true;
    }
    return any;
  }

  const std::vector<StormOutcomes>& all_;
  const StormCounts sums_;
  std::vector<std::set<StormCounts>> fits_, kinds_;
};

}  // namespace

ContentSpec StormContent(const std::string& name) {
  ContentSpec content = BlockMaker().content;
  content.model = name;
  return content;
}

ContentSpec WithoutTenant(ContentSpec content) {
  content.tenant.clear();
  return content;
}

VariantSpec StormVariant() {
  VariantSpec variant = BlockMaker().variant;
  variant.layout = "storm/rows/1";
  return variant;
}

StormChain::StormChain(size_t the_number)
    : number(the_number),
      content(StormContent(absl::StrCat("storm-", number))),
      seed(content.Id()),
      blocks(kChainBlocks) {
  Digest parent = seed;
  for (uint32_t i = 0; i < kChainBlocks; ++i) {
    TestBlock& names = blocks[i].names;
    names.parent = parent;
    for (uint32_t t = 0; t < kStepTokens; ++t) names.tokens.push_back(i * kStepTokens + t);
    parent = names.digest = Chain(parent, names.tokens).back();
  }
}

StormAround StormChain::Around(const Block& block) const {
  std::vector<StormLaw> late = block.late;
  late.insert(late.end(), block.later.begin(), block.later.end());
  return {.held = !block.holders.empty(),
          .pressure = pressure_,
          .may_promote = block.may_promote,
          .prefetch_over = Clock::now() + kClockSlack >= block.prefetch_end,
          .recoded = block.recoded,
          .late = std::move(late)};
}

void StormChain::LetTimePass(const Block& block, Possible* possible) const {
  possible->LetTimePass(Around(block));
}

std::vector<StormOutcomes> StormChain::Outcomes(const StormLaw& law, std::span<const Asked> asked,
                                                bool answers) {
  std::vector<StormOutcomes> all;
  for (const Asked& one : asked) {
    Block& block = blocks[one.block];
    const StormAround around = Around(block);
    LetTimePass(block, &block.possible);
    StormOutcomes& outcomes = all.emplace_back();
    for (const StormState s : block.possible.States()) {
      const bool left_out = one.stored_only && Copies(s) == 0;
      if (one.maybe || left_out) outcomes.push_back({s, 0, {}});
      if (left_out) continue;
      for (const StormOutcome& outcome : law(s, around)) {
        if (!answers || !one.answer || *one.answer == outcome.answer) outcomes.push_back(outcome);
      }
    }
  }
  return all;
}

void StormChain::Become(Block& block, const StormOutcomes& outcomes) {
  std::vector<StormState> next;
  for (const StormOutcome& outcome : outcomes) next.push_back(outcome.next);
  block.ghost = block.ghost || pressure_;
  block.possible.Set(next);
  // If the block may have left HOST, no lease certainly holds it any more.
  if (block.possible.Ever([](StormState s) { return (s & kInHost) == 0; })) block.holders.clear();
}

void StormChain::Remember(const std::string& what, std::span<const Asked> asked,
                          const std::optional<StormCounts>& sums) {
  constexpr size_t kRemembered = 24;
  std::string line = what + ":";
  for (const Asked& one : asked) {
    absl::StrAppend(&line, " ", one.block);
    if (one.answer) absl::StrAppend(&line, "=", *one.answer);
  }
  if (sums) line += ", sums";
  for (size_t i = 0; sums && i < sums->size(); ++i) absl::StrAppend(&line, " ", (*sums)[i]);
  latest_.push_back(std::move(line));
  if (latest_.size() > kRemembered) latest_.pop_front();
}

std::string StormChain::Settle(const std::string& what, const StormLaw& law,
                               std::span<const Asked> asked,
                               const std::optional<StormCounts>& sums) {
  Remember(what, asked, sums);
  std::vector<StormOutcomes> all = Outcomes(law, asked, true);
  if (sums) all = SumFilter(all, *sums).Left();
  for (size_t i = 0; i < asked.size(); ++i) {
    if (!all[i].empty()) continue;
    std::string wrong = absl::StrCat("chain ", number, ", call by call:");
    for (const std::string& line : latest_) absl::StrAppend(&wrong, "\n  ", line);
    absl::StrAppend(&wrong, "\n  while the model allows");
    for (const Asked& one : asked)
      absl::StrAppend(&wrong, "\n  block ", one.block, ": ", Describe(one.block));
    return wrong;
  }
  for (size_t i = 0; i < asked.size(); ++i) Become(blocks[asked[i].block], all[i]);
  return "";
}

void StormChain::SettleUnknown(const std::string& what, const StormLaw& law,
                               std::span<const Asked> asked) {
  Remember(what + ", no answer", asked, {});
  std::vector<StormOutcomes> all = Outcomes(law, asked, false);
  for (size_t i = 0; i < asked.size(); ++i) {
    Block& block = blocks[asked[i].block];
    for (const StormState s : block.possible.States()) all[i].push_back({s, 0, {}});
    block.may_promote = block.ghost = block.recoded = true;
    block.holders.clear();
    block.later.push_back(law);
    Become(block, all[i]);
  }
}

std::vector<StormChain::Asked> StormChain::Below(size_t prefix) const {
  std::vector<Asked> below;
  bool hole = false, maybe = false;  // there is, or may be, a hole between the prefix and block i
  for (size_t i = prefix == 0 ? 0 : prefix - 1; i < blocks.size() && !hole; ++i) {
    const bool named = prefix > 0 && i == prefix - 1;
    below.push_back({.block = i, .answer = {}, .maybe = maybe, .stored_only = !named});
    if (prefix == 0 || named) continue;
    Possible now = blocks[i].possible;
    LetTimePass(blocks[i], &now);
    const auto gone = [](StormState s) { return Copies(s) == 0; };
    hole = now.Always(gone);
    maybe = maybe || now.Ever(gone);
  }
  return below;
}

void StormChain::SettlePut(size_t block, std::optional<BlockStatus> answer, uint32_t writer) {
  Block& put = blocks[block];
  if (!answer) {
    put.writers.insert(writer);
  } else if (*answer == BlockStatus::kOk) {
    put.former_writers.merge(put.writers);
    put.writers = {writer};
  }
}

std::string StormChain::SettleWriter(size_t block, uint32_t writer) {
  Block& given = blocks[block];
  const bool known = given.writers.contains(writer);
  given.writers = {writer};
  if (known) return "";
  return absl::StrCat("chain ", number, ", block ", block, " has the bytes of another writer (",
                      writer, ") than the first one whose put was accepted");
}

void StormChain::EndRound() {
  for (Block& block : blocks) {
    block.may_promote = block.recoded = false;
    block.late = std::exchange(block.later, {});
  }
}

void StormChain::Crash() {
  Remember("another daemon", {}, {});
  ForgetDevice();
  for (Block& block : blocks) {
    LetTimePass(block, &block.possible);
    block.possible.Crash(block.ghost);
    if (block.ghost) block.writers.insert(block.former_writers.begin(), block.former_writers.end());
    block.holders.clear();
    block.late.clear();
    block.later.clear();
    block.may_promote = block.recoded = false;
  }
}

void StormChain::ForgetDevice() {
  for (Block& block : blocks) block.device = {};
}

std::vector<uint32_t> StormChain::Tokens(size_t count) const {
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.insert(tokens.end(), blocks[i].names.tokens.begin(), blocks[i].names.tokens.end());
  return tokens;
}

std::string StormChain::Owner(uint32_t owner) const {
  return absl::StrCat("owner-", owner, "/", number);
}

bool StormChain::held() const {
  return std::ranges::any_of(blocks, [](const Block& block) { return !block.holders.empty(); });
}

std::string StormChain::Describe(size_t block) const {
  std::string all;
  size_t count = 0;
  for (const StormState s : blocks[block].possible.States()) {
    if (++count <= 6) absl::StrAppend(&all, count == 1 ? "" : "| ", Name(s));
  }
  if (count > 6) absl::StrAppend(&all, "| ", count - 6, " more");
  if (!blocks[block].holders.empty()) all += "held";
  return all;
}

StormChains::StormChains() : lent_(kChains) {
  for (size_t i = 0; i < kChains; ++i) chains_.push_back(std::make_unique<StormChain>(i));
}

StormChains::Loan StormChains::Borrow(StormRandom& random) {
  MutexLock lock(mu_);
  for (size_t i = random();; ++i) {
    if (lent_[i % kChains]) continue;
    lent_[i % kChains] = true;
    return {*this, *chains_[i % kChains]};
  }
}

StormChains::Loan StormChains::BorrowThis(size_t number) {
  MutexLock lock(mu_);
  while (lent_[number]) returned_.Wait(mu_);
  lent_[number] = true;
  return {*this, *chains_[number]};
}

void StormChains::Return(const StormChain& chain) {
  MutexLock lock(mu_);
  lent_[chain.number] = false;
  returned_.NotifyAll();
}

}  // namespace larder::e2e
