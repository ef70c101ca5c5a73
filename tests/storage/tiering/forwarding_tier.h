// A disk tier that forwards to another one.  A derived class overrides a method or two.
#pragma once

#include <string>
#include <vector>

#include "storage/disk/disk_tier.h"

namespace larder::testing {

class ForwardingTier : public DiskTier {
 public:
  explicit ForwardingTier(DiskTier& to) : to_(to) {}  // `to` outlives it

  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override {
    to_.Put(blocks, results);
  }
  [[nodiscard]] absl::Status Erase(std::span<const DiskAddress> blocks) override {
    return to_.Erase(blocks);
  }
  [[nodiscard]] absl::Status Forget(std::span<const DiskAddress> blocks) override {
    return to_.Forget(blocks);
  }
  [[nodiscard]] absl::Status SyncErasures() override { return to_.SyncErasures(); }
  [[nodiscard]] absl::Status Describe(std::span<const DiskAddress> blocks,
                                      std::span<std::optional<Description>> out) override {
    return to_.Describe(blocks, out);
  }
  [[nodiscard]] absl::StatusOr<std::optional<Description>> FindUntold(
      const BlockKey& key) override {
    return to_.FindUntold(key);
  }
  [[nodiscard]] GetStatus Get(const Read& read) override { return to_.Get(read); }
  [[nodiscard]] absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                     absl::FunctionRef<bool()> stop) override {
    return to_.Recover(owner_of, stop);
  }
  void SetOwner(DiskLocation location, uint32_t owner) override { to_.SetOwner(location, owner); }
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount payload_bytes, WorthOf worth) override {
    return to_.FindVictims(payload_bytes, worth);
  }
  [[nodiscard]] absl::Status PutFacts(std::span<const Fact> facts) override {
    return to_.PutFacts(facts);
  }
  void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) override {
    to_.ForEachFact(visit);
  }
  [[nodiscard]] ByteCount block_bytes_max() const override { return to_.block_bytes_max(); }
  [[nodiscard]] ByteCount free_bytes() const override { return to_.free_bytes(); }
  [[nodiscard]] ByteCount batch_bytes() const override { return to_.batch_bytes(); }
  [[nodiscard]] Stats stats() const override { return to_.stats(); }

 private:
  DiskTier& to_;
};

}  // namespace larder::testing
