// Runs a daemon, bystanders and attackers as processes, and reports how the bystanders were served,
// how much memory the daemon took, and where the daemon reported the attack.
//
//   AttackRun run({});
//   ASSERT_EQ(run.Start(), "");
//   run.Before(1s);                                    // bystanders alone
//   run.During(3s, [&] { run.Attack("holds", 3s); });  // bystanders beside an attack
//   run.After(10s);                                    // until all are served again
//   const AttackFigures figures = run.End();
//
// Needs root: attackers and one victim run as other users.
// Ownership: all processes, which die with this object, and their folder.
// Thread-safety: none.  The object's own threads read the bystanders' records, measure the daemon's
// memory and check its health.
// Limits: the daemon has a pool of 64 MiB and a disk.  Of each attack's name, the text of one
// attacker is kept.
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

// Under a sanitizer a daemon is several times slower and larger, and cannot watch its sockets.  So
// tests judge there only what no client may ever see: calls that fail, miss or return wrong bytes.
// Such a test prints kNotJudged.
inline constexpr const char* kNotJudged =
    "    not judged under a sanitizer: times, memory, computed restores, what the daemon says\n";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A program of these tests with its standard output on a pipe.  The destructor kills it.
class PipedProgram {
 public:
  PipedProgram(const std::string& path, const std::vector<std::string>& arguments);
  ~PipedProgram();
  PipedProgram(const PipedProgram&) = delete;
  PipedProgram& operator=(const PipedProgram&) = delete;

  [[nodiscard]] int out() const { return out_.get(); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Returns false if the program still runs after `limit`.
  [[nodiscard]] bool WaitFor(std::chrono::milliseconds limit);

 private:
  pid_t pid_ = 0;
  bool ended_ = false;
  FileDescriptor out_;
};

struct AttackFigures {
  uint64_t calls = 0;  // calls of bystanders since the attack began
  uint64_t failed = 0, missed = 0, wrong = 0;
  uint64_t computed = 0;                    // restores that loaded nothing: right but slow
  std::map<std::string, uint64_t> reasons;  // why calls are counted in these four
  // The latency of a bystander's kind of call, in milliseconds.
  struct Latency {
    std::string call;  // for example "mapped get"
    size_t before_calls = 0, during_calls = 0;
    double before_p99 = 0, during_p99 = 0, during_max = 0;
    [[nodiscard]] double ratio() const { return before_p99 > 0 ? during_p99 / before_p99 : 0; }
  };
  std::vector<Latency> latencies;
  Latency worst;          // the one with the highest ratio
  double longest_ms = 0;  // the longest call during the attack
  std::string longest_call;
  double after_ms = 0;     // after the attack, until the last kind of call was served again
  std::string after_call;  // the last kind of call
  double above_mib = 0;    // maximum of the daemon's own memory, without the pool, minus
                           // memory_limit; may be negative
  double staging_mib = 0;  // maximum of the staging segments that the daemon maps
  // How much too late, at most, the kernel woke a thread of the test that slept for 1 ms at a time
  // beside the attack.  If a call of a bystander was as slow, the machine may have been the cause,
  // and not the daemon.
  double machine_ms = 0;
  bool alive = false;
  std::vector<std::string> log, metrics, status;  // the parts of each that report the attack
  std::map<std::string, double> held;             // maximum of each kind of share, by all callers
  std::string pool;                               // what the pool's memory was used for then
  std::string attackers;                          // what the attackers print themselves

  // Prints a line of figures, one for each kind of call, and the reasons.
  void Print(const std::string& name) const;
};

// Expects that the daemon lives, that no call of a bystander failed, missed or read wrong bytes,
// and that staging memory stayed within its limit.
void ExpectAllServed(const AttackFigures& figures);

class AttackRun {
 public:
  struct Options {
    uint64_t descriptors = 0;  // RLIMIT_NOFILE of the daemon; 0: the test's limit
    std::vector<std::string> flags = {};
    bool unnamed = false;  // attackers also call without a sideband
    // Pins on disk the blocks that victims read.  It is for runs with restarts: a daemon that has
    // just started does not know which blocks are read often, so a flood can evict a victim's block
    // from all tiers, and an attacker may then put other bytes under its name (docs/security.md).
    bool pinned = false;
  };
  explicit AttackRun(Options options);
  ~AttackRun();
  AttackRun(const AttackRun&) = delete;
  AttackRun& operator=(const AttackRun&) = delete;

  // Returns why this machine cannot run the tests, or an empty string if it can.
  [[nodiscard]] static std::string WhyNot();
  // Starts the daemon and the bystanders.  Returns what went wrong, or an empty string once they
  // are ready.
  [[nodiscard]] std::string Start();
  void Before(std::chrono::milliseconds time);
  // Calls `begin`, which starts the first attackers, and then `each` several times per second until
  // the time is up.  Then waits until all attackers have ended.
  void During(
      std::chrono::milliseconds time, const std::function<void()>& begin,
      const std::function<void()>& each = [] {});
  // Waits until each kind of call was served again, or the limit has passed.
  void After(std::chrono::milliseconds limit);
  [[nodiscard]] AttackFigures End();

  // Starts an attacker that ends by itself.
  void Attack(const std::string& name, std::chrono::milliseconds time);
  [[nodiscard]] size_t attackers() const { return attackers_.size(); }
  // Drops attackers that have ended, and keeps what they printed.
  void Reap();
  // Kills the daemon and starts another on the same disk.  Calls that are under way between the
  // kill and the time at which bystanders have attached again count as neither failed nor slow.
  // Returns false if the new daemon does not serve.
  [[nodiscard]] bool RestartDaemon();

 private:
  struct Bystander {
    std::string role;
    std::unique_ptr<PipedProgram> program;
  };
  struct Sample {
    std::string call;  // for example "mapped get"
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
  // Calls `once` repeatedly until the end, except while the daemon restarts.
  void Watch(const std::function<void(const std::shared_ptr<DaemonProcess>&)>& once);
  void Weigh(const DaemonProcess& daemon);
  void Look(const std::shared_ptr<DaemonProcess>& daemon);
  void TakePulse();  // measures AttackFigures::machine_ms until the end
  void SetAttacked(bool attacked);
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
  std::thread listener_, weigher_, looker_, pulse_, taker_;

  int64_t before_ = 0, during_ = 0, ended_ = 0;  // when each phase began; 0: not yet
  double after_ms_ = 0;
  std::string after_call_;
  std::vector<Interval> restarts_;
  std::string log_before_, metrics_before_, status_text_, metrics_text_, logs_;
  std::map<std::string, double> held_;
  bool died_ = false;

  Mutex mu_;
  bool end_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<Sample> samples_ LARDER_GUARDED_BY(mu_);
  bool attacked_ LARDER_GUARDED_BY(mu_) = false;
  double machine_ms_ LARDER_GUARDED_BY(mu_) = 0;
  std::map<std::string, bool> ready_ LARDER_GUARDED_BY(mu_);
  double above_mib_ LARDER_GUARDED_BY(mu_) = -1e9;
  double staging_mib_ LARDER_GUARDED_BY(mu_) = 0;
  std::shared_ptr<DaemonProcess> looked_at_ LARDER_GUARDED_BY(mu_);  // null while it restarts
};

}  // namespace larder::e2e
