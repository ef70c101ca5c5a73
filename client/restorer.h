// Brings a stored prefix back into an engine: the engine computes the head of the prefix while the
// restorer loads its tail.  Scheduler decides which blocks are computed and which are loaded;
// Restorer moves the bytes and reads the clock.
//
//   Restorer restorer(session, variant, profile, {});
//   auto restored = restorer.Restore(prefix, engine);  // the prefix is in the engine's cache
//
// It does not promise that anything is loaded.  A block that is missing, damaged or late is
// computed (unless SchedulerOptions::computes is false), and then the engine's cache is the same as
// if all blocks had been computed.
// Ownership: The session outlives the restorer.  Bytes that arrive stay in memory of the restorer
// at least until the restore ends, unless they land directly in the engine's cache.
// Thread-safety: Restore is called from one thread at a time, which is the engine's; Cancel and
// Learnt from any thread.
// Threads: One per channel of the profile, which sleeps while there is nothing to load.
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
  // Does the engine's other work between steps, such as decoding.  It is called before each step,
  // after each Place, and repeatedly while there is no step.  Returns false if the engine has no
  // such work now; if there is no step either, the restorer then sleeps until there is one.
  [[nodiscard]] virtual absl::StatusOr<bool> Between() { return false; }

  // Returns true for an engine whose blocks have their places before they arrive, such as pages of
  // a device.  Then blocks are loaded by Land, and Place gets tokens without blocks.  The
  // restorer's Options::scheduler.hedges must be false, because a block that lands cannot be
  // computed and loaded at the same time.
  [[nodiscard]] virtual bool lands() const { return false; }
  // Loads these blocks, given by their numbers in the prefix, to their places, in any order.
  // Returns a status for each; kOk means that the whole block is in its place and passed the checks
  // of the read.  Land runs on the channels' threads, one call at a time for each channel.  It ends
  // soon after a stop of `call.stop` was requested.  Once it has returned, nothing writes to those
  // places any more: only after that does the engine compute blocks of these places, or Restore
  // return.  If Land returns Internal, InvalidArgument or Unimplemented, Restore ends with that
  // error; after any other error none of the blocks counts as loaded.  The stop is requested under
  // the restorer's lock, so a callback on it must not call the restorer.
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
  // chunk.  A step may then be a part of a chunk, of which the other blocks are loaded; no step has
  // fewer than `cut_tokens` tokens, unless its chunk has.  0 means that steps are whole chunks,
  // unless Restorer::Options::step_s_max makes them shorter.
  uint32_t cut_tokens = 0;
  uint32_t suffix_tokens = 0;  // computed after the prefix; used for planning only
  // Counted from the call of Restore; no load begins that is predicted to end later.
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
    // For an engine that does other work between steps (RestoreEngine::Between): how long a step
    // may last, as predicted.  Chunks are then cut at multiples of the prefix's `cut_tokens` (if it
    // is 0, of a block).  A step has at least one such part, and the last step of a prefix may have
    // up to two, even if that takes longer.
    double step_s_max = kNoDeadline;
  };
  // `profile` describes the channels.
  Restorer(Session& session, VariantHandle variant, Profile profile, Options options);
  // Tells calls that are under way to stop, and waits for them.  A call that waits for an answer of
  // the daemon notices the stop within about 20 ms; one that waits for memory in the staging
  // segment, or for a slab to be mapped, notices it only after that.  REQUIRES: No Restore is under
  // way.
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
  // Returns InvalidArgument, before it has done anything, if the prefix is not valid, or if
  // `hedges` is set and the engine lands blocks.  Returns Cancelled after Cancel, and
  // FailedPrecondition if a block is gone, failed too often or did not arrive by the deadline and
  // `scheduler.computes` is false.  An error of Compute, Place or Between, and an error of Land
  // that ends the restore, is returned as it is; the caller then has to clear the engine's cache.
  [[nodiscard]] absl::StatusOr<Restored> Restore(const RestorePrefix& prefix,
                                                 RestoreEngine& engine);
  // Makes a Restore that is under way end soon after the method of the engine that is running has
  // returned.
  void Cancel();

  // Returns the profile with what was measured so far; the next Restore begins with it.
  [[nodiscard]] Profile Learnt() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
