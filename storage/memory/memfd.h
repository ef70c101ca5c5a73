// A fresh memfd to be shared with other processes: close-on-exec, sealable, readable by its owner
// alone, and never executable where the kernel knows how to see to that (Linux 6.3).
//
// Does not size, map or seal it: what is sealed, and when, is its user's promise.
// Ownership: the caller closes the descriptor.  Thread-safety: any thread.
#pragma once

namespace larder {

// `flags`: of memfd_create, beside those that follow from the above.  -1 and errno: it failed.
[[nodiscard]] int OpenMemfd(const char* name, unsigned flags = 0);

}  // namespace larder
