// Any bytes, as each message that a peer can send, decode to a value or InvalidArgument; and the
// encoding of a decoded value decodes to an equal value.  The first byte chooses the message.
#include <google/protobuf/stubs/logging.h>

#include <iterator>

#include "larder/v1/cache.pb.h"
#include "larder/v1/engine.pb.h"
#include "proto/convert/convert.h"
#include "storage/check.h"
#include "tests/fuzz/byte_fuzz.h"
#include "tests/proto/sample_messages.h"

namespace larder {
namespace {

constexpr int kBytesMax = 1 << 20;

// Returns true if the bytes decoded.
template <class Wire, class Value>
bool DecodeAndEncode(const uint8_t* data, size_t size) {
  const google::protobuf::LogSilencer quiet;  // or it prints every string that is not UTF-8
  Wire in;
  if (size > kBytesMax || !in.ParseFromArray(data, static_cast<int>(size))) return false;
  Value value;
  const absl::Status status = wire::Decode(in, &value);
  if (!status.ok()) {
    LARDER_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    LARDER_CHECK(!status.message().empty());
    return false;
  }
  Wire encoded;
  wire::Encode(value, &encoded);
  Value again;
  LARDER_CHECK(wire::Decode(encoded, &again).ok());
  LARDER_CHECK(again == value);
  return true;
}

using Decoder = bool (*)(const uint8_t*, size_t);
constexpr Decoder kDecoders[] = {
    DecodeAndEncode<v1::Up, wire::Up>,
    DecodeAndEncode<v1::Down, wire::Down>,
    DecodeAndEncode<v1::LookupRequest, wire::LookupQuery>,
    DecodeAndEncode<v1::LookupReply, wire::LookupResult>,
    DecodeAndEncode<v1::ListInstancesReply, wire::InstancesPage>,
    DecodeAndEncode<v1::StoreBlocksRequest, wire::StoreBlocksPart>,
    DecodeAndEncode<v1::StoreBlocksReply, wire::StoreBlocksResult>,
    DecodeAndEncode<v1::FetchBlocksRequest, wire::FetchBlocksQuery>,
    DecodeAndEncode<v1::FetchBlocksReply, wire::FetchBlocksPart>,
    DecodeAndEncode<v1::ClearReply, wire::ClearResult>,
    DecodeAndEncode<v1::WatchEventsReply, wire::WatchReply>,
};

bool Run(const uint8_t* data, size_t size) {
  return size > 0 && kDecoders[data[0] % std::size(kDecoders)](data + 1, size - 1);
}

template <class Wire, class Value>
std::string Seed(char decoder, const Value& value) {
  Wire encoded;
  wire::Encode(value, &encoded);
  return decoder + encoded.SerializeAsString();
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  using namespace wire::sample;
  wire::Up acquire;
  acquire.releases = {LeaseId{1}};
  acquire.acquires = {FullUp().acquires[1]};
  std::vector<std::string> seeds = {
      Seed<v1::Up>(0, FullUp()),
      Seed<v1::Up>(0, acquire),
      Seed<v1::Down>(1, FullDown()),
      Seed<v1::LookupRequest>(2, LookupByTokens()),
      Seed<v1::LookupRequest>(2, LookupByDigests()),
      Seed<v1::LookupReply>(3, FullLookupResult()),
      Seed<v1::ListInstancesReply>(4, FullInstances()),
      Seed<v1::StoreBlocksRequest>(5, FullStorePart()),
      Seed<v1::StoreBlocksReply>(6, FullStoreResult()),
      Seed<v1::FetchBlocksRequest>(7, FullFetchQuery()),
      Seed<v1::FetchBlocksReply>(8, FullFetchPart()),
  };
  for (const std::string& seed : seeds) {
    LARDER_CHECK(Run(reinterpret_cast<const uint8_t*>(seed.data()), seed.size()));
  }
  return seeds;
}

}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  larder::Run(data, size);
  return 0;
}
