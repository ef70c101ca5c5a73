// Runs the real larderd as a child of a test, and observes it from outside: its health, its output,
// its metrics and its resources.
//
//   DaemonProcess daemon({"--pool", "64MiB"});
//   ASSERT_TRUE(daemon.serves()) << daemon.errors();
//
// The daemon gets a private folder for its socket files, a free metrics port and a small pool,
// unless a flag says otherwise.
// Ownership: the child process and, unless the test passed one, the folder; both end with this
// object.  The child dies with the thread that started it, whatever happens to the test.
// Thread-safety: none, except Stats and the paths.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "larder/v1/admin.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"

namespace larder::e2e {

// Returns the path of a program of this build: beside the test program if tests/gpu.sh --pack put
// it there, otherwise `built`.
[[nodiscard]] std::string ProgramAt(const std::string& built);

class DaemonProcess {
 public:
  struct Options {
    std::shared_ptr<TemporarySocketDirectory> folder = nullptr;  // default: a new one
    uint64_t address_space_max = 0;                              // bytes, RLIMIT_AS; 0: no limit
    bool wait = true;  // the constructor waits until the daemon serves or has ended
    std::function<void()> in_child = nullptr;  // runs between fork and exec
  };
  explicit DaemonProcess(const std::vector<std::string>& flags = {});
  DaemonProcess(const std::vector<std::string>& flags, Options options);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Whether Health reports SERVING and every slab is online.
  [[nodiscard]] bool serves();
  // Returns "SERVING", "NOT_SERVING" or the error of the call.  With `insist` the call reconnects
  // until its deadline while the daemon does not listen.
  [[nodiscard]] std::string Health(bool insist = false);
  [[nodiscard]] bool alive();

  void Kill9();
  // Sends `signal`.  After SIGSTOP it returns only once the daemon has stopped.
  void Signal(int signal) const;
  // Sends SIGTERM and returns the exit code as Wait does, or -1 if the daemon does not end.
  int Terminate();
  // Returns the exit code, 128 + the signal that ended the daemon, or nullopt if it still runs
  // after `limit`.
  std::optional<int> Wait(std::chrono::milliseconds limit = std::chrono::seconds(60));

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::shared_ptr<TemporarySocketDirectory>& folder() const { return folder_; }
  [[nodiscard]] std::string data_socket() const { return folder_->File("data.sock"); }
  [[nodiscard]] std::string control_socket() const { return folder_->File("control.sock"); }
  [[nodiscard]] std::string admin_socket() const { return folder_->File("admin.sock"); }
  [[nodiscard]] std::string sideband_socket() const { return folder_->File("sideband.sock"); }
  // What the daemon has written to standard error and to standard output so far.
  [[nodiscard]] std::string errors() const;
  [[nodiscard]] std::string output() const;

  // Each call returns a channel with its own connection, as another program would have.
  [[nodiscard]] std::shared_ptr<grpc::Channel> DataChannel() const;
  [[nodiscard]] std::shared_ptr<grpc::Channel> ControlChannel() const;
  [[nodiscard]] std::shared_ptr<grpc::Channel> AdminChannel() const;

  // Calls Admin.Stats.  Returns an empty reply if the daemon does not answer.
  [[nodiscard]] v1::StatsReply Stats() const;
  [[nodiscard]] v1::TenantStats Tenant() const;
  // Returns one sample of /metrics, given by its whole name with labels, or -1 if it is absent.
  [[nodiscard]] double Metric(const std::string& sample) const;
  // Returns all of /metrics with the header of the HTTP answer, or an empty string if the daemon
  // does not answer.
  [[nodiscard]] std::string Scrape() const;

  // Resident memory without the pool.
  [[nodiscard]] uint64_t ResidentBytesBesidePool() const;
  [[nodiscard]] size_t OpenDescriptors() const;
  // Describes each open descriptor in a line, for the messages of failed tests.
  [[nodiscard]] std::string DescriptorTexts() const;

 private:
  void Start(const std::vector<std::string>& flags, const Options& options);

  std::shared_ptr<TemporarySocketDirectory> folder_;
  std::string stem_;  // of the names of the files with the daemon's output
  pid_t pid_ = 0;
  std::optional<int> exit_;
  std::shared_ptr<grpc::Channel> admin_;
};

}  // namespace larder::e2e
