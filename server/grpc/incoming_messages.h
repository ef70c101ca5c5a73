// Limits the memory that gRPC's servers hold for incomplete messages: counts it per connection, and
// ends connections while the total exceeds the limit.
//
// gRPC limits the size of one message, but not of all together: its memory quota refuses nothing
// and frees memory by ending one call at a time, while two processes could send faster (gRPC held 1
// GiB after 13 s with a limit of 128 MiB).  A service hears of a message when all of it has
// arrived, so the service cannot refuse it sooner.  This class counts the bytes of each connection
// while gRPC reads them (server/grpc/guarded_calls.h).  Beyond the limit it chooses the user whose
// connections together hold most, of that user the process that holds most, and of that process the
// connection that holds most, and ends this connection at once, and so on until the total is within
// the limit.  gRPC then frees what it holds for the connection.  A connection on which the headers
// of a call are longer than IncomingFrames::kHeadersMax is ended, too.
//
// It does not count complete messages; they are charged to shares (server/runtime/shares.h).
// Ownership: Daemon owns it.  A connection that outlives it is neither counted nor ended any more.
// Thread-safety: all methods from any thread.
// Locks: the lock of a connection is acquired before the lock of the table of all connections.
// OnEnded is called without them.
// Lifecycle: Watch, before gRPC gets a connection -> gRPC closes it.
// Limits: about `limit`.  Beyond it gRPC may hold up to kUntoldBytes for each connection, and what
// its threads read while a connection is being ended.  If GuardsWork() returns false, nothing is
// limited.
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
  // Called for each connection that this object ends, on a thread of gRPC that reads or writes some
  // connection, not necessarily the ended one.  `what` is the same text for all connections of a
  // uid; `why` is for an operator.  OnEnded may be empty.
  using OnEnded = std::function<void(const std::string& what, const std::string& why)>;
  IncomingMessages(ByteCount limit, OnEnded on_ended);
  ~IncomingMessages();
  IncomingMessages(const IncomingMessages&) = delete;
  IncomingMessages& operator=(const IncomingMessages&) = delete;

  // Counts what arrives over the connection until it is closed.  Increments `ended`, which outlives
  // the connection, if this object ends the connection.  Does nothing if GuardsWork() returns
  // false, or for a descriptor of 2^20 or above.
  void Watch(int socket, const SocketPeer& peer, std::atomic<uint64_t>& ended);

  [[nodiscard]] uint64_t held() const;
  [[nodiscard]] ByteCount limit() const;

 private:
  class Connection;
  struct Table;
  const std::shared_ptr<Table> table_;  // shared with each connection
};

}  // namespace larder
