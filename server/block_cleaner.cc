#include "server/block_cleaner.h"

#include <algorithm>
#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace larder {
namespace {

// Of a content: a block may enter, or leave and take with it what was known of those behind it,
// while all are looked at.
constexpr int kLooksMax = 8;
constexpr Duration kWriteLimit = std::chrono::seconds(20);
constexpr size_t kForgottenAtOnce = 1024;

void Count(const ClearedBlock& block, wire::ClearResult* result) {
  const ByteCount bytes(uint64_t{block.pages} * kPageBytes);
  for (const auto& [tier, to] :
       {std::pair(Tier::kHost, &result->host), std::pair(Tier::kDisk, &result->disk)}) {
    if ((block.tiers & TierBit(tier)) == 0) continue;
    ++to->blocks;
    to->bytes += bytes;
  }
  result->leased += block.leased ? 1 : 0;
}

}  // namespace

absl::Status BlockCleaner::Clear(const What& what, wire::ClearResult* result) {
  *result = {};
  if (disk_.work != nullptr && disk_.work->recovering()) {
    return absl::UnavailableError(
        "this daemon has just started and still finds out what is on its disk; try again");
  }
  const bool of_content = what.scope.scope == wire::SelectionScope::kContent;
  uint64_t cleared = 0;
  Leased leased;
  absl::Status status = ClearOnce(what, result, &leased, &cleared);
  for (int looks = 1; of_content && !what.dry_run && cleared > 0 && looks < kLooksMax; ++looks)
    status = ClearOnce(what, result, &leased, &cleared);
  if (what.dry_run) return status;
  counters_.blocks_cleared_host += result->host.blocks;
  counters_.blocks_cleared_disk += result->disk.blocks;
  if (disk_.work != nullptr) status.Update(ForgetOnDisk(leased));
  return status;
}

absl::Status BlockCleaner::ForgetOnDisk(const Leased& leased) {
  Spiller& spiller = disk_.work->spiller();
  absl::Status status;
  if (!spiller.WaitWritten(leased.in_host, std::chrono::steady_clock::now() + kWriteLimit))
    status =
        absl::UnavailableError("the disk is slow: what it writes just now may outlive a crash");
  for (size_t at = 0; at < leased.on_disk.size(); at += kForgottenAtOnce) {
    const std::span some = std::span(leased.on_disk).subspan(at);
    status.Update(disk_.tier->Forget(some.first(std::min(kForgottenAtOnce, some.size()))));
  }
  spiller.EraseRooms();
  status.Update(disk_.tier->SyncErasures());
  return status;
}

absl::Status BlockCleaner::ClearOnce(const What& what, wire::ClearResult* result, Leased* leased,
                                     uint64_t* cleared) {
  result->kept_pinned = result->kept_in_use = *cleared = 0;
  ScopeMembers members;
  absl::Status status = ScopeMembers::Find(what.scope, store_, disk_.tier, &members);
  if (what.pinned) status.Update(EndPins(members, what.dry_run, result));
  const auto clear = [&](VariantIndex variant, const Digest& digest) {
    const BlockStatus answer = ClearOne(what, variant, digest, result, leased);
    *cleared += answer == BlockStatus::kOk ? 1 : 0;
    return answer;
  };
  if (what.scope.scope != wire::SelectionScope::kBlocks) {
    members.ForEach(store_, clear);
    return status;
  }
  const SelectedBlocks& selected = what.scope.blocks;
  std::vector<BlockStatus> statuses;
  for (const SelectedBlocks::Block& block : selected.blocks)
    statuses.push_back(clear(block.variant, selected.names[block.name]));
  result->blocks = AnswersOf(selected, statuses);
  return status;
}

BlockStatus BlockCleaner::ClearOne(const What& what, VariantIndex variant, const Digest& digest,
                                   wire::ClearResult* result, Leased* leased) {
  ClearedBlock block = store_.Clear(variant, digest, what.tiers, what.dry_run);
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
  } else if (block.leased) {
    leased->in_host.emplace_back(variant, digest);
  }
  return BlockStatus::kOk;
}

// First, so that nothing that was to go is brought back by them.
absl::Status BlockCleaner::EndPins(const ScopeMembers& members, bool dry_run,
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
