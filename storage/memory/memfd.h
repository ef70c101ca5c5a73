// Makes a memfd to share with other processes: close-on-exec, sealable, with mode 0600, and never
// executable if the kernel supports that (Linux 6.3).
//
// OpenMemfd does not size or map the memfd, nor seal its size; the caller does.
// Ownership: the caller closes the descriptor.  Thread-safety: any thread.
#pragma once

namespace larder {

// Returns the descriptor of a new, empty memfd, which the caller closes, or -1 with errno set if it
// fails.  `flags` are further flags of memfd_create, such as MFD_HUGETLB.
[[nodiscard]] int OpenMemfd(const char* name, unsigned flags = 0);

}  // namespace larder
