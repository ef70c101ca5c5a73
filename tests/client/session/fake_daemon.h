// A daemon for tests of SessionCore and what is built on it: answers as larderd would, over plain
// memory, on a thread of its own.  A test may tamper with each message before it goes down.
//
// Simplest state that gives right answers: nothing is evicted, deadlines never pass.
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
    ReadMode read_mode = ReadMode::kMapped;  // kCopied: no slab is mapped
    ByteCount pool = MiB(16);
    ByteCount lease_bytes_max = MiB(8);
    ByteCount staging_bytes_max = GiB(1);
    bool tables = false;               // every grant comes with the segment table
    bool encodes = false;              // keeps blocks encoded, as far as they shrink
    std::vector<Digest> pending = {};  // these are answered PENDING, then READY
  };
  explicit FakeDaemon(const Options& options);
  ~FakeDaemon() override;

  // Starts the session; OnDown is called on the fake's thread from here on.
  absl::Status Attach(SessionCore& core, ByteCount staging_bytes = MiB(1));
  // Ends the fake's thread: no message goes down afterwards.
  void Stop() LARDER_EXCLUDES(mu_);

  // Runs on the fake's thread for every answer, before it is delivered.
  void SetTamper(std::function<void(wire::Down&)> tamper) LARDER_EXCLUDES(mu_);

  [[nodiscard]] absl::Status Send(wire::Up up) override LARDER_EXCLUDES(mu_);
  void Cancel() override { cancelled_.store(true); }
  [[nodiscard]] bool cancelled() const { return cancelled_.load(); }
  // What MapSlab answers from here on, unless OK.
  void FailMapping(absl::Status status) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::StatusOr<MappedBytes> MapSlab(uint32_t slab, bool writable) override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const RevocationWords>> MapSessionPage(
      SessionId session) override;
  [[nodiscard]] absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes) override;
  [[nodiscard]] absl::Status DropStaging(uint32_t id) override;
  [[nodiscard]] size_t staging_dropped() const { return staging_dropped_; }

  // Delivers a message as if the daemon had sent it.
  void Push(wire::Down down) LARDER_EXCLUDES(mu_);
  // Changes the words, then sends the Revocation.
  void RevokeAll() LARDER_EXCLUDES(mu_);
  // All messages up so far; waits until `enough` says so (10 s, then the test fails).
  std::vector<wire::Up> WaitUps(const std::function<bool(const std::vector<wire::Up>&)>& enough)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t leases() LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t open_extents() LARDER_EXCLUDES(mu_);
  // Flips a byte of each stored block.
  void DamageAll() LARDER_EXCLUDES(mu_);
  // Clears the word of the lease in `grant`, as a revocation does.
  void ClearWord(uint32_t word) {
    __atomic_store_n(&(*words_)[word], uint64_t{0}, __ATOMIC_RELEASE);
  }
  [[nodiscard]] std::weak_ptr<std::vector<std::byte>> slab() const { return slab_; }
  // Slabs asked for; a session that reads by copies never asks.
  [[nodiscard]] size_t slabs_mapped() const { return slabs_mapped_.load(); }
  [[nodiscard]] size_t encoded() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return encoded_;
  }
  // Forgets its own reference, so that slab() expires with the last mapping.
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
  std::map<LeaseId, uint32_t> leases_ LARDER_GUARDED_BY(mu_);  // its word
  std::map<ReservationId, Reserved> reservations_ LARDER_GUARDED_BY(mu_);
  std::multimap<uint64_t, uint64_t> free_ LARDER_GUARDED_BY(mu_);  // pages -> offset
  uint64_t used_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t next_id_ LARDER_GUARDED_BY(mu_) = 1000;
  uint32_t next_word_ LARDER_GUARDED_BY(mu_) = 0;
  size_t encoded_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
