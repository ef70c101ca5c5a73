// Brings a stored prefix back into an engine: the engine computes a part of the prefix while the
// restorer loads another.  Scheduler decides which blocks are computed and which are loaded;
// Restorer moves the bytes and reads the clock.
//
//   Restorer restorer(session, variant, profile, {});
//   auto restored = restorer.Restore(prefix, engine);  // the prefix is in the engine's cache
//
// It does not promise that anything is loaded.  A block that cannot be loaded in time is computed,
// unless SchedulerOptions::computes is false.
// Ownership: The session outlives the restorer.  Bytes that arrive stay in memory of the restorer
// at least until the restore ends, unless they land directly in the engine's cache.
// Thread-safety: Restore is called from one thread at a time, which is the engine's; Cancel and
// Learnt from any thread.
// Threads: One per channel of the profile.
// Fork: In a forked child the only method that may be called is the destructor, which leaks.
// Limits: One prefix at a time.  The engine computes chunks, or parts of chunks, through all
// layers, on one stage and one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/restore/costs/profile.h"
#include "client/restore/request/options.h"
#include "storage/clock.h"

namespace larder {

// What an engine does for a restore.  All methods except Land run on the thread that called
// Restore.
class RestoreEngine {
 public:
  virtual ~RestoreEngine() = default;
  // Computes `tokens`.  When it is called, the engine's cache has all tokens before tokens.begin;
  // if blocks land in the engine, it may also have some after `tokens`.
  [[nodiscard]] virtual absl::Status Compute(TokenRange tokens) = 0;
  // Puts loaded blocks into the engine's cache, after the tokens that it has.  `tokens` are the
  // tokens of these blocks; blocks[i] is one block, with a span per layer.
  using Layers = std::span<const std::span<const std::byte>>;
  [[nodiscard]] virtual absl::Status Place(TokenRange tokens, std::span<const Layers> blocks) = 0;
  // Does the engine's other work between steps, such as decoding.  Returns false if the engine has
  // no such work now: the restorer then may sleep until there is a step.  As long as it returns
  // true and there is no step, it is called again at once.
  [[nodiscard]] virtual absl::StatusOr<bool> Between() { return false; }

  // Returns true for an engine whose blocks have their places before they arrive, such as pages of
  // a device.  Then blocks are loaded by Land, and Place gets tokens without blocks.  The
  // restorer's Options::scheduler.hedges must be false, because a block that lands cannot be
  // computed and loaded at the same time.
  [[nodiscard]] virtual bool lands() const { return false; }
  // Loads these blocks, given by their numbers in the prefix, to their places, in any order.
  // Returns a status for each; kOk means that the whole block is in its place.  Land runs on the
  // channels' threads, one call at a time for each channel.  It should end soon after a stop of
  // `call.stop` was requested.  Once it has returned, nothing may write to those places any more:
  // the engine then may compute these blocks.  Internal, InvalidArgument and Unimplemented mean
  // that no block can land, and end the restore; after any other error none of these blocks counts
  // as loaded.  The stop is requested under the restorer's lock, so a callback on it must not call
  // the restorer.
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Land(
      ChannelId /*channel*/, std::span<const uint32_t> /*blocks*/, const CallOptions& /*call*/) {
    return absl::UnimplementedError("blocks do not land in this engine");
  }
};

// What is to be restored: whole blocks, beginning with the first token.
struct RestorePrefix {
  std::span<const Digest> blocks = {};           // the last digest of each block
  std::vector<ChannelId> channel_of_block = {};  // from Lookup; kNowhere: not stored (a hole)
  std::span<const ByteCount> layer_bytes = {};   // of each layer of one block
  uint32_t chunk_tokens = 0;                     // of one step of the engine
  // Set it for an engine whose cache is the same whether it computes a chunk at once or in parts
  // that begin at multiples of `cut_tokens` tokens.  It is a number of whole blocks, and divides a
  // chunk.  A step may then be a part of a chunk, of which the other blocks are loaded.  0 means
  // that steps are whole chunks, unless Restorer::Options::step_s_max makes them shorter.
  uint32_t cut_tokens = 0;
  uint32_t suffix_tokens = 0;  // computed after the prefix; used for planning only
  LeaseId promise = {};        // that holds blocks (client/promise.h), as in CallOptions; may be 0
  // Counted from the call of Restore.  The restorer avoids loads that would end later.
  double deadline_s = kNoDeadline;
};

class Restorer {
 public:
  // To emulate a link: returns when the bytes that a channel requests at `now` arrive over it.  A
  // load counts as done at that time, or when its bytes really arrived if that is later.  Called on
  // the channels' threads.
  using Carry = std::function<TimePoint(ChannelId channel, ByteCount bytes, TimePoint now)>;
  struct Options {
    SchedulerOptions scheduler = {};  // its `engine` is set by the restorer
    // A channel requests at most about this many bytes in one batch, but at least one block.  A
    // slow channel requests fewer.  Does not apply to blocks that land in the engine.
    ByteCount room = MiB(8);
    Carry carry = {};
    // For an engine that does other work between steps (RestoreEngine::Between): about how long a
    // step may last, as predicted.  Chunks are then cut at multiples of the prefix's `cut_tokens`
    // (if it is 0, of a block).  A step has at least one such part, even if that takes longer.
    double step_s_max = kNoDeadline;
  };
  // `profile` describes the channels.
  Restorer(Session& session, VariantHandle variant, Profile profile, Options options);
  // Waits for calls that Restore has told to stop but that have not ended yet (CallOptions::stop).
  // REQUIRES: No Restore is under way.
  ~Restorer();
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // What happened to a range of tokens, for diagrams.
  struct Span {
    TokenRange tokens = {};
    ChannelId channel = ChannelId::kNowhere;  // kNowhere: computed
    double begin_s = 0, end_s = 0;            // since the call of Restore
    bool used = true;                         // false: the load failed or came too late
  };
  struct Restored {
    uint32_t computed_tokens = 0, loaded_tokens = 0;
    ByteCount bytes;       // of the loads whose blocks were used
    double restore_s = 0;  // until the whole prefix is in the cache
    double compute_s = 0;  // the part of it in which the engine computed
    double load_s = 0;     // the part of it in which any channel was loading
    std::vector<Span> spans = {};
  };
  // Returns InvalidArgument if the prefix or the options are not valid, Cancelled if Cancel ended
  // it, FailedPrecondition if `scheduler.computes` is false and a block could not be loaded.  An
  // error of Compute, Place or Between, and an error of Land that ends the restore, is returned as
  // it is.  After an error the engine's cache may have a part of the prefix.
  [[nodiscard]] absl::StatusOr<Restored> Restore(const RestorePrefix& prefix,
                                                 RestoreEngine& engine);
  // Asks a Restore that is under way to end, which it does only between methods of the engine.
  void Cancel();

  // Returns the profile with what was measured so far; the next Restore begins with it.
  [[nodiscard]] Profile Learnt() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
