#include "server/sessions/session_device.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/instances/device_table.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// Checks the stored blocks of a report, which must be one chain if the report has tokens.
absl::Status CheckChain(const wire::DeviceBlocks& report, uint32_t block_tokens) {
  if (report.tokens.empty()) return absl::OkStatus();
  if (!report.parent)
    return absl::InvalidArgumentError("device_blocks.tokens: sent without a parent");
  if (report.tokens.size() != report.stored.size() * block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_blocks.tokens: the variant has blocks of ", block_tokens));
  }
  const std::vector<Digest> chain = Chain(*report.parent, report.tokens);
  const size_t steps = block_tokens / kStepTokens;
  for (size_t i = 0; i < report.stored.size(); ++i) {
    if (chain[(i + 1) * steps - 1] == report.stored[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat("device_blocks.stored: digest ", i,
                                                   " does not follow from parent and tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SessionDevice::Report(const wire::DeviceBlocks& report) {
  const std::optional<SessionVariant> variant = registered_.Find(report.variant);
  if (!variant)
    return absl::InvalidArgumentError("device_blocks.variant: not registered by this session");
  LARDER_RETURN_IF_ERROR(CheckChain(report, variant->block_tokens));
  SessionDeps& deps = context_.deps;
  if (!deps.instances.IsOf(context_.engine_id, context_.account)) {
    deps.counters.device_blocks_left_out += report.stored.size();
    return absl::OkStatus();
  }
  if (report.cleared) deps.devices.Cleared(context_.id);
  deps.devices.Removed(context_.id, variant->index, report.removed);
  deps.counters.device_blocks_left_out += deps.devices.Stored(
      context_.id,
      {variant->index, report.stored, report.parent.value_or(Digest()), report.tokens});
  return absl::OkStatus();
}

BlockStatus SessionDevice::Direct(VariantIndex variant, wire::Directive directive) {
  if (!takes_directives_) return BlockStatus::kUnsupported;
  const std::optional<uint32_t> number = registered_.NumberOf(variant);
  // A directive about no blocks needs no variant.
  if (!number && !directive.digests.empty()) return BlockStatus::kMissing;
  if (number) directive.variant = *number;
  wire::Down down;
  down.directives.push_back(std::move(directive));
  context_.outlet.Send(std::move(down));
  return BlockStatus::kOk;
}

}  // namespace larder
