// Bytes that wait to be sent on a stream socket.  Each Flush sends what the socket takes and never
// waits for the peer.
//
// Ownership: it owns the bytes and borrows the socket.  Thread-safety: none.
// Limits: none of its own; the owner checks waiting().  When nothing waits after a Flush, the queue
// keeps at most 64 KiB of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace larder {

class SocketQueue {
 public:
  enum class Flushed : uint8_t { kAll, kSome, kBroken };

  // The string to append to, whole frames at a time.
  [[nodiscard]] std::string* tail() { return &bytes_; }
  [[nodiscard]] size_t waiting() const { return bytes_.size() - sent_; }
  [[nodiscard]] bool empty() const { return waiting() == 0; }
  // Sends what the socket takes now.  Returns kAll if nothing waits any more, kSome if bytes still
  // wait, and kBroken if the socket has failed, which also empties the queue.
  [[nodiscard]] Flushed Flush(int socket);
  void Clear();

 private:
  void DropSent();

  std::string bytes_;
  size_t sent_ = 0;
};

}  // namespace larder
