// The interface of the disk tier, which stores whole blocks under their keys, within a limit.  What
// it stores outlives the process.
//
// The tier decides where bytes lie and guarantees them: Get returns what was put under the key, or
// nothing.  It does not decide which blocks stay: if there is no space, Put says so, and the caller
// erases blocks.  The tier has no queue and no thread of its own for puts and gets; they run on the
// caller's threads.
//
// An unplaced block is one that a former process left on disk and that the caller of Recover could
// not take when Recover reported it: it stays on disk, and the next Recover reports it again.
//
// There are two implementations: MemoryDiskTier (the reference) and FileDiskTier.  A part of the
// disk is a shard of a FileDiskTier; a MemoryDiskTier has one part.  tests/contract checks both
// implementations against this text.
// Lifecycle: constructed -> Recover, which reports what a former process left, and which the caller
// repeats while it returns Unavailable -> everything else.  Until a part of the disk has reported
// all its blocks, Put does not write to that part, and fails if no other part has reported its
// blocks; Get, Describe and Erase work for the blocks that Recover has reported.
// Ownership: by server/main or a test; outlives the spiller and the promoter.
// Thread-safety: all methods from any thread.  REQUIRES: no thread erases a block that another
// thread is reading.
// Blocking: all methods except free_bytes() and batch_bytes() may wait for the disk.
// Limits: the bytes on disk never exceed the limit, which is exact.  The payload of a block has at
// most block_bytes_max().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/format/record.h"
#include "storage/types.h"

namespace larder {

// Where a tier keeps a block: 8 bytes that the index stores and only that tier can interpret.
enum class DiskLocation : uint64_t { kNone = 0 };

struct DiskAddress {
  BlockKey key;
  DiskLocation location = DiskLocation::kNone;
};

class DiskTier {
 public:
  virtual ~DiskTier() = default;

  // ---- writing
  struct NewBlock {
    const RecordHeader* header = nullptr;  // its table has the hashes of all segments
    std::span<const uint32_t> tokens;      // at most kBlockTokensMax
    // The bytes that header->table describes.  The span begins at a page boundary, and its last
    // page is readable to the page's end; no thread changes any of these bytes during the call.
    std::span<const std::byte> payload;
    // The record that this block is to replace: it has the same key and, once decoded, the same
    // bytes.  kNone if the block replaces none.
    DiskLocation instead_of = DiskLocation::kNone;
  };
  enum class PutStatus : uint8_t {
    kOk,        // the block is durable: a crash at any time from now on does not lose it
    kNoRoom,    // there is no space for it until a block is erased
    kTooLarge,  // the block is too large to be stored at all
    kFailed,    // the disk failed, and nothing of the block is kept
    // An unplaced record of the same key has other bytes.  That record is older, so it keeps the
    // key, and the caller must drop the block that it wanted to put.
    kTaken,
    // A part of the disk that cannot take the block now, or more than one part, may have a record
    // of the same key.  This is neither a failure of the disk nor a lack of space; a later Put may
    // succeed.
    kNotNow,
  };
  struct PutResult {
    PutStatus status = PutStatus::kFailed;
    DiskLocation location = DiskLocation::kNone;
  };
  // Writes the blocks and makes them durable.  Blocks that lie side by side on disk share one
  // write, and a call needs one sync per data file and one per catalog, so a call with many blocks
  // is cheaper than many calls.  A block that cannot be written does not make the other blocks
  // fail.
  // If a record of the same key is on disk already, the new record does not overwrite it; after kOk
  // the caller must erase the older record and must not read it any more.  After a crash at any
  // time, the next process finds one of the two.  After kOk it finds the new one: of the records of
  // a key, erased ones included, Recover reports the newest first, except that it may report the
  // record that `instead_of` named first.
  // If an unplaced block has the same key and the same bytes, nothing is written: the status is kOk
  // with the location of that block, which is not unplaced any more.
  // REQUIRES: spans of equal size; keys differ.
  virtual void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) = 0;

  // Removes keys and frees the space of their records.  Unknown addresses are ignored.  Returns an
  // error if a part of the disk where some of the blocks lie failed: the keys of these blocks count
  // as removed, their space is freed when that part works again, and a later start may find some of
  // them again.
  // A call without blocks only frees the space that earlier calls could not free.  It returns OK if
  // at least one part of the disk has no such space left, so that erasing a block in that part
  // frees the block's space.
  [[nodiscard]] virtual absl::Status Erase(std::span<const DiskAddress> blocks) = 0;
  // Removes these keys, whose blocks readers still read: the blocks' space stays allocated until
  // Erase is called for them.  Unknown addresses are ignored.  If Forget returns an error, a later
  // start may find some of the blocks again.
  [[nodiscard]] virtual absl::Status Forget(std::span<const DiskAddress> blocks) = 0;
  // On OK no crash can bring back a block that was erased or forgotten before the call.  On an
  // error a later start may find some of these blocks again.
  [[nodiscard]] virtual absl::Status SyncErasures() = 0;

  // ---- reading
  struct Description {
    RecordHeader header;
    std::vector<uint32_t> tokens;
  };
  // Sets out[i] to the header and tokens of blocks[i], or to nullopt if the block is unknown or its
  // description is damaged.  Returns an error if the disk failed; a nullopt then says nothing about
  // its block.  REQUIRES: spans of equal size.
  [[nodiscard]] virtual absl::Status Describe(std::span<const DiskAddress> blocks,
                                              std::span<std::optional<Description>> out) = 0;

  // Returns the description of a block of this key that Recover has yet to report or that is
  // unplaced; nullopt if there is no such block.  Returns an error if a part of the disk that may
  // have such a block cannot be read; a part that a finished call of Recover could not read does
  // not count, and is ignored if it still cannot be read.
  // Thread-safety: from any thread, also before and during Recover.
  [[nodiscard]] virtual absl::StatusOr<std::optional<Description>> FindUntold(
      const BlockKey& key) = 0;

  enum class GetStatus : uint8_t {
    kOk,
    kMissing,  // there is no such block at that location
    kDamaged,  // its bytes are not what was put; the caller should erase it
    kFailed,   // the disk failed; a later Get may succeed
  };
  struct Read {
    DiskAddress block;
    const RecordHeader* header = nullptr;  // from Describe
    SegmentRange range;  // of header->table; the full range reads the whole record
    // Receives the pages of the payload that hold the range: the first byte of the range is at
    // to[range.begin % kPageBytes].  `to` begins at a page boundary.
    std::span<std::byte> to;
  };
  // The size in bytes that Read::to must have for this range.
  [[nodiscard]] static ByteCount PagesOf(const SegmentRange& range) {
    return ByteCount(RoundUp(range.end, kPageBytes) - range.begin / kPageBytes * kPageBytes);
  }
  // Fills `to` and checks every segment of the range against its hash.  The content of `to` must
  // not be used unless the status is kOk.
  [[nodiscard]] virtual GetStatus Get(const Read& read) = 0;

  // ---- the blocks on disk
  struct Entry {
    BlockKey key;
    DiskLocation location = DiskLocation::kNone;
    Digest parent;
    ByteCount payload_bytes;
    uint32_t raw_pages = 0;  // pages of its decoded payload
    ByteCount disk_bytes;    // the space that its record takes
  };
  // Reports each block on disk to `owner_of`, which returns the caller's owner word for the block
  // (SetOwner).  If `owner_of` returns 0, because the caller has another record of the key, the
  // tier erases the reported record.  If `owner_of` returns kUnplaced, because the caller cannot
  // take the block now, the block stays on disk, and the next call of Recover reports it again,
  // together with the blocks that no call has reported before.
  // Returns Cancelled if `stop` returned true; Recover must not be called again then.  Returns
  // Unavailable if the disk failed and some blocks were not reported; another call may report them.
  // REQUIRES: one call at a time; `owner_of` does not call Put, which waits while an unplaced block
  // is reported again.
  static constexpr uint32_t kUnplaced = UINT32_MAX;
  [[nodiscard]] virtual absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                             absl::FunctionRef<bool()> stop) = 0;

  // ---- making space
  // Sets the caller's owner word of a block, by which FindVictims names it; 0 excludes the block
  // from FindVictims.
  virtual void SetOwner(DiskLocation location, uint32_t owner) = 0;
  // For a caller whose Put of a block of `payload_bytes` found no space: returns the owner words of
  // blocks that lie side by side, so that erasing them makes contiguous space for that block.
  // Among the sets of blocks that it examines, it chooses the one that is worth least.  Returns an
  // empty vector if it found no set this time or none is needed.  `worth` returns the worth of one
  // byte of an owner's block, or nullopt if the block must stay.
  using WorthOf = absl::FunctionRef<std::optional<double>(uint32_t owner)>;
  [[nodiscard]] virtual std::vector<uint32_t> FindVictims(ByteCount payload_bytes,
                                                          WorthOf worth) = 0;

  // ---- facts: small values that are stored besides the blocks (registrations, pins)
  struct Fact {
    std::string key;
    std::string value;  // empty to delete the fact
  };
  // The kind of a fact, which its key's prefix says ("pin/", "registration/").  Each kind has its
  // own share of the disk, and can use up neither another kind's share nor that of blocks.
  enum class FactKind : uint8_t { kPin, kRegistration, kOther };
  static constexpr size_t kFactKinds = 3;
  [[nodiscard]] static FactKind KindOf(std::string_view key) {
    if (key.starts_with("pin/")) return FactKind::kPin;
    return key.starts_with("registration/") ? FactKind::kRegistration : FactKind::kOther;
  }
  struct FactUse {
    uint64_t facts = 0;
    ByteCount bytes;      // including keys and the catalog's overhead
    ByteCount bytes_max;  // the share of the kind
  };
  using FactUses = std::array<FactUse, kFactKinds>;  // indexed by FactKind
  // On OK all facts are durable; on an error each fact may or may not be, but none is torn.
  // Returns ResourceExhausted if the kind of one of them would exceed its share or the disk is
  // full.  A call that only deletes facts needs no space.  REQUIRES: keys of 1 to 512 bytes that
  // differ, values up to 1 MiB.
  [[nodiscard]] virtual absl::Status PutFacts(std::span<const Fact> facts) = 0;
  [[nodiscard]] absl::Status PutFact(const std::string& key, const std::string& value) {
    const Fact one{key, value};
    return PutFacts({&one, 1});
  }
  virtual void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) = 0;

  [[nodiscard]] virtual ByteCount block_bytes_max() const = 0;  // of a payload
  // The free space, headers included, in the part of the disk that the next Put writes to first.  A
  // Put that needs less may still find no space if that space is fragmented; a Put that needs more
  // is spread over several parts, each with its own sync.  Cheap.
  [[nodiscard]] virtual ByteCount free_bytes() const = 0;
  // The size of the largest Put for which the caller should evict blocks until one part of the disk
  // has space for all of it: a small share of the limit.
  [[nodiscard]] virtual ByteCount batch_bytes() const = 0;

  struct Stats {
    ByteCount limit;      // as configured
    ByteCount room;       // the part of `limit` that records may take
    ByteCount used;       // by records whose space is not free, headers and padding included
    ByteCount allocated;  // by all files on the disk
    uint64_t blocks = 0;
    uint64_t unplaced = 0;  // blocks that the caller of Recover could not take yet
    uint64_t puts = 0, gets = 0, erased = 0;  // numbers of blocks
    ByteCount put_bytes, got_bytes;           // of payloads
    ByteCount written_bytes;                  // to the disk, by puts and the catalog
    uint64_t damaged = 0;                     // records and descriptions found damaged
    uint64_t write_failures = 0, read_failures = 0, sync_failures = 0, catalog_failures = 0;
    // shards: all shards, open or not.  shards_failed: shards that are closed, have not reported
    // their blocks, or accept no blocks since a write failed.  shards_set_aside: how often a
    // damaged catalog was set aside.
    uint32_t shards = 0, shards_failed = 0, shards_set_aside = 0;
    FactUses facts;
    // Blocks that were not stored because the catalogs had no space for their entries, although the
    // data files had space for their bytes.
    uint64_t refused_catalog = 0;
  };
  [[nodiscard]] virtual Stats stats() const = 0;
};

[[nodiscard]] inline const char* ToString(DiskTier::PutStatus status) {
  constexpr const char* kNames[] = {"ok", "no space", "too large", "failed", "taken", "not now"};
  return kNames[static_cast<size_t>(status)];
}
[[nodiscard]] inline const char* ToString(DiskTier::GetStatus status) {
  constexpr const char* kNames[] = {"ok", "missing", "damaged", "failed"};
  return kNames[static_cast<size_t>(status)];
}
[[nodiscard]] inline const char* ToString(DiskTier::FactKind kind) {
  constexpr const char* kNames[] = {"pins", "registrations", "other facts"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace larder
