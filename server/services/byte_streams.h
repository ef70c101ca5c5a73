// The gRPC side of StoreBlocks and FetchBlocks: reactors that pump messages between the wire and
// server/byte_stream.
//
// Ownership: each deletes itself in OnDone.  Memory: one message at a time each way.
// What a stream holds (its place at the admission, leases, a reservation, messages) is back before
// its answer goes out, but for what gRPC itself still keeps of it: gRPC calls OnDone when it finds
// the time, and a caller that has its answer and opens the next stream must not be counted twice.
#pragma once

#include <optional>
#include <utility>

#include <grpcpp/support/server_callback.h>

#include "larder/v1/engine.pb.h"
#include "server/admission.h"
#include "server/byte_stream.h"
#include "server/services/call_deadline.h"

namespace larder {

class StoreStream final : public grpc::ServerReadReactor<v1::StoreBlocksRequest> {
 public:
  StoreStream(grpc::CallbackServerContext& context, SessionDeps& deps, v1::StoreBlocksReply* reply,
              Admission::Ticket ticket);

 private:
  void OnReadDone(bool ok) override;
  void OnDone() override { delete this; }
  [[nodiscard]] absl::Status OnMessage();
  void End(const absl::Status& status);

  SessionDeps& deps_;
  std::optional<BlockReceiver> receiver_;  // until the end
  Admission::Ticket ticket_;
  CallDeadline deadline_;
  v1::StoreBlocksRequest request_;
  v1::StoreBlocksReply* const reply_;
  bool first_ = true;
};

class FetchStream final : public grpc::ServerWriteReactor<v1::FetchBlocksReply> {
 public:
  FetchStream(grpc::CallbackServerContext& context, BlockSender sender, Admission::Ticket ticket);

 private:
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }
  void WriteNext();
  void End(const grpc::Status& status);

  std::optional<BlockSender> sender_;  // until the end
  uint64_t sent_ = 0;                  // bytes, of which its client may not have read any
  Admission::Ticket ticket_;
  CallDeadline deadline_;
  v1::FetchBlocksReply reply_;
};

}  // namespace larder
