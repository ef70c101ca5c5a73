// Counts what gRPC's servers hold of messages that are not whole, and ends the connection of who
// holds most where that is too much.
//
// gRPC bounds what a message takes and not what all take: its memory quota refuses nothing, and
// gives back by ending one call at a time, which two processes outrun (a limit of 128 MiB was 1 GiB
// after 13 s).  A service hears of a message when all of it has come, so it cannot refuse sooner.
// Here each connection is counted while gRPC reads it (server/grpc/guarded_calls.h).  Beyond the
// limit the user whose connections hold most together loses one at once: the one that holds most of
// his process that holds most.  Its next read fails, gRPC frees what it holds, and its calls end
// with UNAVAILABLE.
//
// Does not count messages that are whole (server/runtime/shares.h).
// Ownership: by Daemon.  A connection that is open when this is gone is neither counted nor ended.
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

#include "server/connections/connection_shares.h"
#include "storage/types.h"

namespace larder {

class IncomingMessages {
 public:
  static constexpr uint64_t kUntoldBytes = 16 << 10;
  // Hears of each connection that is ended, and why, as Shares::OnRefused does: on the thread of
  // gRPC's that reads or writes some connection.
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
