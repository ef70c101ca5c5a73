// Sends and receives one packet of a SOCK_SEQPACKET socket, together with what the kernel passes
// beside it: descriptors and the sender's credentials.  Both ends of the sideband use it.
//
// This code knows no frames (proto/frames/sideband_frames.h) and never waits: the caller polls.  It
// expects a hostile peer: it takes ownership of every descriptor that arrives, however many, so
// that none leaks.
//
// Ownership: a ReceivedPacket owns its descriptors.  Thread-safety: none for a packet; any thread
// may call the functions.  Limits: a packet has at most kFrameBytesMax.
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
  pid_t pid = 0;  // in the receiver's PID namespace; 0 if it is not visible from there
  uid_t uid = 0;
};

struct ReceivedPacket {
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(data).first(size); }

  std::array<std::byte, kFrameBytesMax> data;
  size_t size = 0;
  bool oversize = false;  // the packet was longer than any frame
  // Descriptors were sent and did not arrive, because this process may not open more of them or the
  // caller passed Descriptors::kNone.
  bool control_lost = false;
  std::vector<FileDescriptor> descriptors;       // close-on-exec
  std::optional<SenderCredentials> credentials;  // with SO_PASSCRED on the receiving socket
};

enum class ReceiveResult : uint8_t { kPacket, kNothingYet, kClosed };
// kRefused: the receiver takes no descriptors, so nothing was sent.
enum class SendResult : uint8_t { kSent, kFull, kClosed, kRefused };
// kNone, only for a socket with SO_PASSCRED: the kernel closes descriptors that arrive, in the
// thread that calls ReceivePacket.
enum class Descriptors : uint8_t { kTake, kNone };

// A packet without bytes counts as a close (kClosed), except on a socket with SO_PASSCRED.
[[nodiscard]] ReceiveResult ReceivePacket(int socket, ReceivedPacket& packet,
                                          Descriptors descriptors = Descriptors::kTake);

struct SendExtras {
  int descriptor = -1;  // remains the caller's; -1 sends none
  // Sends the process's pid and effective uid.  Otherwise the kernel adds the pid and the real uid.
  bool credentials = false;
};
[[nodiscard]] SendResult SendPacket(int socket, std::span<const std::byte> bytes,
                                    const SendExtras& extras = {});

}  // namespace larder
