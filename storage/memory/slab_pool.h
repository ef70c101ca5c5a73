// A tenant's host memory: a fixed number of slabs, each one memfd, mapped into the daemon for good.
//
// Does not know extents (ExtentAllocator) or blocks, and does not keep a writer from a slab that
// others read: that is for leases.  Slabs never change tenant, never shrink or grow (sealed), and
// come online one after the other as a background thread populates them, so that the daemon serves
// meanwhile.  A slab whose huge pages the host does not give after all is made of small ones; while
// it gives no memory at all, the thread asks again from time to time.  Forked children of the
// daemon and its core dumps do not get the mappings.
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
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/memory/host_memory.h"
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
    std::chrono::milliseconds retry_period{5'000};  // of StartPopulating, when there is no memory
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
  // `stalled`, when given, hears that the host has no memory for the next slab, once until one
  // comes online; the thread asks again every retry_period.  Both stay callable until
  // StopPopulating or destruction.  REQUIRES: called once.
  void StartPopulating(std::function<void(SlabId)> online,
                       std::function<void(const absl::Status&)> stalled = nullptr);
  // No call of `online` is under way or follows; slabs that are not online yet never will be.
  // Returns within milliseconds.  Idempotent, from the thread that called StartPopulating.
  void StopPopulating();
  // Populates all on the calling thread, until the host has no memory; for tests and benches.
  // REQUIRES: not started otherwise.
  [[nodiscard]] absl::Status PopulateAll();

  [[nodiscard]] ByteCount slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] uint32_t slab_count() const { return static_cast<uint32_t>(slabs_.size()); }
  [[nodiscard]] ByteCount total_bytes() const {
    return ByteCount(slab_bytes_.value() * slabs_.size());
  }
  [[nodiscard]] uint32_t online_count() const { return online_.load(std::memory_order_acquire); }
  // Why the next slab is not populated (out of memory), with what to do; OK when the last one that
  // was tried is online.  The slabs that are online stay so, and serve.
  [[nodiscard]] absl::Status populate_status() const;
  // There is no slab at all, for want of memory.
  [[nodiscard]] bool starved() const { return online_count() == 0 && !populate_status().ok(); }
  // Nobody but the daemon can write it, whatever descriptor they hold (Options::seal_future_write).
  [[nodiscard]] bool sealed() const { return options_.seal_future_write; }
  // "4 KiB", "2 MiB hugetlb", or "2 MiB hugetlb and 4 KiB" where huge pages did not suffice.
  [[nodiscard]] const char* pages() const;
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
    bool huge = false;
  };
  SlabPool(const Options& options, ByteCount slab_bytes);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Make(const Options& options,
                                                                      ByteCount slab_bytes,
                                                                      bool huge);
  // Fills an empty `slab`; when it fails, what it has got is given back by Release.
  [[nodiscard]] absl::Status MakeSlab(uint32_t index, bool huge, Slab* slab) const;
  void Release(Slab& slab) const;
  [[nodiscard]] absl::Status Populate(uint32_t slab);
  [[nodiscard]] absl::Status PopulatePages(const Slab& slab) const;
  [[nodiscard]] bool Lock(const Slab& slab) const;
  [[nodiscard]] absl::Status PopulateNext(const std::function<void(SlabId)>& online);
  // Until StopPopulating, or for one retry_period.
  void AwaitRetry();

  const Options options_;
  const ByteCount slab_bytes_;
  // Its size is const after Create; a slab may be remade until it is online, and is const then.
  std::vector<Slab> slabs_;
  std::atomic<uint32_t> huge_slabs_{0};
  std::atomic<uint32_t> online_{0};
  std::atomic<bool> stop_{false};  // set under mu_
  std::atomic<bool> locked_{false};
  std::atomic<bool> populating_{false};
  std::thread populator_;
  mutable Mutex mu_;
  CondVar stopped_;
  absl::Status populate_status_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
