// What one watcher is to hear next: all that is there, if he asked for a snapshot, and what
// happened since; as fast as he takes it, and nothing for ever if he does not.
//
// A snapshot is taken while blocks come and go: what happened since it began follows it, and makes
// it right.
// Ownership: by whoever tells the watcher; store and disk outlive it.  Thread-safety: none.
// Blocking: reads from the disk where tokens of blocks on disk alone are wanted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/instances/device_table.h"
#include "storage/disk/disk_tier.h"
#include "storage/store/block_store.h"

namespace larder {

class EventFeed {
 public:
  // `disk` may be null, and `devices` where DEVICE is not asked for.  OutOfRange: to go on after
  // what is no longer known.  InvalidArgument: after what is yet to come.
  [[nodiscard]] static absl::StatusOr<EventFeed> Make(const wire::WatchQuery& query,
                                                      BlockStore& store, DiskTier* disk,
                                                      const DeviceTable* devices,
                                                      const std::string& boot_id);

  // Cheap: false where nothing is to be told now.
  [[nodiscard]] bool ready() const;
  // What is to be told next is no longer known.  Cheap.
  [[nodiscard]] bool lost() const;
  [[nodiscard]] static absl::Status CutOff();
  // What is to be told next, which may be nothing after all.  OutOfRange: he was too slow.
  [[nodiscard]] absl::StatusOr<wire::WatchReply> Next();

 private:
  EventFeed(const wire::WatchQuery& query, BlockStore& store, DiskTier* disk,
            const DeviceTable* devices)
      : query_(query), store_(store), disk_(disk), devices_(devices) {}

  [[nodiscard]] absl::StatusOr<wire::WatchReply> NextOfSnapshot();
  // Of HOST and DISK, then of DEVICE; empty: that was all.
  [[nodiscard]] std::vector<TierEvent> SomeOfSnapshot();
  // OutOfRange: they are of an engine that was forgotten, as is what they told.
  [[nodiscard]] absl::StatusOr<std::vector<wire::BlockEvent>> Describe(
      std::span<const TierEvent> events) const;
  // Of stored ones, what is known of them.
  void AddChainsOfDevice(std::span<const TierEvent> events, std::span<wire::BlockEvent> to) const;
  void AddChains(std::span<const TierEvent> events, std::span<wire::BlockEvent> to) const;

  const wire::WatchQuery query_;
  BlockStore& store_;
  DiskTier* const disk_;
  const DeviceTable* const devices_;
  bool in_snapshot_ = false;
  BlockIndex::Cursor cursor_;
  DeviceTable::Cursor device_cursor_;
  uint64_t after_ = 0;  // told
};

}  // namespace larder
