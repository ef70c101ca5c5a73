// The gRPC side of StoreBlocks and FetchBlocks: reactors that pass messages between gRPC and
// server/sessions/byte_stream.h.
//
// What a stream holds (its place among the byte streams, leases, a reservation) is released before
// its answer is complete, because gRPC may call OnDone late, and a caller that has its answer and
// opens the next stream must not be counted twice.  What gRPC itself may keep of the call, which
// includes the last message of FetchBlocks, stays charged until OnDone.
// Ownership: each reactor deletes itself in OnDone.
// Thread-safety: none; gRPC and the retry alarm call a stream one at a time.
// Memory: one message at a time.  Its bytes and the parsed message are charged to the caller's
// share while the message is under way.  If the share is full, the message waits; a received
// message waits unparsed.
// Limits: a stream on which nothing moves for 30 s ends, and every stream at the deadline that its
// caller sets, or after 30 s if it sets none; at the latest after one hour.
#pragma once

#include <optional>
#include <utility>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "larder/v1/engine.pb.h"
#include "server/runtime/shares.h"
#include "server/services/call_deadline.h"
#include "server/sessions/byte_stream.h"

namespace larder {

// What a byte stream holds of its caller's shares of byte streams and of message bytes.
class StreamShare {
 public:
  // Takes a place among the byte streams (ShareKind::kByteStreams) and charges what gRPC may keep
  // of the call.  Returns ResourceExhausted if a share is full, usually with a retry hint in the
  // trailing metadata.
  [[nodiscard]] static absl::StatusOr<StreamShare> Enter(grpc::CallbackServerContext& context,
                                                         const Shares::Account& account);
  // Releases the charge for the previous message, and charges `memory` bytes for the next one.
  // Returns false if the share does not allow them now.
  [[nodiscard]] bool ChargeMessage(size_t memory);
  void EndMessage() { message_.Reset(); }
  // Releases the stream's place among the byte streams.  The charge for what gRPC may keep until
  // OnDone stays, and so does the charge for a message unless EndMessage was called.
  void End();
  [[nodiscard]] const Shares::Account& account() const { return account_; }

 private:
  explicit StreamShare(Shares::Account account) : account_(std::move(account)) {}
  Shares::Account account_;
  Shares::Ticket place_, base_, message_;
};

class StoreStream final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  StoreStream(grpc::CallbackServerContext& context, SessionDeps& deps, v1::StoreBlocksReply* reply,
              StreamShare share);

 private:
  void OnReadDone(bool ok) override;
  void HandleMessage(size_t memory);  // once `memory` bytes can be charged
  void OnDone() override { delete this; }
  [[nodiscard]] absl::Status OnMessage(const v1::StoreBlocksRequest& request);
  void End(const absl::Status& status);

  grpc::CallbackServerContext& context_;
  SessionDeps& deps_;
  StreamShare share_;
  std::optional<BlockReceiver> receiver_;  // empty after End
  CallDeadline deadline_;
  std::optional<grpc::Alarm> retry_;
  grpc::ByteBuffer bytes_;  // the message that was read
  v1::StoreBlocksReply* const reply_;
  bool first_ = true;
};

class FetchStream final : public grpc::ServerWriteReactor<v1::FetchBlocksReply> {
 public:
  FetchStream(grpc::CallbackServerContext& context, BlockSender sender, StreamShare share);

 private:
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }
  void WriteNext();
  void Write();  // writes reply_ once it can be charged
  void End(const grpc::Status& status);

  grpc::CallbackServerContext& context_;
  StreamShare share_;
  std::optional<BlockSender> sender_;  // empty after End
  CallDeadline deadline_;
  std::optional<grpc::Alarm> retry_;
  v1::FetchBlocksReply reply_;
};

}  // namespace larder
