// The byte-stream fallback without gRPC: a receiver that turns StoreBlocks into stored blocks, and
// a sender that turns stored blocks into FetchBlocks.  Both check every byte: what came over a
// network is hashed where only the daemon writes, what goes out is checked before it leaves.
//
// Ownership: one per call; hold store handles, which go back when they are dropped.
// Thread-safety: none; one call at a time.
// Limits: one block of a stream in the pool's reserve at a time, from its first byte to its last; a
// lease over kWindow keys at a time; both charged to the caller's shares (server/runtime/shares.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "server/sessions/session.h"
#include "storage/store/block_store.h"

namespace larder {

class BlockReceiver {
 public:
  // `account`: of the process that sends.
  BlockReceiver(SessionDeps& deps, Shares::Account account)
      : deps_(deps), account_(std::move(account)) {}

  // From the first message of the stream.  InvalidArgument names what is wrong; PermissionDenied:
  // the engine is of another user.
  [[nodiscard]] absl::Status Open(ContentSpec content, const VariantSpec& variant,
                                  const std::string& engine_id);
  // The next block's head.  Errors of the block itself become its status; only a broken stream is
  // an error.
  [[nodiscard]] absl::Status Begin(wire::StoreBlock block);
  // Bytes of the block at hand.  InvalidArgument: more than its table says, or no block begun.
  [[nodiscard]] absl::Status Append(std::span<const std::byte> data);
  // After the last message.  InvalidArgument: a block is cut short.
  [[nodiscard]] absl::Status Close();

  [[nodiscard]] const std::vector<BlockStatus>& status() const { return status_; }
  [[nodiscard]] const std::vector<Digest>& digests() const { return digests_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  [[nodiscard]] absl::Status Register(const ContentSpec& content, const std::string& engine_id);
  void Fail(BlockStatus status, const std::string& why);
  void Reserve();  // the block's first byte is here
  void Finish();   // its last one

  SessionDeps& deps_;
  const Shares::Account account_;
  bool open_ = false;
  std::string refused_;  // why nothing of this stream can be stored
  VariantSpec variant_;
  VariantIndex index_ = VariantIndex::kNone;
  Digest seed_;
  BlockWriter writer_;
  // The block at hand.
  std::optional<wire::StoreBlock> block_;
  ExtentReservation reservation_;  // empty: its bytes are read and thrown away
  Shares::Ticket charged_;         // for that
  bool begun_ = false;             // its first byte was here, or it failed before
  uint64_t missing_bytes_ = 0;     // of the stream's bytes
  size_t segment_ = 0;
  uint64_t in_segment_ = 0;
  uint64_t at_ = 0;  // in the payload

  std::vector<BlockStatus> status_;
  std::vector<Digest> digests_;
  std::string message_;
};

class BlockSender {
 public:
  // `account`: of the process that fetches.
  BlockSender(SessionDeps& deps, Shares::Account account, VariantSpec variant,
              std::vector<Digest> digests, uint32_t first_layer, uint32_t layers);

  // One message of the answer.
  struct Piece {
    bool start = false;  // a new key: the fields below hold
    uint32_t key = 0;
    BlockStatus status = BlockStatus::kMissing;
    std::string record_header;
    uint32_t first_segment = 0;
    uint32_t segments = 0;
    std::span<const std::byte> data;  // valid until the next call
  };
  // False: all keys were answered.
  [[nodiscard]] bool Next(Piece* piece);

 private:
  static constexpr size_t kWindow = 16;
  void Refill();
  void StartKey(Piece* piece);
  // What HOST has encoded is sent decoded; payload_ and table_ are of that then.
  [[nodiscard]] BlockStatus Decode(const BlockIndex::Held& held);

  SessionDeps& deps_;
  const Shares::Account account_;
  const VariantSpec variant_;
  const std::vector<Digest> digests_;
  const uint32_t first_layer_;
  const uint32_t layers_;
  const Digest variant_id_;
  std::optional<VariantIndex> index_;

  BlockStore::AcquireResult window_;
  Shares::Ticket leased_;  // for that
  size_t window_begin_ = 0;
  size_t next_key_ = 0;
  // The segments still to send of the key at hand.
  SegmentTable table_;
  std::span<const std::byte> payload_;
  ExtentReservation raw_;  // where it was decoded
  Shares::Ticket raw_charged_;
  PayloadCodec codec_;
  uint32_t segment_ = 0;
  uint32_t segments_end_ = 0;
  uint64_t offset_ = 0;  // of the segment in the payload
  uint64_t in_segment_ = 0;
};

}  // namespace larder
