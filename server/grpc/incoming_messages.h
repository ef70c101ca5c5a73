// Limits the memory that gRPC's servers hold for incomplete messages: counts it per connection, and
// ends the connection that holds most when there is too much.
//
// gRPC limits the size of one message, but not of all together: its memory quota refuses nothing
// and frees memory by ending one call at a time, which two processes outrun (with a limit of
// 128 MiB gRPC held 1 GiB after 13 s).  A service hears of a message when all of it has arrived, so
// it cannot refuse it sooner.  This class counts each connection while gRPC reads it
// (server/grpc/guarded_calls.h).  Beyond the limit it chooses the user whose connections hold most
// together, of that user the process that holds most, and of that process the connection that holds
// most, and ends this connection at once.  The connection's next read fails, gRPC frees what it
// holds, and its calls end with UNAVAILABLE.
//
// It does not count complete messages; server/runtime/shares.h does.
// Ownership: Daemon owns it.  A connection that outlives it is neither counted nor ended any more.
// Thread-safety: all methods from any thread.
// Locks: that of a connection, then that of the table of all connections.  OnEnded is called
// without them.
// Lifecycle: Watch, before gRPC gets a connection -> gRPC closes it.
// Limits: `limit`; and beyond it kUntoldBytes for each connection, which are not counted, and what
// gRPC's threads read while a connection is being ended.
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
  // Called for each connection that is ended, with the reason, as Shares::OnRefused is: on a thread
  // of gRPC that reads or writes a connection, not necessarily that one.
  using OnEnded = std::function<void(const std::string& what, const std::string& why)>;
  IncomingMessages(ByteCount limit, OnEnded on_ended);
  ~IncomingMessages();
  IncomingMessages(const IncomingMessages&) = delete;
  IncomingMessages& operator=(const IncomingMessages&) = delete;

  // Counts what comes over the connection until it is closed.  If the connection is ended, `ended`
  // is incremented; it outlives the connection.  Does nothing if GuardsWork() returns false.
  void Watch(int socket, const SocketPeer& peer, std::atomic<uint64_t>& ended);

  [[nodiscard]] uint64_t held() const;
  [[nodiscard]] ByteCount limit() const;

 private:
  class Connection;
  struct Table;
  const std::shared_ptr<Table> table_;  // shared with each connection
};

}  // namespace larder
