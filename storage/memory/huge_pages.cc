#include "storage/memory/huge_pages.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>

#include "storage/check.h"
#include "storage/types.h"

// The headers of Debian 12 are older than these.
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef PR_THP_DISABLE_EXCEPT_ADVISED
#define PR_THP_DISABLE_EXCEPT_ADVISED (1 << 1)
#endif

namespace larder {
namespace {

// Returns whether the host's administrator has chosen `setting`: "always", "madvise" or "never".
bool HostIsSetTo(const std::string& setting) {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string settings;
  return std::getline(file, settings) && settings.find("[" + setting + "]") != std::string::npos;
}

}  // namespace

void UseHugePages(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  LARDER_CHECK(address % kPageBytes == 0);
  // MADV_COLLAPSE makes huge pages whatever the setting is.
  static const bool unwanted = HostIsSetTo("never");
  if (unwanted) return;
  const bool kernel_collapses = madvise(memory.data(), 0, MADV_COLLAPSE) == 0;
  if (!kernel_collapses) {
    (void)madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
    return;
  }
  // MADV_COLLAPSE fails where no page is present.
  const size_t first = RoundUp(address, kHugePageBytes) - address;
  for (size_t at = first; at + kHugePageBytes <= memory.size(); at += kHugePageBytes) {
    (void)madvise(memory.data() + at, kPageBytes, MADV_POPULATE_WRITE);
  }
  // EAGAIN says that a page was in use for a moment.
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    if (madvise(memory.data(), memory.size(), MADV_COLLAPSE) == 0 || errno != EAGAIN) return;
  }
}

bool RefuseOtherHugePages() {
  constexpr unsigned long kExcept = PR_THP_DISABLE_EXCEPT_ADVISED;
  return prctl(PR_SET_THP_DISABLE, 1UL, kExcept, 0UL, 0UL) == 0 || !HostIsSetTo("always");
}

}  // namespace larder
