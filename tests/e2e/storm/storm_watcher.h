// A watcher of the storm: what it was told, of which the set of blocks that are there follows.
//
// Thread-safety: none.
#pragma once

#include <set>
#include <string>

#include "proto/messages/messages.h"

namespace larder::e2e {

struct StormWatcher {
  struct Entry {
    Digest digest;
    Tier tier = Tier::kHost;
    std::string engine = {};  // of kDevice
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  std::set<Entry> blocks;
  std::string boot_id;
  uint64_t sequence = 0;
  bool complete = false;  // it has heard all of a snapshot

  // Empty, or what is wrong with what it was told.
  [[nodiscard]] std::string Hear(const wire::WatchReply& reply) {
    if (!reply.boot_id.empty()) boot_id = reply.boot_id;
    for (const wire::BlockEvent& event : reply.events) {
      if (event.sequence != 0 && event.sequence <= sequence) return "an event of the past";
      if ((event.tier == Tier::kDevice) == event.engine_id.empty()) return "an engine, or none";
      if (event.cleared) {
        std::erase_if(blocks, [&](const Entry& entry) { return entry.engine == event.engine_id; });
      }
      for (const Digest& digest : event.digests) {
        const Entry entry{digest, event.tier, event.engine_id};
        if (event.stored) {
          blocks.insert(entry);
        } else {
          blocks.erase(entry);
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
    query.tiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk) | TierBit(Tier::kDevice);
    query.snapshot = !resume;
    if (resume) {
      query.boot_id = boot_id;
      query.after = sequence;
    }
    return query;
  }
};

}  // namespace larder::e2e
