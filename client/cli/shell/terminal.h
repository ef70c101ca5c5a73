// Whether a stream of the program is a terminal, and how wide the terminal is.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>

namespace larder::cli {

[[nodiscard]] bool IsTerminal(int fd);
// Returns 0, which means no limit, if `fd` is no terminal; otherwise its columns, at least 20.
[[nodiscard]] size_t ColumnsOf(int fd);
// The width of running text: 80 columns, or fewer on a narrower terminal.
[[nodiscard]] size_t PageColumns(int fd);

}  // namespace larder::cli
