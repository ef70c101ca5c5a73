#include "server/services/byte_streams.h"

#include <span>
#include <string_view>

#include "client/wire/convert.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"

namespace larder {
namespace {

// Charged for what gRPC keeps of a stream that has ended, until OnDone; beside what its client has
// not read.  A call of gRPC's is thought to take some KiB; it was not measured.  A charge of 64 KiB
// shut the door on callers who had their answers: OnDone may come 50 ms late, and in that time a
// thousand small streams end.
constexpr uint64_t kEndedBytes = 16 << 10;

std::span<const std::byte> AsBytes(std::string_view s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

}  // namespace

StoreStream::StoreStream(grpc::CallbackServerContext& context, SessionDeps& deps,
                         v1::StoreBlocksReply* reply, Admission::Ticket ticket)
    : deps_(deps), receiver_(deps), ticket_(std::move(ticket)), deadline_(context), reply_(reply) {
  StartRead(&request_);
}

void StoreStream::OnReadDone(bool ok) {
  absl::Status status = ok ? OnMessage() : receiver_->Close();
  if (ok && status.ok()) {
    StartRead(&request_);
    return;
  }
  if (status.ok()) {
    wire::Encode(
        wire::StoreBlocksResult{receiver_->status(), receiver_->digests(), receiver_->message()},
        reply_);
  } else {
    ++deps_.counters.invalid_messages;
  }
  End(status);
}

void StoreStream::End(const absl::Status& status) {
  receiver_.reset();
  request_ = {};
  ticket_.ShrinkTo(kEndedBytes);
  Finish(ToRpcStatus(status));
}

absl::Status StoreStream::OnMessage() {
  wire::StoreBlocksPart part;
  if (absl::Status s = wire::Decode(request_, &part); !s.ok()) return s;
  if (part.head.has_value() != first_) {
    return absl::InvalidArgumentError(
        "content and variant: in the first message of the stream, and only there");
  }
  if (part.head) {
    first_ = false;
    if (absl::Status s = CheckTenant(part.head->tenant, deps_.tenant); !s.ok()) return s;
    if (absl::Status s =
            receiver_->Open(part.head->content, part.head->variant, part.head->engine_id);
        !s.ok()) {
      return s;
    }
  }
  if (part.block) {
    if (receiver_->status().size() >= wire::kKeysMax) {
      return absl::InvalidArgumentError("more than 4,096 blocks in one stream: open another");
    }
    if (absl::Status s = receiver_->Begin(*std::move(part.block)); !s.ok()) return s;
  }
  deps_.counters.stored_bytes += part.data.size();
  return receiver_->Append(AsBytes(part.data));
}

FetchStream::FetchStream(grpc::CallbackServerContext& context, BlockSender sender,
                         Admission::Ticket ticket)
    : sender_(std::move(sender)), ticket_(std::move(ticket)), deadline_(context) {
  WriteNext();
}

void FetchStream::WriteNext() {
  BlockSender::Piece piece;
  if (!sender_->Next(&piece)) {
    End(grpc::Status::OK);
    return;
  }
  wire::FetchBlocksPart part;
  if (piece.start) {
    part.start = wire::FetchStart{piece.key, piece.status, std::move(piece.record_header),
                                  piece.first_segment, piece.segments};
  }
  part.data = {reinterpret_cast<const char*>(piece.data.data()), piece.data.size()};
  sent_ += piece.data.size();
  wire::Encode(part, &reply_);
  StartWrite(&reply_);
}

void FetchStream::OnWriteDone(bool ok) {
  if (ok) {
    WriteNext();
  } else {
    End(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
  }
}

void FetchStream::End(const grpc::Status& status) {
  sender_.reset();
  reply_ = {};
  ticket_.ShrinkTo(kEndedBytes + sent_);
  Finish(status);
}

}  // namespace larder
