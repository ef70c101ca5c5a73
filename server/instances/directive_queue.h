// Directives: what engines are asked to do with what they have in device memory, and what became
// of it.
//
// The daemon keeps no pins of DEVICE: the engine does, until their deadline, and they go with it.
// An order goes to every session that has one of its blocks, in directives of wire::kKeysMax keys,
// and is answered when all of them are; a session that ends takes its device memory with it.  A
// session is sent as much as it may owe, and the rest, in the order in which it was given, as it
// answers.  A directive is waited for kPatience from when it is sent; what waits for its turn,
// kPatience from the session's last answer.  So one that hangs is given up after kPatience, and one
// that answers is waited for, however many blocks it has.
// Ownership: by Daemon; table and counters outlive it.
// Thread-safety: all methods from any thread.  Locks: nothing is held while a session or a caller
// is talked to.
// Lifecycle: made -> Give ... -> EndAll: then every order is answered at once, kPending.
// Limits: as many blocks an order as its caller may select; kOwedMax that a session owes.
// Memory: of an order, 25 B a block while it is open.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/messages/messages.h"
#include "server/instances/device_table.h"
#include "server/metrics/counters.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class DirectiveQueue {
 public:
  static constexpr std::chrono::seconds kPatience{5};
  // Keys, and some for each directive, that a session was sent and has not answered, however late:
  // one that does not read takes no more memory.  A directive always fits where nothing is owed.
  static constexpr size_t kOwedMax = 65'536, kOwedOfDirective = 16;
  static_assert(wire::kKeysMax + kOwedOfDirective <= kOwedMax);

  struct Order {
    wire::DirectiveKind kind = wire::DirectiveKind::kPin;
    std::string engine_id = {};  // of this engine alone; empty: of all
    std::string owner = {};
    uint64_t deadline_unix_ms = 0;
    std::optional<Codec> codec = {};
    bool pinned = false;  // kDrop: also what is pinned
  };
  using Block = DeviceTable::Name;
  // kOk: it is on its way.  kMissing: the session has ended.  kUnsupported: it takes none.
  using Send = std::function<BlockStatus(SessionId, VariantIndex, wire::Directive)>;
  DirectiveQueue(const DeviceTable& devices, const Clock& clock, WallClock now_ms,
                 Counters& counters, Send send);

  // One status a block, the worst of what the sessions said that have it.  kMissing: none has.
  // kPending: one was told and has not answered, or not done it in time, or answered so little of
  // what it owes that it was not told.  kUnsupported: one takes no directives, or says what none
  // may say of this kind (engine.proto, DirectiveDone).  Called once, from this thread or another.
  using Answer = std::function<void(std::vector<BlockStatus>)>;
  void Give(Order order, std::vector<Block> blocks, Answer answer) LARDER_EXCLUDES(mu_);
  // An order that is of no blocks, to each of these sessions: one status each, kOk where it was
  // done.
  void GiveAll(Order order, std::span<const SessionId> sessions, Answer answer)
      LARDER_EXCLUDES(mu_);

  // What a session says.  Of another directive, or of other keys than it was asked for: counted,
  // and passed over.  What comes too late makes room for more.
  void Done(SessionId session, const wire::DirectiveDone& done) LARDER_EXCLUDES(mu_);
  void SessionEnded(SessionId session) LARDER_EXCLUDES(mu_);
  // Often: answers those whose patience is over.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_);
  void EndAll() LARDER_EXCLUDES(mu_);

 private:
  struct Call {
    const Order order;
    const std::vector<Block> blocks;
    const Answer answer;
    std::vector<BlockStatus> statuses;  // under mu_
    size_t open = 0;                    // likewise: parts that are not done
  };
  // A directive: a part of a call, of one session and variant.
  struct Part {
    SessionId session;
    VariantIndex variant = VariantIndex::kNone;
    std::vector<uint32_t> blocks;  // of the call's
    std::shared_ptr<Call> call;    // null: it was answered for, and is still owed
    TimePoint until = {};          // of one that was sent
  };
  using Parts = std::map<uint64_t, Part>;  // that were sent, by directive id
  // What one session owes, and is yet to be sent.  Gone where both are nothing.
  struct Line {
    size_t owed = 0;
    std::deque<Part> waiting = {};
    TimePoint until = {};  // that these wait, if it says nothing
  };
  using Lines = absl::flat_hash_map<SessionId, Line>;
  // Calls with nothing open, to be answered without the lock.
  using Answered = std::vector<std::shared_ptr<Call>>;

  [[nodiscard]] static std::shared_ptr<Call> Begin(Order order, std::vector<Block> blocks,
                                                   size_t statuses, Answer answer);
  // To the ends of their sessions' lines; those of a session stand together.
  void Queue(std::vector<Part> parts) LARDER_EXCLUDES(mu_);
  void SendWaiting(SessionId session) LARDER_EXCLUDES(mu_);
  // The next of its line, which it owes from now on; nullopt: there is none, or it owes too much.
  [[nodiscard]] std::optional<wire::Directive> TakeNext(SessionId session, VariantIndex* variant)
      LARDER_REQUIRES(mu_);
  void End(std::shared_ptr<Call> call) LARDER_EXCLUDES(mu_);
  // The same status of all its blocks, unless `statuses` says one of each.
  static void Close(Part& part, BlockStatus all, std::span<const BlockStatus> statuses,
                    Answered* answered);
  // Nobody waits in this line any more.
  static void CloseWaiting(Line& line, BlockStatus all, Answered* answered);
  void Erase(Parts::iterator part) LARDER_REQUIRES(mu_);
  static void Tell(const Answered& answered);

  const DeviceTable& devices_;
  const Clock& clock_;
  const WallClock now_ms_;
  Counters& counters_;
  const Send send_;

  Mutex mu_;
  bool ended_ LARDER_GUARDED_BY(mu_) = false;
  uint64_t last_id_ LARDER_GUARDED_BY(mu_) = 1;       // which is that of drain
  uint64_t waiting_from_ LARDER_GUARDED_BY(mu_) = 0;  // no directive before it has a call
  Parts parts_ LARDER_GUARDED_BY(mu_);
  Lines lines_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
