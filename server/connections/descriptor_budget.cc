#include "server/connections/descriptor_budget.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

// A uid may have about half of the connections.  A process may have a 64th of its uid's, but at
// least 8 (or all of them if the uid has fewer), and at most per_process_max, which is at least 8.
ConnectionShares::Limits SharesOf(size_t all, size_t per_process_max) {
  const size_t per_uid = std::max<size_t>(all / 2, 1);
  const size_t per_process = std::clamp<size_t>(per_uid / 64, 8, per_process_max);
  return {.all = all, .per_uid = per_uid, .per_process = std::min(per_process, per_uid)};
}

void LetProcessHave(size_t wanted, ConnectionShares::Limits* limits) {
  limits->per_process = std::min(wanted, limits->all);
  limits->per_uid = std::max(limits->per_uid, limits->per_process);
}

}  // namespace

absl::StatusOr<DescriptorBudget> ShareOutDescriptors(const DescriptorNeeds& needs) {
  using B = DescriptorBudget;
  const size_t kept = needs.in_use + needs.files + B::kKeptMin + needs.limit / 16;
  if (needs.limit < kept + B::kFreeMin) {
    return absl::FailedPreconditionError(absl::StrCat(
        "at most ", needs.limit, " files may be open, and the daemon itself may need ", kept,
        ": raise the limit (LimitNOFILE, ulimit -n) to ", kept * 16 / 15 + 2 * B::kFreeMin));
  }
  const size_t free = needs.limit - kept;
  B budget;
  const size_t share = free * 3 / 10;
  budget.control = SharesOf(std::min(share / 8, B::kControlMax), 64);
  budget.control.per_uid = budget.control.all;  // users of control.sock are trusted with the cache
  budget.data = SharesOf(std::min(share - share / 8, B::kDataMax), 32);
  budget.admin = SharesOf(std::min(free / 10, B::kAdminMax), 8);
  budget.admin.per_uid = budget.admin.all;  // admin.sock is for the operator
  // A session may take two descriptors, its session socket and its page, and so may a connection of
  // the sideband: its socket and the pidfd of its process.
  budget.sessions_max = std::min(needs.sessions_max, share / 2);
  budget.sideband = SharesOf(std::min(2 * needs.sessions_max, share / 2), 16);
  budget.sideband.others_option = "--sessions-max and LimitNOFILE (ulimit -n)";
  budget.data.process_option = budget.sideband.process_option = "--connections-per-process";
  if (needs.connections_per_process > 0) {
    LetProcessHave(needs.connections_per_process, &budget.data);
    LetProcessHave(needs.connections_per_process, &budget.sideband);
  }
  return budget;
}

size_t OpenDescriptors() {
  DIR* const dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  size_t count = 0;
  while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(dir);
  return count == 0 ? 0 : count - 1;  // without the descriptor of `dir`
}

size_t DescriptorLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

}  // namespace larder
