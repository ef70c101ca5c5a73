// Makes a memfd to share with other processes: close-on-exec, sealable, readable and writable by
// its owner alone, and never executable if the kernel supports that (Linux 6.3).
//
// Does not size, map or seal it; the caller does, and decides what to seal and when.
// Ownership: the caller closes the descriptor.  Thread-safety: any thread.
#pragma once

namespace larder {

// `flags` are flags of memfd_create, added to those that follow from the above.  Returns -1 and
// sets errno if it fails.
[[nodiscard]] int OpenMemfd(const char* name, unsigned flags = 0);

}  // namespace larder
