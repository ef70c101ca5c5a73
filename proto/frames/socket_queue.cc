#include "proto/frames/socket_queue.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>

namespace larder {
namespace {

// The most memory, in bytes, that stays allocated when nothing waits.
constexpr size_t kKeptBytes = 64 << 10;

}  // namespace

SocketQueue::Flushed SocketQueue::Flush(int socket) {
  while (!empty()) {
    const ssize_t sent =
        send(socket, bytes_.data() + sent_, waiting(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      DropSent();
      return Flushed::kSome;
    }
    if (sent < 0) {
      Clear();
      return Flushed::kBroken;
    }
    sent_ += static_cast<size_t>(sent);
  }
  Clear();
  return Flushed::kAll;
}

// Drops sent bytes only when they are at least half of all, so that each byte is moved at most once
// on average.
void SocketQueue::DropSent() {
  if (sent_ < bytes_.size() / 2) return;
  bytes_.erase(0, sent_);
  sent_ = 0;
}

void SocketQueue::Clear() {
  bytes_.clear();
  sent_ = 0;
  if (bytes_.capacity() > kKeptBytes) bytes_.shrink_to_fit();
}

}  // namespace larder
