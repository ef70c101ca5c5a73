#include "storage/disk/blob_disk_tier.h"

#include "tests/contract/disk_tier_contract.h"
#include "tests/storage/disk/temporary_directory.h"

namespace larder::testing {
namespace {

class BlobMaker final : public DiskTierMaker {
 public:
  [[nodiscard]] std::unique_ptr<DiskTier> Make() override {
    BlobDiskTier::Options options;
    options.directory = directory_.path() + "/disk";
    options.limit = kLimit;
    auto tier = BlobDiskTier::Open(options);
    LARDER_CHECK(tier.ok());
    return *std::move(tier);
  }

 private:
  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Blob, DiskTierContract,
                         ::testing::Values([] { return std::make_unique<BlobMaker>(); }));

}  // namespace
}  // namespace larder::testing
