// How a test sends descriptors, also where the receiver wants none, or not so many.
//
// Ownership: the descriptors remain the caller's.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace larder {

// Calls sendmsg with `bytes` and the descriptors `fds`.  Returns 0, or the errno.
inline int SendRights(int socket, std::string_view bytes, const std::vector<int>& fds,
                      int flags = 0) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL | flags) >= 0 ? 0 : errno;
}

}  // namespace larder
