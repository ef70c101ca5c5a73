// LARDER_CHECK(condition) does nothing if `condition` is true.  Otherwise it prints the file, the
// line and the condition to stderr and aborts the process.
//
// To be used only where nothing but a bug of Larder's own code can make the condition false.  Code
// returns an error for what a client, disk, peer, driver or configuration can cause.
#pragma once

#include <cstdio>
#include <cstdlib>

#define LARDER_CHECK(condition)                                                              \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: invariant broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
