// Processes attack the daemon's socket files with connections and descriptors.  A client that was
// connected before must be served before, during and after the attack, and so must a client that
// connects later.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "client/local/sideband_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "larder/v1/cache.grpc.pb.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/socket_flood.h"
#include "tests/server/connections/lingering_socket.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Flags = std::vector<std::string>;

constexpr uid_t kStranger = 65534;
// The daemon answers within milliseconds; what is asserted is that no call waits for an attacker.
constexpr milliseconds kStallMax{1000};

// Another user if the test can become one, otherwise the test's own.
uid_t AttackersUid() { return geteuid() == 0 ? kStranger : geteuid(); }

::testing::AssertionResult HealthyWithin(DaemonProcess& daemon, milliseconds limit) {
  std::string health;
  if (Eventually([&] { return (health = daemon.Health()) == "SERVING"; }, limit))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << health;
}

// A client that calls on a connection that it opened before the attack.
class Victim {
 public:
  explicit Victim(const DaemonProcess& daemon) : stub_(v1::Cache::NewStub(daemon.DataChannel())) {}
  // Makes a call and returns how long it took.  Fails the test if the call fails.
  Clock::duration Call() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    v1::ListInstancesReply reply;
    const auto begun = Clock::now();
    const grpc::Status status = stub_->ListInstances(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Clock::now() - begun;
  }

 private:
  const std::unique_ptr<v1::Cache::Stub> stub_;
};

struct Attack {
  const char* name;
  const char* socket;
  int type;
  FloodKind kind;
};

constexpr Attack kAttacks[] = {
    {"DataHeld", "data.sock", SOCK_STREAM, FloodKind::kHeld},
    {"DataChurned", "data.sock", SOCK_STREAM, FloodKind::kChurned},
    {"DataHalfOpen", "data.sock", SOCK_STREAM, FloodKind::kHalfOpen},
    {"AdminHeld", "admin.sock", SOCK_STREAM, FloodKind::kHeld},
    {"AdminChurned", "admin.sock", SOCK_STREAM, FloodKind::kChurned},
    {"SidebandHeld", "sideband.sock", SOCK_SEQPACKET, FloodKind::kHeld},
    {"SidebandChurned", "sideband.sock", SOCK_SEQPACKET, FloodKind::kChurned},
};

class SocketTest : public ::testing::Test {
 protected:
  // Starts a daemon with this limit of open files; 0: the test's own limit.
  static std::unique_ptr<DaemonProcess> Start(rlim_t limit, const Flags& more = {}) {
    Flags flags = {"--data-socket-mode", "0666"};
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon =
        std::make_unique<DaemonProcess>(flags, DaemonProcess::Options{.in_child = [limit] {
                                          const rlimit both{limit, limit};
                                          if (limit != 0) setrlimit(RLIMIT_NOFILE, &both);
                                        }});
    EXPECT_TRUE(daemon->serves()) << daemon->errors();
    chmod(daemon->folder()->path().c_str(), 0755);
    return daemon;
  }
};

// Returns the user of a process according to /proc.
uid_t UserOf(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Uid:")) return static_cast<uid_t>(std::stoul(line.substr(4)));
  }
  return geteuid();
}

// Starts a flood, writes the pids of its processes to `say` and waits to be killed.
[[noreturn]] void FloodUntilKilled(int say) {
  const SocketFlood flood(
      {.path = "/nonexistent/data.sock", .processes = 3, .uid = AttackersUid()});
  const std::vector<pid_t>& children = flood.children();
  const size_t bytes = children.size() * sizeof children[0];
  if (write(say, children.data(), bytes) != static_cast<ssize_t>(bytes)) _exit(1);
  for (;;) pause();
}

// If a test is killed, its attackers end too.
TEST(SocketFloodProcesses, EndWithTheirTest) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor hear(ends[0]), say(ends[1]);
  // The attackers become children of this process when their parent is killed, so that it can wait
  // for them.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t owner = fork();
  ASSERT_GE(owner, 0);
  if (owner == 0) FloodUntilKilled(say.get());
  std::array<pid_t, 3> flood{};
  ASSERT_EQ(read(hear.get(), flood.data(), sizeof flood), static_cast<ssize_t>(sizeof flood));
  for (const pid_t one : flood) {
    EXPECT_TRUE(Eventually([&] { return UserOf(one) == AttackersUid(); }, seconds(10)));
  }
  kill(owner, SIGKILL);
  EXPECT_EQ(waitpid(owner, nullptr, 0), owner);
  for (const pid_t one : flood) {
    const bool ended =
        Eventually([&] { return waitpid(one, nullptr, WNOHANG) == one; }, seconds(10));
    EXPECT_TRUE(ended) << "the attacker outlived its test";
    if (ended) continue;
    kill(one, SIGKILL);
    waitpid(one, nullptr, 0);
  }
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

// A new connection waits behind those of the attackers, with which it also shares the cores.
constexpr seconds kReachable{3};

class SocketFloodTest : public SocketTest,
                        public ::testing::WithParamInterface<std::tuple<Attack, int, int>> {};

TEST_P(SocketFloodTest, OtherClientsAreServed) {
  const auto& [attack, processes, limit] = GetParam();
  const auto daemon = Start(static_cast<rlim_t>(limit));
  Victim victim(*daemon);
  victim.Call();
  const auto sideband = SidebandClient::Connect(daemon->sideband_socket(), seconds(10));
  ASSERT_TRUE(sideband.ok()) << sideband.status();
  // Only the daemon's own user can connect to admin.sock.
  const bool admin = std::string(attack.socket) == "admin.sock";
  // If the attackers have the test's user, 50 processes take all connections that a low limit
  // leaves to that user.
  const bool others = AttackersUid() != geteuid();
  const bool new_ones = others || admin || limit == 0 || processes == 1;
  SocketFlood flood({.path = daemon->folder()->File(attack.socket),
                     .type = attack.type,
                     .kind = attack.kind,
                     .processes = processes,
                     .uid = admin ? geteuid() : AttackersUid()});
  const auto until = Clock::now() + milliseconds(testing::Scaled(10'000));
  Clock::duration slowest{}, slowest_new{};
  int calls = 0;
  do {
    slowest = std::max(slowest, victim.Call());
    EXPECT_TRUE((*sideband)->Clean(SessionId{1}).ok()) << "the sideband connection from before";
    // The test also opens new connections.  Its user is not the flood's, which is kStranger.
    if (new_ones) {
      const auto begun = Clock::now();
      EXPECT_TRUE(HealthyWithin(*daemon, kReachable)) << "a new connection to data.sock";
      slowest_new = std::max(slowest_new, Clock::now() - begun);
    }
    if (others && !admin) {
      const auto begun = Clock::now();
      const auto another = SidebandClient::Connect(daemon->sideband_socket(), kReachable);
      EXPECT_TRUE(another.ok()) << another.status();
      slowest_new = std::max(slowest_new, Clock::now() - begun);
    }
    ++calls;
  } while (Clock::now() < until && !HasFailure());
  EXPECT_LT(slowest, kStallMax);
  EXPECT_TRUE(flood.Attacks()) << "an attacker has ended by itself";
  flood.End();
  EXPECT_TRUE(HealthyWithin(*daemon, seconds(1))) << "after the flood";
  EXPECT_TRUE(Eventually([&] { return !daemon->Stats().version().empty(); }, seconds(1)));
  EXPECT_TRUE(daemon->alive()) << daemon->errors();
  using Ms = std::chrono::duration<double, std::milli>;
  std::printf(
      "%s, %d processes, limit %d: %d calls, slowest %.1f ms, slowest new connection %.1f ms\n",
      attack.name, processes, limit, calls, Ms(slowest).count(), Ms(slowest_new).count());
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Attack, int, int>>& row) {
  const auto& [attack, processes, limit] = row.param;
  return attack.name + ("By" + std::to_string(processes)) + (limit == 0 ? "" : "Limit256");
}
INSTANTIATE_TEST_SUITE_P(Of, SocketFloodTest,
                         ::testing::Combine(::testing::ValuesIn(kAttacks), ::testing::Values(1, 50),
                                            ::testing::Values(0, 256)),
                         NameOf);

// A process opens more connections than its share.
TEST_F(SocketTest, AConnectionBeyondTheShareOfAProcessIsRefused) {
  const auto daemon = Start(0, {"--connections-per-process", "3"});
  std::vector<std::shared_ptr<grpc::Channel>> held;
  grpc::Status answer;
  // The health checks of this process may hold a connection a moment longer.
  while (answer.ok() && held.size() < 4) {
    held.push_back(daemon->DataChannel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    v1::ListInstancesReply reply;
    answer = v1::Cache::NewStub(held.back())->ListInstances(&context, {}, &reply);
  }
  EXPECT_EQ(answer.error_code(), grpc::StatusCode::UNAVAILABLE) << answer.error_message();
  EXPECT_TRUE(Eventually(
      [&] { return daemon->errors().find("a process has at most 3") != std::string::npos; },
      seconds(5)));
  EXPECT_GT(daemon->Metric("larder_connections_refused_total{cause=\"data_process\"}"), 0);
  held.clear();
  EXPECT_TRUE(HealthyWithin(*daemon, seconds(3)));
}

TEST_F(SocketTest, TooFewDescriptorsAreAnErrorAtTheStart) {
  DaemonProcess daemon({}, {.wait = false, .in_child = [] {
                              const rlimit low{100, 100};
                              setrlimit(RLIMIT_NOFILE, &low);
                            }});
  EXPECT_EQ(daemon.Wait(), 3);
  EXPECT_THAT(daemon.errors(), HasSubstr("LimitNOFILE"));
}

// ---- listeners that break

// Returns a descriptor of the daemon's listening socket at `path`, or an empty one if none is
// found.
FileDescriptor ListenerOf(const DaemonProcess& daemon, const std::string& path) {
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, daemon.pid(), 0)));
  for (int number = 0; number < 512; ++number) {
    FileDescriptor copy(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), number, 0)));
    int listens = 0;
    socklen_t size = sizeof listens;
    if (!copy || getsockopt(copy.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0) continue;
    sockaddr_un address{};
    size = sizeof address;
    if (listens == 0 ||
        getsockname(copy.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      continue;
    }
    if (address.sun_family == AF_UNIX && path == address.sun_path) return copy;
  }
  return {};
}

class BrokenListenerTest : public SocketTest {
 protected:
  static void ExpectBack(DaemonProcess& daemon, Victim& victim, const std::string& name) {
    EXPECT_TRUE(Eventually(
        [&] {
          return daemon.Metric("larder_sockets_reopened_total{socket=\"" + name + "\"}") == 1;
        },
        seconds(10)))
        << daemon.errors();
    EXPECT_TRUE(HealthyWithin(daemon, seconds(10))) << daemon.errors();
    EXPECT_TRUE(Eventually([&] { return !daemon.Stats().version().empty(); }, seconds(10)));
    EXPECT_LT(victim.Call(), kStallMax) << "a call on a connection from before";
    struct stat file {};
    EXPECT_EQ(stat(daemon.folder()->File(name + ".sock").c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, name == "admin" ? 0600u : 0666u);
    const auto sideband = SidebandClient::Connect(daemon.sideband_socket(), seconds(10));
    EXPECT_TRUE(sideband.ok()) << sideband.status();
    EXPECT_THAT(daemon.errors(), HasSubstr(name + ".sock takes no connections"));
    EXPECT_EQ(daemon.Terminate(), 0);
  }
};

TEST_F(BrokenListenerTest, IsReplaced) {
  for (const char* name : {"data", "admin", "sideband"}) {
    SCOPED_TRACE(name);
    const auto daemon = Start(0);
    Victim victim(*daemon);
    victim.Call();
    const FileDescriptor listener =
        ListenerOf(*daemon, daemon->folder()->File(std::string(name) + ".sock"));
    if (!listener)
      GTEST_SKIP() << "the kernel does not let this process copy the daemon's descriptors";
    ASSERT_EQ(shutdown(listener.get(), SHUT_RDWR), 0);
    ExpectBack(*daemon, victim, name);
  }
}

TEST_F(BrokenListenerTest, ARemovedSocketFileIsCreatedAgain) {
  for (const char* name : {"data", "admin", "sideband"}) {
    SCOPED_TRACE(name);
    const auto daemon = Start(0);
    Victim victim(*daemon);
    victim.Call();
    ASSERT_TRUE(std::filesystem::remove(daemon->folder()->File(std::string(name) + ".sock")));
    ExpectBack(*daemon, victim, name);
  }
}

// ---- descriptors whose close waits

// Attackers send the daemon descriptors whose last close blocks for 20 s.  The tests cover kernels
// that can refuse the descriptors and kernels that cannot.
class LingeringDescriptorTest : public SocketTest {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer defines recvmsg itself, so larderd cannot guard its sockets";
#endif
  }
  static constexpr int kLinger_s = 20;
  static FileDescriptor Connect(const std::string& path, int type) {
    FileDescriptor fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
};

TEST_F(LingeringDescriptorTest, DelaysNoOtherClient) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  for (const bool old_kernel : {false, true}) {
    SCOPED_TRACE(old_kernel ? "as on an old kernel" : "on this kernel");
    const auto daemon =
        Start(0, old_kernel ? Flags{"--fault-points", "socket.rights=error"} : Flags{});
    Victim victim(*daemon);
    victim.Call();
    auto sideband = SidebandClient::Connect(daemon->sideband_socket(), seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    const FileDescriptor session = *(*sideband)->OpenSession();
    std::vector<FileDescriptor> attackers;
    int sent = 0;
    std::vector<std::unique_ptr<LingeringSocket>> hurts;
    const auto attack = [&](FileDescriptor socket, const std::string& bytes, int flags = 0) {
      hurts.push_back(std::make_unique<LingeringSocket>(kLinger_s));
      sent += hurts.back()->SendTo(socket.get(), bytes, flags) ? 1 : 0;
      attackers.push_back(std::move(socket));
    };
    for (int i = 0; i < 14; ++i) {
      FileDescriptor socket = Connect(daemon->data_socket(), SOCK_STREAM);
      // The descriptor comes first, after gRPC has begun to read, or after bytes that make gRPC
      // close the connection.
      if (i % 3 == 1) {
        ASSERT_EQ(write(socket.get(), (preface + settings).data(), 33), 33);
        char answer[9];
        ASSERT_GT(read(socket.get(), answer, sizeof answer), 0);
      }
      if (i % 3 == 2) {
        ASSERT_EQ(write(socket.get(), "garbage garbage garbage garbage", 31), 31);
      }
      // Eight come with normal bytes, six with a last byte out of band.
      attack(std::move(socket), i % 3 == 0 ? preface : "x", i < 8 ? 0 : MSG_OOB);
    }
    attack(FileDescriptor(dup(session.get())), "x", MSG_OOB);
    attack(Connect(daemon->sideband_socket(), SOCK_SEQPACKET), "x");
    attack(Connect(daemon->admin_socket(), SOCK_STREAM), preface);
    EXPECT_EQ(sent >= 13, old_kernel) << sent << " of 17 were sent";
    const auto begun = Clock::now();
    Clock::duration slowest{};
    for (int i = 0; Clock::now() < begun + milliseconds(1500); ++i) {
      slowest = std::max(slowest, victim.Call());
      EXPECT_TRUE(HealthyWithin(*daemon, seconds(3)));
      const auto another = SidebandClient::Connect(daemon->sideband_socket(), seconds(3));
      EXPECT_TRUE(another.ok()) << another.status();
      EXPECT_TRUE(another.ok() && (*another)->OpenSession().ok());
    }
    EXPECT_LT(slowest, kStallMax);
    EXPECT_LT(Clock::now() - begun, seconds(kLinger_s / 2));
    attackers.clear();
    EXPECT_EQ(daemon->Terminate(), 0) << daemon->errors();
    EXPECT_LT(Clock::now() - begun, seconds(kLinger_s))
        << "the daemon's end waited for the descriptors";
  }
}

// There are more such descriptors than the daemon may have open files, and more connections than
// one process may have.
TEST_F(LingeringDescriptorTest, HundredsUseUpNoDescriptors) {
  constexpr int kAll = 400;
  const auto daemon = Start(256, {"--fault-points", "socket.rights=error"});
  Victim victim(*daemon);
  victim.Call();
  const auto begun = Clock::now();
  std::vector<FileDescriptor> attackers;
  std::vector<std::unique_ptr<LingeringSocket>> hurts;
  for (int i = 0; i < kAll; ++i) {
    hurts.push_back(std::make_unique<LingeringSocket>(kLinger_s));
    attackers.push_back(i % 2 == 0 ? Connect(daemon->data_socket(), SOCK_STREAM)
                                   : Connect(daemon->sideband_socket(), SOCK_SEQPACKET));
    (void)hurts.back()->SendTo(attackers.back().get(), "x");
  }
  EXPECT_LT(victim.Call(), kStallMax);
  EXPECT_TRUE(HealthyWithin(*daemon, seconds(3))) << "a new connection";
  EXPECT_TRUE(Eventually(
      [&] { return SidebandClient::Connect(daemon->sideband_socket(), seconds(3)).ok(); },
      seconds(3)));
  EXPECT_TRUE(Eventually(
      [&] {
        return daemon->Metric("larder_descriptors{what=\"closing\"}") +
                   daemon->Metric("larder_descriptors{what=\"to_close\"}") ==
               0;
      },
      seconds(3)));
  EXPECT_EQ(daemon->Metric("larder_connections_refused_total{cause=\"data_no_descriptor\"}"), 0);
  EXPECT_EQ(daemon->Metric("larder_sideband_refused_total{cause=\"no_descriptor\"}"), 0);
  EXPECT_LT(Clock::now() - begun, seconds(kLinger_s / 2));
  EXPECT_EQ(daemon->Terminate(), 0) << daemon->errors();
}

}  // namespace
}  // namespace larder::e2e
