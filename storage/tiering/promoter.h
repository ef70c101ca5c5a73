// Reads blocks from the disk tier into HOST for those who hold them: on threads of its own, in the
// order that each asked for, the work that is soonest done first.
//
// A job is what one lease waits for.  Its keys are read by several threads at once (so the lease's
// later blocks are read ahead while its first arrive); among jobs the one with the fewest bytes to
// go has the next thread, and a job that waited long counts as smaller, so that none starves.
// A block that two jobs want is read once.  What may wait is shared: a session has at most half of
// what the others leave, so that whoever comes next finds room.
//
// What is encoded on disk is decoded on the way, by the thread that reads it: HOST gets raw bytes.
// It never answers with an error of the disk: a block that cannot be read is missing, and when the
// disk has just failed all are, at once, until it is worth asking again.
// Ownership: by the daemon or a test; store, tier and clock outlive it.  Thread-safety: all methods
// from any thread; `ready` is called from the promoter's threads, without a lock.
// Lifecycle: made (runs) -> destroyed (ends within one read; what waits is answered kCancelled).
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
    size_t key = 0;  // the caller's number
    EntryRef ref;    // held by the caller when he submits it
    Digest digest;
    uint64_t location = 0;
    ByteCount bytes;
  };
  struct Job {
    SessionId session;  // whose share it takes
    VariantIndex variant = VariantIndex::kNone;
    std::vector<Wanted> blocks;  // in the order in which they are wanted
    ByteCount remaining;         // work that the request still has beside these
    // kOk: in HOST now, at this extent, and held at least until this returns.  Once for each block.
    std::function<void(const Wanted&, BlockStatus, const BlockIndex::Held&)> ready;
  };

  // A job that holds its blocks, until it is submitted and answered, or dropped.
  class Running;
  using Prepared = std::shared_ptr<Running>;
  static constexpr size_t kWaitingMax = 262'144;  // blocks of all jobs, until they are answered
  // Blocks of a job whose headers and tokens are known at a time, and searched for at once.
  static constexpr size_t kDescribedAtOnce = 256;

  Promoter(size_t threads, BlockStore& store, DiskTier& tier, const Clock& clock,
           size_t waiting_max = kWaitingMax);
  ~Promoter();
  Promoter(const Promoter&) = delete;
  Promoter& operator=(const Promoter&) = delete;

  // Holds the job's blocks, which the caller holds now, and takes its session's share.  nullptr:
  // too much waits already, of this session or of all, or a block has too many holds.
  [[nodiscard]] Prepared Prepare(Job job) LARDER_EXCLUDES(mu_);
  // Never waits.
  void Submit(Prepared prepared) LARDER_EXCLUDES(mu_);
  // What was not read yet is answered kCancelled.
  static void Cancel(const Prepared& prepared);
  // Blocks whose headers and tokens it still keeps.  REQUIRES: all of it was answered.  For tests.
  [[nodiscard]] static size_t Described(const Prepared& prepared);

  // A held block whose copy on disk is written anew: until Readmit, exactly once, those who want it
  // wait.  False: somebody reads it, or else as BlockIndex::BeginRewrite.
  [[nodiscard]] bool Exclude(EntryRef held, uint64_t location) LARDER_EXCLUDES(mu_);
  // As BlockIndex::FinishRewrite.  Who waited is served by the caller's thread.
  [[nodiscard]] bool Readmit(EntryRef held, uint64_t location, PayloadCodec& codec)
      LARDER_EXCLUDES(mu_);

  // False while the disk is left alone: then blocks on disk may as well be called missing.
  [[nodiscard]] bool worth_asking() const { return !breaker_.open(clock_.Now()); }

  struct Stats {
    uint64_t promoted = 0, joined = 0, missing = 0, damaged = 0, full = 0;
    uint64_t refused = 0;  // blocks of jobs for which too much waited
    uint64_t waiting = 0;  // blocks
    uint64_t breaker_opened = 0;
    ByteCount promoted_bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  using RunningRef = Prepared;
  // Who waits for a block that a thread reads, or that is written anew.
  struct Waiter {
    RunningRef running;
    size_t block = 0;
  };

  // What waits; jobs that are never submitted may give back theirs when the promoter is gone.
  class Shares {
   public:
    explicit Shares(size_t waiting_max) : waiting_max_(waiting_max) {}
    // False: the session has its share of it already.
    [[nodiscard]] bool Take(SessionId session, size_t blocks) LARDER_EXCLUDES(mu_);
    void GiveBack(SessionId session, size_t blocks) LARDER_EXCLUDES(mu_);
    [[nodiscard]] size_t waiting() const LARDER_EXCLUDES(mu_);

   private:
    const size_t waiting_max_;
    mutable Mutex mu_;
    size_t waiting_ LARDER_GUARDED_BY(mu_) = 0;
    absl::flat_hash_map<SessionId, size_t> of_ LARDER_GUARDED_BY(mu_);  // of waiting_
  };
  void Run() LARDER_EXCLUDES(mu_);
  [[nodiscard]] RunningRef Next() LARDER_REQUIRES(mu_);
  // The next kDescribedAtOnce blocks, from `first`.
  void Describe(Running& running, size_t first);
  void PromoteOne(const RunningRef& running, size_t block, PayloadCodec& codec)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] BlockStatus Read(Running& running, size_t block, PayloadCodec& codec,
                                 BlockIndex::Held* held);
  // What is known of it; nullopt: nothing.
  [[nodiscard]] std::optional<DiskTier::Description> TakeDescription(Running& running, size_t block,
                                                                     const DiskAddress& address);
  // A whole payload into `to`, decoded; *table: of what is there then.
  [[nodiscard]] DiskTier::GetStatus GetDecoded(const DiskAddress& address,
                                               const RecordHeader& header, PayloadCodec& codec,
                                               std::span<std::byte> to, SegmentTable* table);
  void Answer(const RunningRef& running, size_t block, BlockStatus status,
              const BlockIndex::Held& held) LARDER_EXCLUDES(mu_);
  void Count(BlockStatus status, ByteCount bytes) LARDER_EXCLUDES(mu_);
  // A read that failed: kMissing, and the disk is left alone; or kDamaged, of a block that fails
  // while others can be read.
  [[nodiscard]] BlockStatus Failed(const Wanted& wanted) LARDER_EXCLUDES(mu_);

  BlockStore& store_;
  DiskTier& tier_;
  const Clock& clock_;
  const std::shared_ptr<Shares> shares_;
  DiskBreaker breaker_;

  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<RunningRef> jobs_ LARDER_GUARDED_BY(mu_);  // with blocks that no thread took yet
  absl::flat_hash_map<uint32_t, std::vector<Waiter>> reading_ LARDER_GUARDED_BY(mu_);  // by ref
  Stats stats_ LARDER_GUARDED_BY(mu_);
  // Blocks by location whose last read failed: how often, with reads that succeeded between, of
  // which there were so many by then.
  struct Suspect {
    int failures = 0;
    uint64_t promoted = 0;
  };
  absl::flat_hash_map<uint64_t, Suspect> suspects_ LARDER_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// Members are the promoter's, under its lock but for what says otherwise.
class Promoter::Running {
 public:
  // Its share was taken.
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
  std::vector<EntryRef> held;  // until the last of them was answered
  std::atomic<bool> cancelled{false};
  // By block: of the one thread that describes it, then of the one that reads it, then of the one
  // that answers it, after which nothing is left.  A lease may outlive its answers by minutes.
  std::vector<std::optional<DiskTier::Description>> known;
  // The catalog could always be read, so what it does not know is not there.
  std::atomic<bool> readable{true};
  size_t next = 0;       // of job.blocks
  size_t described = 0;  // of them
  bool describing = false;
  ByteCount left;
  TimePoint since;
  bool submitted = false;  // so the share goes back with each answer
  BlockStore& store_;
  const std::shared_ptr<Shares> shares_;
};

}  // namespace larder
