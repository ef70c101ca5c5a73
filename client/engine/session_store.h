// A PageStore over the session that a SessionKeeper keeps.  Promises answer its lookups, and a
// PagedCache moves its blocks.
//
// A content is registered with a session when its first block is stored there.
// Ownership: owns the keeper; the device and its pages are the caller's and outlive the store.
// Thread-safety: that of PageStore.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "client/engine/device_reporter.h"
#include "client/engine/directive_inbox.h"
#include "client/engine/page_store.h"
#include "client/engine/session_keeper.h"
#include "client/paged_cache.h"
#include "cuda/device.h"

namespace larder {

class SessionStore final : public PageStore {
 public:
  // The pages of a worker.  A scheduler has none, and makes no Mover.
  struct Pages {
    Device* device = nullptr;
    PagedLayout engine;
    PayloadLayout payload;
    size_t variant = 0;  // of SessionKeeper::Options::variants: the one that these pages hold
    PagedCacheOptions options = {};
  };
  struct Options {
    SessionKeeper::Options keeper;
    std::optional<Pages> pages = {};
    std::chrono::milliseconds promise_life{60'000};
    // If set, the store tells the daemon what the engine has in its own memory (device()).
    std::optional<DeviceReporter::Options> device = {};
    // If not null, the engine takes from it what the daemon asks it to do with these blocks.  The
    // store closes it when the store is destroyed.
    std::shared_ptr<DirectiveInbox> directives = nullptr;
  };
  // Returns InvalidArgument if the pages do not fit the variant or the payload.
  [[nodiscard]] static absl::Status Check(const Options& options);
  // Checks the options.  Does not wait for the daemon.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionStore>> Make(Options options);
  ~SessionStore() override;

  [[nodiscard]] absl::Status status() const override { return keeper_.status(); }
  [[nodiscard]] std::optional<Digest> Seed(ContentSpec content) const override;
  // Asks for all variants of the keeper's options together.
  [[nodiscard]] std::unique_ptr<Question> Ask(std::span<const Digest> steps,
                                              TokenCount first_token) override;
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Mover>> MakeMover() override;

  [[nodiscard]] SessionKeeper& keeper() { return keeper_; }
  // Null unless Options::device was set.
  [[nodiscard]] DeviceReporter* device() { return device_.get(); }

 private:
  class Asked;
  class Moves;
  explicit SessionStore(Options options);

  const std::optional<Pages> pages_;
  const std::chrono::milliseconds promise_life_;
  const std::shared_ptr<DirectiveInbox> directives_;
  SessionKeeper keeper_;
  std::unique_ptr<DeviceReporter> device_;  // uses keeper_
};

}  // namespace larder
