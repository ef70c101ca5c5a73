// Protects the daemon against file descriptors that peers send (SCM_RIGHTS) where it expects none.
//
// A descriptor can be hostile: closing the last reference to a TCP socket that lingers may wait for
// as long as its sender chose, in the thread that reads or closes the unix socket that carries it.
// From Linux 6.16 on, the kernel refuses messages with descriptors for a socket on which the daemon
// turned off SO_PASSRIGHTS in time: the sender gets EPERM, and such a socket needs no check.  For
// other sockets (on older kernels, and those of a listener that was handed over) a reader peeks
// first, with a control buffer too small for descriptors: the kernel then reports that there are
// some (MSG_CTRUNC) and installs none, and the references that the kernel drops are not the last
// ones, because the message stays queued.  A connection that carries descriptors is ended, and a
// thread that serves no client closes its socket (server/connections/descriptor_closer.h).  Bytes
// that were sent out of band (MSG_OOB) are received inline, so that the peek sees them as well.
//
// These functions do not check descriptors that are expected; the sideband does that.
// Ownership: none.  Thread-safety: any thread may call these functions.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "proto/frames/file_descriptor.h"

namespace larder {

// Makes the kernel refuse descriptors sent to `socket`, turns off the ancillary data that the
// kernel would add (credentials, security labels, pidfds), and makes out-of-band bytes inline.
// Returns false if the kernel cannot refuse descriptors; the rest is done all the same.  The
// connections of a listener inherit these settings, except the one for out-of-band bytes; so on a
// kernel that cannot refuse descriptors each connection needs a call of its own.
[[nodiscard]] bool RefuseRights(int socket);
// Allows descriptors again, for a peer that may send them.
void AllowRights(int socket);

// Returns false if this kernel cannot refuse descriptors, or if no socket can be opened to find
// out.
[[nodiscard]] bool KernelRefusesRights();

// For tests: with `pretend`, RefuseRights behaves from now on as on an older kernel.
void PretendNoPassRights(bool pretend);

// Returns true if the bytes that wait at a stream socket carry descriptors, or if this cannot be
// excluded.
// REQUIRES: RefuseRights was called for the socket.
[[nodiscard]] bool StreamCarriesRights(int socket);

// Returns true if the next packet of a SOCK_SEQPACKET socket carries descriptors, and false if it
// carries none or no packet waits.
// REQUIRES: SO_PASSCRED is on at the socket, so that credentials fill the control buffer of the
// peek.
[[nodiscard]] bool PacketCarriesRights(int socket);

// Receives from a stream socket without waiting, as recv does with MSG_DONTWAIT.  Returns -1 with
// EPERM if the bytes carry descriptors; then nothing was read, and the caller must end the
// connection with CloseSocket.  With `kernel_refuses`, which says that the kernel refuses
// descriptors at this socket, the check is skipped.
[[nodiscard]] ssize_t ReceiveStream(int socket, std::span<std::byte> room, bool kernel_refuses);

// Closes a connected socket without waiting for descriptors that it may carry.  With
// `kernel_refuses` it carries none, and is closed at once.
void CloseSocket(FileDescriptor socket, bool kernel_refuses);
// Closes a listener.  With `may_carry`, which says that connections that wait there may carry
// descriptors, another thread closes it.
void CloseListener(FileDescriptor listener, bool may_carry);

}  // namespace larder
