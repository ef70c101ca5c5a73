#include "server/runtime/shares.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/text.h"

namespace larder {
namespace {

constexpr uint64_t kUidTimes = 3;  // the processes of a uid may hold this many times what is free

struct KindText {
  std::string_view name;
  Duration pause;           // the shortest retry hint: sessions last long, calls do not
  std::string_view advice;  // the end of a refusal's text
};
constexpr std::chrono::milliseconds kSoon{20}, kLater{500};
constexpr KindText kTexts[kShareKinds] = {
    {"calls", kSoon, "wait for answers, or raise --calls-max"},
    {"sessions", kLater, "end sessions that are not used, or raise --sessions-max"},
    {"processes", kLater, "stop processes that are not used, or raise --sessions-max"},
    {"byte_streams", kSoon, "end streams, or raise --memory-limit"},
    {"message_bytes", kSoon, "send less at once, or raise --memory-limit"},
    {"waiting_bytes", kSoon, "wait for answers before sending more, or raise --memory-limit"},
    {"unread_bytes", kSoon, "read answers, ask for less at once, or raise --memory-limit"},
    {"watchers", kLater, "end watchers that are not read"},
    {"engines", kLater, "reuse engine ids, or clear what is stored of old ones"},
    {"variants", kLater, "register fewer, or clear what is stored of old engines"},
    {"variant_numbers", kLater, "reuse layouts; numbers are released when larderd restarts"},
    {"contents", kLater, "register fewer, or clear what is stored of old engines"},
    {"registration_bytes", kLater,
     "register less, with shorter names, or clear what is stored of old engines"},
    {"leases", kSoon, "release leases"},
    {"leased_bytes", kSoon, "release leases, or raise --lease-share"},
    {"reserved_bytes", kSoon, "publish or abort reservations, or raise --lease-share"},
    {"device_places", kLater, "report fewer blocks"},
};
const KindText& TextOf(ShareKind kind) { return kTexts[static_cast<size_t>(kind)]; }
size_t Index(ShareKind kind) { return static_cast<size_t>(kind); }

// Returns how much a holder may hold while `free` is free: `times` as much, or the floor if that is
// more, and at most the cap `max`.
uint64_t MostOf(const Shares::Limit& limit, uint64_t max, uint64_t times, uint64_t free) {
  const uint64_t ruled = free > UINT64_MAX / times ? UINT64_MAX : free * times;
  return std::min(max, std::max(limit.floor, ruled));
}

// Adds `amount` if the sum is within `max`.  It compares and exchanges instead of adding and
// undoing, because two threads that overshoot together could both be refused.
bool AddWithin(std::atomic<uint64_t>& held, uint64_t amount, uint64_t max) {
  uint64_t now = held.load(std::memory_order_relaxed);
  while (amount <= max && now <= max - amount) {
    if (held.compare_exchange_weak(now, now + amount, std::memory_order_relaxed)) return true;
  }
  return false;
}

ByteCount Times(ByteCount bytes, double share) {
  return ByteCount(static_cast<uint64_t>(static_cast<double>(bytes.value()) * share));
}

}  // namespace

std::string_view NameOf(ShareKind kind) { return TextOf(kind).name; }

std::string ShareHolder::ToString() const {
  if (!uid) return "callers without a sideband";
  if (process.value == 0) return absl::StrCat("uid ", *uid);
  return pid == 0 ? absl::StrCat("uid ", *uid, " without a sideband")
                  : absl::StrCat("uid ", *uid, " pid ", pid);
}

ShareHolder UnattachedOf(uid_t uid) {
  return {.uid = uid, .process = ProcessId{ShareHolder::kUnattached | uid}};
}

Shares::Limits Shares::LimitsOf(const Sizes& sizes) {
  constexpr ByteCount kStream = MiB(4);    // about what the messages of a stream take, both ways
  constexpr ByteCount kMessage = MiB(32);  // the longest message, and as much decoded
  constexpr ByteCount kWaiting = MiB(16);  // the longest message
  constexpr ByteCount kUnread = MiB(16), kUnreadFloor = MiB(1);
  Limits limits;
  const auto of = [&limits](ShareKind kind) -> Limit& { return limits[Index(kind)]; };
  of(ShareKind::kCalls) = {.all = sizes.calls_max};
  of(ShareKind::kSessions) = {.all = sizes.sessions_max};
  of(ShareKind::kProcesses) = {.all = sizes.sessions_max};
  of(ShareKind::kByteStreams) = {
      .all = std::max<uint64_t>(1, sizes.memory_limit.value() / kStream.value())};
  // Messages that are still arriving (incoming_messages.h), messages that wait (kWaitingBytes) and
  // answers that are not read yet (kUnreadBytes) have limits of their own.
  of(ShareKind::kMessageBytes) = {.all = std::max(sizes.memory_limit.value() / 2,
                                                  std::min(sizes.memory_limit, kMessage).value()),
                                  .floor = kMessage.value()};
  of(ShareKind::kWaitingBytes) = {.all = std::max(sizes.memory_limit.value() / 4, kWaiting.value()),
                                  .floor = kWaiting.value()};
  of(ShareKind::kUnreadBytes) = {.all = std::max(sizes.memory_limit.value() / 8, kUnread.value()),
                                 .floor = kUnreadFloor.value()};
  of(ShareKind::kWatchers) = {.all = 64};
  of(ShareKind::kEngines) = {.all = 4096};
  of(ShareKind::kVariants) = {.all = 65'534};
  of(ShareKind::kNumbers) = {.all = 65'534};  // VariantTable::kVariantsMax
  of(ShareKind::kContents) = {.all = 262'144};
  of(ShareKind::kRegistrationBytes) = {.all = sizes.registrations.value()};
  of(ShareKind::kLeases) = {.all = 131'072};  // about 300 B each
  of(ShareKind::kDevicePlaces) = {.all = 1 << 20};
  // Bytes of the pool have caps instead of the rule.  Leased bytes have no total, because a leased
  // block counts for every lease on it.
  const uint64_t share =
      sizes.pool == ByteCount(0) ? UINT64_MAX : Times(sizes.pool, sizes.lease_share).value();
  const uint64_t three =
      sizes.pool == ByteCount(0)
          ? UINT64_MAX
          : Times(sizes.pool, std::min(1.0, kUidTimes * sizes.lease_share)).value();
  of(ShareKind::kLeasedBytes) = {.floor = UINT64_MAX, .process_max = share, .uid_max = three};
  of(ShareKind::kReservedBytes) = {.floor = UINT64_MAX, .process_max = share, .uid_max = three};
  return limits;
}

Shares::Shares(const Limits& limits, OnRefused on_refused) : on_refused_(std::move(on_refused)) {
  for (size_t i = 0; i < states_.size(); ++i) states_[i].limit = limits[i];
}

// ---- tickets

Shares::Ticket& Shares::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Reset();
    shares_ = std::exchange(other.shares_, nullptr);
    book_ = std::move(other.book_);
    kind_ = other.kind_;
    amount_ = std::exchange(other.amount_, 0);
  }
  return *this;
}

void Shares::Ticket::ShrinkTo(uint64_t amount) {
  if (shares_ == nullptr || amount >= amount_) return;
  shares_->Give(book_.get(), kind_, amount_ - amount);
  amount_ = amount;
}

void Shares::Ticket::Merge(Ticket other) {
  if (shares_ == nullptr) {
    *this = std::move(other);
  } else if (other.shares_ != nullptr) {
    LARDER_CHECK(other.book_ == book_ && other.kind_ == kind_);
    amount_ += std::exchange(other.amount_, 0);
  }
}

void Shares::Ticket::Reset() {
  if (shares_ == nullptr) return;
  shares_->Give(book_.get(), kind_, amount_);
  shares_ = nullptr;
  book_.reset();
  amount_ = 0;
}

// ---- accounts

uint64_t Shares::Account::held(ShareKind kind) const {
  return book_->held[Index(kind)].load(std::memory_order_relaxed);
}

Shares::Account Shares::Account::OfUid() const {
  return book_ == nullptr || book_->uid == nullptr ? *this : Account(shares_, book_->uid);
}

Shares::Account Shares::Of(const ShareHolder& holder) {
  MutexLock lock(mu_);
  Sweep();
  const auto open = [this](std::weak_ptr<Book>& known, const ShareHolder& whose,
                           std::shared_ptr<Book> uid) {
    std::shared_ptr<Book> book = known.lock();
    if (book != nullptr) return book;
    book = std::make_shared<Book>(whose);
    book->uid = std::move(uid);
    known = book;
    return book;
  };
  if (!holder.uid) return {this, open(unnamed_, {}, nullptr)};
  auto uid = open(uids_[*holder.uid], {.uid = holder.uid, .process = {}}, nullptr);
  if (holder.process.value == 0) return {this, std::move(uid)};
  return {this, open(processes_[holder.process], holder, std::move(uid))};
}

void Shares::Sweep() {
  if (uids_.size() + processes_.size() < sweep_at_) return;
  const auto gone = [](const auto& entry) { return entry.second.expired(); };
  absl::erase_if(uids_, gone);
  absl::erase_if(processes_, gone);
  sweep_at_ = 2 * (uids_.size() + processes_.size()) + 64;
}

// ---- granting and refusing

uint64_t Shares::UidMax(const Limit& limit, const Book& uid) {
  return uid.holder.uid ? limit.uid_max : std::min(limit.uid_max, limit.process_max);
}

Shares::Answer Shares::Take(const std::shared_ptr<Book>& book, ShareKind kind, uint64_t amount) {
  if (amount == 0) {  // granted even if the holder already exceeds its share
    Answer nothing;
    nothing.ticket = Ticket(this, book, kind, 0);
    return nothing;
  }
  State& state = StateOf(kind);
  const Limit& limit = state.limit;
  Book* const uid = book == nullptr || book->uid == nullptr ? book.get() : book->uid.get();
  Book* const process = uid == book.get() ? nullptr : book.get();
  // The shares are checked before the total is charged: an amount that a share refuses would
  // otherwise count toward the total for a moment, and other holders could be refused.
  const uint64_t before = state.held.load(std::memory_order_relaxed);
  const uint64_t left = limit.all - std::min(limit.all, before);
  if (amount > left) return Refuse(kind, amount, nullptr, book.get());
  const uint64_t free = left - amount;
  const auto fits = [&](const Book* of, uint64_t max, uint64_t times) {
    const uint64_t most = MostOf(limit, max, times, free);
    const uint64_t held = of->held[Index(kind)].load(std::memory_order_relaxed);
    return amount <= most && held <= most - amount;
  };
  if (process != nullptr && !fits(process, limit.process_max, 1))
    return Refuse(kind, amount, process, book.get());
  const uint64_t uid_max = uid == nullptr ? UINT64_MAX : UidMax(limit, *uid);
  if (uid != nullptr && !fits(uid, uid_max, kUidTimes))
    return Refuse(kind, amount, uid, book.get());
  if (!AddWithin(state.held, amount, limit.all)) return Refuse(kind, amount, nullptr, book.get());
  const auto add = [&](Book* to, uint64_t max) {
    return to == nullptr || AddWithin(to->held[Index(kind)], amount, max);
  };
  if (!add(uid, uid_max)) {
    state.held.fetch_sub(amount, std::memory_order_relaxed);
    return Refuse(kind, amount, uid, book.get());
  }
  if (!add(process, limit.process_max)) {
    Give(uid, kind, amount);
    return Refuse(kind, amount, process, book.get());
  }
  Answer answer;
  answer.ticket = Ticket(this, book, kind, amount);
  return answer;
}

void Shares::Give(Book* book, ShareKind kind, uint64_t amount) {
  for (; book != nullptr; book = book->uid.get()) {
    book->held[Index(kind)].fetch_sub(amount, std::memory_order_relaxed);
  }
  StateOf(kind).held.fetch_sub(amount, std::memory_order_relaxed);
}

void Shares::CountRefused(ShareKind kind, const Book& asker) {
  ++StateOf(kind).refused;
  if (on_refused_) Tell(kind, &asker, Text(kind, Tightest(asker, kind), std::nullopt));
}

void Shares::Tell(ShareKind kind, const Book* asker, const std::string& why) const {
  if (!on_refused_) return;
  const auto uid = asker == nullptr ? std::nullopt : asker->holder.uid;
  on_refused_(absl::StrCat(AbslView(NameOf(kind)), uid ? absl::StrCat(" uid ", *uid) : " unnamed"),
              asker == nullptr ? why : absl::StrCat(asker->holder.ToString(), ": ", why));
}

std::string Shares::Text(ShareKind kind, const Book* full, std::optional<uint64_t> wanted) const {
  const State& state = StateOf(kind);
  const Limit& limit = state.limit;
  const KindText& words = TextOf(kind);
  const uint64_t in_all = state.held.load(std::memory_order_relaxed);
  const std::string more = wanted ? absl::StrCat(", ", *wanted, " more wanted") : "";
  std::string text = absl::StrCat("share of ", AbslView(words.name), ": ");
  if (full == nullptr) {
    absl::StrAppend(&text, in_all, " of ", limit.all, " are taken by all", more);
  } else {
    const bool of_process = full->uid != nullptr;
    absl::StrAppend(&text, full->holder.ToString(), " holds ",
                    full->held[Index(kind)].load(std::memory_order_relaxed), more, "; ");
    if (limit.floor == UINT64_MAX) {
      absl::StrAppend(&text, "the limit is ",
                      of_process ? limit.process_max : UidMax(limit, *full));
    } else {
      absl::StrAppend(&text, limit.all - std::min(limit.all, in_all), " of ", limit.all,
                      " are free, and it may hold at most ",
                      of_process ? "as much as is left" : "three times what is left");
    }
  }
  return absl::StrCat(text, ": ", AbslView(words.advice));
}

Shares::Answer Shares::Refuse(ShareKind kind, uint64_t amount, const Book* full,
                              const Book* asker) {
  State& state = StateOf(kind);
  const Limit& limit = state.limit;
  const uint64_t nth = state.refused.fetch_add(1, std::memory_order_relaxed);
  Answer answer;
  answer.own = full != nullptr;
  answer.why = Text(kind, full, amount);
  Tell(kind, asker, answer.why);
  uint64_t most = limit.all;
  if (full != nullptr)
    most = std::min(most, full->uid != nullptr ? limit.process_max : UidMax(limit, *full));
  // The retry hint is one to almost two times `pause`, so that callers refused together do not
  // retry together.
  constexpr uint64_t kSteps = 16;
  const Duration pause = TextOf(kind).pause;
  if (amount <= most) answer.retry_after = pause + pause * (nth % kSteps) / kSteps;
  return answer;
}

uint64_t Shares::Free(ShareKind kind) const {
  const State& state = StateOf(kind);
  return state.limit.all - std::min(state.limit.all, state.held.load(std::memory_order_relaxed));
}

uint64_t Shares::OwnRoom(const Book& book, ShareKind kind) const {
  const Limit& limit = StateOf(kind).limit;
  const bool of_process = book.uid != nullptr;
  const uint64_t times = of_process ? 1 : kUidTimes;
  const uint64_t free = Free(kind);
  const uint64_t held = book.held[Index(kind)].load(std::memory_order_relaxed);
  const auto left = [held](uint64_t most) { return most - std::min(most, held); };
  // `ruled` is the largest n for which held + n <= times * (free - n).
  const uint64_t most = free > UINT64_MAX / times ? UINT64_MAX : free * times;
  const uint64_t ruled = left(most) / (times + 1);
  return std::min(left(of_process ? limit.process_max : UidMax(limit, book)),
                  std::max(left(limit.floor), ruled));
}

uint64_t Shares::Room(const Book& book, ShareKind kind) const {
  uint64_t room = std::min(Free(kind), OwnRoom(book, kind));
  if (book.uid != nullptr) room = std::min(room, OwnRoom(*book.uid, kind));
  return room;
}

const Shares::Book* Shares::Tightest(const Book& book, ShareKind kind) const {
  const Book* tightest = &book;
  if (book.uid != nullptr && OwnRoom(*book.uid, kind) < OwnRoom(book, kind))
    tightest = book.uid.get();
  return Free(kind) <= OwnRoom(*tightest, kind) ? nullptr : tightest;
}

bool Shares::HasItsPart(const Book& book, ShareKind kind) const {
  const auto held_by = [kind](const Book& of) {
    return of.held[Index(kind)].load(std::memory_order_relaxed);
  };
  const Book& uid = book.uid == nullptr ? book : *book.uid;
  uint64_t uids = 0, processes = 0;
  {
    MutexLock lock(mu_);
    const auto holds = [&](const std::weak_ptr<Book>& known) {
      const std::shared_ptr<Book> other = known.lock();
      return other != nullptr && held_by(*other) > 0 ? other : nullptr;
    };
    if (holds(unnamed_)) ++uids;
    for (const auto& [id, known] : uids_) uids += holds(known) ? 1 : 0;
    for (const auto& [id, known] : processes_) {
      const std::shared_ptr<Book> other = holds(known);
      processes += other && other->uid.get() == &uid ? 1 : 0;
    }
  }
  return held_by(uid) * uids >= held(kind) &&
         (&uid == &book || held_by(book) * processes >= held_by(uid));
}

std::vector<Shares::Use> Shares::Uses(size_t most) const {
  std::vector<std::shared_ptr<Book>> books;
  {
    MutexLock lock(mu_);
    const auto add = [&books](const std::weak_ptr<Book>& known) {
      if (std::shared_ptr<Book> book = known.lock()) books.push_back(std::move(book));
    };
    add(unnamed_);
    for (const auto& [id, known] : uids_) add(known);
    for (const auto& [id, known] : processes_) add(known);
  }
  std::vector<Use> uses;
  for (size_t i = 0; i < kShareKinds; ++i) {
    const auto kind = static_cast<ShareKind>(i);
    Use& use = uses.emplace_back(Use{.kind = kind,
                                     .held = held(kind),
                                     .limit = limit(kind),
                                     .refused = refused(kind),
                                     .holders = {}});
    for (const std::shared_ptr<Book>& book : books) {
      const uint64_t held = book->held[i].load(std::memory_order_relaxed);
      if (held > 0) use.holders.push_back({book->holder, held});
    }
    std::ranges::sort(use.holders, std::greater(), &Use::Holder::held);
    if (use.holders.size() > most) use.holders.resize(most);
  }
  return uses;
}

}  // namespace larder
