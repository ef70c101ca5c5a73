// What the conversions share: which field of a message is being decoded, and how single fields are
// checked.  Only convert_*.cc and session_codec.cc use it.
//
// A Field names a field by a chain of stack objects and points to the one error of the decode.  The
// first refusal wins; what is decoded after it is not used.  The text of a field's name is made
// only when something is refused.
//
// Ownership: a Field refers to its parent Field and to the status, which outlive it (temporaries of
// one expression do).
// Thread-safety: used only by the thread that decodes.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "larder/v1/engine.pb.h"
#include "larder/v1/types.pb.h"
#include "proto/messages/messages.h"

namespace larder::wire {

class Field {
 public:
  // Stands for the whole message.
  explicit Field(absl::Status* error) : error_(error) {}

  [[nodiscard]] Field operator()(const char* name) const { return Field(this, name, 0); }
  [[nodiscard]] Field operator[](int index) const { return Field(this, nullptr, index); }

  template <class... Words>
  void Refuse(const Words&... why) const {
    if (ok()) Fail(absl::StrCat(why...));
  }
  [[nodiscard]] bool ok() const { return error_->ok(); }

 private:
  Field(const Field* parent, const char* name, int index)
      : error_(parent->error_), parent_(parent), name_(name), index_(index) {}
  [[gnu::cold]] void Fail(const std::string& why) const;
  void AppendTo(std::string* out) const;

  absl::Status* error_;
  const Field* parent_ = nullptr;
  const char* name_ = nullptr;  // if null, the field is element `index_` of its parent
  int index_ = 0;
};

// Refuses the field and returns false if there are more than `most` entries.
bool CheckCount(const Field& at, int count, size_t most);

// Allowed lengths, in bytes.
struct Length {
  size_t least;
  size_t most;
};
inline constexpr Length kAnyString{0, kStringBytesMax};
void DecodeString(const Field& at, const std::string& in, Length length, std::string* out);
// Returns at most the first 256 bytes, cut between UTF-8 characters.
[[nodiscard]] std::string_view CutSentence(std::string_view sentence);

void DecodeRequestId(const Field& at, uint64_t in, uint64_t* out);  // refuses 0
[[nodiscard]] uint32_t DecodeDeadlineMs(uint32_t in);

void DecodeDigest(const Field& at, const std::string& in, Digest* out);
void DecodeDigest(const Field& at, const std::string& in,
                  std::optional<Digest>* out);  // nullopt if `in` is empty
void DecodeDigests(const Field& at, const std::string& in, size_t most, std::vector<Digest>* out);
void EncodeDigest(const Digest& in, std::string* out);
void EncodeDigests(const std::vector<Digest>& in, std::string* out);

// Decodes the tokens of one block; refuses any number except a multiple of 16 from 16 to 4,096.
void DecodeBlockTokens(const Field& at, const google::protobuf::RepeatedField<uint32_t>& in,
                       std::vector<uint32_t>* out);

void DecodeContent(const Field& at, const v1::Content& in, ContentSpec* out);
void DecodeVariant(const Field& at, const v1::Variant& in, VariantSpec* out);
void DecodeTable(const Field& at, const v1::SegmentTable& in, SegmentTable* out);
void DecodeBlockWriter(const Field& at, const v1::BlockWriter& in, BlockWriter* out);
void DecodeDevice(const Field& at, const v1::EngineDevice& in, EngineDevice* out);
// Cuts texts except kind and wish.
void EncodeDevice(const EngineDevice& in, v1::EngineDevice* out);

// Each of these enums counts from 1 without a hole, with the same numbers on the wire and in C++.
// LastOf returns its last number.
[[nodiscard]] constexpr int LastOf(Tier) { return v1::Tier_MAX; }
[[nodiscard]] constexpr int LastOf(Codec) { return v1::Codec_MAX; }
[[nodiscard]] constexpr int LastOf(BlockStatus) { return v1::BlockStatus_MAX; }
[[nodiscard]] constexpr int LastOf(SelectionScope) { return v1::SelectionScope_MAX; }
[[nodiscard]] constexpr int LastOf(Role) { return v1::Role_MAX; }
[[nodiscard]] constexpr int LastOf(WriteMode) { return v1::WriteMode_MAX; }
[[nodiscard]] constexpr int LastOf(ReadMode) { return v1::ReadMode_MAX; }
[[nodiscard]] constexpr int LastOf(AcquireWhat) { return v1::AcquireWhat_MAX; }
[[nodiscard]] constexpr int LastOf(RevocationCause) { return v1::RevocationCause_MAX; }
[[nodiscard]] constexpr int LastOf(DirectiveKind) { return v1::DirectiveKind_MAX; }
static_assert(static_cast<int>(Role::kBoth) == v1::Role_MAX);
static_assert(static_cast<int>(WriteMode::kStream) == v1::WriteMode_MAX);
static_assert(static_cast<int>(AcquireWhat::kPromise) == v1::AcquireWhat_MAX);
static_assert(static_cast<int>(ReadMode::kStream) == v1::ReadMode_MAX);
static_assert(static_cast<int>(RevocationCause::kDrain) == v1::RevocationCause_MAX);
static_assert(static_cast<int>(DirectiveKind::kDrain) == v1::DirectiveKind_MAX);
static_assert(static_cast<int>(Tier::kRemote) == v1::Tier_MAX);
static_assert(static_cast<int>(Codec::kJoint) == v1::Codec_MAX);
static_assert(static_cast<int>(SelectionScope::kWriter) == v1::SelectionScope_MAX);
static_assert(static_cast<int>(BlockStatus::kKept) == v1::BlockStatus_MAX);

inline constexpr size_t kTiersMax = v1::Tier_MAX;  // a message names each tier once

template <class Enum>
void DecodeEnum(const Field& at, int in, Enum* out) {
  if (in < 1 || in > LastOf(Enum{}))
    return at.Refuse(in, in == 0 ? " is unspecified" : " is unknown");
  *out = static_cast<Enum>(in);
}

template <class Enum>
void DecodeEnums(const Field& at, const google::protobuf::RepeatedField<int>& in, size_t most,
                 std::vector<Enum>* out) {
  if (!CheckCount(at, in.size(), most)) return;
  out->resize(static_cast<size_t>(in.size()));
  for (int i = 0; i < in.size() && at.ok(); ++i)
    DecodeEnum(at[i], in[i], &(*out)[static_cast<size_t>(i)]);
}

template <class Enum>
void EncodeEnums(const std::vector<Enum>& in, google::protobuf::RepeatedField<int>* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (const Enum value : in) out->AddAlreadyReserved(static_cast<int>(value));
}

template <class Tag>
void DecodeIds(const Field& at, const google::protobuf::RepeatedField<uint64_t>& in,
               std::vector<Id<Tag>>* out) {
  if (!CheckCount(at, in.size(), kIdsMax)) return;
  out->resize(static_cast<size_t>(in.size()));
  for (int i = 0; i < in.size(); ++i) (*out)[static_cast<size_t>(i)] = Id<Tag>{in[i]};
}

template <class Tag>
void EncodeIds(const std::vector<Id<Tag>>& in, google::protobuf::RepeatedField<uint64_t>* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (const Id<Tag> id : in) out->AddAlreadyReserved(id.value);
}

// Decodes a list of at most `most` entries, calling `decode` for each until a field is refused.
template <class Wire, class Value>
void DecodeEach(const Field& at, const google::protobuf::RepeatedPtrField<Wire>& in, size_t most,
                void (*decode)(const Field&, const Wire&, Value*), std::vector<Value>* out) {
  if (!CheckCount(at, in.size(), most)) return;
  out->resize(static_cast<size_t>(in.size()));
  for (int i = 0; i < in.size() && at.ok(); ++i)
    decode(at[i], in[i], &(*out)[static_cast<size_t>(i)]);
}

template <class Wire, class Value>
void EncodeEach(const std::vector<Value>& in, void (*encode)(const Value&, Wire*),
                google::protobuf::RepeatedPtrField<Wire>* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (const Value& value : in) encode(value, out->Add());
}

}  // namespace larder::wire
