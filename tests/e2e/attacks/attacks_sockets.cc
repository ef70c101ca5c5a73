// Attacks on the sockets themselves: descriptors that are not memory, and connections in large
// numbers and in every state.
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "proto/frames/sideband_frames.h"
#include "tests/e2e/attacks/attacker_tools.h"

namespace larder::e2e {
namespace {

constexpr std::byte kOne[] = {std::byte{1}};
constexpr int kDescriptorsMax = 200;  // each blocks the thread that closes it for 15 s

// Sends a lingering socket and closes it at once, so that the daemon has its last descriptor.
void SendLingering(Attack& attack, int socket, std::span<const std::byte> bytes) {
  const FileDescriptor slow = LingeringSocket();
  if (socket >= 0 && SendWith(socket, bytes, slow.get())) {
    attack.tally.Done();
  } else {
    attack.tally.Refused("the socket accepts no descriptor");
  }
}

// Calls `call` at intervals, each time on a new thread: if the daemon closes its descriptor first,
// the attacker's own close blocks.
void NowAndThen(int pause_ms, const std::function<void()>& call) {
  for (int i = 0; i < kDescriptorsMax; ++i) {
    std::thread(call).detach();
    Pause(pause_ms);
  }
  for (;;) Pause(1'000);
}

// Sends the descriptor with the first packet of a connection to the sideband.
void DescriptorSideband(Attack& attack) {
  NowAndThen(300, [&attack] {
    FileDescriptor socket = ConnectTo(attack.sideband(), SOCK_SEQPACKET);
    SendLingering(attack, socket.get(), EncodeFrame(HelloFrame{}).bytes());
    static_cast<void>(socket.Release());
  });
}

// Sends the descriptor with one byte on a session socket.
void DescriptorSession(Attack& attack) {
  NowAndThen(300, [&attack] {
    const auto sideband = Handshake(attack);
    if (sideband == nullptr) return;
    auto socket = sideband->OpenSession();
    if (!socket.ok()) return attack.tally.Refused(socket.status().ToString());
    SendLingering(attack, socket->get(), kOne);
    Pause(1'000);
  });
}

// Sends descriptors on eight connections to data.sock at a time.
void DescriptorGrpc(Attack& attack) {
  NowAndThen(1'000, [&attack] {
    std::vector<FileDescriptor> sockets(8);
    for (FileDescriptor& socket : sockets) socket = ConnectTo(attack.data(), SOCK_STREAM);
    for (const FileDescriptor& socket : sockets) SendLingering(attack, socket.get(), kOne);
    Pause(1'000);
  });
}

bool IsClosed(int fd) {
  pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&look, 1, 0) == 1 && (look.revents & (POLLHUP | POLLERR)) != 0;
}

// Holds `count` connections after sending `words` on each, and after a pause replaces the ones that
// the daemon closes.
void Hold(Attack& attack, const std::string& path, int type, int count, const std::string& words) {
  std::vector<FileDescriptor> held(static_cast<size_t>(count));
  for (;;) {
    for (FileDescriptor& one : held) {
      if (one && !IsClosed(one.get())) continue;
      const bool was = static_cast<bool>(one);
      one = ConnectTo(path, type);
      if (!one || was) attack.tally.Refused(was ? "closed by the daemon" : "connect: " + path);
      if (!one) break;
      attack.tally.Done();
      if (!words.empty()) send(one.get(), words.data(), words.size(), MSG_NOSIGNAL);
    }
    Pause(20);
  }
}

void ConnectionsHeld(Attack& attack) {
  std::thread([&attack] { Hold(attack, attack.sideband(), SOCK_SEQPACKET, 1'000, ""); }).detach();
  Hold(attack, attack.data(), SOCK_STREAM, 3'000, "");
}

// Begins greetings on data.sock and handshakes on the sideband, and finishes none of them.
void ConnectionsHalfOpen(Attack& attack) {
  std::thread([&attack] {
    const EncodedFrame hello = EncodeFrame(HelloFrame{});
    const std::string words(reinterpret_cast<const char*>(hello.bytes().data()),
                            hello.bytes().size());
    Hold(attack, attack.sideband(), SOCK_SEQPACKET, 1'000, words);
  }).detach();
  Hold(attack, attack.data(), SOCK_STREAM, 3'000, "PRI * HTTP/2.0\r\n\r\n");
}

void ConnectionsChurned(Attack& attack) {
  std::atomic<int> left{24'000};
  OnThreads(2, [&](int thread) {
    std::vector<FileDescriptor> some;
    for (int i = 0; i < 256 && --left > 0; ++i) {
      FileDescriptor one = thread == 0 ? ConnectTo(attack.data(), SOCK_STREAM)
                                       : ConnectTo(attack.sideband(), SOCK_SEQPACKET);
      if (!one) {
        attack.tally.Refused("connect");
        Pause(1);
        continue;
      }
      attack.tally.Done();
      some.push_back(std::move(one));
    }
    Pause(10);
  });
}

// Makes handshakes and opens session sockets, and sends nothing more on them.
void Idle(Attack& attack) {
  std::vector<std::unique_ptr<SidebandClient>> sidebands;
  std::vector<FileDescriptor> sessions;
  for (int i = 0; i < 1'000; ++i) {
    auto sideband = Handshake(attack);
    if (sideband == nullptr) {
      Pause(50);
      continue;
    }
    attack.tally.Done();
    if (auto socket = sideband->OpenSession(); socket.ok()) sessions.push_back(*std::move(socket));
    sidebands.push_back(std::move(sideband));
  }
  for (;;) Pause(1'000);
}

}  // namespace

std::vector<NamedAttack> SocketAttacks() {
  return {{"descriptor_sideband", DescriptorSideband},
          {"descriptor_session", DescriptorSession},
          {"descriptor_grpc", DescriptorGrpc},
          {"connections_held", ConnectionsHeld},
          {"connections_churned", ConnectionsChurned},
          {"connections_half_open", ConnectionsHalfOpen},
          {"idle", Idle}};
}

}  // namespace larder::e2e
