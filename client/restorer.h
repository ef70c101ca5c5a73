// Brings a stored prefix back into an engine: computes its head and loads its tail at the same
// time.  Scheduler decides which is which; this moves the bytes and knows the time.
//
//   Restorer restorer(session, variant, profile, {});
//   auto restored = restorer.Restore(prefix, engine);  // the prefix is in the engine's cache
//
// What it does not promise: that anything was loaded.  A block that is missing, damaged or late is
// computed, and the engine's cache is the same as if all had been.
// Ownership: the session outlives it; bytes that arrive are in memory of its own, until the engine
// has taken them, unless they land in the engine's cache at once.
// Thread-safety: Restore from one thread at a time, which is the engine's; Cancel from any.
// Threads: one for each channel, which waits while there is nothing to load.
// Limits: one prefix at a time; engines that compute chunks, or parts of them, through all layers,
// on one stage and one rank.
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
#include "client/restore/scheduler.h"
#include "storage/clock.h"

namespace larder {

// What an engine does for a restore.  All of it on the thread that called Restore, but for Land.
class RestoreEngine {
 public:
  virtual ~RestoreEngine() = default;
  // Computes these tokens.  [0, tokens.begin) are in its cache, and nothing else.
  [[nodiscard]] virtual absl::Status Compute(TokenRange tokens) = 0;
  // Takes these blocks, which follow what is in its cache: layers[i] is a block, one span a layer.
  using Layers = std::span<const std::span<const std::byte>>;
  [[nodiscard]] virtual absl::Status Place(TokenRange tokens, std::span<const Layers> blocks) = 0;
  // Whatever else the engine does between steps, such as decoding; called before each of them, and
  // again and again while there is none.  False: nothing, and nothing until the restore ends.
  [[nodiscard]] virtual absl::StatusOr<bool> Between() { return false; }

  // For an engine whose blocks have their places before they come, such as pages of a device: its
  // loads Land there, and Place is told of tokens without blocks.  The restorer's
  // Options::scheduler.hedges must then be false: a block is not computed and loaded at a time.
  [[nodiscard]] virtual bool lands() const { return false; }
  // Loads these blocks, by number, to their places, in any order; a status each, kOk: all of it is
  // there, and right.  On the channels' threads, one call at a time for each.  Ends soon after
  // `call.stop` was requested, and then, as ever, nothing writes to those places any more:
  // computing them, and the end of Restore, wait for that.  Internal, InvalidArgument,
  // Unimplemented: Restore ends with it; any other error: none of them came.  The stop is requested
  // under the restorer's lock, so a callback on it must not call the restorer.
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Land(
      ChannelId /*channel*/, std::span<const uint32_t> /*blocks*/, const CallOptions& /*call*/) {
    return absl::UnimplementedError("blocks do not land in this engine");
  }
};

// What is to be restored: whole blocks from the first token on.
struct RestorePrefix {
  std::span<const Digest> blocks = {};           // the last digest of each
  std::vector<ChannelId> channel_of_block = {};  // as Lookup says; kNowhere: a hole
  std::span<const ByteCount> layer_bytes = {};   // of a block; their sum is what is loaded
  uint32_t chunk_tokens = 0;                     // of a step of the engine
  // Of an engine whose cache is the same, whether it computes a chunk in one or in parts that begin
  // at multiples of this: whole blocks, that divide it.  Steps are then parts of chunks, where the
  // rest is loaded; none has fewer tokens than this, unless its chunk has.  0: they are whole.
  uint32_t cut_tokens = 0;
  uint32_t suffix_tokens = 0;       // computed after it, for the plan alone
  double deadline_s = kNoDeadline;  // from now; no load begins that would end later
};

class Restorer {
 public:
  // To emulate a link: when bytes that a channel asked for at `now` are here.  They count as loaded
  // then, or when they really came, whichever is later.  Called on the channels' threads.
  using Carry = std::function<TimePoint(ChannelId channel, ByteCount bytes, TimePoint now)>;
  struct Options {
    SchedulerOptions scheduler = {};  // its `engine` is the restorer's own
    ByteCount room = MiB(8);  // of bytes that a channel may have here at once; it has less where it
                              // is slow, and those that Land in the engine are not here
    Carry carry = {};
    // A step of the engine lasts this long at most, for one that does other things Between steps:
    // chunks are then cut at multiples of the prefix's `cut_tokens` (0: of a block).  A step has at
    // least one of them; the last of a prefix may have up to two, however long that takes.
    double step_s_max = kNoDeadline;
  };
  // `profile` names the channels.
  Restorer(Session& session, VariantHandle variant, Profile profile, Options options);
  // Waits for calls under way, which are told to stop: some milliseconds, whatever the daemon does.
  ~Restorer();
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // What happened to a range of tokens, for pictures.
  struct Span {
    TokenRange tokens = {};
    ChannelId channel = ChannelId::kNowhere;  // kNowhere: computed
    double begin_s = 0, end_s = 0;            // from the call on
    bool used = true;                         // else it came too late
  };
  struct Restored {
    uint32_t computed_tokens = 0, loaded_tokens = 0;
    ByteCount bytes;       // of loads that were of use
    double restore_s = 0;  // until all is in the cache
    double compute_s = 0;  // of that, computing
    double load_s = 0;     // of that, some channel was loading
    std::vector<Span> spans = {};
  };
  // InvalidArgument: the prefix makes no sense, or hedges with an engine that lands; nothing was
  // done.  Any other error is the engine's, whose cache is then the caller's to clear; Cancelled;
  // FailedPrecondition: a block is gone, failed too often or did not come by the deadline, and
  // `scheduler.computes` is false.
  [[nodiscard]] absl::StatusOr<Restored> Restore(const RestorePrefix& prefix,
                                                 RestoreEngine& engine);
  // Ends a Restore soon.
  void Cancel();

  // As learnt by now; the next Restore begins with it.
  [[nodiscard]] Profile Learnt() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
