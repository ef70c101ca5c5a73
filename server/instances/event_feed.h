// The stream of events of one watcher (a caller of WatchEvents): first the blocks that are in the
// tiers, if the watcher asked for a snapshot; then the events since the watcher's call began, or,
// if the watcher continues a stream, since the event that it names.
//
// The watcher sets the pace: nothing is read ahead for it.  A watcher whose next event was
// overwritten in the EventRing is cut off.  While a snapshot is read, blocks come and go; the
// events since the snapshot began follow the snapshot and correct it.
// Ownership: the watcher's call owns it; store, disk and device table outlive it.
// Thread-safety: none.
// Blocking: Next may read from the disk if the watcher wants tokens and a block is only on disk.
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
  // `disk` may be null; `devices` may be null if the query does not include DEVICE.  Returns
  // OutOfRange if the query continues a stream of a former daemon, InvalidArgument if it continues
  // after an event that has not happened yet.
  [[nodiscard]] static absl::StatusOr<EventFeed> Make(const wire::WatchQuery& query,
                                                      BlockStore& store, DiskTier* disk,
                                                      const DeviceTable* devices,
                                                      const std::string& boot_id);

  // Returns false if there is nothing to report now.  Cheap.
  [[nodiscard]] bool ready() const;
  // Returns true if an event that the watcher has not got was overwritten in the EventRing.  Cheap.
  [[nodiscard]] bool lost() const;
  // Returns the OutOfRange error for a watcher whose next event is no longer known.
  [[nodiscard]] static absl::Status CutOff();
  // Returns the next events, or the next blocks of the snapshot; there may be none, even if ready()
  // was true.  Returns OutOfRange if the next event is no longer known.
  [[nodiscard]] absl::StatusOr<wire::WatchReply> Next();

 private:
  EventFeed(const wire::WatchQuery& query, BlockStore& store, DiskTier* disk,
            const DeviceTable* devices)
      : query_(query), store_(store), disk_(disk), devices_(devices) {}

  [[nodiscard]] absl::StatusOr<wire::WatchReply> NextOfSnapshot();
  // Returns the next blocks of the snapshot: those of HOST and DISK, then those of DEVICE.
  [[nodiscard]] std::vector<TierEvent> SomeOfSnapshot();
  // Returns the events in the form of the answer, or OutOfRange if one is of an engine that
  // DeviceTable has forgotten.
  [[nodiscard]] absl::StatusOr<std::vector<wire::BlockEvent>> Describe(
      std::span<const TierEvent> events) const;
  // AddChainsOfDevice and AddChains add parent and tokens, as far as they are known, to the events
  // that store a block: the former in DEVICE, the latter in the other tiers.
  void AddChainsOfDevice(std::span<const TierEvent> events, std::span<wire::BlockEvent> to) const;
  void AddChains(std::span<const TierEvent> events, std::span<wire::BlockEvent> to) const;

  const wire::WatchQuery query_;
  BlockStore& store_;
  DiskTier* const disk_;
  const DeviceTable* const devices_;
  bool in_snapshot_ = false;
  BlockIndex::Cursor cursor_;
  DeviceTable::Cursor device_cursor_;
  uint64_t after_ = 0;  // the next event has a greater number
};

}  // namespace larder
