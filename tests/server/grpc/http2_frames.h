// HTTP/2 frames as a gRPC client sends them, for the tests of the code that reads such frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace larder {

inline constexpr uint8_t kDataFrame = 0, kHeadersFrame = 1, kResetFrame = 3, kSettingsFrame = 4,
                         kContinuationFrame = 9;
inline constexpr uint8_t kEndStreamFlag = 1, kEndHeadersFlag = 4;
inline constexpr std::string_view kClientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

inline std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream,
                              std::string_view payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + BigEndian(stream, 4) + std::string(payload);
}

// The headers of a call by RFC 7541: fields of its static table, by number, and literals.
inline std::string CallHeaders(std::string_view path) {
  const auto text = [](std::string_view value) {
    return static_cast<char>(value.size()) + std::string(value);  // shorter than 127 bytes
  };
  return "\x83\x86\x04" + text(path) + "\x01" + text("localhost") + "\x0f\x10" +
         text("application/grpc") + std::string(1, '\0') + text("te") + text("trailers");
}

// A message with the prefix that gRPC puts before it in DATA.
inline std::string Prefixed(std::string_view message) {
  return '\0' + BigEndian(static_cast<uint32_t>(message.size()), 4) + std::string(message);
}

}  // namespace larder
