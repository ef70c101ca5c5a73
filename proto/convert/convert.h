// Converts between the generated messages of proto/larder/v1 and the values of messages.h and
// admin_messages.h, for stubs, services and session sockets.
//
// Decode treats its input as hostile, from a client and from a daemon alike.  If a field is not
// valid (its length, count or digest, an enum value that is unknown, lists that should be equally
// long), Decode returns InvalidArgument, normally with the field in front: "acquires[2].digests: 17
// bytes is not a multiple of 16".  A decoded value takes memory in proportion to the parsed
// message.  Decode does not know the session: the caller checks, for example, whether an id is
// open, a variant is registered and a digest is right.
//
// Encode checks nothing, but cuts most sentences for people, such as `message`, at 256 bytes.
//
// Ownership: results own what they hold, except the `data` of the byte streams, which lies in the
// message.  Decode and Encode overwrite *out, but Decode may leave an optional field as it is if
// the message does not have it (`content` of a PublishBlock, for example).  A value that is decoded
// into again reuses most of its memory, so a loop over messages of one shape seldom allocates.
// After an error *out is partly overwritten; it may only be destroyed or overwritten.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/admin_messages.h"
#include "proto/messages/messages.h"

namespace larder::v1 {
class BlockAnswers;
class ClearReply;
class ClearRequest;
class CompressProgress;
class CompressRequest;
class ConfigReply;
class Content;
class Down;
class FetchBlocksReply;
class FetchBlocksRequest;
class ListInstancesReply;
class ListInstancesRequest;
class LookupReply;
class LookupRequest;
class MoveProgress;
class MoveRequest;
class PinReply;
class PinRequest;
class PrefetchReply;
class PrefetchRequest;
class SegmentTable;
class StatsReply;
class StoreBlocksReply;
class StoreBlocksRequest;
class UnpinReply;
class UnpinRequest;
class Up;
class Variant;
class VerifyProgress;
class VerifyRequest;
class WatchEventsReply;
class WatchEventsRequest;
}  // namespace larder::v1

namespace larder::wire {

// The messages of a session.  A deadline_ms above the maximum becomes the maximum; in an Up, a
// deadline_ms of 0 becomes the default.
[[nodiscard]] absl::Status Decode(const v1::Up& in, Up* out);
[[nodiscard]] absl::Status Decode(const v1::Down& in, Down* out);
void Encode(const Up& in, v1::Up* out);
void Encode(const Down& in, v1::Down* out);

// Cache.
[[nodiscard]] absl::Status Decode(const v1::LookupRequest& in, LookupQuery* out);
// Decodes a LookupRequest except its tokens, which may be many: out->tokens is empty, and the
// caller reads them in the message.
[[nodiscard]] absl::Status DecodeInPlace(const v1::LookupRequest& in, LookupQuery* out);
[[nodiscard]] absl::Status Decode(const v1::LookupReply& in, LookupResult* out);
// A page size of 0, or above the maximum, becomes the default.
[[nodiscard]] absl::Status Decode(const v1::ListInstancesRequest& in, InstancesQuery* out);
[[nodiscard]] absl::Status Decode(const v1::ListInstancesReply& in, InstancesPage* out);
void Encode(const LookupQuery& in, v1::LookupRequest* out);
void Encode(const LookupResult& in, v1::LookupReply* out);
void Encode(const InstancesQuery& in, v1::ListInstancesRequest* out);
void Encode(const InstancesPage& in, v1::ListInstancesReply* out);

// DecodeInPlace leaves the tokens of a selection, which may be many, empty; the caller reads them
// in the message.  A TTL of 0 becomes the default; more than the maximum is refused.
[[nodiscard]] absl::Status DecodeInPlace(const v1::PinRequest& in, PinQuery* out);
[[nodiscard]] absl::Status DecodeInPlace(const v1::UnpinRequest& in, UnpinQuery* out);
[[nodiscard]] absl::Status DecodeInPlace(const v1::PrefetchRequest& in, PrefetchQuery* out);
// An empty list of tiers becomes HOST and DISK.
[[nodiscard]] absl::Status DecodeInPlace(const v1::ClearRequest& in, ClearQuery* out);
void Encode(const std::vector<BlockAnswer>& in, v1::BlockAnswers* out);
void Encode(const ClearResult& in, v1::ClearReply* out);
[[nodiscard]] absl::Status DecodeInPlace(const v1::MoveRequest& in, MoveQuery* out);
void Encode(const MoveProgress& in, v1::MoveProgress* out);
[[nodiscard]] absl::Status DecodeInPlace(const v1::CompressRequest& in, CompressQuery* out);
void Encode(const CompressProgress& in, v1::CompressProgress* out);
[[nodiscard]] absl::Status Decode(const v1::WatchEventsRequest& in, WatchQuery* out);
void Encode(const WatchReply& in, v1::WatchEventsReply* out);

// The caller's side of Pin, Unpin, Prefetch, Clear, Move, Compress and WatchEvents.
void Encode(const PinQuery& in, v1::PinRequest* out);
void Encode(const UnpinQuery& in, v1::UnpinRequest* out);
void Encode(const PrefetchQuery& in, v1::PrefetchRequest* out);
void Encode(const ClearQuery& in, v1::ClearRequest* out);
void Encode(const MoveQuery& in, v1::MoveRequest* out);
void Encode(const CompressQuery& in, v1::CompressRequest* out);
void Encode(const WatchQuery& in, v1::WatchEventsRequest* out);
[[nodiscard]] absl::Status Decode(const v1::PinReply& in, PinResult* out);
[[nodiscard]] absl::Status Decode(const v1::UnpinReply& in, UnpinResult* out);
[[nodiscard]] absl::Status Decode(const v1::PrefetchReply& in, std::vector<BlockAnswer>* out);
[[nodiscard]] absl::Status Decode(const v1::ClearReply& in, ClearResult* out);
[[nodiscard]] absl::Status Decode(const v1::MoveProgress& in, MoveProgress* out);
[[nodiscard]] absl::Status Decode(const v1::CompressProgress& in, CompressProgress* out);
[[nodiscard]] absl::Status Decode(const v1::WatchEventsReply& in, WatchReply* out);

// Admin.
[[nodiscard]] absl::Status Decode(const v1::VerifyRequest& in, VerifyQuery* out);
void Encode(const VerifyProgress& in, v1::VerifyProgress* out);
void Encode(const VerifyQuery& in, v1::VerifyRequest* out);
[[nodiscard]] absl::Status Decode(const v1::VerifyProgress& in, VerifyProgress* out);
[[nodiscard]] absl::Status Decode(const v1::StatsReply& in, NodeStats* out);
// Sets *out to the TOML text.
[[nodiscard]] absl::Status Decode(const v1::ConfigReply& in, std::string* out);

// Byte streams.  Decode leaves `data` in the message, into which the view points; Encode copies it.
[[nodiscard]] absl::Status Decode(const v1::StoreBlocksRequest& in, StoreBlocksPart* out);
[[nodiscard]] absl::Status Decode(const v1::StoreBlocksReply& in, StoreBlocksResult* out);
[[nodiscard]] absl::Status Decode(const v1::FetchBlocksRequest& in, FetchBlocksQuery* out);
[[nodiscard]] absl::Status Decode(const v1::FetchBlocksReply& in, FetchBlocksPart* out);
void Encode(const StoreBlocksPart& in, v1::StoreBlocksRequest* out);
void Encode(const StoreBlocksResult& in, v1::StoreBlocksReply* out);
void Encode(const FetchBlocksQuery& in, v1::FetchBlocksRequest* out);
void Encode(const FetchBlocksPart& in, v1::FetchBlocksReply* out);

// Values inside the messages.  The tenant of a content is never on the wire: Decode leaves it
// empty.
[[nodiscard]] absl::Status Decode(const v1::Content& in, ContentSpec* out);
[[nodiscard]] absl::Status Decode(const v1::Variant& in, VariantSpec* out);
[[nodiscard]] absl::Status Decode(const v1::SegmentTable& in, SegmentTable* out);
void Encode(const ContentSpec& in, v1::Content* out);
void Encode(const VariantSpec& in, v1::Variant* out);
void Encode(const SegmentTable& in, v1::SegmentTable* out);

}  // namespace larder::wire
