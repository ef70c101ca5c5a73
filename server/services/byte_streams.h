// The gRPC side of StoreBlocks and FetchBlocks: reactors that pump messages between the wire and
// server/byte_stream.
//
// Ownership: each deletes itself in OnDone.  Memory: one message at a time each way; its bytes, and
// what they say, are charged to the caller's share while it is under way.  Where there is no room
// it waits, one that came in as bytes that are not parsed; a stream that is idle takes a place and
// little else.
// Limits: an idle stream ends after half a minute, any after an hour.
// What a stream holds (its place at the admission, leases, a reservation, messages) is back before
// its answer goes out, but for what gRPC itself still keeps of it: gRPC calls OnDone when it finds
// the time, and a caller that has its answer and opens the next stream must not be counted twice.
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

// What a byte stream holds beside the pool.
class StreamShare {
 public:
  // ResourceExhausted, with the hint in the trailing metadata: there is no place.
  [[nodiscard]] static absl::StatusOr<StreamShare> Enter(grpc::CallbackServerContext& context,
                                                         const Shares::Account& account);
  // Room for a message, in place of the one before: for so much memory.  False: there is none now.
  [[nodiscard]] bool ChargeMessage(size_t memory);
  void EndMessage() { message_.Reset(); }
  // What gRPC may keep until OnDone stays charged.
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
  void HandleMessage(size_t memory);  // as soon as there is room for so much
  void OnDone() override { delete this; }
  [[nodiscard]] absl::Status OnMessage(const v1::StoreBlocksRequest& request);
  void End(const absl::Status& status);

  grpc::CallbackServerContext& context_;
  SessionDeps& deps_;
  StreamShare share_;
  std::optional<BlockReceiver> receiver_;  // until the end
  CallDeadline deadline_;
  std::optional<grpc::Alarm> retry_;
  grpc::ByteBuffer bytes_;  // of the message that was read
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
  void Write();  // reply_, as soon as there is room for it
  void End(const grpc::Status& status);

  grpc::CallbackServerContext& context_;
  StreamShare share_;
  std::optional<BlockSender> sender_;  // until the end
  CallDeadline deadline_;
  std::optional<grpc::Alarm> retry_;
  v1::FetchBlocksReply reply_;
};

}  // namespace larder
