// What the daemon does against descriptors that peers send (SCM_RIGHTS) where it wants none.
//
// A descriptor is hostile: closing the last reference to a TCP socket that lingers waits for as
// long as its sender chose, in whichever thread reads or closes the unix socket that carries it.
// Linux 6.16 and later refuse such messages for the daemon (SO_PASSRIGHTS): the sender gets EPERM,
// and nothing below costs anything.  On older kernels a reader peeks first, without room for
// descriptors: the kernel then says that there are some (MSG_CTRUNC) and installs none, and the
// references that it drops are not the last.  Such a connection ends, and its socket is closed with
// all that it carries by a thread that serves no client (server/connections/descriptor_closer.h).
// So that the peek sees bytes that were sent out of band (MSG_OOB) as well, they come in the line.
//
// Does not judge descriptors that are wanted; the sideband does that.
// Ownership: none.  Thread-safety: all functions from any thread.
// Limits: a peek copies what it looks at, so on older kernels each byte is copied twice.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "proto/frames/file_descriptor.h"

namespace larder {

// Asks the kernel to refuse descriptors to `socket`, and turns off all else that comes beside
// bytes; the connections of a listener inherit that when they connect, but not where bytes that
// come out of band go: so each of them needs its own call where the kernel is too old, for which
// this returns false.
[[nodiscard]] bool RefuseRights(int socket);
// The opposite, for a peer that may send them.
void AllowRights(int socket);

// Returns false if RefuseRights never helps on this kernel.
[[nodiscard]] bool KernelRefusesRights();

// From here on RefuseRights behaves as on an older kernel, or no more.  For tests.
void PretendNoPassRights(bool pretend);

// Returns true if what waits at a stream socket carries descriptors, or is too long or too odd to
// be sure.  REQUIRES: RefuseRights was asked.
[[nodiscard]] bool StreamCarriesRights(int socket);

// Returns true if the next packet of a SOCK_SEQPACKET socket carries descriptors.
[[nodiscard]] bool PacketCarriesRights(int socket);

// recv of a stream socket.  Returns -1 with EPERM if the bytes carry descriptors: then nothing was
// read, and the connection must end by CloseSocket.
[[nodiscard]] ssize_t ReceiveStream(int socket, std::span<std::byte> room, bool kernel_refuses);

// Closes a connected socket without waiting for what it may carry.
void CloseSocket(FileDescriptor socket, bool kernel_refuses);
// Closes a listener, and with it the connections that were not accepted and what they may carry.
void CloseListener(FileDescriptor listener, bool may_carry);

}  // namespace larder
