// LARDER_CHECK(condition): our own broken invariants end the process with the place and the words.
//
// For what only a bug can break.  Whatever a client, disk, peer, driver or configuration can cause
// is a Status.
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
