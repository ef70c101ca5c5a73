// Calls every method of the contract at every socket as users of every group.  A method is served
// at the sockets that the contract names, and elsewhere refused before its request is decoded.
// Users of no group cannot connect.
//
// The expectation is written down here again, independently of the daemon's own table.  Requests
// are garbage, so that no call does anything: a method that is served fails to parse them.
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "larder/v1/admin.pb.h"
#include "larder/v1/cache.pb.h"
#include "larder/v1/engine.pb.h"
#include "storage/check.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCallsAt[] = "LARDER_TEST_CALLS_AT";  // if set: run as a caller, see main
constexpr std::array<const char*, 3> kSockets = {"data.sock", "control.sock", "admin.sock"};
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr char kUnknown[] = "/larder.v1.Cache/Burn";

using Names = std::set<std::string>;
const std::map<std::string, Names>& Served() {
  static const auto& served = *new std::map<std::string, Names>{
      {"data.sock",
       {"/larder.v1.Engine/Attach", "/larder.v1.Engine/StoreBlocks",
        "/larder.v1.Engine/FetchBlocks", "/larder.v1.Cache/Lookup",
        "/larder.v1.Cache/ListInstances", "/larder.v1.Cache/QueryIp", "/larder.v1.Cache/Pin",
        "/larder.v1.Cache/Unpin", "/larder.v1.Cache/Prefetch"}},
      {"control.sock",
       {"/larder.v1.Cache/Lookup", "/larder.v1.Cache/ListInstances", "/larder.v1.Cache/QueryIp",
        "/larder.v1.Cache/Pin", "/larder.v1.Cache/Unpin", "/larder.v1.Cache/Prefetch",
        "/larder.v1.Cache/Clear", "/larder.v1.Cache/Move", "/larder.v1.Cache/Compress",
        "/larder.v1.Cache/WatchEvents"}},
      {"admin.sock",
       {"/larder.v1.Admin/Stats", "/larder.v1.Admin/Drain", "/larder.v1.Admin/Verify",
        "/larder.v1.Admin/Config"}}};
  return served;
}

// Returns all methods of the .proto files.
Names Methods() {
  Names names;
  for (const google::protobuf::FileDescriptor* file :
       {v1::Up::descriptor()->file(), v1::PinRequest::descriptor()->file(),
        v1::StatsRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m)
        names.insert("/" + service.full_name() + "/" + service.method(m)->name());
    }
  }
  return names;
}

std::string WhereServed(const std::string& method) {
  for (const char* socket : kSockets) {
    if (Served().at(socket).contains(method)) return socket;
  }
  return "";
}

// ---- a caller, in a separate process because it has another user and other groups

grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue done;
  const auto call = stub.PrepareCall(&context, method, &done);
  const auto await = [&done] {
    void* tag = nullptr;
    bool ok = false;
    LARDER_CHECK(done.Next(&tag, &ok));
    return ok;
  };
  call->StartCall(nullptr);
  await();
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  await();
  grpc::ByteBuffer reply;
  do {  // the status follows the unread replies
    call->Read(&reply, nullptr);
  } while (await());
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  return status;
}

// Prints a line "SOCKET METHOD CODE MESSAGE" for each call.
int MakeCalls(const std::string& folder) {
  const std::string garbage = "\xff\xff\xff\xff garbage";
  for (const char* socket : kSockets) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel("unix:" + folder + "/" + socket,
                                                   grpc::InsecureChannelCredentials(), arguments);
    const auto call = [&](const std::string& method, const std::string& request) {
      const grpc::Status status = Call(channel, method, request);
      std::printf("%s %s %d %s\n", socket, method.c_str(), status.error_code(),
                  status.error_message().c_str());
    };
    for (const std::string& method : Methods()) call(method, garbage);
    call(kUnknown, garbage);
    call(kReflection, garbage);
    call(kHealth, "");
  }
  return 0;
}

struct Answer {
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
  std::string message;
};
using Answers = std::map<std::pair<std::string, std::string>, Answer>;

struct User {
  const char* name;
  uid_t uid;
  std::vector<gid_t> groups;
  Names opens;  // the socket files that the user can connect to
};

// Runs this program as a caller of that user, or of the test's own user if `user` is null.
Answers CallsOf(const User* user, const std::string& folder) {
  // By descriptor, because the user may have no access to the program's folder.
  const int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  LARDER_CHECK(program >= 0);
  std::array<int, 2> out{};
  LARDER_CHECK(pipe2(out.data(), O_CLOEXEC) == 0);
  std::string variable = std::string(kCallsAt) + "=" + folder, name = "socket_roles_test";
  const std::array<char*, 2> arguments = {name.data(), nullptr};
  const std::array<char*, 2> environment = {variable.data(), nullptr};
  const pid_t child = fork();
  LARDER_CHECK(child >= 0);
  if (child == 0) {
    if (user != nullptr && (setgroups(user->groups.size(), user->groups.data()) != 0 ||
                            setresgid(user->uid, user->uid, user->uid) != 0 ||
                            setresuid(user->uid, user->uid, user->uid) != 0))
      _exit(99);
    dup2(out[1], STDOUT_FILENO);
    fexecve(program, arguments.data(), environment.data());
    _exit(98);
  }
  close(program);
  close(out[1]);
  std::string said;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(out[0], buffer.data(), buffer.size())) > 0;)
    said.append(buffer.data(), static_cast<size_t>(got));
  close(out[0]);
  int status = 0;
  LARDER_CHECK(waitpid(child, &status, 0) == child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  Answers answers;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string socket, method, message;
    int code = -1;
    words >> socket >> method >> code;
    std::getline(words, message);
    answers[{socket, method}] = {static_cast<grpc::StatusCode>(code), message};
  }
  return answers;
}

void ExpectAsDeclared(const Answers& answers, const Names& opens, const std::string& folder) {
  for (const std::string socket : kSockets) {
    SCOPED_TRACE(socket);
    Names methods = Methods();
    methods.insert({kUnknown, kReflection, kHealth});
    for (const std::string& method : methods) {
      SCOPED_TRACE(method);
      const auto found = answers.find({socket, method});
      ASSERT_NE(found, answers.end());
      const auto& [code, message] = found->second;
      if (!opens.contains(socket)) {
        EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE) << message;
      } else if (method == kUnknown) {
        EXPECT_EQ(code, grpc::StatusCode::UNIMPLEMENTED) << message;
        EXPECT_THAT(message, HasSubstr("larderd has no method " + method));
      } else if (method == kHealth) {
        EXPECT_EQ(code, grpc::StatusCode::OK) << message;
      } else if (method == kReflection && socket == "data.sock") {
        EXPECT_EQ(code, grpc::StatusCode::UNIMPLEMENTED) << message;
      } else if (method == kReflection || Served().at(socket).contains(method)) {
        // gRPC chooses the status of a request that does not parse.
        for (const auto refused :
             {grpc::StatusCode::PERMISSION_DENIED, grpc::StatusCode::UNAVAILABLE,
              grpc::StatusCode::DEADLINE_EXCEEDED})
          EXPECT_NE(code, refused) << message;
        EXPECT_THAT(message, Not(HasSubstr("larderd has no method")));
      } else {
        EXPECT_EQ(code, grpc::StatusCode::PERMISSION_DENIED) << message;
        EXPECT_THAT(message, HasSubstr(method.substr(method.rfind('/') + 1) + " is not served at " +
                                       socket));
        EXPECT_THAT(message, HasSubstr(folder + "/" + WhereServed(method)));
      }
    }
  }
}

TEST(SocketRolesTest, TheExpectationNamesEveryMethod) {
  Names expected;
  for (const auto& [socket, methods] : Served()) expected.insert(methods.begin(), methods.end());
  EXPECT_EQ(expected, Methods());
}

TEST(SocketRolesTest, MethodsAreServedOnlyAtTheirSockets) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const Answers answers = CallsOf(nullptr, daemon.folder()->path());
  ExpectAsDeclared(answers, {kSockets.begin(), kSockets.end()}, daemon.folder()->path());
  size_t elsewhere = 0;
  for (const char* socket : kSockets) elsewhere += Methods().size() - Served().at(socket).size();
  EXPECT_EQ(daemon.Metric("larder_calls_at_wrong_socket_total"), static_cast<double>(elsewhere));
}

TEST(SocketRolesTest, UsersReachOnlyTheSocketsOfTheirGroups) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr gid_t kDataGroup = 64'001, kControlGroup = 64'002;
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  ASSERT_EQ(chmod(folder->path().c_str(), 0755), 0);
  DaemonProcess daemon(
      {"--control-socket-group", std::to_string(kControlGroup)},
      {.folder = folder, .in_child = [] { LARDER_CHECK(setgid(kDataGroup) == 0); }});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const User users[] = {
      {"an engine", 64'101, {kDataGroup}, {"data.sock"}},
      {"a router", 64'102, {kControlGroup}, {"control.sock"}},
      {"both", 64'103, {kDataGroup, kControlGroup}, {"data.sock", "control.sock"}},
      {"a stranger", 64'104, {}, {}},
      {"root", 0, {}, {kSockets.begin(), kSockets.end()}},
  };
  for (const User& user : users) {
    SCOPED_TRACE(user.name);
    ExpectAsDeclared(CallsOf(&user, folder->path()), user.opens, folder->path());
  }
}

TEST(SocketRolesTest, SocketFilesHaveTheConfiguredModes) {
  DaemonProcess daemon({"--data-socket-mode", "0666", "--control-socket-mode", "0600"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const auto mode = [&](const std::string& name) {
    struct stat file {};
    EXPECT_EQ(stat(daemon.folder()->File(name).c_str(), &file), 0) << name;
    return file.st_mode & 0777;
  };
  EXPECT_EQ(mode("data.sock"), 0666u);
  EXPECT_EQ(mode("sideband.sock"), 0666u);
  EXPECT_EQ(mode("control.sock"), 0600u);
  EXPECT_EQ(mode("admin.sock"), 0600u);
}

TEST(SocketRolesTest, AnUnknownGroupIsAnErrorAtTheStart) {
  DaemonProcess daemon({"--control-socket-group", "no-such-group"}, {.wait = false});
  EXPECT_EQ(daemon.Wait(), 3);
  EXPECT_THAT(daemon.errors(), ::testing::AllOf(HasSubstr("part=control_socket_group"),
                                                HasSubstr("no-such-group"), HasSubstr("groupadd")));
}

TEST(SocketRolesTest, AGroupWithoutTheDaemonsUserIsAnErrorAtTheStart) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  ASSERT_EQ(chown(folder->path().c_str(), 64'100, 64'100), 0);
  DaemonProcess daemon(
      {"--control-socket-group", "64002"},
      {.folder = folder, .wait = false, .in_child = [] {
         LARDER_CHECK(setgroups(0, nullptr) == 0 && setgid(64'100) == 0 && setuid(64'100) == 0);
       }});
  const std::optional<int> code = daemon.Wait();
  if (code == 127) GTEST_SKIP() << "another user cannot execute this build";
  EXPECT_EQ(code, 3);
  EXPECT_THAT(daemon.errors(),
              ::testing::AllOf(HasSubstr("control.sock cannot be given to group 64002"),
                               HasSubstr("run larderd as a user that is in that group")));
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  if (const char* folder = std::getenv(larder::e2e::kCallsAt))
    return larder::e2e::MakeCalls(folder);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
