#include "client/transport/grpc_stream_transport.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <stop_token>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rpc/rpc_channel.h"
#include "larder/v1/engine.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/format/record.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// ---- writing

class StoreCall {
 public:
  StoreCall(RpcChannel& channel, const CallOptions& options)
      : stub_(v1::Engine::NewStub(channel.channel())),
        stop_(options.stop),
        stopped_(stop_, [this] { context_.TryCancel(); }) {
    channel.Sign(context_, options.deadline);
    writer_ = stub_->StoreBlocks(&context_, &reply_);
  }

  // Returns false if the stream ended early; Finish then returns the stream's status.
  [[nodiscard]] bool Send(const PutBlock& block, std::optional<wire::StoreHead> head);
  [[nodiscard]] absl::StatusOr<wire::StoreBlocksResult> Finish();

 private:
  [[nodiscard]] bool Write(const wire::StoreBlocksPart& part) {
    wire::Encode(part, &message_);
    return writer_->Write(message_);
  }

  const std::unique_ptr<v1::Engine::Stub> stub_;
  grpc::ClientContext context_;
  const std::stop_token stop_;
  const std::stop_callback<std::function<void()>> stopped_;
  v1::StoreBlocksReply reply_;
  v1::StoreBlocksRequest message_;
  std::unique_ptr<grpc::ClientWriter<v1::StoreBlocksRequest>> writer_;
};

bool StoreCall::Send(const PutBlock& block, std::optional<wire::StoreHead> head) {
  wire::StoreBlocksPart part;
  part.head = std::move(head);
  wire::StoreBlock& begin = part.block.emplace();
  begin.parent = block.parent;
  begin.tokens.assign(block.tokens.begin(), block.tokens.end());
  begin.segments = TableOf(block);
  for (size_t i = 0; i < block.segments.size(); ++i)
    begin.segments.segments[i].xxh3 = HashBytes(block.segments[i]);
  begin.segments.hashed = true;
  if (!Write(part)) return false;
  std::string gathered;  // small segments share a message
  const auto flush = [&] {
    wire::StoreBlocksPart data;
    data.data = gathered;
    const bool sent = gathered.empty() || Write(data);
    gathered.clear();
    return sent;
  };
  for (std::span<const std::byte> segment : block.segments) {
    while (!segment.empty()) {
      const size_t bytes = std::min(segment.size(), wire::kDataBytesMax - gathered.size());
      gathered.append(AsText(segment.first(bytes)));
      segment = segment.subspan(bytes);
      if (gathered.size() == wire::kDataBytesMax && !flush()) return false;
    }
  }
  return flush();
}

absl::StatusOr<wire::StoreBlocksResult> StoreCall::Finish() {
  writer_->WritesDone();
  absl::Status status = FromRpcStatus(writer_->Finish());
  if (absl::IsCancelled(status) && stop_.stop_requested())
    return absl::DeadlineExceededError("the caller requested a stop");
  wire::StoreBlocksResult result;
  if (status.ok()) status = wire::Decode(reply_, &result);
  LARDER_RETURN_IF_ERROR(status);
  return result;
}

// ---- reading

// Decodes the messages of one FetchBlocks stream.
class Fetched {
 public:
  Fetched(const VariantHandle& variant, std::span<const GetBlock> blocks,
          std::span<const size_t> keys, std::span<BlockStatus> status)
      : variant_(variant), blocks_(blocks), keys_(keys), status_(status) {}

  // Returns DataLoss if the stream is invalid: the caller then ends the call and returns the error.
  [[nodiscard]] absl::Status On(const wire::FetchBlocksPart& part);
  // To be called after the last message.  Returns DataLoss if the stream ended early.
  [[nodiscard]] absl::Status End() const;

 private:
  [[nodiscard]] absl::Status Start(const wire::FetchStart& start);
  [[nodiscard]] absl::Status Data(std::span<const std::byte> data);
  void FinishBlock();
  [[nodiscard]] const GetBlock& block() const { return blocks_[keys_[next_key_ - 1]]; }
  [[nodiscard]] BlockStatus& status() { return status_[keys_[next_key_ - 1]]; }

  const VariantHandle& variant_;
  const std::span<const GetBlock> blocks_;
  const std::span<const size_t> keys_;
  const std::span<BlockStatus> status_;
  size_t next_key_ = 0;
  // Of the block that is being received.
  SegmentTable table_;
  SegmentRange range_;
  uint64_t missing_bytes_ = 0;
  bool wanted_ = false;  // its shape is what the caller expects: its bytes are copied
  size_t segment_ = 0;   // index in the caller's spans
  size_t in_segment_ = 0;
};

absl::Status Fetched::On(const wire::FetchBlocksPart& part) {
  if (part.start) {
    LARDER_RETURN_IF_ERROR(Start(*part.start));
  }
  return Data(AsBytes(part.data));
}

absl::Status Fetched::Start(const wire::FetchStart& start) {
  if (missing_bytes_ > 0) return absl::DataLossError("a block of the byte stream is cut short");
  if (start.key != next_key_ || next_key_ >= keys_.size()) {
    return absl::DataLossError("the byte stream answers keys out of order");
  }
  ++next_key_;
  status() = start.status;
  if (start.status != BlockStatus::kOk) return absl::OkStatus();
  const absl::StatusOr<DecodedHeader> decoded =
      DecodeRecordHeaderOf({variant_.id, block().digest}, AsBytes(start.record_header));
  if (!decoded.ok()) {
    return absl::DataLossError(
        absl::StrCat("the byte stream has an invalid record header: ", decoded.status().message()));
  }
  table_ = decoded->header.table;
  const uint64_t segments_end = uint64_t{start.first_segment} + start.segments;
  if (segments_end > table_.segments.size() || start.segments == 0) {
    return absl::DataLossError("the byte stream names segments that the record does not have");
  }
  for (uint64_t i = start.first_segment; i < segments_end; ++i)
    missing_bytes_ += table_.segments[i].bytes;
  wanted_ = RangeFits(table_, block(), &range_) && range_.first == start.first_segment &&
            range_.count == start.segments;
  if (!wanted_) status() = BlockStatus::kInvalid;
  segment_ = in_segment_ = 0;
  return absl::OkStatus();
}

absl::Status Fetched::Data(std::span<const std::byte> data) {
  if (data.empty()) return absl::OkStatus();
  if (data.size() > missing_bytes_)
    return absl::DataLossError("the byte stream has more bytes than its segment table");
  missing_bytes_ -= data.size();
  while (wanted_ && !data.empty()) {
    const std::span<std::byte> to = block().segments[segment_].subspan(in_segment_);
    const size_t bytes = std::min(to.size(), data.size());
    std::memcpy(to.data(), data.data(), bytes);
    data = data.subspan(bytes);
    in_segment_ += bytes;
    if (bytes < to.size()) continue;
    ++segment_;
    in_segment_ = 0;
  }
  if (missing_bytes_ == 0) FinishBlock();
  return absl::OkStatus();
}

void Fetched::FinishBlock() {
  if (!wanted_) return;
  for (uint32_t i = 0; i < range_.count; ++i) {
    if (HashBytes(block().segments[i]) == table_.segments[range_.first + i].xxh3) continue;
    status() = BlockStatus::kDamaged;
    return;
  }
}

absl::Status Fetched::End() const {
  if (missing_bytes_ == 0 && next_key_ == keys_.size()) return absl::OkStatus();
  return absl::DataLossError("the byte stream ended early");
}

absl::Status FetchGroup(RpcChannel& channel, const std::string& tenant,
                        const VariantHandle& variant, std::span<const GetBlock> blocks,
                        std::span<const size_t> keys, const CallOptions& options,
                        std::span<BlockStatus> status) {
  const GetBlock& first = blocks[keys.front()];
  wire::FetchBlocksQuery query;
  query.tenant = tenant;
  query.variant = variant.spec;
  for (const size_t key : keys) query.digests.push_back(blocks[key].digest);
  query.first_layer = first.first_layer;
  query.layers = static_cast<uint32_t>(first.segments.size());
  v1::FetchBlocksRequest request;
  wire::Encode(query, &request);

  const auto stub = v1::Engine::NewStub(channel.channel());
  grpc::ClientContext context;
  channel.Sign(context, options.deadline);
  const std::stop_callback stopped(options.stop, [&context] { context.TryCancel(); });
  const auto reader = stub->FetchBlocks(&context, request);
  Fetched fetched(variant, blocks, keys, status);
  v1::FetchBlocksReply message;
  absl::Status result;
  while (result.ok() && reader->Read(&message)) {
    wire::FetchBlocksPart part;
    result = wire::Decode(message, &part);
    if (result.ok()) result = fetched.On(part);
  }
  if (!result.ok()) context.TryCancel();
  const absl::Status ended = FromRpcStatus(reader->Finish());
  LARDER_RETURN_IF_ERROR(result);
  if (absl::IsCancelled(ended) && options.stop.stop_requested())
    return absl::DeadlineExceededError("the caller requested a stop");
  return ended.ok() ? fetched.End() : ended;
}

// Stores the blocks whose indices are in `sent`, all of one content, by one stream, and writes
// their statuses to `result`.
absl::Status StoreGroup(RpcChannel& channel, const wire::StoreHead& head,
                        std::span<const PutBlock> blocks, const std::vector<size_t>& sent,
                        const CallOptions& options, std::vector<BlockStatus>& result) {
  StoreCall call(channel, options);
  bool open = true;
  for (size_t i = 0; i < sent.size() && open; ++i) {
    open = call.Send(blocks[sent[i]], i == 0 ? std::optional(head) : std::nullopt);
  }
  LARDER_ASSIGN_OR_RETURN(const wire::StoreBlocksResult stored, call.Finish());
  if (stored.status.size() != sent.size()) {
    return absl::InternalError(
        "the daemon answered a byte stream with another number of statuses than blocks");
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    const bool named = stored.digests[i] == blocks[sent[i]].digest;
    result[sent[i]] = named ? stored.status[i] : BlockStatus::kInvalid;
  }
  return absl::OkStatus();
}

}  // namespace

void GrpcStreamTransport::AddContent(const ContentSpec& content) {
  const Digest id = content.Id();
  MutexLock lock(mu_);
  if (!contents_.emplace(id, content).second) return;
  by_age_.push_back(id);
  if (by_age_.size() <= kContentsMax) return;
  contents_.erase(by_age_.front());
  by_age_.pop_front();
}

absl::StatusOr<std::vector<BlockStatus>> GrpcStreamTransport::Put(const VariantHandle& variant,
                                                                  std::span<const PutBlock> blocks,
                                                                  const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  std::vector<BlockStatus> result(blocks.size(), BlockStatus::kInvalid);
  // By content, since a stream has only one.
  absl::flat_hash_map<Digest, std::pair<ContentSpec, std::vector<size_t>>> groups;
  for (size_t i = 0; i < blocks.size(); ++i) {
    // The daemon computes a block's digest from its tokens, so a block with another digest is not
    // sent.
    if (!ShapeFits(variant.spec, blocks[i])) continue;
    const std::vector<Digest> chain = Chain(blocks[i].parent, blocks[i].tokens);
    if (chain.empty() || chain.back() != blocks[i].digest) continue;
    MutexLock lock(mu_);
    if (contents_.empty())
      return absl::FailedPreconditionError("register a content before the first Put");
    const Digest content = ContentOf(blocks[i]);
    auto& [spec, sent] = groups[content];
    if (sent.empty()) spec = contents_.at(content);
    sent.push_back(i);
  }
  for (const auto& [content, group] : groups) {
    const auto& [spec, sent] = group;
    wire::StoreHead head{
        .content = spec, .variant = variant.spec, .engine_id = engine_id_, .tenant = tenant_};
    head.content.tenant.clear();  // the daemon knows the caller's tenant
    LARDER_RETURN_IF_ERROR(StoreGroup(*channel_, head, blocks, sent, options, result));
  }
  return result;
}

// A block belongs to the content whose id it names, or whose id is its parent (the block is then
// the first of a chain).  Any other block counts as the first content's.
Digest GrpcStreamTransport::ContentOf(const PutBlock& block) const {
  if (contents_.contains(block.content)) return block.content;
  return contents_.contains(block.parent) ? block.parent : by_age_.front();
}

absl::StatusOr<std::vector<BlockStatus>> GrpcStreamTransport::Get(const VariantHandle& variant,
                                                                  std::span<const GetBlock> blocks,
                                                                  const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  std::vector<BlockStatus> result(blocks.size(), BlockStatus::kInvalid);
  std::map<std::pair<uint32_t, size_t>, std::vector<size_t>> groups;  // by range of layers
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!ShapeFits(variant.spec, blocks[i])) continue;
    groups[{blocks[i].first_layer, blocks[i].segments.size()}].push_back(i);
  }
  for (const auto& [range, keys] : groups) {
    LARDER_RETURN_IF_ERROR(FetchGroup(*channel_, tenant_, variant, blocks, keys, options, result));
  }
  return result;
}

}  // namespace larder
