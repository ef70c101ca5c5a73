// The daemon as a process: the conditions under which it refuses to start, and how it ends.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "client/local/sideband_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "larder/v1/cache.grpc.pb.h"
#include "proto/frames/file_descriptor.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/raw_session.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;
using Flags = std::vector<std::string>;

// Expects that the daemon does not start, exits with this code and logs a message with `words`.
void ExpectRefused(const Flags& flags, int exit_code, const std::string& words,
                   DaemonProcess::Options options = {}) {
  options.wait = false;
  DaemonProcess daemon(flags, options);
  const std::optional<int> code = daemon.Wait();
  ASSERT_TRUE(code.has_value()) << "the daemon runs: " << daemon.errors();
  EXPECT_EQ(*code, exit_code) << daemon.errors();
  EXPECT_THAT(daemon.errors(), HasSubstr(words));
}

TEST(DaemonStart, RefusesUnknownOptionsAndInvalidValues) {
  ExpectRefused({"--pol", "64MiB"}, 2, "--pool");
  ExpectRefused({"--pool", "much"}, 2, "pool");
  ExpectRefused({"--pool", "64MiB", "surplus"}, 2, "surplus");
}

TEST(DaemonStart, RefusesAnUnknownKeyWithItsLine) {
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  std::ofstream(folder->File("larder.toml"))
      << "# all good so far\nlog_level = \"info\"\npol = \"8GiB\"\n";
  ExpectRefused({"--config", folder->File("larder.toml")}, 2, "larder.toml:3", {.folder = folder});
}

TEST(DaemonStart, RefusesToReplaceAFileAtASocketPath) {
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  std::ofstream(folder->File("data.sock")) << "another program's file";
  ExpectRefused({}, 3, "data.sock", {.folder = folder});
  std::string kept;
  std::getline(std::ifstream(folder->File("data.sock")) >> std::ws, kept);
  EXPECT_EQ(kept, "another program's file");
}

TEST(DaemonStart, RefusesToReplaceAnotherProgramsSocket) {
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  const FileDescriptor other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  folder->File("data.sock").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  ExpectRefused({}, 3, "data.sock", {.folder = folder});
  EXPECT_EQ(access(folder->File("data.sock").c_str(), F_OK), 0)
      << "the other program's socket was removed";
}

TEST(DaemonStart, RefusesASecondDaemon) {
  DaemonProcess first;
  ASSERT_TRUE(first.serves());
  ExpectRefused({}, 3, "another larderd", {.folder = first.folder()});
  EXPECT_TRUE(first.serves()) << "the second daemon disturbed the first";
  EXPECT_EQ(first.Terminate(), 0);
}

TEST(DaemonStart, RefusesAPoolThatDoesNotFitItsAddressSpace) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs terabytes of address space";
#endif
  ExpectRefused({"--pool", "4GiB", "--slab", "64MiB"}, 3, "pool",
                {.address_space_max = uint64_t{2} << 30});
}

TEST(DaemonStart, RefusesAPoolThatDoesNotFit) {
  ExpectRefused({"--pool", "4096TiB", "--slab", "0"}, 3, "pool");
}

TEST(DaemonStart, ReplacesTheSocketsOfADeadDaemon) {
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  DaemonProcess first({}, {.folder = folder});
  ASSERT_TRUE(first.serves()) << first.errors();
  const std::string boot = first.Stats().boot_id();
  first.Kill9();
  ASSERT_EQ(access(folder->File("data.sock").c_str(), F_OK), 0)
      << "a killed daemon cannot remove its socket";
  DaemonProcess second({}, {.folder = folder});
  ASSERT_TRUE(second.serves()) << second.errors();
  EXPECT_NE(second.Stats().boot_id(), boot);
  EXPECT_EQ(second.Terminate(), 0);
}

TEST(DaemonStart, StatsCountsTheProcessorTimeSinceTheStart) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const auto gauges = daemon.Stats().gauges();
  const auto seconds = gauges.find("larder_cpu_seconds_total");
  ASSERT_NE(seconds, gauges.end());
  EXPECT_GT(seconds->second, 0);
}

// The daemon calls itself every two seconds, for the first time two seconds after its start.
TEST(DaemonLife, ItsCallToItselfLeavesNoDescriptorOpen) {
  DaemonProcess daemon(Flags{});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const size_t before = daemon.OpenDescriptors();
  std::this_thread::sleep_for(std::chrono::milliseconds(2'500));
  EXPECT_TRUE(
      Eventually([&] { return daemon.OpenDescriptors() <= before; }, std::chrono::seconds(5)))
      << before << " descriptors before, now these:" << daemon.DescriptorTexts();
}

TEST(DaemonEnd, TellsAnOpenSessionToDrainAndEndsAfterItsBye) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  RawSession session(daemon.DataChannel(), {});
  ASSERT_NE(session.attached().session_id(), 0u);
  daemon.Signal(SIGTERM);
  const std::optional<v1::Down> told = session.Receive();
  ASSERT_TRUE(told.has_value());
  ASSERT_EQ(told->directives_size(), 1);
  EXPECT_EQ(told->directives(0).kind(), v1::DIRECTIVE_KIND_DRAIN);
  EXPECT_TRUE(session.Bye().ok());
  EXPECT_EQ(daemon.Wait(), 0) << daemon.errors();
}

// A session with a reservation delays the daemon's end until it gives the reservation up.
class DaemonEndHeld : public ::testing::Test {
 protected:
  void Hold(const Flags& flags) {
    daemon_ = std::make_unique<DaemonProcess>(flags);
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    auto sideband = SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    sideband_ = *std::move(sideband);
    session_ = std::make_unique<RawSession>(
        daemon_->DataChannel(),
        RawSession::Options{.token = sideband_->TokenHex(), .mode = v1::WRITE_MODE_MAPPED});
    v1::Up up;
    up.add_reserves()->set_id(1);
    up.mutable_reserves(0)->add_bytes(4096);
    const std::optional<v1::Down> down = session_->Ask(up);
    ASSERT_TRUE(down && down->reserved_size() == 1);
    reservation_ = down->reserved(0).reservation_id();
  }
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<SidebandClient> sideband_;
  std::unique_ptr<RawSession> session_;
  uint64_t reservation_ = 0;
};

TEST_F(DaemonEndHeld, HealthIsNotServingWhileTheDrainWaits) {
  Hold({});
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return daemon_->Health() == "NOT_SERVING"; }));
  EXPECT_TRUE(daemon_->alive()) << "the session still holds a reservation";
  EXPECT_TRUE(daemon_->Stats().draining());
  const auto late = RawSession(daemon_->DataChannel(), {.hello = false}).End();
  EXPECT_EQ(late.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(late.error_message(), HasSubstr("draining"));
  v1::Up up;
  up.add_aborts()->set_reservation_id(reservation_);
  session_->Send(up);
  EXPECT_TRUE(session_->End().ok()) << "the daemon ends a session that holds nothing any more";
  EXPECT_EQ(daemon_->Wait(), 0) << daemon_->errors();
}

// Calls that are under way may finish, but new ones are refused.
TEST_F(DaemonEndHeld, ByteStreamsAndPinsAreRefusedDuringADrain) {
  Hold({});
  daemon_->Signal(SIGTERM);
  const auto refused = [](const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
           status.error_message().find("larderd is draining") != std::string::npos;
  };
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::StoreBlocksReply reply;
    const auto stub = v1::Engine::NewStub(daemon_->DataChannel());
    const auto stream = stub->StoreBlocks(&context, &reply);
    stream->WritesDone();
    return refused(stream->Finish());
  }));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::PinReply reply;
    return refused(v1::Cache::NewStub(daemon_->DataChannel())->Pin(&context, {}, &reply));
  }));
  EXPECT_TRUE(daemon_->alive());
}

TEST_F(DaemonEndHeld, ADrainEndsAtItsLimit) {
  Hold({"--drain-limit", "200ms"});
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  EXPECT_EQ(session_->End().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(DaemonEndHeld, ASecondSigtermEndsTheDaemonAtOnce) {
  Hold({});
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return daemon_->Health() == "NOT_SERVING"; }));
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 1) << daemon_->errors();
}

}  // namespace
}  // namespace larder::e2e
