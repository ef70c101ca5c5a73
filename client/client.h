// liblarder_client, the library that an engine links.  It connects to the daemon of its node, names
// blocks, and moves their bytes itself: through the daemon's slabs where this process may map them,
// otherwise through a staging segment, which the daemon shares only with this process, or through
// gRPC byte streams.
//
//   auto client  = Client::Connect({});                      // the socket files of this host
//   auto session = (*client)->Attach({.engine_id = "llama-0"});
//   auto variant = (*session)->Register(content, variant_spec);
//   auto chain   = Chain((*session)->Seed(content), tokens); // one digest per 16 tokens
//   auto put     = (*session)->Put(*variant, blocks);        // status per block
//   auto got     = (*session)->Get(*variant, wanted);        // bytes land in the caller's memory
//
// The library does not promise that a block is still stored a moment later (hold it by a Lease),
// nor that a block that was Put is kept (the daemon may evict it under memory pressure).  It never
// reports bytes that failed their hash check as good: such a block's status is kDamaged.
// Ownership: A Client outlives its Sessions, and a Session outlives its Leases and Reservations.
// Each of these objects releases what it holds in the daemon when it is destroyed.
// Thread-safety: Client and Session may be used from any thread, a Lease or a Reservation from one
// thread at a time.
// Errors: Unavailable (there is no daemon, or it is draining or was restarted: Attach again),
// DeadlineExceeded, ResourceExhausted (too many sessions), InvalidArgument (the message names the
// limit), Unauthenticated.  A batch call returns a BlockStatus for each block.  After the daemon
// was restarted, every call of the Session returns Unavailable and its Leases are void.  Attach
// first waits, for at most connect_deadline, until no memory of the Client's lost sessions is
// mapped: it waits for copies that are under way, and returns FailedPrecondition if a Lease or
// Reservation of a lost session still exists.
// Fork: All of these objects belong to the process that connected.  In a forked child calls return
// FailedPrecondition, no Lease is Valid, views must not be touched, and destruction does nothing.
// The child connects for itself.
// Waiting: A call spins for up to 80 us for its answer, yielding the core between checks, before it
// sleeps.
// Hanging daemon: A call ends at its deadline, whether its request was sent or is still queued.
// The Session is lost when the daemon accepts no data for 10 s, or when 32 MiB of requests are
// queued.  ~Session waits for the daemon for at most 2 s.
// Limits: A call takes at most 4,096 blocks.  A block fits in one slab.  A deadline of more than 10
// minutes counts as 10 minutes.  See proto/larder/v1 for the other limits.
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
  // If it is "", the client takes $LARDER_SOCKET_DIR if that is set, otherwise /run/larder if that
  // directory exists or $XDG_RUNTIME_DIR is not set, otherwise $XDG_RUNTIME_DIR/larder.
  std::string socket_dir = {};
  std::string tenant = {};  // "": the caller's own tenant
  std::chrono::milliseconds connect_deadline{5'000};
  // The client retries calls that fail with Unavailable or ResourceExhausted.  `retry_budget`
  // bounds the retries to a fraction of all calls, `retries_max` bounds the retries of one call.
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
  // Size of the staging segment of a session that writes staged or reads by copies.  If the daemon
  // refuses a segment of this size, the client requests half of it, a quarter, and so on down to 4
  // MiB.  (For a segment of more than 4 MiB, the daemon grants at most half of what its limits
  // leave.)  If the daemon refuses 4 MiB too, the session's bytes go by stream, and
  // write_mode_reason() says so.
  ByteCount staging_bytes = MiB(64);
  // If set, the slabs that the session maps are registered with this device in the background, for
  // PagedCache.  The device must outlive the session and its Leases and Reservations.
  Device* device = nullptr;
  // If true, Get receives blocks that are encoded in HOST (Cache.Compress) in their encoded form,
  // and the copying threads of this process decode them.  If false, the daemon decodes them, again
  // for every lease.
  bool accept_encoded = false;
  // Called for each directive: a request of another caller of the daemon to pin, unpin, drop or
  // compress blocks that this engine has in device memory (ReportDevice).  `variant` in the
  // directive is the index of a VariantHandle.  The function returns a status for each key, as
  // DirectiveDone in engine.proto defines them, within 5 s; it is not called for a directive that
  // waited longer than that for its turn.  It reports blocks that it drops as removed
  // (ReportDevice) before it returns, so that Lookup no longer shows them when the caller that
  // requested the drop gets its answer.  It runs on a thread of the session, one call at a time,
  // and must not end the session.  If it is empty, the daemon sends this session no directives.
  std::function<std::vector<BlockStatus>(const wire::Directive&)> on_directive = {};
};

// How the blocks that this session has in device memory changed since its last report.  The fields
// are applied in this order; `removed` and `stored` name blocks of one variant.
struct DeviceReport {
  bool cleared = false;                  // all blocks of this session, of every variant, are gone
  std::span<const Digest> removed = {};  // have left device memory
  std::span<const Digest> stored = {};   // are in it now; one chain if `tokens` is set
  Digest parent = {};  // of the first stored block, as in PutBlock; needed with `tokens`
  std::span<const uint32_t> tokens = {};  // of all stored blocks, or empty
};

struct CallOptions {
  std::chrono::milliseconds deadline{10'000};
  bool hash = true;     // Put, mapped: hash while copying; if false, the daemon hashes
  bool tables = false;  // Acquire: the Lease knows each block's segment table
  // Get, Acquire: how many bytes the engine's request, for which this call is made, will still read
  // after this call.  Among the disk reads of all sessions the daemon first serves those of the
  // request that will be complete soonest.
  ByteCount remaining = ByteCount(0);
  // Get, Acquire: the call ends soon after a stop is requested, as if its deadline had passed.
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

// One block to read into the caller's memory: one span per wanted layer, each of exactly the stored
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

// Blocks that the daemon holds for reading in place.  It revokes the lease when
// CallOptions.deadline of the Acquire (at least 1 s) has passed.  If the session's read_mode() is
// kCopied, the blocks are copies in its staging segment, which stay valid until the Lease ends and
// occupy the segment until then; a block that does not fit in the segment has status kFull.
// Movable.  Releases the blocks when it is destroyed.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  [[nodiscard]] size_t size() const { return blocks_.size(); }
  [[nodiscard]] BlockStatus status(size_t i) const { return blocks_[i].status; }
  // The payload as stored (each segment begins at a multiple of 64 B), in read-only memory.  Empty
  // unless the block's status is kOk.
  [[nodiscard]] std::span<const std::byte> View(size_t i) const { return blocks_[i].view; }
  // The block's segment table.  Null unless the Acquire asked for tables and the status is kOk.
  [[nodiscard]] const SegmentTable* Table(size_t i) const {
    return blocks_[i].table ? &*blocks_[i].table : nullptr;
  }
  // Returns true while the daemon still promises the bytes; if the blocks are copies, while their
  // session lives.  Check it after the last read of a view: if Valid returns false, discard what
  // was read.
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

// Extents of the pool that only this writer may fill (mapped mode only), until CallOptions.deadline
// of the Reserve (at least 1 s) has passed.  Movable.  Extents that were not published are returned
// to the pool when the Reservation is destroyed.
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
  // may be corrected and published again.  After an error (a deadline, a lost session) the daemon
  // may or may not have published the blocks: the extents of these blocks can no longer be used,
  // and Bytes returns an empty span for them.
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
  // Releases everything and half-closes the stream.  REQUIRES: no call of this session is under
  // way.
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
  // Holds blocks for reading in place.  Returns Unavailable in stream mode; the message has the
  // reason.
  [[nodiscard]] absl::StatusOr<Lease> Acquire(const VariantHandle& variant,
                                              std::span<const Digest> digests,
                                              const CallOptions& options = {});
  // Reserves extents that the caller fills in place.  Returns Unavailable unless the write mode is
  // kMapped, ResourceExhausted if the pool is full.
  [[nodiscard]] absl::StatusOr<Reservation> Reserve(std::span<const ByteCount> bytes,
                                                    const CallOptions& options = {});

  // Tells the daemon which blocks are in device memory, so that Lookup, WatchEvents and directives
  // include them until the session ends; a later session must report them again.  A long report is
  // sent in portions of about 4 MiB, and the call waits after each until the daemon has processed
  // it; a short report does not wait.  If the daemon finds a report wrong, it ends the session.
  [[nodiscard]] absl::Status ReportDevice(const VariantHandle& variant, const DeviceReport& report);

  [[nodiscard]] WriteMode write_mode() const;
  [[nodiscard]] const std::string& write_mode_reason() const;
  // How the bytes of a read arrive: kMapped (this process maps slabs), kCopied (the daemon copies
  // them into the staging segment, because this process may not map slabs) or kStream.
  // read_mode_reason says why the mode is not kMapped.
  [[nodiscard]] ReadMode read_mode() const;
  [[nodiscard]] const std::string& read_mode_reason() const;
  [[nodiscard]] const wire::Attached& attached() const;
  // Returns Unavailable once the stream is lost; the message says what happened.
  [[nodiscard]] absl::Status status() const;
  [[nodiscard]] bool draining() const;  // the daemon asked its clients to finish

  struct Counters {
    uint64_t blocks_put = 0, blocks_got = 0, bytes_put = 0, bytes_got = 0;
    uint64_t checked = 0, damaged = 0, revoked = 0;
    // Blocks that this session put and that the daemon reported as on disk; 0 if it has no disk.
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
  // Returns once a daemon has answered: at sideband.sock or, if none answers there, at data.sock.
  // If data.sock has not answered yet, later calls wait for it, each within its own deadline.
  // Returns Unavailable if no daemon answers within connect_deadline, or if this user may not open
  // data.sock.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] absl::StatusOr<std::unique_ptr<Session>> Attach(const SessionOptions& options);
  // Hands device memory (Device::Export) to the daemon, to share it with other processes of this
  // host and uid.  Any of them that has the ticket may open it, as long as this Client and the
  // daemon live and the share was not dropped.  Returns Unavailable if there is no sideband,
  // ResourceExhausted if this process already has 256 shares.
  [[nodiscard]] absl::StatusOr<ShareTicket> ShareMemory(const DeviceExport& exported);
  [[nodiscard]] absl::Status DropShare(const ShareTicket& ticket);
  // Returns the export that Device::Import takes.  (DeviceImports calls both, and keeps the
  // imported memory.)  Returns NotFound if there is no such ticket or its owner has ended.
  [[nodiscard]] absl::StatusOr<DeviceExport> OpenShared(const ShareTicket& ticket);
  [[nodiscard]] absl::StatusOr<wire::LookupResult> Lookup(const wire::LookupQuery& query,
                                                          const CallOptions& options = {});
  // Clears blocks of the tenant, whichever session stored them (cache.proto, Clear).  The request
  // goes to control.sock, which the engine's user may not be allowed to open: then it returns
  // Unavailable.  All other requests go to data.sock.
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
