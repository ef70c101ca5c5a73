// The interface of the disk tier, which stores whole blocks under their keys, within a limit, and
// outlives the process.
//
// The tier decides where bytes lie and guarantees them: Get returns what was put under the key, or
// nothing.  It does not decide which blocks stay: if there is no space, Put says so, and the caller
// erases blocks.  The tier has no queue and no thread of its own for puts and gets; they run on the
// caller's threads.
//
// An unplaced block is one that a former process left and that the caller of Recover cannot take
// yet: it stays on disk, and Recover reports it again.
//
// There are two implementations: MemoryDiskTier (the reference) and FileDiskTier.  tests/contract
// checks both against this text.
// Lifecycle: constructed -> Recover, which reports what a former process left, and which the caller
// repeats while it returns Unavailable -> everything else.  Until a part of the disk has reported
// all its blocks, Put does not use it, and fails if there is no other part; Get, Describe and Erase
// work for the blocks that Recover has reported.
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
    const RecordHeader* header = nullptr;  // its table has hashes
    std::span<const uint32_t> tokens;      // at most kBlockTokensMax
    // The bytes that header->table describes.  The span begins at a page's address, and its last
    // page is readable to the page's end; no thread changes any of it during the call.
    std::span<const std::byte> payload;
    // A record of the same key with the same content, encoded or not, that this one is to replace.
    DiskLocation instead_of = DiskLocation::kNone;
  };
  enum class PutStatus : uint8_t {
    kOk,        // the block is durable: a crash at any time from now on does not lose it
    kNoRoom,    // there is no space for it until a block is erased
    kTooLarge,  // it can never be stored
    kFailed,    // the disk failed, and nothing of the block is kept
    // An unplaced record of the same key has other bytes.  It was first, so it is the block; the
    // caller drops its own.
    kTaken,
    // A part of the disk that cannot be asked now may have a record of the same key.  This is no
    // failure of the disk and no lack of space; a later Put may succeed.
    kNotNow,
  };
  struct PutResult {
    PutStatus status = PutStatus::kFailed;
    DiskLocation location = DiskLocation::kNone;
  };
  // Writes the blocks, in large writes where they lie together, and makes them durable with one
  // sync per data file and one per catalog, so that many blocks per call are cheaper.  A block that
  // cannot be written does not fail the others.
  // If a block of the same key is on disk already, the new one is written beside it; the caller
  // must erase the older one and must not read it any more.  Whatever crash happens, one of the two
  // is found.  After kOk no record of that key that was put earlier is found again, erased or not:
  // of the records of a key, Recover reports the newest first, except that it may report the record
  // that the newest was put instead of.
  // An unplaced block with the same bytes is not written again: the status is kOk with the location
  // where it lies, and the block is the caller's from then on.
  // REQUIRES: spans of equal size; keys differ.
  virtual void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) = 0;

  // Removes keys and frees the space of their records.  Unknown addresses are ignored.  Returns an
  // error if the disk, or the part of it where some of the blocks lie, failed: their keys count as
  // removed, their space is freed when the disk works again, and a later start may find some of
  // them.
  // A call without blocks only frees the space that earlier calls could not free.  It returns OK if
  // at least one part of the disk has no such space left, so that erasing a block there frees
  // space.
  [[nodiscard]] virtual absl::Status Erase(std::span<const DiskAddress> blocks) = 0;
  // Removes these keys, whose blocks readers still read: the blocks' space stays allocated until
  // Erase is called for them.  Unknown addresses are ignored.  If it returns an error, a later
  // start may find some of them again.
  [[nodiscard]] virtual absl::Status Forget(std::span<const DiskAddress> blocks) = 0;
  // On OK everything erased or forgotten so far stays so, whatever crash happens.  Otherwise a
  // later start may find some of it again.
  [[nodiscard]] virtual absl::Status SyncErasures() = 0;

  // ---- reading
  struct Description {
    RecordHeader header;
    std::vector<uint32_t> tokens;
  };
  // Sets `out` to what is known of the blocks besides their bytes, or to nullopt if the block is
  // unknown or its description is damaged.  Returns an error if the disk failed; nullopt then means
  // nothing.  REQUIRES: spans of equal size.
  [[nodiscard]] virtual absl::Status Describe(std::span<const DiskAddress> blocks,
                                              std::span<std::optional<Description>> out) = 0;

  // Returns the description of a block of this key that Recover has yet to report or that is
  // unplaced; nullopt if there is none.  Returns an error if the disk failed, so that there may be
  // one.  A part of the disk that Recover has already failed to read, and reported so, is ignored
  // if it cannot be read now.
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
    // begin % kPageBytes.  Begins at a page's address.
    std::span<std::byte> to;
  };
  // The size that a Read's `to` must have.
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
    uint32_t raw_pages = 0;  // of its decoded payload
    ByteCount disk_bytes;    // the space that its record takes
  };
  // Reports each block on disk to `owner_of`, which returns the caller's owner word for it
  // (SetOwner).  It returns 0 if the key has another record, so that this one is erased; kUnplaced
  // if it cannot take the block now: the block then stays as it is, and the next call reports it
  // again, together with the blocks that no call has reported before.
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
  // If enough space is free but fragmented, returns the owner words of blocks whose erasure makes
  // contiguous space for one block of `payload_bytes`, chosen to be worth little compared with
  // other such sets.  Returns an empty vector if the search found none this time or none is needed.
  // `worth` returns the worth of a byte of an owner's block, or nullopt if the block must stay.
  using WorthOf = absl::FunctionRef<std::optional<double>(uint32_t owner)>;
  [[nodiscard]] virtual std::vector<uint32_t> FindVictims(ByteCount payload_bytes,
                                                          WorthOf worth) = 0;

  // ---- facts: small values beside the blocks (registrations, pins)
  struct Fact {
    std::string key;
    std::string value;  // empty: the fact is deleted
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
  using FactUses = std::array<FactUse, kFactKinds>;  // by kind
  // On OK all facts are durable; on an error each fact may or may not be, but none is torn.
  // Returns ResourceExhausted if their kind has used up its share or the disk is full.  A call that
  // only deletes facts needs no space.  REQUIRES: keys of 1 to 512 bytes that differ, values up to
  // 1 MiB.
  [[nodiscard]] virtual absl::Status PutFacts(std::span<const Fact> facts) = 0;
  [[nodiscard]] absl::Status PutFact(const std::string& key, const std::string& value) {
    const Fact one{key, value};
    return PutFacts({&one, 1});
  }
  virtual void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) = 0;

  [[nodiscard]] virtual ByteCount block_bytes_max() const = 0;  // of a payload
  // The free space that one Put finds in one part of the disk, headers included.  A smaller Put may
  // still find none if that space is fragmented, and a larger Put is spread over several parts,
  // each with its own sync.  Cheap.
  [[nodiscard]] virtual ByteCount free_bytes() const = 0;
  // The size of a Put up to which it pays to make space in one part of the disk: a small share of
  // the limit.
  [[nodiscard]] virtual ByteCount batch_bytes() const = 0;

  struct Stats {
    ByteCount limit;      // as configured
    ByteCount room;       // the part of it for records
    ByteCount used;       // by live records, headers and padding included
    ByteCount allocated;  // by all files on the disk
    uint64_t blocks = 0;
    uint64_t unplaced = 0;  // blocks that the caller of Recover could not take yet
    uint64_t puts = 0, gets = 0, erased = 0;  // blocks
    ByteCount put_bytes, got_bytes;           // payloads
    ByteCount written_bytes;                  // to the disk, by puts and the catalog
    uint64_t damaged = 0;                     // records and descriptions found damaged
    uint64_t write_failures = 0, read_failures = 0, sync_failures = 0, catalog_failures = 0;
    // All shards, open or not; those of them that are closed, have not reported their blocks, or
    // accept no blocks since a write failed; and how often a damaged catalog was set aside.
    uint32_t shards = 0, shards_failed = 0, shards_set_aside = 0;
    FactUses facts;
    // Blocks that found space for their bytes, but none for their entry in a catalog.
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
