// Encodes or decodes copies of blocks where they lie: the steps of Compress for a few blocks.
//
// A copy is read and encoded while it is held, then put in the place of the old one at once: in
// HOST its extent, on DISK its record, of which a crash leaves the old or the new.  Only while
// nobody else holds the block: who reads it, or waits for it, has the old one under his hands.
// Nothing is encoded that was not found whole just before.
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: all methods from any thread, each on copies of its own.  Blocking: all of them
// wait for the disk.
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
    kReady,        // read and encoded, not written
    kChanged,      // written
    kUnchanged,    // it is of that codec, or would not become smaller
    kMissing,      // it has left that tier, or is damaged
    kInUse,        // somebody else holds it
    kNoRoom,       // the tier does not take it
    kUnsupported,  // of a codec that is not known here
    kFailed,       // the disk's fault
  };
  // A copy of a block, from Prepare to Release.
  struct Copy {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Tier tier = Tier::kHost;
    Outcome outcome = Outcome::kMissing;
    uint32_t pages_before = 0, pages_after = 0;  // of the payload; the same unless kReady, kChanged
    [[nodiscard]] ByteCount held_bytes() const { return ByteCount(bytes.bytes().size()); }

   private:
    friend class BlockRecoder;
    EntryRef ref;  // held until Release
    RecordHeader header;
    std::vector<uint32_t> tokens;
    BlockWriter writer;  // of HOST; the record's is in its header
    PageBuffer bytes{0};
    uint64_t location = 0;
  };

  BlockRecoder(BlockStore& store, DiskParts disk) : store_(store), disk_(disk) {}

  // Reads and encodes one; its outcome is never kChanged.
  void Prepare(Codec to, PayloadCodec& codec, Copy* copy) const;
  // Writes those that are kReady: those of DISK with one sync.  REQUIRES: of one tier.
  void Write(std::span<Copy> copies, PayloadCodec& codec) const;
  // Lets go of them, whatever became of them.
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
  // Those that nobody else may read or write now.
  void Replace(std::span<Copy* const> mine, PayloadCodec& codec) const;
  void Put(std::span<const DiskTier::NewBlock> blocks,
           std::span<DiskTier::PutResult> results) const;

  BlockStore& store_;
  const DiskParts disk_;
};

}  // namespace larder
