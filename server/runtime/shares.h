// What each process, and each user, may hold of the daemon at once: one account for each, one table
// of limits, and a ticket for whatever is held.  The only door where something is refused because
// there is too much of it.
//
// The rule: a process gets more while it then holds no more than is still free; the processes of a
// uid together, three times that.  So one process alone gets half of a kind and one uid three
// quarters; the more there are, the less each; and something is left for a holder that comes.  Up
// to the floor of a kind (one; of bytes, a message) the rule does not ask.  Kinds of the pool's
// bytes have fixed caps.
//
// What a kind has in all is exact: never more is held, also while many threads knock.  The other
// limits are as exact as what was free a moment ago.  Nothing queues here, and nothing is taken
// back.  Does not know gRPC: a service turns a refusal into RESOURCE_EXHAUSTED.
// Ownership: made by the daemon, outlives every account and ticket.
// Thread-safety: Shares and Account from any thread; a ticket from one thread at a time.
// Lifecycle: Of -> Account -> Take -> the ticket lives as long as what is held -> dropped.
// Memory: about 300 B for each process and uid that holds an account or a ticket.
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

// Of each: its name, unit and what to do about a refusal are in shares.cc.
enum class ShareKind : uint8_t {
  kCalls,              // under way, but for the sessions' streams
  kSessions,           // attached
  kProcesses,          // known by the sideband: connected, with a session or in quarantine
  kByteStreams,        // StoreBlocks and FetchBlocks under way
  kMessageBytes,       // of messages under way
  kWaitingBytes,       // of messages that have come and wait for room in kMessageBytes
  kUnreadBytes,        // of answers that their callers have not read
  kWatchers,           // WatchEvents under way
  kEngines,            // engine ids that are known
  kVariants,           // of all registrations
  kNumbers,            // of variants, which are not given back
  kContents,           // likewise
  kRegistrationBytes,  // names and numbers in them, in memory and as much on disk
  kLeases,             // that are held, revoked ones until they are acknowledged
  kLeasedBytes,        // of blocks under them; one that two leases hold counts twice
  kReservedBytes,      // of the pool, promised to writers
  kDevicePlaces,       // blocks that sessions say they have in device memory
};
inline constexpr size_t kShareKinds = 17;

// For metrics, status and messages: "sessions".
[[nodiscard]] std::string_view NameOf(ShareKind kind);

// Who holds: a process as the sideband proved it, or (without a uid) all callers that named none.
struct ShareHolder {
  static constexpr uint64_t kUnattached = uint64_t{1} << 63;  // above all that the table numbers
  std::optional<uid_t> uid;
  ProcessId process;
  pid_t pid = 0;
  // All processes of the user that show no token, as one.
  [[nodiscard]] bool unattached() const { return uid && (process.value & kUnattached) != 0; }
  // "uid 1000 pid 77"; "uid 1000"; "uid 1000 without a sideband"; "callers without a sideband".
  [[nodiscard]] std::string ToString() const;
};
// The processes of a user that the sideband did not prove, as one of his.
[[nodiscard]] ShareHolder UnattachedOf(uid_t uid);

class Shares {
 public:
  struct Limit {
    uint64_t all = UINT64_MAX;
    uint64_t floor = 1;  // UINT64_MAX: the rule never asks
    uint64_t process_max = UINT64_MAX, uid_max = UINT64_MAX;
  };
  using Limits = std::array<Limit, kShareKinds>;  // by kind
  // From what an operator chooses; the rest is fixed.
  struct Sizes {
    uint64_t calls_max = 256;
    uint64_t sessions_max = 1024;
    ByteCount memory_limit = MiB(256);  // of messages and byte streams under way
    ByteCount pool;                     // 0: no limits of its bytes
    double lease_share = 0.25;          // of the pool, for a process
    ByteCount registrations = MiB(64);  // what they may take on disk, or in memory where is none
  };
  [[nodiscard]] static Limits LimitsOf(const Sizes& sizes);

 private:
  struct Book {
    explicit Book(ShareHolder whose) : holder(whose) {}
    const ShareHolder holder;
    std::shared_ptr<Book> uid;  // a process's; null: this is a uid's
    std::array<std::atomic<uint64_t>, kShareKinds> held{};
  };

 public:
  // So much of a kind, until dropped.  Empty when default-made or moved from.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Reset(); }
    [[nodiscard]] explicit operator bool() const { return shares_ != nullptr; }
    [[nodiscard]] uint64_t amount() const { return amount_; }
    // Gives back all but `amount`; no-op where it has no more.
    void ShrinkTo(uint64_t amount);
    // `other` is of the same account and kind; it is empty afterwards.
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
    Ticket ticket;           // empty: refused
    Duration retry_after{};  // when refused; zero: never fits, do not come back with so much
    bool own = false;        // when refused: the holder's own share, not what all have
    std::string why;         // when refused: which share, whose, the limit and what to do
    [[nodiscard]] bool admitted() const { return static_cast<bool>(ticket); }
  };

  class Account {
   public:
    Account() = default;  // REQUIRES of all methods: from Shares
    // An amount of 0 is admitted, and holds the account.
    [[nodiscard]] Answer Take(ShareKind kind, uint64_t amount = 1) const {
      return shares_->Take(book_, kind, amount);
    }
    [[nodiscard]] Answer Take(ShareKind kind, ByteCount bytes) const {
      return Take(kind, bytes.value());
    }
    // How much it could take now.
    [[nodiscard]] uint64_t Room(ShareKind kind) const { return shares_->Room(*book_, kind); }
    // Somebody was refused who asked for the room and not for a ticket.
    void CountRefused(ShareKind kind) const { shares_->CountRefused(kind, *book_); }
    [[nodiscard]] uint64_t held(ShareKind kind) const;
    // Of what is held of a kind, its uid has no less than each uid would of equal parts, and it no
    // less than each process of that uid.  While all wait for one another, it is so of one of them.
    [[nodiscard]] bool HasItsPart(ShareKind kind) const {
      return shares_->HasItsPart(*book_, kind);
    }
    [[nodiscard]] const ShareHolder& holder() const { return book_->holder; }
    // Of its uid alone: for what outlives a process.
    [[nodiscard]] Account OfUid() const;

   private:
    friend class Shares;
    Account(Shares* shares, std::shared_ptr<Book> book) : shares_(shares), book_(std::move(book)) {}
    Shares* shares_ = nullptr;
    std::shared_ptr<Book> book_;
  };

  // Hears of each refusal: `what` is the kind and the uid, so that one uid cannot make many of
  // them, `why` the words of the answer.  Called on the thread that asked, perhaps often.
  using OnRefused = std::function<void(const std::string& what, const std::string& why)>;
  explicit Shares(const Limits& limits, OnRefused on_refused = {});
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  [[nodiscard]] Account Of(const ShareHolder& holder) LARDER_EXCLUDES(mu_);
  // For what a former daemon left, which is not charged to a holder: in all alone.
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
    std::vector<Holder> holders;  // processes, and uids for what outlives them; most first
  };
  // One for each kind, each with the `most` that hold most.
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
  // `full`: whose share has no room; null: there is none in all.
  [[nodiscard]] Answer Refuse(ShareKind kind, uint64_t amount, const Book* full, const Book* asker);
  void CountRefused(ShareKind kind, const Book& asker);
  // Which share, how much is held, the limit and what to do; `full` as in Refuse.
  [[nodiscard]] std::string Text(ShareKind kind, const Book* full,
                                 std::optional<uint64_t> wanted) const;
  [[nodiscard]] uint64_t Free(ShareKind kind) const;
  // Of a book's own share, whatever is free.
  [[nodiscard]] uint64_t OwnRoom(const Book& book, ShareKind kind) const;
  // Which of its process, its uid and (null) all has the least room.
  [[nodiscard]] const Book* Tightest(const Book& book, ShareKind kind) const;
  void Tell(ShareKind kind, const Book* asker, const std::string& why) const;
  void Give(Book* book, ShareKind kind, uint64_t amount);
  // Callers of whom nothing is known have one process's cap together.
  [[nodiscard]] static uint64_t UidMax(const Limit& limit, const Book& uid);
  [[nodiscard]] const State& StateOf(ShareKind kind) const {
    return states_[static_cast<size_t>(kind)];
  }
  [[nodiscard]] State& StateOf(ShareKind kind) { return states_[static_cast<size_t>(kind)]; }
  void Sweep() LARDER_REQUIRES(mu_);

  const OnRefused on_refused_;
  std::array<State, kShareKinds> states_;
  mutable Mutex mu_;
  size_t sweep_at_ LARDER_GUARDED_BY(mu_) = 64;  // books
  std::weak_ptr<Book> unnamed_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<uid_t, std::weak_ptr<Book>> uids_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<ProcessId, std::weak_ptr<Book>> processes_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
