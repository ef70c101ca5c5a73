#include "storage/disk/memory_disk_tier.h"

#include "tests/contract/disk_tier_contract.h"

namespace larder::testing {
namespace {

class MemoryMaker final : public DiskTierMaker {
 public:
  [[nodiscard]] std::unique_ptr<DiskTier> Make() override {
    return std::make_unique<MemoryDiskTier>(kLimit, medium_);
  }

 private:
  MemoryDiskTier::Medium medium_;
};

INSTANTIATE_TEST_SUITE_P(Memory, DiskTierContract,
                         ::testing::Values([] { return std::make_unique<MemoryMaker>(); }));

}  // namespace
}  // namespace larder::testing
