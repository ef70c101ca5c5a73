// Binds the calls of client/client.h that name blocks, whichever session stored them: Lookup,
// Prefetch, Pin, Unpin, Clear, ListInstances, WatchEvents.
//
// Calls wait for the daemon without the GIL.
#include "client/python/cache_binding.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <stop_token>
#include <thread>
#include <tuple>

#include "client/python/buffer.h"
#include "client/python/session.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder::python {
namespace {

using Answers = std::vector<std::tuple<Digest, BlockStatus>>;

Answers AnswersOf(const std::vector<wire::BlockAnswer>& blocks) {
  Answers answers;
  for (const wire::BlockAnswer& block : blocks) answers.emplace_back(block.digest, block.status);
  return answers;
}

TierSet TiersOf(const std::vector<Tier>& tiers) {
  TierSet set = 0;
  for (const Tier tier : tiers) set |= TierBit(tier);
  return set;
}

// Calls a method of the client without the GIL.
template <class Query, class Result>
Result Call(Client& client,
            absl::StatusOr<Result> (Client::*method)(const Query&, const CallOptions&),
            const Query& query, double deadline_s) {
  const CallOptions options = Within(deadline_s);
  absl::StatusOr<Result> result = absl::UnknownError("");
  {
    const WithoutGil released;
    result = (client.*method)(query, options);
  }
  return OrRaise(std::move(result));
}

// ---- what is asked

wire::BlockSelection MakeSelection(std::string engine_id, nb::handle variants, nb::handle digests,
                                   std::optional<ContentSpec> content, nb::handle tokens,
                                   std::optional<uint32_t> uid) {
  wire::BlockSelection selection;
  selection.engine_id = std::move(engine_id);
  selection.variants = DigestsOf(variants);
  selection.digests = DigestsOf(digests);
  if (content) selection.content = *std::move(content);
  selection.tokens = NumbersOf(tokens);
  if (uid) selection.writer.uid = *uid;
  return selection;
}

void BindSelection(nb::module_& module) {
  nb::class_<wire::BlockSelection>(
      module, "BlockSelection",
      "Names blocks: by `digests` (of their last 16 tokens), or by `content` and `tokens`, whose "
      "whole blocks are meant.  Of these names, the blocks of the given variants (ids), otherwise "
      "of those that engine_id registered, otherwise of all.  uid: for SelectionScope.WRITER.")
      .def(
          "__init__",
          [](wire::BlockSelection* self, std::string engine_id, nb::handle variants,
             nb::handle digests, std::optional<ContentSpec> content, nb::handle tokens,
             std::optional<uint32_t> uid) {
            new (self) wire::BlockSelection(MakeSelection(std::move(engine_id), variants, digests,
                                                          std::move(content), tokens, uid));
          },
          nb::kw_only(), "engine_id"_a = "", "variants"_a = nb::bytes("", 0),
          "digests"_a = nb::bytes("", 0), "content"_a = nb::none(), "tokens"_a = nb::bytes("", 0),
          "uid"_a = nb::none())
      .def_ro("engine_id", &wire::BlockSelection::engine_id)
      .def_ro("variants", &wire::BlockSelection::variants)
      .def_ro("digests", &wire::BlockSelection::digests);
}

// ---- what is answered

void BindLookup(nb::module_& module) {
  nb::class_<wire::TierHit>(module, "TierHit", "What of a prefix an engine can load from a tier.")
      .def_ro("tier", &wire::TierHit::tier)
      .def_prop_ro(
          "contiguous", [](const wire::TierHit& self) { return self.contiguous.value(); },
          "Tokens from the beginning without a hole.")
      .def_ro("ranges", &wire::TierHit::ranges, "All that are there, also behind holes.")
      .def_prop_ro("bytes", [](const wire::TierHit& self) { return self.bytes.value(); })
      .def_ro("load_s", &wire::TierHit::load_s, "Estimated seconds to load `bytes`.");
  nb::class_<wire::InstanceHit>(module, "InstanceHit", "What of a prefix an engine can load.")
      .def_ro("engine_id", &wire::InstanceHit::engine_id)
      .def_ro("attached", &wire::InstanceHit::attached)
      .def_ro("tiers", &wire::InstanceHit::tiers, "The fastest first.");
  nb::class_<wire::LookupResult>(module, "LookupResult", "The answer of Client.lookup.")
      .def_ro("instances", &wire::LookupResult::instances,
              "The engine with the longest prefix first.")
      .def_ro("boot_id", &wire::LookupResult::boot_id, "Changes when the daemon restarts.");
}

void BindVerbResults(nb::module_& module) {
  nb::class_<wire::PinResult>(module, "PinResult", "The answer of Client.pin.")
      .def_prop_ro("blocks", [](const wire::PinResult& self) { return AnswersOf(self.blocks); })
      .def_prop_ro(
          "ends_unix_s",
          [](const wire::PinResult& self) {
            return static_cast<double>(self.deadline_unix_ms) / 1e3;
          },
          "When the pins end: seconds since 1970, by the daemon's clock.")
      .def_ro("durable", &wire::PinResult::durable, "Whether the pins outlive the daemon.");
  nb::class_<wire::UnpinResult>(module, "UnpinResult", "The answer of Client.unpin.")
      .def_prop_ro("blocks", [](const wire::UnpinResult& self) { return AnswersOf(self.blocks); })
      .def_ro("unpinned", &wire::UnpinResult::unpinned)
      .def_ro("sessions_unanswered", &wire::UnpinResult::sessions_unanswered);
  using Cleared = wire::ClearResult;
  nb::class_<Cleared::OfTier>(module, "TierCleared", "What left a tier.")
      .def_ro("blocks", &Cleared::OfTier::blocks)
      .def_prop_ro("bytes", [](const Cleared::OfTier& self) { return self.bytes.value(); });
  nb::class_<Cleared>(module, "ClearResult", "The answer of Client.clear.")
      .def_ro("host", &Cleared::host)
      .def_ro("disk", &Cleared::disk)
      .def_ro("device", &Cleared::device)
      .def_ro("leased", &Cleared::leased, "Removed blocks whose bytes are freed later.")
      .def_ro("kept_pinned", &Cleared::kept_pinned)
      .def_ro("kept_in_use", &Cleared::kept_in_use)
      .def_ro("pins_ended", &Cleared::pins_ended)
      .def_ro("unanswered", &Cleared::unanswered, "Blocks of DEVICE that may still be there.")
      .def_prop_ro(
          "blocks", [](const Cleared& self) { return AnswersOf(self.blocks); },
          "With SelectionScope.BLOCKS: a pair of digest and BlockStatus for each name.");
}

void BindInstances(nb::module_& module) {
  nb::class_<wire::InstanceSession>(module, "InstanceSession", "A process of an engine.")
      .def_prop_ro("session", [](const wire::InstanceSession& self) { return self.session.value; })
      .def_prop_ro(
          "role",
          [](const wire::InstanceSession& self) { return std::string(ToString(self.role)); })
      .def_ro("rank", &wire::InstanceSession::rank)
      .def_ro("peer", &wire::InstanceSession::peer)
      .def_prop_ro(
          "write_mode",
          [](const wire::InstanceSession& self) { return std::string(ToString(self.write_mode)); })
      .def_ro("age_s", &wire::InstanceSession::age_s);
  nb::class_<wire::InstanceInfo>(module, "InstanceInfo", "An engine that the daemon knows.")
      .def_ro("engine_id", &wire::InstanceInfo::engine_id)
      .def_ro("attached", &wire::InstanceInfo::attached)
      .def_ro("sessions", &wire::InstanceInfo::sessions)
      .def_ro("contents", &wire::InstanceInfo::contents, "Without their salts.")
      .def_ro("variants", &wire::InstanceInfo::variants)
      .def_ro("blocks", &wire::InstanceInfo::blocks)
      .def_prop_ro("bytes", [](const wire::InstanceInfo& self) { return self.bytes.value(); });
}

// ---- events

// The replies of one WatchEvents call, which a thread of its own takes in.
class EventStream {
 public:
  EventStream(std::shared_ptr<Client> client, wire::WatchQuery query)
      : feed_(std::make_unique<Feed>(std::move(client), std::move(query))) {}
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;
  // A forked child does not have the feed's thread and cannot join it, so it leaks the feed.
  ~EventStream() {
    if (getpid() != process_)
      (void)feed_.release();
    else
      Close();
  }

  // Returns a reply, or nullopt after the timeout.  Raises StopIteration if the stream was closed,
  // or why it ended.  The caller holds the GIL; signals are handled while it waits.
  std::optional<wire::WatchReply> Next(double timeout_s) {
    const TimePoint until = SteadyNow() + Milliseconds(timeout_s, "timeout_s", 86'400);
    for (;;) {
      const TimePoint look_at_signals = SteadyNow() + std::chrono::milliseconds(100);
      std::optional<wire::WatchReply> reply;
      std::optional<absl::Status> ended;
      {
        const WithoutGil released;
        feed_->Wait(std::min(until, look_at_signals), &reply, &ended);
      }
      if (reply) return reply;
      if (ended && ended->ok()) throw nb::stop_iteration();
      if (ended) Raise(*ended);
      if (SteadyNow() >= until) return std::nullopt;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  void Close() {
    const WithoutGil released;
    feed_->Close();
  }

 private:
  class Feed {
   public:
    Feed(std::shared_ptr<Client> client, wire::WatchQuery query)
        : client_(std::move(client)),
          thread_([this, query = std::move(query)](const std::stop_token& stop) {
            CallOptions options;
            options.stop = stop;
            const absl::Status ended = client_->WatchEvents(
                query, [&](const wire::WatchReply& reply) { return Add(reply, stop); }, options);
            const MutexLock lock(mu_);
            ended_ = ended;
            changed_.NotifyAll();
          }) {}
    // Sets *reply to the next one, or *ended if there is none any more; neither after `until`.
    void Wait(TimePoint until, std::optional<wire::WatchReply>* reply,
              std::optional<absl::Status>* ended) LARDER_EXCLUDES(mu_) {
      const MutexLock lock(mu_);
      while (replies_.empty() && !ended_ && changed_.WaitUntil(mu_, until)) {
      }
      if (replies_.empty()) {
        *ended = ended_;
        return;
      }
      *reply = std::move(replies_.front());
      replies_.pop_front();
      changed_.NotifyAll();
    }
    void Close() LARDER_EXCLUDES(mu_, joining_) {
      thread_.request_stop();
      {
        const MutexLock lock(mu_);
        changed_.NotifyAll();
      }
      const MutexLock lock(joining_);
      if (thread_.joinable()) thread_.join();
    }

   private:
    static constexpr size_t kRepliesMax = 64;  // then the daemon waits, or ends the stream

    bool Add(const wire::WatchReply& reply, const std::stop_token& stop) LARDER_EXCLUDES(mu_) {
      const MutexLock lock(mu_);
      while (replies_.size() >= kRepliesMax && !stop.stop_requested())
        changed_.WaitUntil(mu_, SteadyNow() + std::chrono::milliseconds(100));
      replies_.push_back(reply);
      changed_.NotifyAll();
      return !stop.stop_requested();
    }

    const std::shared_ptr<Client> client_;
    Mutex joining_, mu_;
    CondVar changed_;
    std::deque<wire::WatchReply> replies_ LARDER_GUARDED_BY(mu_);
    std::optional<absl::Status> ended_ LARDER_GUARDED_BY(mu_);  // OK: it was closed
    std::jthread thread_;                                       // uses the members above
  };

  const pid_t process_ = getpid();
  std::unique_ptr<Feed> feed_;
};

void BindEvents(nb::module_& module) {
  nb::class_<wire::BlockEvent>(
      module, "BlockEvent",
      "What happened to blocks of one variant in one tier.  If neither stored nor cleared, they "
      "were removed.  cleared: all that engine_id had in DEVICE is gone.")
      .def_ro("sequence", &wire::BlockEvent::sequence)
      .def_ro("stored", &wire::BlockEvent::stored)
      .def_ro("cleared", &wire::BlockEvent::cleared)
      .def_ro("variant", &wire::BlockEvent::variant)
      .def_ro("tier", &wire::BlockEvent::tier)
      .def_ro("engine_id", &wire::BlockEvent::engine_id, "Only for DEVICE.")
      .def_ro("digests", &wire::BlockEvent::digests)
      .def_prop_ro(
          "tokens",
          [](const wire::BlockEvent& self) {
            return self.chain ? self.chain->tokens : std::vector<uint32_t>();
          },
          "Of all blocks, which then are consecutive blocks of one chain; empty if they are not "
          "known, or were not asked for.")
      .def_prop_ro(
          "parent",
          [](const wire::BlockEvent& self) {
            return self.chain ? std::optional(self.chain->parent) : std::nullopt;
          },
          "The digest of the block before the first one, if the tokens are known.");
  nb::class_<wire::WatchReply>(module, "WatchReply", "Events that came together.")
      .def_ro("events", &wire::WatchReply::events)
      .def_ro("sequence", &wire::WatchReply::sequence,
              "`after`, to go on behind this reply; 0 before a snapshot is complete.")
      .def_ro("snapshot_end", &wire::WatchReply::snapshot_end)
      .def_ro("boot_id", &wire::WatchReply::boot_id, "In the first reply.");
  nb::class_<EventStream>(
      module, "EventStream",
      "Replies of Client.watch_events, to iterate over.  Raises why it ended: ConnectionError if "
      "the daemon is gone, RuntimeError with the code OUT_OF_RANGE if events were missed.")
      .def("next", &EventStream::Next, "timeout_s"_a,
           "Waits for a WatchReply.  Returns None after timeout_s.  Raises StopIteration after "
           "close.")
      .def("__iter__", [](nb::object self) { return self; })
      .def("__next__",
           [](EventStream& self) {
             for (;;)
               if (std::optional<wire::WatchReply> reply = self.Next(3'600))
                 return *std::move(reply);
           })
      .def("close", &EventStream::Close)
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](EventStream& self, nb::handle, nb::handle, nb::handle) { self.Close(); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

// ---- the calls

wire::LookupResult Lookup(Client& self, const ContentSpec& content, nb::handle tokens,
                          nb::handle steps, std::string engine_id, double deadline_s) {
  return Call(self, &Client::Lookup,
              wire::LookupQuery{.tenant = "",
                                .content = content,
                                .tokens = NumbersOf(tokens),
                                .digests = DigestsOf(steps),
                                .engine_id = std::move(engine_id)},
              deadline_s);
}

Answers Prefetch(Client& self, const wire::BlockSelection& blocks, double ttl_s,
                 double deadline_s) {
  return AnswersOf(Call(
      self, &Client::Prefetch,
      wire::PrefetchQuery{.tenant = "", .blocks = blocks, .ttl = Milliseconds(ttl_s, "ttl_s", 600)},
      deadline_s));
}

wire::PinResult Pin(Client& self, const wire::BlockSelection& blocks, std::string owner, Tier tier,
                    double ttl_s, double deadline_s) {
  return Call(self, &Client::Pin,
              wire::PinQuery{.tenant = "",
                             .blocks = blocks,
                             .owner = std::move(owner),
                             .tier = tier,
                             .ttl = Milliseconds(ttl_s, "ttl_s", 30 * 86'400)},
              deadline_s);
}

wire::UnpinResult Unpin(Client& self, std::string owner, std::optional<wire::BlockSelection> blocks,
                        Tier tier, double deadline_s) {
  return Call(
      self, &Client::Unpin,
      wire::UnpinQuery{
          .tenant = "", .blocks = std::move(blocks), .owner = std::move(owner), .tier = tier},
      deadline_s);
}

wire::ClearResult Clear(Client& self, wire::SelectionScope scope,
                        std::optional<wire::BlockSelection> blocks, const std::vector<Tier>& tiers,
                        bool pinned, bool dry_run, double deadline_s) {
  return Call(self, &Client::Clear,
              wire::ClearQuery{.tenant = "",
                               .scope = scope,
                               .blocks = std::move(blocks).value_or(wire::BlockSelection()),
                               .tiers = TiersOf(tiers),
                               .pinned = pinned,
                               .dry_run = dry_run},
              deadline_s);
}

std::vector<wire::InstanceInfo> Instances(Client& self, double deadline_s) {
  const CallOptions options = Within(deadline_s);
  absl::StatusOr<std::vector<wire::InstanceInfo>> instances = absl::UnknownError("");
  {
    const WithoutGil released;
    instances = self.ListInstances(options);
  }
  return OrRaise(std::move(instances));
}

std::unique_ptr<EventStream> WatchEvents(std::shared_ptr<Client> self, bool snapshot,
                                         std::string boot_id, uint64_t after,
                                         const std::vector<Tier>& tiers, bool with_tokens) {
  return std::make_unique<EventStream>(std::move(self),
                                       wire::WatchQuery{.tenant = "",
                                                        .snapshot = snapshot,
                                                        .boot_id = std::move(boot_id),
                                                        .after = after,
                                                        .tiers = TiersOf(tiers),
                                                        .with_tokens = with_tokens});
}

}  // namespace

void BindCacheMessages(nb::module_& module) {
  BindSelection(module);
  BindLookup(module);
  BindVerbResults(module);
  BindInstances(module);
  BindEvents(module);
}

void BindCacheCalls(nb::class_<Client>& cls) {
  cls.def("lookup", &Lookup, "content"_a, nb::kw_only(), "tokens"_a = nb::bytes("", 0),
          "steps"_a = nb::bytes("", 0), "engine_id"_a = "", "deadline_s"_a = 10.0,
          "Returns which engines can load how much of a prefix.  Give its tokens, or the digest of "
          "every 16 of them (chain).")
      .def("prefetch", &Prefetch, "blocks"_a, nb::kw_only(), "ttl_s"_a = 60.0,
           "deadline_s"_a = 10.0,
           "Has blocks brought from disk to HOST, and kept there for ttl_s; does not wait for "
           "them.  Returns a pair of digest and BlockStatus for each name.")
      .def("pin", &Pin, "blocks"_a, "owner"_a, nb::kw_only(), "tier"_a = Tier::kHost,
           "ttl_s"_a = 3600.0, "deadline_s"_a = 10.0,
           "Keeps blocks in a tier for ttl_s, at most 30 days, or until unpin by the same owner, a "
           "name of 1 to 256 bytes among this user's.")
      .def("unpin", &Unpin, "owner"_a, "blocks"_a = nb::none(), nb::kw_only(),
           "tier"_a = Tier::kHost, "deadline_s"_a = 10.0,
           "Ends pins of an owner: of these blocks in this tier, or all of them.")
      .def("clear", &Clear, "scope"_a, "blocks"_a = nb::none(), nb::kw_only(),
           "tiers"_a = std::vector<Tier>(), "pinned"_a = false, "dry_run"_a = false,
           "deadline_s"_a = 60.0,
           "Removes blocks of the tenant from tiers, by default HOST and DISK, whichever session "
           "stored them.  Needs the right to open control.sock.")
      .def("instances", &Instances, "deadline_s"_a = 10.0,
           "Returns an InstanceInfo for each engine that the daemon knows.")
      .def("watch_events", &WatchEvents, nb::kw_only(), "snapshot"_a = false, "boot_id"_a = "",
           "after"_a = 0, "tiers"_a = std::vector<Tier>(), "with_tokens"_a = false,
           "Returns an EventStream of what comes to tiers, by default HOST and DISK, and leaves "
           "them: from now on, after a snapshot of what is there, or behind a reply of an earlier "
           "stream (boot_id, after).  Needs the right to open control.sock.");
}

}  // namespace larder::python
