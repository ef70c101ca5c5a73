#include "tests/e2e/attacks/attack_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/check.h"
#include "tests/e2e/attacks/daemon_words.h"
#include "tests/e2e/attacks/router.h"
#include "tests/e2e/attacks/written_blocks.h"
#include "tests/e2e/support/die_with.h"
#include "tests/e2e/support/other_user.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMemoryLimitMib = 256, kStagingUidLimitMib = 128;
constexpr double kVictimsStagingMib = 16;
constexpr milliseconds kLookPause{100};
constexpr milliseconds kReadyLimit{30'000};
constexpr milliseconds kEndLimit{6'000};
// How long bystanders may take to attach to the next daemon, for which they look every 50 ms.
constexpr int64_t kReattachNs = 1'000'000'000;

void SleepUntil(int64_t ns) {
  while (NowNs() < ns) std::this_thread::sleep_for(milliseconds(1));
}
int64_t Ns(milliseconds time) { return std::chrono::nanoseconds(time).count(); }
double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }
double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

double P99(std::vector<double>& all) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  return all[(all.size() * 99 + 99) / 100 - 1];
}

}  // namespace

// ---- programs

PipedProgram::PipedProgram(const std::string& path, const std::vector<std::string>& arguments) {
  int ends[2];
  LARDER_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  out_ = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const std::string program = ProgramAt(path);
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  LARDER_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    DieWith(parent);  // holds until the program changes its user
    dup2(write_end.get(), STDOUT_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
}

PipedProgram::~PipedProgram() {
  Signal(SIGKILL);
  if (!ended_) waitpid(pid_, nullptr, 0);
}

void PipedProgram::Signal(int signal) const {
  if (!ended_) kill(pid_, signal);
}

bool PipedProgram::WaitFor(milliseconds limit) {
  return Eventually(
      [this] {
        ended_ = ended_ || waitpid(pid_, nullptr, WNOHANG) == pid_;
        return ended_;
      },
      limit);
}

// ---- the run

AttackRun::AttackRun(Options options)
    : options_(std::move(options)), folder_(std::make_shared<TemporarySocketDirectory>()) {}

AttackRun::~AttackRun() {
  {
    const MutexLock lock(mu_);
    end_ = true;
    looked_at_ = nullptr;
  }
  attackers_.clear();
  if (daemon_) daemon_->Kill9();
  for (Bystander& bystander : bystanders_) bystander.program->Signal(SIGKILL);
  if (listener_.joinable()) listener_.join();
  if (weigher_.joinable()) weigher_.join();
  if (looker_.joinable()) looker_.join();
  if (pulse_.joinable()) pulse_.join();
  if (taker_.joinable()) taker_.join();
}

std::string AttackRun::WhyNot() {
  if (geteuid() != 0) return "needs root: attackers run as other users";
  return "";
}

void AttackRun::StartDaemon() {
  std::vector<std::string> flags = {"--pool",
                                    "64MiB",
                                    "--slab",
                                    "32MiB",
                                    "--memory-limit",
                                    std::to_string(kMemoryLimitMib) + "MiB",
                                    "--staging-uid-limit",
                                    std::to_string(kStagingUidLimitMib) + "MiB",
                                    "--disk",
                                    folder_->File("disk"),
                                    "--disk-limit",
                                    "512MiB",
                                    "--data-socket-mode",
                                    "0666"};
  flags.insert(flags.end(), options_.flags.begin(), options_.flags.end());
  DaemonProcess::Options how{.folder = folder_};
  if (options_.descriptors != 0) {
    how.in_child = [count = options_.descriptors] {
      const rlimit limit{count, count};
      setrlimit(RLIMIT_NOFILE, &limit);
    };
  }
  daemon_ = std::make_shared<DaemonProcess>(flags, how);
}

std::string AttackRun::Start() {
  // Other users must reach the socket files; the disk's folder is for the daemon's user only.
  std::filesystem::permissions(folder_->path(), std::filesystem::perms(0755));
  StartDaemon();
  if (!daemon_->serves()) return "the daemon does not serve: " + daemon_->errors();
  const std::vector<std::pair<std::string, uid_t>> roles = {
      {"mapped", 0}, {"staged", kStagedVictimUid}, {"router", kStagedVictimUid}};
  for (const auto& [role, uid] : roles) {
    bystanders_.push_back(
        {role, std::make_unique<PipedProgram>(
                   LARDER_BYSTANDER_PATH,
                   std::vector<std::string>{role, folder_->path(), std::to_string(uid)})});
  }
  listener_ = std::thread([this] { Listen(); });
  if (!Eventually([this] { return AllReady(); }, kReadyLimit)) {
    const MutexLock lock(mu_);
    std::string why = "a bystander is not ready:";
    for (const Sample& sample : samples_) {
      if (sample.record.outcome != Outcome::kOk)
        why += " " + sample.call + ": " + sample.record.why.data();
    }
    return why;
  }
  if (const std::string why = options_.pinned ? PinWhatIsRead() : ""; !why.empty()) return why;
  {
    const MutexLock lock(mu_);
    looked_at_ = daemon_;
  }
  weigher_ = std::thread([this] { Watch([this](const auto& daemon) { Weigh(*daemon); }); });
  looker_ = std::thread([this] { Watch([this](const auto& daemon) { Look(daemon); }); });
  pulse_ = std::thread([this] { TakePulse(); });
  return "";
}

std::string AttackRun::PinWhatIsRead() {
  const auto cache = v1::Cache::NewStub(grpc::CreateChannel(
      "unix:" + ControlSocketIn(folder_->path()), grpc::InsecureChannelCredentials()));
  for (const char* const role : {"mapped", "staged"}) {
    v1::PinRequest request;
    std::string digests;
    for (const TestBlock& block : ReadBlocksOf(MakerOf(role))) digests += Packed(block.digest);
    request.mutable_blocks()->set_digests(digests);
    request.set_owner("attack-run");
    request.set_tier(v1::TIER_DISK);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::PinReply reply;
    if (const grpc::Status status = cache->Pin(&context, request, &reply); !status.ok())
      return "pin: " + status.error_message();
    for (const int answer : reply.blocks().status()) {
      if (answer != v1::BLOCK_STATUS_OK) return "pin: status " + std::to_string(answer);
    }
  }
  return "";
}

bool AttackRun::AllReady() {
  const MutexLock lock(mu_);
  return ready_.size() == bystanders_.size();
}

void AttackRun::Before(milliseconds time) {
  log_before_ = daemon_->errors();
  metrics_before_ = daemon_->Scrape();
  before_ = NowNs();
  SleepUntil(before_ + Ns(time));
}

void AttackRun::During(milliseconds time, const std::function<void()>& begin,
                       const std::function<void()>& each) {
  during_ = NowNs();
  SetAttacked(true);
  begin();
  const int64_t until = during_ + Ns(time);
  // Status and metrics are read while the attack is under way, some time before its end.
  const int64_t take_at = during_ + Ns(time) * 2 / 3;
  for (bool taken = false; NowNs() < until; std::this_thread::sleep_for(milliseconds(20))) {
    if (!taken && NowNs() > take_at) {
      // On another thread, so that a daemon that hangs does not delay the run.
      taker_ = std::thread([this, daemon = daemon_] { TakeSaid(*daemon); });
      taken = true;
    }
    each();
    died_ = died_ || !daemon_->alive();
  }
  EndAttackers();
  ended_ = NowNs();
  SetAttacked(false);
}

void AttackRun::SetAttacked(bool attacked) {
  const MutexLock lock(mu_);
  attacked_ = attacked;
}

void AttackRun::Attack(const std::string& name, milliseconds time) {
  attackers_.push_back(
      {name, std::make_unique<PipedProgram>(
                 LARDER_ATTACKER_PATH,
                 std::vector<std::string>{name, folder_->path(),
                                          std::to_string(static_cast<double>(time.count()) / 1e3),
                                          std::to_string(kAttackerUid)})});
  attacker_pids_.push_back(attackers_.back().program->pid());
}

void AttackRun::Reap() {
  for (Attacker& attacker : attackers_) {
    pollfd look{.fd = attacker.program->out(), .events = POLLIN, .revents = 0};
    if (poll(&look, 1, 0) != 1) continue;
    char words[400];
    const ssize_t n = read(attacker.program->out(), words, sizeof words);
    std::string text(words, n > 0 ? static_cast<size_t>(n) : 0);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    attacker_words_[attacker.name] = n > 0 ? text : "it ended without output";
    attacker.program = nullptr;
  }
  std::erase_if(attackers_, [](const Attacker& attacker) { return attacker.program == nullptr; });
}

void AttackRun::EndAttackers() {
  static_cast<void>(Eventually(
      [this] {
        Reap();
        return attackers_.empty();
      },
      milliseconds(5'000)));
  for (const Attacker& attacker : attackers_)
    attacker_words_[attacker.name] = "it had to be killed";
  attackers_.clear();
}

void AttackRun::TakeSaid(const DaemonProcess& daemon) {
  // The amounts change all the time, so the maximum of several samples is taken.
  constexpr int kLooks = 20;
  for (int i = 0; i < kLooks; ++i) {
    for (const auto& [kind, amount] : SharesHeld(daemon.Scrape()))
      held_[kind] = std::max(held_[kind], amount);
    std::this_thread::sleep_for(milliseconds(10));
  }
  status_text_ = StatusOf(folder_->path());
  metrics_text_ = daemon.Scrape();
}

void AttackRun::After(milliseconds limit) {
  if (!Eventually([this] { return Served(ended_, &after_ms_, &after_call_); }, limit))
    after_ms_ = static_cast<double>(limit.count());
}

// Whether every kind of call that began after `since` was served at least once.  Returns the kind
// that was served last, or one that was not served, in `*call`, and how long the last one took from
// `since` on in `*after_ms`.
bool AttackRun::Served(int64_t since, double* after_ms, std::string* call) {
  const MutexLock lock(mu_);
  std::map<std::string, int64_t> served;
  for (const Sample& sample : samples_) {
    const Record& record = sample.record;
    if (record.op == Op::kReady || record.op == Op::kDurable || record.op == Op::kWatch) continue;
    int64_t& at = served[sample.call];
    if (at != 0 || record.begin_ns < since || record.outcome != Outcome::kOk) continue;
    at = record.end_ns;
  }
  *after_ms = 0;
  for (const auto& [name, at] : served) {
    if (at == 0) {
      *call = name;
      return false;
    }
    if (Ms(at - since) <= *after_ms) continue;
    *after_ms = Ms(at - since);
    *call = name;
  }
  return true;
}

bool AttackRun::RestartDaemon() {
  {
    const MutexLock lock(mu_);
    looked_at_ = nullptr;
  }
  Interval interval{.begin = NowNs(), .end = 0};
  logs_ += daemon_->errors();
  daemon_->Kill9();
  daemon_.reset();
  StartDaemon();
  interval.end = NowNs() + kReattachNs;
  restarts_.push_back(interval);
  const MutexLock lock(mu_);
  looked_at_ = daemon_;
  return daemon_->serves();
}

AttackFigures AttackRun::End() {
  {
    const MutexLock lock(mu_);
    looked_at_ = nullptr;
  }
  for (Bystander& bystander : bystanders_) bystander.program->Signal(SIGTERM);
  AttackFigures figures;
  for (Bystander& bystander : bystanders_) {
    if (bystander.program->WaitFor(kEndLimit)) continue;
    ++figures.failed;
    ++figures.reasons[bystander.role + ": a call does not end"];
    bystander.program->Signal(SIGKILL);
  }
  figures.alive = !died_ && daemon_->alive();
  {
    const MutexLock lock(mu_);
    end_ = true;
    figures.above_mib = above_mib_;
    figures.staging_mib = staging_mib_;
    figures.machine_ms = machine_ms_;
  }
  listener_.join();
  weigher_.join();
  looker_.join();
  pulse_.join();
  if (taker_.joinable()) taker_.join();
  AddLatencies(&figures);
  figures.after_ms = after_ms_;
  figures.after_call = after_call_;
  const std::string logs = logs_ + daemon_->errors();
  const Attackers who{.uid = kAttackerUid, .pids = attacker_pids_, .unnamed = options_.unnamed};
  figures.log = LinesThatName(logs, log_before_, who);
  figures.metrics = MetricsThatGrew(metrics_before_, metrics_text_);
  figures.status = LinesThatName(status_text_, "", who);
  figures.held = held_;
  figures.pool = PoolText(metrics_text_);
  for (const auto& [name, words] : attacker_words_)
    figures.attackers += (figures.attackers.empty() ? "" : "; ") + name + ": " + words;
  return figures;
}

// ---- listening and looking

void AttackRun::Listen() {
  std::vector<pollfd> ends;
  for (const Bystander& bystander : bystanders_)
    ends.push_back({.fd = bystander.program->out(), .events = POLLIN, .revents = 0});
  for (size_t open = ends.size(); open > 0;) {
    poll(ends.data(), ends.size(), 100);
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || (ends[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      Record record;
      if (read(ends[i].fd, &record, sizeof record) != sizeof record) {
        ends[i].fd = -1;  // poll ignores negative descriptors
        --open;
        continue;
      }
      const MutexLock lock(mu_);
      const std::string& role = bystanders_[i].role;
      if (record.op == Op::kReady && record.outcome == Outcome::kOk) ready_[role] = true;
      samples_.push_back({role + " " + std::string(ToString(record.op)), record});
    }
  }
}

void AttackRun::Watch(const std::function<void(const std::shared_ptr<DaemonProcess>&)>& once) {
  for (;; std::this_thread::sleep_for(kLookPause)) {
    std::shared_ptr<DaemonProcess> daemon;
    {
      const MutexLock lock(mu_);
      if (end_) return;
      daemon = looked_at_;
    }
    if (daemon != nullptr) once(daemon);
  }
}

void AttackRun::Weigh(const DaemonProcess& daemon) {
  const ResidentBytes resident = BytesBesidePool(daemon.pid());
  const MutexLock lock(mu_);
  if (resident.own > 0) above_mib_ = std::max(above_mib_, Mib(resident.own) - kMemoryLimitMib);
  staging_mib_ = std::max(staging_mib_, Mib(resident.staging));
}

void AttackRun::Look(const std::shared_ptr<DaemonProcess>& daemon) {
  TakeColdOnes();
  Record record{.op = Op::kHealth, .outcome = Outcome::kOk, .begin_ns = NowNs()};
  // While attackers connect faster than the daemon accepts, the kernel's queue is sometimes full,
  // and gRPC's client takes that for an error (docs/security.md).  So the call reconnects, and its
  // duration counts.
  const std::string health = daemon->Health(/*insist=*/true);
  record.end_ns = NowNs();
  if (health != "SERVING") {
    record.outcome = Outcome::kFailed;
    std::memcpy(record.why.data(), health.data(), std::min(health.size(), record.why.size() - 1));
  }
  std::this_thread::sleep_for(kLookPause);
  const MutexLock lock(mu_);
  if (looked_at_ == daemon) samples_.push_back({"test health", record});
}

void AttackRun::TakePulse() {
  constexpr milliseconds kSleep{1};
  for (;;) {
    const int64_t begin = NowNs();
    std::this_thread::sleep_for(kSleep);
    const double late_ms = Ms(NowNs() - begin - Ns(kSleep));
    const MutexLock lock(mu_);
    if (end_) return;
    if (attacked_) machine_ms_ = std::max(machine_ms_, late_ms);
  }
}

// Clears the cold blocks from HOST, so that they are only on disk, like blocks that have not been
// read for a while.
void AttackRun::TakeColdOnes() {
  const auto channel = grpc::CreateChannel("unix:" + ControlSocketIn(folder_->path()),
                                           grpc::InsecureChannelCredentials());
  for (const char* const role : {"mapped", "staged"}) {
    const BlockMaker maker = MakerOf(role);
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_BLOCKS);
    std::string digests;
    for (uint32_t i = 0; i < kColdBlocks; ++i)
      digests += Packed(maker.Block(kColdBegin + i).digest);
    request.mutable_blocks()->set_digests(digests);
    request.add_tiers(v1::TIER_HOST);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::ClearReply reply;
    static_cast<void>(v1::Cache::NewStub(channel)->Clear(&context, request, &reply));
  }
}

// ---- the figures

AttackRun::Phase AttackRun::PhaseOf(const Record& record) const {
  if (record.op == Op::kReady || record.begin_ns < before_) return Phase::kNone;
  for (const Interval& restart : restarts_) {
    if (record.begin_ns < restart.end && record.end_ns > restart.begin) return Phase::kNone;
  }
  // A call that began before the attack and ended during it counts as during.
  if (record.end_ns < during_) return Phase::kBefore;
  return Phase::kDuring;
}

void AttackRun::AddLatencies(AttackFigures* figures) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> took;
  const MutexLock lock(mu_);
  for (const Sample& sample : samples_) {
    const Record& record = sample.record;
    const Phase phase = PhaseOf(record);
    if (phase == Phase::kNone) continue;
    auto& [before, during] = took[sample.call];
    const double ms = Ms(record.end_ns - record.begin_ns);
    if (phase == Phase::kBefore) before.push_back(ms);
    if (phase == Phase::kDuring && record.begin_ns <= ended_) during.push_back(ms);
    if (phase == Phase::kDuring) ++figures->calls;
    if (record.outcome == Outcome::kOk) continue;
    (record.outcome == Outcome::kComputed ? figures->computed
     : record.outcome == Outcome::kMissed ? figures->missed
     : record.outcome == Outcome::kWrong  ? figures->wrong
                                          : figures->failed) += 1;
    ++figures->reasons[sample.call + ": " + record.why.data() +
                       (phase == Phase::kBefore ? " (before the attack)" : "")];
  }
  for (auto& [call, phases] : took) {
    auto& [before, during] = phases;
    AttackFigures::Latency latency{.call = call,
                                   .before_calls = before.size(),
                                   .during_calls = during.size(),
                                   .before_p99 = P99(before),
                                   .during_p99 = P99(during)};
    latency.during_max = during.empty() ? 0 : during.back();
    figures->latencies.push_back(latency);
    // The time between events depends on how often victims put, and durable puts on the disk.
    if (call.ends_with(" watch") || call.ends_with(" durable")) continue;
    if (latency.during_max > figures->longest_ms) {
      figures->longest_ms = latency.during_max;
      figures->longest_call = call;
    }
    if (latency.ratio() > figures->worst.ratio()) figures->worst = latency;
  }
}

void ExpectAllServed(const AttackFigures& figures) {
  EXPECT_TRUE(figures.alive);
  EXPECT_GT(figures.calls, 0u);
  EXPECT_EQ(figures.failed, 0u);
  EXPECT_EQ(figures.missed, 0u);
  EXPECT_EQ(figures.wrong, 0u);
  EXPECT_LE(figures.staging_mib, kStagingUidLimitMib + kVictimsStagingMib);
}

void AttackFigures::Print(const std::string& name) const {
  const auto said = [](const std::vector<std::string>& lines) {
    return lines.empty() ? "no" : "yes";
  };
  std::printf(
      "%s: %lu calls, %lu failed, %lu missed, %lu wrong, %lu restores computed; p99 %.2f -> %.2f "
      "ms (x %.1f, %s), longest %.0f ms (%s); all served %.0f ms after the attack (%s); %.0f MiB "
      "above memory_limit, %.0f MiB staging; reported in log %s, metrics %s, status %s%s\n",
      name.c_str(), calls, failed, missed, wrong, computed, worst.before_p99, worst.during_p99,
      worst.ratio(), worst.call.c_str(), longest_ms, longest_call.c_str(), after_ms,
      after_call.c_str(), above_mib, staging_mib, said(log), said(metrics), said(status),
      alive ? "" : "; THE DAEMON DIED");
  std::printf(
      "    attacker: %s\n    pool: %s\n    a thread that slept for 1 ms woke up to %.0f ms late\n",
      attackers.c_str(), pool.c_str(), machine_ms);
  for (const Latency& one : latencies) {
    std::printf(
        "    %-16s %5zu calls, p99 %8.2f ms; during %5zu, p99 %8.2f ms (x %.1f), max %.2f ms\n",
        one.call.c_str(), one.before_calls, one.before_p99, one.during_calls, one.during_p99,
        one.ratio(), one.during_max);
  }
  for (const auto& [reason, count] : reasons) std::printf("    %lu x %s\n", count, reason.c_str());
  for (const auto* lines : {&log, &metrics, &status}) {
    for (size_t i = 0; i < std::min<size_t>(lines->size(), 3); ++i)
      std::printf("    reported: %s\n", (*lines)[i].c_str());
  }
  std::fflush(stdout);
}

}  // namespace larder::e2e
