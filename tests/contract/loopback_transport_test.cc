#include "client/transport/loopback_transport.h"

#include "tests/contract/transport_contract.h"

namespace larder {
namespace {

class LoopbackWorld final : public TransportWorld {
 public:
  Transport& transport() override { return transport_; }
  VariantHandle Register(ContentSpec content, const VariantSpec& spec, Digest* seed) override {
    content.tenant = "default";
    *seed = content.Id();
    return {.index = next_++, .id = spec.Id(), .spec = spec};
  }

 private:
  LoopbackTransport transport_;
  uint32_t next_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract,
                         ::testing::Values(TransportRoad{
                             "loopback", [] { return std::make_unique<LoopbackWorld>(); }}));

}  // namespace
}  // namespace larder
