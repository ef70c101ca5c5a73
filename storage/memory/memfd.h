// Makes a memfd to share with other processes: close-on-exec, sealable, readable and writable by
// its owner alone, and never executable if the kernel supports that (Linux 6.3).
//
// OpenMemfd does not size, map or seal the memfd; the caller does.
// Ownership: the caller closes the descriptor.  Thread-safety: any thread.
#pragma once

namespace larder {

// `flags` are further flags of memfd_create, such as MFD_HUGETLB.  Returns -1 and sets errno if it
// fails.
[[nodiscard]] int OpenMemfd(const char* name, unsigned flags = 0);

}  // namespace larder
