// Lifecycle of a session: attach, register, deadlines, drain, end.  Writing is in session_write.cc,
// reading in session_read.cc.
#include "server/sessions/session.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/instances/device_table.h"
#include "server/instances/directive_queue.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr size_t kEvictionsMax = 4096;  // ahead, after one message
constexpr int64_t kTablesBeside = 64;   // so many of one grant fit beside others in a message

bool IsShort(const wire::Grant& grant) {
  return std::any_of(grant.blocks.begin(), grant.blocks.end(), [](const wire::BlockGrant& block) {
    return block.status == BlockStatus::kFull;
  });
}

bool HasAnswers(const wire::Down& down) {
  return !down.registered.empty() || !down.published.empty() || !down.reserved.empty() ||
         !down.grants.empty();
}

}  // namespace

absl::Status ChargeAnswers(const Shares::Account& account, size_t waiting,
                           Shares::Ticket* charged) {
  const uint64_t wanted = waiting > SessionSink::kFreeAnswerBytes ? waiting : 0;
  if (wanted == 0) charged->Reset();
  if (wanted <= charged->amount()) {
    charged->ShrinkTo(wanted);
    return absl::OkStatus();
  }
  Shares::Answer more = account.Take(ShareKind::kUnreadBytes, wanted - charged->amount());
  if (!more.admitted())
    return absl::ResourceExhaustedError(absl::StrCat("answers are not read: ", more.why));
  charged->Merge(std::move(more.ticket));
  return absl::OkStatus();
}

BlockWriter WriterOf(const Shares::Account& account, std::string_view engine_id) {
  BlockWriter writer;
  if (account.holder().uid && !account.holder().unattached()) writer.uid = *account.holder().uid;
  if (!engine_id.empty()) writer.engine = EngineNumber(engine_id);
  return writer;
}

absl::StatusOr<std::shared_ptr<AttachedSession>> AttachedSession::Create(
    SessionDeps& deps, SessionId id, std::optional<AttachedProcess> process,
    const ShareHolder& holder, std::string peer, SessionSink& sink) {
  std::shared_ptr<AttachedSession> session(
      new AttachedSession(deps, id, std::move(process), holder, std::move(peer), sink));
  if (session->process_) {
    LARDER_ASSIGN_OR_RETURN(session->page_, SessionPage::Create());
    if (!deps.processes.AddSession(session->process_->id)) {
      return absl::UnauthenticatedError("the process of this token is dead");
    }
  }
  return session;
}

AttachedSession::AttachedSession(SessionDeps& deps, SessionId id,
                                 std::optional<AttachedProcess> process, const ShareHolder& holder,
                                 std::string peer, SessionSink& sink)
    : deps_(deps),
      id_(id),
      process_(std::move(process)),
      account_(deps.shares.Of(holder)),
      peer_(std::move(peer)),
      next_deadline_(deps.clock.Now() + kHelloDeadline),
      sampler_(deps.check_one_in, uint64_t{std::random_device{}()} << 32 | id.value),
      sink_(&sink) {}

AttachedSession::~AttachedSession() = default;

void AttachedSession::Send(wire::Down message) {
  MutexLock lock(sink_mu_);
  if (sink_ != nullptr) sink_->Send(std::move(message));
}

absl::Status AttachedSession::OnUp(wire::Up& up) {
  wire::Down down;
  bool released = false;
  size_t promised = 0;  // extents
  {
    MutexLock lock(mu_);
    if (closed_) return absl::OkStatus();
    LARDER_RETURN_IF_ERROR(Admit(up));
    for (const wire::Register& r : up.registers) down.registered.push_back(Handle(r));
    // Nobody waits for a release: with acquires alone it comes after their answer, unless one of
    // them lacks what it gives back.
    released = up.releases.empty() || up.acquires.empty() || !up.reserves.empty();
    if (released) Release(up.releases);
    if (up.revoke_ack) Handle(*up.revoke_ack);
    for (const wire::Abort& a : up.aborts) Handle(a);
    // A released lease ends what was still to be read for it, too.
    CancelReads(up.cancels);
    promised = HandleWrites(up, &down);
    HandleAcquires(up, &released, &down);
    for (const wire::DamageReport& d : up.damaged) Handle(d);
    bye_ = bye_ || up.bye;
  }
  if (HasAnswers(down)) Send(std::move(down));
  // What an engine dropped is gone before the caller hears that it was.
  absl::Status reported;
  for (const wire::DeviceBlocks& d : up.device_blocks) {
    if (reported.ok()) reported = Handle(d);
  }
  if (reported.ok()) {
    for (const wire::DirectiveDone& d : up.directives_done) deps_.directives.Done(id_, d);
  }
  StartPromotions();  // what becomes ready follows its grant
  StartFillings();
  LARDER_RETURN_IF_ERROR(reported);  // what was granted is under way: its end gives it back
  // As many blocks leave as were promised, before the writer asks again, and on this thread: one
  // beside it would fight for the store's lock.
  if (promised > 0) deps_.store.EvictToWatermark(std::min(promised, kEvictionsMax));
  MutexLock lock(mu_);
  if (!released && !closed_) Release(up.releases);
  FinishIfDrained();  // after the answers, which would not leave any more
  return absl::OkStatus();
}

// Before anything of it is done.
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
  Count(up);
  return absl::OkStatus();
}

size_t AttachedSession::HandleWrites(wire::Up& up, wire::Down* down) {
  if (up.publishes.empty() && up.reserves.empty()) return 0;
  const TimePoint begun = deps_.clock.Now();
  for (wire::Publish& p : up.publishes) Handle(std::move(p), down);
  // A writer waits for what became of its blocks, not yet for room for its next ones.
  if (!down->published.empty() && !up.reserves.empty()) Send(std::exchange(*down, {}));
  size_t promised = 0;
  for (const wire::Reserve& r : up.reserves) {
    down->reserved.push_back(Handle(r));
    promised += down->reserved.back().extents.size();
  }
  deps_.counters.latencies.write.Observe(deps_.clock.Now() - begun);
  return promised;
}

void AttachedSession::HandleAcquires(const wire::Up& up, bool* released, wire::Down* down) {
  if (up.acquires.empty()) return;
  const TimePoint begun = deps_.clock.Now();
  for (const wire::Acquire& a : up.acquires) {
    down->grants.push_back(Handle(a));
    if (!*released && IsShort(down->grants.back())) {
      Release({&down->grants.back().lease, 1});
      Release(up.releases);
      *released = true;
      down->grants.back() = Handle(a);
    }
    CountGot(a, down->grants.back());
    const auto has_table = [](const wire::BlockGrant& block) { return block.table.has_value(); };
    const bool many = std::ranges::count_if(down->grants.back().blocks, has_table) > kTablesBeside;
    if (!a.want_tables && !many) continue;
    wire::Down alone;  // tables are large: two such answers may not fit one message
    alone.grants.push_back(std::move(down->grants.back()));
    down->grants.pop_back();
    Send(std::move(alone));
  }
  deps_.counters.latencies.acquire.Observe(deps_.clock.Now() - begun);
}

// One message must not make an answer of any size.
absl::Status AttachedSession::CheckAnswerSize(const wire::Up& up) {
  size_t keys = 0;
  size_t tables = 0;
  for (const wire::Acquire& a : up.acquires) {
    keys += a.digests.size();
    if (a.want_tables) tables += a.digests.size();
  }
  if (tables > kTablesPerMessageMax) {
    return absl::InvalidArgumentError(absl::StrCat("acquires: tables of ", tables,
                                                   " keys wanted in one message; at most ",
                                                   kTablesPerMessageMax));
  }
  if (keys <= kKeysPerMessageMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("acquires: ", keys, " keys in one message; at most ", kKeysPerMessageMax));
}

void AttachedSession::Count(const wire::Up& up) {
  if (!up.registers.empty()) deps_.counters.requests_register += up.registers.size();
  if (!up.publishes.empty()) deps_.counters.requests_publish += up.publishes.size();
  if (!up.reserves.empty()) deps_.counters.requests_reserve += up.reserves.size();
  if (!up.acquires.empty()) deps_.counters.requests_acquire += up.acquires.size();
}

absl::Status AttachedSession::Attach(const wire::Hello& hello) {
  engine_id_ = hello.engine_id;
  writer_ = WriterOf(account_, engine_id_);
  wire::Attached attached;
  attached.session = id_;
  attached.boot_id = deps_.boot_id;
  attached.tenant = deps_.tenant;
  attached.feature_bits = wire::kFeatureTiers | wire::kFeatureCodecs | wire::kFeatureDeviceBlocks |
                          wire::kFeatureDirectives | wire::kFeatureCopiedReads;
  ChooseModes(hello, &attached);
  directed_ = (hello.feature_bits & attached.feature_bits & wire::kFeatureDirectives) != 0;
  tiers_ = (hello.feature_bits & attached.feature_bits & wire::kFeatureTiers) != 0;
  attached.slab_bytes = deps_.store.pool().slab_bytes();
  attached.lease_bytes_max = deps_.store.lease_budget();
  attached.check_one_in = deps_.check_one_in;
  wire::InstanceSession info;
  info.session = id_;
  info.role = hello.role;
  info.rank = hello.rank;
  info.peer = peer_;
  info.write_mode = write_mode_;
  info.device = hello.device;
  LARDER_RETURN_IF_ERROR(deps_.instances.SessionBegan(engine_id_, info, &account_));
  deps_.devices.SessionBegan(id_, engine_id_, &account_);
  attached_ = true;
  wire::Down down;
  down.attached = std::move(attached);
  Send(std::move(down));
  return absl::OkStatus();
}

wire::WriteMode AttachedSession::ChooseWriteMode(wire::WriteMode wanted,
                                                 std::string* reason) const {
  if (!process_) {
    if (wanted != wire::WriteMode::kStream) {
      *reason =
          "no sideband token: shared memory needs the sideband socket of the same host; bytes go "
          "by stream";
    }
    return wire::WriteMode::kStream;
  }
  if (wanted == wire::WriteMode::kMapped && !process_->writable) {
    *reason = absl::StrCat("uid ", process_->uid,
                           " is not trusted to map the pool writable: staged; add it to "
                           "--trusted-uids to change that");
    return wire::WriteMode::kStaged;
  }
  return wanted;
}

// Who may not map slabs reads by copies; who lacks what staging takes has the byte streams.
void AttachedSession::ChooseModes(const wire::Hello& hello, wire::Attached* attached) {
  constexpr uint64_t kNeeded = wire::kFeatureTiers | wire::kFeatureCopiedReads;
  wire::WriteMode write = ChooseWriteMode(hello.write_mode, &attached->write_mode_reason);
  wire::ReadMode read = wire::ReadMode::kStream;
  std::string why = attached->write_mode_reason;
  if (write != wire::WriteMode::kStream) {
    const bool in_place = process_->writable || deps_.store.pool().sealed();
    read = in_place ? wire::ReadMode::kMapped : wire::ReadMode::kCopied;
    why = in_place ? ""
                   : absl::StrCat("uid ", process_->uid,
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
  write_mode_ = attached->write_mode = write;
  read_mode_ = attached->read_mode = read;
  attached->read_mode_reason = std::move(why);
}

wire::Registered AttachedSession::Handle(const wire::Register& request) {
  wire::Registered answer;
  answer.id = request.id;
  std::vector<ContentSpec> contents = request.contents;
  for (ContentSpec& content : contents) content.tenant = deps_.tenant;
  absl::StatusOr<std::vector<VariantIndex>> indices =
      deps_.instances.Register(engine_id_, contents, request.variants, &account_);
  if (!indices.ok()) {
    ++deps_.counters.registrations_refused;
    answer.status =
        absl::IsResourceExhausted(indices.status()) ? BlockStatus::kFull : BlockStatus::kInvalid;
    answer.message = std::string(indices.status().message());
    return answer;
  }
  for (size_t i = 0; i < indices->size(); ++i) {
    const VariantIndex index = (*indices)[i];
    const auto same = [&](const SessionVariant& v) { return v.index == index; };
    auto it = std::find_if(variants_.begin(), variants_.end(), same);
    if (it == variants_.end()) {
      variants_.push_back({index, request.variants[i].block_tokens, request.variants[i].layers});
      it = variants_.end() - 1;
    }
    answer.variants.push_back(static_cast<uint32_t>(it - variants_.begin()));
    answer.variant_ids.push_back(deps_.store.index().VariantId(index));
  }
  for (const ContentSpec& content : contents) {
    const Digest id = content.Id();
    answer.content_ids.push_back(id);
    if (std::ranges::find(contents_, id) == contents_.end()) contents_.push_back(id);
  }
  return answer;
}

std::optional<uint32_t> AttachedSession::TakeWord(uint64_t value) {
  return page_->AllocateWord(value);
}

void AttachedSession::Tick(TimePoint now) {
  wire::Revocation revocation;
  std::vector<ReservationId> ended;
  std::vector<LeaseId> promised;
  {
    MutexLock lock(mu_);
    if (closed_ || now < next_deadline_) return;
    next_deadline_ = draining_ && now < drained_from_ ? drained_from_ : TimePoint::max();
    if (!attached_) {
      // A stream that says nothing must not keep a place among the sessions.
      End(draining_ ? absl::OkStatus()
                    : absl::DeadlineExceededError(
                          "hello: not sent in time; it is the first message of a stream"));
      return;
    }
    for (auto& [id, record] : leases_) {
      if (record.revoked) continue;
      if (record.deadline > now) {
        next_deadline_ = std::min(next_deadline_, record.deadline);
        continue;
      }
      if (record.copied) {
        // Nothing of it reads the pool, and what it waits for still answers: CANCELLED.
        record.cancelled = true;
        if (record.promotion) Promoter::Cancel(record.promotion);
        LetGo(record);
        continue;
      }
      // The process may still read: the holds stay until it answers, releases or dies.
      record.revoked = true;
      if (record.promise) promised.push_back(id);
      if (record.promotion) Promoter::Cancel(record.promotion);
      if (page_) page_->Clear(record.word, id.value);  // a promise without a process has none
      revocation.leases.push_back(id);
    }
    for (auto& [id, record] : reservations_) {
      if (record->revoked) continue;
      if (record->deadline > now) {
        next_deadline_ = std::min(next_deadline_, record->deadline);
        continue;
      }
      if (write_mode_ != wire::WriteMode::kMapped) {
        ended.push_back(id);  // the client never mapped these extents
        continue;
      }
      record->revoked = true;
      page_->Clear(record->word, id.value);
      revocation.reservations.push_back(id);
    }
    for (const ReservationId id : ended) CloseReservation(id);
    Release(promised);  // nothing is read by them
    FinishIfDrained();
  }
  deps_.counters.reservations_expired += ended.size();
  if (revocation.leases.empty() && revocation.reservations.empty()) return;
  deps_.counters.leases_expired += revocation.leases.size();
  deps_.counters.reservations_expired += revocation.reservations.size();
  revocation.cause = wire::RevocationCause::kDeadline;
  wire::Down down;
  down.revocations.push_back(std::move(revocation));
  Send(std::move(down));
}

void AttachedSession::Drain() {
  MutexLock lock(mu_);
  if (closed_ || draining_) return;
  draining_ = true;
  drained_from_ = deps_.clock.Now() + kDrainGrace;
  next_deadline_ = std::min(next_deadline_, drained_from_);
  wire::Down down;
  wire::Directive& directive = down.directives.emplace_back();
  directive.directive_id = 1;
  directive.kind = wire::DirectiveKind::kDrain;
  Send(std::move(down));
}

void AttachedSession::FinishIfDrained() {
  if (Drained() && leases_.empty() && reservations_.empty() && copies_ == 0) End(absl::OkStatus());
}

void AttachedSession::Abandon() {
  End(absl::UnavailableError("larderd is stopping: attach again when it is back"));
}

void AttachedSession::End(absl::Status status) {
  MutexLock lock(sink_mu_);
  if (sink_ != nullptr) sink_->Finish(std::move(status));
}

void AttachedSession::OnUnmapped() {
  {
    MutexLock lock(mu_);
    bye_ = true;
  }
  {
    MutexLock lock(sink_mu_);
    if (sink_ != nullptr) sink_->Abort();
  }
  OnClosed();
}

void AttachedSession::OnClosed() {
  {
    MutexLock lock(sink_mu_);
    sink_ = nullptr;
  }
  Leases leases;
  Reservations reservations;
  bool attached = false;
  bool clean = false;
  {
    MutexLock lock(mu_);
    if (std::exchange(closed_, true)) return;
    clean = bye_;
    leases = std::exchange(leases_, {});
    reservations = std::exchange(reservations_, {});
    attached = attached_;
  }
  if (attached) deps_.instances.SessionEnded(engine_id_, id_);
  if (attached) deps_.devices.SessionEnded(id_);
  if (attached) deps_.directives.SessionEnded(id_);
  if (page_) page_->ClearAll();
  if (!process_) return;
  if (!clean) PutInQuarantine(std::move(leases), std::move(reservations));
  deps_.processes.RemoveSession(process_->id);
}

void AttachedSession::PutInQuarantine(Leases leases, Reservations reservations) {
  // What is charged for it stays charged.
  const auto charges = std::make_shared<std::vector<Shares::Ticket>>();
  std::vector<BlockLease> lost_leases;
  std::vector<ExtentReservation> lost_reservations;
  for (auto& [id, record] : leases) {
    if (record.copied) continue;  // nothing of the process can touch its blocks
    charges->push_back(std::move(record.place));
    charges->push_back(std::move(record.bytes));
    lost_leases.push_back(std::move(record.lease));
    std::ranges::move(record.decoded, std::back_inserter(lost_reservations));
  }
  // Staged extents are never mapped by the client: nothing of it can touch them.
  for (auto& [id, record] : reservations) {
    if (write_mode_ != wire::WriteMode::kMapped) continue;
    MutexLock lock(record->mu);
    charges->push_back(std::move(record->charged));
    lost_reservations.push_back(std::move(record->reservation));
  }
  // Counted first: a CLEAN that comes right after the Put takes the count back.
  const ProcessId process = process_->id;
  const bool counted = deps_.processes.AddQuarantine(process);
  if (!deps_.quarantine.Put(process, id_, std::move(lost_leases), std::move(lost_reservations),
                            charges)) {
    if (counted) deps_.processes.RemoveQuarantine(process);
    return;
  }
  ++deps_.counters.sessions_lost;
  // A process that is dead already will not be reported again.
  if (!deps_.processes.Contains(process)) deps_.quarantine.Release(process, id_);
}

absl::StatusOr<int> AttachedSession::OpenPage() const {
  if (!page_) return absl::FailedPreconditionError("this session has no revocation words");
  return page_->OpenDescriptor();
}

ByteCount AttachedSession::page_bytes() const { return page_ ? SessionPage::kBytes : ByteCount(0); }

}  // namespace larder
