#include "proto/convert/parsed_weight.h"

#include <algorithm>
#include <climits>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

namespace larder {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Estimated bytes of a parsed message, with the pointer to it and the allocator's overhead:
// kMessage, and kField for each field that its type declares.
constexpr uint64_t kMessage = 64, kField = 8;
constexpr uint64_t kString = 48;
constexpr uint64_t kNumber = 8, kHalf = 4;
// What the parser keeps for a field that the message type does not declare: an entry of a vector
// that grows by doubling.
constexpr uint64_t kUnknown = 32;

class Scale {
 public:
  explicit Scale(uint64_t most) : most_(most) {}
  [[nodiscard]] uint64_t weight() const { return weight_; }

  // Returns false if the weight exceeds the limit.
  [[nodiscard]] bool Weigh(const Descriptor& type, CodedInputStream& in) {
    if (!Add(kMessage + kField * static_cast<uint64_t>(type.field_count()))) return false;
    while (const uint32_t tag = in.ReadTag()) {
      const auto* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const auto wire_type = WireFormatLite::GetTagWireType(tag);
      // No proto3 message has groups, so a group counts as too heavy: the parser would keep it,
      // with all that is in it, as an unknown field.
      if (wire_type == WireFormatLite::WIRETYPE_START_GROUP) return Add(most_ + 1);
      // The parser treats a field of another wire type than the declared one as an unknown field.
      const bool known = field != nullptr && Fits(*field, wire_type);
      if (wire_type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!Add(known ? kNumber : kUnknown) || !WireFormatLite::SkipField(&in, tag)) break;
        continue;
      }
      if (!known) field = nullptr;
      int length = 0;
      if (!in.ReadVarintSizeAsInt(&length)) break;
      if (!WeighContent(field, length, in)) break;
    }
    return weight_ <= most_;
  }

 private:
  bool Add(uint64_t bytes) {
    weight_ += bytes;
    return weight_ <= most_;
  }

  // Returns false if the weight exceeds the limit or the input ends too early.
  bool WeighContent(const FieldDescriptor* field, int length, CodedInputStream& in) {
    const bool number = field != nullptr && field->is_packable();
    const bool half = number && (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ||
                                 field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
                                 field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM);
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      const CodedInputStream::Limit limit = in.PushLimit(length);
      const bool fits = Weigh(*field->message_type(), in);
      const bool whole = in.Skip(std::max(0, in.BytesUntilLimit()));
      in.PopLimit(limit);
      return fits && whole;
    }
    if (number && length == 0) return Add(kUnknown);  // takes no memory, but the parser's time
    if (number && IsFixed(*field)) return Add(static_cast<uint64_t>(length)) && in.Skip(length);
    if (number) return WeighVarints(length, half ? kHalf : kNumber, in);
    return Add((field == nullptr ? kUnknown : 0) + kString + static_cast<uint64_t>(length)) &&
           in.Skip(length);
  }

  [[nodiscard]] static bool Fits(const FieldDescriptor& field, WireFormatLite::WireType wire_type) {
    const auto type = static_cast<WireFormatLite::FieldType>(field.type());
    return wire_type == WireFormatLite::WireTypeForFieldType(type) ||
           (field.is_packable() && wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  }

  // Returns true if each number of the packed field has a fixed size: then the numbers take as many
  // bytes in memory as in the message.
  static bool IsFixed(const FieldDescriptor& field) {
    switch (field.type()) {
      case FieldDescriptor::TYPE_FIXED32:
      case FieldDescriptor::TYPE_FIXED64:
      case FieldDescriptor::TYPE_SFIXED32:
      case FieldDescriptor::TYPE_SFIXED64:
      case FieldDescriptor::TYPE_FLOAT:
      case FieldDescriptor::TYPE_DOUBLE:
        return true;
      default:
        return false;
    }
  }

  // Weighs a packed field: each varint takes `each` bytes and ends with a byte below 0x80.  The
  // input may lie in several pieces.
  bool WeighVarints(int length, uint64_t each, CodedInputStream& in) {
    while (length > 0) {
      const void* data = nullptr;
      int there = 0;
      if (!in.GetDirectBufferPointer(&data, &there)) return false;
      const auto* const bytes = static_cast<const uint8_t*>(data);
      const int piece = std::min(length, there);
      const auto numbers =
          std::count_if(bytes, bytes + piece, [](uint8_t byte) { return byte < 0x80; });
      if (!Add(each * static_cast<uint64_t>(numbers)) || !in.Skip(piece)) return false;
      length -= piece;
    }
    return true;
  }

  const uint64_t most_;
  uint64_t weight_ = 0;
};

}  // namespace

uint64_t ParsedWeight(const Descriptor& type, std::span<const std::byte> serialized,
                      uint64_t most) {
  google::protobuf::io::ArrayInputStream in(
      serialized.data(), static_cast<int>(std::min<size_t>(serialized.size(), INT_MAX)));
  return ParsedWeight(type, in, most);
}

uint64_t ParsedWeight(const Descriptor& type, google::protobuf::io::ZeroCopyInputStream& serialized,
                      uint64_t most) {
  CodedInputStream in(&serialized);
  Scale scale(most);
  (void)scale.Weigh(type, in);
  return scale.weight();
}

uint64_t ParsedWeightMax(uint64_t length) {
  constexpr uint64_t kTimes = 12, kLongTimes = 2;
  constexpr uint64_t kShort = 32 << 10, kBeside = 2 << 20;
  return std::max(kShort, std::min(kTimes * length, kLongTimes * length + kBeside));
}

}  // namespace larder
