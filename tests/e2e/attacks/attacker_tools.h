// What attacks are made of: sockets of every kind at the daemon, sessions by raw frames,
// descriptors whose close blocks, and a count of what was done and what was refused.
//
// Nothing here keeps to a limit of the contract; each attack bounds itself in count, and main() in
// time.
// Ownership: an Attack lives as long as its process.  Thread-safety: Tally from any thread, all
// else from one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "client/local/sideband_client.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_packet.h"
#include "storage/mutex.h"
#include "tests/e2e/attacks/written_blocks.h"
#include "tests/e2e/support/raw_session.h"

namespace larder::e2e {

class Tally {
 public:
  void Done(uint64_t count = 1) { done_ += count; }
  void Refused(const std::string& why) {
    ++refused_;
    const MutexLock lock(mu_);
    last_ = why;
  }
  // One line for people.
  [[nodiscard]] std::string Text() {
    const MutexLock lock(mu_);
    std::string text = std::to_string(done_) + " done, " + std::to_string(refused_) + " refused";
    if (!last_.empty()) text += ": " + last_;
    return text;
  }

 private:
  std::atomic<uint64_t> done_{0}, refused_{0};
  Mutex mu_;
  std::string last_ LARDER_GUARDED_BY(mu_);
};

struct Attack {
  std::string dir;  // of the socket files
  Tally tally = {};

  [[nodiscard]] std::string data() const { return dir + "/data.sock"; }
  [[nodiscard]] std::string sideband() const { return dir + "/sideband.sock"; }
  [[nodiscard]] std::shared_ptr<grpc::Channel> Channel() const;
};

// The attacks: each runs until it has nothing more to do; what it holds then stays held until the
// process ends.
using AttackFunction = void (*)(Attack&);
struct NamedAttack {
  const char* name;
  AttackFunction function;
};
// attacks_sockets.cc, attacks_sessions.cc, attacks_streams.cc, attacks_names.cc, attacks_costs.cc
[[nodiscard]] std::vector<NamedAttack> SocketAttacks();
[[nodiscard]] std::vector<NamedAttack> SessionAttacks();
[[nodiscard]] std::vector<NamedAttack> StreamAttacks();
[[nodiscard]] std::vector<NamedAttack> NameAttacks();
[[nodiscard]] std::vector<NamedAttack> CostAttacks();

inline void Pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Empty: it was refused.
[[nodiscard]] FileDescriptor ConnectTo(const std::string& path, int type);
// A TCP socket with bytes that its peer does not read, and a linger of 15 s: to close the last
// descriptor of it blocks for so long.  The peer is leaked.
[[nodiscard]] FileDescriptor LingeringSocket();
// Bytes with a descriptor beside them; false: the socket takes no more.
[[nodiscard]] bool SendWith(int socket, std::span<const std::byte> bytes, int descriptor);

// An honest handshake; null when it is refused.
[[nodiscard]] std::unique_ptr<SidebandClient> Handshake(Attack& attack);
// The handshake by frames, for what the library does not say, or no longer.
class RawSideband {
 public:
  // Not connected: it was refused.
  explicit RawSideband(Attack& attack);
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(socket_); }
  // Sends these bytes and waits for a packet, at most 10 s.  Nothing: there was none, or an ERROR,
  // which is counted as refused.
  [[nodiscard]] std::optional<ReceivedPacket> Ask(std::span<const std::byte> bytes,
                                                  const SendExtras& extras = {});
  // Sends these bytes and reads nothing.  False: the daemon has closed it.
  [[nodiscard]] bool Say(std::span<const std::byte> bytes);
  // A packet of this type whose body is one number.
  [[nodiscard]] static std::string Packet(uint16_t type, uint64_t number);

 private:
  Attack& attack_;
  FileDescriptor socket_;
};

// A session on a socket of its own, or, without a sideband, by gRPC.  Null when it is refused.
[[nodiscard]] std::unique_ptr<RawSession> AttachBySocket(Attack& attack, SidebandClient& sideband,
                                                         const std::string& engine_id);
[[nodiscard]] std::unique_ptr<RawSession> AttachByGrpc(Attack& attack,
                                                       const std::string& engine_id);
// Registers content and variant of a victim; the variant is index 0.  False: refused.
[[nodiscard]] bool RegisterOf(Attack& attack, RawSession& session, const BlockMaker& maker);
// The head of a byte stream of one block: its bytes are to follow.
[[nodiscard]] v1::StoreBlocksRequest HeadOf(const BlockMaker& maker, const TestBlock& block,
                                            uint32_t layer_bytes, const std::string& engine_id);
// Stores blocks [from, to) by one byte stream with bytes of the attacker's own.
void StoreOwn(Attack& attack, const BlockMaker& maker, uint32_t from, uint32_t to,
              uint32_t layer_bytes);

// A year from now.
[[nodiscard]] std::chrono::system_clock::time_point NextYear();

// So many threads, each of which calls until the process ends.
void OnThreads(int count, const std::function<void(int)>& call);

// Of the hot blocks of a victim, packed.
[[nodiscard]] std::string HotDigests(const BlockMaker& maker, uint32_t count);

}  // namespace larder::e2e
