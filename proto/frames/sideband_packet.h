// One packet of a SOCK_SEQPACKET socket with what the kernel puts beside it: descriptors and the
// sender's credentials.  Both ends of the sideband speak through it.
//
// Knows no frames (proto/frames/sideband_frames.h) and never waits: the caller polls.  Expects a
// hostile peer: whatever descriptors come in are owned, so that none leaks, however many came.
//
// Ownership: a ReceivedPacket owns its descriptors.  Thread-safety: none per packet; the functions
// from any thread.  Limits: kFrameBytesMax a packet.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_frames.h"

namespace larder {

struct SenderCredentials {
  pid_t pid = 0;  // in the receiver's PID namespace; 0: not visible from there
  uid_t uid = 0;
};

struct ReceivedPacket {
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(data).first(size); }

  std::array<std::byte, kFrameBytesMax> data;
  size_t size = 0;
  bool oversize = false;      // the packet was longer than any frame
  bool control_lost = false;  // descriptors were sent that did not arrive: this process has no room
                              // for more, or kNone was asked for
  std::vector<FileDescriptor> descriptors;       // close-on-exec
  std::optional<SenderCredentials> credentials;  // with SO_PASSCRED on the receiving socket
};

enum class ReceiveResult : uint8_t { kPacket, kNothingYet, kClosed };
// kRefused: the receiver takes no descriptors, and nothing was sent.
enum class SendResult : uint8_t { kSent, kFull, kClosed, kRefused };
// With kNone the kernel drops descriptors that came, in the calling thread.
enum class Descriptors : uint8_t { kTake, kNone };

// A packet without bytes looks like a close, except on a socket with SO_PASSCRED.
[[nodiscard]] ReceiveResult ReceivePacket(int socket, ReceivedPacket& packet,
                                          Descriptors descriptors = Descriptors::kTake);

struct SendExtras {
  int descriptor = -1;       // stays the caller's
  bool credentials = false;  // names the sender's pid and effective uid; without it the kernel adds
                             // the pid and the real uid
};
[[nodiscard]] SendResult SendPacket(int socket, std::span<const std::byte> bytes,
                                    const SendExtras& extras = {});

}  // namespace larder
