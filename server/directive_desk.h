// Directives: what engines are asked to do with what they have in device memory, and what became
// of it.
//
// The daemon keeps no pins of DEVICE: the engine does, until their deadline, and they go with it.
// An order goes to every session that has one of its blocks, and is answered when all of them have,
// or kPatience is over; a session that ends takes its device memory with it.
// Ownership: by Daemon; table and counters outlive it.
// Thread-safety: all methods from any thread.  Locks: nothing is held while a session or a caller
// is talked to.
// Limits: as many blocks an order as its caller may select.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/wire/messages.h"
#include "server/counters.h"
#include "server/device_table.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class DirectiveDesk {
 public:
  static constexpr std::chrono::seconds kPatience{5};

  struct Order {
    wire::DirectiveKind kind = wire::DirectiveKind::kPin;
    std::string engine_id = {};  // of this engine alone; empty: of all
    std::string owner = {};
    uint64_t deadline_unix_ms = 0;
    std::optional<Codec> codec = {};
    bool pinned = false;  // kDrop: also what is pinned
  };
  using Block = std::pair<VariantIndex, Digest>;
  // kOk: it is on its way.  kMissing: the session has ended.  kUnsupported: it takes none.
  using Send = std::function<BlockStatus(SessionId, VariantIndex, wire::Directive)>;
  DirectiveDesk(const DeviceTable& devices, const Clock& clock, Counters& counters, Send send)
      : devices_(devices), clock_(clock), counters_(counters), send_(std::move(send)) {}

  // One status a block, the worst of what the sessions said that have it.  kMissing: none has.
  // kPending: one was told, and has not answered yet.  kUnsupported: one takes no directives.
  // Called once, from this thread or another.
  using Answer = std::function<void(std::vector<BlockStatus>)>;
  void Give(const Order& order, std::span<const Block> blocks, Answer answer) LARDER_EXCLUDES(mu_);
  // The same, and waits.  REQUIRES: no lock is held, and this is no thread of a session.
  [[nodiscard]] std::vector<BlockStatus> GiveAndWait(const Order& order,
                                                     std::span<const Block> blocks)
      LARDER_EXCLUDES(mu_);
  // An order that is of no blocks, to each of these sessions: one status each, kOk where it was
  // done.
  void GiveAll(const Order& order, std::span<const SessionId> sessions, Answer answer)
      LARDER_EXCLUDES(mu_);

  // What a session says; nonsense and what comes too late is passed over.
  void Done(SessionId session, const wire::DirectiveDone& done) LARDER_EXCLUDES(mu_);
  void SessionEnded(SessionId session) LARDER_EXCLUDES(mu_);
  // Often: answers those whose patience is over.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_);

 private:
  struct Call {  // under mu_
    Answer answer;
    std::vector<BlockStatus> statuses;
    TimePoint until;
    size_t open = 0;  // directives that are not done
  };
  // A directive: a part of a call, of one session and variant.
  struct Part {
    SessionId session;
    VariantIndex variant = VariantIndex::kNone;
    std::vector<uint32_t> blocks;  // of the call's
    std::shared_ptr<Call> call;
  };
  using Parts = std::map<uint64_t, Part>;  // by directive id
  // Calls with nothing open, to be answered without the lock.
  using Answered = std::vector<std::shared_ptr<Call>>;

  uint64_t Add(Part part) LARDER_REQUIRES(mu_);
  // The parts that an order is made of, open.
  [[nodiscard]] std::vector<std::pair<uint64_t, Part>> Divide(const Order& order,
                                                              std::span<const Block> blocks,
                                                              const std::shared_ptr<Call>& call)
      LARDER_EXCLUDES(mu_);
  void SendAll(const Order& order, std::span<const Block> blocks,
               const std::vector<std::pair<uint64_t, Part>>& parts, std::shared_ptr<Call> call)
      LARDER_EXCLUDES(mu_);
  // The same status of all its blocks, unless `statuses` says one of each.
  void Close(Parts::iterator part, BlockStatus all, std::span<const BlockStatus> statuses,
             Answered* answered) LARDER_REQUIRES(mu_);
  static void Tell(const Answered& answered);

  const DeviceTable& devices_;
  const Clock& clock_;
  Counters& counters_;
  const Send send_;

  Mutex mu_;
  uint64_t last_id_ LARDER_GUARDED_BY(mu_) = 1;  // which is that of drain
  Parts parts_ LARDER_GUARDED_BY(mu_);
};

// What a verb needs to reach device memory; null where nothing is kept of it.
struct DeviceParts {
  const DeviceTable* table = nullptr;
  DirectiveDesk* desk = nullptr;
};

}  // namespace larder
