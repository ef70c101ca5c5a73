// How the daemon's heap treats large messages.
//
// A Lookup by 131,072 token ids is a message of 512 KiB, which glibc by default maps anew for each
// message and unmaps after it: 450 us of page faults for 30 us of parsing.
#pragma once

namespace larder {

// Messages come from memory that stays with the process: at most kHeapKeptBytes per malloc arena
// (there is about one per RPC thread).  REQUIRES: before any thread is started.
inline constexpr int kHeapMappedBytes = 4 << 20;  // larger ones are mapped, and go back at once
inline constexpr int kHeapKeptBytes = 16 << 20;
void KeepHeapWarm();

}  // namespace larder
