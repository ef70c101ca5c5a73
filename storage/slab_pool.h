// A tenant's host memory: a fixed number of slabs, each one memfd, mapped into the daemon for good.
//
// Does not know extents (ExtentAllocator) or blocks.  Slabs never change tenant, never shrink or grow (sealed), and
// come online one after the other as a background thread populates them, so that the daemon serves meanwhile.
//
// Ownership: made by server/main (one per tenant), outlives every ExtentAllocator and BlockStore over it.
// Thread-safety: all methods from any thread.
// Lifecycle: Create -> StartPopulating -> (slabs come online) -> destroyed (joins the thread, unmaps).
// Limits: 65,535 slabs; slab size a multiple of 2 MiB; total is exact and never exceeded.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class SlabPool {
 public:
  struct Options {
    ByteCount bytes;             // total, rounded down to whole slabs; at least one slab
    ByteCount slab_bytes;        // 0: DefaultSlabBytes(bytes)
    std::string name = "larder"; // shown in /proc/PID/maps
    bool seal_future_write = false;  // a tenant without trusted writers: nobody may ever map it writable again
    bool lock_memory = true;         // mlock where allowed; failing is counted, not an error
    bool huge_pages = true;          // 2 MiB hugetlb pages where the host has enough free

    // InvalidArgument with what to do.
    [[nodiscard]] absl::Status Validate() const;
  };
  // 64 MiB .. 1 GiB, so that a pool has about 32 slabs.
  [[nodiscard]] static ByteCount DefaultSlabBytes(ByteCount pool);

  // Makes the memfds (without touching their pages).  ResourceExhausted when memory or descriptors do not suffice,
  // with what to do; InvalidArgument from Validate.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SlabPool>> Create(const Options& options);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Populates slabs in order on a background thread and calls `online` (on that thread) after each.
  // REQUIRES: called once.
  void StartPopulating(std::function<void(SlabId)> online);
  // Populates all on the calling thread; for tests and benches.
  [[nodiscard]] absl::Status PopulateAll();

  [[nodiscard]] ByteCount slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] uint32_t slab_count() const { return static_cast<uint32_t>(slabs_.size()); }
  [[nodiscard]] ByteCount total_bytes() const { return ByteCount(slab_bytes_.value() * slabs_.size()); }
  [[nodiscard]] uint32_t online_count() const { return online_.load(std::memory_order_acquire); }
  // First reason why populating stopped early (out of memory), OK otherwise.
  [[nodiscard]] absl::Status populate_status() const;
  [[nodiscard]] const char* pages() const;  // "4 KiB" or "2 MiB hugetlb"
  [[nodiscard]] bool locked() const { return locked_; }

  // The daemon's own view of an extent.  REQUIRES: the slab is online, extent inside it.
  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const;

  // A new descriptor of a slab for handing to a client; the caller owns it.  Read-only ones are reopened O_RDONLY,
  // so that for another uid the kernel refuses every way back to writing.  NotFound: no such slab, or not online.
  [[nodiscard]] absl::StatusOr<int> OpenDescriptor(SlabId slab, bool writable) const;

 private:
  struct Slab {
    int fd = -1;
    std::byte* base = nullptr;
  };
  SlabPool(ByteCount slab_bytes, bool huge, bool lock_memory);
  [[nodiscard]] absl::Status AddSlab(const Options& options);
  [[nodiscard]] absl::Status Populate(uint32_t slab);

  const ByteCount slab_bytes_;
  const bool huge_;
  const bool lock_memory_;
  std::vector<Slab> slabs_;  // const after Create
  std::atomic<uint32_t> online_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> locked_{false};
  std::thread populator_;
  mutable Mutex mu_;
  absl::Status populate_status_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
