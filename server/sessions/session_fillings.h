// What remains to be done for blocks in HOST that an acquire answered PENDING: for a session with
// read mode copied, a block is copied, decoded if necessary, into the client's staging segment; for
// other sessions an encoded block is decoded into an extent that the lease then owns.
//
// A Filling is this work for blocks of one acquire.  A job of the worker pool does it, and answers
// for each block while the lease lasts.  Of the Fillings that copy, a session has only one in the
// worker pool at a time, and the session's others wait for it, so that other sessions do not wait
// behind all of them.
//
// Ownership: the session owns SessionFillings, and jobs keep the session alive.  A Filling is used
// by one thread at a time.
// Thread-safety: SessionFillings and CopyWindow from any thread.
// Locks: mu_ is held while a share is taken.  FillingHost and the worker pool are called without
// it.
// Limits: at most 64 Fillings that copy wait in a session, charged to the share of message bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "server/sessions/session_context.h"
#include "storage/codec/payload_codec.h"
#include "storage/mutex.h"

namespace larder {

// The holds of a Filling on its blocks, one for each block, beside those of the lease.  They keep
// the blocks if the lease ends while the Filling uses them.
class BlockHolds {
 public:
  explicit BlockHolds(BlockStore& store) : store_(store) {}
  ~BlockHolds() { Release(); }
  BlockHolds(const BlockHolds&) = delete;
  BlockHolds& operator=(const BlockHolds&) = delete;

  // Returns false if the block has too many holds.
  [[nodiscard]] bool Add(EntryRef block) {
    if (held_.contains(block.value)) return true;
    if (!store_.HoldAgain({&block, 1})) return false;
    held_.insert(block.value);
    in_order_.push_back(block);
    return true;
  }
  void Release() {
    if (!in_order_.empty()) store_.Unhold(in_order_);
    in_order_.clear();
    held_.clear();
  }

 private:
  BlockStore& store_;
  absl::flat_hash_set<uint32_t> held_;  // values of EntryRef
  std::vector<EntryRef> in_order_;
};

// The part of a staging segment that a client named in an acquire.  Take gives places in it from
// front to back.  The client may change the bytes at any moment, so the daemon does not read them.
class CopyWindow {
 public:
  // Returns null if there is no segment, the window extends beyond the segment's end, or `offset`
  // is not a multiple of kSegmentAlign.
  [[nodiscard]] static std::shared_ptr<CopyWindow> Of(std::shared_ptr<const StagingSegment> segment,
                                                      uint64_t offset, uint64_t bytes);

  struct Place {
    uint64_t offset = 0;  // in the segment, a multiple of 64
    std::span<std::byte> bytes;
  };
  // Takes the next place.  Returns nullopt if the window has fewer than `bytes` bytes left.
  [[nodiscard]] std::optional<Place> Take(uint64_t bytes) LARDER_EXCLUDES(mu_);

 private:
  CopyWindow(std::shared_ptr<const StagingSegment> segment, uint64_t begin, uint64_t end)
      : segment_(std::move(segment)), end_(end), next_(begin) {}

  const std::shared_ptr<const StagingSegment> segment_;
  const uint64_t end_;
  Mutex mu_;
  uint64_t next_ LARDER_GUARDED_BY(mu_);
};

// Returns an answer that has a status but no block.
[[nodiscard]] inline wire::BlockGrant RefusedBlock(BlockStatus status) {
  wire::BlockGrant grant;
  grant.status = status;
  return grant;
}

struct FillingBlock {
  size_t key = 0;  // index of its key in the acquire
  BlockIndex::Held held;
  // The part of the payload to copy as it is in HOST; nullopt for a block to be decoded.
  std::optional<SegmentRange> as_it_is;
  bool check = false;           // compare the bytes with their hashes as they are copied
  bool wants_table = false;     // the answer has a table, added when the block is copied
  wire::BlockGrant grant = {};  // the answer, without the place and the table
};

struct Filling {
  Filling(BlockStore& store, const wire::Acquire& acquire, const SessionVariant& its_variant,
          LeaseId its_lease)
      : request(acquire), variant(its_variant), lease(its_lease), holds(store) {
    request.digests.clear();
  }
  wire::Acquire request;  // without its digests
  SessionVariant variant;
  LeaseId lease;
  std::vector<FillingBlock> blocks;    // in the order in which the client wants them
  BlockHolds holds;                    // on the blocks, until just before the last answer
  std::shared_ptr<CopyWindow> window;  // null: the session reads in place
  // The time of the acquire if the filling's block was read from disk; otherwise nullopt.
  std::optional<TimePoint> read_since;
  size_t next = 0;
  Shares::Ticket waits;  // charges its memory while it waits for another filling

  [[nodiscard]] size_t bytes() const {
    return sizeof(Filling) + blocks.capacity() * sizeof(FillingBlock);
  }
  // To be called before each answer.  Before the last answer it releases the holds, so that none is
  // left when the client has all answers.
  void ReleaseAtEnd() {
    if (next == blocks.size()) holds.Release();
  }
};

// The leases that fillings are for.
class FillingHost {
 public:
  virtual ~FillingHost() = default;
  // Returns true while answers for the lease's blocks may be sent: the lease has neither ended nor
  // been revoked.
  [[nodiscard]] virtual bool Listens(LeaseId lease) = 0;
  // Returns true while the lease's blocks are to be decoded and copied: the lease has neither ended
  // nor been revoked or cancelled.
  [[nodiscard]] virtual bool Wants(LeaseId lease) = 0;
  // Moves the extent of a decoded block into the lease.  Returns false, and leaves *decoded as it
  // is, if the lease has ended or been revoked.
  [[nodiscard]] virtual bool Keep(LeaseId lease, ExtentReservation* decoded) = 0;
  // Called when a Filling that copies has handled all of its blocks.  Not called for a Filling that
  // was given up because too much work waited.
  virtual void OnCopied(LeaseId lease) = 0;
};

class SessionFillings {
 public:
  SessionFillings(SessionContext& context, FillingHost& leases)
      : context_(context), deps_(context.deps), leases_(leases) {}

  // Begins the work of a Filling, now or after other ones.  The client gets an answer for each
  // block while the lease lasts.  If too much work waits, answers FULL for the blocks that have no
  // answer yet.
  void Start(std::shared_ptr<Filling> filling) LARDER_EXCLUDES(mu_);

 private:
  // Returns false if the worker pool does not accept the filling now.
  [[nodiscard]] bool Submit(const std::shared_ptr<Filling>& filling);
  void GiveUp(Filling& filling);

  void Decode(const std::shared_ptr<Filling>& filling);
  void DecodeNext(Filling& filling, PayloadCodec& codec);
  // Decodes a block into `to`.  On kOk the answer's extent is in slab 0, at the offset that the
  // wanted bytes have in `to`.
  [[nodiscard]] wire::BlockGrant DecodeTo(const wire::Acquire& request,
                                          const BlockIndex::Held& held, std::span<std::byte> to,
                                          PayloadCodec& codec);
  void AnswerDecoded(const Filling& filling, size_t key, wire::BlockGrant block,
                     ExtentReservation extent);

  void RunCopies(std::shared_ptr<Filling> filling) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::shared_ptr<Filling> NextCopies() LARDER_EXCLUDES(mu_);
  void Copy(const std::shared_ptr<Filling>& filling) LARDER_EXCLUDES(mu_);
  [[nodiscard]] wire::BlockGrant CopyOne(const Filling& filling, const FillingBlock& block,
                                         PayloadCodec& codec);
  // Copies `from` to `to`.  Returns false if block.check is set and the bytes are damaged.
  [[nodiscard]] bool CopyTo(const FillingBlock& block, std::span<const std::byte> from,
                            std::span<std::byte> to);
  void CountCopied(const Filling& filling, const FillingBlock& block,
                   const wire::BlockGrant& grant);
  void SendAnswers(LeaseId lease, wire::Down down);

  SessionContext& context_;
  SessionDeps& deps_;
  FillingHost& leases_;
  Mutex mu_;
  bool copying_ LARDER_GUARDED_BY(mu_) = false;  // a filling by copies is a job
  // Fillings that copy, and wait until the one that is a job has ended.
  std::deque<std::shared_ptr<Filling>> waiting_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
