// liblarder_client, the library that an engine links.  It connects to the daemon of its node, and
// stores and reads blocks: in the daemon's slabs, if this process may map them, through a staging
// segment that the daemon shares only with this process, or through gRPC byte streams.
//
//   auto client  = Client::Connect({});                       // the socket files of this host
//   auto session = (*client)->Attach({.engine_id = "llama-0"});
//   auto handles = (*session)->Register(contents, variants);  // one VariantHandle per variant
//   auto chain   = Chain((*session)->Seed(content), tokens);  // one digest per 16 tokens
//   auto put     = (*session)->Put((*handles)[0], blocks);    // status per block
//   auto got     = (*session)->Get((*handles)[0], wanted);    // bytes land in the caller's memory
//
// The library does not promise that a block is still stored a moment later (hold it by a Lease),
// nor that a block that was Put is kept (the daemon may evict it under memory pressure).  Get never
// reports a block as kOk if its bytes failed a hash check, but not every read from HOST is checked
// (Attached::check_one_in).
// Ownership: The caller destroys Leases and Reservations before their Session, and Sessions before
// their Client.  Each of these objects releases what it holds in the daemon when it is destroyed.
// Thread-safety: Client and Session may be used from any thread, a Lease or a Reservation from one
// thread at a time.
// Errors: Unavailable usually means that there is no daemon, or that it is draining or was
// restarted: Attach again.  ResourceExhausted means that a limit or some memory is used up.  The
// message says why.  Once a Session has noticed that the daemon was restarted, its requests fail
// and none of its Leases is Valid.  Attach waits for copies under way to end: it returns
// FailedPrecondition if slabs of this Client's ended sessions are still mapped after
// connect_deadline, for example because a Lease or Reservation keeps them mapped.
// Fork: Client, Session, Lease and Reservation belong to the process that connected.  In a forked
// child, calls that need the daemon fail, no Lease is Valid, views must not be touched, and
// destruction does not affect the parent.  The child connects for itself.
// Waiting: A thread that waits for an answer on a session's stream may spin for up to 80 us,
// yielding the core between checks, before it sleeps.
// Hanging daemon: A call of a Session to which no answer comes ends at about its deadline, or
// later, for example if it maps slabs.  The Session is lost when data is queued and the daemon
// accepts none of it for about 10 s, or when more than 32 MiB are queued.  ~Session waits for an
// on_directive that is running, and then for at most about connect_deadline plus 2 s.
// Limits: Put, Get, Acquire, Reserve and Publish take at most 4,096 blocks (see also
// CallOptions.tables).  A block fits in one slab.  A deadline of more than 10 minutes counts as 10
// minutes.  See proto/larder/v1 for other limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/client_messages.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder {

using wire::ReadMode;
using wire::Role;
using wire::WriteMode;

struct ClientOptions {
  // Directory of the daemon's socket files (data.sock, sideband.sock, control.sock, admin.sock).
  // If it is "", the client takes $LARDER_SOCKET_DIR if that is set and not empty, otherwise
  // /run/larder if that directory exists or $XDG_RUNTIME_DIR is not set or empty, otherwise
  // $XDG_RUNTIME_DIR/larder.
  std::string socket_dir = {};
  std::string tenant = {};  // "": the caller's own tenant
  std::chrono::milliseconds connect_deadline{5'000};
  // Lookup, ListInstances and Clear are retried if they fail with Unavailable or ResourceExhausted:
  // each request at most `retries_max` times, within its deadline, and only while a budget lasts,
  // which begins full, with 10 retries; each call adds `retry_budget` to it.  Clear has a budget of
  // its own.  If `retry_budget` is 0, there are no retries.  Calls of a Session are not retried.
  double retry_budget = 0.1;
  int retries_max = 3;
};

class Device;        // cuda/device.h
class DeviceExport;  // cuda/device.h

struct SessionOptions {
  std::string engine_id = {};  // required
  Role role = Role::kBoth;
  uint32_t rank = 0;
  WriteMode write_mode = WriteMode::kMapped;  // requested; write_mode() says what was granted
  uint32_t copy_threads = 1;  // threads that copy one large batch, including the caller's
  // Size of the staging segment of a session that writes staged or reads by copies; it must not be
  // 0 there.  If the daemon refuses a segment of this size for lack of capacity, the client
  // requests smaller ones, down to 4 MiB.  If the daemon refuses these too, Attach makes a session
  // that reads and writes by byte streams, and write_mode_reason() says so.
  ByteCount staging_bytes = MiB(64);
  // If set, the slabs that the session maps are registered with this device, for PagedCache.  The
  // device must outlive the session and its Leases and Reservations.
  Device* device = nullptr;
  // If true, blocks that are encoded in HOST (Cache.Compress) may come to Get in their encoded
  // form, and this process decodes them.  If false, the daemon decodes them.  Byte streams do not
  // use it.
  bool accept_encoded = false;
  // Called for directives: requests to pin, unpin, drop or compress blocks that this session has in
  // device memory (ReportDevice).  `variant` in a directive with keys is the index of their
  // VariantHandle.  The function returns a status for each key, as DirectiveDone in engine.proto
  // defines them; without keys, none if it did it, otherwise one.  It should return within seconds:
  // the daemon waits about 5 s.  It reports blocks that it drops as removed (ReportDevice) before
  // it returns.  It runs on a thread of the session, one call at a time, and must not end the
  // session.  It is not called for the directive to drain, which draining() reports.
  std::function<std::vector<BlockStatus>(const wire::Directive&)> on_directive = {};
};

// How the blocks that this session has in device memory changed since its last report.  `cleared`
// is applied first, then `removed`, then `stored`; `removed` and `stored` name blocks of the
// variant that is passed to ReportDevice.
struct DeviceReport {
  bool cleared = false;                  // all blocks of this session, of every variant, are gone
  std::span<const Digest> removed = {};  // have left device memory
  std::span<const Digest> stored = {};   // are in it now; one chain if `tokens` is set
  Digest parent = {};  // of the first stored block, as in PutBlock; needed with `tokens`
  std::span<const uint32_t> tokens = {};  // of all stored blocks, or empty
};

struct CallOptions {
  std::chrono::milliseconds deadline{10'000};
  bool hash = true;  // Put, mapped: hash while copying; if false, the daemon hashes
  // Acquire: the Lease has the segment table of each block that is kOk.  An Acquire of more than
  // 512 blocks then returns InvalidArgument.
  bool tables = false;
  // Get, Acquire: how many bytes the engine's request, for which this call is made, will still read
  // after this call.  The daemon prefers to read from disk for requests with few bytes left.  Byte
  // streams do not use it.
  ByteCount remaining = ByteCount(0);
  // Acquire, Reserve: how long the daemon keeps what it granted, 0.1 s to 10 minutes.  The default
  // 0 means as long as `deadline`, but at least 1 s.
  std::chrono::milliseconds life{0};
  // Get, Acquire: a promise that holds the blocks (client/promise.h), so that they are not charged
  // again.  Byte streams do not use it.
  LeaseId promise = {};
  // Get, Put, Acquire, Reserve, Publish, Register: soon after a stop is requested, the call ends as
  // if its deadline had passed.  A call that waits for free memory in the staging segment, or for a
  // slab to be mapped, does not notice the stop during that wait.
  std::stop_token stop = {};
};

// One block to store.  Its segments are in layer order.  Put copies the bytes before it returns.
struct PutBlock {
  Digest digest;                     // of the block's last 16 tokens
  Digest parent;                     // digest of the block before, or the content's Seed
  std::span<const uint32_t> tokens;  // block_tokens tokens
  std::span<const std::span<const std::byte>> segments;  // one per layer
  // The content whose chain the block is in (Session::Seed).  Set it if the session registered
  // several contents: otherwise the block may count as one of another content.
  Digest content = {};
};

// One block to read into the caller's memory: one span per wanted layer, each exactly as long as
// the layer's segment (if the daemon has encoded the segment, as its decoded bytes).
struct GetBlock {
  Digest digest;
  std::span<const std::span<std::byte>> segments;
  uint32_t first_layer = 0;
};

// A variant that a Session has registered (Session::Register).
struct VariantHandle {
  uint32_t index = 0;
  Digest id;
  VariantSpec spec;
  SessionId session = {};  // only this session may use the handle
};

namespace wire {
struct Acquire;     // proto/messages/messages.h
struct BlockGrant;  // proto/messages/messages.h
struct Promise;     // proto/messages/messages.h
struct Reserved;    // proto/messages/messages.h
}  // namespace wire
class PendingRead;   // client/session/pending_read.h
class SessionCore;   // client/session/session_core.h
struct SessionImpl;  // client/api/session_impl.h

class PendingPromise;  // client/promise.h
struct PromiseQuery;   // client/promise.h

// Blocks that the daemon holds for reading in place (Session::Acquire).  The daemon revokes the
// lease soon after the CallOptions.life of the Acquire.  In a session whose read_mode() is kCopied,
// the blocks are copies in its staging segment instead: they are not revoked, but occupy the
// segment until the Lease ends.
// Movable.  Releases the blocks when it is destroyed.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  [[nodiscard]] size_t size() const { return blocks_.size(); }
  [[nodiscard]] BlockStatus status(size_t i) const { return blocks_[i].status; }
  // The decoded payload, in which each segment begins at a multiple of 64 B.  Empty if the block's
  // status is not kOk, and after Release.  The memory is read-only, unless the session reads by
  // copies.
  [[nodiscard]] std::span<const std::byte> View(size_t i) const { return blocks_[i].view; }
  // The block's segment table.  Null unless the Acquire asked for tables and the status is kOk.
  [[nodiscard]] const SegmentTable* Table(size_t i) const {
    return blocks_[i].table ? &*blocks_[i].table : nullptr;
  }
  // Returns true only while the daemon promises the bytes or, if the blocks are copies, while their
  // session lives.  Check it after the last read of a view: if it returns false, discard what was
  // read.
  [[nodiscard]] bool Valid() const;
  // Releases the blocks now instead of at destruction.
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

// Extents of the pool that are reserved for this writer to fill.  Only a session whose write mode
// is kMapped can have a Reservation.  The daemon revokes it soon after the CallOptions.life of the
// Reserve.  Movable.  Extents that were not published are returned to the daemon when the
// Reservation is destroyed.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();

  [[nodiscard]] size_t size() const { return extents_.size(); }
  // Writable memory of extent i.  The caller must not touch it once the extent was published.
  [[nodiscard]] std::span<std::byte> Bytes(size_t i) const { return extents_[i].bytes; }
  // Returns true if the name of block i was taken when the extents were reserved, so that there is
  // no extent i.
  [[nodiscard]] bool Taken(size_t i) const { return extents_[i].taken; }
  struct Block {
    uint32_t extent = 0;
    Digest digest;
    Digest parent;
    std::span<const uint32_t> tokens;
    SegmentTable table;   // with the writer's hashes, or without
    Digest content = {};  // as in PutBlock
  };
  // Makes the blocks visible.  Padding between segments must be zero.  A block of status kInvalid
  // keeps its extent, and may be corrected and published again; any other status ends the block's
  // extent, for which Bytes then returns an empty span.  After an error such as DeadlineExceeded,
  // the blocks may be visible, and their extents may have ended too.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Publish(const VariantHandle& variant,
                                                                 std::span<const Block> blocks,
                                                                 const CallOptions& options = {});

 private:
  friend class Session;
  struct Extent {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> mapping;
    uint32_t number = 0;  // by which the daemon knows the extent
    bool open = true;     // neither published nor returned
    bool taken = false;   // there is none
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
  // Ends the session and releases what it holds.  If a Lease or Reservation of it still exists, the
  // daemon may keep their blocks and extents until a later Attach of this Client has found them
  // unmapped, or this process has ended.  REQUIRES: no call of this session is under way.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Declares what this engine stores: call it before Put and Get.  The handles are in the order of
  // `variants`.  An engine may register any number of contents, at most 1,024 in one call; a Put of
  // blocks of a content returns kInvalid if 65,536 others (fewer if the user has used up its share)
  // were registered after it: register it again.
  [[nodiscard]] absl::StatusOr<std::vector<VariantHandle>> Register(
      std::span<const ContentSpec> contents, std::span<const VariantSpec> variants,
      const CallOptions& options = {});
  // Returns the id of a content for this session's tenant (content.tenant is ignored).  It is the
  // seed of the content's digest chain.
  [[nodiscard]] Digest Seed(ContentSpec content) const;

  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options = {});
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options = {});
  // Holds blocks for reading in place (see Lease).  Returns Unavailable if read_mode() is kStream;
  // the message has the reason.
  [[nodiscard]] absl::StatusOr<Lease> Acquire(const VariantHandle& variant,
                                              std::span<const Digest> digests,
                                              const CallOptions& options = {});
  // Reserves extents of these sizes, which the caller fills in place.  Returns an error unless the
  // write mode is kMapped, and ResourceExhausted if the pool is full or this process or its user
  // has used up its share of it.
  [[nodiscard]] absl::StatusOr<Reservation> Reserve(std::span<const ByteCount> bytes,
                                                    const CallOptions& options = {});
  // The same for blocks of these names, one for each size.  A block whose name is taken gets no
  // extent (Reservation::Taken), so that it need not be filled.
  [[nodiscard]] absl::StatusOr<Reservation> Reserve(const VariantHandle& variant,
                                                    std::span<const Digest> digests,
                                                    std::span<const ByteCount> bytes,
                                                    const CallOptions& options = {});

  // Asks the daemon to keep what an engine needs to load a prefix (client/promise.h).  Does not
  // wait.  Returns InvalidArgument if the query breaks a limit or names a variant of another
  // session, Unimplemented if the daemon makes no promises.
  [[nodiscard]] absl::StatusOr<PendingPromise> BeginPromise(const PromiseQuery& query);
  // Makes this session one of those that hold a promise of a session of the same engine, and gives
  // the promise at least this life from now on.  Does not wait; errors are those of BeginPromise.
  [[nodiscard]] absl::StatusOr<PendingPromise> HoldPromise(
      LeaseId promise, std::chrono::milliseconds life = std::chrono::seconds(30));
  // Takes in what the daemon has sent, without waiting: answers, and news of promises.  After about
  // 0.25 ms it leaves the rest to the next call.
  void Poll();

  // Tells the daemon which blocks are in device memory, for Lookup, WatchEvents and directives.
  // The daemon forgets them when the session ends; a later session must report them again.  Each
  // time that this call and calls before it have sent more than about 4 MiB, it waits for the
  // daemon, at most 10 s.  The daemon ignores a report that it finds wrong
  // (larder_device_reports_refused_total).
  [[nodiscard]] absl::Status ReportDevice(const VariantHandle& variant, const DeviceReport& report);

  [[nodiscard]] WriteMode write_mode() const;
  [[nodiscard]] const std::string& write_mode_reason() const;
  // How the bytes of a read arrive: kMapped (this process maps slabs), kCopied (the daemon copies
  // them into the staging segment) or kStream.  read_mode_reason says why the mode is not kMapped.
  [[nodiscard]] ReadMode read_mode() const;
  [[nodiscard]] const std::string& read_mode_reason() const;
  [[nodiscard]] const wire::Attached& attached() const;
  // Returns Unavailable once the session has noticed that its stream is lost; the message says what
  // happened.  Returns FailedPrecondition in a forked child.
  [[nodiscard]] absl::Status status() const;
  [[nodiscard]] bool draining() const;  // the daemon asked its clients to finish

  struct Counters {
    uint64_t blocks_put = 0, blocks_got = 0, bytes_put = 0, bytes_got = 0;
    uint64_t checked = 0, damaged = 0, revoked = 0;
    uint64_t blocks_durable = 0;  // the daemon reported them as on disk
  };
  [[nodiscard]] Counters counters() const;

 private:
  friend class Client;
  explicit Session(std::unique_ptr<SessionImpl> impl);
  [[nodiscard]] absl::StatusOr<PendingPromise> Begin(wire::Promise request);
  [[nodiscard]] absl::StatusOr<Reservation> ReserveNamed(uint32_t variant,
                                                         std::span<const Digest> digests,
                                                         std::span<const ByteCount> bytes,
                                                         const CallOptions& options);
  std::unique_ptr<SessionImpl> impl_;  // const until destruction
};

class Client {
 public:
  // Connects to sideband.sock and data.sock; connect_deadline limits each step.  Returns
  // Unavailable if no daemon answers, or if this user may not open data.sock.  If only
  // sideband.sock has answered, the first calls that use data.sock (Lookup, ListInstances, byte
  // streams) wait for its connection, within their own deadlines.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Returns Unavailable if this Client once had a sideband and now there is none, as while a daemon
  // starts; a Client that never had one attaches, and its sessions use byte streams.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Session>> Attach(const SessionOptions& options);
  // Hands device memory (Device::Export) to the daemon, to share it with other processes of this
  // host and uid.  Any of them that has the ticket may open it until DropShare, or until the
  // sideband connection of this Client ends, for example because Attach replaces it.  Returns
  // Unavailable if there is no sideband, ResourceExhausted if too many tickets are in use.
  [[nodiscard]] absl::StatusOr<ShareTicket> ShareMemory(const DeviceExport& exported);
  [[nodiscard]] absl::Status DropShare(const ShareTicket& ticket);
  // Returns the export that Device::Import takes (see DeviceImports).  Returns NotFound if no
  // process of this uid shares memory under this ticket, or not any more.
  [[nodiscard]] absl::StatusOr<DeviceExport> OpenShared(const ShareTicket& ticket);
  [[nodiscard]] absl::StatusOr<wire::LookupResult> Lookup(const wire::LookupQuery& query,
                                                          const CallOptions& options = {});
  // Clears blocks of the tenant, whichever session stored them (cache.proto, Clear).  The request
  // goes to control.sock; if this user may not open that, Clear returns Unavailable.
  [[nodiscard]] absl::StatusOr<wire::ClearResult> Clear(const wire::ClearQuery& query,
                                                        const CallOptions& options = {});
  // The contents in the result do not have their salts.
  [[nodiscard]] absl::StatusOr<std::vector<wire::InstanceInfo>> ListInstances(
      const CallOptions& options = {});
  // Asks the daemon to bring blocks from disk to HOST, and to keep them there for query.ttl.
  // Returns at once, with kOk or kPending for blocks that are there or will be (cache.proto).
  [[nodiscard]] absl::StatusOr<std::vector<wire::BlockAnswer>> Prefetch(
      const wire::PrefetchQuery& query, const CallOptions& options = {});
  // Keeps blocks in a tier until query.ttl has passed or Unpin, also across restarts of the daemon
  // where PinResult::durable says so.  The owner is one of this user (cache.proto, Pin).
  [[nodiscard]] absl::StatusOr<wire::PinResult> Pin(const wire::PinQuery& query,
                                                    const CallOptions& options = {});
  [[nodiscard]] absl::StatusOr<wire::UnpinResult> Unpin(const wire::UnpinQuery& query,
                                                        const CallOptions& options = {});
  // Calls `take` with each reply (cache.proto, WatchEvents), on the calling thread, until `take`
  // returns false or a stop is requested; then returns OK.  Otherwise returns why the stream ended:
  // OutOfRange if events were missed (watch again, with a snapshot), Unavailable if the daemon is
  // gone.  The request goes to control.sock; if this user may not open that, WatchEvents returns
  // Unavailable.  `options.deadline` is not used.
  [[nodiscard]] absl::Status WatchEvents(const wire::WatchQuery& query,
                                         const std::function<bool(const wire::WatchReply&)>& take,
                                         const CallOptions& options = {});

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
