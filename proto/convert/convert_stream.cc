// Engine.StoreBlocks and FetchBlocks: the byte streams.
#include "proto/convert/convert.h"
#include "proto/convert/convert_field.h"
#include "storage/format/record.h"

namespace larder::wire {
namespace {

void DecodeStoreHead(const Field& at, const v1::StoreBlocksRequest& in, StoreHead* out) {
  DecodeContent(at("content"), in.content(), &out->content);
  DecodeVariant(at("variant"), in.variant(), &out->variant);
  DecodeString(at("engine_id"), in.engine_id(), kAnyString, &out->engine_id);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
}

void DecodeStoreBlock(const Field& at, const v1::StoreBlock& in, StoreBlock* out) {
  DecodeDigest(at("parent"), in.parent(), &out->parent);
  DecodeBlockTokens(at("tokens"), in.tokens(), &out->tokens);
  DecodeTable(at("segments"), in.segments(), &out->segments);
  if (at.ok() && !out->segments.hashed) at("segments")("xxh3").Refuse("hashes are required");
}

void EncodeStoreBlock(const StoreBlock& in, v1::StoreBlock* out) {
  if (in.parent) EncodeDigest(*in.parent, out->mutable_parent());
  out->mutable_tokens()->Add(in.tokens.begin(), in.tokens.end());
  Encode(in.segments, out->mutable_segments());
}

void DecodeFetchStart(const Field& at, const v1::FetchStart& in, FetchStart* out) {
  out->key = in.key();
  if (in.key() >= kKeysMax) return at("key").Refuse(in.key(), " is not below ", kKeysMax);
  DecodeEnum(at("status"), in.status(), &out->status);
  DecodeString(at("record_header"), in.record_header(), {0, kRecordHeaderBytesMax},
               &out->record_header);
  out->first_segment = in.first_segment();
  out->segments = in.segments();
  if (uint64_t{in.first_segment()} + in.segments() > kSegmentsMax) {
    at("segments")
        .Refuse(in.segments(), " segments from ", in.first_segment(), "; a block has at most ",
                kSegmentsMax);
  }
}

void EncodeFetchStart(const FetchStart& in, v1::FetchStart* out) {
  out->set_key(in.key);
  out->set_status(static_cast<v1::BlockStatus>(in.status));
  out->set_record_header(in.record_header);
  out->set_first_segment(in.first_segment);
  out->set_segments(in.segments);
}

void ViewData(const Field& at, const std::string& in, std::string_view* out) {
  if (in.size() > kDataBytesMax)
    return at.Refuse(in.size(), " bytes; the limit is ", kDataBytesMax);
  *out = in;
}

}  // namespace

absl::Status Decode(const v1::StoreBlocksRequest& in, StoreBlocksPart* out) {
  absl::Status error;
  const Field at(&error);
  out->head.reset();
  if (in.has_content() || in.has_variant() || !in.engine_id().empty() || !in.tenant().empty()) {
    DecodeStoreHead(at, in, &out->head.emplace());
  }
  out->block.reset();
  if (in.has_block()) DecodeStoreBlock(at("block"), in.block(), &out->block.emplace());
  ViewData(at("data"), in.data(), &out->data);
  return error;
}

absl::Status Decode(const v1::StoreBlocksReply& in, StoreBlocksResult* out) {
  absl::Status error;
  const Field at(&error);
  DecodeEnums(at("status"), in.status(), kLookupDigestsMax, &out->status);
  DecodeDigests(at("digests"), in.digests(), kLookupDigestsMax, &out->digests);
  DecodeString(at("message"), in.message(), kAnyString, &out->message);
  if (at.ok() && out->digests.size() != out->status.size()) {
    at("digests").Refuse(out->digests.size(), " digests for ", out->status.size(), " blocks");
  }
  return error;
}

absl::Status Decode(const v1::FetchBlocksRequest& in, FetchBlocksQuery* out) {
  absl::Status error;
  const Field at(&error);
  DecodeString(at("tenant"), in.tenant(), {0, kTenantBytesMax}, &out->tenant);
  DecodeVariant(at("variant"), in.variant(), &out->variant);
  DecodeDigests(at("digests"), in.digests(), kKeysMax, &out->digests);
  out->first_layer = in.first_layer();
  out->layers = in.layers();
  return error;
}

absl::Status Decode(const v1::FetchBlocksReply& in, FetchBlocksPart* out) {
  absl::Status error;
  const Field at(&error);
  out->start.reset();
  if (in.has_start()) DecodeFetchStart(at("start"), in.start(), &out->start.emplace());
  ViewData(at("data"), in.data(), &out->data);
  return error;
}

void Encode(const StoreBlocksPart& in, v1::StoreBlocksRequest* out) {
  out->Clear();
  if (in.head) {
    Encode(in.head->content, out->mutable_content());
    Encode(in.head->variant, out->mutable_variant());
    out->set_engine_id(in.head->engine_id);
    out->set_tenant(in.head->tenant);
  }
  if (in.block) EncodeStoreBlock(*in.block, out->mutable_block());
  out->mutable_data()->assign(in.data);
}

void Encode(const StoreBlocksResult& in, v1::StoreBlocksReply* out) {
  out->Clear();
  EncodeEnums(in.status, out->mutable_status());
  EncodeDigests(in.digests, out->mutable_digests());
  out->mutable_message()->assign(CutSentence(in.message));
}

void Encode(const FetchBlocksQuery& in, v1::FetchBlocksRequest* out) {
  out->Clear();
  out->set_tenant(in.tenant);
  Encode(in.variant, out->mutable_variant());
  EncodeDigests(in.digests, out->mutable_digests());
  out->set_first_layer(in.first_layer);
  out->set_layers(in.layers);
}

void Encode(const FetchBlocksPart& in, v1::FetchBlocksReply* out) {
  out->Clear();
  if (in.start) EncodeFetchStart(*in.start, out->mutable_start());
  out->mutable_data()->assign(in.data);
}

}  // namespace larder::wire
