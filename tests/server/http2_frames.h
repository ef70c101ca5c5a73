// Frames of HTTP/2 as a gRPC client sends them, for tests of what reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace larder {

inline constexpr uint8_t kDataFrame = 0, kHeadersFrame = 1, kResetFrame = 3, kSettingsFrame = 4;
inline constexpr uint8_t kEndStreamFlag = 1;
inline constexpr std::string_view kClientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + BigEndian(stream, 4) + std::string(payload);
}

// A message as gRPC puts it into DATA.
inline std::string Prefixed(std::string_view message) {
  return '\0' + BigEndian(static_cast<uint32_t>(message.size()), 4) + std::string(message);
}

}  // namespace larder
