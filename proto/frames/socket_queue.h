// Bytes that wait to be sent on a stream socket by whoever comes by, without waiting for the peer.
//
// Ownership: the bytes; borrows the socket.  Thread-safety: none.
// Limits: none of its own: the owner looks at waiting().  What was sent does not stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace larder {

class SocketQueue {
 public:
  enum class Flushed : uint8_t { kAll, kSome, kBroken };

  // Where to append, whole frames at a time.
  [[nodiscard]] std::string* tail() { return &bytes_; }
  [[nodiscard]] size_t waiting() const { return bytes_.size() - sent_; }
  [[nodiscard]] bool empty() const { return waiting() == 0; }
  // Sends what the socket takes now.  kBroken: it will take nothing any more; the queue is empty.
  [[nodiscard]] Flushed Flush(int socket);
  void Clear();

 private:
  void DropSent();

  std::string bytes_;
  size_t sent_ = 0;
};

}  // namespace larder
