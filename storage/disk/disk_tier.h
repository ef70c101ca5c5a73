// A tier of whole blocks that outlives the process: under their keys, on a disk, within a limit.
//
// It decides where bytes lie and answers for them: what Get gives is what was put under that key,
// or it gives nothing.  It does not decide what stays: when there is no room it says so, and the
// caller erases.  It has no queue and no thread of its own for puts and gets; callers bring theirs.
//
// Two implementations: MemoryDiskTier (the reference) and FileDiskTier.  tests/contract holds both
// to this text.
// Lifecycle: made -> Recover, which tells what a former process left, and again while it answers
// Unavailable -> everything else, from any thread.  Until all is told of a part of the disk, Put
// passes it over, and fails where that is all there is; Get, Describe and Erase work for what
// Recover has told.
// Ownership: by server/main or a test, outlives what spills to it and promotes from it.
// Thread-safety: all methods from any thread.  REQUIRES: nobody erases what is being read.
// Blocking: all but free_bytes() and batch_bytes() may wait for the disk.
// Limits: bytes on disk never exceed the limit, exactly.  A block is at most block_bytes_max().
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

// Where a tier keeps a block: 8 bytes for the index, meaningful to that tier alone.
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
    const RecordHeader* header = nullptr;  // its table hashed
    std::span<const uint32_t> tokens;      // at most kBlockTokensMax
    // As header->table says.  Begins at a page's address; its last page is readable to its end, and
    // nobody changes either meanwhile.
    std::span<const std::byte> payload;
    // A record of that name with the same content, encoded or not, which this one is to replace.
    DiskLocation instead_of = DiskLocation::kNone;
  };
  enum class PutStatus : uint8_t {
    kOk,        // durable: a crash at any time from now on does not lose it
    kNoRoom,    // until something is erased
    kTooLarge,  // for ever
    kFailed,    // the disk's fault: nothing of it is kept
    // A record of that name with other bytes is there, unplaced (Recover).  It was first, so it is
    // the block: the caller gives its own up.
    kTaken,
    // A part of the disk that cannot be asked now may have a record of that name.  Not the disk's
    // fault, and no matter of room: later it may be taken.
    kNotNow,
  };
  struct PutResult {
    PutStatus status = PutStatus::kFailed;
    DiskLocation location = DiskLocation::kNone;
  };
  // Writes blocks, in large writes where they lie together, and makes them durable with one sync:
  // many at once are cheaper.  One that cannot be written does not fail the others.  A block that
  // is there already under its key is written again; the older one is the caller's to erase, and
  // is not to be read any more.  Whatever crashes, one of the two is found.  From kOk on no record
  // of that name is found that was put before, erased or not: of those that Recover tells it is the
  // first, but for the one that it was put instead of.  A block that is there unplaced is not
  // written again: kOk with the place where it lies, which is the caller's now.
  // REQUIRES: spans of equal size; keys differ.
  virtual void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) = 0;

  // Names that go, and the room that they took.  Unknown addresses are passed over.  Not OK: the
  // disk failed, or where some of them lie; the names are gone, their room follows when it works
  // again, and the next Recover may find some of them.
  // A call with no blocks asks for that room alone.  OK: some of the disk owes none, so what is
  // erased there gives room.
  [[nodiscard]] virtual absl::Status Erase(std::span<const DiskAddress> blocks) = 0;
  // Names that go while their blocks are being read: their room stays theirs until they are erased.
  // Unknown addresses are passed over.  Not OK: some of them may be found again.
  [[nodiscard]] virtual absl::Status Forget(std::span<const DiskAddress> blocks) = 0;
  // OK: what was erased or forgotten until now stays so, whatever crashes.  Else some of it may be
  // found again.
  [[nodiscard]] virtual absl::Status SyncErasures() = 0;

  // ---- reading
  struct Description {
    RecordHeader header;
    std::vector<uint32_t> tokens;
  };
  // What is known of blocks beside their bytes; nullopt: unknown, or its description is damaged.
  // Not OK: the disk failed, so nullopt says nothing.  REQUIRES: spans of equal size.
  [[nodiscard]] virtual absl::Status Describe(std::span<const DiskAddress> blocks,
                                              std::span<std::optional<Description>> out) = 0;

  // A block of this key that Recover has yet to tell of, or that is unplaced; nullopt: none.  Not
  // OK: the disk failed, and there may be one.  What Recover could not tell of, and said so, does
  // not count where it cannot be read.
  // From any thread, also before and during Recover.
  [[nodiscard]] virtual absl::StatusOr<std::optional<Description>> FindUntold(
      const BlockKey& key) = 0;

  enum class GetStatus : uint8_t {
    kOk,
    kMissing,  // no such block at that place
    kDamaged,  // its bytes are not what was put: erase it
    kFailed,   // the disk's fault; later it may work
  };
  struct Read {
    DiskAddress block;
    const RecordHeader* header = nullptr;  // from Describe
    SegmentRange range;                    // of header->table; all of it reads the whole record
    // The pages of the payload that hold the range: byte begin % kPageBytes of it becomes the
    // range's first.  Begins at a page's address.
    std::span<std::byte> to;
  };
  // What a Read's `to` must hold.
  [[nodiscard]] static ByteCount PagesOf(const SegmentRange& range) {
    return ByteCount(RoundUp(range.end, kPageBytes) - range.begin / kPageBytes * kPageBytes);
  }
  // Fills `to` and checks every segment of the range by its hash; what it holds when the answer is
  // not kOk must not be used.
  [[nodiscard]] virtual GetStatus Get(const Read& read) = 0;

  // ---- what there is
  struct Entry {
    BlockKey key;
    DiskLocation location = DiskLocation::kNone;
    Digest parent;
    ByteCount payload_bytes;
    uint32_t raw_pages = 0;  // of its payload, once it is decoded
    ByteCount disk_bytes;    // of the room it takes
  };
  // First: tells what is there.  `owner_of` answers the caller's word for it (SetOwner); 0: the
  // name has another record, so this one is erased; kUnplaced: the caller cannot take it now, so it
  // stays as it is, and the next call tells it again, with what no call has told before.
  // Cancelled: `stop` said so, and nobody may ask again.  Unavailable: the disk failed, and some
  // was not told, which another call may tell.  REQUIRES: one call at a time; `owner_of` does
  // not call Put, which waits where it is told again.
  static constexpr uint32_t kUnplaced = UINT32_MAX;
  [[nodiscard]] virtual absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                             absl::FunctionRef<bool()> stop) = 0;

  // ---- making room
  // The caller's word for a block, by which FindVictims names it; 0: nobody to ask.
  virtual void SetOwner(DiskLocation location, uint32_t owner) = 0;
  // Owners of blocks whose erasure makes room for one of `bytes` where enough is free in all but
  // lies apart, and which are worth little beside others of whom that is true; empty when it found
  // none this time, or need not.  `worth`: of a byte of an owner's block; nullopt: it must stay.
  using WorthOf = absl::FunctionRef<std::optional<double>(uint32_t owner)>;
  [[nodiscard]] virtual std::vector<uint32_t> FindVictims(ByteCount payload_bytes,
                                                          WorthOf worth) = 0;

  // ---- facts: small values beside the blocks (registrations, pins)
  struct Fact {
    std::string key;
    std::string value;  // empty: forgotten
  };
  // What they are of, by the key's beginning ("pin/", "registration/"): each kind has a part of the
  // disk of its own, and can neither use up the others' nor that of blocks.
  enum class FactKind : uint8_t { kPin, kRegistration, kOther };
  static constexpr size_t kFactKinds = 3;
  [[nodiscard]] static FactKind KindOf(std::string_view key) {
    if (key.starts_with("pin/")) return FactKind::kPin;
    return key.starts_with("registration/") ? FactKind::kRegistration : FactKind::kOther;
  }
  struct FactUse {
    uint64_t facts = 0;
    ByteCount bytes;      // keys, and what is kept beside them, included
    ByteCount bytes_max;  // its part
  };
  using FactUses = std::array<FactUse, kFactKinds>;  // by kind
  // Durable on OK, all of them; else each may be or not, but none is torn.  ResourceExhausted:
  // their kind has its part, or the disk is full.  What only forgets needs no room.  REQUIRES: keys
  // of 1 to 512 bytes that differ, values up to 1 MiB.
  [[nodiscard]] virtual absl::Status PutFacts(std::span<const Fact> facts) = 0;
  [[nodiscard]] absl::Status PutFact(const std::string& key, const std::string& value) {
    const Fact one{key, value};
    return PutFacts({&one, 1});
  }
  virtual void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) = 0;

  [[nodiscard]] virtual ByteCount block_bytes_max() const = 0;  // of a payload
  // What one Put finds in one place, headers included; that of less may still find none where it
  // lies apart, and one of more goes to several places, each with a sync of its own.  Cheap.
  [[nodiscard]] virtual ByteCount free_bytes() const = 0;
  // Up to so much in one Put it is worth to make room in one place: a small share of all.
  [[nodiscard]] virtual ByteCount batch_bytes() const = 0;

  struct Stats {
    ByteCount limit;      // as configured
    ByteCount room;       // of it, for records
    ByteCount used;       // by live records, headers and padding included
    ByteCount allocated;  // on the disk, all files
    uint64_t blocks = 0;
    uint64_t unplaced = 0;  // of them, those that the caller of Recover could not take yet
    uint64_t puts = 0, gets = 0, erased = 0;  // blocks
    ByteCount put_bytes, got_bytes;           // payloads
    ByteCount written_bytes;                  // to the disk, by puts and the catalog
    uint64_t damaged = 0;                     // records and descriptions found so
    uint64_t write_failures = 0, read_failures = 0, sync_failures = 0, catalog_failures = 0;
    // All, open or not; of them, those that are closed, have not told what they hold, or take
    // nothing since a write failed; and those that were damaged and lie aside.
    uint32_t shards = 0, shards_failed = 0, shards_set_aside = 0;
    FactUses facts;
    uint64_t refused_catalog = 0;  // blocks that found room for their bytes and none in a catalog
  };
  [[nodiscard]] virtual Stats stats() const = 0;
};

[[nodiscard]] inline const char* ToString(DiskTier::PutStatus status) {
  constexpr const char* kNames[] = {"ok", "no room", "too large", "failed", "taken", "not now"};
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
