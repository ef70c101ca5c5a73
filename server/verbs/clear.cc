#include "server/verbs/clear.h"

#include <algorithm>
#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// The most passes over the blocks of a content.  More than one may be needed: during a pass a block
// may be stored, or a block may leave that links the blocks behind it to the content.
constexpr int kLooksMax = 8;
constexpr Duration kWriteLimit = std::chrono::seconds(20);
constexpr size_t kForgottenAtOnce = 1024;

void Count(const ClearedBlock& block, wire::ClearResult* result) {
  const ByteCount bytes = BytesOfPages(block.pages);
  for (const auto& [tier, to] :
       {std::pair(Tier::kHost, &result->host), std::pair(Tier::kDisk, &result->disk)}) {
    if ((block.tiers & TierBit(tier)) == 0) continue;
    ++to->blocks;
    to->bytes += bytes;
  }
  result->leased += block.leased ? 1 : 0;
}

}  // namespace

absl::Status ClearVerb::Clear(const What& what, wire::ClearResult* result) {
  *result = {};
  if (disk_.work != nullptr) {
    LARDER_RETURN_IF_ERROR(disk_.CheckReady());
  }
  const bool of_content = what.scope.scope == wire::SelectionScope::kContent;
  uint64_t cleared = 0;
  Leased leased;
  absl::Status status = ClearOnce(what, result, &leased, &cleared);
  for (int looks = 1; of_content && !what.dry_run && looks < kLooksMax; ++looks) {
    status = ClearOnce(what, result, &leased, &cleared);
    if (cleared == 0) break;
  }
  if (what.dry_run) return status;
  counters_.blocks_cleared_host += result->host.blocks;
  counters_.blocks_cleared_disk += result->disk.blocks;
  if (disk_.work != nullptr) status.Update(ForgetOnDisk(std::move(leased)));
  return status;
}

absl::Status ClearVerb::ForgetOnDisk(Leased leased) {
  MutexLock lock(owed_mu_);
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(owed_.on_disk, leased.on_disk);
  append(owed_.held, leased.held);
  append(owed_.names, leased.names);
  absl::Status status = ForgetOwed();
  disk_.work->spiller().EraseFreedExtents();
  status.Update(disk_.tier->SyncErasures());
  if (!disk_.work->all_known())
    status.Update(absl::UnavailableError(
        "a part of the disk is not read yet and may have more of these blocks: call again later"));
  return status;
}

absl::Status ClearVerb::ForgetOwed() {
  const TimePoint until = SteadyNow() + kWriteLimit;
  if (!disk_.work->spiller().WaitWritten(owed_.names, until))
    return absl::UnavailableError(
        "the disk is slow: blocks that it is writing may come back after a crash; call again "
        "later");
  owed_.names.clear();
  while (!owed_.on_disk.empty()) {
    const size_t count = std::min(kForgottenAtOnce, owed_.on_disk.size());
    const size_t left = owed_.on_disk.size() - count;
    LARDER_RETURN_IF_ERROR(disk_.tier->Forget(std::span(owed_.on_disk).subspan(left)));
    store_.Unhold(std::span(owed_.held).subspan(left));
    owed_.on_disk.resize(left);
    owed_.held.resize(left);
  }
  return absl::OkStatus();
}

ClearVerb::~ClearVerb() {
  MutexLock lock(owed_mu_);
  store_.Unhold(owed_.held);
}

absl::Status ClearVerb::ClearOnce(const What& what, wire::ClearResult* result, Leased* leased,
                                  uint64_t* cleared) {
  result->kept_pinned = result->kept_in_use = *cleared = 0;
  ScopeMembers members;
  absl::Status status = ScopeMembers::Find(what.scope, store_, disk_.tier, nullptr, &members);
  if (what.pinned) status.Update(EndPins(members, what.dry_run, result));
  const auto clear = [&](VariantIndex variant, const Digest& digest) {
    const BlockStatus answer = ClearOne(what, variant, digest, result, leased);
    *cleared += answer == BlockStatus::kOk ? 1 : 0;
    return answer;
  };
  if (what.scope.scope != wire::SelectionScope::kBlocks) {
    members.ForEach(store_, [&](const BlockIndex::View& block) {
      if (InATier(block.state)) (void)clear(block.variant, block.digest);
    });
    return status;
  }
  const SelectedBlocks& selected = what.scope.blocks;
  // A block that is named twice is cleared, and counted, once.
  absl::flat_hash_map<std::pair<VariantIndex, Digest>, BlockStatus> answers;
  std::vector<BlockStatus> statuses;
  for (const SelectedBlocks::Block& block : selected.blocks) {
    const std::pair name(block.variant, selected.names[block.name]);
    const auto [answer, first] = answers.try_emplace(name, BlockStatus::kMissing);
    if (first) answer->second = clear(name.first, name.second);
    statuses.push_back(answer->second);
  }
  result->blocks = AnswersOf(selected, statuses);
  return status;
}

BlockStatus ClearVerb::ClearOne(const What& what, VariantIndex variant, const Digest& digest,
                                wire::ClearResult* result, Leased* leased) {
  ClearedBlock block =
      store_.Clear(variant, digest, what.tiers, what.dry_run ? ClearHow::kDryRun : ClearHow::kAll);
  using Status = ClearedBlock::Status;
  if (block.status == Status::kPinned && what.dry_run && what.pinned)
    block.status = Status::kCleared;
  switch (block.status) {
    case Status::kMissing:
      return BlockStatus::kMissing;
    case Status::kPinned:
      ++result->kept_pinned;
      return BlockStatus::kKept;
    case Status::kInUse:
      ++result->kept_in_use;
      return BlockStatus::kKept;
    case Status::kCleared:
      break;
  }
  Count(block, result);
  if (block.leased_location != 0) {
    leased->on_disk.push_back(
        {{store_.index().VariantId(variant), digest}, DiskLocation{block.leased_location}});
    leased->held.push_back(block.held);
  }
  if (block.leased) leased->names.emplace_back(variant, digest);
  return BlockStatus::kOk;
}

// Called before the blocks are cleared, so that their pins do not keep them or bring them back.
absl::Status ClearVerb::EndPins(const ScopeMembers& members, bool dry_run,
                                wire::ClearResult* result) {
  if (dry_run) {
    for (const Pin& pin : store_.pins().All())
      result->pins_ended += members.Contains(pin.key.variant, pin.key.digest) ? 1 : 0;
    return absl::OkStatus();
  }
  const auto ended = std::make_shared<std::promise<absl::Status>>();
  pins_.UnpinBlocks(
      [&](VariantIndex variant, const Digest& digest) { return members.Contains(variant, digest); },
      [ended, result](const absl::Status& written, const std::vector<BlockStatus>& pins) {
        result->pins_ended += pins.size();
        ended->set_value(written);
      });
  return ended->get_future().get();
}

}  // namespace larder
