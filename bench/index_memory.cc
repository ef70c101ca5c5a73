// How much memory does a block take in the index, and how much does its metadata take?  Measured as
// the growth of this process' resident memory.
#include <unistd.h>

#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/harness/harness.h"
#include "bench/harness/lookup_keys.h"
#include "storage/check.h"
#include "storage/index/block_index.h"

namespace larder::bench {
namespace {

constexpr char kIndex[] = "index_bytes_per_block";
constexpr char kMetadata[] = "index_metadata_bytes_per_block";
constexpr uint32_t kMetadataBlocks = 200'000;
constexpr uint32_t kTokens = 32;
constexpr uint32_t kSegments = 30;

uint64_t ResidentBytes() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void MeasureIndex(Harness& harness, uint64_t blocks) {
  const uint64_t before = ResidentBytes();
  BlockIndex index;
  const auto variant = index.InternVariant(FillerDigest(0));
  LARDER_CHECK(variant.ok());
  for (uint64_t i = 0; i < blocks; ++i) {
    BlockIndex::NewBlock block;
    block.variant = *variant;
    block.digest = FillerDigest(i + 1);
    block.extent = {SlabId{1}, static_cast<uint32_t>(i % 10'000), 1};
    LARDER_CHECK(index.Insert(std::move(block), 1) == BlockIndex::InsertResult::kInserted);
  }
  const double each = static_cast<double>(ResidentBytes() - before) / static_cast<double>(blocks);
  harness.Report({kIndex, each, "B", std::nullopt, std::nullopt, 1});
  harness.Note(absl::StrCat(
      blocks, " blocks; the index itself says ",
      static_cast<double>(index.memory_bytes().value()) / static_cast<double>(blocks), " B"));
}

void MeasureMetadata(Harness& harness) {
  std::vector<std::unique_ptr<const BlockMetadata>> all(kMetadataBlocks);
  std::vector<uint32_t> tokens(kTokens, 7);
  const SegmentTable table = UniformTable(kSegments, 4096);
  const uint64_t before = ResidentBytes();
  for (uint32_t i = 0; i < kMetadataBlocks; ++i)
    all[i] = BlockMetadata::Make(FillerDigest(i), tokens, table);
  const double each = static_cast<double>(ResidentBytes() - before) / kMetadataBlocks;
  harness.Report({kMetadata, each, "B", std::nullopt, std::nullopt, 1});
  harness.Note(absl::StrCat("blocks of ", kTokens, " tokens and ", kSegments,
                            " segments; in addition to the index"));
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv, {kIndex, kMetadata});
  if (harness.done()) return *harness.done();
  if (harness.Wants(kIndex)) MeasureIndex(harness, harness.quick() ? 1'000'000 : 10'000'000);
  if (harness.Wants(kMetadata)) MeasureMetadata(harness);
  return 0;
}
