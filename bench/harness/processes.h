// Child processes of a benchmark: the daemon, the echo, workers.  None outlives its parent.
//
// Ownership: a handle kills and reaps its process when it is dropped.
// Thread-safety: none; make children on the main thread (they die with the thread that made them).
// Limits: a line of a worker's answer has at most 64 KiB.
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

// A process that reads lines of text from stdin and answers each with one line on stdout.
class Child {
 public:
  // `arguments[0]` is the path of the program.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Child>> Start(
      const std::vector<std::string>& arguments);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] bool Alive() const;
  [[nodiscard]] double CpuSeconds() const;  // used so far by all its threads
  [[nodiscard]] absl::Status Write(const std::string& line);
  // Returns Unavailable if the process ended instead.
  [[nodiscard]] absl::StatusOr<std::string> ReadLine();

 private:
  Child(pid_t pid, int to, int from) : pid_(pid), to_(to), from_(from) {}
  pid_t pid_;
  int to_, from_;
  std::string buffer_;
};

// The path of this program, to start it again as a child.
[[nodiscard]] std::string OwnProgram();

struct DaemonConfig {
  ByteCount pool;
  std::vector<std::string> more_flags = {};  // "--check-fraction=0.1"
  bool whole_pool = true;                    // wait until all of the pool is online
};

// A larderd of the benchmark's own.  Start waits until it serves and, with `whole_pool`, until its
// whole pool is online.
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
  // The value of a counter of events since the start, by name and label as in /metrics.  Returns
  // NotFound if there is no counter of that name.
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

// Sends the same command to many children at once; each gives one answer.
class WorkerGroup {
 public:
  // Starts `count` processes of this program with `arguments` and "--worker=I", and waits for
  // "ready" from each.
  [[nodiscard]] static absl::StatusOr<WorkerGroup> Start(size_t count,
                                                         const std::vector<std::string>& arguments);
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> Ask(const std::string& line);
  // Asks one after the other.
  [[nodiscard]] absl::Status AskInTurn(const std::string& line);

 private:
  std::vector<std::unique_ptr<Child>> workers_;
};

}  // namespace larder::bench
