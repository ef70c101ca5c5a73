// ShmTransport over a daemon that is a few maps and a thread.
#include "client/copy_pool.h"
#include "client/session_core.h"
#include "client/transport/shm_transport.h"
#include "tests/client/fake_daemon.h"
#include "tests/contract/transport_contract.h"

namespace larder {
namespace {

class FakeShmWorld final : public TransportWorld {
 public:
  FakeShmWorld(const FakeDaemon::Options& options, uint32_t copy_threads)
      : daemon_(std::make_shared<FakeDaemon>(options)),
        core_(daemon_),
        pool_(copy_threads),
        transport_(core_, AllKernels().back(), pool_) {
    EXPECT_TRUE(daemon_->Attach(core_).ok());
  }
  ~FakeShmWorld() override {
    core_.Close();
    daemon_->Stop();
    EXPECT_EQ(daemon_->leases(), 0u);
    EXPECT_EQ(daemon_->open_extents(), 0u);
  }
  Transport& transport() override { return transport_; }
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
  std::shared_ptr<FakeDaemon> daemon_;
  SessionCore core_;
  CopyPool pool_;
  ShmTransport transport_;
};

TransportRoad Road(std::string name, const FakeDaemon::Options& options,
                   uint32_t copy_threads = 1) {
  return {std::move(name), [options, copy_threads] {
            return std::make_unique<FakeShmWorld>(options, copy_threads);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    FakeShm, TransportContract,
    ::testing::Values(Road("mapped", {}), Road("mapped_checked", {.tables = true}),
                      Road("mapped_three_threads", {.tables = true}, 3),
                      Road("staged", {.write_mode = WriteMode::kStaged}),
                      Road("staged_checked", {.write_mode = WriteMode::kStaged, .tables = true})),
    [](const auto& road) { return road.param.name; });

}  // namespace
}  // namespace larder
