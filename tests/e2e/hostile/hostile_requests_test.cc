// Requests and answers of single calls that would take far more memory than their length.  The
// daemon estimates and charges the memory of a request before it parses it, and charges an answer
// until the client has read it.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/e2e/support/hostile_fixture.h"
#include "tests/e2e/support/open_call.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

// Returns `bytes` bytes: a group that none of the daemon's messages has, full of empty fields.
std::string EmptyThings(size_t bytes) {
  std::string text = "\x73";  // field 14, a group
  while (text.size() + 3 <= bytes) text += std::string("\x0a\x00", 2);
  return text + "\x74";
}
// Returns `bytes` bytes of empty strings under a field number that none of the daemon's messages
// has.
std::string UnknownThings(size_t bytes) {
  std::string text;
  while (text.size() + 3 <= bytes) text += std::string("\x8a\x7d\x00", 3);  // field 2,001
  return text;
}

// Returns every method of data.sock and control.sock, each with a channel to a socket that serves
// it.
std::vector<std::pair<std::string, std::shared_ptr<grpc::Channel>>> Methods(
    const DaemonProcess& daemon) {
  std::vector<std::pair<std::string, std::shared_ptr<grpc::Channel>>> methods;
  const auto add = [&](const google::protobuf::FileDescriptor& file,
                       const std::shared_ptr<grpc::Channel>& channel) {
    const google::protobuf::ServiceDescriptor& service = *file.service(0);
    for (int i = 0; i < service.method_count(); ++i)
      methods.emplace_back("/" + service.full_name() + "/" + service.method(i)->name(), channel);
  };
  add(*v1::Up::descriptor()->file(), daemon.DataChannel());
  add(*v1::LookupRequest::descriptor()->file(), daemon.ControlChannel());
  return methods;
}

// Returns the peak memory of a process since the last call, or 0 if the kernel does not report it.
uint64_t PeakSince(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  std::ifstream status(proc + "/status");
  uint64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) kib = std::stoull(line.substr(6));
  }
  std::ofstream(proc + "/clear_refs") << 5;
  return kib << 10;
}

class HostileRequest : public HostileTest {};

TEST_F(HostileRequest, ARequestThatWouldTakeTooMuchMemoryIsNotParsed) {
  for (const std::string& text : {EmptyThings(100 << 10), UnknownThings(100 << 10)}) {
    for (const auto& [method, channel] : Methods(*daemon_)) {
      const uint64_t invalid = Invalid();
      const grpc::Status status = OpenCall(channel, method, text).End();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(status.error_message(), HasSubstr("would take more than")) << method;
      EXPECT_EQ(Invalid(), invalid + 1) << method;
    }
  }
}

TEST_F(HostileRequest, GarbageIsRefused) {
  for (const auto& [method, channel] : Methods(*daemon_)) {
    const grpc::Status status = OpenCall(channel, method, "\xff\xff\xff\xff garbage").End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method << ": " << status.error_message();
    EXPECT_FALSE(status.error_message().empty()) << method;
  }
}

// Requests of 15 MiB that would take half a GiB if they were parsed.
TEST_F(HostileRequest, TakesLittleMoreThanItsLength) {
  constexpr uint64_t kLength = 15 << 20;
  (void)PeakSince(daemon_->pid());
  const uint64_t before = PeakSince(daemon_->pid());
  if (before == 0) GTEST_SKIP() << "this kernel does not report the peak memory of a process";
  for (const std::string& text : {EmptyThings(kLength), UnknownThings(kLength)}) {
    for (const auto& [method, channel] : Methods(*daemon_)) {
      (void)OpenCall(channel, method, text).End();
      const uint64_t peak = PeakSince(daemon_->pid());
      EXPECT_LT(peak, before + testing::MemoryBound(4 * kLength)) << method;
    }
  }
}

// 15 MiB of zeros are 15 KiB when compressed.
TEST_F(HostileRequest, IsNotDecompressed) {
  const grpc::Slice zeros(std::string(15 << 20, '\0'));
  (void)PeakSince(daemon_->pid());
  const uint64_t before = PeakSince(daemon_->pid());
  for (const auto& [method, channel] : Methods(*daemon_)) {
    OpenCall call(channel, method, zeros, {.gzip = true});
    const grpc::Status status = call.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("gzip")) << method;
    EXPECT_LT(PeakSince(daemon_->pid()), before + (8 << 20)) << method;
  }
}

// A call keeps the identity that its caller had when it began, even if the caller's sideband ends
// while the call waits.
TEST_F(HostileRequest, IsHandledEvenIfItsSidebandEnds) {
  v1::LookupRequest request;
  wire::Encode(maker_.content, request.mutable_content());
  for (uint32_t i = 0; i < 1 << 20; ++i) request.add_tokens(i);
  const grpc::Slice bytes(request.SerializeAsString());
  for (int turn = 0; turn < 6; ++turn) {
    auto sideband = SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    std::vector<std::unique_ptr<OpenCall>> calls;
    for (int i = 0; i < 16; ++i) {
      calls.push_back(std::make_unique<OpenCall>(
          channel_, "/larder.v1.Cache/Lookup", bytes,
          OpenCall::Options{.await_sent = i < 2 * turn, .token = (*sideband)->TokenHex()}));
    }
    sideband->reset();
    for (const auto& call : calls) {
      const grpc::StatusCode code = call->End().error_code();
      EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::RESOURCE_EXHAUSTED)
          << code;
    }
    ASSERT_TRUE(daemon_->alive()) << daemon_->errors();
  }
}

// The memory for one user's incoming messages is bounded.  As many streams as a user may have must
// fit into it.
TEST(ManyStreams, OfOneUserAreAllServed) {
  constexpr int kStreams = 60;  // nearly the share of callers without a sideband, half of 128
  constexpr uint32_t kLayerBytes = 2 << 20;
  DaemonProcess daemon(std::vector<std::string>{"--pool", "1GiB", "--memory-limit", "512MiB"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  std::shared_ptr<grpc::Channel> channel;
  for (int i = 0; i < kStreams; ++i) {
    if (i % 8 == 0) channel = daemon.DataChannel();
    threads.emplace_back([&, i, channel] {
      const BlockMaker maker;
      const auto stub = v1::Engine::NewStub(channel);
      for (uint32_t number = 0; number < 3; ++number) {
        const TestBlock block = maker.Block(100 * static_cast<uint32_t>(i) + number);
        v1::StoreBlocksRequest request;
        wire::Encode(maker.content, request.mutable_content());
        wire::Encode(maker.variant, request.mutable_variant());
        request.mutable_block()->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
        wire::Encode(maker.Table(block.digest, kLayerBytes),
                     request.mutable_block()->mutable_segments());
        std::string data(size_t{2} * kLayerBytes, '\0');
        const auto bytes = std::as_writable_bytes(std::span(data));
        for (uint32_t layer = 0; layer < 2; ++layer)
          FillLayer(block.digest, layer, bytes.subspan(size_t{layer} * kLayerBytes, kLayerBytes));
        grpc::ClientContext context;
        v1::StoreBlocksReply reply;
        const auto stream = stub->StoreBlocks(&context, &reply);
        for (size_t at = 0; at < data.size(); at += 1 << 20) {
          request.set_data(data.substr(at, 1 << 20));
          if (!stream->Write(request)) break;
          request.Clear();
        }
        stream->WritesDone();
        const grpc::Status status = stream->Finish();
        EXPECT_TRUE(status.ok()) << status.error_message();
        if (status.ok() && reply.status_size() == 1 && reply.status(0) == v1::BLOCK_STATUS_OK)
          ++served;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 3 * kStreams);
}

// Short requests that name many blocks are handled by the daemon's own threads, not by gRPC's, so a
// lookup does not wait until all of them are done.
TEST(ManyBlocks, DoNotDelayALookup) {
  constexpr uint32_t kVariants = 1'000, kNames = 32;
  constexpr int kCalls = 100;
  DaemonProcess daemon(std::vector<std::string>{"--memory-limit", "1GiB"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const BlockMaker maker;
  RawSession session(daemon.DataChannel(), {.engine_id = "many"});
  v1::Up up;
  up.add_registers()->set_id(1);
  wire::Encode(maker.content, up.mutable_registers(0)->add_contents());
  for (uint32_t i = 0; i < kVariants; ++i) {
    VariantSpec variant = maker.variant;
    variant.layout += "/" + std::to_string(i);
    wire::Encode(variant, up.mutable_registers(0)->add_variants());
  }
  ASSERT_TRUE(session.Ask(up).has_value());
  std::string digests;
  for (uint32_t i = 0; i < kNames; ++i) digests += Packed(maker.Block(i).digest);
  v1::PrefetchRequest many;
  many.mutable_blocks()->set_engine_id("many");
  many.mutable_blocks()->set_digests(digests);
  const std::vector<uint32_t> tokens = maker.Block(0).tokens;
  v1::LookupRequest lookup;
  wire::Encode(maker.content, lookup.mutable_content());
  lookup.mutable_tokens()->Add(tokens.begin(), tokens.end());

  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const auto begun = Clock::now();
  const auto channel = daemon.DataChannel();
  std::vector<std::unique_ptr<OpenCall>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(
        std::make_unique<OpenCall>(channel, "/larder.v1.Cache/Prefetch", many.SerializeAsString()));
  }
  const auto held = [&] { return daemon.Metric("larder_share_held{kind=\"calls\"}"); };
  ASSERT_TRUE(Eventually([&] { return held() > kCalls / 2; }))
      << "the calls were not handed to the daemon's threads";
  const auto asked = Clock::now();
  OpenCall beside(daemon.ControlChannel(), "/larder.v1.Cache/Lookup", lookup.SerializeAsString());
  EXPECT_TRUE(beside.End().ok());
  const auto answered = Clock::now();
  EXPECT_GT(held(), 8) << "the lookup was answered after the other calls";
  int done = 0;
  for (const auto& call : calls) {
    const grpc::StatusCode code = call->End().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::RESOURCE_EXHAUSTED);
    done += code == grpc::StatusCode::OK ? 1 : 0;
  }
  std::printf("lookup: %.1f ms; %d of %d prefetches: %.0f ms\n",
              Milliseconds(answered - asked).count(), done, kCalls,
              Milliseconds(Clock::now() - begun).count());
  EXPECT_GT(done, kCalls / 2);
  EXPECT_TRUE(session.Bye().ok());
}

// A daemon in which one session holds nearly all the memory that messages may take.
class FullOfMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.serves()) << daemon_.errors();
    auto sideband = SidebandClient::Connect(daemon_.sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    sideband_ = *std::move(sideband);
    auto socket = sideband_->OpenSession();
    ASSERT_TRUE(socket.ok()) << socket.status();
    holder_ = std::make_unique<RawSocket>(*std::move(socket));
    v1::Up hello;
    hello.mutable_hello()->set_engine_id("holds");
    hello.mutable_hello()->set_role(v1::ROLE_BOTH);
    hello.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
    v1::Down attached;
    ASSERT_TRUE(holder_->Write(hello) && holder_->Read(&attached));
    // The holder's message never ends.
    const auto header = EncodeSessionFrameHeader(SessionFrameType::kMessage, 16 << 20);
    ASSERT_TRUE(holder_->WriteBytes(std::string(header.data(), header.size()) +
                                    std::string(15 << 20, '\0')));
    ASSERT_TRUE(Eventually([&] { return Held() >= 24 << 20; }));
  }
  [[nodiscard]] double Held() const {
    return daemon_.Metric("larder_share_held{kind=\"message_bytes\"}");
  }

  DaemonProcess daemon_{std::vector<std::string>{"--memory-limit", "32MiB"}};
  std::unique_ptr<SidebandClient> sideband_;
  std::unique_ptr<RawSocket> holder_;
};

TEST_F(FullOfMessages, ALongRequestIsRefusedWithARetryHint) {
  const BlockMaker maker;
  v1::LookupRequest request;
  wire::Encode(maker.content, request.mutable_content());
  for (uint32_t i = 0; i < 1 << 20; ++i) request.add_tokens(i);
  const auto channel = daemon_.DataChannel();
  const std::string text = request.SerializeAsString();
  {
    OpenCall call(channel, "/larder.v1.Cache/Lookup", text);
    const grpc::Status status = call.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("message_bytes"));
    EXPECT_TRUE(call.SaysWhenToComeBack());
  }
  v1::LookupRequest small = request;
  small.mutable_tokens()->Truncate(64);
  EXPECT_TRUE(OpenCall(channel, "/larder.v1.Cache/Lookup", small.SerializeAsString()).End().ok());
  holder_->Cancel();
  ASSERT_TRUE(Eventually([&] { return Held() == 0; }));
  EXPECT_TRUE(OpenCall(channel, "/larder.v1.Cache/Lookup", text).End().ok());
  EXPECT_TRUE(Eventually([&] { return Held() == 0; }));
}

// The client does not read the answers, which have a MiB each.
TEST(UnreadAnswers, AreChargedUntilTheyAreRead) {
  constexpr uint64_t kLimit = 64 << 20, kUnread = 16 << 20;
  DaemonProcess daemon(std::vector<std::string>{"--memory-limit", "64MiB"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const BlockMaker maker;
  v1::PrefetchRequest request;
  wire::Encode(maker.content, request.mutable_blocks()->mutable_content());
  request.mutable_blocks()->set_engine_id("engine");
  for (uint32_t i = 0; i < 1 << 20; ++i) request.mutable_blocks()->add_tokens(i);
  RawSession session(daemon.DataChannel(), {.engine_id = "engine"});
  v1::Up up;
  up.add_registers()->set_id(1);
  wire::Encode(maker.content, up.mutable_registers(0)->add_contents());
  wire::Encode(maker.variant, up.mutable_registers(0)->add_variants());
  ASSERT_TRUE(session.Ask(up).has_value());
  const std::string text = request.SerializeAsString();
  const auto held = [&] { return daemon.Metric("larder_share_held{kind=\"unread_bytes\"}"); };
  const uint64_t before = daemon.ResidentBytesBesidePool();
  {
    std::vector<std::unique_ptr<OpenCall>> calls;
    const auto channel = ChannelThatTakesLittle(daemon.data_socket());
    for (int i = 0; i < 60; ++i) {
      calls.push_back(std::make_unique<OpenCall>(channel, "/larder.v1.Cache/Prefetch", text));
      EXPECT_LE(held(), kUnread / 2) << "more than the share of one process";
    }
    EXPECT_TRUE(Eventually([&] { return daemon.Metric("larder_calls_overloaded_total") >= 30; }))
        << daemon.Metric("larder_calls_overloaded_total");
    EXPECT_GT(held(), kUnread / 4);
    EXPECT_LT(daemon.ResidentBytesBesidePool(), before + kLimit + (64 << 20));
    // A call whose answer is read ends well.
    EXPECT_TRUE(calls.front()->End().ok());
  }
  // The request of a call that was cancelled while it waited stays charged until its turn comes.
  for (const char* kind : {"calls", "message_bytes", "unread_bytes"}) {
    const std::string metric = absl::StrCat("larder_share_held{kind=\"", kind, "\"}");
    EXPECT_TRUE(Eventually([&] { return daemon.Metric(metric) == 0; }))
        << kind << ": " << daemon.Metric(metric);
  }
  const grpc::Status last = OpenCall(daemon.DataChannel(), "/larder.v1.Cache/Prefetch", text).End();
  EXPECT_TRUE(last.ok()) << last.error_message();
  EXPECT_TRUE(session.Bye().ok());
}

}  // namespace
}  // namespace larder::e2e
