// How much of messages that are not whole all connections of gRPC's servers hold, and the end of
// the connection that holds most where that is too much.
//
// gRPC bounds what a message takes and not what all take: its memory quota refuses nothing, and
// gives back by ending one call at a time, which two processes outrun (a limit of 128 MiB was 1 GiB
// after 13 s).  A service hears of a message when all of it has come, so it cannot refuse sooner.
// Here each connection is counted while gRPC reads it (server/guarded_calls.h).  Beyond the limit,
// the process that holds most loses the connection on which it holds most, at once: its next read
// fails, gRPC frees what it holds, and its calls end with UNAVAILABLE.  So a process that sends
// whole messages loses none while another holds more that is not whole.
//
// Does not count messages that are whole (server/shares.h).
// Ownership: by Daemon; a connection that is still open when this is gone counts for nobody.
// Thread-safety: all methods from any thread.
// Lifecycle: Watch, before gRPC gets a connection -> gRPC closes it.
// Limits: `limit`; beyond it kUntoldBytes of each connection, which are not counted, and what
// gRPC's threads read while the end of a connection is under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/connection_shares.h"
#include "storage/types.h"

namespace larder {

class IncomingMessages {
 public:
  static constexpr uint64_t kUntoldBytes = 16 << 10;
  // Hears of each connection that is ended, and why, as Shares::OnRefused does.
  using OnEnded = std::function<void(const std::string& what, const std::string& why)>;
  IncomingMessages(ByteCount limit, OnEnded on_ended);
  ~IncomingMessages();
  IncomingMessages(const IncomingMessages&) = delete;
  IncomingMessages& operator=(const IncomingMessages&) = delete;

  // Counts what comes over the connection until it is closed.  `ended` counts its end, if it is
  // ended; it outlives the connection.  No-op where GuardsWork() is false.
  void Watch(int socket, const SocketPeer& peer, std::atomic<uint64_t>& ended);

  [[nodiscard]] uint64_t held() const;
  [[nodiscard]] ByteCount limit() const;

 private:
  class Connection;
  struct Table;
  const std::shared_ptr<Table> table_;  // of this and of each connection
};

}  // namespace larder
