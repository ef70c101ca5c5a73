// A disk that takes no more bytes for a while.
#pragma once

#include <sys/resource.h>

#include <csignal>

#include "storage/check.h"

namespace larder::testing {

// While this object lives, no file of this process can grow, as on a disk that has failed.
class NoFileGrows {
 public:
  NoFileGrows() {
    LARDER_CHECK(getrlimit(RLIMIT_FSIZE, &former_) == 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    const rlimit none{.rlim_cur = 1, .rlim_max = former_.rlim_max};
    LARDER_CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~NoFileGrows() {
    LARDER_CHECK(setrlimit(RLIMIT_FSIZE, &former_) == 0);
    (void)signal(SIGXFSZ, SIG_DFL);
  }
  NoFileGrows(const NoFileGrows&) = delete;
  NoFileGrows& operator=(const NoFileGrows&) = delete;

 private:
  rlimit former_{};
};

}  // namespace larder::testing
