// Adds a descriptor to an epoll set, under the id that its events then carry.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace larder {

// Watches for `events` (EPOLLIN, ...), and always for hang-ups and errors.  Returns false, with
// errno set, if the kernel refuses.
[[nodiscard]] inline bool AddToEpoll(int epoll, int fd, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace larder
