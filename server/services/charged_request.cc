#include "server/services/charged_request.h"

#include <utility>

#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"
#include "proto/convert/parsed_weight.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

struct ChargedRequest {
  grpc::ByteBuffer bytes;
  Shares::Ticket charge;
};

absl::StatusOr<Shares::Ticket> Charge(grpc::CallbackServerContext& context, const SessionDeps& deps,
                                      const Shares::Account& account, size_t memory) {
  Shares::Answer room = account.Take(ShareKind::kMessageBytes, memory);
  if (room.admitted()) return std::move(room.ticket);
  ++deps.counters.calls_overloaded;
  return Overloaded(context, room.retry_after, room.why);
}

// Answers a request, which may be charged for its bytes already.  Unless the request is small,
// charges it first for the rest of its memory.
void AnswerNow(UnaryCall& call, const SessionDeps& deps, const google::protobuf::Descriptor& type,
               ChargedRequest& request, const AnswerBytes& answer) {
  const size_t length = request.bytes.Length();
  const absl::StatusOr<size_t> memory = MemoryOf(request.bytes, type);
  if (!memory.ok()) return call.Refuse(memory.status());
  if (length > kSmallRequestBytes) {
    absl::StatusOr<Shares::Ticket> more =
        Charge(call.context(), deps, call.account(), *memory - request.charge.amount());
    if (!more.ok()) return call.Finish(more.status());
    request.charge.Merge(*std::move(more));
  }
  if (const absl::Status status = answer(std::exchange(request.bytes, {})); !status.ok())
    call.Refuse(status);
}

}  // namespace

absl::StatusOr<size_t> MemoryOf(const grpc::ByteBuffer& bytes,
                                const google::protobuf::Descriptor& type) {
  const size_t length = bytes.Length();
  const uint64_t most = ParsedWeightMax(length);
  grpc::ProtoBufferReader reader(const_cast<grpc::ByteBuffer*>(&bytes));  // only reads them
  const uint64_t weight = ParsedWeight(type, reader, most);
  if (weight <= most) return length + static_cast<size_t>(weight);
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", length, " bytes would take more than ", most,
                   " bytes of memory: it repeats empty fields, or fields that ", type.full_name(),
                   " does not have"));
}

absl::Status Parse(grpc::ByteBuffer* bytes, google::protobuf::Message* message) {
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(bytes);
    parsed = message->ParseFromZeroCopyStream(&reader);
  }
  bytes->Clear();
  if (parsed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the bytes are not a valid ", message->GetDescriptor()->full_name(), " message"));
}

absl::StatusOr<Shares::Ticket> ParseCharged(grpc::CallbackServerContext& context,
                                            const SessionDeps& deps, grpc::ByteBuffer bytes,
                                            size_t length_max, google::protobuf::Message* request) {
  const size_t length = bytes.Length();
  absl::StatusOr<size_t> memory =
      length <= length_max ? MemoryOf(bytes, *request->GetDescriptor())
                           : absl::InvalidArgumentError(absl::StrCat(
                                 "a request of ", length, " bytes; allowed are ", length_max));
  Shares::Ticket ticket;
  if (memory.ok() && length > kSmallRequestBytes) {
    absl::StatusOr<Shares::Ticket> room = Charge(context, deps, AccountOf(context, deps), *memory);
    LARDER_RETURN_IF_ERROR(room.status());
    ticket = *std::move(room);
  }
  absl::Status status = memory.ok() ? Parse(&bytes, request) : memory.status();
  if (status.ok()) return ticket;
  ++deps.counters.invalid_messages;
  return status;
}

void AnswerCharged(UnaryCall& call, const SessionDeps& deps, WorkerPool& long_requests,
                   grpc::ByteBuffer bytes, const google::protobuf::Descriptor& type,
                   AnswerBytes answer) {
  const size_t length = bytes.Length();
  if (length <= kInlineRequestBytes) {
    ChargedRequest request{.bytes = std::move(bytes), .charge = {}};
    return AnswerNow(call, deps, type, request, answer);
  }
  absl::StatusOr<Shares::Ticket> charge = Charge(call.context(), deps, call.account(), length);
  if (!charge.ok()) return call.Finish(charge.status());
  // Shared, because a job must be copyable.
  const auto request = std::make_shared<ChargedRequest>(
      ChargedRequest{.bytes = std::move(bytes), .charge = *std::move(charge)});
  OnLongThread(call, deps, long_requests, length,
               [&call, &deps, &type, request, answer = std::move(answer)] {
                 AnswerNow(call, deps, type, *request, answer);
                 request->charge.Reset();
               });
}

void OnLongThread(UnaryCall& call, const SessionDeps& deps, WorkerPool& long_requests, size_t bytes,
                  std::function<void()> work) {
  const bool taken =
      long_requests.Submit(call.account().holder(), bytes, [&call, work = std::move(work)] {
        if (call.context().IsCancelled())
          return call.Finish(absl::CancelledError("the caller has ended the call"));
        work();
      });
  if (taken) return;
  ++deps.counters.calls_overloaded;
  call.Finish(Overloaded(call.context(), std::chrono::seconds(1), "too many long requests wait"));
}

}  // namespace larder
