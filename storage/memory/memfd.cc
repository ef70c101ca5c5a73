#include "storage/memory/memfd.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

// This flag is newer than the C library's headers on the oldest host that we build on.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace larder {

int OpenMemfd(const char* name, unsigned flags) {
  flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Some hosts are configured to require MFD_NOEXEC_SEAL; kernels before 6.3 reject it with EINVAL.
  int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, flags);
  if (fd >= 0 && fchmod(fd, 0600) != 0) {
    const int error = errno;
    close(std::exchange(fd, -1));
    errno = error;
  }
  return fd;
}

}  // namespace larder
