#include "storage/types.h"

namespace larder {

std::string Digest::Hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::byte b : bytes) {
    out.push_back(kHex[std::to_integer<unsigned>(b) >> 4]);
    out.push_back(kHex[std::to_integer<unsigned>(b) & 15]);
  }
  return out;
}

const char* ToString(BlockStatus status) {
  switch (status) {
    case BlockStatus::kOk:
      return "ok";
    case BlockStatus::kMissing:
      return "missing";
    case BlockStatus::kPending:
      return "pending";
    case BlockStatus::kDuplicate:
      return "duplicate";
    case BlockStatus::kFull:
      return "full";
    case BlockStatus::kInvalid:
      return "invalid";
    case BlockStatus::kDamaged:
      return "damaged";
    case BlockStatus::kNotHeld:
      return "not held";
    case BlockStatus::kCancelled:
      return "cancelled";
    case BlockStatus::kUnsupported:
      return "unsupported";
    case BlockStatus::kKept:
      return "kept";
  }
  return "?";
}

const char* ToString(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
    case Tier::kRemote:
      return "remote";
  }
  return "?";
}

}  // namespace larder
