// liblarder_client, the library that an engine links.  It connects to the daemon of its node, names
// blocks, and stores and reads them: in place in the daemon's slabs where this process may map
// them, otherwise through a staging segment, which the daemon shares only with this process, or
// through gRPC byte streams.
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
// reports a block as kOk if its bytes failed a hash check.  Every block that comes encoded or by a
// byte stream is checked; of the other reads from HOST, one in Attached::check_one_in is checked on
// average, or none if that is 0.
// Ownership: The caller destroys Leases and Reservations before their Session, and Sessions before
// their Client.  Each of these objects releases what it holds in the daemon when it is destroyed.
// Thread-safety: Client and Session may be used from any thread, a Lease or a Reservation from one
// thread at a time.
// Errors: Unavailable (there is no daemon, or it is draining or was restarted: Attach again),
// DeadlineExceeded, ResourceExhausted (a limit or the memory of the daemon is used up),
// InvalidArgument, FailedPrecondition, Unauthenticated, Internal; the message says why.  A batch
// call that does not fail returns a BlockStatus for each block.  Once a Session has noticed that
// the daemon was restarted, its requests return Unavailable and none of its Leases is Valid.
// Attach first waits, for at most connect_deadline, until no slab and no session page of this
// Client's ended sessions is mapped, so that copies under way can end.  If one still is, which is
// the case while a Lease or Reservation keeps it mapped, Attach returns FailedPrecondition.
// Fork: Client, Session, Lease and Reservation belong to the process that connected.  In a forked
// child, calls that need the daemon return FailedPrecondition, no Lease is Valid, views must not be
// touched, and destruction does nothing.  The child connects for itself.
// Waiting: A thread that waits for an answer on a session's stream may spin for up to 80 us,
// yielding the core between checks, before it sleeps.
// Hanging daemon: A call of a Session whose answer does not come ends at its deadline, whether its
// request was sent or is still queued; if it has to map a slab, it may take connect_deadline
// longer.  The Session is lost when the daemon accepts none of the queued data for 10 s, or when
// more than 32 MiB of requests are queued.  ~Session waits for an on_directive that is running, at
// most connect_deadline for the daemon to drop the staging segment, and at most 2 s for it to end
// the stream.
// Limits: A call takes at most 4,096 blocks (see also CallOptions.tables).  A block fits in one
// slab.  A deadline of more than 10 minutes counts as 10 minutes.  See proto/larder/v1 for the
// other limits.
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
  // Lookup, ListInstances and Clear are retried if they fail with Unavailable or ResourceExhausted,
  // each at most `retries_max` times.  There is a budget for each socket file, which begins with 10
  // retries: a retry takes one, and each call adds `retry_budget` of one, up to 10.  If
  // `retry_budget` is 0, there are no retries.  Calls of a Session are not retried.
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
  // Size of the staging segment of a session that writes staged or reads by copies, in which it
  // must not be 0.  If the daemon refuses a segment of this size with ResourceExhausted, the client
  // requests half of it, a quarter, and so on down to 4 MiB.  (For a segment of more than 4 MiB,
  // the daemon grants at most half of what its limits leave.)  If the daemon refuses the smallest
  // of these too, the session reads and writes by byte streams, and write_mode_reason() says so.
  ByteCount staging_bytes = MiB(64);
  // If set, the slabs that the session maps are registered with this device in the background, for
  // PagedCache.  The device must outlive the session and its Leases and Reservations.
  Device* device = nullptr;
  // For Get in a session that does not read by byte streams.  If true, blocks that are encoded in
  // HOST (Cache.Compress) come in their encoded form, and the copying threads of this process
  // decode them.  If false, the daemon decodes them, again for every lease on them.
  bool accept_encoded = false;
  // Called for directives: requests of other callers of the daemon to pin, unpin, drop or compress
  // blocks that this session has in device memory (ReportDevice).  `variant` in the directive is
  // the index of a VariantHandle.  The function returns a status for each key, as DirectiveDone in
  // engine.proto defines them; if there are no keys, it returns none.  The daemon waits for the
  // answer for 5 s after it has sent the directive; the function is not called for a directive
  // whose turn comes later than that.  It reports blocks that it drops as removed (ReportDevice)
  // before it returns, so that Lookup no longer shows them when the caller that requested the drop
  // gets its answer.  It runs on a thread of the session, one call at a time, and must not end the
  // session.  It is not called for the directive to drain, which draining() reports.  If it is
  // empty, the daemon sends this session no other directives than that.
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
  // Acquire: the Lease knows each block's segment table.  REQUIRES: at most 512 blocks; if an
  // Acquire wants the tables of more, the daemon ends the session.
  bool tables = false;
  // Get, Acquire: how many bytes the engine's request, for which this call is made, will still read
  // after this call.  The daemon reads from disk first for the call with the fewest bytes left,
  // these included; the longer a call has waited, the less its bytes count.  Byte streams do not
  // use it.
  ByteCount remaining = ByteCount(0);
  // Get, Acquire: soon after a stop is requested, the call ends as if its deadline had passed.  A
  // call that waits for free memory in the staging segment, or for a slab to be mapped, does not
  // notice the stop during that wait.
  std::stop_token stop = {};
};

// One block to store.  Its segments are in layer order.  Put copies the bytes before it returns.
struct PutBlock {
  Digest digest;                     // of the block's last 16 tokens
  Digest parent;                     // digest of the block before, or the content's Seed
  std::span<const uint32_t> tokens;  // block_tokens tokens
  std::span<const std::span<const std::byte>> segments;  // one per layer
  // The content whose chain the block is in (Session::Seed).  Set it if the session registered
  // several contents: otherwise clearing another content may remove the block, or clearing its own
  // may miss it.
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
  SessionId session = {};  // only this session may use the handle; others return InvalidArgument
};

namespace wire {
struct Acquire;     // proto/messages/messages.h
struct BlockGrant;  // proto/messages/messages.h
struct Reserved;    // proto/messages/messages.h
}  // namespace wire
class PendingRead;   // client/session/pending_read.h
class SessionCore;   // client/session/session_core.h
struct SessionImpl;  // client/api/session_impl.h

// Blocks that the daemon holds for reading in place (Session::Acquire).  The daemon revokes the
// lease when the CallOptions.deadline of the Acquire has passed, which counts as 1 s if it is less
// and as 600 s if it is more.  In a session whose read_mode() is kCopied, the blocks are copies in
// its staging segment instead: they are not revoked, they occupy the segment until the Lease ends,
// and a block for which the segment has no free memory has status kFull.  Movable.  Releases the
// blocks when it is destroyed.
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
  // Returns true while the daemon still promises the bytes, or, if the blocks are copies, while
  // their session lives.  Returns false after Release.  Check it after the last read of a view: if
  // Valid returns false, discard what was read.
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
// is kMapped can have a Reservation.  The reservation ends at the CallOptions.deadline of the
// Reserve, which counts as 1 s if it is less and as 600 s if it is more.  Movable.  Extents that
// were not published are returned to the pool when the Reservation is destroyed.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();

  [[nodiscard]] size_t size() const { return extents_.size(); }
  // Writable memory of extent i.  The caller must not touch it once the extent was published.
  [[nodiscard]] std::span<std::byte> Bytes(size_t i) const { return extents_[i].bytes; }
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
  // extent, for which Bytes then returns an empty span.  If the daemon's answer does not come
  // (DeadlineExceeded, Unavailable) or is invalid (Internal), the daemon may or may not have
  // published the blocks, and their extents end too.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Publish(const VariantHandle& variant,
                                                                 std::span<const Block> blocks,
                                                                 const CallOptions& options = {});

 private:
  friend class Session;
  struct Extent {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> mapping;
    bool open = true;  // neither published nor returned
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
  // `variants`.
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
  // Reserves extents of these sizes, which the caller fills in place.  Returns Unavailable unless
  // the write mode is kMapped, ResourceExhausted if the pool is full or this process or its user
  // has used up its share of it.
  [[nodiscard]] absl::StatusOr<Reservation> Reserve(std::span<const ByteCount> bytes,
                                                    const CallOptions& options = {});

  // Tells the daemon which blocks are in device memory, so that Lookup, WatchEvents and directives
  // include them until the session ends; a later session must report them again.  A report of more
  // than 4 MiB is sent in portions of about that size, and before each portion except the first the
  // call waits, for at most 10 s, until the daemon has processed what was sent; a shorter report
  // does not wait.  If the daemon finds a report wrong, it ends the session.
  [[nodiscard]] absl::Status ReportDevice(const VariantHandle& variant, const DeviceReport& report);

  [[nodiscard]] WriteMode write_mode() const;
  [[nodiscard]] const std::string& write_mode_reason() const;
  // How the bytes of a read arrive: kMapped (this process maps slabs), kCopied (the daemon copies
  // them into the staging segment, because this process may not map slabs) or kStream.
  // read_mode_reason says why the mode is not kMapped.
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
    // Blocks that this session put and that the daemon reported as on disk; 0 if the daemon has no
    // disk.
    uint64_t blocks_durable = 0;
  };
  [[nodiscard]] Counters counters() const;

 private:
  friend class Client;
  explicit Session(std::unique_ptr<SessionImpl> impl);
  std::unique_ptr<SessionImpl> impl_;  // const until destruction
};

class Client {
 public:
  // Tries sideband.sock and, if no daemon answers there, data.sock; connect_deadline limits each
  // step.  If data.sock has not answered yet when Connect returns, the calls that use it (Lookup,
  // ListInstances, byte streams) wait for its connection within their own deadlines, until 5 s
  // after the first of them.  Returns Unavailable if no daemon answers at either file, or if this
  // user may not open data.sock.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] absl::StatusOr<std::unique_ptr<Session>> Attach(const SessionOptions& options);
  // Hands device memory (Device::Export) to the daemon, to share it with other processes of this
  // host and uid.  Any of them that has the ticket may open it until the share is dropped or the
  // sideband connection of this Client ends: with the Client, with the daemon, or because Attach
  // has to replace it.  Returns Unavailable if there is no sideband, ResourceExhausted if this
  // process already has 256 shares, or all processes together 4,096.
  [[nodiscard]] absl::StatusOr<ShareTicket> ShareMemory(const DeviceExport& exported);
  [[nodiscard]] absl::Status DropShare(const ShareTicket& ticket);
  // Returns the export that Device::Import takes.  (DeviceImports calls both functions, and keeps
  // the imported memory.)  Returns NotFound if no process of this uid shares memory under this
  // ticket, or not any more.
  [[nodiscard]] absl::StatusOr<DeviceExport> OpenShared(const ShareTicket& ticket);
  [[nodiscard]] absl::StatusOr<wire::LookupResult> Lookup(const wire::LookupQuery& query,
                                                          const CallOptions& options = {});
  // Clears blocks of the tenant, whichever session stored them (cache.proto, Clear).  The request
  // goes to control.sock, which the engine's user may not be allowed to open: then it returns
  // Unavailable.  (Lookup and ListInstances go to data.sock.)
  [[nodiscard]] absl::StatusOr<wire::ClearResult> Clear(const wire::ClearQuery& query,
                                                        const CallOptions& options = {});
  // The contents in the result do not have their salts.
  [[nodiscard]] absl::StatusOr<std::vector<wire::InstanceInfo>> ListInstances(
      const CallOptions& options = {});

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
