#include "client/cli/shell/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace larder::cli {

bool IsTerminal(int fd) { return isatty(fd) == 1; }

size_t ColumnsOf(int fd) {
  constexpr size_t kLeast = 20, kUnsaid = 80;
  if (!IsTerminal(fd)) return 0;
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUnsaid;
  return std::max<size_t>(size.ws_col, kLeast);
}

size_t PageColumns(int fd) {
  constexpr size_t kPage = 80;
  const size_t columns = ColumnsOf(fd);
  return columns == 0 ? kPage : std::min(columns, kPage);
}

}  // namespace larder::cli
