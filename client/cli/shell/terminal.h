// What the streams of the program are: a terminal of some width, or not.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>

namespace larder::cli {

[[nodiscard]] bool IsTerminal(int fd);
// 0: no terminal, so as wide as it gets.  At least 20.
[[nodiscard]] size_t ColumnsOf(int fd);
// For text that is made to be read: 80, or less on a narrower terminal.
[[nodiscard]] size_t PageColumns(int fd);

}  // namespace larder::cli
