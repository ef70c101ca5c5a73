// A daemon with a disk whose metrics a test reads, and the actions that move those metrics.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/promise.h"
#include "tests/e2e/support/frozen.h"
#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {

class MetricsTest;

struct Happening {
  const char* name;
  std::vector<std::string> moves;  // samples that it must raise above zero
  void (*happen)(MetricsTest& at);
};

class MetricsTest : public VerbTest, public ::testing::WithParamInterface<Happening> {
 public:
  // What a test holds until the metrics have been checked.
  std::optional<Lease> lease_;
  std::optional<Reservation> reservation_;
  std::optional<Promise> promise_;
  std::unique_ptr<ChildEngine> engine_;
  std::unique_ptr<RawSession> raw_;
  FileDescriptor socket_;
  std::vector<std::shared_ptr<grpc::Channel>> connections_;
  VariantHandle device_variant_;

  using DiskTest::Attach;
  using DiskTest::daemon_, DiskTest::client_, DiskTest::session_, DiskTest::folder_,
      DiskTest::maker_, DiskTest::variant_;
  using DiskTest::Get, DiskTest::Put, DiskTest::TryPut, DiskTest::PutDurable, DiskTest::QueryOf;
  using DiskTest::Start, DiskTest::StartAgain, DiskTest::StartWithOnDisk;
  using VerbTest::Ask, VerbTest::Name, VerbTest::Press;

  [[nodiscard]] bool Moved(const std::string& sample) const { return daemon_->Metric(sample) > 0; }
  void TakeLease(uint32_t number, std::chrono::milliseconds life = std::chrono::seconds(60)) {
    const Digest digest = maker_.Block(number).digest;
    auto lease = session_->Acquire(variant_, {&digest, 1}, {.life = life});
    ASSERT_TRUE(lease.ok() && lease->status(0) == BlockStatus::kOk) << lease.status();
    lease_ = *std::move(lease);
  }
  void TakeReservation(ByteCount bytes, std::chrono::milliseconds life = std::chrono::seconds(60)) {
    auto reservation = session_->Reserve({&bytes, 1}, {.life = life});
    ASSERT_TRUE(reservation.ok()) << reservation.status();
    reservation_ = *std::move(reservation);
  }
  // Attaches an engine that has block 0 in device memory and calls `before` before it answers a
  // directive.
  void AttachDevice(std::function<void()> before) {
    session_.reset();
    auto session = client_->Attach(
        {.engine_id = "gpu", .on_directive = [before](const wire::Directive& directive) {
           before();
           return std::vector(directive.digests.size(), BlockStatus::kOk);
         }});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    const auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    const Digest digest = maker_.Block(0).digest;
    ASSERT_TRUE(session_->ReportDevice(variants->front(), {.stored = {&digest, 1}}).ok());
    EXPECT_TRUE(Eventually([&] { return Moved("larder_device_blocks"); }));
    device_variant_ = variants->front();
  }
  // Reports so many blocks of that engine, and asks for all of them to be cleared once the daemon
  // has them.
  void DropFromDevice(uint32_t blocks) {
    std::vector<Digest> digests(blocks);
    for (uint32_t i = 0; i < blocks; ++i) std::memcpy(digests[i].bytes.data(), &i, sizeof i);
    ASSERT_TRUE(session_->ReportDevice(device_variant_, {.stored = digests}).ok());
    ASSERT_TRUE(Eventually([&] { return daemon_->Metric("larder_device_blocks") >= blocks; }));
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.add_tiers(v1::TIER_DEVICE);
    v1::ClearReply reply;
    (void)Ask([&](auto& stub, auto& context) { return stub.Clear(&context, request, &reply); });
  }
  void Pin(uint32_t from, uint32_t to, uint64_t ttl_ms, v1::Tier tier = v1::TIER_HOST) {
    v1::PinRequest request;
    Name(from, to, &request);
    request.set_owner("router");
    request.set_tier(tier);
    request.set_ttl_ms(ttl_ms);
    v1::PinReply reply;
    (void)Ask([&](auto& stub, auto& context) { return stub.Pin(&context, request, &reply); });
  }
  void Move(v1::Tier from, v1::Tier to) {
    v1::MoveRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.set_from(from);
    request.set_to(to);
    (void)Ask([&](auto& stub, auto& context) {
      const auto reader = stub.Move(&context, request);
      for (v1::MoveProgress progress; reader->Read(&progress);) continue;
      return reader->Finish();
    });
  }
  void Compress(v1::Tier tier, v1::Codec codec) {
    v1::CompressRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.add_tiers(tier);
    request.set_codec(codec);
    (void)Ask([&](auto& stub, auto& context) {
      const auto reader = stub.Compress(&context, request);
      for (v1::CompressProgress progress; reader->Read(&progress);) continue;
      return reader->Finish();
    });
  }
  // Watches until the daemon has told an event.
  void WatchOnce() {
    v1::WatchEventsRequest request;
    request.set_snapshot(true);
    grpc::ClientContext context;
    const auto stub = v1::Cache::NewStub(daemon_->ControlChannel());
    const auto reader = stub->WatchEvents(&context, request);
    v1::WatchEventsReply reply;
    EXPECT_TRUE(reader->Read(&reply));
    EXPECT_EQ(Put(next_++), BlockStatus::kOk);
    EXPECT_TRUE(Eventually([&] { return Moved("larder_events_told_total"); }));
  }
  uint32_t Fresh() { return next_++; }

 protected:
  void TearDown() override {
    lease_.reset();
    reservation_.reset();
  }
};

}  // namespace larder::e2e
