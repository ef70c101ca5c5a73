#include "client/paged_restore.h"

#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {

absl::StatusOr<std::vector<BlockStatus>> PagedRestore::Land(ChannelId channel,
                                                            std::span<const uint32_t> blocks,
                                                            const CallOptions& call) {
  const size_t cache = static_cast<size_t>(channel) - 1;
  if (cache >= caches_.size())
    return absl::InvalidArgumentError(
        absl::StrCat("PagedRestore has no paged cache for channel ", cache + 1));
  std::vector<PagedGet> wanted;
  for (const uint32_t block : blocks) wanted.push_back(blocks_[block]);
  const auto deadline = SteadyNow() + call.deadline;
  LARDER_ASSIGN_OR_RETURN(PagedLoad load, caches_[cache]->Load(wanted, layers_, pages_free_, call));
  // Only copies by the device are still under way, and they end soon, so the wait ignores a stop
  // that the restorer requests.
  return load.Wait(deadline);
}

}  // namespace larder
