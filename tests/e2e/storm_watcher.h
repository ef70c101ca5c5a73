// A watcher of the storm: what it was told, of which the set of blocks that are there follows.
//
// Thread-safety: none.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "client/wire/messages.h"

namespace larder::e2e {

struct StormWatcher {
  std::set<std::pair<Digest, Tier>> blocks;
  std::string boot_id;
  uint64_t sequence = 0;
  bool complete = false;  // it has heard all of a snapshot

  // Empty, or what is wrong with what it was told.
  [[nodiscard]] std::string Hear(const wire::WatchReply& reply) {
    if (!reply.boot_id.empty()) boot_id = reply.boot_id;
    for (const wire::BlockEvent& event : reply.events) {
      if (event.sequence != 0 && event.sequence <= sequence) return "an event of the past";
      for (const Digest& digest : event.digests) {
        if (event.stored) {
          blocks.emplace(digest, event.tier);
        } else {
          blocks.erase({digest, event.tier});
        }
      }
    }
    if (reply.sequence < sequence) return "its sequence goes back";
    sequence = reply.sequence;
    complete = complete || reply.snapshot_end;
    return "";
  }
  // What to ask for: all, or what has happened since.
  [[nodiscard]] wire::WatchQuery Query(bool resume) const {
    wire::WatchQuery query;
    query.tiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk);
    query.snapshot = !resume;
    if (resume) {
      query.boot_id = boot_id;
      query.after = sequence;
    }
    return query;
  }
};

}  // namespace larder::e2e
