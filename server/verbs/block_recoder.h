// Encodes or decodes copies of blocks in the tier where they are: the steps of Compress for several
// blocks at once.
//
// A copy is read and recoded (encoded or decoded) while its block is held.  Then the new copy
// replaces the old one in one step: in HOST its extent, on DISK its record, where a crash leaves
// either the old or the new record.  No replacement begins while the block has another hold than
// the recoder's, because its holder may read the old copy or wait for it.  Bytes are checked before
// they are recoded.
// Ownership: CompressVerb owns it; the store and the disk outlive it.
// Thread-safety: all methods from any thread, each on copies of its own.
// Locks: none of its own.
// Blocking: Prepare and Write may wait for the disk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "storage/codec/payload_codec.h"
#include "storage/disk/page_buffer.h"
#include "storage/format/record.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class BlockRecoder {
 public:
  enum class Outcome : uint8_t {
    kReady,        // read and recoded, not written yet
    kChanged,      // written
    kUnchanged,    // the copy is in that codec already, or would not get smaller
    kMissing,      // the block has left the tier, or the copy was damaged
    kInUse,        // the block has other holds, or its record is being or was just rewritten
    kNoRoom,       // the tier has no space for the new copy, or does not take it now
    kUnsupported,  // the copy is in a codec that cannot be converted here
    kFailed,       // the disk failed
  };
  // A copy of a block, from Prepare to Release.
  struct Copy {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Tier tier = Tier::kHost;
    Outcome outcome = Outcome::kMissing;
    uint32_t pages_before = 0, pages_after = 0;  // of the payload
    [[nodiscard]] ByteCount held_bytes() const { return ByteCount(bytes.bytes().size()); }

   private:
    friend class BlockRecoder;
    EntryRef ref;  // held until Release
    RecordHeader header;
    std::vector<uint32_t> tokens;
    BlockWriter writer;  // for HOST; a record has its writer in the header
    PageBuffer bytes{0};
    uint64_t location = 0;
  };

  BlockRecoder(BlockStore& store, DiskParts disk) : store_(store), disk_(disk) {}

  // Holds the block of one copy, reads the copy and recodes it.  Sets its outcome, which is never
  // kChanged.
  void Prepare(Codec to, PayloadCodec& codec, Copy* copy) const;
  // Writes the copies that are kReady.  Those whose blocks are in use may stay kReady.  REQUIRES:
  // all copies are of one tier.
  void Write(std::span<Copy> copies, PayloadCodec& codec) const;
  // Releases the copies, whatever their outcome.
  void Release(std::span<Copy> copies) const;

 private:
  [[nodiscard]] Outcome Recode(Codec to, PayloadCodec& codec, std::span<const std::byte> payload,
                               Copy* copy) const;
  [[nodiscard]] Outcome ReadHost(const BlockIndex::Held& held, PageBuffer* payload,
                                 Copy* copy) const;
  [[nodiscard]] Outcome ReadDisk(const BlockIndex::Held& held, PageBuffer* payload,
                                 Copy* copy) const;
  [[nodiscard]] Outcome Damaged(const Copy& copy) const;
  [[nodiscard]] Outcome WriteHost(Copy& copy) const;
  void WriteDisk(std::span<Copy*> copies, PayloadCodec& codec) const;
  // Replaces the records of blocks that no other reader or writer may use now.
  void Replace(std::span<Copy* const> mine, PayloadCodec& codec) const;
  void Put(std::span<const DiskTier::NewBlock> blocks,
           std::span<DiskTier::PutResult> results) const;

  BlockStore& store_;
  const DiskParts disk_;
};

}  // namespace larder
