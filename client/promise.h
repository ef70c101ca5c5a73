// Promises: the daemon keeps what an engine needs to load a prefix until its workers have read it.
//
//   auto asked   = session.BeginPromise({.variants = variants, .chain = chain});  // never waits
//   ...            asked->Poll()                     // true once the daemon has answered
//   auto promise = asked->Take();                    // kMissing, kFull: there is nothing to load
//   send(promise->id(), promise->tokens());          // to the workers, which may be processes
//
//   auto held    = session.HoldPromise(id);          // in a worker, so that the promise outlives
//   session.Get(variant, blocks, {.promise = id});   // the scheduler; reading is charged once
//
// A promise belongs to the engine id and the user of the session; other sessions of both may hold
// it, too.  It ends when the last session that holds it has released it or has ended, and at its
// deadline.  Reads of its blocks need no promise; without one they may find that a block has left.
// Blocks that are on disk alone are brought to HOST meanwhile.
// Ownership: destroy a Promise and a PendingPromise before their Session.
// Thread-safety: one thread at a time.
// Source: engine.proto, Promise.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace larder {

struct PromiseQuery {
  // The variants of all ranks and groups that the engine needs, 1 to 1,024, registered by the
  // session.  The answer is for all of them together.
  std::span<const VariantHandle> variants = {};
  // One digest per 16 tokens, from the beginning of the chain (Chain), at most 8,192.
  std::span<const Digest> chain = {};
  TokenCount first_token = {};             // tokens that the engine has already, from the beginning
  std::chrono::milliseconds life{30'000};  // until the promise ends by itself; at most 10 minutes
  ByteCount remaining = {};                // as in CallOptions
};

// Consecutive blocks of one variant.
struct PromisedBlocks {
  size_t first_block = 0;           // counted in blocks of the variant, from the chain's beginning
  std::vector<BlockStatus> status;  // kOk; kPending while the block is read from disk; or why not
  std::vector<Tier> tiers;          // where each block was found
};

struct PromiseState;  // client/session/promise_book.h

class Promise {
 public:
  Promise() = default;
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&&) noexcept;
  ~Promise() { Release(); }

  // For CallOptions::promise and HoldPromise, also in other processes.
  [[nodiscard]] LeaseId id() const;
  // The longest prefix that all variants can serve.
  [[nodiscard]] TokenCount tokens() const;
  // What is held of each variant, in the order of the query, as far as is known now: the daemon
  // tells of blocks that it has read, and Session::Poll takes that in.  Empty for HoldPromise.
  [[nodiscard]] std::vector<PromisedBlocks> blocks() const;
  [[nodiscard]] size_t pending() const;  // blocks that are being read from disk
  // Returns false once the promise has ended at its deadline, or with the session.
  [[nodiscard]] bool Valid() const;
  // Lets the promise go.  It stays for sessions that hold it.
  void Release();

 private:
  friend class PendingPromise;
  explicit Promise(std::shared_ptr<SessionCore> core, std::shared_ptr<PromiseState> state)
      : core_(std::move(core)), state_(std::move(state)) {}
  std::shared_ptr<SessionCore> core_;
  std::shared_ptr<PromiseState> state_;  // null: released
};

// A request for a promise.  Destroying it gives up the request, and releases what was promised.
class PendingPromise {
 public:
  PendingPromise();
  PendingPromise(PendingPromise&&) noexcept;
  PendingPromise& operator=(PendingPromise&&) noexcept;
  ~PendingPromise();

  // Takes in what has arrived, as Session::Poll does.  Returns true if Take will return the answer.
  [[nodiscard]] bool Poll();
  // Waits until Poll would return true, or for `at_most`.  Returns whether it would.
  [[nodiscard]] bool Wait(std::chrono::milliseconds at_most);
  // Returns the answer, once.  NotFound: nothing is stored beyond first_token, or there is no such
  // promise.  ResourceExhausted: a share or the pool is full; ask again later.  InvalidArgument: a
  // variant of another session.  Unavailable: the daemon drains or is gone.
  // REQUIRES: Poll or Wait returned true.
  [[nodiscard]] absl::StatusOr<Promise> Take();

 private:
  friend class Session;
  struct Impl;
  explicit PendingPromise(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
