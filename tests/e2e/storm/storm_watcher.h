// A watcher of the storm, which builds the set of stored blocks from the events that it gets.
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
    std::string engine = {};  // only for kDevice
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  std::set<Entry> blocks;
  std::string boot_id;
  uint64_t sequence = 0;
  bool complete = false;  // it has received all of a snapshot

  // Applies a reply.  Returns what is wrong with it, or an empty string.
  [[nodiscard]] std::string Hear(const wire::WatchReply& reply) {
    if (!reply.boot_id.empty()) boot_id = reply.boot_id;
    for (const wire::BlockEvent& event : reply.events) {
      if (event.sequence != 0 && event.sequence <= sequence) return "an old event";
      if ((event.tier == Tier::kDevice) == event.engine_id.empty()) return "wrong engine_id";
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
    if (reply.sequence < sequence) return "the sequence of a reply is older than the last";
    sequence = reply.sequence;
    complete = complete || reply.snapshot_end;
    return "";
  }
  // Returns the query for a snapshot, or to resume after the last event.
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
