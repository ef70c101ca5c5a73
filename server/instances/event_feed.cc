#include "server/instances/event_feed.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr size_t kEventsAtOnce = 256;

// Returns true if the blocks of `next` can be appended to those of `event`.
bool Continues(const wire::BlockEvent& event, const wire::BlockEvent& next) {
  if (event.cleared || next.cleared || event.stored != next.stored ||
      event.variant != next.variant || event.tier != next.tier ||
      event.engine_id != next.engine_id || event.chain.has_value() != next.chain.has_value()) {
    return false;
  }
  return !event.chain ||
         (event.digests.back() == next.chain->parent &&
          event.chain->content == next.chain->content && event.chain->writer == next.chain->writer);
}

void Append(wire::BlockEvent&& next, wire::BlockEvent* event) {
  event->sequence = next.sequence;
  event->digests.push_back(next.digests.front());
  if (!event->chain) return;
  event->chain->tokens.insert(event->chain->tokens.end(), next.chain->tokens.begin(),
                              next.chain->tokens.end());
}

std::vector<wire::BlockEvent> Joined(std::vector<wire::BlockEvent> events) {
  std::vector<wire::BlockEvent> joined;
  for (wire::BlockEvent& event : events) {
    if (!joined.empty() && Continues(joined.back(), event)) {
      Append(std::move(event), &joined.back());
    } else {
      joined.push_back(std::move(event));
    }
  }
  return joined;
}

}  // namespace

absl::Status EventFeed::CutOff() {
  return absl::OutOfRangeError(
      "the next events are no longer kept: watch again with a snapshot; a watcher that reads "
      "slowly, or was disconnected for long, needs a greater --events-max");
}

absl::StatusOr<EventFeed> EventFeed::Make(const wire::WatchQuery& query, BlockStore& store,
                                          DiskTier* disk, const DeviceTable* devices,
                                          const std::string& boot_id) {
  LARDER_CHECK(devices != nullptr || (query.tiers & TierBit(Tier::kDevice)) == 0);
  EventFeed feed(query, store, disk, devices);
  feed.after_ = store.index().events().newest();
  feed.in_snapshot_ = query.snapshot;
  if (query.boot_id.empty()) return feed;
  if (query.boot_id != boot_id) return CutOff();
  if (query.after > feed.after_)
    return absl::InvalidArgumentError("after: no event has that number yet");
  feed.after_ = query.after;
  return feed;
}

bool EventFeed::ready() const { return in_snapshot_ || store_.index().events().newest() > after_; }

bool EventFeed::lost() const { return !store_.index().events().Read(after_, query_.tiers, {}); }

absl::StatusOr<wire::WatchReply> EventFeed::Next() {
  if (in_snapshot_) return NextOfSnapshot();
  std::array<NumberedEvent, kEventsAtOnce> events;
  const auto read = store_.index().events().Read(after_, query_.tiers, events);
  if (!read) return CutOff();
  std::vector<TierEvent> happened;
  for (const NumberedEvent& event : std::span(events).first(read->events))
    happened.push_back(event.event);
  LARDER_ASSIGN_OR_RETURN(std::vector<wire::BlockEvent> told, Describe(happened));
  for (size_t i = 0; i < told.size(); ++i) told[i].sequence = events[i].number;
  after_ = read->through;
  wire::WatchReply reply;
  reply.events = Joined(std::move(told));
  reply.sequence = after_;
  return reply;
}

absl::StatusOr<wire::WatchReply> EventFeed::NextOfSnapshot() {
  LARDER_ASSIGN_OR_RETURN(std::vector<wire::BlockEvent> there, Describe(SomeOfSnapshot()));
  const bool done =
      cursor_.done() && (device_cursor_.done() || (query_.tiers & TierBit(Tier::kDevice)) == 0);
  wire::WatchReply reply;
  reply.events = Joined(std::move(there));
  reply.sequence = done ? after_ : 0;
  reply.snapshot_end = done;
  in_snapshot_ = !done;
  return reply;
}

std::vector<TierEvent> EventFeed::SomeOfSnapshot() {
  std::vector<TierEvent> there;
  if (cursor_.done()) {
    there.resize(kEventsAtOnce);
    there.resize(devices_->Page(&device_cursor_, there));
    return there;
  }
  std::array<BlockIndex::View, kEventsAtOnce> views;
  const size_t count = store_.index().Views(&cursor_, views);
  for (const BlockIndex::View& view : std::span(views).first(count)) {
    for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
      if ((TiersOf(view.state) & query_.tiers & TierBit(tier)) != 0)
        there.push_back({view.digest, view.variant, tier, /*stored=*/true});
    }
  }
  return there;
}

absl::StatusOr<std::vector<wire::BlockEvent>> EventFeed::Describe(
    std::span<const TierEvent> events) const {
  std::vector<wire::BlockEvent> told;
  told.reserve(events.size());
  for (const TierEvent& event : events) {
    wire::BlockEvent& one = told.emplace_back();
    one.stored = event.stored;
    one.cleared = event.cleared;
    one.tier = event.tier;
    if (event.tier == Tier::kDevice) {
      one.engine_id = devices_->EngineOf(event);
      if (one.engine_id.empty()) return CutOff();
    }
    if (event.cleared) continue;
    one.variant = store_.index().VariantId(event.variant);
    one.digests = {event.digest};
  }
  if (!query_.with_tokens) return told;
  AddChains(events, told);
  AddChainsOfDevice(events, told);
  return told;
}

void EventFeed::AddChainsOfDevice(std::span<const TierEvent> events,
                                  std::span<wire::BlockEvent> to) const {
  for (size_t i = 0; i < events.size(); ++i) {
    if (!events[i].stored || events[i].tier != Tier::kDevice) continue;
    std::optional<DeviceTable::Chain> chain = devices_->ChainOf(events[i]);
    if (!chain) continue;
    const auto block_tokens = static_cast<uint32_t>(chain->tokens.size());
    to[i].chain = {.parent = chain->parent,
                   .content = {},
                   .block_tokens = block_tokens,
                   .tokens = std::move(chain->tokens)};
  }
}

// A block that has left HOST and DISK since the event gets no chain; a later event reports that the
// block left.
void EventFeed::AddChains(std::span<const TierEvent> events, std::span<wire::BlockEvent> to) const {
  std::vector<EntryRef> held;
  std::vector<DiskAddress> on_disk;
  std::vector<size_t> which;  // indices in `to` of the blocks that are only on disk
  const auto add = [&](size_t i, const Digest& parent, const Digest& content,
                       std::span<const uint32_t> tokens, const BlockWriter& writer) {
    to[i].chain = {.parent = parent,
                   .content = content,
                   .block_tokens = static_cast<uint32_t>(tokens.size()),
                   .tokens = {tokens.begin(), tokens.end()},
                   .writer = writer};
  };
  for (size_t i = 0; i < events.size(); ++i) {
    if (!events[i].stored || events[i].tier == Tier::kDevice) continue;
    const BlockIndex::Held block = store_.HoldUntouched(events[i].variant, events[i].digest);
    if (block.ref == EntryRef{}) continue;
    held.push_back(block.ref);
    if (block.metadata != nullptr) {
      add(i, block.metadata->parent(), block.metadata->content(), block.metadata->tokens(),
          block.metadata->writer());
    } else if (disk_ != nullptr) {
      on_disk.push_back({{to[i].variant, events[i].digest}, DiskLocation{block.disk_location}});
      which.push_back(i);
    }
  }
  store_.Unhold(held);  // before the disk is read, which may be slow
  std::vector<std::optional<DiskTier::Description>> found(on_disk.size());
  if (!on_disk.empty()) (void)disk_->Describe(on_disk, found);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) continue;
    const RecordHeader& header = found[i]->header;
    add(which[i], header.parent, header.content, found[i]->tokens, {.uid = header.writer_uid});
  }
}

}  // namespace larder
