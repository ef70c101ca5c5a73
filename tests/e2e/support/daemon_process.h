// The real larderd as a child of a test, with everything that a test wants to know about it from
// outside.
//
//   DaemonProcess daemon({"--pool", "64MiB"});
//   ASSERT_TRUE(daemon.serves()) << daemon.errors();
//
// It gets a private folder for its socket files, a free metrics port, and a small pool unless a
// flag says otherwise.
// Ownership: the child process and, unless it was given one, the folder; both end with this object.
// The child dies with the thread that started it, whatever happens to the test.
// Thread-safety: none, but for Stats and the paths.
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

// Where a program of this build is: beside the test where they were packed (tests/gpu.sh --pack).
[[nodiscard]] std::string ProgramAt(const std::string& built);

class DaemonProcess {
 public:
  struct Options {
    std::shared_ptr<TemporarySocketDirectory> folder = nullptr;  // default: a fresh one
    uint64_t address_space_max = 0;                              // bytes, RLIMIT_AS; 0: no limit
    bool wait = true;                                            // until it serves or is gone
    std::function<void()> in_child = nullptr;                    // between fork and exec
  };
  explicit DaemonProcess(const std::vector<std::string>& flags = {});
  DaemonProcess(const std::vector<std::string>& flags, Options options);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Health says SERVING, and every slab is online.
  [[nodiscard]] bool serves();
  // "SERVING", "NOT_SERVING", or the error of the call, which `insist` has connect again and again
  // until its deadline.
  [[nodiscard]] std::string Health(bool insist = false);
  [[nodiscard]] bool alive();

  void Kill9();
  // SIGSTOP: returns when it stands still.
  void Signal(int signal) const;
  // SIGTERM, then its exit code as Wait has it.
  int Terminate();
  // The exit code; 128 + the signal that ended it; nothing when it still runs after `limit`.
  std::optional<int> Wait(std::chrono::milliseconds limit = std::chrono::seconds(60));

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::shared_ptr<TemporarySocketDirectory>& folder() const { return folder_; }
  [[nodiscard]] std::string data_socket() const { return folder_->File("data.sock"); }
  [[nodiscard]] std::string control_socket() const { return folder_->File("control.sock"); }
  [[nodiscard]] std::string admin_socket() const { return folder_->File("admin.sock"); }
  [[nodiscard]] std::string sideband_socket() const { return folder_->File("sideband.sock"); }
  // What it wrote to standard error and to standard output so far.
  [[nodiscard]] std::string errors() const;
  [[nodiscard]] std::string output() const;

  // A fresh connection each, as another program would have it.
  [[nodiscard]] std::shared_ptr<grpc::Channel> DataChannel() const;
  [[nodiscard]] std::shared_ptr<grpc::Channel> ControlChannel() const;
  [[nodiscard]] std::shared_ptr<grpc::Channel> AdminChannel() const;

  // Admin.Stats; an empty reply when the daemon does not answer.
  [[nodiscard]] v1::StatsReply Stats() const;
  [[nodiscard]] v1::TenantStats Tenant() const;
  // One sample of /metrics, by its whole name with label: every counter and gauge, the sideband's
  // too.  -1: absent.
  [[nodiscard]] double Metric(const std::string& sample) const;
  // All of /metrics, with the header of its HTTP answer; empty when it does not answer.
  [[nodiscard]] std::string Scrape() const;

  // Resident memory that is not the pool's.
  [[nodiscard]] uint64_t ResidentBytesBesidePool() const;
  [[nodiscard]] size_t OpenDescriptors() const;
  // What each of them is, a line each, for people.
  [[nodiscard]] std::string DescriptorTexts() const;

 private:
  void Start(const std::vector<std::string>& flags, const Options& options);

  std::shared_ptr<TemporarySocketDirectory> folder_;
  std::string stem_;  // of the files that hold what it says
  pid_t pid_ = 0;
  std::optional<int> exit_;
  std::shared_ptr<grpc::Channel> admin_;
};

}  // namespace larder::e2e
