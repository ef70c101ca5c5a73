// The interface of the disk tier, which stores whole blocks under their keys, within a limit.  What
// a FileDiskTier stores outlives the process.
//
// The tier decides where bytes lie, and Get returns what was put under the key, or a status that is
// not kOk.  The tier does not decide which blocks stay: if there is no space, Put says so, and the
// caller erases blocks.  Puts and gets run on the caller's threads.
//
// A block is called unplaced if a former process left it on disk and the caller of Recover could
// not take it when Recover reported it (kUnplaced), for example because the index was full.  The
// block stays on disk, and the next Recover reports it again, unless it is put or erased before.
//
// There are two implementations: MemoryDiskTier (the reference) and FileDiskTier.  "A part of the
// disk" below is a shard of a FileDiskTier; a MemoryDiskTier has one part.  tests/contract checks
// both implementations against this text.
// Lifecycle: constructed -> Recover, which the caller repeats while it returns Unavailable or there
// are unplaced blocks.  PutFacts, ForEachFact, FindUntold and stats work before Recover.  Put
// writes nothing to a part of the disk whose blocks Recover has not all reported; Get, Describe and
// Erase work for the blocks that Recover has reported.
// Ownership: by server/main or a test; outlives the spiller and the promoter.
// Thread-safety: all methods from any thread, except that only one thread at a time calls Recover.
// REQUIRES: no thread erases a block while another thread reads it.
// Blocking: all methods may wait for the disk, except SetOwner, FindVictims, block_bytes_max,
// free_bytes and batch_bytes.
// Limits: PutStatus::kTooLarge is not returned for a payload of at most block_bytes_max() bytes.
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

// Where a tier keeps a block: 8 bytes that the index stores and only the tier can interpret.
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
    // The bytes that header->table describes.  The span begins at a page boundary, and the memory
    // behind it is readable to the end of its last page.  No thread may change any of these bytes
    // during Put.
    std::span<const std::byte> payload;
    // The location of the record that this block is to replace; both have the same key and, once
    // decoded, the same bytes.  kNone if the block replaces no record.
    DiskLocation instead_of = DiskLocation::kNone;
  };
  enum class PutStatus : uint8_t {
    kOk,        // the block is durable
    kNoRoom,    // there is no space for it now
    kTooLarge,  // the block is too large to be stored at all
    // The block is not stored, for example because the disk failed or Recover has not reported its
    // blocks yet.  A later start may nevertheless find the block.
    kFailed,
    // The block is not stored: an unplaced block of the same key has another segment table or a
    // damaged header, so its bytes may differ.  The unplaced block is older and keeps the key, so
    // the caller must drop the block that it wanted to put.
    kTaken,
    // The block is not stored, because a later start might take another record of the same key
    // instead.  A later Put may succeed.
    kNotNow,
  };
  struct PutResult {
    PutStatus status = PutStatus::kFailed;
    DiskLocation location = DiskLocation::kNone;
  };
  // Writes the blocks and makes them durable.  Each block has a result of its own; one failure of
  // the disk may fail several blocks.  A call with many blocks is cheaper than many calls.
  // If a record of the same key is on disk already, the new record does not overwrite it; after kOk
  // the caller must erase the older record and must not read it any more.  If a crash prevents
  // that, the next start takes the new record, unless the older one has the same bytes or lies in a
  // part of the disk that could not be read during the Put.
  // If an unplaced block has the same key and the same segment table, nothing is written: the
  // status is kOk with the location of that block, which is not unplaced any more.
  // REQUIRES: spans of equal size; the keys of the blocks differ.
  virtual void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) = 0;

  // Removes blocks and frees their space.  Unknown addresses are ignored.  On OK a crash of the
  // process does not bring the blocks back, but before SyncErasures a loss of power may.  After an
  // error the blocks count as erased, but some of the space may be freed only later, and a later
  // start may find some of the blocks again.
  // A call without blocks only retries to free space that earlier calls could not free.  It returns
  // OK if at least one part of the disk whose blocks Recover has all reported has no such space any
  // more; evicting blocks may then make space.
  [[nodiscard]] virtual absl::Status Erase(std::span<const DiskAddress> blocks) = 0;
  // Removes the keys of blocks that readers still read: the space of the blocks stays allocated
  // until Erase is called for them.  Unknown addresses are ignored.  On OK a crash of the process
  // does not bring the blocks back, but before SyncErasures a loss of power may.  After an error a
  // later start may find some of the blocks again.
  [[nodiscard]] virtual absl::Status Forget(std::span<const DiskAddress> blocks) = 0;
  // On OK neither a crash nor a loss of power can bring back a record for which Erase was called,
  // or Forget returned OK, before this call.  After an error a later start may find some of these
  // records again.
  [[nodiscard]] virtual absl::Status SyncErasures() = 0;

  // ---- reading
  struct Description {
    RecordHeader header;
    std::vector<uint32_t> tokens;
  };
  // Sets out[i] to the header and tokens that are stored for the key of blocks[i], or to nullopt if
  // the tier does not know the block or its description is damaged.  Returns an error if the disk
  // failed; a nullopt then says nothing about its block.  REQUIRES: spans of equal size.
  [[nodiscard]] virtual absl::Status Describe(std::span<const DiskAddress> blocks,
                                              std::span<std::optional<Description>> out) = 0;

  // Returns the description of a block of this key that the caller may not know yet, because
  // Recover has not finished reporting the block's part of the disk or because the block is
  // unplaced.  If it finds none, returns nullopt, or an error if a part of the disk cannot be read.
  // Parts that could not be opened, or that Recover has failed to read so far, are left out.
  // Thread-safety: from any thread, also before and during Recover.
  [[nodiscard]] virtual absl::StatusOr<std::optional<Description>> FindUntold(
      const BlockKey& key) = 0;

  enum class GetStatus : uint8_t {
    kOk,
    kMissing,  // the tier finds no such block
    kDamaged,  // the bytes there are not those of the header; the caller should erase the block
    kFailed,   // the disk failed; a later Get may succeed
  };
  struct Read {
    DiskAddress block;
    const RecordHeader* header = nullptr;  // from Describe
    SegmentRange range;  // of header->table; the full range reads the whole record
    // Receives the range: its first byte is at to[range.begin % kPageBytes].  Other bytes of `to`
    // may change too.  `to` begins at a page boundary and has at least PagesOf(range) bytes.
    std::span<std::byte> to;
  };
  // Returns the size of the pages of a payload that hold this range, in bytes.
  [[nodiscard]] static ByteCount PagesOf(const SegmentRange& range) {
    return ByteCount(RoundUp(range.end, kPageBytes) - range.begin / kPageBytes * kPageBytes);
  }
  // Reads the range into read.to, and checks every segment of the range against its hash.  The
  // content of read.to must not be used unless the status is kOk.
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
  // The owner word of an unplaced block: `owner_of` of Recover returns it for a block that the
  // caller cannot take now.
  static constexpr uint32_t kUnplaced = UINT32_MAX;
  // Reports the blocks on disk that no call of Recover has reported before, and all unplaced
  // blocks, to `owner_of`, which returns the caller's owner word for the block (SetOwner).  If
  // `owner_of` returns 0, because the caller has another record of the key, the tier tries to erase
  // the reported record.  If `owner_of` returns kUnplaced, because the caller cannot take the block
  // now, the block stays on disk, and the next call of Recover reports it again.
  // Ends early if `stop` returns true, usually with Cancelled; after Cancelled Recover must not be
  // called again.  Returns Unavailable if some blocks may not have been reported; another call may
  // report them.
  // REQUIRES: one call at a time; `owner_of` does not call Put, which could deadlock.
  [[nodiscard]] virtual absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                             absl::FunctionRef<bool()> stop) = 0;

  // ---- making space
  // Sets the owner word of the block at this location, a number of the caller's choice by which
  // FindVictims names the block; 0 excludes the block from FindVictims.  Does nothing if no block
  // lies there.
  virtual void SetOwner(DiskLocation location, uint32_t owner) = 0;
  // Returns the worth of one byte of the block with this owner word, or nullopt if the block must
  // stay.  The function must not call the tier.
  using WorthOf = absl::FunctionRef<std::optional<double>(uint32_t owner)>;
  // For a caller whose Put of a block of `payload_bytes` found no space: returns the owner words of
  // blocks that lie side by side, so that erasing them makes contiguous space for about that block.
  // Among the sets of blocks that it examines, it chooses the one that is worth least, by `worth`.
  // Returns an empty vector if it found no such set or sees no need to evict; a later call may find
  // one.
  [[nodiscard]] virtual std::vector<uint32_t> FindVictims(ByteCount payload_bytes,
                                                          WorthOf worth) = 0;

  // ---- facts: small values that are stored besides the blocks (registrations, pins)
  struct Fact {
    std::string key;
    std::string value;  // empty to delete the fact
  };
  // The kind of a fact, which its key's prefix says ("pin/", "registration/", any other).  Each
  // kind has its own share of the disk, beyond which PutFacts does not let it grow.
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
  // Writes facts, and deletes those with an empty value.  On OK all of them are durable; after an
  // error each fact may or may not be, but none is torn.  Returns ResourceExhausted if a kind would
  // grow beyond its share, or another error.  Deletions never exceed a share.
  // REQUIRES: keys of 1 to 512 bytes that differ, values up to 1 MiB.
  [[nodiscard]] virtual absl::Status PutFacts(std::span<const Fact> facts) = 0;
  [[nodiscard]] absl::Status PutFact(const std::string& key, const std::string& value) {
    const Fact one{key, value};
    return PutFacts({&one, 1});
  }
  virtual void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) = 0;

  [[nodiscard]] virtual ByteCount block_bytes_max() const = 0;  // of a payload
  // An estimate of how many bytes, headers included, the next Put can store in one part of the
  // disk.  0 until Recover has reported all blocks of at least one part.  May be the whole limit
  // while writes fail, so that the caller does not evict blocks, which would not help.
  [[nodiscard]] virtual ByteCount free_bytes() const = 0;
  // About how many bytes the caller should put in one call at most, if it evicts blocks to make
  // space: a small share of the limit.
  [[nodiscard]] virtual ByteCount batch_bytes() const = 0;

  struct Stats {
    ByteCount limit;      // as configured
    ByteCount room;       // the part of `limit` that records may take, in open shards
    ByteCount used;       // by records whose space is not free, headers and padding included
    ByteCount allocated;  // by files on the disk
    uint64_t blocks = 0;
    uint64_t unplaced = 0;  // blocks that the caller of Recover could not take yet
    uint64_t puts = 0, gets = 0, erased = 0;  // numbers of blocks
    ByteCount put_bytes, got_bytes;           // of payloads
    ByteCount written_bytes;                  // to the disk, by puts and the catalog
    uint64_t damaged = 0;                     // records and descriptions found damaged
    uint64_t write_failures = 0, read_failures = 0, sync_failures = 0, catalog_failures = 0;
    // Of a FileDiskTier.  shards: all shards, open or not.  shards_failed: about how many of them
    // cannot be opened, read or written.  shards_set_aside: how often this process has moved a
    // catalog away because it could not be used.
    uint32_t shards = 0, shards_failed = 0, shards_set_aside = 0;
    FactUses facts;
    // About how often a block found no space in the catalog of a shard.  Another shard may have
    // stored the block.
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
