// Reads blocks from the disk tier into HOST, mostly on threads of its own, for jobs that hold these
// blocks.  It takes the blocks of a job in the job's order, and prefers small jobs.
//
// A job has blocks that one lease, prefetch or call waits for.  Several threads may read blocks of
// one job at the same time.  A free thread prefers the job with the fewest bytes left; the longer a
// job has waited, the smaller it counts, so that no job starves.  Jobs that want the same block at
// the same time usually share one read.  The number of waiting blocks is limited: when a job is
// added, its session may have at most half of what the other sessions leave of the limit.
//
// A block that is encoded on disk is decoded by the thread that reads it: HOST gets raw bytes.
// The promoter reports no error of the disk: a block that the disk fails to read is reported as
// missing, or as damaged if that keeps happening.  For a while after a failure of the disk the
// promoter begins no read, and reports blocks that it would have to read as missing (worth_asking).
// Ownership: the daemon or a test; store, tier and clock outlive it.  Thread-safety: all methods
// from any thread; Job::ready is called without a lock of the promoter, from the promoter's
// threads, from a thread that calls Readmit, or from the destructor.
// Lifecycle: made (runs) -> destroyed (waits for reads that are under way; blocks that no thread
// has taken are answered kCancelled).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/clock.h"
#include "storage/codec/payload_codec.h"
#include "storage/disk/disk_breaker.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"

namespace larder {

class Promoter {
 public:
  struct Wanted {
    size_t key = 0;  // the caller's number for this block
    EntryRef ref;    // held by the caller of Prepare
    Digest digest;
    uint64_t location = 0;
    ByteCount bytes;
  };
  struct Job {
    SessionId session;  // the blocks count in this session's share of the waiting blocks
    VariantIndex variant = VariantIndex::kNone;
    std::vector<Wanted> blocks;  // in the order in which the caller wants them
    ByteCount remaining;         // what the request has to load besides these blocks
    // Called once for each block of a submitted job.  kOk: the block's bytes are in HOST, at
    // Held::extent, and stay there at least until this function returns.
    std::function<void(const Wanted&, BlockStatus, const BlockIndex::Held&)> ready;
  };

  // A prepared job, which holds its blocks.  After Submit the promoter keeps a reference to it
  // until all blocks are answered.
  class Running;
  using Prepared = std::shared_ptr<Running>;
  static constexpr size_t kWaitingMax = 262'144;  // blocks of all jobs that are not yet answered
  // DiskTier::Describe is called for up to this many blocks of a job at once.
  static constexpr size_t kDescribedAtOnce = 256;

  Promoter(size_t threads, BlockStore& store, DiskTier& tier, const Clock& clock,
           size_t waiting_max = kWaitingMax);
  ~Promoter();
  Promoter(const Promoter&) = delete;
  Promoter& operator=(const Promoter&) = delete;

  // Adds holds on the job's blocks, which the caller must hold during the call, and counts them
  // among the waiting blocks of the job's session.  Returns nullptr if too many blocks would then
  // wait, or if a block has too many holds.
  [[nodiscard]] Prepared Prepare(Job job) LARDER_EXCLUDES(mu_);
  // Queues the job, without waiting for the disk.
  void Submit(Prepared prepared) LARDER_EXCLUDES(mu_);
  // After this, blocks of the job on which no thread has begun to work are answered kCancelled.
  static void Cancel(const Prepared& prepared);
  // Returns for how many blocks the job still keeps header and tokens.  For tests.  REQUIRES: all
  // blocks of the job were answered.
  [[nodiscard]] static size_t Described(const Prepared& prepared);

  // Called before the caller rewrites the disk copy, at `location`, of a block that it holds.  If
  // this returns true, jobs that want the block wait until the caller calls Readmit, which it must
  // do exactly once.  Returns false, and excludes nothing, if the block must not be rewritten now,
  // for example because a thread is reading it.
  [[nodiscard]] bool Exclude(EntryRef held, uint64_t location) LARDER_EXCLUDES(mu_);
  // Ends an Exclude that returned true.  `location`: where the new copy was written, 0 if writing
  // it failed.  Returns true if the block now has the new location, so that the caller must erase
  // the old copy; otherwise the caller must erase the new copy, if there is one.  Before it
  // returns, the calling thread serves the jobs that waited, which may read the block.
  [[nodiscard]] bool Readmit(EntryRef held, uint64_t location, PayloadCodec& codec)
      LARDER_EXCLUDES(mu_);

  // Returns false for a while after a failure of the disk (DiskBreaker).  Meanwhile no read begins,
  // so callers need not make a job.
  [[nodiscard]] bool worth_asking() const { return !breaker_.open(clock_.Now()); }

  struct Stats {
    uint64_t promoted = 0, joined = 0, missing = 0, damaged = 0, full = 0;
    uint64_t refused = 0;  // blocks of jobs that Prepare refused because too many would wait
    uint64_t waiting = 0;  // blocks that are not yet answered
    uint64_t breaker_opened = 0;
    ByteCount promoted_bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  using RunningRef = Prepared;
  // A job that waits for a block that another thread reads or rewrites.
  struct Waiter {
    RunningRef running;
    size_t block = 0;
  };

  // Counts the blocks that wait, by session.  The promoter shares ownership of this object with its
  // jobs, since a job that is never submitted may subtract its blocks after the promoter was
  // destroyed.
  class Shares {
   public:
    explicit Shares(size_t waiting_max) : waiting_max_(waiting_max) {}
    // Adds `blocks` blocks of the session.  Returns false, and adds none, if the session would then
    // have more than half of what the other sessions leave of waiting_max.
    [[nodiscard]] bool Take(SessionId session, size_t blocks) LARDER_EXCLUDES(mu_);
    void GiveBack(SessionId session, size_t blocks) LARDER_EXCLUDES(mu_);
    [[nodiscard]] size_t waiting() const LARDER_EXCLUDES(mu_);

   private:
    const size_t waiting_max_;
    mutable Mutex mu_;
    size_t waiting_ LARDER_GUARDED_BY(mu_) = 0;
    // The part of waiting_ that each session has.
    absl::flat_hash_map<SessionId, size_t> of_ LARDER_GUARDED_BY(mu_);
  };
  void Run() LARDER_EXCLUDES(mu_);
  [[nodiscard]] RunningRef Next() LARDER_REQUIRES(mu_);
  // Tries to look up headers and tokens of up to kDescribedAtOnce blocks of the job, from
  // job.blocks[first] on.
  void Describe(Running& running, size_t first);
  void PromoteOne(const RunningRef& running, size_t block, PayloadCodec& codec)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] BlockStatus Read(Running& running, size_t block, PayloadCodec& codec,
                                 BlockIndex::Held* held);
  // Returns header and tokens of the block, which it removes from running.known or looks up again;
  // nullopt if they are not known.
  [[nodiscard]] std::optional<DiskTier::Description> TakeDescription(Running& running, size_t block,
                                                                     const DiskAddress& address);
  // Reads a whole payload and decodes it into `to`; on kOk, *table is the segment table of the
  // decoded bytes.  Returns kDamaged also if the payload cannot be decoded.
  [[nodiscard]] DiskTier::GetStatus GetDecoded(const DiskAddress& address,
                                               const RecordHeader& header, PayloadCodec& codec,
                                               std::span<std::byte> to, SegmentTable* table);
  void Answer(const RunningRef& running, size_t block, BlockStatus status,
              const BlockIndex::Held& held) LARDER_EXCLUDES(mu_);
  void Count(BlockStatus status, ByteCount bytes) LARDER_EXCLUDES(mu_);
  // Called if a read of the block failed.  Returns kMissing and opens breaker_, which stops reads
  // for a while; or returns kDamaged if this block keeps failing while other blocks can be read.
  [[nodiscard]] BlockStatus Failed(const Wanted& wanted) LARDER_EXCLUDES(mu_);

  BlockStore& store_;
  DiskTier& tier_;
  const Clock& clock_;
  const std::shared_ptr<Shares> shares_;
  DiskBreaker breaker_;

  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  // Jobs with blocks that no thread has taken yet.
  std::vector<RunningRef> jobs_ LARDER_GUARDED_BY(mu_);
  // The jobs that wait for each block that a thread reads or rewrites, by EntryRef::value.
  absl::flat_hash_map<uint32_t, std::vector<Waiter>> reading_ LARDER_GUARDED_BY(mu_);
  Stats stats_ LARDER_GUARDED_BY(mu_);
  // Failed reads of blocks, by location; at most 4,096 locations.
  struct Suspect {
    int failures = 0;       // in a row, with reads of other blocks in between
    uint64_t promoted = 0;  // Stats::promoted at the latest failure
  };
  absl::flat_hash_map<uint64_t, Suspect> suspects_ LARDER_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// A prepared job.  Only the promoter uses its members.  Once the job is submitted, Promoter::mu_
// guards `next`, `described`, `describing`, `left` and `since`.
class Promoter::Running {
 public:
  // REQUIRES: the job's blocks were counted by Shares::Take.
  Running(BlockStore& store, std::shared_ptr<Shares> shares, Job the_job)
      : job(std::move(the_job)), store_(store), shares_(std::move(shares)) {}
  ~Running() {
    if (!held.empty()) store_.Unhold(held);
    if (!submitted) shares_->GiveBack(job.session, job.blocks.size());
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  friend class Promoter;
  const Job job;
  std::vector<EntryRef> held;  // the job's blocks; the destructor ends these holds
  std::atomic<bool> cancelled{false};
  // Header and tokens of each block of the job, if they were found.  Element i belongs first to the
  // thread that looks up block i, then to the thread that reads the block, then to the thread that
  // calls job.ready for it, which clears the element: a lease may keep this job alive long after
  // that.
  std::vector<std::optional<DiskTier::Description>> known;
  // True while no DiskTier::Describe for this job has failed or was skipped because the disk had
  // failed.  A block that was looked up and is not known is then not on disk, or its description is
  // damaged.
  std::atomic<bool> readable{true};
  size_t next = 0;       // the next block of job.blocks to read
  size_t described = 0;  // the number of blocks that are described
  bool describing = false;
  ByteCount left;
  TimePoint since;
  bool submitted = false;  // if true, each answer returns its block's part of the share
  BlockStore& store_;
  const std::shared_ptr<Shares> shares_;
};

}  // namespace larder
