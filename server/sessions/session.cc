#include "server/sessions/session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/instances/device_table.h"
#include "server/instances/directive_queue.h"
#include "server/sessions/damage_checks.h"
#include "server/sessions/promise_table.h"
#include "storage/status_macros.h"
#include "storage/tiering/tier_worker.h"

namespace larder {
namespace {

constexpr size_t kEvictionsMax = 4096;  // the most blocks evicted in advance after a message
// A wire::Grant with more segment tables than this is sent in a message of its own.
constexpr int64_t kTablesBesideOthers = 64;

bool IsShort(const wire::Grant& grant) {
  return std::any_of(grant.blocks.begin(), grant.blocks.end(), [](const wire::BlockGrant& block) {
    return block.status == BlockStatus::kFull;
  });
}

bool HasAnswers(const wire::Down& down) {
  return !down.registered.empty() || !down.published.empty() || !down.reserved.empty() ||
         !down.promised.empty() || !down.grants.empty();
}

// Limits the size of the answers that one message can cause.  Returns InvalidArgument if its
// acquires have too many keys, or want too many segment tables.
absl::Status CheckAnswerSize(const wire::Up& up) {
  size_t keys = 0;
  size_t tables = 0;
  size_t steps = 0;
  for (const wire::Promise& p : up.promises) steps += p.digests.size();
  if (steps > wire::kLookupDigestsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "promises: ", steps, " steps in one message; at most ", wire::kLookupDigestsMax));
  }
  for (const wire::Acquire& a : up.acquires) {
    keys += a.digests.size();
    if (a.want_tables) tables += a.digests.size();
  }
  if (tables > wire::Acquire::kTablesMax) {
    return absl::InvalidArgumentError(absl::StrCat("acquires: tables of ", tables,
                                                   " keys wanted in one message; at most ",
                                                   wire::Acquire::kTablesMax));
  }
  if (keys <= AttachedSession::kKeysPerMessageMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "acquires: ", keys, " keys in one message; at most ", AttachedSession::kKeysPerMessageMax));
}

}  // namespace

absl::StatusOr<std::shared_ptr<AttachedSession>> AttachedSession::Create(
    SessionDeps& deps, SessionId id, std::optional<AttachedProcess> process,
    const ShareHolder& holder, std::string peer, SessionSink& sink) {
  std::shared_ptr<AttachedSession> session(
      new AttachedSession(deps, id, std::move(process), holder, std::move(peer), sink));
  session->context_.self = session;
  if (session->context_.process) {
    LARDER_ASSIGN_OR_RETURN(session->context_.page, SessionPage::Create());
    if (!deps.processes.AddSession(session->context_.process->id)) {
      return absl::UnauthenticatedError("the process of this token is dead");
    }
  }
  return session;
}

AttachedSession::AttachedSession(SessionDeps& deps, SessionId id,
                                 std::optional<AttachedProcess> process, const ShareHolder& holder,
                                 std::string peer, SessionSink& sink)
    : context_(deps, id, std::move(process), holder, sink),
      deps_(deps),
      peer_(std::move(peer)),
      next_deadline_(deps.clock.Now() + kHelloDeadline),
      registrations_(context_),
      reservations_(context_, registrations_,
                    [this] {
                      MutexLock lock(mu_);
                      FinishIfDrained();
                    }),
      leases_(context_, registrations_),
      device_(context_, registrations_) {}

// ---- messages

absl::Status AttachedSession::OnUp(wire::Up& up) {
  wire::Down down;
  bool released = false;
  size_t promised = 0;  // extents
  std::vector<Promoter::Prepared> reads;
  {
    MutexLock lock(mu_);
    if (closed_) return absl::OkStatus();
    LARDER_RETURN_IF_ERROR(Admit(up));
    answering_ = true;
    for (const wire::Register& r : up.registers)
      down.registered.push_back(registrations_.Register(r));
    // No client waits for a release.  So if a message has acquires but no reserves, its releases
    // are handled after the grants are sent, unless a grant has FULL blocks.
    released = up.releases.empty() || up.acquires.empty() || !up.reserves.empty();
    if (released) leases_.Release(up.releases);
    if (up.revoke_ack) {
      leases_.Acknowledge(up.revoke_ack->leases);
      for (const ReservationId r : up.revoke_ack->reservations) reservations_.Close(r);
    }
    for (const wire::Abort& a : up.aborts) reservations_.Abort(a);
    // Cancels are for leases that the client keeps, because releasing a lease ends its reads too.
    leases_.Cancel(up.cancels);
    promised = HandleWrites(up, &down);
    HandlePromises(up, &down, &reads);
    HandleAcquires(up, &released, &down);
    // A reader's report alone drops no block: the daemon checks the bytes itself.
    for (const wire::DamageReport& d : up.damaged) {
      if (const auto variant = registrations_.Find(d.variant))
        deps_.damage_checks.Report(context_.account.holder(), variant->index, d.digests);
    }
    bye_ = bye_ || up.bye;
  }
  if (HasAnswers(down)) context_.outlet.Send(std::move(down));
  {
    MutexLock lock(mu_);
    answering_ = false;
  }
  // Device reports are handled before answers to directives, since a report may remove the blocks
  // that such an answer says were dropped.
  for (const wire::DeviceBlocks& d : up.device_blocks) {
    if (!device_.Report(d).ok()) ++deps_.counters.device_reports_refused;
  }
  for (const wire::DirectiveDone& d : up.directives_done) deps_.directives.Done(id(), d);
  if (!reads.empty()) deps_.promises.StartReads(std::move(reads), &deps_.disk->promoter());
  leases_.StartReads();
  // If little of the pool is free, evicts some blocks in advance, so that the writer's next reserve
  // may find free memory.
  if (promised > 0) deps_.store.EvictToWatermark(std::min(promised, kEvictionsMax));
  MutexLock lock(mu_);
  if (!released && !closed_) leases_.Release(up.releases);
  FinishIfDrained();
  return absl::OkStatus();
}

absl::Status AttachedSession::Admit(const wire::Up& up) {
  if (up.hello.has_value() == attached_) {
    return absl::InvalidArgumentError(attached_ ? "hello: only in the first message"
                                                : "hello: required in the first message");
  }
  if (up.hello && !up.hello->tenant.empty() && up.hello->tenant != deps_.tenant) {
    return absl::PermissionDeniedError(
        absl::StrCat("hello.tenant: this caller has no role in '", up.hello->tenant, "'"));
  }
  if (up.hello) {
    LARDER_RETURN_IF_ERROR(Attach(*up.hello));
  }
  LARDER_RETURN_IF_ERROR(CheckAnswerSize(up));
  CountRequests(up);
  return absl::OkStatus();
}

size_t AttachedSession::HandleWrites(wire::Up& up, wire::Down* down) {
  if (up.publishes.empty() && up.reserves.empty()) return 0;
  const TimePoint begun = deps_.clock.Now();
  for (wire::Publish& p : up.publishes) reservations_.Publish(std::move(p), down);
  // A writer waits for the statuses of the blocks that it published, but not yet for memory for its
  // next blocks, so the statuses are sent first.
  if (!down->published.empty() && !up.reserves.empty())
    context_.outlet.Send(std::exchange(*down, {}));
  size_t promised = 0;
  for (const wire::Reserve& r : up.reserves) {
    down->reserved.push_back(reservations_.Reserve(r));
    promised += down->reserved.back().extents.size();
  }
  deps_.counters.latencies.write.Observe(deps_.clock.Now() - begun);
  return promised;
}

void AttachedSession::HandlePromises(const wire::Up& up, wire::Down* down,
                                     std::vector<Promoter::Prepared>* reads) {
  if (up.promises.empty()) return;
  const TimePoint begun = deps_.clock.Now();
  const bool disk =
      context_.tiers && deps_.disk != nullptr && deps_.disk->promoter().worth_asking();
  const PromiseTable::Caller caller{
      .session = id(),
      .engine_id = context_.engine_id,
      .account = context_.account,
      .tell = [context = &context_, session = context_.self](wire::Down news) {
        if (const std::shared_ptr<const void> alive = session.lock())
          context->outlet.Send(std::move(news));
      }};
  size_t blocks = PromiseTable::kBlocksMax;
  for (const wire::Promise& p : up.promises) {
    wire::Promised& answer = down->promised.emplace_back();
    answer.id = p.id;
    if (context_.Drained()) {
      answer.status = BlockStatus::kCancelled;
    } else if (p.promise) {
      answer = deps_.promises.Join(caller, p);
    } else if (const auto variants = registrations_.FindAll(p.variants); !variants) {
      answer.status = BlockStatus::kInvalid;
    } else {
      PromiseTable::Answer made =
          deps_.promises.Make(caller, LeaseId{context_.NewId()}, p, *variants,
                              disk ? &deps_.disk->promoter() : nullptr, &blocks);
      answer = std::move(made.promised);
      std::ranges::move(made.reads, std::back_inserter(*reads));
    }
  }
  deps_.counters.latencies.acquire.Observe(deps_.clock.Now() - begun);
}

void AttachedSession::HandleAcquires(const wire::Up& up, bool* released, wire::Down* down) {
  if (up.acquires.empty()) return;
  const TimePoint begun = deps_.clock.Now();
  for (const wire::Acquire& a : up.acquires) {
    down->grants.push_back(leases_.Acquire(a));
    if (!*released && IsShort(down->grants.back())) {
      leases_.Release({&down->grants.back().lease, 1});
      leases_.Release(up.releases);
      *released = true;
      down->grants.back() = leases_.Acquire(a);
    }
    leases_.Count(a, down->grants.back());
    const auto has_table = [](const wire::BlockGrant& block) { return block.table.has_value(); };
    const bool many =
        std::ranges::count_if(down->grants.back().blocks, has_table) > kTablesBesideOthers;
    if (!a.want_tables && !many) continue;
    wire::Down alone;  // tables are large: two such answers may not fit one message
    alone.grants.push_back(std::move(down->grants.back()));
    down->grants.pop_back();
    context_.outlet.Send(std::move(alone));
  }
  deps_.counters.latencies.acquire.Observe(deps_.clock.Now() - begun);
}

void AttachedSession::CountRequests(const wire::Up& up) {
  if (!up.registers.empty()) deps_.counters.requests_register += up.registers.size();
  if (!up.publishes.empty()) deps_.counters.requests_publish += up.publishes.size();
  if (!up.reserves.empty()) deps_.counters.requests_reserve += up.reserves.size();
  if (!up.promises.empty()) deps_.counters.requests_promise += up.promises.size();
  if (!up.acquires.empty()) deps_.counters.requests_acquire += up.acquires.size();
}

// ---- the hello

absl::Status AttachedSession::Attach(const wire::Hello& hello) {
  context_.engine_id = hello.engine_id;
  context_.writer = WriterOf(context_.account, hello.engine_id);
  wire::Attached attached;
  attached.session = id();
  attached.boot_id = deps_.boot_id;
  attached.tenant = deps_.tenant;
  attached.feature_bits = wire::kFeatureTiers | wire::kFeatureCodecs | wire::kFeatureDeviceBlocks |
                          wire::kFeatureDirectives | wire::kFeatureCopiedReads |
                          wire::kFeaturePromises;
  ChooseModes(hello, &attached);
  const uint64_t features = hello.feature_bits & attached.feature_bits;
  if ((features & wire::kFeatureDirectives) != 0) device_.TakeDirectives();
  context_.tiers = (features & wire::kFeatureTiers) != 0;
  attached.slab_bytes = deps_.store.pool().slab_bytes();
  attached.lease_bytes_max = deps_.store.lease_budget();
  attached.check_one_in = deps_.check_one_in;
  wire::InstanceSession info;
  info.session = id();
  info.role = hello.role;
  info.rank = hello.rank;
  info.peer = peer_;
  info.write_mode = write_mode();
  info.device = hello.device;
  LARDER_RETURN_IF_ERROR(deps_.instances.SessionBegan(context_.engine_id, info, &context_.account));
  deps_.devices.SessionBegan(id(), context_.engine_id, &context_.account);
  attached_ = true;
  next_deadline_ = draining_ ? next_deadline_ : TimePoint::max();
  wire::Down down;
  down.attached = std::move(attached);
  context_.outlet.Send(std::move(down));
  return absl::OkStatus();
}

wire::WriteMode AttachedSession::ChooseWriteMode(wire::WriteMode wanted,
                                                 std::string* reason) const {
  if (!context_.process) {
    if (wanted != wire::WriteMode::kStream) {
      *reason =
          "no sideband token: shared memory needs the sideband socket of the same host; bytes go "
          "by stream";
    }
    return wire::WriteMode::kStream;
  }
  if (wanted == wire::WriteMode::kMapped && !context_.process->writable) {
    *reason = absl::StrCat("uid ", context_.process->uid,
                           " is not trusted to map the pool writable: staged; add it to "
                           "--trusted-uids to change that");
    return wire::WriteMode::kStaged;
  }
  return wanted;
}

// A session that uses shared memory, but may not map slabs, gets the read mode copied.  A session
// that needs staging segments, but whose client does not support them, gets the write and read mode
// stream.
void AttachedSession::ChooseModes(const wire::Hello& hello, wire::Attached* attached) {
  constexpr uint64_t kNeeded = wire::kFeatureTiers | wire::kFeatureCopiedReads;
  wire::WriteMode write = ChooseWriteMode(hello.write_mode, &attached->write_mode_reason);
  wire::ReadMode read = wire::ReadMode::kStream;
  std::string why = attached->write_mode_reason;
  if (write != wire::WriteMode::kStream) {
    const bool in_place = context_.process->writable || deps_.store.pool().sealed();
    read = in_place ? wire::ReadMode::kMapped : wire::ReadMode::kCopied;
    why = in_place ? ""
                   : absl::StrCat("uid ", context_.process->uid,
                                  " is not trusted, and the pool has mapped writers: the daemon "
                                  "copies what it reads; see --trusted-uids");
    const bool staging = write == wire::WriteMode::kStaged || !in_place;
    if (staging && (hello.feature_bits & kNeeded) != kNeeded) {
      write = wire::WriteMode::kStream;
      read = wire::ReadMode::kStream;
      why =
          "the client library is older than this larderd, which makes staging segments itself: "
          "bytes go by stream; update it";
      attached->write_mode_reason = why;
    }
  }
  context_.write_mode = attached->write_mode = write;
  context_.read_mode = attached->read_mode = read;
  attached->read_mode_reason = std::move(why);
}

// ---- other threads

void AttachedSession::Tick(TimePoint now) {
  wire::Revocation revocation;
  {
    MutexLock lock(mu_);
    if (closed_) return;
    bool due = now >= next_deadline_;
    if (due)
      next_deadline_ = draining_ && context_.drained_from.load() > now
                           ? context_.drained_from.load()
                           : TimePoint::max();
    if (!attached_) {
      if (!due) return;
      // A stream that sends no hello must not keep its place among the sessions.
      return context_.outlet.Finish(
          draining_ ? absl::OkStatus()
                    : absl::DeadlineExceededError(
                          "hello: not sent in time; it is the first message of a stream"));
    }
    due = leases_.Tick(now, &revocation.leases) || due;
    due = reservations_.Tick(now, &revocation.reservations) || due;
    if (due) FinishIfDrained();
  }
  if (revocation.leases.empty() && revocation.reservations.empty()) return;
  revocation.cause = wire::RevocationCause::kDeadline;
  wire::Down down;
  down.revocations.push_back(std::move(revocation));
  context_.outlet.Send(std::move(down));
}

BlockStatus AttachedSession::Direct(VariantIndex variant, wire::Directive directive) {
  {
    MutexLock lock(mu_);
    if (!attached_ || closed_) return BlockStatus::kMissing;
  }
  return device_.Direct(variant, std::move(directive));
}

void AttachedSession::OnDurable(VariantIndex variant, std::span<const Digest> digests) {
  {
    MutexLock lock(mu_);  // waits while a message is being handled
    if (closed_ || !context_.tiers) return;
  }
  const std::optional<uint32_t> number = registrations_.NumberOf(variant);
  if (!number) return;
  while (!digests.empty()) {  // `digests` may not fit one message
    const auto some = digests.first(std::min<size_t>(digests.size(), wire::kKeysMax));
    digests = digests.subspan(some.size());
    wire::Down down;
    down.durable.push_back({.variant = *number, .digests = {some.begin(), some.end()}});
    context_.outlet.Send(std::move(down));
  }
}

// ---- the end

void AttachedSession::Drain() {
  MutexLock lock(mu_);
  if (closed_ || draining_) return;
  draining_ = true;
  const TimePoint drained_from = deps_.clock.Now() + kDrainGrace;
  context_.drained_from = drained_from;
  next_deadline_ = std::min(next_deadline_, drained_from);
  wire::Down down;
  wire::Directive& directive = down.directives.emplace_back();
  directive.directive_id = 1;
  directive.kind = wire::DirectiveKind::kDrain;
  context_.outlet.Send(std::move(down));
}

void AttachedSession::FinishIfDrained() {
  if (context_.Drained() && !answering_ && leases_.empty() && reservations_.idle())
    context_.outlet.Finish(absl::OkStatus());
}

void AttachedSession::Abandon() {
  context_.outlet.Finish(
      absl::UnavailableError("larderd is stopping: attach again when it is back"));
}

void AttachedSession::OnUnmapped() {
  {
    MutexLock lock(mu_);
    bye_ = true;
  }
  context_.outlet.Abort();
  OnClosed();
}

void AttachedSession::OnClosed() {
  context_.outlet.Close();
  SessionHoldings touchable;
  bool attached = false;
  bool clean = false;
  {
    MutexLock lock(mu_);
    if (std::exchange(closed_, true)) return;  // from now on OnUp ignores messages
    clean = bye_;
    attached = attached_;
  }
  if (attached) {
    deps_.instances.SessionEnded(context_.engine_id, id());
    deps_.devices.SessionEnded(id());
    deps_.directives.SessionEnded(id());
  }
  // The page's words are cleared before an extent of the session can be given to another holder.
  if (context_.page) context_.page->ClearAll();
  deps_.promises.EndSession(id());
  leases_.End(&touchable);
  reservations_.End(clean, &touchable);
  if (!context_.process) return;
  if (!clean) PutInQuarantine(std::move(touchable));
  deps_.processes.RemoveSession(process());
}

void AttachedSession::PutInQuarantine(SessionHoldings holdings) {
  // The process stays charged for as long as the quarantine keeps its leases and extents.
  using Charges = std::pair<std::vector<Shares::Ticket>, std::vector<LedgerHold>>;
  const auto charges =
      std::make_shared<Charges>(std::move(holdings.charges), std::move(holdings.under_promises));
  // Counted before Put, because a CLEAN frame, which the process may send right after Put,
  // decrements the count.
  const bool counted = deps_.processes.AddQuarantine(process());
  if (!deps_.quarantine.Put(process(), id(), std::move(holdings.leases),
                            std::move(holdings.extents), charges)) {
    if (counted) deps_.processes.RemoveQuarantine(process());
    return;
  }
  ++deps_.counters.sessions_lost;
  // If the process has died already, its death is not reported again, so nothing else would release
  // what was put.
  if (!deps_.processes.Contains(process())) deps_.quarantine.Release(process(), id());
}

absl::StatusOr<int> AttachedSession::OpenPage() const {
  if (!context_.page) return absl::FailedPreconditionError("this session has no page");
  return context_.page->OpenDescriptor();
}

ByteCount AttachedSession::page_bytes() const {
  return context_.page ? SessionPage::kBytes : ByteCount(0);
}

}  // namespace larder
