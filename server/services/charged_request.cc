#include "server/services/charged_request.h"

#include <climits>

#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"
#include "client/wire/parsed_weight.h"

namespace larder {
namespace {

constexpr size_t kSmallBytes = 64 << 10;  // of a request that is not charged

// Reads bytes, and does not change them, as gRPC's reader promises nowhere.
grpc::ByteBuffer* Readable(const grpc::ByteBuffer& bytes) {
  return const_cast<grpc::ByteBuffer*>(&bytes);
}

}  // namespace

absl::StatusOr<size_t> MemoryOf(const grpc::ByteBuffer& bytes,
                                const google::protobuf::Descriptor& type) {
  const size_t length = bytes.Length();
  const uint64_t most = ParsedWeightMax(length);
  grpc::ProtoBufferReader reader(Readable(bytes));
  const uint64_t weight = ParsedWeight(type, reader, most);
  if (weight <= most) return length + static_cast<size_t>(weight);
  return absl::InvalidArgumentError(
      absl::StrCat("a request of ", length, " bytes would take more than ", most,
                   " in memory: it repeats what is empty, or what no ", type.full_name(), " has"));
}

absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  grpc::ProtoBufferReader reader(Readable(bytes));
  if (message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("not a ", message->GetDescriptor()->full_name(), " of protocol buffers"));
}

absl::StatusOr<Shares::Ticket> ParseCharged(grpc::CallbackServerContext& context,
                                            const SessionDeps& deps, const grpc::ByteBuffer& bytes,
                                            google::protobuf::Message* request) {
  const absl::StatusOr<size_t> memory = MemoryOf(bytes, *request->GetDescriptor());
  Shares::Ticket ticket;
  if (memory.ok() && *memory > kSmallBytes) {
    Shares::Answer room = AccountOf(context, deps).Take(ShareKind::kMessageBytes, *memory);
    if (!room.admitted()) {
      ++deps.counters.calls_overloaded;
      return Overloaded(context, room.retry_after, room.why);
    }
    ticket = std::move(room.ticket);
  }
  absl::Status status = memory.ok() ? Parse(bytes, request) : memory.status();
  if (status.ok()) return ticket;
  ++deps.counters.invalid_messages;
  return status;
}

}  // namespace larder
