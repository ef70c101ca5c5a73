#include "tests/e2e/support/daemon_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <grpcpp/generic/generic_stub.h>

#include "storage/check.h"
#include "tests/e2e/support/die_with.h"

namespace larder::e2e {
namespace {

constexpr std::chrono::seconds kCallLimit{10};

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Channels to one address share a connection unless each has its own subchannel pool.
std::shared_ptr<grpc::Channel> FreshChannel(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(64 << 20);  // so that the daemon's limit applies, not gRPC's
  return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
}

bool HasFlag(const std::vector<std::string>& flags, const std::string& name) {
  for (const std::string& flag : flags) {
    if (flag == name) return true;
  }
  return false;
}

std::vector<std::string> WithDefaults(std::vector<std::string> flags, const std::string& folder) {
  const std::vector<std::pair<std::string, std::string>> defaults = {
      {"--socket-dir", folder},
      {"--metrics-listen", "127.0.0.1:0"},
      {"--pool", "64MiB"},
      {"--slab", "8MiB"}};
  for (const auto& [name, value] : defaults) {
    if (HasFlag(flags, name)) continue;
    flags.push_back(name);
    flags.push_back(value);
  }
  return flags;
}

// Returns the whole answer to an HTTP GET on the loopback, header and body.
std::string HttpGet(uint16_t port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char piece[4096];
      for (ssize_t n = 0; (n = read(fd, piece, sizeof piece)) > 0;)
        answer.append(piece, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

// Calls grpc.health.v1 without its generated code: the request is empty, and field 1 of the reply
// is the status.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, bool insist) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(insist);
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  grpc::CompletionQueue queue;
  grpc::Slice nothing;
  grpc::ByteBuffer empty(&nothing, 1);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", empty, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, &reply);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (!status.ok()) return status.error_message();
  grpc::Slice whole;
  if (!reply.DumpToSingleSlice(&whole).ok() || whole.size() != 2 || whole.begin()[0] != 8)
    return "garbage";
  return whole.begin()[1] == 1 ? "SERVING" : "NOT_SERVING";
}

// Runs in the child between fork and exec, so it makes only async-signal-safe calls, except for
// those of the test's `in_child`.
[[noreturn]] void Become(char* const* arguments, int out, int err,
                         const DaemonProcess::Options& options, pid_t parent) {
  if (options.address_space_max != 0) {
    const rlimit limit{options.address_space_max, options.address_space_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (options.in_child) options.in_child();
  DieWith(parent);  // after in_child, which may change the user
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

std::string ProgramAt(const std::string& built) {
  std::error_code error;
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() /
      std::filesystem::path(built).filename();
  return std::filesystem::exists(beside, error) ? beside.string() : built;
}

DaemonProcess::DaemonProcess(const std::vector<std::string>& flags)
    : DaemonProcess(flags, Options{}) {}

DaemonProcess::DaemonProcess(const std::vector<std::string>& flags, Options options)
    : folder_(options.folder ? options.folder : std::make_shared<TemporarySocketDirectory>()) {
  Start(flags, options);
  admin_ = AdminChannel();
  if (options.wait && !Eventually([this] { return !alive() || serves(); })) {
    std::fprintf(stderr, "larderd runs but does not serve: %s\n", errors().c_str());
  }
}

void DaemonProcess::Start(const std::vector<std::string>& flags, const Options& options) {
  std::vector<std::string> all = WithDefaults(flags, folder_->path());
  all.insert(all.begin(), ProgramAt(LARDERD_PATH));
  std::vector<char*> arguments;
  for (std::string& argument : all) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  // Numbered, so that two daemons with the same folder do not write to the same files.
  static int started = 0;
  const std::string stem = folder_->File("daemon-" + std::to_string(++started));
  const int out = open((stem + ".out").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  const int err = open((stem + ".err").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  LARDER_CHECK(out >= 0 && err >= 0);
  stem_ = stem;
  const pid_t parent = getpid();
  pid_ = fork();
  LARDER_CHECK(pid_ >= 0);
  if (pid_ == 0) Become(arguments.data(), out, err, options, parent);
  close(out);
  close(err);
}

DaemonProcess::~DaemonProcess() { Kill9(); }

bool DaemonProcess::alive() { return !Wait(std::chrono::milliseconds(0)).has_value(); }

std::optional<int> DaemonProcess::Wait(std::chrono::milliseconds limit) {
  static_cast<void>(Eventually(
      [this] {
        int status = 0;
        if (!exit_ && waitpid(pid_, &status, WNOHANG) == pid_) {
          exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        return exit_.has_value();
      },
      limit));
  return exit_;
}

void DaemonProcess::Signal(int signal) const {
  if (exit_) return;
  kill(pid_, signal);
  if (signal != SIGSTOP) return;
  siginfo_t stopped{};  // until then a thread on another core may still answer
  waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

void DaemonProcess::Kill9() {
  Signal(SIGKILL);
  static_cast<void>(Wait());
}

int DaemonProcess::Terminate() {
  Signal(SIGTERM);
  return Wait().value_or(-1);
}

bool DaemonProcess::serves() {
  if (Health() != "SERVING") return false;
  const v1::TenantStats tenant = Tenant();
  return tenant.pool_limit() > 0 && tenant.pool_online() == tenant.pool_limit();
}

std::string DaemonProcess::Health(bool insist) { return CheckHealth(DataChannel(), insist); }

std::string DaemonProcess::errors() const { return ReadAll(stem_ + ".err"); }
std::string DaemonProcess::output() const { return ReadAll(stem_ + ".out"); }

std::shared_ptr<grpc::Channel> DaemonProcess::DataChannel() const {
  return FreshChannel(data_socket());
}
std::shared_ptr<grpc::Channel> DaemonProcess::ControlChannel() const {
  return FreshChannel(control_socket());
}
std::shared_ptr<grpc::Channel> DaemonProcess::AdminChannel() const {
  return FreshChannel(admin_socket());
}

v1::StatsReply DaemonProcess::Stats() const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  v1::StatsReply reply;
  const grpc::Status status = v1::Admin::NewStub(admin_)->Stats(&context, {}, &reply);
  return status.ok() ? reply : v1::StatsReply();
}

v1::TenantStats DaemonProcess::Tenant() const {
  const v1::StatsReply reply = Stats();
  return reply.tenants_size() == 1 ? reply.tenants(0) : v1::TenantStats();
}

std::string DaemonProcess::Scrape() const {
  const std::string said = output();
  const size_t at = said.find("http://127.0.0.1:");
  if (at == std::string::npos) return "";
  const auto port =
      static_cast<uint16_t>(std::atoi(said.c_str() + at + std::string("http://127.0.0.1:").size()));
  return HttpGet(port, "/metrics");
}

double DaemonProcess::Metric(const std::string& sample) const {
  std::istringstream lines(Scrape());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(sample + " ")) return std::atof(line.c_str() + sample.size());
  }
  return -1;
}

uint64_t DaemonProcess::ResidentBytesBesidePool() const {
  // The pool is shared memory, which RssAnon and RssFile do not count.
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  uint64_t kib = 0;
  for (std::string word; status >> word;) {
    uint64_t value = 0;
    if ((word == "RssAnon:" || word == "RssFile:") && status >> value) kib += value;
  }
  return kib << 10;
}

std::string DaemonProcess::DescriptorTexts() const {
  std::string texts;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd")) {
    texts += "\n  " + entry.path().filename().string() + " " +
             std::filesystem::read_symlink(entry.path(), gone).string();
  }
  return texts;
}

size_t DaemonProcess::OpenDescriptors() const {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd")) {
    count += entry.is_symlink() ? 1 : 0;
  }
  return count;
}

}  // namespace larder::e2e
