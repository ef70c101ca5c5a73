// The messages that the public C++ API uses.  messages.h includes them.
//
// Values only: no ownership beyond their members, no threads.  engine.proto and cache.proto state
// units, defaults, limits and errors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/format/block_key.h"
#include "storage/types.h"

namespace larder::wire {

inline constexpr size_t kKeysMax = 4096;  // keys in one request

enum class WriteMode : uint8_t { kMapped = 1, kStaged = 2, kStream = 3 };
enum class ReadMode : uint8_t { kMapped = 1, kCopied = 2, kStream = 3 };
enum class Role : uint8_t { kScheduler = 1, kWorker = 2, kBoth = 3 };
enum class DirectiveKind : uint8_t { kPin = 1, kUnpin = 2, kDrop = 3, kCompress = 4, kDrain = 5 };
enum class SelectionScope : uint8_t { kBlocks = 1, kPrefix, kContent, kAll, kWriter };
[[nodiscard]] const char* ToString(WriteMode mode);
[[nodiscard]] const char* ToString(ReadMode mode);
[[nodiscard]] const char* ToString(Role role);

// ---- Engine.Attach

// The kind is empty if the session has no device.
struct EngineDevice {
  std::string kind, wish, name, driver, reason;
  std::vector<std::string> limits;
  friend bool operator==(const EngineDevice&, const EngineDevice&) = default;
};

struct Attached {
  SessionId session;
  std::string boot_id;
  std::string tenant;
  WriteMode write_mode = WriteMode::kStream;
  std::string write_mode_reason;
  uint64_t feature_bits = 0;
  ByteCount slab_bytes;
  ByteCount lease_bytes_max;
  uint32_t check_one_in = 0;
  uint32_t keys_max = kKeysMax;
  ReadMode read_mode = ReadMode::kStream;
  std::string read_mode_reason = {};
  friend bool operator==(const Attached&, const Attached&) = default;
};

struct Directive {
  uint64_t directive_id = 0;
  DirectiveKind kind = DirectiveKind::kDrain;
  uint32_t variant = 0;
  std::vector<Digest> digests = {};
  uint64_t deadline_unix_ms = 0;
  std::string owner = {};
  std::optional<Codec> codec = {};
  bool pinned = false;
  uint64_t valid_unix_ms = 0;
  friend bool operator==(const Directive&, const Directive&) = default;
};

// ---- Cache.Lookup, ListInstances, Clear

struct LookupQuery {
  std::string tenant;            // empty means the caller's own
  ContentSpec content;           // without tenant
  std::vector<uint32_t> tokens;  // of the prefix; empty if `digests` are given
  std::vector<Digest> digests;   // the digest chain, instead of `tokens`
  std::string engine_id;         // empty means every engine
  friend bool operator==(const LookupQuery&, const LookupQuery&) = default;
};

struct TierHit {
  Tier tier = Tier::kHost;
  TokenCount contiguous;
  std::vector<TokenRange> ranges;
  ByteCount bytes;
  double load_s = 0;
  friend bool operator==(const TierHit&, const TierHit&) = default;
};

struct InstanceHit {
  std::string engine_id;
  bool attached = false;
  std::vector<TierHit> tiers;
  friend bool operator==(const InstanceHit&, const InstanceHit&) = default;
};

struct LookupResult {
  std::vector<InstanceHit> instances;
  std::string boot_id;
  friend bool operator==(const LookupResult&, const LookupResult&) = default;
};

struct InstanceSession {
  SessionId session;
  Role role = Role::kBoth;
  uint32_t rank = 0;
  std::string peer;
  WriteMode write_mode = WriteMode::kStream;
  double age_s = 0;
  EngineDevice device;
  friend bool operator==(const InstanceSession&, const InstanceSession&) = default;
};

struct InstanceInfo {
  std::string engine_id;
  bool attached = false;
  std::vector<InstanceSession> sessions;
  std::vector<ContentSpec> contents;
  std::vector<VariantSpec> variants;
  uint64_t blocks = 0;
  ByteCount bytes;
  friend bool operator==(const InstanceInfo&, const InstanceInfo&) = default;
};

struct BlockSelection {
  std::string engine_id;         // empty means every engine
  std::vector<Digest> variants;  // ids; empty means those that `engine_id` registered
  std::vector<Digest> digests;   // names of blocks; empty if `tokens` are given
  ContentSpec content;           // without tenant
  std::vector<uint32_t> tokens;  // names the blocks of their chain, instead of `digests`
  BlockWriter writer = {};       // with SelectionScope::kWriter
  friend bool operator==(const BlockSelection&, const BlockSelection&) = default;
};

struct ClearQuery {
  std::string tenant;
  SelectionScope scope = SelectionScope::kBlocks;
  BlockSelection blocks;
  TierSet tiers = 0;  // 0 is sent as the default, HOST and DISK
  bool pinned = false;
  bool dry_run = false;
  friend bool operator==(const ClearQuery&, const ClearQuery&) = default;
};

// A digest that a request selected, and the result for the blocks that have this digest.
struct BlockAnswer {
  Digest digest;
  BlockStatus status = BlockStatus::kMissing;
  friend bool operator==(const BlockAnswer&, const BlockAnswer&) = default;
};

struct ClearResult {
  struct OfTier {
    uint64_t blocks = 0;
    ByteCount bytes;
    friend bool operator==(const OfTier&, const OfTier&) = default;
  };
  OfTier host, disk, device;
  uint64_t leased = 0, kept_pinned = 0, kept_in_use = 0, pins_ended = 0;
  uint64_t unanswered = 0;          // only for kDevice
  std::vector<BlockAnswer> blocks;  // only for SelectionScope::kBlocks
  friend bool operator==(const ClearResult&, const ClearResult&) = default;
};

// ---- Cache.Pin, Unpin, Prefetch

inline constexpr std::chrono::milliseconds kPinTtlDefault = std::chrono::hours(1);
inline constexpr std::chrono::milliseconds kPrefetchTtlDefault = std::chrono::minutes(1);

struct PinQuery {
  std::string tenant;  // empty means the caller's own
  BlockSelection blocks;
  std::string owner;
  Tier tier = Tier::kHost;
  std::chrono::milliseconds ttl = kPinTtlDefault;
  friend bool operator==(const PinQuery&, const PinQuery&) = default;
};

struct UnpinQuery {
  std::string tenant;
  std::optional<BlockSelection> blocks;  // nullopt means all pins of the owner
  std::string owner;
  Tier tier = Tier::kHost;
  friend bool operator==(const UnpinQuery&, const UnpinQuery&) = default;
};

struct PrefetchQuery {
  std::string tenant;
  BlockSelection blocks;
  std::chrono::milliseconds ttl = kPrefetchTtlDefault;
  friend bool operator==(const PrefetchQuery&, const PrefetchQuery&) = default;
};

struct PinResult {
  std::vector<BlockAnswer> blocks;
  uint64_t deadline_unix_ms = 0;
  bool durable = false;
  friend bool operator==(const PinResult&, const PinResult&) = default;
};

struct UnpinResult {
  std::vector<BlockAnswer> blocks;  // empty if the query was for all pins of the owner
  uint64_t unpinned = 0;
  uint32_t sessions_unanswered = 0;
  friend bool operator==(const UnpinResult&, const UnpinResult&) = default;
};

// ---- Cache.WatchEvents

struct WatchQuery {
  std::string tenant;
  bool snapshot = false;
  std::string boot_id;  // to continue after `after`; empty to begin now, or with the snapshot
  uint64_t after = 0;
  TierSet tiers = 0;  // 0 is sent as the default tiers
  bool with_tokens = false;
  friend bool operator==(const WatchQuery&, const WatchQuery&) = default;
};

// What happened to blocks of one variant in one tier, or, if `cleared` is true, to all blocks of an
// engine in DEVICE.
struct BlockEvent {
  uint64_t sequence = 0;  // of the last block or of the clearing; 0 in a snapshot
  bool stored = false;    // if neither stored nor cleared, the blocks were removed
  bool cleared = false;   // what `engine_id` had in `tier` is gone, unless it follows as stored
  Digest variant;
  Tier tier = Tier::kHost;
  std::string engine_id = {};  // only for kDevice
  std::vector<Digest> digests;
  // `chain` is set for stored blocks if their tokens are known and were requested; `digests` are
  // then consecutive blocks of one chain.
  struct Chain {
    Digest parent, content;  // parent of the first block; a content of Digest{} is unknown
    uint32_t block_tokens = 0;
    std::vector<uint32_t> tokens;  // of all blocks
    BlockWriter writer = {};       // of all blocks, as far as it is known
    friend bool operator==(const Chain&, const Chain&) = default;
  };
  std::optional<Chain> chain;
  friend bool operator==(const BlockEvent&, const BlockEvent&) = default;
};

struct WatchReply {
  std::string boot_id;  // in the first reply
  std::vector<BlockEvent> events;
  uint64_t sequence = 0;
  bool snapshot_end = false;
  friend bool operator==(const WatchReply&, const WatchReply&) = default;
};

}  // namespace larder::wire
