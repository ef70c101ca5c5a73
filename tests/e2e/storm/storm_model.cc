#include "tests/e2e/storm/storm_model.h"

#include <bit>

namespace larder::e2e {
namespace {

int Said(BlockStatus status) { return static_cast<int>(status); }

// Returns the state without these copies and their codecs.
StormState Without(StormState state, StormState copies) {
  if ((copies & kInHost) != 0) state &= ~(kInHost | kHostEncoded);
  if ((copies & kOnDisk) != 0) state &= ~(kOnDisk | kDiskEncoded);
  return state;
}

// Returns the state after a copy to the tier of `to`.  A copy from the pool to disk keeps its
// codec; a copy from disk to the pool is decoded.
StormState Copied(StormState state, StormState to) {
  if ((state & to) != 0) return state;
  if (to == kInHost) return state | kInHost;
  return static_cast<StormState>(state | kOnDisk |
                                 ((state & kHostEncoded) != 0 ? kDiskEncoded : 0));
}

int32_t Pins(StormState state) { return std::popcount(static_cast<unsigned>(state & kAllPins)); }

// Whether the block may have left all tiers meanwhile.
bool MayLeave(StormState state, const StormAround& around) {
  return around.pressure && !around.held && (state & kAllPins) == 0;
}

// Calls `to` with the next state for each step that the daemon may take by itself.
template <class To>
void ByItself(StormState s, const StormAround& around, To to) {
  const bool host = (s & kInHost) != 0, disk = (s & kOnDisk) != 0;
  if (host && !disk) to(Copied(s, kOnDisk));
  if (host && !disk && around.recoded) to(Copied(s, kOnDisk) ^ kDiskEncoded);
  if (disk && !host && (around.may_promote || (s & kPinnedHost) != 0)) to(Copied(s, kInHost));
  if (around.prefetch_over && (s & kPrefetched) != 0) to(s & ~kPrefetched);
  if (!around.pressure) return;
  // A pin of DISK keeps a block in HOST until it is on disk.
  const bool host_kept = around.held || (s & kPinnedHost) != 0 || ((s & kPinnedDisk) != 0 && !disk);
  if (host && !host_kept) to(Without(s, kInHost));
  if (disk && (s & kPinnedDisk) == 0) to(Without(s, kOnDisk));
}

}  // namespace

StormLaw LookupLaw() {
  return [](StormState s, const StormAround&) { return StormOutcomes{{s, Copies(s), {}}}; };
}

StormLaw PutLaw() {
  return [](StormState s, const StormAround& around) {
    StormOutcomes all;
    // The first writer keeps the name, whatever tier its block is in.
    if (Copies(s) != 0) {
      all.push_back({s, Said(BlockStatus::kDuplicate), {}});
    } else {
      all.push_back({static_cast<StormState>(s | kInHost), Said(BlockStatus::kOk), {}});
    }
    if (around.pressure) all.push_back({s, Said(BlockStatus::kFull), {}});
    return all;
  };
}

StormLaw GetLaw(bool stream) {
  return [stream](StormState s, const StormAround& around) {
    StormOutcomes all;
    if (Copies(s) == 0 || (stream && (s & kInHost) == 0)) {
      all.push_back({s, Said(BlockStatus::kMissing), {}});
    } else {
      all.push_back({Copied(s, kInHost), Said(BlockStatus::kOk), {}});
    }
    if (around.pressure && Copies(s) != 0) all.push_back({s, Said(BlockStatus::kFull), {}});
    return all;
  };
}

StormLaw PinLaw(uint32_t owner, Tier tier) {
  return [=](StormState s, const StormAround&) {
    if (Copies(s) == 0) return StormOutcomes{{s, Said(BlockStatus::kMissing), {}}};
    const bool there = (s & CopyBit(tier)) != 0;
    return StormOutcomes{{static_cast<StormState>(s | PinBit(owner, tier)),
                          Said(there ? BlockStatus::kOk : BlockStatus::kPending),
                          {}}};
  };
}

StormLaw UnpinLaw(uint32_t owner, Tier tier) {
  return [bit = PinBit(owner, tier)](StormState s, const StormAround&) {
    if ((s & bit) == 0) return StormOutcomes{{s, Said(BlockStatus::kMissing), {}}};
    return StormOutcomes{{static_cast<StormState>(s & ~bit), Said(BlockStatus::kOk), {1}}};
  };
}

StormLaw UnpinAllLaw(uint32_t owner) {
  const StormState bits = PinBit(owner, Tier::kHost) | PinBit(owner, Tier::kDisk);
  return [bits](StormState s, const StormAround&) {
    return StormOutcomes{{static_cast<StormState>(s & ~bits), 0, {Pins(s & bits)}}};
  };
}

StormLaw PrefetchLaw() {
  return [](StormState s, const StormAround&) {
    if (Copies(s) == 0) return StormOutcomes{{s, Said(BlockStatus::kMissing), {}}};
    const bool there = (s & kInHost) != 0;
    return StormOutcomes{{static_cast<StormState>(s | kPrefetched),
                          Said(there ? BlockStatus::kOk : BlockStatus::kPending),
                          {}}};
  };
}

StormLaw ClearLaw(const StormClear& clear) {
  // The outcomes for a block in state `s`, after `ended` of its pins were ended.  `kept` is its
  // next state if nothing is cleared.
  const auto take = [clear](StormState s, StormState kept, int32_t ended, bool held) {
    const StormState going = s & clear.copies;
    if (going == 0) return StormOutcomes{{kept, Said(BlockStatus::kMissing), {0, 0, 0, 0, ended}}};
    const bool stays = going != Copies(s);
    const bool pinned =
        (s & kPinnedHost) != 0 || ((s & kPinnedDisk) != 0 && ((going & kOnDisk) != 0 || !stays));
    if (pinned) return StormOutcomes{{kept, Said(BlockStatus::kKept), {0, 0, 1, 0, ended}}};
    const StormOutcome gone = {clear.dry_run ? kept : Without(s, going),
                               Said(BlockStatus::kOk),
                               {going & kInHost, (going & kOnDisk) >> 1, 0, 0, ended}};
    // The daemon also holds blocks for a moment itself, and a lease just released may still count.
    const StormOutcome in_use = {kept, Said(BlockStatus::kKept), {0, 0, 0, 1, ended}};
    if (!stays) return StormOutcomes{gone};
    return held ? StormOutcomes{in_use} : StormOutcomes{gone, in_use};
  };
  return [clear, take](StormState s, const StormAround& around) {
    if (!clear.pinned) return take(s, s, 0, around.held);
    const int32_t ended = Pins(s);
    const auto unpinned = static_cast<StormState>(s & ~kAllPins);
    if (clear.dry_run) return take(unpinned, s, ended, around.held && ended == 0);
    // The pins end first.  Before the block is cleared, it may then be evicted, or be changed by a
    // call that was cancelled.
    Possible now;
    now.Set({unpinned});
    now.LetTimePass(around);
    StormOutcomes all;
    for (const StormState next : now.States()) {
      for (const StormOutcome& one : take(next, next, ended, around.held)) all.push_back(one);
    }
    return all;
  };
}

StormLaw MoveLaw(Tier from, Tier to, bool copy) {
  return [=](StormState s, const StormAround& around) {
    const StormState out = CopyBit(from), in = CopyBit(to);
    if ((s & out) == 0 || (copy && (s & in) != 0)) return StormOutcomes{{s, 0, {}}};
    const StormState both = Copied(s, in), after = Without(both, out);
    StormOutcomes all;
    const bool pinned = (s & kPinnedHost) != 0 || (from == Tier::kDisk && (s & kPinnedDisk) != 0);
    if (copy) {
      all.push_back({both, 0, {1, 1, 0, 0, 0, 0}});
    } else if (pinned) {
      all.push_back({both, 0, {1, 1, 0, 0, 1, 0}});
    } else {
      if (!around.held) all.push_back({after, 0, {1, 1, 0, 0, 0, 0}});
      all.push_back({both, 0, {1, 1, 0, 0, 0, 1}});
    }
    if (!around.pressure) return all;
    for (const StormState next : {s, both}) {
      all.push_back({next, 0, {1, 0, 0, 1, 0, 0}});
      all.push_back({next, 0, {1, 1, 0, 0, 0, 0}});  // the other copy was evicted: this stays
    }
    if (MayLeave(s, around)) all.push_back({Without(s, Copies(s)), 0, {1, 0, 1, 0, 0, 0}});
    return all;
  };
}

StormLaw CompressLaw(StormState copies, bool encode, bool dry_run) {
  const auto with = [=](const StormOutcome& before, Tier tier, const StormAround& around) {
    const StormState s = before.next;
    if ((s & copies & CopyBit(tier)) == 0) return StormOutcomes{before};
    const bool encoded = (s & EncodedBit(tier)) != 0;
    StormOutcomes all;
    // `sum` is the index of the sum that counts it.  The answer for a name is its worst one.
    const auto add = [&](StormState next, BlockStatus status, size_t sum) {
      StormOutcome& one = all.emplace_back(before);
      one.next = dry_run ? s : next;
      ++one.counts[0];
      ++one.counts[sum];
      const bool none = before.answer == Said(BlockStatus::kMissing);
      const bool worse = status == BlockStatus::kFull ? before.answer != Said(BlockStatus::kKept)
                                                      : status == BlockStatus::kKept;
      if (none || worse) one.answer = Said(status);
    };
    const auto other =
        static_cast<StormState>(encode ? s | EncodedBit(tier) : s & ~EncodedBit(tier));
    if (encoded == encode) {
      add(s, BlockStatus::kOk, 2);
    } else {
      if (!around.held || dry_run) add(other, BlockStatus::kOk, 1);
    }
    add(s, BlockStatus::kKept, 4);  // it is held, or is being written again
    if (!around.pressure) return all;
    add(s, BlockStatus::kFull, 5);
    const bool pinned = (s & (tier == Tier::kHost ? kPinnedHost : kPinnedDisk)) != 0;
    const auto leave = [&](StormState next) {
      StormOutcome& left = all.emplace_back(before);
      left.next = next;
      ++left.counts[0];
      ++left.counts[3];
    };
    if (!pinned) leave(Without(s, CopyBit(tier)));
    if (!pinned && tier == Tier::kHost) leave(Without(Copied(s, kOnDisk), kInHost));
    return all;
  };
  return [=](StormState s, const StormAround& around) {
    StormOutcomes all;
    const StormOutcome none = {s, Said(BlockStatus::kMissing), {}};
    for (const StormOutcome& one : with(none, Tier::kHost, around)) {
      for (const StormOutcome& two : with(one, Tier::kDisk, around)) all.push_back(two);
    }
    return all;
  };
}

void Possible::LetTimePass(const StormAround& around) {
  StormAround alone = around;  // for the late calls, which would otherwise recurse into each other
  alone.late.clear();
  std::vector<StormState> open = States();
  while (!open.empty()) {
    const StormState s = open.back();
    open.pop_back();
    const auto may_be = [&](StormState next) {
      if (states_.test(next)) return;
      states_.set(next);
      open.push_back(next);
    };
    ByItself(s, around, may_be);
    for (const StormLaw& law : around.late) {
      for (const StormOutcome& outcome : law(s, alone)) may_be(outcome.next);
    }
  }
}

void Possible::Crash(bool ghost) {
  std::vector<StormState> after;
  for (const StormState s : States()) {
    const auto left = static_cast<StormState>(Without(s, kInHost) & ~kPrefetched);
    after.push_back(left);
    if (!ghost) continue;
    after.push_back(left | kOnDisk);
    after.push_back(left | kOnDisk | kDiskEncoded);
  }
  Set(after);
}

std::vector<StormState> Possible::States() const {
  std::vector<StormState> all;
  for (size_t s = 0; s < kStates; ++s) {
    if (states_.test(s)) all.push_back(static_cast<StormState>(s));
  }
  return all;
}

void Possible::Set(const std::vector<StormState>& states) {
  states_.reset();
  for (const StormState s : states) states_.set(s);
}

bool Possible::Always(const std::function<bool(StormState)>& holds) const {
  for (const StormState s : States()) {
    if (!holds(s)) return false;
  }
  return true;
}

}  // namespace larder::e2e
