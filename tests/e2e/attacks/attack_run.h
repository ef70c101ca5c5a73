// A daemon, its bystanders and attackers as processes, and what came of it: who was served how, how
// much memory the daemon took, and where it said what was going on.
//
//   AttackRun run({});
//   ASSERT_EQ(run.Start(), "");
//   run.Before(1s);                                    // bystanders alone
//   run.During(3s, [&] { run.Attack("holds", 3s); });   // beside an attack
//   run.After(10s);                                    // until all are served again
//   const AttackFigures figures = run.End();
//
// Needs root: attackers and one victim run as other users.
// Ownership: all processes, which die with it, and their directory.
// Thread-safety: none; threads of its own listen to the bystanders, weigh the daemon and look at
// it.
// Limits: a daemon with a pool of 64 MiB and a disk; one attacker's line of text is read.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/frames/file_descriptor.h"
#include "storage/mutex.h"
#include "tests/e2e/attacks/bystander_record.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {

// A program of these tests, with its standard output on a pipe.  Killed when dropped.
class PipedProgram {
 public:
  PipedProgram(const std::string& path, const std::vector<std::string>& arguments);
  ~PipedProgram();
  PipedProgram(const PipedProgram&) = delete;
  PipedProgram& operator=(const PipedProgram&) = delete;

  [[nodiscard]] int out() const { return out_.get(); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // False: it still runs after `limit`.
  [[nodiscard]] bool WaitFor(std::chrono::milliseconds limit);

 private:
  pid_t pid_ = 0;
  bool ended_ = false;
  FileDescriptor out_;
};

struct AttackFigures {
  uint64_t calls = 0;  // of bystanders, from the attack on
  uint64_t failed = 0, missed = 0, wrong = 0;
  uint64_t computed = 0;                    // restores that loaded nothing: right, and slow
  std::map<std::string, uint64_t> reasons;  // of these
  // Of each bystander's kinds of calls, in milliseconds.
  struct Latency {
    std::string call;  // "mapped get"
    size_t before_calls = 0, during_calls = 0;
    double before_p99 = 0, during_p99 = 0, during_max = 0;
    [[nodiscard]] double ratio() const { return before_p99 > 0 ? during_p99 / before_p99 : 0; }
  };
  std::vector<Latency> latencies;
  Latency worst;          // by its ratio
  double longest_ms = 0;  // of calls beside the attack
  std::string longest_call;
  double after_ms = 0;     // until the last kind of call was served
  std::string after_call;  // that one
  double above_mib = 0;    // the daemon's own memory beside pool and memory_limit, at most; may be
                           // negative
  double staging_mib = 0;  // what the daemon maps of staging segments, at most
  bool alive = false;
  std::vector<std::string> log, metrics, status;  // what speaks of the attack
  std::map<std::string, double> held;             // of each kind of share, by anybody
  std::string pool;                               // what held it then
  std::string attackers;                          // what they say themselves

  // One line, and one for each kind of call.
  void Print(const std::string& name) const;
};

// Expects that the daemon lives, that no call of a bystander failed, missed or read wrong bytes,
// and that staging memory stayed within its limit.
void ExpectAllServed(const AttackFigures& figures);

class AttackRun {
 public:
  struct Options {
    uint64_t descriptors = 0;  // RLIMIT_NOFILE of the daemon; 0: that of the test
    std::vector<std::string> flags = {};
    bool unnamed = false;  // attackers come without a sideband, too
    // The run pins on disk what victims read.  For runs with restarts: a daemon that has just
    // started does not know which blocks are read often, so a flood can evict a victim's block from
    // all tiers, and an attacker may then put other bytes under its name (docs/security.md).
    bool pinned = false;
  };
  explicit AttackRun(Options options);
  ~AttackRun();
  AttackRun(const AttackRun&) = delete;
  AttackRun& operator=(const AttackRun&) = delete;

  // Why this machine cannot; empty: it can.
  [[nodiscard]] static std::string WhyNot();
  // Empty: daemon and bystanders are ready; else what went wrong.
  [[nodiscard]] std::string Start();
  void Before(std::chrono::milliseconds time);
  // `begin` starts the first attackers; then `each` is called some times a second until the time is
  // up.
  void During(
      std::chrono::milliseconds time, const std::function<void()>& begin,
      const std::function<void()>& each = [] {});
  // All attackers have gone.  Until each kind of call was served, or the limit has passed.
  void After(std::chrono::milliseconds limit);
  [[nodiscard]] AttackFigures End();

  // Starts an attacker that ends by itself.
  void Attack(const std::string& name, std::chrono::milliseconds time);
  [[nodiscard]] size_t attackers() const { return attackers_.size(); }
  // Forgets attackers that have ended.
  void Reap();
  // kill -9 and another daemon over the same disk.  What was under way then, and until bystanders
  // are attached again, counts as neither failed nor slow.  False: it does not serve.
  [[nodiscard]] bool RestartDaemon();

 private:
  struct Bystander {
    std::string role;
    std::unique_ptr<PipedProgram> program;
  };
  struct Sample {
    std::string call;  // "mapped get"
    Record record;
  };
  struct Interval {
    int64_t begin = 0, end = 0;
  };
  enum class Phase : uint8_t { kNone, kBefore, kDuring };

  [[nodiscard]] bool AllReady();
  void StartDaemon();
  [[nodiscard]] std::string PinWhatIsRead();
  void Listen();
  // Calls `once` again and again until the end, with a daemon that serves.
  void Watch(const std::function<void(const std::shared_ptr<DaemonProcess>&)>& once);
  void Weigh(const DaemonProcess& daemon);
  void Look(const std::shared_ptr<DaemonProcess>& daemon);
  void TakeColdOnes();
  void TakeSaid(const DaemonProcess& daemon);
  void EndAttackers();
  [[nodiscard]] bool Served(int64_t since, double* after_ms, std::string* call);
  [[nodiscard]] Phase PhaseOf(const Record& record) const;
  void AddLatencies(AttackFigures* figures);

  const Options options_;
  std::shared_ptr<TemporarySocketDirectory> folder_;
  std::shared_ptr<DaemonProcess> daemon_;
  std::vector<Bystander> bystanders_;
  struct Attacker {
    std::string name;
    std::unique_ptr<PipedProgram> program;
  };
  std::vector<Attacker> attackers_;
  std::vector<pid_t> attacker_pids_;
  std::map<std::string, std::string> attacker_words_;
  std::thread listener_, weigher_, looker_, taker_;

  int64_t before_ = 0, during_ = 0, ended_ = 0;  // when each phase began; 0: it has not
  double after_ms_ = 0;
  std::string after_call_;
  std::vector<Interval> restarts_;
  std::string log_before_, metrics_before_, status_text_, metrics_text_, logs_;
  std::map<std::string, double> held_;
  bool died_ = false;

  Mutex mu_;
  bool end_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<Sample> samples_ LARDER_GUARDED_BY(mu_);
  std::map<std::string, bool> ready_ LARDER_GUARDED_BY(mu_);
  double above_mib_ LARDER_GUARDED_BY(mu_) = -1e9;
  double staging_mib_ LARDER_GUARDED_BY(mu_) = 0;
  std::shared_ptr<DaemonProcess> looked_at_ LARDER_GUARDED_BY(mu_);  // null while it restarts
};

}  // namespace larder::e2e
