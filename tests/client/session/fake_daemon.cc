#include "tests/client/session/fake_daemon.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"
#include "storage/codec/payload_codec.h"
#include "storage/memory/memfd.h"

namespace larder {
namespace {

constexpr size_t kWords = 1 << 16;

class Words final : public RevocationWords {
 public:
  explicit Words(std::shared_ptr<std::vector<uint64_t>> words) : words_(std::move(words)) {}
  [[nodiscard]] bool Holds(uint32_t word, uint64_t id) const override {
    return word < words_->size() && __atomic_load_n(&(*words_)[word], __ATOMIC_ACQUIRE) == id;
  }

 private:
  const std::shared_ptr<std::vector<uint64_t>> words_;
};

}  // namespace

FakeDaemon::FakeDaemon(const Options& options)
    : options_(options),
      slab_(std::make_shared<std::vector<std::byte>>(options.pool.value(), std::byte{0xDD})),
      words_(std::make_shared<std::vector<uint64_t>>(kWords)) {}

FakeDaemon::~FakeDaemon() {
  Stop();
  for (size_t i = 0; i < staging_.size(); ++i) munmap(staging_[i], staging_bytes_[i]);
}

absl::Status FakeDaemon::Attach(SessionCore& core, ByteCount staging_bytes) {
  core_ = &core;
  thread_ = std::thread([this] { Run(); });
  wire::Attached attached;
  attached.session = SessionId{1};
  attached.tenant = "default";
  attached.write_mode = options_.write_mode;
  attached.read_mode = options_.read_mode;
  attached.slab_bytes = options_.pool;
  attached.lease_bytes_max = options_.lease_bytes_max;
  return core.Start(std::move(attached), this, staging_bytes);
}

void FakeDaemon::Stop() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status FakeDaemon::Send(wire::Up up) {
  MutexLock lock(mu_);
  if (stop_) return absl::UnavailableError("gone");
  inbox_.push_back(std::move(up));
  changed_.NotifyAll();
  return absl::OkStatus();
}

void FakeDaemon::SetTamper(std::function<void(wire::Down&)> tamper) {
  MutexLock lock(mu_);
  tamper_ = std::move(tamper);
}

void FakeDaemon::FailMapping(absl::Status status) {
  MutexLock lock(mu_);
  mapping_ = std::move(status);
}

void FakeDaemon::Push(wire::Down down) {
  MutexLock lock(mu_);
  pushed_.push_back(std::move(down));
  changed_.NotifyAll();
}

void FakeDaemon::Run() {
  mu_.Lock();
  while (true) {
    while (!stop_ && inbox_.empty() && pushed_.empty()) changed_.Wait(mu_);
    if (inbox_.empty() && pushed_.empty()) break;
    wire::Down down;
    if (!pushed_.empty()) {
      down = std::move(pushed_.front());
      pushed_.pop_front();
    } else {
      const wire::Up up = std::move(inbox_.front());
      inbox_.pop_front();
      Handle(up, &down);
      ups_.push_back(up);
      changed_.NotifyAll();
      if (const std::function<void(wire::Down&)> tamper = tamper_) {
        mu_.Unlock();
        tamper(down);
        mu_.Lock();
      }
    }
    if (down == wire::Down{}) continue;
    mu_.Unlock();
    core_->OnDown(std::move(down));
    mu_.Lock();
  }
  mu_.Unlock();
}

std::vector<wire::Up> FakeDaemon::WaitUps(
    const std::function<bool(const std::vector<wire::Up>&)>& enough) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  MutexLock lock(mu_);
  while (!enough(ups_)) {
    if (changed_.WaitUntil(mu_, deadline)) continue;
    EXPECT_TRUE(enough(ups_)) << "the awaited messages did not come";
    break;
  }
  return ups_;
}

size_t FakeDaemon::leases() {
  MutexLock lock(mu_);
  return leases_.size();
}

size_t FakeDaemon::open_extents() {
  MutexLock lock(mu_);
  size_t count = 0;
  for (const auto& [id, reserved] : reservations_) count += reserved.open.size();
  return count;
}

void FakeDaemon::DamageAll() {
  MutexLock lock(mu_);
  for (const auto& [key, stored] : blocks_) (*slab_)[stored.extent.offset] ^= std::byte{1};
}

void FakeDaemon::RevokeAll() {
  wire::Down down;
  {
    MutexLock lock(mu_);
    wire::Revocation& revocation = down.revocations.emplace_back();
    for (const auto& [lease, word] : leases_) {
      ClearWord(word);
      revocation.leases.push_back(lease);
    }
    for (const auto& [id, reserved] : reservations_) {
      ClearWord(reserved.word);
      revocation.reservations.push_back(id);
    }
  }
  Push(std::move(down));
}

// ---- Memory.

absl::StatusOr<MappedBytes> FakeDaemon::MapSlab(uint32_t slab, bool writable) {
  {
    MutexLock lock(mu_);
    if (!mapping_.ok()) return mapping_;
  }
  ++slabs_mapped_;
  if (options_.read_mode != ReadMode::kMapped) return absl::PermissionDeniedError("read by copies");
  if (slab != 0) return absl::NotFoundError("no such slab");
  if (writable && options_.write_mode != WriteMode::kMapped)
    return absl::PermissionDeniedError("not trusted");
  return MappedBytes{slab_, *slab_};
}

absl::StatusOr<std::shared_ptr<const RevocationWords>> FakeDaemon::MapSessionPage(
    SessionId /*session*/) {
  return std::make_shared<const Words>(words_);
}

absl::StatusOr<StagingMemory> FakeDaemon::MakeStaging(ByteCount bytes) {
  if (bytes > options_.staging_bytes_max) return absl::ResourceExhaustedError("too large");
  FileDescriptor descriptor(OpenMemfd("fake-staging"));
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes.value())) != 0)
    return absl::InternalError("cannot size staging");
  void* memory =
      mmap(nullptr, bytes.value(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED) return absl::InternalError("cannot map staging");
  staging_.push_back(static_cast<std::byte*>(memory));
  staging_bytes_.push_back(bytes.value());
  return StagingMemory{static_cast<uint32_t>(staging_.size() - 1), std::move(descriptor), bytes};
}

absl::Status FakeDaemon::DropStaging(uint32_t id) {
  if (id >= staging_.size()) return absl::NotFoundError("no such staging segment");
  ++staging_dropped_;
  return absl::OkStatus();
}

bool FakeDaemon::Place(uint64_t bytes, wire::ExtentGrant* extent) {
  const uint64_t pages = PagesFor(ByteCount(bytes));
  extent->bytes = bytes;
  if (const auto found = free_.find(pages); found != free_.end()) {
    extent->offset = found->second;
    free_.erase(found);
    return true;
  }
  if (used_ + pages * kPageBytes > options_.pool.value()) return false;
  extent->offset = used_;
  used_ += pages * kPageBytes;
  return true;
}

uint32_t FakeDaemon::TakeWord(uint64_t id) {
  const uint32_t word = next_word_++ % kWords;
  __atomic_store_n(&(*words_)[word], id, __ATOMIC_RELEASE);
  return word;
}

// ---- Messages.

void FakeDaemon::EndLease(LeaseId lease) {
  if (const auto found = leases_.find(lease); found != leases_.end()) {
    ClearWord(found->second);
    leases_.erase(found);
  }
}

void FakeDaemon::Handle(const wire::Up& up, wire::Down* down) {
  for (const wire::Register& request : up.registers) {
    wire::Registered answer;
    answer.id = request.id;
    for (const VariantSpec& variant : request.variants) {
      answer.variants.push_back(static_cast<uint32_t>(variants_.size()));
      variants_.push_back(variant);
    }
    down->registered.push_back(std::move(answer));
  }
  for (const LeaseId lease : up.releases) EndLease(lease);
  if (up.revoke_ack) {
    for (const LeaseId lease : up.revoke_ack->leases) EndLease(lease);
    for (const ReservationId id : up.revoke_ack->reservations) reservations_.erase(id);
  }
  for (const wire::Abort& abort : up.aborts) {
    Reserved& reserved = reservations_[abort.reservation];
    for (const uint32_t i : abort.extents) {
      const auto found = reserved.open.find(i);
      if (found == reserved.open.end()) continue;
      free_.emplace(PagesFor(ByteCount(found->second.bytes)), found->second.offset);
      reserved.open.erase(found);
    }
  }
  for (const wire::Publish& request : up.publishes) down->published.push_back(Publish(request));
  for (const wire::Reserve& request : up.reserves) down->reserved.push_back(Reserve(request));
  for (const wire::Acquire& request : up.acquires) down->grants.push_back(Acquire(request, down));
}

wire::Reserved FakeDaemon::Reserve(const wire::Reserve& request) {
  wire::Reserved answer;
  answer.id = request.id;
  for (const ByteCount bytes : request.bytes) {
    wire::ExtentGrant extent;
    if (!Place(bytes.value(), &extent)) {
      for (const wire::ExtentGrant& placed : answer.extents) {
        free_.emplace(PagesFor(ByteCount(placed.bytes)), placed.offset);
      }
      answer.extents.clear();
      answer.status = BlockStatus::kFull;
      return answer;
    }
    answer.extents.push_back(extent);
  }
  answer.reservation = ReservationId{next_id_++};
  answer.word = TakeWord(answer.reservation.value);
  Reserved& reserved = reservations_[answer.reservation];
  reserved.word = answer.word;
  for (uint32_t i = 0; i < answer.extents.size(); ++i) {
    reserved.open[i] = answer.extents[i];
    if (options_.write_mode != WriteMode::kMapped)
      answer.extents[i] = {.bytes = answer.extents[i].bytes};
  }
  return answer;
}

BlockStatus FakeDaemon::PublishOne(Reserved& reserved, uint32_t variant,
                                   const wire::PublishBlock& block) {
  const auto extent = reserved.open.find(block.extent);
  if (extent == reserved.open.end()) return BlockStatus::kNotHeld;
  const uint64_t bytes = block.segments.PayloadBytes().value();
  if (bytes != extent->second.bytes || !block.segments.Validate(variants_[variant].layers).ok()) {
    return BlockStatus::kInvalid;
  }
  const std::vector<Digest> chain = Chain(block.parent, block.tokens);
  if (chain.empty() || chain.back() != block.digest) return BlockStatus::kInvalid;
  if (blocks_.contains({variant, block.digest})) {
    free_.emplace(PagesFor(ByteCount(bytes)), extent->second.offset);
    reserved.open.erase(extent);
    return BlockStatus::kDuplicate;
  }
  Stored stored{extent->second, block.segments};
  const std::span<std::byte> payload = std::span(*slab_).subspan(stored.extent.offset, bytes);
  if (options_.write_mode == WriteMode::kStaged) {
    if (block.staging_id >= staging_.size()) return BlockStatus::kInvalid;
    std::memcpy(payload.data(), staging_[block.staging_id] + block.staging_offset, bytes);
  }
  uint64_t at = 0;
  for (const Segment& segment : stored.table.segments) {  // the writer must zero the padding
    for (uint64_t i = at + segment.bytes;
         i < std::min(RoundUp(at + segment.bytes, kSegmentAlign), bytes); ++i) {
      EXPECT_EQ(payload[i], std::byte{0}) << "padding must be zero";
    }
    at = RoundUp(at + segment.bytes, kSegmentAlign);
  }
  if (stored.table.hashed) {
    EXPECT_EQ(FirstDamaged(payload, stored.table,
                           {0, static_cast<uint32_t>(stored.table.segments.size()), 0, bytes}),
              -1);
  } else {
    HashPayload(payload, &stored.table);
  }
  reserved.open.erase(extent);
  if (options_.encodes) Encode(&stored);
  blocks_.emplace(std::pair(variant, block.digest), std::move(stored));
  return BlockStatus::kOk;
}

void FakeDaemon::Encode(Stored* stored) {
  const std::span<std::byte> payload =
      std::span(*slab_).subspan(stored->extent.offset, stored->table.PayloadBytes().value());
  std::vector<std::byte> to(payload.size());
  const auto table = PayloadCodec().Encode(Codec::kLossless, payload, stored->table, 2, to);
  if (!table) return;
  std::copy(to.begin(), to.end(), payload.begin());
  stored->table = *table;
  ++encoded_;
}

wire::Published FakeDaemon::Publish(const wire::Publish& request) {
  wire::Published answer;
  answer.id = request.id;
  const auto found = reservations_.find(request.reservation);
  for (const wire::PublishBlock& block : request.blocks) {
    answer.status.push_back(found == reservations_.end()
                                ? BlockStatus::kNotHeld
                                : PublishOne(found->second, request.variant, block));
  }
  return answer;
}

wire::Grant FakeDaemon::Acquire(const wire::Acquire& request, wire::Down* down) {
  wire::Grant grant;
  grant.id = request.id;
  bool any = false;
  for (uint32_t i = 0; i < request.digests.size(); ++i) {
    wire::BlockGrant& block = grant.blocks.emplace_back();
    const auto found = blocks_.find({request.variant, request.digests[i]});
    if (found == blocks_.end()) continue;
    any = true;
    SegmentRange range;
    const Stored& stored = found->second;
    if (!stored.table.Range(request.first_layer, request.layers, &range).ok()) {
      block.status = BlockStatus::kInvalid;
      continue;
    }
    block.status = BlockStatus::kOk;
    block.extent = stored.extent;
    block.extent.offset += range.begin;
    block.extent.bytes = range.end - range.begin;
    if (options_.tables || stored.table.encoded()) {
      const auto first = stored.table.segments.begin() + range.first;
      block.table = SegmentTable{{first, first + range.count}, true};
    }
    if (std::find(options_.pending.begin(), options_.pending.end(), request.digests[i]) ==
        options_.pending.end()) {
      continue;
    }
    down->ready.push_back({request.id, i, block});
    block = {};
    block.status = BlockStatus::kPending;
  }
  if (!any) return grant;
  grant.lease = LeaseId{next_id_++};
  grant.word = TakeWord(grant.lease.value);
  leases_.emplace(grant.lease, grant.word);
  if (options_.read_mode == ReadMode::kCopied) CopyOut(request, &grant, down);
  return grant;
}

// Puts each block of the grant, and those that were pending, into the range that the request names.
void FakeDaemon::CopyOut(const wire::Acquire& request, wire::Grant* grant, wire::Down* down) {
  std::vector<wire::BlockReady> ready = std::exchange(down->ready, {});
  for (uint32_t i = 0; i < grant->blocks.size(); ++i) {
    wire::BlockGrant& block = grant->blocks[i];
    if (block.status != BlockStatus::kOk) continue;
    ready.push_back({request.id, i, std::exchange(block, {})});
    block.status = BlockStatus::kPending;
  }
  uint64_t at = 0;
  for (wire::BlockReady& one : ready) {
    wire::ExtentGrant& extent = one.block.extent;
    if (one.id == request.id) {
      if (request.staging_id >= staging_.size() || at > request.staging_bytes ||
          extent.bytes > request.staging_bytes - at) {
        down->failed.push_back({one.id, one.key, BlockStatus::kFull, extent.bytes});
        continue;
      }
      const uint64_t to = request.staging_offset + at;
      std::memcpy(staging_[request.staging_id] + to, slab_->data() + extent.offset, extent.bytes);
      at += RoundUp(extent.bytes, kSegmentAlign);
      extent.offset = to;
    }
    down->ready.push_back(std::move(one));
  }
}

}  // namespace larder
