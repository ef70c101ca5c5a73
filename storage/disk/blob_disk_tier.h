// The disk tier's other shape: payloads as RocksDB blobs, one value for each quarter of a block's
// segments.  Here to be compared with FileDiskTier by the same suite and the same benchmark.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "storage/disk/block_catalog.h"
#include "storage/disk/disk_tier.h"

namespace larder {

class BlobDiskTier final : public DiskTier {
 public:
  struct Options {
    std::string directory;
    ByteCount limit;
    ByteCount memory = MiB(64);
  };
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlobDiskTier>> Open(const Options& options);
  ~BlobDiskTier() override;

  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override;
  void Erase(std::span<const DiskAddress> blocks) override;
  void Describe(std::span<const DiskAddress> blocks,
                std::span<std::optional<Description>> out) override;
  [[nodiscard]] GetStatus Get(const Read& read) override;
  [[nodiscard]] absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                     absl::FunctionRef<bool()> stop) override;
  void SetOwner(DiskLocation, uint32_t) override {}
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount,
                                                  absl::FunctionRef<bool(uint32_t)>) override {
    return {};
  }
  [[nodiscard]] absl::Status PutFact(const std::string& key, const std::string& value) override;
  void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) override;
  [[nodiscard]] ByteCount block_bytes_max() const override { return MiB(64); }
  [[nodiscard]] Stats stats() const override;

 private:
  struct Blobs;
  explicit BlobDiskTier(const Options& options);

  const Options options_;
  FaultPoints faults_;
  CatalogMemory memory_;
  std::unique_ptr<BlockCatalog> catalog_;
  std::unique_ptr<Blobs> blobs_;
  std::atomic<bool> recovered_{false};
  std::atomic<uint32_t> next_{1};
  std::atomic<uint64_t> used_{0}, blocks_{0}, puts_{0}, erased_{0}, put_bytes_{0};
};

}  // namespace larder
