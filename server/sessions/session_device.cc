// A session's device memory: what it says is there, and what it is asked to do with it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/instances/device_table.h"
#include "server/sessions/session.h"

namespace larder {
namespace {

// Of the blocks of a report, which are one chain.
absl::Status CheckChain(const wire::DeviceBlocks& report, uint32_t block_tokens) {
  if (report.tokens.empty()) return absl::OkStatus();
  if (!report.parent) return absl::InvalidArgumentError("tokens, and no parent");
  if (report.tokens.size() != report.stored.size() * block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: the variant has blocks of ", block_tokens));
  }
  const std::vector<Digest> chain = Chain(*report.parent, report.tokens);
  const size_t steps = block_tokens / kStepTokens;
  for (size_t i = 0; i < report.stored.size(); ++i) {
    if (chain[(i + 1) * steps - 1] == report.stored[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("stored: digest ", i, " does not follow from parent and tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

// Without the lock: hashing takes a while.
absl::Status AttachedSession::Handle(const wire::DeviceBlocks& report) {
  SessionVariant variant;
  {
    MutexLock lock(mu_);
    if (report.variant >= variants_.size())
      return absl::InvalidArgumentError("device_blocks.variant: not registered by this session");
    variant = variants_[report.variant];
  }
  if (absl::Status s = CheckChain(report, variant.block_tokens); !s.ok())
    return absl::InvalidArgumentError(absl::StrCat("device_blocks.", s.message()));
  if (!deps_.instances.IsOf(engine_id_, account_)) {
    deps_.counters.device_blocks_left_out += report.stored.size();
    return absl::OkStatus();
  }
  if (report.cleared) deps_.devices.Cleared(id_);
  deps_.devices.Removed(id_, variant.index, report.removed);
  deps_.counters.device_blocks_left_out += deps_.devices.Stored(
      id_, {variant.index, report.stored, report.parent.value_or(Digest()), report.tokens});
  return absl::OkStatus();
}

BlockStatus AttachedSession::Direct(VariantIndex variant, wire::Directive directive) {
  {
    MutexLock lock(mu_);
    if (!attached_ || closed_) return BlockStatus::kMissing;
    if (!directed_) return BlockStatus::kUnsupported;
    const auto it = std::ranges::find(variants_, variant, &SessionVariant::index);
    // An order that is of no blocks is of no variant.
    if (it == variants_.end() && !directive.digests.empty()) return BlockStatus::kMissing;
    if (it != variants_.end()) directive.variant = static_cast<uint32_t>(it - variants_.begin());
  }
  wire::Down down;
  down.directives.push_back(std::move(directive));
  Send(std::move(down));
  return BlockStatus::kOk;
}

}  // namespace larder
