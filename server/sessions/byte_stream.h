// What the calls StoreBlocks and FetchBlocks do, without gRPC: BlockReceiver stores the blocks
// whose bytes a client sends, and BlockSender makes the messages that bring stored blocks to a
// client.
//
// Both check the bytes of a block before they store or send it.
// Ownership: one object per call.  The object holds leases and reservations of the BlockStore, and
// releases them when it is destroyed.
// Thread-safety: none; one call at a time.
// Limits: a receiver reserves the extent of one block at a time.  A sender leases up to 16 keys at
// a time and reserves at most one extent, for a block that it decodes.  These are charged to the
// caller's shares (server/runtime/shares.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "server/sessions/session_context.h"
#include "storage/codec/payload_codec.h"
#include "storage/format/payload_cursor.h"
#include "storage/store/block_store.h"

namespace larder {

class BlockReceiver {
 public:
  // `account` is that of the process that sends the blocks.
  BlockReceiver(SessionDeps& deps, Shares::Account account)
      : deps_(deps), account_(std::move(account)) {}

  // To be called with the first message of the stream.  Returns an error, naming what is wrong, if
  // the message is not acceptable.  If a registration exceeds a limit, returns OK, but no block of
  // the stream is stored.
  [[nodiscard]] absl::Status Open(ContentSpec content, const VariantSpec& variant,
                                  const std::string& engine_id);
  // Begins the next block.  Returns an error, at which the caller must end the stream, if Open has
  // not succeeded, the block is not valid, or the previous block is incomplete.  A block that
  // cannot be stored gets a status that says why.
  [[nodiscard]] absl::Status Begin(wire::StoreBlock block);
  // Adds bytes to the current block.  Returns InvalidArgument if no block was begun, or if these
  // are more bytes than the current block lacks.
  [[nodiscard]] absl::Status Append(std::span<const std::byte> data);
  // To be called after the last message.  Returns InvalidArgument if a block is incomplete.
  [[nodiscard]] absl::Status Close();

  [[nodiscard]] const std::vector<BlockStatus>& status() const { return status_; }
  [[nodiscard]] const std::vector<Digest>& digests() const { return digests_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  [[nodiscard]] absl::Status Register(const ContentSpec& content, const std::string& engine_id);
  void Fail(BlockStatus status, const std::string& why);
  void Reserve();  // called for the block's first byte
  void Finish();   // called after its last byte

  SessionDeps& deps_;
  const Shares::Account account_;
  bool open_ = false;
  std::string refused_;  // why no block of this stream can be stored; empty if blocks can be
  VariantSpec variant_;
  VariantIndex index_ = VariantIndex::kNone;
  Digest seed_;
  BlockWriter writer_;
  // The current block.
  std::optional<wire::StoreBlock> block_;
  ExtentReservation reservation_;  // if empty after the first byte, bytes are discarded
  Shares::Ticket charged_;         // charges reservation_
  bool begun_ = false;             // the block has received its first byte or has failed
  uint64_t missing_bytes_ = 0;     // of the current block, not received yet
  size_t segment_ = 0;             // the next segment to be received
  std::optional<PayloadWriter> out_;
  std::span<std::byte> missing_of_segment_;  // the part of segment_ - 1 to be filled

  std::vector<BlockStatus> status_;
  std::vector<Digest> digests_;
  std::string message_;
};

class BlockSender {
 public:
  // `account` is that of the process that fetches the blocks.
  BlockSender(SessionDeps& deps, Shares::Account account, VariantSpec variant,
              std::vector<Digest> digests, uint32_t first_layer, uint32_t layers);

  // One message of the answer.
  struct Piece {
    bool start = false;  // begins a key; otherwise the fields up to `segments` are not set
    uint32_t key = 0;
    BlockStatus status = BlockStatus::kMissing;
    std::string record_header;
    uint32_t first_segment = 0;
    uint32_t segments = 0;
    std::span<const std::byte> data;  // valid until the next call
  };
  // Sets *piece to the next message.  Returns false if there is none left.
  [[nodiscard]] bool Next(Piece* piece);

 private:
  static constexpr size_t kWindow = 16;
  void Refill();
  void StartKey(Piece* piece);
  // Decodes a block that HOST holds encoded, because it is sent decoded.  On kOk, payload_ and
  // table_ are those of the decoded bytes.
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
  Shares::Ticket leased_;  // charges window_
  size_t window_begin_ = 0;
  size_t next_key_ = 0;
  // The current key's block, decoded if HOST holds it encoded: all of its segments and bytes.
  SegmentTable table_;
  std::span<const std::byte> payload_;
  ExtentReservation raw_;  // the extent that a block was decoded into
  Shares::Ticket raw_charged_;
  PayloadCodec codec_;
  uint32_t segment_ = 0;  // the next segment to be sent
  uint32_t segments_end_ = 0;
  SegmentCursor at_;
  std::span<const std::byte> left_of_segment_;  // the part of segment_ - 1 to be sent
};

}  // namespace larder
