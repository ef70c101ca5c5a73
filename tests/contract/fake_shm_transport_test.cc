// ShmTransport over a fake daemon, which consists of a few maps and a thread.
#include "client/session/session_core.h"
#include "client/transport/copy_pool.h"
#include "client/transport/shm_transport.h"
#include "tests/client/session/fake_daemon.h"
#include "tests/contract/transport_contract.h"
#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

class FakeShmWorld final : public TransportWorld {
 public:
  FakeShmWorld(const FakeDaemon::Options& options, uint32_t copy_threads, bool accept_encoded)
      : by_copies_(options.read_mode == ReadMode::kCopied),
        daemon_(std::make_shared<FakeDaemon>(options)),
        core_(daemon_),
        pool_(copy_threads),
        transport_(core_, AllKernels().back(), pool_, accept_encoded) {
    EXPECT_TRUE(daemon_->Attach(core_).ok());
  }
  ~FakeShmWorld() override {
    core_.Close();
    daemon_->Stop();
    EXPECT_EQ(daemon_->leases(), 0u);
    EXPECT_EQ(daemon_->open_extents(), 0u);
    if (by_copies_) {
      EXPECT_EQ(daemon_->slabs_mapped(), 0u);
    }
  }
  Transport& transport() override { return transport_; }
  FakeDaemon& daemon() { return *daemon_; }
  VariantHandle Register(ContentSpec content, const VariantSpec& spec, Digest* seed) override {
    content.tenant = "default";
    *seed = content.Id();
    OpenCall call = core_.Open();
    wire::Up up;
    up.registers.push_back({call.id(), {content}, {spec}});
    EXPECT_TRUE(core_.Send(std::move(up)).ok());
    const auto answer =
        call.Wait<wire::Registered>(std::chrono::steady_clock::now() + std::chrono::seconds(10));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return {answer->variants.at(0), spec.Id(), spec};
  }

 private:
  const bool by_copies_;
  std::shared_ptr<FakeDaemon> daemon_;
  SessionCore core_;
  CopyPool pool_;
  ShmTransport transport_;
};

TransportRoad Road(std::string name, const FakeDaemon::Options& options,
                   uint32_t copy_threads = 1) {
  return {std::move(name), [options, copy_threads] {
            return std::make_unique<FakeShmWorld>(options, copy_threads, options.encodes);
          }};
}

const FakeDaemon::Options kByCopies{.write_mode = WriteMode::kStaged,
                                    .read_mode = ReadMode::kCopied};

INSTANTIATE_TEST_SUITE_P(
    FakeShm, TransportContract,
    ::testing::Values(Road("mapped", {}), Road("mapped_checked", {.tables = true}),
                      Road("mapped_three_threads", {.tables = true}, 3),
                      Road("mapped_encoded", {.encodes = true}, 2),
                      Road("staged", {.write_mode = WriteMode::kStaged}),
                      Road("staged_checked", {.write_mode = WriteMode::kStaged, .tables = true}),
                      Road("copied", kByCopies), Road("copied_three_threads", kByCopies, 3),
                      Road("copied_encoded", {.write_mode = WriteMode::kStaged,
                                              .read_mode = ReadMode::kCopied,
                                              .encodes = true})),
    [](const auto& road) { return road.param.name; });

// A daemon that announces wrong lengths or hashes, or grants a codec that the client did not
// accept.
class EncodedGrants : public ::testing::Test {
 protected:
  // Returns the status of a Get after `tamper` has changed the grant.
  BlockStatus Get(bool accept, std::function<void(SegmentTable&)> tamper) {
    FakeShmWorld world({.encodes = true}, 1, accept);
    Transport& transport = world.transport();
    Digest seed;
    const VariantHandle variant = world.Register(
        {.tenant = {}, .model = "m", .revision = {}, .salt = {}, .lora = {}, .multimodal = {}},
        testing::TestVariant(), &seed);
    const std::vector<uint32_t> tokens = testing::TestTokens(1);
    const std::vector<std::byte> bytes(100'000, std::byte{5});
    const std::span<const std::byte> segment = bytes;
    const Digest name = Chain(seed, tokens).back();
    const PutBlock put{.digest = name, .parent = seed, .tokens = tokens, .segments = {&segment, 1}};
    EXPECT_EQ(*transport.Put(variant, {&put, 1}, {}), std::vector{BlockStatus::kOk});
    EXPECT_EQ(world.daemon().encoded(), 1u);
    world.daemon().SetTamper([&](wire::Down& down) {
      for (wire::Grant& grant : down.grants) {
        if (grant.blocks.at(0).table) tamper(*grant.blocks[0].table);
      }
    });
    std::vector<std::byte> got(bytes.size());
    const std::span<std::byte> to = got;
    const GetBlock get{.digest = name, .segments = {&to, 1}};
    const auto status = transport.Get(variant, {&get, 1}, {});
    world.daemon().SetTamper({});
    EXPECT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->at(0) == BlockStatus::kOk, got == bytes);
    return status->at(0);
  }
};

TEST_F(EncodedGrants, AreCheckedBeforeTheyAreDecoded) {
  const auto segment = [](auto change) {
    return [change](SegmentTable& table) { change(table.segments.at(0)); };
  };
  EXPECT_EQ(Get(true, [](SegmentTable&) {}), BlockStatus::kOk);
  EXPECT_EQ(Get(false, [](SegmentTable&) {}), BlockStatus::kInvalid)
      << "the client did not accept the codec";
  EXPECT_EQ(Get(true, [](SegmentTable& table) { table.hashed = false; }), BlockStatus::kInvalid);
  EXPECT_EQ(Get(true, segment([](Segment& s) { ++s.raw_bytes; })), BlockStatus::kInvalid);
  EXPECT_EQ(Get(true, segment([](Segment& s) { ++s.bytes; })), BlockStatus::kInvalid);
  EXPECT_EQ(Get(true, segment([](Segment& s) { s.codec = Codec::kJoint; })), BlockStatus::kInvalid);
  EXPECT_EQ(Get(true, segment([](Segment& s) { ++s.xxh3; })), BlockStatus::kDamaged);
}

}  // namespace
}  // namespace larder
