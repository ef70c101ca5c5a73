#include "proto/frames/session_codec.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "larder/v1/engine.pb.h"
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"
#include "proto/convert/parsed_weight.h"
#include "proto/frames/session_frames.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

template <class Message>
void AppendFrame(SessionFrameType type, const Message& message, std::string* out) {
  const auto header = EncodeSessionFrameHeader(type, message.ByteSizeLong());
  out->append(header.data(), header.size());
  message.AppendToString(out);
}

template <class Message>
absl::Status ParseInto(std::span<const std::byte> body, Message* message) {
  if (body.size() <= INT_MAX &&
      message->ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "the body of a session frame is not a message that this end accepts");
}

template <class Message, class Value>
absl::Status Decode(std::span<const std::byte> body, Message* message, Value* value) {
  LARDER_RETURN_IF_ERROR(ParseInto(body, message));
  return wire::Decode(*message, value);
}

}  // namespace

size_t WeightOf(const wire::Down& down) {
  const auto of_block = [](const wire::BlockGrant& block) {
    const size_t segments = block.table ? block.table->segments.size() : 0;
    return sizeof(block) + segments * sizeof(Segment);
  };
  size_t bytes = sizeof(down);
  for (const wire::Grant& grant : down.grants) {
    bytes += sizeof(grant);
    for (const wire::BlockGrant& block : grant.blocks) bytes += of_block(block);
  }
  for (const wire::BlockReady& r : down.ready) bytes += sizeof(r) + of_block(r.block);
  bytes += down.failed.size() * sizeof(wire::BlockFailed);
  for (const wire::Durable& d : down.durable)
    bytes += sizeof(d) + d.digests.size() * sizeof(Digest);
  for (const wire::Registered& r : down.registered) {
    bytes += sizeof(r) + r.message.size() + r.variants.size() * sizeof(uint32_t) +
             (r.variant_ids.size() + r.content_ids.size()) * sizeof(Digest);
  }
  for (const wire::Reserved& r : down.reserved)
    bytes += sizeof(r) + r.extents.size() * sizeof(r.extents[0]);
  for (const wire::Published& p : down.published)
    bytes += sizeof(p) + p.status.size() * sizeof(p.status[0]);
  for (const wire::Revocation& r : down.revocations) {
    bytes += sizeof(r) + (r.leases.size() + r.reservations.size()) * sizeof(uint64_t);
  }
  for (const wire::Directive& d : down.directives)
    bytes += sizeof(d) + d.digests.size() * sizeof(Digest) + d.owner.size();
  return bytes;
}

struct SessionCodec::Messages {
  v1::Up up;
  v1::Down down;
};

SessionCodec::SessionCodec() : messages_(std::make_unique<Messages>()) {}
SessionCodec::~SessionCodec() = default;

void SessionCodec::Append(const wire::Up& up, std::string* out) {
  wire::Encode(up, &messages_->up);
  AppendFrame(SessionFrameType::kMessage, messages_->up, out);
}

void SessionCodec::Append(const wire::Down& down, std::string* out) {
  wire::Encode(down, &messages_->down);
  AppendFrame(SessionFrameType::kMessage, messages_->down, out);
  down_kept_ += WeightOf(down);
  if (down_kept_ <= kKeptBytes) return;
  down_kept_ = messages_->down.SpaceUsedLong();
  if (down_kept_ <= kKeptBytes) return;
  messages_->down = v1::Down();
  down_kept_ = 0;
}

absl::Status SessionCodec::Parse(std::span<const std::byte> body, wire::Up* up) {
  const uint64_t most = ParsedWeightMax(body.size());
  const uint64_t weight = ParsedWeight(*v1::Up::descriptor(), body, most);
  up_kept_ += weight;
  if (weight > most) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", body.size(),
                                                   " bytes would take more than ", most,
                                                   " in memory: it repeats empty fields"));
  }
  return Decode(body, &messages_->up, up);
}

absl::Status SessionCodec::Parse(std::span<const std::byte> body, wire::Down* down) {
  return Decode(body, &messages_->down, down);
}

void SessionCodec::Release(wire::Up* up) {
  if (up_kept_ <= kKeptBytes) return;
  up_kept_ = 0;
  messages_->up = v1::Up();
  *up = wire::Up();
}

void SessionCodec::AppendEnd(const SessionEnd& end, std::string* out) {
  v1::SessionEnd message;
  message.set_code(static_cast<uint32_t>(end.status.code()));
  const absl::string_view text = end.status.message();
  message.set_message(std::string(wire::CutSentence({text.data(), text.size()})));
  message.set_retry_after_ms(end.retry_after_ms);
  AppendFrame(SessionFrameType::kEnd, message, out);
}

absl::StatusOr<SessionEnd> SessionCodec::ParseEnd(std::span<const std::byte> body) {
  v1::SessionEnd message;
  LARDER_RETURN_IF_ERROR(ParseInto(body, &message));
  const bool known = message.code() <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  const auto code =
      known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown;
  return SessionEnd{.status = absl::Status(code, message.message()),
                    .retry_after_ms = message.retry_after_ms()};
}

}  // namespace larder
