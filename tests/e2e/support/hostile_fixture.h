// One daemon for a whole program of hostile tests.  After each test the daemon must be alive and
// healthy and hold nothing.
//
// The test's own process is the client.  What a lost session held stays in quarantine until the
// client sends CLEAN, which TearDown does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/local/sideband_client.h"
#include "gtest/gtest.h"
#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/raw_session.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {

class HostileTest : public ::testing::Test {
 protected:
  static constexpr int kSessionsMax = 8;  // of one process
  // A user's callers without a sideband count as one process.
  static constexpr int kUnnamedSessionsMax = kSessionsMax;
  static constexpr uint32_t kLayerBytes = 5000;  // no multiple of anything

  static void SetUpTestSuite() {
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{
        "--sessions-max", std::to_string(2 * kSessionsMax), "--check-host-reads", "always"});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
    daemon_.reset();
  }

  void SetUp() override {
    channel_ = daemon_->DataChannel();
    auto sideband = SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    sideband_ = *std::move(sideband);
  }
  void TearDown() override {
    ASSERT_TRUE(daemon_->alive()) << daemon_->errors();
    EXPECT_TRUE(Eventually([] { return daemon_->Tenant().sessions() == 0; }));
    for (const SessionId session : attached_) EXPECT_TRUE(sideband_->Clean(session).ok());
    EXPECT_TRUE(Eventually([] { return HoldsNothing(daemon_->Tenant()); }))
        << daemon_->Tenant().ShortDebugString();
    EXPECT_EQ(daemon_->Health(), "SERVING");
  }

  static bool HoldsNothing(const v1::TenantStats& t) {
    return t.pool_limit() > 0 && t.leases() == 0 && t.reservations() == 0 &&
           t.pool_reserved() == 0 && t.pool_leased() == 0 && t.pool_quarantined() == 0 &&
           t.sessions() == 0 && t.pool_stored() + t.pool_free() == t.pool_limit();
  }
  static uint64_t Counter(const std::string& name) {
    const v1::StatsReply stats = daemon_->Stats();
    const auto found = stats.counters().find(name);
    EXPECT_NE(found, stats.counters().end()) << "no counter " << name;
    return found == stats.counters().end() ? 0 : found->second;
  }
  static uint64_t Invalid() { return Counter("larder_invalid_messages_total"); }

  // Opens the stream of a session: over gRPC, unless a subclass chooses another carrier.
  [[nodiscard]] virtual std::unique_ptr<RawStream> OpenStream(v1::WriteMode mode) {
    return std::make_unique<RawCall>(
        channel_, mode == v1::WRITE_MODE_STREAM ? std::string() : sideband_->TokenHex());
  }
  [[nodiscard]] std::unique_ptr<RawSession> Attach(v1::WriteMode mode) {
    auto session =
        std::make_unique<RawSession>(OpenStream(mode), RawSession::Options{.mode = mode});
    attached_.push_back(SessionId{session->attached().session_id()});
    return session;
  }
  // Registers the maker's content and variant.  The variant gets index 0.
  void Register(RawSession& session) const {
    v1::Up up;
    v1::Register* request = up.add_registers();
    request->set_id(1);
    wire::Encode(maker_.content, request->add_contents());
    wire::Encode(maker_.variant, request->add_variants());
    const std::optional<v1::Down> down = session.Ask(up);
    ASSERT_TRUE(down && down->registered_size() == 1);
    ASSERT_EQ(down->registered(0).status(), v1::BLOCK_STATUS_OK) << down->registered(0).message();
    ASSERT_EQ(down->registered(0).variants(0), 0u);
  }
  [[nodiscard]] static ByteCount PayloadBytes() {
    return UniformTable(2, kLayerBytes).PayloadBytes();
  }

  // Stores block `number` by a byte stream.
  void Store(uint32_t number) const {
    const TestBlock block = maker_.Block(number);
    grpc::ClientContext context;
    v1::StoreBlocksReply reply;
    const auto stub = v1::Engine::NewStub(channel_);
    const auto stream = stub->StoreBlocks(&context, &reply);
    v1::StoreBlocksRequest request = StoreHead(block);
    request.set_data(Data(block));
    stream->Write(request);
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(reply.status_size(), 1);
    ASSERT_TRUE(reply.status(0) == v1::BLOCK_STATUS_OK ||
                reply.status(0) == v1::BLOCK_STATUS_DUPLICATE);
  }
  // The first message of a stream that stores one block, without data.
  [[nodiscard]] v1::StoreBlocksRequest StoreHead(const TestBlock& block) const {
    v1::StoreBlocksRequest request;
    wire::Encode(maker_.content, request.mutable_content());
    wire::Encode(maker_.variant, request.mutable_variant());
    request.mutable_block()->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
    wire::Encode(maker_.Table(block.digest, kLayerBytes),
                 request.mutable_block()->mutable_segments());
    return request;
  }
  [[nodiscard]] static std::string Data(const TestBlock& block) {
    std::string data(size_t{2} * kLayerBytes, '\0');
    const auto bytes = std::as_writable_bytes(std::span(data));
    for (uint32_t layer = 0; layer < 2; ++layer) {
      FillLayer(block.digest, layer, bytes.subspan(size_t{layer} * kLayerBytes, kLayerBytes));
    }
    return data;
  }

  static inline std::unique_ptr<DaemonProcess> daemon_;
  const BlockMaker maker_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<SidebandClient> sideband_;
  std::vector<SessionId> attached_;  // sessions of this test, for TearDown's CLEAN
};

}  // namespace larder::e2e
