// Transparent huge pages of 2 MiB for the process's own memory, without the kernel's khugepaged.
//
// madvise(MADV_HUGEPAGE) asks for huge pages too, but it also registers the process with khugepaged
// for as long as the process lives.  khugepaged is a kernel thread of the lowest priority that
// scans the page tables of registered processes.  While other processes keep all cores busy, it may
// hold a process's mmap lock for seconds, and every thread that maps, unmaps or protects memory
// waits for it.
// Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <span>

namespace larder {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Backs the whole huge pages of `memory`, which keeps its contents, with huge pages now.  Where the
// kernel finds none, it leaves small pages for good, and so it does where the host's setting is
// "never".  Takes the mmap lock, for as long as the kernel takes to zero a huge page and to reach
// all cores, so call it seldom.  Before Linux 6.1, it asks with MADV_HUGEPAGE.
// REQUIRES: `memory` is private anonymous memory and begins at a multiple of 4 KiB.
void UseHugePages(std::span<std::byte> memory);

// From now on, memory of this process has huge pages only where UseHugePages was called, also on
// hosts with the setting "always", which would register the process with khugepaged.  Returns false
// if the host has that setting and its kernel cannot make this exception (Linux before 6.18).
// Memory that the process has mapped before may have registered it already, so a process calls this
// before it does anything else.
bool RefuseOtherHugePages();

}  // namespace larder
