// Sends directives to the sessions of engines, and collects their answers.
//
// The daemon keeps no pins of DEVICE: the engine keeps them until their deadline, and they end with
// the engine.  Give sends an Order to each session (of Order::engine_id, if that is set) that
// reports one of the order's blocks in device memory, in directives of up to wire::kKeysMax keys,
// and calls the order's Answer when no directive of the order is open any more.  If a session ends,
// kMissing is recorded for its blocks, because its device memory ends with it.  At most about
// kOwedMax keys of a session are unanswered at a time; further directives wait, and are sent in
// order as the session answers.  The queue gives up on a directive that is not answered within
// about kPatience after it was sent, and on waiting directives if their session answers nothing for
// about that long.
// Ownership: Daemon owns it; the DeviceTable and the counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: mu_ is not held while the DeviceTable, Send or an Answer is called.
// Lifecycle: constructed -> Give ... -> EndAll, after which orders are answered without being sent.
// Limits: kOwedMax; the caller of Give limits the blocks of an order.
// Memory: about 25 B per block of an order that is not answered yet.
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
  // The upper limit of what a session has not answered: one for each key, plus kOwedOfDirective for
  // each directive.  It bounds the memory that a session which does not read can take.
  static constexpr size_t kOwedMax = 65'536, kOwedOfDirective = 16;
  static_assert(wire::kKeysMax + kOwedOfDirective <= kOwedMax);

  struct Order {
    wire::DirectiveKind kind = wire::DirectiveKind::kPin;
    std::string engine_id = {};  // empty means every engine
    std::string owner = {};
    uint64_t deadline_unix_ms = 0;
    std::optional<Codec> codec = {};
    bool pinned = false;  // kDrop: drop pinned blocks too
  };
  using Block = DeviceTable::Name;
  // Returns kOk if the directive is on its way, otherwise the status to record for its blocks, such
  // as kMissing if the session has ended.
  using Send = std::function<BlockStatus(SessionId, VariantIndex, wire::Directive)>;
  DirectiveQueue(const DeviceTable& devices, const Clock& clock, WallClock now_ms,
                 Counters& counters, Send send);

  // Receives one status per block: the worst one (Worse in block_selection.h) of the sessions to
  // which the order goes for this block, or kMissing if there is none.  A session's status is
  // usually what it answered (engine.proto, DirectiveDone), or, for example, kPending if it did not
  // answer in time.  Called once, on the thread that calls Give or on another one.
  using Answer = std::function<void(std::vector<BlockStatus>)>;
  void Give(Order order, std::vector<Block> blocks, Answer answer) LARDER_EXCLUDES(mu_);
  // Gives an order without blocks to each of these sessions.  `answer` receives one status per
  // session, kOk if the session answered that it did what was ordered.
  void GiveAll(Order order, std::span<const SessionId> sessions, Answer answer)
      LARDER_EXCLUDES(mu_);

  // Handles a session's answer to a directive, and then sends waiting directives to that session.
  // An answer to an unknown directive, or with a wrong number of statuses, is counted and ignored.
  // After the queue gave up on a directive, its answer changes no status, but the directive no
  // longer counts toward kOwedMax.
  void Done(SessionId session, const wire::DirectiveDone& done) LARDER_EXCLUDES(mu_);
  void SessionEnded(SessionId session) LARDER_EXCLUDES(mu_);
  // Records kPending for the directives on which the queue gives up.  To be called several times
  // per second.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_);
  void EndAll() LARDER_EXCLUDES(mu_);

 private:
  struct Call {
    const Order order;
    const std::vector<Block> blocks;
    const Answer answer;
    std::vector<BlockStatus> statuses;  // used under mu_
    size_t open = 0;                    // used under mu_: parts without an answer, plus 1 until End
  };
  // A directive: a part of a call, for one session and variant.
  struct Part {
    SessionId session;
    VariantIndex variant = VariantIndex::kNone;
    std::vector<uint32_t> blocks;  // indices in the call's statuses
    std::shared_ptr<Call> call;    // null if the queue gave up; it still counts toward kOwedMax
    TimePoint until = {};          // set when it is sent
  };
  using Parts = std::map<uint64_t, Part>;  // sent parts, by directive id
  // The directives of one session: the size (as for kOwedMax) of those that it has not answered,
  // and those that wait to be sent.  Erased when there is none of either.
  struct Line {
    size_t owed = 0;
    std::deque<Part> waiting = {};
    TimePoint until = {};  // when `waiting` is given up if the session does not answer
  };
  using Lines = absl::flat_hash_map<SessionId, Line>;
  // Calls without open parts, to be answered when mu_ is released.
  using Answered = std::vector<std::shared_ptr<Call>>;

  [[nodiscard]] static std::shared_ptr<Call> Begin(Order order, std::vector<Block> blocks,
                                                   size_t statuses, Answer answer);
  // Queues the parts, or, after EndAll, closes them, and sends as many as kOwedMax allows.
  // REQUIRES: the parts of a session are next to one another.
  void Queue(std::vector<Part> parts) LARDER_EXCLUDES(mu_);
  void SendWaiting(SessionId session) LARDER_EXCLUDES(mu_);
  // Takes the next directive that waits for the session, which counts as unanswered from now on.
  // Returns nullopt if none waits, or if the session would exceed kOwedMax.
  [[nodiscard]] std::optional<wire::Directive> TakeNext(SessionId session, VariantIndex* variant)
      LARDER_REQUIRES(mu_);
  void End(std::shared_ptr<Call> call) LARDER_EXCLUDES(mu_);
  // Closes the part and records `statuses`, one per block, or, if they are empty, `all` for every
  // block.  If no part of the call is open then, appends the call to *answered.
  static void Close(Part& part, BlockStatus all, std::span<const BlockStatus> statuses,
                    Answered* answered);
  // Closes and removes the parts that wait in this line.
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
  uint64_t last_id_ LARDER_GUARDED_BY(mu_) = 1;       // 1 is the id of the drain directive
  uint64_t waiting_from_ LARDER_GUARDED_BY(mu_) = 0;  // directives with lower ids have no call
  Parts parts_ LARDER_GUARDED_BY(mu_);
  Lines lines_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
