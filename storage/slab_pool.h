// A tenant's host memory: a fixed number of slabs, each one memfd, mapped into the daemon for good.
//
// Does not know extents (ExtentAllocator) or blocks, and does not keep a writer from a slab that
// others read: that is for leases.  Slabs never change tenant, never shrink or grow (sealed), and
// come online one after the other as a background thread populates them, so that the daemon serves
// meanwhile.  Forked children of the daemon and its core dumps do not get the mappings.
//
// Ownership: made by server/main (one per tenant), outlives every ExtentAllocator and BlockStore
// over it.  A slab's memory lives on while a client still maps it.
// Thread-safety: all methods from any thread, PopulateAll and StartPopulating once.
// Lifecycle: Create -> StartPopulating -> (slabs come online) -> destroyed (joins the thread,
// within milliseconds also while populating; unmaps).
// Limits: 65,535 slabs; slab size a multiple of 2 MiB; total is exact and never exceeded.
// Needs Linux 5.14 (MADV_POPULATE_WRITE) and /proc.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/host_memory.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class SlabPool {
 public:
  struct Options {
    ByteCount bytes;              // total, rounded down to whole slabs; at least one slab
    ByteCount slab_bytes;         // 0: DefaultSlabBytes(bytes)
    std::string name = "larder";  // shown in /proc/PID/maps, with the slab's number behind it
    // A tenant without trusted writers: nobody may ever map it writable again, whatever descriptor
    // they come by.  The daemon writes through the mapping that it made before the seal.
    bool seal_future_write = false;
    bool lock_memory = true;  // mlock where allowed; failing shows in locked(), no error
    bool huge_pages = true;   // 2 MiB hugetlb pages if the host has enough free for all slabs
    // Where the pool learns what fits; a parameter so that tests can be a small or a busy host.
    std::function<HostMemory()> host_memory = [] { return ReadHostMemory(); };

    // InvalidArgument with what to do.
    [[nodiscard]] absl::Status Validate() const;
  };
  // About a 32nd of the pool, at least 64 MiB and at most 1 GiB, stretched (less than twofold, in
  // steps of 2 MiB) so that hardly anything of the pool is rounded away.  A pool below 64 MiB is
  // one slab.
  [[nodiscard]] static ByteCount DefaultSlabBytes(ByteCount pool);

  // Makes the memfds (without touching their pages).  ResourceExhausted when memory or descriptors
  // do not suffice, with what to do; InvalidArgument from Validate.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Create(const Options& options);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Populates slabs in order on a background thread and calls `online` (on that thread) after each.
  // `online` must stay callable until StopPopulating or destruction.  REQUIRES: called once.
  // `ended`, when given, hears at last how it went: not OK when the rest of the pool stays offline.
  void StartPopulating(std::function<void(SlabId)> online,
                       std::function<void(const absl::Status&)> ended = nullptr);
  // No call of `online` is under way or follows; slabs that are not online yet never will be.
  // Returns within milliseconds.  Idempotent, from the thread that called StartPopulating.
  void StopPopulating();
  // Populates all on the calling thread; for tests and benches.  REQUIRES: not started otherwise.
  [[nodiscard]] absl::Status PopulateAll();

  [[nodiscard]] ByteCount slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] uint32_t slab_count() const { return static_cast<uint32_t>(slabs_.size()); }
  [[nodiscard]] ByteCount total_bytes() const {
    return ByteCount(slab_bytes_.value() * slabs_.size());
  }
  [[nodiscard]] uint32_t online_count() const { return online_.load(std::memory_order_acquire); }
  // First reason why populating stopped early (out of memory), OK otherwise.  The slabs that were
  // online by then stay so, and serve.
  [[nodiscard]] absl::Status populate_status() const;
  [[nodiscard]] const char* pages() const;  // "4 KiB" or "2 MiB hugetlb"
  // All slabs online so far stay in memory whatever the host swaps.
  [[nodiscard]] bool locked() const { return locked_; }

  // The daemon's own view of an extent.  REQUIRES: the slab is online, extent inside it (CHECKed).
  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const;

  // A new descriptor of a slab for handing to a client, with a file offset of its own; the caller
  // owns it.  Read-only ones are reopened O_RDONLY, so that for another uid the kernel refuses
  // every way back to writing.  NotFound: no such slab, or not online.  FailedPrecondition: a
  // writable one of a pool made with seal_future_write, as nobody could map it.
  [[nodiscard]] absl::StatusOr<int> OpenDescriptor(SlabId slab, bool writable) const;

 private:
  struct Slab {
    int fd = -1;
    std::byte* base = nullptr;
  };
  SlabPool(const Options& options, ByteCount slab_bytes, bool huge);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Make(const Options& options,
                                                                      ByteCount slab_bytes,
                                                                      bool huge);
  [[nodiscard]] absl::Status AddSlab();
  [[nodiscard]] absl::Status Populate(uint32_t slab);
  [[nodiscard]] absl::Status PopulateFrom(const std::function<void(SlabId)>& online);

  const Options options_;
  const ByteCount slab_bytes_;
  const bool huge_;
  std::vector<Slab> slabs_;  // const after Create
  std::atomic<uint32_t> online_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> locked_{false};
  std::atomic<bool> populating_{false};
  std::thread populator_;
  mutable Mutex mu_;
  absl::Status populate_status_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
