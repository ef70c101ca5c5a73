#include "bench/harness/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "larder/v1/admin.grpc.pb.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr auto kStartLimit = std::chrono::seconds(60);
constexpr size_t kLineBytesMax = 64 << 10;

absl::Status Errno(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Runs in the child: only calls that are safe after fork.
[[noreturn]] void Become(char* const* arguments, pid_t parent, int in, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0) _exit(127);
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0) return Errno("pipe2");
  if (pipe2(from, O_CLOEXEC) != 0) {
    const absl::Status status = Errno("pipe2");
    close(to[0]);
    close(to[1]);
    return status;
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(argv.data(), parent, to[0], from[1]);
  close(to[0]);
  close(from[1]);
  if (pid < 0) {
    close(to[1]);
    close(from[0]);
    return Errno("fork");
  }
  return std::unique_ptr<Child>(new Child(pid, to[1], from[0]));
}

Child::~Child() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(to_);
  close(from_);
}

bool Child::Alive() const {
  siginfo_t ended{};
  return waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

double Child::CpuSeconds() const {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

absl::Status Child::Write(const std::string& line) {
  const std::string text = line + '\n';
  if (write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size()))
    return absl::OkStatus();
  return Errno("write to a child process");
}

absl::StatusOr<std::string> Child::ReadLine() {
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char piece[4096];
    const ssize_t n = read(from_, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("a child process ended; its message is above");
    buffer_.append(piece, static_cast<size_t>(n));
    if (buffer_.size() > kLineBytesMax)
      return absl::InternalError("a child process writes too much");
  }
}

std::string OwnProgram() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// ---- the daemon

struct DaemonProcess::Admin {
  std::unique_ptr<v1::Admin::Stub> stub;

  absl::StatusOr<v1::StatsReply> Stats() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::StatsReply reply;
    const grpc::Status status = stub->Stats(&context, {}, &reply);
    if (!status.ok()) return absl::UnavailableError(status.error_message());
    if (reply.tenants_size() == 0) return absl::InternalError("Admin.Stats names no tenant");
    return reply;
  }
};
void DaemonProcess::AdminDeleter::operator()(Admin* admin) const { delete admin; }

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const DaemonConfig& config) {
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess);
  LARDER_ASSIGN_OR_RETURN(auto dir, TempDir::Make());
  daemon->dir_ = std::move(dir);
  const auto folder = std::filesystem::path(OwnProgram()).parent_path();
  std::filesystem::path program = folder.parent_path() / "server" / "larderd";
  if (!std::filesystem::exists(program)) program = folder / "larderd";  // packed by tests/gpu.sh
  std::vector<std::string> arguments = {program.string(),
                                        "--socket-dir",
                                        daemon->socket_dir(),
                                        "--pool",
                                        absl::StrCat(config.pool.value()),
                                        "--metrics-listen",
                                        "",
                                        "--log-level",
                                        "warning"};
  arguments.insert(arguments.end(), config.more_flags.begin(), config.more_flags.end());
  LARDER_ASSIGN_OR_RETURN(daemon->child_, Child::Start(arguments));
  daemon->admin_.reset(new Admin{v1::Admin::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", daemon->socket_dir(), "/admin.sock"),
                          grpc::InsecureChannelCredentials()))});
  // Wait for the socket first: a gRPC channel that finds none tries again only a second later.
  const std::string admin = daemon->socket_dir() + "/admin.sock";
  while (!std::filesystem::exists(admin) && daemon->child_->Alive())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto until = std::chrono::steady_clock::now() + kStartLimit;;) {
    const absl::StatusOr<v1::StatsReply> reply = daemon->admin_->Stats();
    if (reply.ok() && reply->tenants(0).pool_limit() > 0 &&
        (!config.whole_pool || reply->tenants(0).pool_online() == reply->tenants(0).pool_limit())) {
      return daemon;
    }
    if (!daemon->child_->Alive())
      return absl::UnavailableError("larderd ended; its message is above");
    if (std::chrono::steady_clock::now() > until) {
      return absl::UnavailableError(
          absl::StrCat("larderd does not serve after 60 s: ", reply.status().message()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(config.whole_pool ? 20 : 2));
  }
}

absl::StatusOr<uint64_t> DaemonProcess::Counter(const std::string& name) const {
  LARDER_ASSIGN_OR_RETURN(const v1::StatsReply reply, admin_->Stats());
  const auto found = reply.counters().find(name);
  if (found == reply.counters().end())
    return absl::NotFoundError(absl::StrCat("no counter ", name));
  return found->second;
}

absl::StatusOr<DaemonProcess::Holdings> DaemonProcess::Stats() const {
  LARDER_ASSIGN_OR_RETURN(const v1::StatsReply reply, admin_->Stats());
  const v1::TenantStats& tenant = reply.tenants(0);
  return Holdings{.limit = ByteCount(tenant.pool_limit()),
                  .online = ByteCount(tenant.pool_online()),
                  .used = ByteCount(tenant.pool_stored() + tenant.pool_reserved()),
                  .blocks = tenant.blocks()};
}

// ---- workers

absl::StatusOr<WorkerGroup> WorkerGroup::Start(size_t count,
                                               const std::vector<std::string>& arguments) {
  WorkerGroup group;
  for (size_t i = 0; i < count; ++i) {
    std::vector<std::string> all = {OwnProgram(), absl::StrCat("--worker=", i)};
    all.insert(all.end(), arguments.begin(), arguments.end());
    LARDER_ASSIGN_OR_RETURN(auto child, Child::Start(all));
    group.workers_.push_back(std::move(child));
  }
  for (const auto& worker : group.workers_) {
    LARDER_ASSIGN_OR_RETURN(std::string line, worker->ReadLine());
    if (line != "ready") return absl::InternalError(absl::StrCat("a worker says: ", line));
  }
  return group;
}

absl::StatusOr<std::vector<std::string>> WorkerGroup::Ask(const std::string& line) {
  for (const auto& worker : workers_) {
    LARDER_RETURN_IF_ERROR(worker->Write(line));
  }
  std::vector<std::string> answers;
  for (const auto& worker : workers_) {
    LARDER_ASSIGN_OR_RETURN(std::string answer, worker->ReadLine());
    answers.push_back(std::move(answer));
  }
  return answers;
}

absl::Status WorkerGroup::AskInTurn(const std::string& line) {
  for (const auto& worker : workers_) {
    LARDER_RETURN_IF_ERROR(worker->Write(line));
    if (auto answer = worker->ReadLine(); !answer.ok()) return answer.status();
  }
  return absl::OkStatus();
}

}  // namespace larder::bench
