// A tenant's host memory: a fixed number of slabs, each one memfd, which the daemon keeps mapped
// from the time that they are online until the pool is destroyed.
//
// The pool knows neither which extents are allocated (ExtentAllocator does) nor blocks.  Nor does
// it keep a process that maps a slab writable from writing bytes that other processes read.  Slabs
// never change tenant, and never shrink or grow (they are sealed).  StartPopulating populates them
// (makes the host provide their pages) one after the other on a background thread, so that the
// daemon can serve with the slabs that are already populated (online).  If the host does not
// provide the huge pages of a slab after all, the slab is made again with small pages.  While the
// host has too little memory for the next slab, the thread tries again every retry_period.  The
// mappings are neither inherited by forked children of the daemon nor part of its core dumps.
//
// Ownership: made by server/main (one per tenant), outlives every ExtentAllocator and BlockStore
// that uses it.  A slab's memory continues to exist while a client still maps it.
// Thread-safety: all methods from any thread, except that StopPopulating is called by the thread
// that called StartPopulating.  Only one of PopulateAll and StartPopulating, once.
// Lifecycle: Create -> StartPopulating -> (slabs come online) -> destroyed (stops and joins the
// thread, and unmaps the slabs).
// Limits: 65,535 slabs; the slab size is a multiple of 2 MiB, below 64 GiB; all slabs together have
// exactly total_bytes().
// Needs /proc.
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
    // True if no client may map the pool writable: once a slab is made, no process can map it
    // writable, whatever descriptor the process obtains.  The daemon writes through the mapping
    // that it made before the seal.
    bool seal_future_write = false;
    bool lock_memory = true;  // mlock the slabs; if that fails, only locked() shows it
    bool huge_pages = true;   // use 2 MiB hugetlb pages if enough are free for all slabs
    std::chrono::milliseconds retry_period{5'000};  // between tries to get memory
    // Returns how much memory the host has available.  It is an option so that tests can pretend
    // that the host is small or busy.
    std::function<HostMemory()> host_memory = [] { return ReadHostMemory(); };

    // Returns InvalidArgument, with a message that says what is allowed, if an option is out of
    // range.
    [[nodiscard]] absl::Status Validate() const;
  };
  // Returns a slab size for a pool of `pool` bytes: about a 32nd of the pool, at least 64 MiB and
  // at most 1 GiB, then enlarged less than twofold so that rounding to whole slabs loses hardly any
  // of the pool.  A pool below 128 MiB is one slab, rounded down to a multiple of 2 MiB.
  [[nodiscard]] static ByteCount DefaultSlabBytes(ByteCount pool);

  // Makes and maps the memfds, without touching their pages.  Returns the errors of Validate;
  // ResourceExhausted, with a message that says what to do, if memory or descriptors do not
  // suffice; or another error.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Create(const Options& options);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Populates slabs in order on a background thread, which calls `online` after each slab.  If the
  // next slab cannot be populated, usually because the host lacks the memory, the thread calls
  // `stalled`, if given, and tries again every retry_period; it does not call `stalled` again
  // before a slab has come online.  The thread may call both until StopPopulating returns or the
  // pool is destroyed.
  // REQUIRES: neither StartPopulating nor PopulateAll was called before (CHECKed).
  void StartPopulating(std::function<void(SlabId)> online,
                       std::function<void(const absl::Status&)> stalled = nullptr);
  // Stops and joins the thread that StartPopulating has started.  After StopPopulating returns, no
  // call of `online` or `stalled` is under way or will follow, and slabs that are not online yet
  // never will be.  Waits for a call of `online` or `stalled` that is under way, but not until the
  // current slab is populated.  Idempotent.
  // REQUIRES: called by the thread that called StartPopulating.
  void StopPopulating();
  // Populates all slabs on the calling thread, and returns the error if a slab cannot be populated,
  // usually because the host lacks the memory.  For tests and benches.
  // REQUIRES: neither PopulateAll nor StartPopulating was called before (CHECKed).
  [[nodiscard]] absl::Status PopulateAll();

  [[nodiscard]] ByteCount slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] uint32_t slab_count() const { return static_cast<uint32_t>(slabs_.size()); }
  [[nodiscard]] ByteCount total_bytes() const {
    return ByteCount(slab_bytes_.value() * slabs_.size());
  }
  [[nodiscard]] uint32_t online_count() const { return online_.load(std::memory_order_acquire); }
  // Returns OK if the latest attempt to populate a slab succeeded, or there was none yet.
  // Otherwise returns why it failed, usually for lack of memory.  Slabs that are online stay online
  // and are used.
  [[nodiscard]] absl::Status populate_status() const;
  // Returns true if no slab is online and the latest attempt to populate the first one failed.
  [[nodiscard]] bool starved() const { return online_count() == 0 && !populate_status().ok(); }
  // Returns true if only the daemon can write the slabs, whatever descriptor another process has
  // (Options::seal_future_write).
  [[nodiscard]] bool sealed() const { return options_.seal_future_write; }
  // Returns the page sizes of the slabs: "4 KiB", "2 MiB hugetlb", or "2 MiB hugetlb and 4 KiB" if
  // the host did not provide the huge pages of some slabs.
  [[nodiscard]] const char* pages() const;
  // Returns true if Options::lock_memory is set, at least one slab is online, and all online slabs
  // are locked in memory, so that the host cannot swap them out.
  [[nodiscard]] bool locked() const { return locked_; }

  // Returns the bytes of an extent in the daemon's own mapping.
  // REQUIRES: the slab is online, and the extent lies inside the slab (CHECKed).
  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const;

  // Returns a new descriptor of a slab for a client, with a file offset of its own; the caller owns
  // the descriptor.  If not `writable`, the slab is reopened O_RDONLY, so that the kernel refuses a
  // process of another uid (not root) every way to make the descriptor writable.  Returns NotFound
  // if there is no such slab or it is not online; FailedPrecondition if `writable` and the pool was
  // made with seal_future_write, since no process could map the slab writable; or another error.
  [[nodiscard]] absl::StatusOr<int> OpenDescriptor(SlabId slab, bool writable) const;

 private:
  struct Slab {
    int fd = -1;
    std::byte* base = nullptr;
    bool huge = false;
    bool locked = false;  // the kernel never swaps its pages
  };
  SlabPool(const Options& options, ByteCount slab_bytes);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Make(const Options& options,
                                                                      ByteCount slab_bytes,
                                                                      bool huge);
  // Makes the memfd and the mapping of `slab`.  If it fails, `slab` may own a memfd and a mapping,
  // which Release frees.
  // REQUIRES: `slab` is empty.
  [[nodiscard]] absl::Status MakeSlab(uint32_t index, bool huge, Slab* slab) const;
  void Release(Slab& slab) const;
  [[nodiscard]] absl::Status Populate(uint32_t slab);
  [[nodiscard]] absl::Status PopulatePages(Slab& slab) const;
  [[nodiscard]] bool Lock(const Slab& slab) const;
  [[nodiscard]] absl::Status PopulateNext(const std::function<void(SlabId)>& online);
  // Waits for one retry_period, or until StopPopulating.
  void AwaitRetry();

  const Options options_;
  const ByteCount slab_bytes_;
  // The number of slabs does not change after Create.  A slab may be remade until it is online, and
  // does not change afterwards, so threads read online slabs without a lock.
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
