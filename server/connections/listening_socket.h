// A socket file at which the daemon listens: made here, or handed over by the service manager.
//
// Takes away what a dead daemon left at the path, and nothing else.  The file's mode is the
// authority over who may connect and holds before the first connection is possible.  Does not keep
// two daemons apart (server/runtime/lock_file.h does) beyond refusing a path at which a program
// listens.
//
// Ownership: the listening descriptor; the file too, unless the listener was handed over: the file
// is unlinked at the end if it is still ours.
// Thread-safety: none.
// Lifecycle: Open (connections wait from here on) -> accept ... -> destroyed.  Reopen when the
// socket broke or its file was taken away.
// Limits: a path below 108 bytes.
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

// Removes the socket file that a dead program left at `path`; OK when there is none.
// FailedPrecondition, and nothing is removed: it is no socket, or a program listens on it.
[[nodiscard]] absl::Status RemoveStaleSocket(const std::string& path);

class ListeningSocket {
 public:
  struct Options {
    std::string path;
    int type = 0;  // SOCK_STREAM or SOCK_SEQPACKET
    mode_t mode = 0660;
    std::optional<gid_t> group = std::nullopt;  // of the file; nullopt: the daemon's own
    int handed_over = -1;  // listens at the path already; borrowed, its file and mode not ours
    [[nodiscard]] absl::Status Validate() const;
  };

  // FailedPrecondition: a program listens at the path, or what lies there is no socket.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ListeningSocket>> Open(
      const Options& options);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  [[nodiscard]] int get() const { return listener_.get(); }
  [[nodiscard]] const std::string& path() const { return options_.path; }
  // Returns true if no connection of this listener can bring descriptors.  One that was handed over
  // took connections before the daemon could ask for that.
  [[nodiscard]] bool refuses_rights() const { return refuses_rights_; }

  // Returns false if the file is gone or another one: then new connections do not come here.
  [[nodiscard]] bool InPlace() const;
  // Listens at the path again, with a new socket of the same mode.  On failure the old one stays.
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
  bool owned_ = false;  // the file
  bool refuses_rights_ = false;
};

}  // namespace larder
