#include "server/services/byte_streams.h"

#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "proto/convert/convert.h"
#include "server/services/caller.h"
#include "server/services/charged_request.h"
#include "server/services/rpc_status.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// Charged for a stream until OnDone, in addition to its messages, for what the daemon and gRPC keep
// of it.  A call of gRPC is assumed to take several KiB; this was not measured.  With a charge of
// 64 KiB, callers that had their answers were refused: OnDone may come 50 ms late, and in that time
// a thousand small streams end.
constexpr ByteCount kBaseBytes = KiB(16);
constexpr Duration kRetry = std::chrono::milliseconds(10);  // if a message cannot be charged

// The data of a message, plus token ids, hashes and names.
constexpr size_t kStoreMessageMax = wire::kDataBytesMax + (512 << 10);

std::span<const std::byte> AsBytes(std::string_view s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

}  // namespace

// ---- shares of both kinds of streams

absl::StatusOr<StreamShare> StreamShare::Enter(grpc::CallbackServerContext& context,
                                               const Shares::Account& account) {
  StreamShare share(account);
  Shares::Answer place = account.Take(ShareKind::kByteStreams);
  Shares::Answer base = account.Take(ShareKind::kMessageBytes, kBaseBytes);
  for (Shares::Answer* const answer : {&place, &base}) {
    if (!answer->admitted()) return Overloaded(context, answer->retry_after, answer->why);
  }
  share.place_ = std::move(place.ticket);
  share.base_ = std::move(base.ticket);
  return share;
}

bool StreamShare::ChargeMessage(size_t memory) {
  message_.Reset();
  message_ = account_.Take(ShareKind::kMessageBytes, memory).ticket;
  return static_cast<bool>(message_);
}

void StreamShare::End() { place_.Reset(); }

// ---- StoreBlocks

StoreStream::StoreStream(grpc::CallbackServerContext& context, SessionDeps& deps,
                         v1::StoreBlocksReply* reply, StreamShare share)
    : context_(context),
      deps_(deps),
      share_(std::move(share)),
      receiver_(std::in_place, deps, share_.account()),
      deadline_(context, CallDeadline::kBytes),
      reply_(reply) {
  StartRead(&bytes_);
}

void StoreStream::OnReadDone(bool ok) {
  if (!ok) return End(receiver_->Close());
  deadline_.Moved();
  // Refuses a message that is longer than any valid one, before it waits for its charge.
  if (bytes_.Length() > kStoreMessageMax) {
    return End(absl::InvalidArgumentError(absl::StrCat("a message of ", bytes_.Length(),
                                                       " bytes; allowed are ", wire::kDataBytesMax,
                                                       " bytes of data, and the head of a block")));
  }
  const absl::StatusOr<size_t> memory = MemoryOf(bytes_, *v1::StoreBlocksRequest::descriptor());
  if (!memory.ok()) return End(memory.status());
  HandleMessage(*memory);
}

void StoreStream::HandleMessage(size_t memory) {
  if (!share_.ChargeMessage(memory)) {
    if (context_.IsCancelled())
      return End(absl::CancelledError("the call ended while a message waited for capacity"));
    retry_.emplace();
    retry_->Set(std::chrono::system_clock::now() + kRetry,
                [this, memory](bool) { HandleMessage(memory); });
    return;
  }
  absl::Status status;
  {
    v1::StoreBlocksRequest request;
    status = Parse(&bytes_, &request);
    if (status.ok()) status = OnMessage(request);
  }
  share_.EndMessage();
  if (!status.ok()) return End(status);
  StartRead(&bytes_);
}

void StoreStream::End(const absl::Status& status) {
  if (status.ok()) {
    wire::Encode(
        wire::StoreBlocksResult{receiver_->status(), receiver_->digests(), receiver_->message()},
        reply_);
  } else if (!absl::IsCancelled(status)) {
    ++deps_.counters.invalid_messages;
  }
  receiver_.reset();
  bytes_.Clear();
  share_.EndMessage();
  share_.End();
  Finish(ToRpcStatus(status));
}

absl::Status StoreStream::OnMessage(const v1::StoreBlocksRequest& request) {
  wire::StoreBlocksPart part;
  LARDER_RETURN_IF_ERROR(wire::Decode(request, &part));
  if (part.head.has_value() != first_) {
    return absl::InvalidArgumentError(
        "content and variant: required in the first message of the stream, and allowed only there");
  }
  if (part.head) {
    first_ = false;
    LARDER_RETURN_IF_ERROR(CheckTenant(part.head->tenant, deps_.tenant));
    LARDER_RETURN_IF_ERROR(
        receiver_->Open(part.head->content, part.head->variant, part.head->engine_id));
  }
  if (part.block) {
    if (receiver_->status().size() >= wire::kKeysMax) {
      return absl::InvalidArgumentError(
          "more than 4,096 blocks in one stream: open another stream");
    }
    LARDER_RETURN_IF_ERROR(receiver_->Begin(*std::move(part.block)));
  }
  deps_.counters.stored_bytes += part.data.size();
  return receiver_->Append(AsBytes(part.data));
}

// ---- FetchBlocks

FetchStream::FetchStream(grpc::CallbackServerContext& context, BlockSender sender,
                         StreamShare share)
    : context_(context),
      share_(std::move(share)),
      sender_(std::move(sender)),
      deadline_(context, CallDeadline::kBytes) {
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
  wire::Encode(part, &reply_);
  Write();
}

void FetchStream::Write() {
  constexpr size_t kCopies = 2;  // reply_ and gRPC's copy of it
  if (share_.ChargeMessage(kCopies * reply_.ByteSizeLong())) return StartWrite(&reply_);
  if (context_.IsCancelled()) {
    return End(grpc::Status(grpc::StatusCode::CANCELLED,
                            "the call ended while a message waited for capacity"));
  }
  retry_.emplace();
  retry_->Set(std::chrono::system_clock::now() + kRetry, [this](bool) { Write(); });
}

void FetchStream::OnWriteDone(bool ok) {
  if (ok) {
    deadline_.Moved();
    WriteNext();
  } else {
    End(grpc::Status(grpc::StatusCode::CANCELLED, "the client has ended the call"));
  }
}

void FetchStream::End(const grpc::Status& status) {
  sender_.reset();
  reply_ = {};
  share_.End();  // without EndMessage: the client may not have read the last message yet
  Finish(status);
}

}  // namespace larder
