// liblarder_client: what an engine links.  Connects to the daemon of its node, names blocks, and
// moves their bytes itself, through shared memory where it may and through the gRPC byte stream
// where not.
//
//   auto client  = Client::Connect({});                      // the socket files of this host
//   auto session = (*client)->Attach({.engine_id = "llama-0"});
//   auto variant = (*session)->Register(content, variant_spec);
//   auto chain   = Chain((*session)->Seed(content), tokens); // one digest per 16 tokens
//   auto put     = (*session)->Put(*variant, blocks);        // status per block
//   auto got     = (*session)->Get(*variant, wanted);        // bytes land in the caller's memory
//
// What it does not promise: that a block is still there a moment later (hold it by a Lease), nor
// that a Put is kept (pressure may evict it).  It never hands out bytes that failed their check:
// such a block reads as kDamaged.
// Ownership: Client outlives its Sessions, a Session its Leases and Reservations; each cleans up
// when dropped.
// Thread-safety: Client and Session from any thread; a Lease or Reservation from one thread at a
// time.
// Errors: Unavailable (no daemon, drained, restarted: Attach again), DeadlineExceeded,
// ResourceExhausted (sessions), InvalidArgument (says which limit), Unauthenticated.  A batch has a
// BlockStatus per block.  After the daemon restarted every call of the Session answers Unavailable
// and Leases are void.  All mappings of a lost session are gone before the next Attach of the same
// Client returns: it waits for copies under way, and answers FailedPrecondition while a Lease or
// Reservation of a lost session still exists.
// Fork: all of it belongs to the process that connected.  In a forked child calls answer
// FailedPrecondition, no Lease is Valid, views must not be touched, and dropping does nothing:
// connect in the child.
// Waiting: a call looks for its answer for up to 80 us, yielding the core between looks, before it
// sleeps.
// A daemon that hangs: a call ends at its deadline, whether its request was sent or still waits.
// The Session is lost when the daemon takes nothing for 10 s, or when 32 MiB of requests wait;
// ~Session waits 2 s for it.
// Limits: 4,096 blocks a call; a block fits a slab; a deadline counts as at most 10 minutes; see
// proto/larder/v1.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder {

using wire::ReadMode;
using wire::Role;
using wire::WriteMode;

struct ClientOptions {
  // Directory of the daemon's socket files (data.sock, sideband.sock, control.sock, admin.sock).
  // Default "": $LARDER_SOCKET_DIR, else /run/larder, else $XDG_RUNTIME_DIR/larder.
  std::string socket_dir = {};
  std::string tenant = {};  // default "": the caller's own
  std::chrono::milliseconds connect_deadline{5'000};
  // Fraction of calls that may be spent on retries of Unavailable and ResourceExhausted, and how
  // often one is retried.
  double retry_budget = 0.1;
  int retries_max = 3;
};

class Device;        // cuda/device.h
class DeviceExport;  // cuda/device.h

struct SessionOptions {
  std::string engine_id = {};  // required
  Role role = Role::kBoth;
  uint32_t rank = 0;
  WriteMode write_mode = WriteMode::kMapped;  // wanted; write_mode() says what was given
  uint32_t copy_threads = 1;  // threads that copy one large batch, the caller's included
  // Of the staging segment, where it writes staged or reads by copies.  A session gets at most half
  // of what the daemon's limits leave: where that is less, half of this, a quarter, ... down to 4
  // MiB.  Where not even that is left its bytes go by stream, and write_mode_reason() says so.
  ByteCount staging_bytes = MiB(64);
  // What the session maps is registered with it, in the background, for PagedCache.  It must
  // outlive the session and its Leases and Reservations.
  Device* device = nullptr;
  // Get takes what HOST has encoded (Cache.Compress) as it is and decodes it here, on the threads
  // that copy; else the daemon decodes it, for each lease anew.
  bool accept_encoded = false;
  // What the daemon's callers want done with what this engine has in device memory (ReportDevice):
  // pin, unpin, drop, compress; `variant` is a VariantHandle's index.  Answers a status for each
  // key, as DirectiveDone says (engine.proto), within 5 s: what waited for longer is not given to
  // it.  What it drops it reports as removed (ReportDevice) before it answers, so that who asked
  // finds it gone.  Called on a thread of the session's own, one at a time; must not end the
  // session.  Empty: this engine takes none.
  std::function<std::vector<BlockStatus>(const wire::Directive&)> on_directive = {};
};

// Of one variant: what this engine has in device memory now, or no longer.
struct DeviceReport {
  bool cleared = false;                   // all of this session is gone; counts first
  std::span<const Digest> removed = {};   // then this
  std::span<const Digest> stored = {};    // then this is there; with tokens it is one chain
  Digest parent = {};                     // of the first stored, as PutBlock has it; with tokens
  std::span<const uint32_t> tokens = {};  // of all stored, or none
};

struct CallOptions {
  std::chrono::milliseconds deadline{10'000};
  bool hash = true;     // Put, mapped: hash while copying; false leaves it to the daemon
  bool tables = false;  // Acquire: the Lease knows each block's segments
  // Get, Acquire: bytes that the request behind this call still wants after it.  Among the disk
  // reads of all sessions the daemon serves first what is soonest done.
  ByteCount remaining = ByteCount(0);
  // Get, Acquire: ends soon after a stop is requested, as if its deadline had passed.
  std::stop_token stop = {};
};

// One block to store.  Segments in layer order; the bytes are copied before Put returns.
struct PutBlock {
  Digest digest;                     // of the block's last 16 tokens
  Digest parent;                     // digest of the block before, or the content's Seed
  std::span<const uint32_t> tokens;  // block_tokens of them
  std::span<const std::span<const std::byte>> segments;  // one per layer
  // Whose chain it is of (Session::Seed), for a session that registered several contents: else such
  // a block may be cleared with another content, or not with its own.
  Digest content = {};
};

// One block to read into the caller's memory: one span per wanted layer, of exactly the stored
// size.
struct GetBlock {
  Digest digest;
  std::span<const std::span<std::byte>> segments;
  uint32_t first_layer = 0;
};

// A variant as this session registered it.
struct VariantHandle {
  uint32_t index = 0;
  Digest id;
  VariantSpec spec;
  SessionId session = {};  // only it may use the handle: others answer InvalidArgument
};

class PendingRead;   // client/session/pending_read.h
class SessionCore;   // client/session/session_core.h
struct SessionImpl;  // client/api/session_impl.h

// Blocks held for reading in place, until CallOptions.deadline of the Acquire at the latest: then
// the daemon revokes.  Of a session whose read_mode() is kCopied they are copies in its staging
// segment, which are right until they are dropped, and which take room there; what the segment has
// no room for is kFull.  Movable; releases when dropped.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  [[nodiscard]] size_t size() const { return blocks_.size(); }
  [[nodiscard]] BlockStatus status(size_t i) const { return blocks_[i].status; }
  // The payload as stored (segments at multiples of 64 B); read-only memory.  Empty unless status
  // is kOk.
  [[nodiscard]] std::span<const std::byte> View(size_t i) const { return blocks_[i].view; }
  // How they lie.  Null unless the Acquire asked for it and status is kOk.
  [[nodiscard]] const SegmentTable* Table(size_t i) const {
    return blocks_[i].table ? &*blocks_[i].table : nullptr;
  }
  // True while the daemon still promises the bytes, or while the session of the copies lives.
  // Check after the last read of a view: when false, discard.
  [[nodiscard]] bool Valid() const;
  // Now, instead of at destruction.
  void Release();

 private:
  friend class Session;
  struct Block {
    BlockStatus status = BlockStatus::kMissing;
    std::span<const std::byte> view;
    std::shared_ptr<const void> mapping;  // keeps the view's memory mapped
    std::optional<SegmentTable> table;
  };
  [[nodiscard]] static absl::StatusOr<Lease> Take(const std::shared_ptr<SessionCore>& core,
                                                  const VariantHandle& variant,
                                                  std::span<const Digest> digests,
                                                  const CallOptions& options);
  void Fill(size_t i, const PendingRead& read, const wire::BlockGrant& grant);
  [[nodiscard]] absl::Status TakeCopies(const VariantHandle& variant,
                                        std::span<const Digest> digests,
                                        const CallOptions& options);
  [[nodiscard]] absl::StatusOr<std::pair<PendingRead, wire::Acquire>> BeginCopies(
      const VariantHandle& variant, std::span<const Digest> digests, std::span<const size_t> todo,
      uint64_t room, const CallOptions& options, std::chrono::steady_clock::time_point deadline);
  std::shared_ptr<SessionCore> core_;  // null: released
  LeaseId id_;
  uint32_t word_ = 0;
  std::vector<Block> blocks_;
};

// Extents promised to this writer, mapped mode, until CallOptions.deadline of the Reserve at the
// latest.  Movable; what is not published is returned when
// dropped.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();

  [[nodiscard]] size_t size() const { return extents_.size(); }
  // Writable memory of extent i.  Not to be touched once it was published.
  [[nodiscard]] std::span<std::byte> Bytes(size_t i) const { return extents_[i].bytes; }
  struct Block {
    uint32_t extent = 0;
    Digest digest;
    Digest parent;
    std::span<const uint32_t> tokens;
    SegmentTable table;   // hashed by the writer, or not
    Digest content = {};  // as PutBlock has it
  };
  // Makes them visible.  Padding between segments must be zero.  kInvalid: may be corrected and
  // published again.  After an error (a deadline, a lost session) the daemon may or may not have
  // published them: the extents that were named are ended, and Bytes of them is empty.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Publish(const VariantHandle& variant,
                                                                 std::span<const Block> blocks,
                                                                 const CallOptions& options = {});

 private:
  friend class Session;
  struct Extent {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> mapping;
    bool open = true;  // neither published nor given back
  };
  [[nodiscard]] static absl::StatusOr<Reservation> Take(const std::shared_ptr<SessionCore>& core,
                                                        const wire::Reserved& reserved,
                                                        std::span<const ByteCount> bytes);
  void End(uint32_t i, bool abort);
  void Reset();
  std::shared_ptr<SessionCore> core_;  // null: empty
  ReservationId id_;
  std::vector<Extent> extents_;
};

class Session {
 public:
  ~Session();  // releases everything and half-closes.  REQUIRES: no call of it is under way
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What this engine is: call before Put and Get.  The answer's order is that of `variants`.
  [[nodiscard]] absl::StatusOr<std::vector<VariantHandle>> Register(
      std::span<const ContentSpec> contents, std::span<const VariantSpec> variants,
      const CallOptions& options = {});
  // The id of a content for this session's tenant (content.tenant is ignored): the chain's seed.
  [[nodiscard]] Digest Seed(ContentSpec content) const;

  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options = {});
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options = {});
  // Holds blocks for reading in place.  Unavailable in stream mode, with the reason.
  [[nodiscard]] absl::StatusOr<Lease> Acquire(const VariantHandle& variant,
                                              std::span<const Digest> digests,
                                              const CallOptions& options = {});
  // Extents to be filled in place.  Unavailable unless mapped; ResourceExhausted when the pool is
  // full.
  [[nodiscard]] absl::StatusOr<Reservation> Reserve(std::span<const ByteCount> bytes,
                                                    const CallOptions& options = {});

  // Tells the daemon, so that Lookup, WatchEvents and directives know of it until the session ends;
  // the next session tells it anew.  A long report waits, each few megabytes, until the daemon has
  // worked that off; any other does not.  What it says wrong ends the session.
  [[nodiscard]] absl::Status ReportDevice(const VariantHandle& variant, const DeviceReport& report);

  [[nodiscard]] WriteMode write_mode() const;
  [[nodiscard]] const std::string& write_mode_reason() const;
  // How bytes come: kMapped, kCopied (this process may not map slabs), kStream; and why not mapped.
  [[nodiscard]] ReadMode read_mode() const;
  [[nodiscard]] const std::string& read_mode_reason() const;
  [[nodiscard]] const wire::Attached& attached() const;
  // Unavailable once the stream is gone; the sentence says what happened.
  [[nodiscard]] absl::Status status() const;
  [[nodiscard]] bool draining() const;  // the daemon asked to finish

  struct Counters {
    uint64_t blocks_put = 0, blocks_got = 0, bytes_put = 0, bytes_got = 0;
    uint64_t checked = 0, damaged = 0, revoked = 0;
    // Blocks of this session's puts that the daemon says are on disk; none where it has no disk.
    uint64_t blocks_durable = 0;
  };
  [[nodiscard]] Counters counters() const;

 private:
  friend class Client;
  explicit Session(std::unique_ptr<SessionImpl> impl);
  std::unique_ptr<SessionImpl> impl_;  // const until the end
};

class Client {
 public:
  // Returns once a daemon has answered: at sideband.sock or, where none answers there, at
  // data.sock.  Where data.sock has not answered yet, calls wait for it, each within its own
  // deadline.
  // Unavailable: no daemon answers within connect_deadline, or this user may not open data.sock.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] absl::StatusOr<std::unique_ptr<Session>> Attach(const SessionOptions& options);
  // Hands device memory (Device::Export) to the daemon, for other processes of this host and uid:
  // whoever has the ticket opens it, as long as this Client and the daemon live and it was not
  // dropped.
  // Unavailable: no sideband.  ResourceExhausted: 256 a process.
  [[nodiscard]] absl::StatusOr<ShareTicket> ShareMemory(const DeviceExport& exported);
  [[nodiscard]] absl::Status DropShare(const ShareTicket& ticket);
  // For Device::Import; DeviceImports keeps what was imported.  NotFound: no such ticket, or its
  // owner ended.
  [[nodiscard]] absl::StatusOr<DeviceExport> OpenShared(const ShareTicket& ticket);
  [[nodiscard]] absl::StatusOr<wire::LookupResult> Lookup(const wire::LookupQuery& query,
                                                          const CallOptions& options = {});
  // Of the tenant's blocks, whoever stored them (cache.proto, Clear).  At control.sock, which an
  // engine's user may not be allowed to open: Unavailable.  Everything else is asked at data.sock.
  [[nodiscard]] absl::StatusOr<wire::ClearResult> Clear(const wire::ClearQuery& query,
                                                        const CallOptions& options = {});
  // The contents come without their salts.
  [[nodiscard]] absl::StatusOr<std::vector<wire::InstanceInfo>> ListInstances(
      const CallOptions& options = {});

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
