// A tenant's host memory: a fixed number of slabs, each one memfd, which the daemon keeps mapped
// for the life of the pool.
//
// Knows neither extents (ExtentAllocator) nor blocks, and does not keep a process from writing a
// slab that others read: leases do.  Slabs never change tenant, never shrink or grow (they are
// sealed), and come online one after the other as a background thread populates them, so that the
// daemon serves meanwhile.  If the host does not provide the huge pages of a slab after all, that
// slab is remade with small ones.  While the host has no memory at all, the thread tries again
// every retry_period.  Forked children of the daemon and its core dumps do not get the mappings.
//
// Ownership: made by server/main (one per tenant), outlives every ExtentAllocator and BlockStore
// over it.  A slab's memory lives on while a client still maps it.
// Thread-safety: all methods from any thread; only one of PopulateAll and StartPopulating, once.
// Lifecycle: Create -> StartPopulating -> (slabs come online) -> destroyed (joins the thread,
// within milliseconds even while it populates; unmaps).
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
    std::string name = "larder";  // shown in /proc/PID/maps, followed by the slab's number
    // Set for a tenant without trusted writers: no process can map a slab writable any more,
    // whatever descriptor it obtains.  The daemon writes through the mapping that it made before
    // the seal.
    bool seal_future_write = false;
    bool lock_memory = true;  // mlock if allowed; a failure shows in locked() and is no error
    bool huge_pages = true;   // 2 MiB hugetlb pages if enough are free for all slabs
    std::chrono::milliseconds retry_period{5'000};  // between tries to get memory
    // Returns what fits.  A parameter so that tests can pretend to be a small or busy host.
    std::function<HostMemory()> host_memory = [] { return ReadHostMemory(); };

    // Returns InvalidArgument, saying what to do, if an option is out of range.
    [[nodiscard]] absl::Status Validate() const;
  };
  // About a 32nd of the pool, at least 64 MiB and at most 1 GiB, then enlarged (less than twofold,
  // in steps of 2 MiB) so that hardly any of the pool is lost by rounding.  A pool below 64 MiB is
  // one slab.
  [[nodiscard]] static ByteCount DefaultSlabBytes(ByteCount pool);

  // Makes the memfds, without touching their pages.  Returns ResourceExhausted, saying what to do,
  // if memory or descriptors do not suffice, and InvalidArgument from Validate.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Create(const Options& options);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Populates slabs in order on a background thread and calls `online` on that thread after each.
  // If given, `stalled` is called when the host has no memory for the next slab, and not again
  // before a slab has come online; the thread tries again every retry_period.  The pool may call
  // both until StopPopulating or destruction.  REQUIRES: called once.
  void StartPopulating(std::function<void(SlabId)> online,
                       std::function<void(const absl::Status&)> stalled = nullptr);
  // When this returns, no call of `online` is under way or will follow, and slabs that are not
  // online never will be.  Returns within milliseconds.  Idempotent, from the thread that called
  // StartPopulating.
  void StopPopulating();
  // Populates all slabs on the calling thread, until the host has no memory; for tests and benches.
  // REQUIRES: neither this nor StartPopulating was called before.
  [[nodiscard]] absl::Status PopulateAll();

  [[nodiscard]] ByteCount slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] uint32_t slab_count() const { return static_cast<uint32_t>(slabs_.size()); }
  [[nodiscard]] ByteCount total_bytes() const {
    return ByteCount(slab_bytes_.value() * slabs_.size());
  }
  [[nodiscard]] uint32_t online_count() const { return online_.load(std::memory_order_acquire); }
  // Why the next slab is not populated (out of memory), and what to do.  OK if the latest slab that
  // the pool tried is online.  Slabs that are online stay online and are used.
  [[nodiscard]] absl::Status populate_status() const;
  // No slab is online, because the host has no memory.
  [[nodiscard]] bool starved() const { return online_count() == 0 && !populate_status().ok(); }
  // Only the daemon can write the slabs, whatever descriptor another process holds
  // (Options::seal_future_write).
  [[nodiscard]] bool sealed() const { return options_.seal_future_write; }
  // "4 KiB", "2 MiB hugetlb", or "2 MiB hugetlb and 4 KiB" if there were too few huge pages.
  [[nodiscard]] const char* pages() const;
  // The host swaps out none of the slabs that are online so far.
  [[nodiscard]] bool locked() const { return locked_; }

  // The daemon's own mapping of an extent.  REQUIRES: the slab is online, the extent lies inside it
  // (CHECKed).
  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const;

  // Returns a new descriptor of a slab for a client, with a file offset of its own; the caller owns
  // it.  A read-only one is reopened O_RDONLY, so that the kernel refuses a process of another uid
  // every way to make it writable.  Returns NotFound if there is no such slab or it is not online,
  // and FailedPrecondition for a writable descriptor of a pool made with seal_future_write, which
  // no process could map.
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
  // Makes the memfd and the mapping of an empty `slab`.  If it fails, Release frees what it has
  // made.
  [[nodiscard]] absl::Status MakeSlab(uint32_t index, bool huge, Slab* slab) const;
  void Release(Slab& slab) const;
  [[nodiscard]] absl::Status Populate(uint32_t slab);
  [[nodiscard]] absl::Status PopulatePages(const Slab& slab) const;
  [[nodiscard]] bool Lock(const Slab& slab) const;
  [[nodiscard]] absl::Status PopulateNext(const std::function<void(SlabId)>& online);
  // Waits for one retry_period, or until StopPopulating.
  void AwaitRetry();

  const Options options_;
  const ByteCount slab_bytes_;
  // Its size does not change after Create.  A slab may be remade until it is online, and does not
  // change afterwards.
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
