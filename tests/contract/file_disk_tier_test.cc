#include "storage/disk/file_disk_tier.h"

#include "tests/contract/disk_tier_contract.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

class FileMaker final : public DiskTierMaker {
 public:
  [[nodiscard]] std::unique_ptr<DiskTier> Make() override {
    FileDiskTier::Options options;
    options.directory = directory_.path() + "/disk";
    options.limit = kLimit;
    auto tier = FileDiskTier::Open(options);
    LARDER_CHECK(tier.ok());
    return *std::move(tier);
  }

 private:
  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(File, DiskTierContract,
                         ::testing::Values([] { return std::make_unique<FileMaker>(); }));

}  // namespace
}  // namespace larder::testing
