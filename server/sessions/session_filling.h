// What a session still owes for the blocks of one acquire that its grant called PENDING: those that
// HOST has encoded are decoded, and for a session that reads by copies each is copied into a room
// of its staging segment.  For session_*.cc only.
//
// Ownership: a Filling is shared by the session and the job that works on it, one thread at a time;
// its blocks are held for it until all are answered, or it goes.  A CopyRoom is shared by all
// fillings of an acquire.
// Thread-safety: CopyRoom from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "server/sessions/session.h"
#include "storage/mutex.h"

namespace larder {

// Holds on blocks that somebody else holds, beside his and each once.
class BlockHolds {
 public:
  explicit BlockHolds(BlockStore& store) : store_(store) {}
  ~BlockHolds() { Release(); }
  BlockHolds(const BlockHolds&) = delete;
  BlockHolds& operator=(const BlockHolds&) = delete;

  // False: too many hold it.
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
  absl::flat_hash_set<uint32_t> held_;  // as EntryRef
  std::vector<EntryRef> in_order_;
};

// A window of a staging segment, handed out from the front.  Its bytes are the client's to change
// at any moment: they are written once and never read.
class AttachedSession::CopyRoom {
 public:
  // nullptr: there is no such room in the segment, or no segment.
  [[nodiscard]] static std::shared_ptr<CopyRoom> Of(std::shared_ptr<const StagingSegment> segment,
                                                    uint64_t offset, uint64_t bytes);

  struct Place {
    uint64_t offset = 0;  // in the segment, a multiple of kSegmentAlign
    std::span<std::byte> bytes;
  };
  // Nothing: less is left.
  [[nodiscard]] std::optional<Place> Take(uint64_t bytes) LARDER_EXCLUDES(mu_);

 private:
  CopyRoom(std::shared_ptr<const StagingSegment> segment, uint64_t begin, uint64_t end)
      : segment_(std::move(segment)), end_(end), next_(begin) {}

  const std::shared_ptr<const StagingSegment> segment_;
  const uint64_t end_;
  Mutex mu_;
  uint64_t next_ LARDER_GUARDED_BY(mu_);
};

struct AttachedSession::FillingBlock {
  size_t key = 0;
  BlockIndex::Held held;
  // To be copied as it lies there, this part of its payload; else to be decoded.
  std::optional<SegmentRange> as_it_is;
  bool check = false;           // of those: against its hashes, as it arrives
  bool wants_table = false;     // of those: it is made when the block is answered
  wire::BlockGrant grant = {};  // of those: all but the place and the table
};

struct AttachedSession::Filling {
  Filling(BlockStore& store, const wire::Acquire& acquire, const SessionVariant& its_variant,
          LeaseId its_lease)
      : request(acquire), variant(its_variant), lease(its_lease), holds(store) {
    request.digests.clear();
  }
  wire::Acquire request;  // without its digests
  SessionVariant variant;
  LeaseId lease;
  std::vector<FillingBlock> blocks;         // in the order in which they are wanted
  BlockHolds holds;                         // of them
  std::shared_ptr<CopyRoom> room;           // null: the session reads in place
  std::optional<TimePoint> read_from_disk;  // for it, since then
  size_t next = 0;
  Shares::Ticket waits;  // for what it takes, while it waits for others of its session

  [[nodiscard]] size_t bytes() const {
    return sizeof(Filling) + blocks.capacity() * sizeof(FillingBlock);
  }
  // Before the last one is answered.
  void ReleaseAtEnd() {
    if (next == blocks.size()) holds.Release();
  }
};

}  // namespace larder
