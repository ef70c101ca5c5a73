// LARDER_CHECK(condition) aborts the process if an invariant of our own code is broken, and prints
// the file, the line and the condition.
//
// Only a bug may break such a condition.  An error that a client, disk, peer, driver or
// configuration can cause is returned as a Status.
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
