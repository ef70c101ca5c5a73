// Where an EngineCache finds prefixes, and moves blocks to and from the engine's pages.
//
// There are two: SessionStore asks a daemon, LoopbackStore keeps blocks in this process, for tests
// of adapters.  One contract suite (tests/contract/engine_cache_contract.h) covers both.
//
// Thread-safety: PageStore from any thread; a Question and a Mover from one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/paged_cache.h"
#include "storage/types.h"

namespace larder {

// What lies behind so many tokens of a chain is never found.
inline constexpr TokenCount kLookupTokensMax{8'192 * kStepTokens};  // a promise's limit of steps

class PageStore {
 public:
  // Asks how long a prefix is stored.  While the question has an answer, the answer stays true,
  // because the store holds the counted blocks (client/promise.h).
  class Question {
   public:
    virtual ~Question() = default;
    // Takes in what has arrived, without waiting.  Returns true while there is an answer; the other
    // methods may be called then.  If the store stops to hold the blocks, for example because a
    // promise has ended, it asks again by itself, and Poll returns false until the new answer.
    [[nodiscard]] virtual bool Poll() = 0;
    // Tokens from the beginning; 0 if nothing can be loaded.
    [[nodiscard]] virtual TokenCount tokens() const = 0;
    // Under which the blocks are read; 0 if they need none.
    [[nodiscard]] virtual LeaseId promise() const = 0;
    // Blocks that have yet to be read from disk.
    [[nodiscard]] virtual size_t pending() const = 0;
    // Where the counted blocks were found, from block 0 on; blocks before first_token are kHost.
    [[nodiscard]] virtual std::vector<Tier> tiers() const = 0;
    // The asker waits no longer, although there is no answer.
    virtual void GiveUp() = 0;
  };

  struct Moved {
    std::vector<BlockStatus> status;  // by block
    // OK, or the first reason why blocks were not moved although the store may have them, or room
    // for them: it does not serve, was too slow, failed.
    absl::Status cause = absl::OkStatus();
  };

  // Hears how much of a load that goes layer by layer has come.
  class LayerArrivals {
   public:
    virtual ~LayerArrivals() = default;
    // Called on the thread that called LoadLayers, whenever more layers have come: the pages of all
    // its blocks have the first `layers` layers.  If it returns false, the others are not wanted
    // any more.
    [[nodiscard]] virtual bool Arrived(uint32_t layers) = 0;
  };

  // Moves blocks for one thread.
  class Mover {
   public:
    virtual ~Mover() = default;
    // Loads blocks into pages.  A block is kOk if all of its bytes are there; otherwise its pages
    // have undefined content.  Ends early, with kCancelled, after a stop was requested or the
    // deadline has passed.  When it returns, nothing writes to the pages any more.  `writes` may be
    // null; blocks that it refuses are kCancelled.
    [[nodiscard]] virtual Moved Load(std::span<const PagedGet> blocks, LeaseId promise,
                                     std::chrono::milliseconds deadline,
                                     const std::stop_token& stop, PageWrites* writes) = 0;
    // Loads one layer of all blocks after the other, so that an engine can compute with the first
    // layers before the last ones have come.  Ends with the first block that cannot be loaded: then
    // no block is kOk, and those without a reason of their own are kCancelled.  Otherwise as Load.
    [[nodiscard]] virtual Moved LoadLayers(std::span<const PagedGet> blocks, LeaseId promise,
                                           std::chrono::milliseconds deadline,
                                           const std::stop_token& stop,
                                           LayerArrivals& arrivals) = 0;
    // Stores blocks of a content; kOk and kDuplicate are successes.  PagedPut::content is ignored.
    // When it returns, nothing reads the pages any more.  `reads` may be null; if it does not let
    // pages be read, all blocks are kCancelled with a cause of OK, although some may be stored.
    [[nodiscard]] virtual Moved Store(std::span<const PagedPut> blocks, const ContentSpec& content,
                                      std::chrono::milliseconds deadline,
                                      const std::stop_token& stop, PageReads* reads) = 0;
    // The thread of this mover calls it about ten times a second while it has nothing to move.  The
    // mover then lets go of a session that is over, which cannot end before.
    virtual void Rest() {}
  };

  virtual ~PageStore() = default;
  // Returns OK if questions and moves are served now, otherwise why not.  Never waits.
  [[nodiscard]] virtual absl::Status status() const = 0;
  // Returns the seed of a content's chains.  Returns nullopt as long as the store has not yet
  // learned which tenant asks, which a daemon says; content.tenant is ignored.  Never waits.
  [[nodiscard]] virtual std::optional<Digest> Seed(ContentSpec content) const = 0;
  // Asks for the longest prefix of a chain, given by its steps of 16 tokens, beyond `first_token`,
  // and up to kLookupTokensMax.  Never waits.  Returns null if the question cannot be asked now.
  [[nodiscard]] virtual std::unique_ptr<Question> Ask(std::span<const Digest> steps,
                                                      TokenCount first_token) = 0;
  // Returns an error if the pages do not fit the blocks.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<Mover>> MakeMover() = 0;
};

}  // namespace larder
