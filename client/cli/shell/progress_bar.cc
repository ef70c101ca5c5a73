#include "client/cli/shell/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/shell/table.h"
#include "client/cli/shell/terminal.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenDrawings{100};

}  // namespace

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), on_(IsTerminal(STDERR_FILENO)), begun_(Clock::now()) {}

void ProgressBar::Show(const Done& done) {
  if (!on_ || (shown_ && Clock::now() - drawn_ < kBetweenDrawings)) return;
  drawn_ = Clock::now();
  shown_ = true;
  // The last column stays free: some terminals begin a new line after writing to it.
  std::fprintf(stderr, "\r%s\x1b[K", Line(done, ColumnsOf(STDERR_FILENO) - 1).c_str());
  std::fflush(stderr);
}

void ProgressBar::Hide() {
  if (!std::exchange(shown_, false)) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

std::string ProgressBar::Line(const Done& done, size_t width) const {
  const double share =
      done.bytes_of > 0    ? static_cast<double>(done.bytes) / static_cast<double>(done.bytes_of)
      : done.blocks_of > 0 ? static_cast<double>(done.blocks) / static_cast<double>(done.blocks_of)
                           : 0;
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
  std::string right = absl::StrFormat(" %3.0f %%  %s of %s", 100 * std::min(share, 1.0),
                                      FormatCount(done.blocks), FormatCount(done.blocks_of));
  if (done.bytes > 0 && seconds > 0)
    absl::StrAppend(&right, "  ", FormatBytes(static_cast<double>(done.bytes) / seconds), "/s");
  if (share > 0.01 && share < 1)
    absl::StrAppend(&right, "  ", FormatSeconds(seconds * (1 - share) / share), " left");
  const size_t taken = what_.size() + 1 + right.size() + 2;
  if (taken + 5 > width) return Cut(absl::StrCat(what_, right), width);
  const size_t room = std::min<size_t>(width - taken, 40);
  const auto full = std::min(room, static_cast<size_t>(share * static_cast<double>(room)));
  return absl::StrCat(what_, " [", std::string(full, '#'), std::string(room - full, '.'), "]",
                      right);
}

}  // namespace larder::cli
