// How a channel gets its connection while the daemon is slow or refuses connections.
#include "client/rpc/rpc_channel.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "gtest/gtest.h"
#include "proto/frames/file_descriptor.h"
#include "storage/check.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

// Listens at a socket file and never sends anything on a connection: it keeps each connection open,
// or ends it at once.
class MuteListener {
 public:
  explicit MuteListener(bool keeps) : keeps_(keeps) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    LARDER_CHECK(path().size() < sizeof address.sun_path);
    std::strcpy(address.sun_path, path().c_str());
    LARDER_CHECK(listener_.get() >= 0);
    LARDER_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    LARDER_CHECK(listen(listener_.get(), 16) == 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~MuteListener() {
    (void)shutdown(listener_.get(), SHUT_RDWR);  // makes accept fail
    thread_.join();
  }
  [[nodiscard]] std::string path() const { return folder_.File("data.sock"); }
  [[nodiscard]] int connections() const { return connections_; }

 private:
  void Serve() {
    for (;;) {
      FileDescriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection) return;
      ++connections_;
      if (keeps_) kept_.push_back(std::move(connection));
    }
  }

  const bool keeps_;
  const TemporarySocketDirectory folder_;
  const FileDescriptor listener_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::vector<FileDescriptor> kept_;  // used by the thread only
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

// A connection that the client gives up stays in the queue of a daemon that is already slow, so the
// client must not give up early and connect again.
TEST(RpcChannelTest, ASlowDaemonGetsOneConnection) {
  const MuteListener slow(/*keeps=*/true);
  RpcChannel channel({.socket_path = slow.path()});
  EXPECT_FALSE(channel.WaitConnected(milliseconds(1'500)).ok());
  EXPECT_EQ(slow.connections(), 1);
}

// The channel tries about 10 times in a second, because gRPC pauses at least 100 ms.  With growing
// pauses, gRPC's default, it would try a dozen times in 20 s.
TEST(RpcChannelTest, ARefusedClientKeepsConnecting) {
  const MuteListener full(/*keeps=*/false);
  RpcChannel channel({.socket_path = full.path()});
  int seconds = 0;
  for (; seconds < 20 && full.connections() <= 25; ++seconds) {
    EXPECT_FALSE(channel.WaitConnected(milliseconds(1'000)).ok());
  }
  EXPECT_GT(full.connections(), 25);
  EXPECT_LT(full.connections(), 15 * (seconds + 1));
}

// Returns how a call of a method that is not served ends, within half a second.
absl::StatusCode CodeOfCall(RpcChannel& channel) {
  const auto ask = [&channel](grpc::ClientContext& context) {
    grpc::GenericStub stub(channel.channel());
    grpc::CompletionQueue queue;
    const grpc::ByteBuffer request(nullptr, 0);
    const auto call = stub.PrepareUnaryCall(&context, "/a/B", request, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    LARDER_CHECK(queue.Next(&tag, &ok));
    return status;
  };
  return channel.Call(CallLimits(milliseconds(500)), ask).code();
}

// With AwaitConnection a call waits for the first connection, but no longer than its own deadline.
TEST(RpcChannelTest, CallsWaitForTheFirstConnection) {
  const MuteListener full(/*keeps=*/false);
  RpcChannel patient({.socket_path = full.path(), .retries_max = 0});
  patient.AwaitConnection(milliseconds(50));
  EXPECT_EQ(CodeOfCall(patient), absl::StatusCode::kDeadlineExceeded);
  RpcChannel plain({.socket_path = full.path(), .retries_max = 0});
  EXPECT_EQ(CodeOfCall(plain), absl::StatusCode::kUnavailable);
}

// An engine computes for longer than an attempt to connect may take, and then makes a call.  No
// thread was in gRPC meanwhile, so the attempt has failed.
TEST(RpcChannelTest, AnAttemptThatFailedBeforeTheCallIsNotAnError) {
  const MuteListener listener(/*keeps=*/true);
  RpcChannel channel({.socket_path = listener.path(), .retries_max = 0});
  channel.AwaitConnection(milliseconds(50));
  std::this_thread::sleep_for(milliseconds(5'500));
  EXPECT_EQ(CodeOfCall(channel), absl::StatusCode::kDeadlineExceeded);
}

TEST(RpcChannelTest, WithoutADaemonTheErrorNamesThePath) {
  RpcChannel channel({.socket_path = "/nowhere/data.sock"});
  const absl::Status status = channel.WaitConnected(milliseconds(300));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("/nowhere/data.sock"), std::string::npos) << status;
}

}  // namespace
}  // namespace larder
