// The tools of the attacks: connections to all sockets of the daemon, sessions of raw frames,
// descriptors whose close blocks, and a count of what was done and what was refused.
//
// Nothing here respects a limit of the contract.  Each attack bounds itself in count, and main()
// bounds it in time.
// Ownership: an Attack lives as long as its process.  Thread-safety: Tally may be used from any
// thread, everything else from one thread at a time.
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
  // Returns the counts and the last refusal in one line.
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

// The attacks.  Each runs until it has nothing more to do.  What it holds stays held until the
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

// Returns an empty descriptor if the connection was refused.
[[nodiscard]] FileDescriptor ConnectTo(const std::string& path, int type);
// Returns a TCP socket with bytes that its peer does not read and a linger of 15 s, so that closing
// its last descriptor blocks for 15 s.  The peer is leaked.
[[nodiscard]] FileDescriptor LingeringSocket();
// Sends bytes together with a descriptor.  Returns false if the socket does not accept them.
[[nodiscard]] bool SendWith(int socket, std::span<const std::byte> bytes, int descriptor);

// Makes a correct handshake.  Returns null if it is refused.
[[nodiscard]] std::unique_ptr<SidebandClient> Handshake(Attack& attack);
// A sideband connection with raw packets, for packets that the client library does not send, or no
// longer sends.
class RawSideband {
 public:
  // Makes the handshake.  The object is not connected afterwards if it was refused.
  explicit RawSideband(Attack& attack);
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(socket_); }
  // Sends these bytes and waits at most 10 s for a packet.  Returns nullopt if none came, or an
  // ERROR packet, which is counted as refused.
  [[nodiscard]] std::optional<ReceivedPacket> Ask(std::span<const std::byte> bytes,
                                                  const SendExtras& extras = {});
  // Sends these bytes and reads nothing.  Returns false if the daemon has closed the connection.
  [[nodiscard]] bool Say(std::span<const std::byte> bytes);
  // Returns a packet of this type whose body is one number.
  [[nodiscard]] static std::string Packet(uint16_t type, uint64_t number);

 private:
  Attack& attack_;
  FileDescriptor socket_;
};

// Attach a session on a session socket, or without a sideband over gRPC.  Return null if it is
// refused.
[[nodiscard]] std::unique_ptr<RawSession> AttachBySocket(Attack& attack, SidebandClient& sideband,
                                                         const std::string& engine_id);
[[nodiscard]] std::unique_ptr<RawSession> AttachByGrpc(Attack& attack,
                                                       const std::string& engine_id);
// Registers content and variant of a victim; the variant gets index 0.  Returns false if the daemon
// refuses.
[[nodiscard]] bool RegisterOf(Attack& attack, RawSession& session, const BlockMaker& maker);
// Returns the head of a byte stream of one block, whose bytes are to follow.
[[nodiscard]] v1::StoreBlocksRequest HeadOf(const BlockMaker& maker, const TestBlock& block,
                                            uint32_t layer_bytes, const std::string& engine_id);
// Stores blocks [from, to) by one byte stream, with the attacker's bytes.
void StoreOwn(Attack& attack, const BlockMaker& maker, uint32_t from, uint32_t to,
              uint32_t layer_bytes);

// A year from now.
[[nodiscard]] std::chrono::system_clock::time_point NextYear();

// Starts `count` threads, each of which repeats the call until the process ends.
void OnThreads(int count, const std::function<void(int)>& call);

// Returns the packed digests of a victim's first `count` hot blocks.
[[nodiscard]] std::string HotDigests(const BlockMaker& maker, uint32_t count);

}  // namespace larder::e2e
