#include "server/verbs/device_verbs.h"

#include <utility>

#include "absl/container/flat_hash_map.h"

namespace larder {
namespace {

// The names that the caller gave, each of which gets an answer, and the blocks; empty unless the
// scope is kBlocks.
struct Named {
  std::vector<Digest> names;
  DeviceVerbs::Blocks blocks;
};

Named NamedOf(const BlockScope& scope, const DeviceVerbs::Blocks& blocks) {
  if (scope.scope != wire::SelectionScope::kBlocks) return {};
  return {scope.blocks.names, blocks};
}

// Sets the answer for each name to the worst of that answer and the statuses of the name's blocks.
// If *answers is empty, first adds an answer kMissing for each name.
void AddAnswers(const Named& named, const std::vector<BlockStatus>& statuses,
                std::vector<wire::BlockAnswer>* answers) {
  if (named.names.empty()) return;
  absl::flat_hash_map<Digest, BlockStatus> by_name;
  for (size_t i = 0; i < named.blocks.size(); ++i) {
    BlockStatus& status = by_name.try_emplace(named.blocks[i].second, statuses[i]).first->second;
    status = Worse(status, statuses[i]);
  }
  if (answers->empty()) {
    for (const Digest& name : named.names) answers->push_back({.digest = name});
  }
  for (wire::BlockAnswer& answer : *answers) {
    const auto said = by_name.find(answer.digest);
    if (said != by_name.end()) answer.status = Worse(answer.status, said->second);
  }
}

void Count(BlockStatus said, bool pinned, wire::ClearResult* result) {
  switch (said) {
    case BlockStatus::kOk:
      ++result->device.blocks;
      return;
    case BlockStatus::kMissing:
      return;
    case BlockStatus::kKept:
      ++(pinned ? result->kept_in_use : result->kept_pinned);
      return;
    default:
      ++result->unanswered;
  }
}

void Count(BlockStatus said, wire::CompressProgress* progress) {
  ++progress->blocks_done;
  switch (said) {
    case BlockStatus::kOk:
      ++progress->changed;
      return;
    case BlockStatus::kMissing:
      ++progress->missing;
      return;
    case BlockStatus::kFull:
      ++progress->no_room;
      return;
    case BlockStatus::kKept:
    case BlockStatus::kPending:
      ++progress->kept_in_use;
      return;
    default:
      ++progress->unsupported;
  }
}

}  // namespace

absl::Status DeviceVerbs::Find(const BlockScope& scope, Blocks* blocks) const {
  ScopeMembers members;
  const absl::Status status = ScopeMembers::Find(scope, store_, disk_, &devices_, &members);
  *blocks = members.OnDevice(scope, devices_);
  return status;
}

void DeviceVerbs::Clear(const BlockScope& scope, const Drop& drop, Blocks blocks,
                        wire::ClearResult result,
                        std::function<void(const wire::ClearResult&)> done) {
  const size_t count = blocks.size();
  auto add = [named = NamedOf(scope, blocks), pinned = drop.pinned, result = std::move(result),
              done = std::move(done)](const std::vector<BlockStatus>& statuses) mutable {
    for (const BlockStatus said : statuses) Count(said, pinned, &result);
    AddAnswers(named, statuses, &result.blocks);
    done(result);
  };
  if (drop.dry_run) return add(std::vector<BlockStatus>(count, BlockStatus::kOk));
  directives_.Give(
      {.kind = wire::DirectiveKind::kDrop, .engine_id = scope.engine_id, .pinned = drop.pinned},
      std::move(blocks), std::move(add));
}

void DeviceVerbs::Compress(const BlockScope& scope, Codec codec, Blocks blocks,
                           wire::CompressProgress progress,
                           std::function<void(const wire::CompressProgress&)> done) {
  auto add = [named = NamedOf(scope, blocks), progress = std::move(progress),
              done = std::move(done)](const std::vector<BlockStatus>& statuses) mutable {
    for (const BlockStatus said : statuses) Count(said, &progress);
    AddAnswers(named, statuses, &progress.answers);
    done(progress);
  };
  directives_.Give(
      {.kind = wire::DirectiveKind::kCompress, .engine_id = scope.engine_id, .codec = codec},
      std::move(blocks), std::move(add));
}

}  // namespace larder
