// A socket file at which the daemon listens: created by this class, or handed over by the service
// manager.
//
// Of the files at the path, a ListeningSocket removes only the one that it created, and a socket
// file at which no program listens any more.  The mode of the file decides which users may connect;
// on a file that this class creates the mode is set before the first connection is possible.  The
// class does not keep two daemons apart (server/runtime/lock_file.h does).
//
// Ownership: it owns its listening descriptor (of a handed-over listener, a duplicate) and the file
// that it created.  Its destructor unlinks that file if it is still at the path.
// Thread-safety: none; the caller serializes.
// Lifecycle: Open (connections wait from here on) -> accept ... -> destroyed.  Reopen is called
// when the socket broke or lost its file.
// Limits: the path must be shorter than 108 bytes.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"

namespace larder {

// Removes the socket file that a dead program left at `path`.  Returns OK if there is no file.
// Returns FailedPrecondition, and removes nothing, if the file is not a socket or a program may
// listen on it; or another error.
[[nodiscard]] absl::Status RemoveStaleSocket(const std::string& path);

class ListeningSocket {
 public:
  struct Options {
    std::string path;
    int type = 0;  // SOCK_STREAM or SOCK_SEQPACKET
    mode_t mode = 0660;
    std::optional<gid_t> group = std::nullopt;  // of the file; nullopt: the daemon's own group
    // A descriptor that already listens at the path, or -1.  Open duplicates it.  The service
    // manager owns the socket file and chose its mode.
    int handed_over = -1;
    [[nodiscard]] absl::Status Validate() const;
  };

  // Takes over Options::handed_over, or creates the socket file and listens there.  Returns
  // InvalidArgument if Options::Validate does, FailedPrecondition if RemoveStaleSocket does not
  // remove a file that is in the way, or another error.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ListeningSocket>> Open(
      const Options& options);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  [[nodiscard]] int get() const { return listener_.get(); }
  [[nodiscard]] const std::string& path() const { return options_.path; }
  // Returns true if a connection that is accepted at the present listener carries no file
  // descriptors that its peer has sent.  Returns false if the kernel cannot refuse them, and for a
  // listener that was handed over, because clients may have connected before the daemon could
  // refuse descriptors.
  [[nodiscard]] bool refuses_rights() const { return refuses_rights_; }

  // Returns false if the file is no longer found at the path: new connections may then not reach
  // this socket.  Returns true for a handed-over listener whose file this process could not see.
  [[nodiscard]] bool InPlace() const;
  // Opens a new socket at the path and listens on it.  If Reopen fails, the old listener stays
  // open, but its file may be gone.
  [[nodiscard]] absl::Status Reopen();

 private:
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const File&, const File&) = default;
  };
  explicit ListeningSocket(const Options& options) : options_(options) {}
  [[nodiscard]] absl::Status TakeOver();
  [[nodiscard]] absl::Status Listen(mode_t mode);
  [[nodiscard]] File FileAtPath() const;
  void Replace(FileDescriptor listener, bool refuses_rights);

  const Options options_;
  FileDescriptor listener_;
  File file_;
  bool owned_ = false;  // whether this object owns the file
  bool refuses_rights_ = false;
};

}  // namespace larder
