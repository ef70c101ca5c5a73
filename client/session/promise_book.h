// The promises that a session holds (client/promise.h), and what the daemon has told of them.
//
// Thread-safety: all methods from any thread.
// Locks: mu_ is a leaf.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "proto/messages/messages.h"
#include "storage/mutex.h"

namespace larder {

// What is known of one promise.
struct PromiseState {
  explicit PromiseState(wire::Promised answer);

  mutable Mutex mu;
  wire::Promised promised LARDER_GUARDED_BY(mu);  // its statuses change as blocks are read
  size_t pending LARDER_GUARDED_BY(mu) = 0;
  bool ended LARDER_GUARDED_BY(mu) = false;
};

class PromiseBook {
 public:
  // Enters a promise that the daemon has granted.  Called when its answer arrives, before any news
  // of it.
  void Add(const wire::Promised& promised) LARDER_EXCLUDES(mu_);
  // Returns the promise, which Remove then forgets; null if there is none.
  [[nodiscard]] std::shared_ptr<PromiseState> Find(LeaseId promise) const LARDER_EXCLUDES(mu_);
  void OnReady(const wire::PromiseReady& ready) LARDER_EXCLUDES(mu_);
  // Marks a promise as ended, by its deadline.  Returns false if there is none of this id.
  bool OnEnded(LeaseId promise) LARDER_EXCLUDES(mu_);
  // One of the holders lets go of the promise.  Returns true if the daemon must be told: it counts
  // the holders of a session, and a promise that has ended has none.
  [[nodiscard]] bool Remove(LeaseId promise) LARDER_EXCLUDES(mu_);
  // Marks all promises as ended: the session is lost.
  void EndAll() LARDER_EXCLUDES(mu_);

 private:
  struct Entry {
    std::shared_ptr<PromiseState> state;
    size_t holders = 0;  // in this session
  };
  mutable Mutex mu_;
  absl::flat_hash_map<LeaseId, Entry> promises_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
