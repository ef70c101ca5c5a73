// Sends and receives one packet of a SOCK_SEQPACKET socket, with the descriptors and the sender's
// credentials that the kernel passes with it.  Both ends of the sideband use it.
//
// This code does not interpret frames and never waits: the caller polls.  It expects a hostile
// peer: every descriptor that it receives gets an owner, so that none leaks.
//
// Ownership: a ReceivedPacket owns its descriptors.  Thread-safety: none for a packet; any thread
// may call the functions.
// Limits: of a packet that is longer than kFrameBytesMax, only that many bytes are received.
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
  // True if not all descriptors that were sent have arrived, for example because this process may
  // not open more of them, or because the caller passed Descriptors::kNone.
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

// Returns kNothingYet if no packet has arrived yet, and kClosed if the socket has failed, or if no
// packet is left and the peer has closed its end.  A packet with neither bytes nor descriptors nor
// credentials counts as kClosed, because it looks like the end.
[[nodiscard]] ReceiveResult ReceivePacket(int socket, ReceivedPacket& packet,
                                          Descriptors descriptors = Descriptors::kTake);

struct SendExtras {
  int descriptor = -1;  // remains the caller's; -1 sends none
  // Sends this process's pid, effective uid and effective gid.  Otherwise the receiver may get the
  // real ids.
  bool credentials = false;
};
[[nodiscard]] SendResult SendPacket(int socket, std::span<const std::byte> bytes,
                                    const SendExtras& extras = {});

}  // namespace larder
