// Limits how much of the daemon each process, and each user, may hold at once: one account for each
// process and uid, one table of limits, and a ticket for everything that is held.  Shares grants or
// refuses every request for the kinds below.
//
// The rule: after a grant, a process holds no more of a kind than stays free, and the processes of
// a uid together hold no more than three times what stays free.  So one process alone gets about
// half of a kind and one uid three quarters, and the more holders there are, the less each of them
// gets.  Up to the floor of a kind (1, or some MiB for the bytes of messages and answers) the rule
// does not limit a holder.  Kinds that count bytes of the pool have fixed caps instead.
//
// The total limit and the caps of a kind are exact: they are never exceeded, even when many threads
// take at once.  What the rule allows may be exceeded a little, because what is free may change
// between the check and the grant.  A refused request does not wait in Shares, and Shares never
// takes back what it granted.  Shares does not know gRPC: its caller turns a refusal into an
// answer.
// Ownership: the daemon creates it; it outlives every account and ticket.
// Thread-safety: Shares and Account may be used from any thread; a ticket from one thread at a
// time.
// Locks: mu_ protects the table of accounts only; it is a leaf, and Take does not acquire it.
// Lifecycle: Of -> Account -> Take -> the ticket lives as long as what it accounts for ->
// destroyed.
// Memory: about 300 B for each known process and uid.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// The name of each kind, and the advice that a refusal gives, are in shares.cc.
enum class ShareKind : uint8_t {
  kCalls,              // calls of Cache under way, except WatchEvents
  kSessions,           // attached sessions
  kProcesses,          // processes that the ProcessTable knows
  kByteStreams,        // StoreBlocks and FetchBlocks calls under way
  kMessageBytes,       // bytes for messages and byte streams under way, and for reads that wait
  kWaitingBytes,       // bytes of a session's messages that wait for kMessageBytes
  kUnreadBytes,        // bytes of answers that wait for their callers
  kWatchers,           // WatchEvents calls under way
  kEngines,            // known engine ids
  kVariants,           // variants of all registrations
  kNumbers,            // numbers of variants, released only by a restart
  kContents,           // contents of registrations, and those whose ids sessions keep
  kRegistrationBytes,  // bytes of names and numbers in registrations
  kLeases,             // leases, including revoked ones until they are acknowledged
  kLeasedBytes,        // bytes that leases hold; a block under two leases counts twice
  kReservedBytes,      // bytes of the pool that are reserved, mainly by writers
  kDevicePlaces,       // blocks that sessions report in device memory
};
inline constexpr size_t kShareKinds = 17;

// Returns the name of the kind in metrics, statistics and messages, such as "sessions".
[[nodiscard]] std::string_view NameOf(ShareKind kind);

// The holder of an account: a process that the sideband proved, a uid, all processes of a uid that
// show no sideband token, or (without a uid) all callers of which nothing is known.
struct ShareHolder {
  static constexpr uint64_t kUnattached = uint64_t{1} << 63;  // above all ids of the ProcessTable
  std::optional<uid_t> uid;
  ProcessId process;
  pid_t pid = 0;
  // Returns true if this stands for all processes of the user that show no sideband token.
  [[nodiscard]] bool unattached() const { return uid && (process.value & kUnattached) != 0; }
  // Returns "uid 1000 pid 77", "uid 1000", "uid 1000 without a sideband" or "callers without a
  // sideband", for example.
  [[nodiscard]] std::string ToString() const;
};
// Returns the one holder that stands for all processes of a user that show no sideband token.
[[nodiscard]] ShareHolder UnattachedOf(uid_t uid);

class Shares {
 public:
  struct Limit {
    uint64_t all = UINT64_MAX;
    uint64_t floor = 1;  // UINT64_MAX disables the rule
    uint64_t process_max = UINT64_MAX, uid_max = UINT64_MAX;
  };
  using Limits = std::array<Limit, kShareKinds>;  // by kind
  // The parts of the configuration on which limits depend.
  struct Sizes {
    uint64_t calls_max = 256;
    uint64_t sessions_max = 1024;
    ByteCount memory_limit = MiB(256);  // of messages and byte streams under way
    ByteCount pool;                     // 0 disables the limits of pool bytes
    double lease_share = 0.25;          // of the pool, for one process
    ByteCount registrations = MiB(64);  // of registrations; with a disk, its limit for them
  };
  [[nodiscard]] static Limits LimitsOf(const Sizes& sizes);

 private:
  struct Book {
    explicit Book(ShareHolder whose) : holder(whose) {}
    const ShareHolder holder;
    std::shared_ptr<Book> uid;  // of a process's book: the uid's book; otherwise null
    std::array<std::atomic<uint64_t>, kShareKinds> held{};
  };

 public:
  // An amount of a kind, which the destructor releases.  A ticket is empty when it is
  // default-constructed, moved from or reset.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Reset(); }
    [[nodiscard]] explicit operator bool() const { return shares_ != nullptr; }
    [[nodiscard]] uint64_t amount() const { return amount_; }
    // Releases everything beyond `amount`; a no-op if the ticket holds no more than that.
    void ShrinkTo(uint64_t amount);
    // Adds what `other` holds to this ticket.  REQUIRES: both tickets are of the same account and
    // kind, or one of them is empty.
    void Merge(Ticket other);
    void Reset();

   private:
    friend class Shares;
    Ticket(Shares* shares, std::shared_ptr<Book> book, ShareKind kind, uint64_t amount)
        : shares_(shares), book_(std::move(book)), kind_(kind), amount_(amount) {}
    Shares* shares_ = nullptr;
    std::shared_ptr<Book> book_;
    ShareKind kind_{};
    uint64_t amount_ = 0;
  };

  struct Answer {
    Ticket ticket;           // empty if the request was refused
    Duration retry_after{};  // if refused; 0 if the amount exceeds the total or a cap
    bool own = false;        // if refused: a share was full, not the total
    std::string why;         // if refused: which share, whose, the limit and what to do
    [[nodiscard]] bool admitted() const { return static_cast<bool>(ticket); }
  };

  class Account {
   public:
    Account() = default;  // REQUIRES, for all methods: the account came from Shares
    // An amount of 0 is always admitted; its ticket keeps the account alive.
    [[nodiscard]] Answer Take(ShareKind kind, uint64_t amount = 1) const {
      return shares_->Take(book_, kind, amount);
    }
    [[nodiscard]] Answer Take(ShareKind kind, ByteCount bytes) const {
      return Take(kind, bytes.value());
    }
    // Returns how much the account could take now.
    [[nodiscard]] uint64_t Room(ShareKind kind) const { return shares_->Room(*book_, kind); }
    // Counts a refusal that a caller decided from Room, without asking for a ticket.
    void CountRefused(ShareKind kind) const { shares_->CountRefused(kind, *book_); }
    [[nodiscard]] uint64_t held(ShareKind kind) const;
    // Returns true if the account holds at least an average part of what its uid holds of the kind,
    // and the uid at least an average part of what all hold.  When all holders wait for one
    // another, this is true for at least one of them, so refusing that one ends the wait.
    [[nodiscard]] bool HasItsPart(ShareKind kind) const {
      return shares_->HasItsPart(*book_, kind);
    }
    [[nodiscard]] const ShareHolder& holder() const { return book_->holder; }
    // Returns the account of this account's uid, for things that outlive a process.
    [[nodiscard]] Account OfUid() const;

   private:
    friend class Shares;
    Account(Shares* shares, std::shared_ptr<Book> book) : shares_(shares), book_(std::move(book)) {}
    Shares* shares_ = nullptr;
    std::shared_ptr<Book> book_;
  };

  // Called for each refusal, on the thread that asked, possibly often and under locks of the
  // caller.  One uid causes few different texts in `what`; `why` is a text for an operator.
  using OnRefused = std::function<void(const std::string& what, const std::string& why)>;
  explicit Shares(const Limits& limits, OnRefused on_refused = {});
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  [[nodiscard]] Account Of(const ShareHolder& holder) LARDER_EXCLUDES(mu_);
  // Returns an account whose tickets count only toward the total and are charged to no holder.
  // Only Take and OfUid may be called on it.
  [[nodiscard]] Account OfDaemon() { return {this, nullptr}; }

  [[nodiscard]] uint64_t held(ShareKind kind) const { return StateOf(kind).held.load(); }
  [[nodiscard]] uint64_t refused(ShareKind kind) const { return StateOf(kind).refused.load(); }
  [[nodiscard]] uint64_t limit(ShareKind kind) const { return StateOf(kind).limit.all; }

  struct Use {
    ShareKind kind{};
    uint64_t held = 0, limit = 0, refused = 0;
    struct Holder {
      ShareHolder holder;
      uint64_t held = 0;
    };
    std::vector<Holder> holders;  // processes and uids, the largest holder first
  };
  // Returns one entry for each kind, each with at most `most` holders: those that hold most.
  [[nodiscard]] std::vector<Use> Uses(size_t most) const LARDER_EXCLUDES(mu_);

 private:
  struct alignas(64) State {
    Limit limit;  // const after construction
    std::atomic<uint64_t> held{0};
    std::atomic<uint64_t> refused{0};
  };
  [[nodiscard]] Answer Take(const std::shared_ptr<Book>& book, ShareKind kind, uint64_t amount);
  [[nodiscard]] uint64_t Room(const Book& book, ShareKind kind) const;
  [[nodiscard]] bool HasItsPart(const Book& book, ShareKind kind) const LARDER_EXCLUDES(mu_);
  // `full` is the book whose share is full; null if the total is.
  [[nodiscard]] Answer Refuse(ShareKind kind, uint64_t amount, const Book* full, const Book* asker);
  void CountRefused(ShareKind kind, const Book& asker);
  // Returns the text of a refusal: which share, how much is held, the limit and what to do.  `full`
  // is the book whose share is full, or null if the total is.
  [[nodiscard]] std::string Text(ShareKind kind, const Book* full,
                                 std::optional<uint64_t> wanted) const;
  [[nodiscard]] uint64_t Free(ShareKind kind) const;
  // Returns how much more a book's own share allows.  The total may allow less.
  [[nodiscard]] uint64_t OwnRoom(const Book& book, ShareKind kind) const;
  // Returns the one that allows the least: `book`, its uid's book, or (null) the total.
  [[nodiscard]] const Book* Tightest(const Book& book, ShareKind kind) const;
  void Tell(ShareKind kind, const Book* asker, const std::string& why) const;
  void Give(Book* book, ShareKind kind, uint64_t amount);
  // Returns the cap of a uid's book.  Callers of which nothing is known share a book with the cap
  // of one process.
  [[nodiscard]] static uint64_t UidMax(const Limit& limit, const Book& uid);
  [[nodiscard]] const State& StateOf(ShareKind kind) const {
    return states_[static_cast<size_t>(kind)];
  }
  [[nodiscard]] State& StateOf(ShareKind kind) { return states_[static_cast<size_t>(kind)]; }
  void Sweep() LARDER_REQUIRES(mu_);

  const OnRefused on_refused_;
  std::array<State, kShareKinds> states_;
  mutable Mutex mu_;
  size_t sweep_at_ LARDER_GUARDED_BY(mu_) = 64;  // the number of books at which Sweep runs
  std::weak_ptr<Book> unnamed_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<uid_t, std::weak_ptr<Book>> uids_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<ProcessId, std::weak_ptr<Book>> processes_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
