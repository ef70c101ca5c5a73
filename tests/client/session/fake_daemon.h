// A daemon for tests of SessionCore and of the code above it.  It answers as larderd would, over
// plain memory, on its own thread.  A test may change each message before it is delivered.
//
// It keeps the simplest state that gives right answers: no block is evicted and no deadline passes.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "client/session/session_core.h"
#include "storage/format/block_key.h"
#include "storage/mutex.h"

namespace larder {

class FakeDaemon final : public SessionChannel, public SharedMemory {
 public:
  struct Options {
    WriteMode write_mode = WriteMode::kMapped;
    ReadMode read_mode = ReadMode::kMapped;  // with kCopied no slab is mapped
    ByteCount pool = MiB(16);
    ByteCount lease_bytes_max = MiB(8);
    ByteCount staging_bytes_max = GiB(1);
    bool tables = false;               // each grant has the segment table
    bool encodes = false;              // stores blocks encoded, if they shrink
    std::vector<Digest> pending = {};  // answered PENDING, then READY
  };
  explicit FakeDaemon(const Options& options);
  ~FakeDaemon() override;

  // Starts the session.  From here on the fake's thread calls OnDown.
  absl::Status Attach(SessionCore& core, ByteCount staging_bytes = MiB(1));
  // Ends the fake's thread.  No message is delivered afterwards.
  void Stop() LARDER_EXCLUDES(mu_);

  // `tamper` runs on the fake's thread for each answer, before the answer is delivered.
  void SetTamper(std::function<void(wire::Down&)> tamper) LARDER_EXCLUDES(mu_);

  [[nodiscard]] absl::Status Send(wire::Up up) override LARDER_EXCLUDES(mu_);
  void Cancel() override { cancelled_.store(true); }
  [[nodiscard]] bool cancelled() const { return cancelled_.load(); }
  // Sets what MapSlab returns from here on, unless `status` is OK.
  void FailMapping(absl::Status status) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::StatusOr<MappedBytes> MapSlab(uint32_t slab, bool writable) override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const RevocationWords>> MapSessionPage(
      SessionId session) override;
  [[nodiscard]] absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes) override;
  [[nodiscard]] absl::Status DropStaging(uint32_t id) override;
  [[nodiscard]] size_t staging_dropped() const { return staging_dropped_; }

  // Delivers a message as if the daemon had sent it.
  void Push(wire::Down down) LARDER_EXCLUDES(mu_);
  // Changes the words, and then sends the revocation.
  void RevokeAll() LARDER_EXCLUDES(mu_);
  // Returns all messages that the client has sent, once `enough` is true for them.  The test fails
  // after 10 s.
  std::vector<wire::Up> WaitUps(const std::function<bool(const std::vector<wire::Up>&)>& enough)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t leases() LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t open_extents() LARDER_EXCLUDES(mu_);
  // Flips one byte of each stored block.
  void DamageAll() LARDER_EXCLUDES(mu_);
  // Clears the word of a lease, as a revocation does.
  void ClearWord(uint32_t word) {
    __atomic_store_n(&(*words_)[word], uint64_t{0}, __ATOMIC_RELEASE);
  }
  [[nodiscard]] std::weak_ptr<std::vector<std::byte>> slab() const { return slab_; }
  // How many slabs were mapped.  A session that reads by copies never maps one.
  [[nodiscard]] size_t slabs_mapped() const { return slabs_mapped_.load(); }
  [[nodiscard]] size_t encoded() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return encoded_;
  }
  // Drops the fake's own reference, so that slab() expires with the last mapping.
  void ForgetSlab() { slab_.reset(); }

 private:
  struct Stored {
    wire::ExtentGrant extent;
    SegmentTable table;
  };
  struct Reserved {
    uint32_t word = 0;
    std::map<uint32_t, wire::ExtentGrant> open;
  };
  void Run() LARDER_EXCLUDES(mu_);
  void Handle(const wire::Up& up, wire::Down* down) LARDER_REQUIRES(mu_);
  wire::Grant Acquire(const wire::Acquire& request, wire::Down* down) LARDER_REQUIRES(mu_);
  void CopyOut(const wire::Acquire& request, wire::Grant* grant, wire::Down* down)
      LARDER_REQUIRES(mu_);
  wire::Reserved Reserve(const wire::Reserve& request) LARDER_REQUIRES(mu_);
  wire::Published Publish(const wire::Publish& request) LARDER_REQUIRES(mu_);
  void Encode(Stored* stored) LARDER_REQUIRES(mu_);
  BlockStatus PublishOne(Reserved& reserved, uint32_t variant, const wire::PublishBlock& block)
      LARDER_REQUIRES(mu_);
  void EndLease(LeaseId lease) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool Place(uint64_t bytes, wire::ExtentGrant* extent) LARDER_REQUIRES(mu_);
  [[nodiscard]] uint32_t TakeWord(uint64_t id) LARDER_REQUIRES(mu_);

  const Options options_;
  std::shared_ptr<std::vector<std::byte>> slab_;
  const std::shared_ptr<std::vector<uint64_t>> words_;
  std::vector<std::byte*> staging_;  // mapped
  std::vector<size_t> staging_bytes_;
  size_t staging_dropped_ = 0;
  std::atomic<size_t> slabs_mapped_{0};
  std::atomic<bool> cancelled_{false};
  SessionCore* core_ = nullptr;
  std::thread thread_;

  Mutex mu_;
  CondVar changed_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::Status mapping_ LARDER_GUARDED_BY(mu_);
  std::function<void(wire::Down&)> tamper_ LARDER_GUARDED_BY(mu_);
  std::deque<wire::Up> inbox_ LARDER_GUARDED_BY(mu_);
  std::deque<wire::Down> pushed_ LARDER_GUARDED_BY(mu_);
  std::vector<wire::Up> ups_ LARDER_GUARDED_BY(mu_);
  std::vector<VariantSpec> variants_ LARDER_GUARDED_BY(mu_);
  std::map<std::pair<uint32_t, Digest>, Stored> blocks_ LARDER_GUARDED_BY(mu_);
  std::map<LeaseId, uint32_t> leases_ LARDER_GUARDED_BY(mu_);  // word of each
  std::map<ReservationId, Reserved> reservations_ LARDER_GUARDED_BY(mu_);
  std::multimap<uint64_t, uint64_t> free_ LARDER_GUARDED_BY(mu_);  // pages -> offset
  uint64_t used_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t next_id_ LARDER_GUARDED_BY(mu_) = 1000;
  uint32_t next_word_ LARDER_GUARDED_BY(mu_) = 0;
  size_t encoded_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
