#include "tests/e2e/storm/storm_engine_actor.h"

#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "absl/strings/str_cat.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kPressing = 8;

// A draining daemon grants nothing any more: kCancelled counts as no answer.
absl::Status StatusOf(const absl::StatusOr<BlockStatus>& answer) {
  if (answer.ok() && *answer == BlockStatus::kCancelled)
    return absl::CancelledError("the daemon drains");
  return answer.status();
}

}  // namespace

std::vector<ContentSpec> StormContents(StormWorld& world) {
  std::vector<ContentSpec> contents = {OpenContent()};
  for (const auto& chain : world.chains.all()) contents.push_back(chain->content);
  return contents;
}

void StormSessionActor::Run() {
  const auto park = [this](bool another) {
    if (another) Disconnect();
  };
  while (world_.gate.Pass(park)) {
    if (!engine_.connected() && !Connect()) continue;
    if (world_.tally.EnginesAhead()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (held_.size() > 3 || (!held_.empty() && random_() % 12 == 0)) ReleaseOldest();
    random_() % 100 < 60 ? StepOnChain() : StepOnOpen();
    if (random_() % 500 == 0) Disconnect();  // the next session may have other modes
  }
  Disconnect();
}

bool StormSessionActor::Connect() {
  constexpr std::array kModes = {WriteMode::kMapped, WriteMode::kStaged, WriteMode::kStream};
  const absl::Status status =
      engine_.Connect(world_.folder->path(), kStormEngineId, StormContents(world_),
                      kModes[random_() % kModes.size()], random_() % 2 == 0);
  if (world_.Answered(status, "attach")) return true;
  engine_.Disconnect();
  return false;
}

void StormSessionActor::Disconnect() {
  while (!held_.empty() && !world_.gate.stopping()) ReleaseOldest();
  held_.clear();
  engine_.Disconnect();
}

void StormSessionActor::ReleaseOldest() {
  const auto [number, index] = held_.front();
  held_.pop_front();
  const StormChains::Loan chain = world_.chains.BorrowThis(number);
  chain->blocks[index].holders.erase(engine_.held().front().id);
  if (!engine_.Release() && !world_.gate.stopping())
    world_.tally.Differs(absl::StrCat("a lease of chain ", number, " was revoked"));
}

bool StormSessionActor::Settle(StormChain& chain, size_t block, const StormLaw& law,
                               const absl::StatusOr<BlockStatus>& answer, const char* what) {
  StormChain::Asked asked = {.block = block};
  if (!world_.Answered(StatusOf(answer), what)) {
    chain.SettleUnknown(what, law, {&asked, 1});
    return false;
  }
  asked.answer = static_cast<int>(*answer);
  const std::string wrong = chain.Settle(what, law, {&asked, 1});
  if (!wrong.empty()) world_.tally.Differs(wrong);
  return true;
}

void StormSessionActor::StepOnChain() {
  bool gone = false;
  {
    const StormChains::Loan chain = world_.chains.Borrow(random_);
    const size_t index = random_() % kChainBlocks;
    StormChain::Block& block = chain->blocks[index];
    const uint64_t draw = random_() % 10;
    if (draw < 5) {
      world_.tally.Count(StormVerb::kPut);
      const auto answer = engine_.Put(chain->seed, {&block.names, 1}, kChainLayerBytes);
      gone = !Settle(*chain, index, PutLaw(), answer, "put");
      chain->SettlePut(index, gone ? std::nullopt : std::optional(*answer), engine_.writer());
    } else if (draw < 9 || engine_.streams()) {
      world_.tally.Count(StormVerb::kGet);
      uint32_t writer = 0;
      const auto answer = engine_.Get(block.names, kChainLayerBytes, &writer);
      gone = !Settle(*chain, index, GetLaw(engine_.streams()), answer, "get");
      if (!gone && *answer == BlockStatus::kOk) {
        const std::string wrong = chain->SettleWriter(index, writer);
        if (!wrong.empty()) world_.tally.Differs(wrong);
      }
    } else {
      world_.tally.Count(StormVerb::kLease);
      const uint64_t id = next_id_++;
      const auto answer = engine_.Hold(block.names, kChainLayerBytes, id);
      gone = !Settle(*chain, index, GetLaw(false), answer, "acquire");
      if (!gone && *answer == BlockStatus::kOk) {
        held_.emplace_back(chain->number, index);
        // The lease on an encoded block may hold decoded bytes in another extent, not the block.
        if (block.possible.Always([](StormState s) { return (s & kHostEncoded) == 0; }))
          block.holders.insert(id);
      }
    }
  }
  if (gone) Disconnect();
}

// In a stormy round it puts many at once, which is what makes pool and disk evict.
void StormSessionActor::StepOnOpen() {
  const uint32_t numbers = world_.pressure ? kOpenStorm : kOpenCalm;
  const bool put = random_() % (world_.pressure ? 4 : 2) != 0;
  std::vector<TestBlock> blocks;
  const auto first = static_cast<uint32_t>(random_() % numbers);
  for (uint32_t i = 0; i < (put && world_.pressure ? kPressing : 1); ++i)
    blocks.push_back(OpenBlock((first + i) % numbers));
  world_.tally.Count(put ? StormVerb::kPut : StormVerb::kGet);
  const auto answer = put ? engine_.Put(OpenContent().Id(), blocks, kOpenLayerBytes)
                          : engine_.Get(blocks[0], kOpenLayerBytes);
  if (!world_.Answered(StatusOf(answer), put ? "put, open" : "get, open")) return Disconnect();
  const bool known = *answer == BlockStatus::kOk || *answer == BlockStatus::kFull ||
                     *answer == (put ? BlockStatus::kDuplicate : BlockStatus::kMissing);
  if (!known)
    world_.tally.Differs(
        absl::StrCat(put ? "put" : "get", " of an open block: ", ToString(*answer)));
}

void StormChildActor::Run() {
  while (world_.gate.Pass([this](bool) { Kill(); })) {
    if (child_ == nullptr) Start();
    if (!child_->Hear()) {
      LookWhyItEnded();
      continue;
    }
    world_.tally.child_steps += kStormChildSteps;
    if (--lines_left_ > 0) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 5'000));
    Kill();
  }
  Kill();
}

void StormChildActor::Start() {
  constexpr std::array kModes = {"mapped", "mapped", "staged", "stream"};
  child_ = std::make_unique<ChildEngine>(*world_.daemon, kModes[random_() % kModes.size()],
                                         world_.pressure ? "storm" : "calm",
                                         static_cast<uint32_t>(random_()), STORM_ENGINE_PATH);
  lines_left_ = 1 + random_() % 20;
}

void StormChildActor::Kill() {
  if (child_ == nullptr) return;
  static_cast<void>(child_->KillAndProve());
  if (child_->Wait() != 128 + SIGKILL) {
    LookWhyItEnded();
  } else {
    ++world_.children_killed;
  }
  child_.reset();
}

void StormChildActor::LookWhyItEnded() {
  const int code = child_->Wait();
  child_.reset();
  if (code == 4 && world_.gate.stopping()) return;
  const std::string what = absl::StrCat("an engine process ended with ", code);
  code == 3 ? world_.tally.WrongBytes(what) : world_.tally.Differs(what);
}

}  // namespace larder::e2e
