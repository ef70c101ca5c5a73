// The messages of proto/larder/v1/engine.proto and cache.proto as plain values, with types that
// cannot be confused.  Clients and the daemon use these; only proto/convert,
// proto/frames/session_codec and the code that uses gRPC see the generated code.
//
// Values only: no ownership beyond their members, no threads.  The .proto files state units,
// defaults, limits and errors.  Decoding (convert.h) refuses a message with a length, count, digest
// or enum value that is not allowed, so code that handles a decoded value may rely on these.  The
// receiver checks what depends on the session or on the message as a whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/messages/client_messages.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder::wire {

inline constexpr size_t kLookupDigestsMax = 8192;
inline constexpr size_t kLookupTokensMax = 1 << 20;
inline constexpr size_t kPromiseReadyMax = 4096;  // blocks in one PromiseReady
inline constexpr size_t kMessageBytesMax = 16 << 20;
// The most parts of one kind in one Up or Down; some kinds may have more (kKeysMax, kIdsMax).
inline constexpr size_t kPartsMax = 64;
inline constexpr size_t kIdsMax = 65'536;        // leases or reservations in one list
inline constexpr size_t kContentsMax = 64;       // of one engine, in one answer
inline constexpr size_t kVariantsMax = 1024;     // of one engine
inline constexpr size_t kInstancesMax = 65'536;  // in one answer
inline constexpr uint32_t kInstancesPerPage = 256;
// Contents of one Register.
inline constexpr size_t kRegisterContentsMax = 1024;
inline constexpr size_t kAnswersMax = kLookupTokensMax / kStepTokens;  // names in one answer
inline constexpr size_t kEventsMax = 65'536;                           // in one answer
inline constexpr size_t kTenantBytesMax = 64;
inline constexpr size_t kDeviceNameMax = 16;  // bytes of a device's kind, and of its wish
inline constexpr size_t kDeviceLimitsMax = 16;
inline constexpr size_t kDataBytesMax = 1 << 20;  // in one message of a byte stream
inline constexpr uint32_t kDeadlineDefaultMs = 30'000;
inline constexpr uint32_t kDeadlineMaxMs = 600'000;
inline constexpr std::chrono::milliseconds kPinTtlMax = std::chrono::days(30);
inline constexpr std::chrono::milliseconds kPrefetchTtlMax = std::chrono::minutes(10);

// The FeatureBit values of engine.proto.
inline constexpr uint64_t kFeatureDeviceBlocks = 1;
inline constexpr uint64_t kFeatureDirectives = 2;
inline constexpr uint64_t kFeatureTiers = 4;
inline constexpr uint64_t kFeatureCodecs = 8;
inline constexpr uint64_t kFeatureCopiedReads = 16;
inline constexpr uint64_t kFeaturePromises = 32;

enum class AcquireWhat : uint8_t { kBytes = 1, kView = 2, kPromise = 3 };
enum class RevocationCause : uint8_t { kDeadline = 1, kDamage = 2, kDrain = 3 };

// ---- client to server

struct Hello {
  std::string engine_id;
  Role role = Role::kBoth;
  uint32_t rank = 0;
  WriteMode write_mode = WriteMode::kMapped;
  uint64_t feature_bits = 0;
  std::string tenant;
  std::string client;
  EngineDevice device;
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Register {
  uint64_t id = 0;
  std::vector<ContentSpec> contents;  // without tenant, which the server sets
  std::vector<VariantSpec> variants;
  friend bool operator==(const Register&, const Register&) = default;
};

struct RevokeAck {
  std::vector<LeaseId> leases;
  std::vector<ReservationId> reservations;
  friend bool operator==(const RevokeAck&, const RevokeAck&) = default;
};

struct Abort {
  ReservationId reservation;
  std::vector<uint32_t> extents;  // if empty, all that are not published
  friend bool operator==(const Abort&, const Abort&) = default;
};

struct PublishBlock {
  uint32_t extent = 0;
  Digest digest;
  Digest parent;
  std::vector<uint32_t> tokens;
  SegmentTable segments;
  uint64_t staging_offset = 0;
  uint32_t staging_id = 0;
  // Digest{} leaves the choice of the content to the daemon (engine.proto).
  Digest content;
  friend bool operator==(const PublishBlock&, const PublishBlock&) = default;
};

struct Publish {
  uint64_t id = 0;
  ReservationId reservation;
  uint32_t variant = 0;
  std::vector<PublishBlock> blocks;
  friend bool operator==(const Publish&, const Publish&) = default;
};

struct Reserve {
  uint64_t id = 0;
  std::vector<ByteCount> bytes;
  uint32_t deadline_ms = kDeadlineDefaultMs;
  uint32_t variant = 0;
  std::vector<Digest> digests = {};  // names of the blocks, or empty
  friend bool operator==(const Reserve&, const Reserve&) = default;
};

struct Acquire {
  // The most digests that the acquires with want_tables in one Up may have together.
  static constexpr size_t kTablesMax = 512;

  uint64_t id = 0;
  uint32_t variant = 0;
  std::vector<Digest> digests;
  uint32_t first_layer = 0;
  uint32_t layers = 0;
  uint32_t deadline_ms = kDeadlineDefaultMs;
  uint64_t remaining_bytes = 0;
  std::vector<Codec> accepted_codecs;  // not empty once decoded
  AcquireWhat what = AcquireWhat::kBytes;
  bool want_tables = false;
  LeaseId promised_lease;
  // Only a session that reads by copies uses staging_id, staging_offset and staging_bytes.
  uint32_t staging_id = 0;
  uint64_t staging_offset = 0;
  uint64_t staging_bytes = 0;
  friend bool operator==(const Acquire&, const Acquire&) = default;
};

struct Promise {
  uint64_t id = 0;
  std::vector<uint32_t> variants;  // empty if `promise` is set
  std::vector<Digest> digests;     // of the chain's steps
  uint32_t first_token = 0;
  uint32_t deadline_ms = kDeadlineDefaultMs;
  uint64_t remaining_bytes = 0;
  LeaseId promise;  // to hold and extend; otherwise a new one is made
  friend bool operator==(const Promise&, const Promise&) = default;
};

struct DirectiveDone {
  uint64_t directive_id = 0;
  std::vector<BlockStatus> status;
  friend bool operator==(const DirectiveDone&, const DirectiveDone&) = default;
};

struct DeviceBlocks {
  uint32_t variant = 0;
  std::vector<Digest> stored;
  std::vector<Digest> removed;
  bool cleared = false;
  std::optional<Digest> parent;
  std::vector<uint32_t> tokens;
  friend bool operator==(const DeviceBlocks&, const DeviceBlocks&) = default;
};

struct DamageReport {
  uint32_t variant = 0;
  std::vector<Digest> digests;
  friend bool operator==(const DamageReport&, const DamageReport&) = default;
};

// One message from the client.  engine.proto says in which order its parts are handled.
struct Up {
  std::optional<Hello> hello;
  std::vector<Register> registers;
  std::vector<LeaseId> releases;
  std::optional<RevokeAck> revoke_ack;
  std::vector<Abort> aborts;
  std::vector<uint64_t> cancels;
  std::vector<Publish> publishes;
  std::vector<Reserve> reserves;
  std::vector<Acquire> acquires;
  std::vector<DirectiveDone> directives_done;
  std::vector<DeviceBlocks> device_blocks;
  std::vector<DamageReport> damaged;
  bool bye = false;
  std::vector<Promise> promises;
  friend bool operator==(const Up&, const Up&) = default;
};

// ---- server to client

struct Registered {
  uint64_t id = 0;
  BlockStatus status = BlockStatus::kOk;
  std::string message;
  std::vector<uint32_t> variants;
  std::vector<Digest> variant_ids;
  std::vector<Digest> content_ids;
  friend bool operator==(const Registered&, const Registered&) = default;
};

struct ExtentGrant {
  uint32_t slab = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const ExtentGrant&, const ExtentGrant&) = default;
};

// Returns true if an extent has bytes, and begins where a segment may begin.
[[nodiscard]] inline bool IsWellFormed(const ExtentGrant& extent) {
  return extent.bytes > 0 && extent.offset % kSegmentAlign == 0;
}

struct Reserved {
  uint64_t id = 0;
  BlockStatus status = BlockStatus::kOk;
  uint32_t retry_after_ms = 0;
  ReservationId reservation;
  std::vector<ExtentGrant> extents;
  uint32_t word = 0;
  std::string message;
  std::vector<uint32_t> taken = {};  // indices in the request
  friend bool operator==(const Reserved&, const Reserved&) = default;
};

struct Published {
  uint64_t id = 0;
  std::vector<BlockStatus> status;
  std::string message;
  friend bool operator==(const Published&, const Published&) = default;
};

struct BlockGrant {
  BlockStatus status = BlockStatus::kMissing;
  Tier tier = Tier::kHost;
  ExtentGrant extent;
  std::optional<SegmentTable> table;
  friend bool operator==(const BlockGrant&, const BlockGrant&) = default;
};

struct Grant {
  uint64_t id = 0;
  LeaseId lease;
  uint32_t deadline_ms = 0;
  uint32_t word = 0;
  std::vector<BlockGrant> blocks;
  uint32_t retry_after_ms = 0;
  friend bool operator==(const Grant&, const Grant&) = default;
};

struct PromisedBlocks {
  uint32_t first_block = 0;
  std::vector<BlockStatus> status;
  std::vector<Tier> tiers;
  friend bool operator==(const PromisedBlocks&, const PromisedBlocks&) = default;
};

struct Promised {
  uint64_t id = 0;
  BlockStatus status = BlockStatus::kMissing;
  LeaseId promise;
  uint32_t deadline_ms = 0;
  uint32_t tokens = 0;
  std::vector<PromisedBlocks> blocks;  // by variant
  uint32_t retry_after_ms = 0;
  friend bool operator==(const Promised&, const Promised&) = default;
};

struct PromiseReady {
  struct Block {
    uint32_t variant = 0;  // index in Promise::variants
    uint32_t block = 0;
    BlockStatus status = BlockStatus::kOk;
    friend bool operator==(const Block&, const Block&) = default;
  };
  LeaseId promise;
  std::vector<Block> blocks;
  friend bool operator==(const PromiseReady&, const PromiseReady&) = default;
};

struct BlockReady {
  uint64_t id = 0;
  uint32_t key = 0;
  BlockGrant block;
  friend bool operator==(const BlockReady&, const BlockReady&) = default;
};

struct BlockFailed {
  uint64_t id = 0;
  uint32_t key = 0;
  BlockStatus status = BlockStatus::kMissing;
  uint64_t bytes = 0;  // to be copied, if the read's part of the staging segment is too small
  friend bool operator==(const BlockFailed&, const BlockFailed&) = default;
};

struct Durable {
  uint32_t variant = 0;
  std::vector<Digest> digests;
  friend bool operator==(const Durable&, const Durable&) = default;
};

struct Revocation {
  std::vector<LeaseId> leases;
  std::vector<ReservationId> reservations;
  RevocationCause cause = RevocationCause::kDeadline;
  friend bool operator==(const Revocation&, const Revocation&) = default;
};

// One message from the daemon.
struct Down {
  std::optional<Attached> attached;
  std::vector<Registered> registered;
  std::vector<Reserved> reserved;
  std::vector<Published> published;
  std::vector<Grant> grants;
  std::vector<BlockReady> ready;
  std::vector<BlockFailed> failed;
  std::vector<Durable> durable;
  std::vector<Revocation> revocations;
  std::vector<Directive> directives;
  std::vector<Promised> promised;
  std::vector<PromiseReady> promise_ready;
  friend bool operator==(const Down&, const Down&) = default;
};

// ---- Cache.ListInstances

struct InstancesQuery {
  std::string tenant;      // empty means the caller's own
  uint32_t page_size = 0;  // 0 means the default
  std::string page_token;  // empty means the first page
  friend bool operator==(const InstancesQuery&, const InstancesQuery&) = default;
};

struct InstancesPage {
  std::vector<InstanceInfo> instances;
  std::string next_page_token;  // empty after the last page
  friend bool operator==(const InstancesPage&, const InstancesPage&) = default;
};

// ---- Cache.Pin, Unpin, Prefetch

struct MoveQuery {
  std::string tenant;
  SelectionScope scope = SelectionScope::kBlocks;
  BlockSelection blocks;
  Tier from = Tier::kHost, to = Tier::kDisk;
  bool copy = false;
  friend bool operator==(const MoveQuery&, const MoveQuery&) = default;
};

struct MoveProgress {
  uint64_t blocks = 0, blocks_done = 0;
  ByteCount bytes, bytes_done;
  uint64_t moved = 0, missing = 0, no_room = 0;
  uint64_t kept_pinned = 0, kept_in_use = 0;
  friend bool operator==(const MoveProgress&, const MoveProgress&) = default;
};

struct CompressQuery {
  std::string tenant;
  SelectionScope scope = SelectionScope::kBlocks;
  BlockSelection blocks;
  TierSet tiers = 0;  // 0 is sent as the default tiers
  Codec codec = Codec::kLossless;
  bool dry_run = false;
  friend bool operator==(const CompressQuery&, const CompressQuery&) = default;
};

// Its numbers count copies: a block that lies in two tiers counts twice.
struct CompressProgress {
  uint64_t blocks = 0, blocks_done = 0;
  ByteCount bytes_before, bytes_after;
  uint64_t changed = 0, unchanged = 0, missing = 0;
  uint64_t kept_in_use = 0, no_room = 0, unsupported = 0;
  std::vector<BlockAnswer> answers;
  friend bool operator==(const CompressProgress&, const CompressProgress&) = default;
};

// ---- Engine.StoreBlocks, FetchBlocks

struct StoreHead {
  ContentSpec content;  // without tenant
  VariantSpec variant;
  std::string engine_id;
  std::string tenant;  // empty means the caller's own
  friend bool operator==(const StoreHead&, const StoreHead&) = default;
};

struct StoreBlock {
  std::optional<Digest> parent;  // nullopt means the content id
  std::vector<uint32_t> tokens;
  SegmentTable segments;  // hashed
  friend bool operator==(const StoreBlock&, const StoreBlock&) = default;
};

// One message of a StoreBlocks stream.
struct StoreBlocksPart {
  std::optional<StoreHead> head;  // first message only, which the stream's reader checks
  std::optional<StoreBlock> block;
  std::string_view data;  // not a copy: it lies in the decoded message
  friend bool operator==(const StoreBlocksPart&, const StoreBlocksPart&) = default;
};

struct StoreBlocksResult {
  std::vector<BlockStatus> status;
  std::vector<Digest> digests;  // as many as `status`
  std::string message;
  friend bool operator==(const StoreBlocksResult&, const StoreBlocksResult&) = default;
};

struct FetchBlocksQuery {
  std::string tenant;  // empty means the caller's own
  VariantSpec variant;
  std::vector<Digest> digests;
  uint32_t first_layer = 0;
  uint32_t layers = 0;
  friend bool operator==(const FetchBlocksQuery&, const FetchBlocksQuery&) = default;
};

struct FetchStart {
  uint32_t key = 0;
  BlockStatus status = BlockStatus::kMissing;
  std::string record_header;
  uint32_t first_segment = 0;
  uint32_t segments = 0;
  friend bool operator==(const FetchStart&, const FetchStart&) = default;
};

// One message of a FetchBlocks stream: the beginning of a key's answer, bytes of it, or both.
struct FetchBlocksPart {
  std::optional<FetchStart> start;
  std::string_view data;  // not a copy: it lies in the decoded message
  friend bool operator==(const FetchBlocksPart&, const FetchBlocksPart&) = default;
};

}  // namespace larder::wire
