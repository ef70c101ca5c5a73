#include "proto/convert/convert_field.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "proto/convert/convert.h"

namespace larder::wire {
namespace {

// Refuses a list of a segment table that is neither empty nor has one entry per segment.
bool CheckBeside(const Field& at, int count, int segments) {
  if (count == 0 || count == segments) return true;
  at.Refuse(count, " entries for ", segments, " segments");
  return false;
}

void DecodeSegment(const Field& at, const v1::SegmentTable& in, int i, Segment* out) {
  const uint32_t layers = in.layers().empty() ? 1 : in.layers(i);
  if (layers < 1 || layers > kLayersMax) {
    return at("layers")[i].Refuse(layers, " layers; allowed are 1 to ", kLayersMax);
  }
  out->layers = static_cast<uint16_t>(layers);
  out->bytes = in.bytes(i);
  if (out->bytes < 1 || out->bytes > kSegmentBytesMax) {
    return at("bytes")[i].Refuse(out->bytes, " bytes; allowed are 1 to ", kSegmentBytesMax);
  }
  out->xxh3 = in.xxh3().empty() ? 0 : in.xxh3(i);
  out->codec = Codec::kIdentity;
  if (!in.codecs().empty()) DecodeEnum(at("codecs")[i], in.codecs(i), &out->codec);
  out->raw_bytes = in.raw_bytes().empty() ? 0 : in.raw_bytes(i);
  const uint32_t most = out->codec == Codec::kIdentity ? 0 : kSegmentBytesMax;
  if (at.ok() && out->raw_bytes > most)
    at("raw_bytes")[i].Refuse(out->raw_bytes, " bytes; allowed are 0 to ", most);
}

GroupKind KindOf(v1::GroupKind kind) {
  switch (kind) {
    case v1::GROUP_KIND_UNSPECIFIED:
    case v1::GROUP_KIND_FULL:
      return GroupKind::kFull;
    case v1::GROUP_KIND_WINDOW:
      return GroupKind::kWindow;
    case v1::GROUP_KIND_STATE:
      return GroupKind::kState;
    default:
      return GroupKind::kUnknown;
  }
}

// What kUnknown stands for cannot be sent on; a number that no version uses keeps it unknown.
v1::GroupKind KindOf(GroupKind kind) {
  constexpr int kUnknownNumber = 255;
  switch (kind) {
    case GroupKind::kFull:
      return v1::GROUP_KIND_UNSPECIFIED;  // as older clients and daemons send it
    case GroupKind::kWindow:
      return v1::GROUP_KIND_WINDOW;
    case GroupKind::kState:
      return v1::GROUP_KIND_STATE;
    case GroupKind::kUnknown:
      break;
  }
  return static_cast<v1::GroupKind>(kUnknownNumber);
}

}  // namespace

void Field::AppendTo(std::string* out) const {
  if (parent_ == nullptr) return;
  parent_->AppendTo(out);
  if (name_ != nullptr) {
    absl::StrAppend(out, out->empty() ? "" : ".", name_);
  } else {
    absl::StrAppend(out, "[", index_, "]");
  }
}

void Field::Fail(const std::string& why) const {
  std::string text;
  AppendTo(&text);
  *error_ = absl::InvalidArgumentError(absl::StrCat(text, text.empty() ? "" : ": ", why));
}

bool CheckCount(const Field& at, int count, size_t most) {
  if (static_cast<size_t>(count) <= most) return true;
  at.Refuse(count, " entries; the limit is ", most);
  return false;
}

void DecodeString(const Field& at, const std::string& in, Length length, std::string* out) {
  if (in.size() < length.least || in.size() > length.most) {
    return at.Refuse(in.size(), " bytes; allowed are ", length.least, " to ", length.most);
  }
  out->assign(in);
}

std::string_view CutSentence(std::string_view sentence) {
  if (sentence.size() <= kStringBytesMax) return sentence;
  size_t end = kStringBytesMax;
  while (end > 0 && (static_cast<unsigned char>(sentence[end]) & 0xc0) == 0x80) --end;
  return sentence.substr(0, end);
}

void DecodeRequestId(const Field& at, uint64_t in, uint64_t* out) {
  if (in == 0) return at.Refuse("0 is not an id");
  *out = in;
}

uint32_t DecodeDeadlineMs(uint32_t in) {
  return in == 0 ? kDeadlineDefaultMs : in < kDeadlineMaxMs ? in : kDeadlineMaxMs;
}

void DecodeBlockWriter(const Field& at, const v1::BlockWriter& in, BlockWriter* out) {
  if (in.engine() > UINT16_MAX)
    return at("engine").Refuse(in.engine(), " is not the number of an engine: at most 65535");
  *out = {.uid = in.uid(), .engine = static_cast<uint16_t>(in.engine())};
}

void DecodeDigest(const Field& at, const std::string& in, Digest* out) {
  if (in.size() != kDigestBytes) return at.Refuse(in.size(), " bytes; a digest has ", kDigestBytes);
  std::memcpy(out->bytes.data(), in.data(), kDigestBytes);
}

void DecodeDigest(const Field& at, const std::string& in, std::optional<Digest>* out) {
  out->reset();
  if (!in.empty()) DecodeDigest(at, in, &out->emplace());
}

void DecodeDigests(const Field& at, const std::string& in, size_t most, std::vector<Digest>* out) {
  if (in.size() % kDigestBytes != 0) {
    return at.Refuse(in.size(), " bytes is not a multiple of ", kDigestBytes);
  }
  const size_t count = in.size() / kDigestBytes;
  if (count > most) return at.Refuse(count, " digests; the limit is ", most);
  out->resize(count);
  if (count != 0) std::memcpy(out->data(), in.data(), in.size());
}

void EncodeDigest(const Digest& in, std::string* out) {
  out->assign(reinterpret_cast<const char*>(in.bytes.data()), kDigestBytes);
}

void EncodeDigests(const std::vector<Digest>& in, std::string* out) {
  static_assert(sizeof(Digest) == kDigestBytes);
  out->assign(reinterpret_cast<const char*>(in.data()), in.size() * kDigestBytes);
}

void DecodeBlockTokens(const Field& at, const google::protobuf::RepeatedField<uint32_t>& in,
                       std::vector<uint32_t>* out) {
  const int count = in.size();
  if (count == 0 || count > static_cast<int>(kBlockTokensMax) ||
      count % static_cast<int>(kStepTokens) != 0) {
    return at.Refuse(count, " tokens; allowed are multiples of ", kStepTokens, " up to ",
                     kBlockTokensMax);
  }
  out->assign(in.begin(), in.end());
}

void DecodeContent(const Field& at, const v1::Content& in, ContentSpec* out) {
  out->tenant.clear();
  DecodeString(at("model"), in.model(), {1, kStringBytesMax}, &out->model);
  DecodeString(at("revision"), in.revision(), kAnyString, &out->revision);
  DecodeString(at("salt"), in.salt(), {0, 64}, &out->salt);
  DecodeString(at("lora"), in.lora(), kAnyString, &out->lora);
  DecodeString(at("multimodal"), in.multimodal(), {0, 64}, &out->multimodal);
}

void DecodeDevice(const Field& at, const v1::EngineDevice& in, EngineDevice* out) {
  DecodeString(at("kind"), in.kind(), {1, kDeviceNameMax}, &out->kind);
  DecodeString(at("wish"), in.wish(), {0, kDeviceNameMax}, &out->wish);
  DecodeString(at("name"), in.name(), kAnyString, &out->name);
  DecodeString(at("driver"), in.driver(), kAnyString, &out->driver);
  DecodeString(at("reason"), in.reason(), kAnyString, &out->reason);
  if (!CheckCount(at("limits"), in.limits_size(), kDeviceLimitsMax)) return;
  out->limits.resize(static_cast<size_t>(in.limits_size()));
  for (int i = 0; i < in.limits_size(); ++i)
    DecodeString(at("limits")[i], in.limits(i), kAnyString, &out->limits[static_cast<size_t>(i)]);
}

void EncodeDevice(const EngineDevice& in, v1::EngineDevice* out) {
  out->set_kind(in.kind);
  out->set_wish(in.wish);
  out->set_name(std::string(CutSentence(in.name)));
  out->set_driver(std::string(CutSentence(in.driver)));
  out->set_reason(std::string(CutSentence(in.reason)));
  for (size_t i = 0; i < std::min(in.limits.size(), kDeviceLimitsMax); ++i)
    out->add_limits(std::string(CutSentence(in.limits[i])));
}

void DecodeVariant(const Field& at, const v1::Variant& in, VariantSpec* out) {
  // Each text is copied only after its length was checked; VariantSpec::Validate checks the rest.
  DecodeString(at("dtype"), in.dtype(), {1, kDtypeBytesMax}, &out->dtype);
  DecodeString(at("layout"), in.layout(), {1, kLayoutBytesMax}, &out->layout);
  DecodeString(at("group"), in.group(), {0, 64}, &out->group);
  out->rank = in.rank();
  out->ranks = in.ranks();
  out->block_tokens = in.block_tokens();
  out->layers = in.layers();
  out->first_layer = in.first_layer();
  out->kind = KindOf(in.kind());
  out->window_tokens = out->kind == GroupKind::kWindow ? in.window_tokens() : 0;
  if (!at.ok()) return;
  if (const absl::Status status = out->Validate(); !status.ok()) at.Refuse(status.message());
}

void DecodeTable(const Field& at, const v1::SegmentTable& in, SegmentTable* out) {
  const int count = in.bytes_size();
  if (count < 1 || count > static_cast<int>(kSegmentsMax)) {
    return at("bytes").Refuse(count, " segments; allowed are 1 to ", kSegmentsMax);
  }
  if (!CheckBeside(at("layers"), in.layers_size(), count) ||
      !CheckBeside(at("xxh3"), in.xxh3_size(), count) ||
      !CheckBeside(at("codecs"), in.codecs_size(), count) ||
      !CheckBeside(at("raw_bytes"), in.raw_bytes_size(), count)) {
    return;
  }
  out->hashed = !in.xxh3().empty();
  out->segments.resize(static_cast<size_t>(count));
  uint32_t layers = 0;
  for (int i = 0; i < count && at.ok(); ++i) {
    Segment& segment = out->segments[static_cast<size_t>(i)];
    DecodeSegment(at, in, i, &segment);
    layers += segment.layers;
  }
  if (layers > kLayersMax) at("layers").Refuse(layers, " layers in all; the limit is ", kLayersMax);
}

absl::Status Decode(const v1::Content& in, ContentSpec* out) {
  absl::Status error;
  DecodeContent(Field(&error), in, out);
  return error;
}

absl::Status Decode(const v1::Variant& in, VariantSpec* out) {
  absl::Status error;
  DecodeVariant(Field(&error), in, out);
  return error;
}

absl::Status Decode(const v1::SegmentTable& in, SegmentTable* out) {
  absl::Status error;
  DecodeTable(Field(&error), in, out);
  return error;
}

void Encode(const ContentSpec& in, v1::Content* out) {
  out->set_model(in.model);
  out->set_revision(in.revision);
  out->set_salt(in.salt);
  out->set_lora(in.lora);
  out->set_multimodal(in.multimodal);
}

void Encode(const VariantSpec& in, v1::Variant* out) {
  out->set_dtype(in.dtype);
  out->set_layout(in.layout);
  out->set_rank(in.rank);
  out->set_ranks(in.ranks);
  out->set_group(in.group);
  out->set_block_tokens(in.block_tokens);
  out->set_layers(in.layers);
  out->set_first_layer(in.first_layer);
  out->set_kind(KindOf(in.kind));
  out->set_window_tokens(in.window_tokens);
}

// Leaves out `layers` if each segment has one layer, `codecs` and `raw_bytes` if all segments are
// IDENTITY, and `xxh3` if the table has no hashes.
void Encode(const SegmentTable& in, v1::SegmentTable* out) {
  out->Clear();
  const int count = static_cast<int>(in.segments.size());
  bool single = true;
  bool identity = true;
  out->mutable_bytes()->Reserve(count);
  for (const Segment& segment : in.segments) {
    out->mutable_bytes()->AddAlreadyReserved(segment.bytes);
    single = single && segment.layers == 1;
    identity = identity && segment.codec == Codec::kIdentity;
  }
  if (!single) {
    out->mutable_layers()->Reserve(count);
    for (const Segment& segment : in.segments)
      out->mutable_layers()->AddAlreadyReserved(segment.layers);
  }
  if (!identity) {
    out->mutable_codecs()->Reserve(count);
    for (const Segment& segment : in.segments) {
      out->mutable_codecs()->AddAlreadyReserved(static_cast<int>(segment.codec));
    }
    out->mutable_raw_bytes()->Reserve(count);
    for (const Segment& segment : in.segments)
      out->mutable_raw_bytes()->AddAlreadyReserved(segment.raw_bytes);
  }
  if (in.hashed) {
    out->mutable_xxh3()->Reserve(count);
    for (const Segment& segment : in.segments)
      out->mutable_xxh3()->AddAlreadyReserved(segment.xxh3);
  }
}

}  // namespace larder::wire
