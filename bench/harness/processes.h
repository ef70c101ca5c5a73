// Child processes of a benchmark: the daemon, the echo, workers.  None outlives its parent.
//
// Ownership: a handle kills and reaps its process when dropped.
// Thread-safety: none; make children on the main thread (they die with the thread that made them).
// Limits: a line of a worker's answer is at most 64 KiB.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/harness/temporary_directory.h"
#include "storage/types.h"

namespace larder::bench {

// A process that takes a line of text on stdin and answers each by one on stdout.
class Child {
 public:
  // `arguments[0]` is the program's file.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Child>> Start(
      const std::vector<std::string>& arguments);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] bool Alive() const;
  [[nodiscard]] double CpuSeconds() const;  // that it took so far, of all its threads
  [[nodiscard]] absl::Status Write(const std::string& line);
  // Unavailable: the process ended instead.
  [[nodiscard]] absl::StatusOr<std::string> ReadLine();

 private:
  Child(pid_t pid, int to, int from) : pid_(pid), to_(to), from_(from) {}
  pid_t pid_;
  int to_, from_;
  std::string buffer_;
};

// This program's own file, to be started again as a child.
[[nodiscard]] std::string OwnProgram();

struct DaemonConfig {
  ByteCount pool;
  std::vector<std::string> more_flags = {};  // "--check-fraction=0.1"
  bool whole_pool = true;                    // wait until all of it is online
};

// A larderd of its own, whole pool online.
class DaemonProcess {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(
      const DaemonConfig& config);
  [[nodiscard]] const std::string& socket_dir() const { return dir_->path(); }

  struct Holdings {
    ByteCount limit, online, used;  // of the pool; used: stored and reserved
    uint64_t blocks = 0;            // in the index, of all tiers
  };
  [[nodiscard]] absl::StatusOr<Holdings> Stats() const;
  // Of events since it started, by its name with label as /metrics has it.  NotFound: it has none
  // of that name.
  [[nodiscard]] absl::StatusOr<uint64_t> Counter(const std::string& name) const;
  [[nodiscard]] double CpuSeconds() const { return child_->CpuSeconds(); }

 private:
  struct Admin;
  struct AdminDeleter {
    void operator()(Admin* admin) const;
  };
  DaemonProcess() = default;
  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<Child> child_;
  std::unique_ptr<Admin, AdminDeleter> admin_;
};

// The same command to many children at once; one answer of each.
class WorkerGroup {
 public:
  // Starts `count` of this program with `arguments` and "--worker=I", and waits for "ready" from
  // each.
  [[nodiscard]] static absl::StatusOr<WorkerGroup> Start(size_t count,
                                                         const std::vector<std::string>& arguments);
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> Ask(const std::string& line);
  // One after the other.
  [[nodiscard]] absl::Status AskInTurn(const std::string& line);

 private:
  std::vector<std::unique_ptr<Child>> workers_;
};

}  // namespace larder::bench
