// A PageStore in the memory of this process: what an adapter's tests use where there is no daemon.
//
// It keeps every block forever, and every question is answered at once.
// Ownership: the device and its pages are the caller's and outlive the store.  Thread-safety: that
// of PageStore.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/engine/page_store.h"
#include "cuda/device.h"
#include "storage/mutex.h"

namespace larder {

// The blocks that loopback stores share.  Thread-safety: all methods from any thread.
class LoopbackBlocks {
 public:
  // For tests: what goes wrong from now on.
  struct Weather {
    bool serves = true;   // otherwise nothing is asked or moved
    bool answers = true;  // otherwise questions get no answer
    bool keeps = true;    // otherwise blocks are not stored (kFull)
  };
  void Set(const Weather& weather) LARDER_EXCLUDES(mu_);
  [[nodiscard]] Weather weather() const LARDER_EXCLUDES(mu_);
  // Returns false if there is a block of this name already.
  bool Add(const Digest& digest, std::vector<std::byte> payload) LARDER_EXCLUDES(mu_);
  // Returns nullopt if there is no such block.
  [[nodiscard]] std::optional<std::vector<std::byte>> Get(const Digest& digest) const
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Has(const Digest& digest) const LARDER_EXCLUDES(mu_);
  bool Drop(const Digest& digest) LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t size() const LARDER_EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  Weather weather_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<Digest, std::vector<std::byte>> payloads_ LARDER_GUARDED_BY(mu_);
};

class LoopbackStore final : public PageStore {
 public:
  // Returns InvalidArgument if the layouts do not fit each other, Unimplemented for memory that
  // this process cannot read itself.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LoopbackStore>> Make(
      Device& device, const PagedLayout& engine, const PayloadLayout& payload,
      std::shared_ptr<LoopbackBlocks> blocks = std::make_shared<LoopbackBlocks>());
  ~LoopbackStore() override;

  [[nodiscard]] absl::Status status() const override;
  [[nodiscard]] std::optional<Digest> Seed(ContentSpec content) const override;
  [[nodiscard]] std::unique_ptr<Question> Ask(std::span<const Digest> steps,
                                              TokenCount first_token) override;
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Mover>> MakeMover() override;

 private:
  class Answer;
  class Copies;
  LoopbackStore(std::unique_ptr<const PagedPlan> plan, const PayloadLayout& payload,
                std::shared_ptr<LoopbackBlocks> blocks);

  const std::unique_ptr<const PagedPlan> plan_;
  const uint32_t block_tokens_;
  const size_t payload_bytes_;
  const std::shared_ptr<LoopbackBlocks> blocks_;
};

}  // namespace larder
