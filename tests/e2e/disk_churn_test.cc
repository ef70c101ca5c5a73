// The daemon with a disk under churn: for minutes, engines use four times as many bytes as the disk
// may take.  The size of its files must stay within the limit at every sample, the bytes written
// must stay close to the bytes stored, the daemon's own memory must stay bounded, every byte read
// must be right, and afterwards blocks must become durable as before.
//
// LARDER_TEST_SCALE (default 0.1) scales the 30 minutes; the test runs at least 15 s.
// LARDER_TEST_SEED replays the random choices, not the timing.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "storage/mutex.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kDiskLimit = 256 * kMiB;
constexpr uint64_t kWorkingSet = 4 * kDiskLimit;
constexpr double kWrittenPerPut = 1.3;
constexpr double kMemoryMax = 512.0 * kMiB;  // without the pool and the index

constexpr int kSessions = 4;
constexpr size_t kPrompts = 16, kPromptBlocks = 4;
constexpr size_t kTalkBlocksMax = 24;
// Small compared with a session's share of the pool, a quarter of 128 MiB.
constexpr uint64_t kBatchBytes = 8 * kMiB;
constexpr std::chrono::milliseconds kCallDeadline{30'000};
// The pause between two turns of a session, as the machine has other work.  In the first kBurst of
// every kBurstEach no session pauses, and then more is published than the disk can write.
constexpr std::chrono::milliseconds kPauseMax{800};
constexpr std::chrono::seconds kBurstEach{20}, kBurst{2};

std::chrono::milliseconds Duration() {
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::max(15.0, 30 * 60 * testing::TestScale()) * 1e3));
}

double Uniform(Random& random) { return std::uniform_real_distribution<double>(0, 1)(random); }

// Draws a rank below `count` in about a Zipf distribution: 0 is twice as likely as 1, and three
// times as likely as 2.
size_t ZipfRank(Random& random, size_t count) {
  const double drawn = std::pow(static_cast<double>(count) + 1, Uniform(random)) - 1;
  return std::min(count - 1, static_cast<size_t>(drawn));
}

// ---- names and sizes

// The size of each of a block's two layers: 32 KiB to 2 MiB, every octave equally likely, and
// seldom whole pages.
uint64_t LayerBytes(const Digest& digest) {
  const double share = static_cast<double>(digest.Hash64() >> 11) * 0x1p-53;
  return static_cast<uint64_t>(32768 * std::exp2(6 * share));
}
uint64_t SecondLayer(const Digest& digest) { return RoundUp(LayerBytes(digest), kSegmentAlign); }
uint64_t PayloadBytes(const Digest& digest) { return SecondLayer(digest) + LayerBytes(digest); }

uint64_t PayloadBytes(std::span<const TestBlock> blocks) {
  uint64_t bytes = 0;
  for (const TestBlock& block : blocks) bytes += PayloadBytes(block.digest);
  return bytes;
}

template <class Visit>
void InBatches(std::span<const TestBlock> blocks, Visit visit) {
  for (size_t from = 0; from < blocks.size();) {
    size_t to = from + 1;
    while (to < blocks.size() && PayloadBytes(blocks.subspan(from, to + 1 - from)) <= kBatchBytes)
      ++to;
    visit(blocks.subspan(from, to - from));
    from = to;
  }
}

// The blocks that engines use: conversations, each of which begins with one of a few prompts and
// grows.  When they are larger than the working set, a conversation ends, and no engine uses it
// again.
class WorkingSet {
 public:
  explicit WorkingSet(const Digest& seed) : prompts_(kPrompts) {
    for (auto& prompt : prompts_) {
      while (prompt.size() < kPromptBlocks) Append(seed, &prompt);
      bytes_ += PayloadBytes(prompt);
    }
  }
  // The blocks of a conversation, from its first.  Those from `known` on are new.
  struct Turn {
    std::vector<TestBlock> blocks;
    size_t known = 0;
  };
  [[nodiscard]] Turn Next(Random& random) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Talk& talk = talks_.empty() || random() % 8 == 0 ? Begin(random) : Choose(random);
    const std::vector<TestBlock>& prompt = prompts_[talk.prompt];
    Turn turn{prompt, prompt.size() + talk.blocks.size()};
    const size_t room = kTalkBlocksMax - talk.blocks.size();
    for (size_t more = std::min<size_t>(random() % 4, room); more > 0; --more)
      bytes_ += PayloadBytes(Append(prompt.back().digest, &talk.blocks).digest);
    turn.blocks.insert(turn.blocks.end(), talk.blocks.begin(), talk.blocks.end());
    while (bytes_ > kWorkingSet) EndOne(random);
    return turn;
  }
  [[nodiscard]] std::vector<TestBlock> All() const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::vector<TestBlock> all;
    for (const auto& prompt : prompts_) all.insert(all.end(), prompt.begin(), prompt.end());
    for (const Talk& talk : talks_) all.insert(all.end(), talk.blocks.begin(), talk.blocks.end());
    return all;
  }
  [[nodiscard]] uint64_t ended() const { return ended_; }

 private:
  struct Talk {
    size_t prompt = 0;
    std::vector<TestBlock> blocks;
  };
  // Appends a block with new tokens to the chain.  Its parent is the chain's last block, or
  // `before` if the chain is empty.
  const TestBlock& Append(const Digest& before, std::vector<TestBlock>* chain)
      LARDER_REQUIRES(mu_) {
    TestBlock block = BlockMaker().Block(serial_++);
    block.parent = chain->empty() ? before : chain->back().digest;
    block.digest = Chain(block.parent, block.tokens).back();
    return chain->emplace_back(std::move(block));
  }
  Talk& Begin(Random& random) LARDER_REQUIRES(mu_) {
    return talks_.emplace_back(Talk{ZipfRank(random, kPrompts), {}});
  }
  // New conversations are used most, and some of the oldest are used forever.
  Talk& Choose(Random& random) LARDER_REQUIRES(mu_) {
    const size_t rank = ZipfRank(random, talks_.size());
    return talks_[random() % 3 == 0 ? rank : talks_.size() - 1 - rank];
  }
  void EndOne(Random& random) LARDER_REQUIRES(mu_) {
    const auto gone = talks_.begin() + static_cast<std::ptrdiff_t>(random() % talks_.size());
    bytes_ -= PayloadBytes(gone->blocks);
    talks_.erase(gone);
    ++ended_;
  }

  std::vector<std::vector<TestBlock>> prompts_;  // const
  mutable Mutex mu_;
  std::vector<Talk> talks_ LARDER_GUARDED_BY(mu_);  // oldest first
  uint64_t bytes_ LARDER_GUARDED_BY(mu_) = 0;
  uint32_t serial_ LARDER_GUARDED_BY(mu_) = 0;
  std::atomic<uint64_t> ended_{0};
};

// ---- engines

// Counts what all engines together did.
struct Tally {
  std::atomic<uint64_t> published{0}, published_bytes{0}, duplicates{0}, read{0}, hits{0},
      hit_bytes{0}, full{0}, late{0}, failed{0};
  // Fails the test for a failed call, a status that the call may not return, or wrong bytes.
  void Fail(const std::string& why) {
    if (++failed <= 5) ADD_FAILURE() << why;
  }
};

// A client and its session.
class Engine {
 public:
  Engine(const std::string& folder, WriteMode mode, Tally& tally) : tally_(tally) {
    Connect(folder, mode);
  }
  [[nodiscard]] bool attached() const { return session_ != nullptr; }
  [[nodiscard]] uint64_t durable() const { return session_->counters().blocks_durable; }

  // Reads blocks and checks their bytes.  Returns the blocks that are no hit.
  [[nodiscard]] std::vector<TestBlock> Read(std::span<const TestBlock> blocks, bool in_place) {
    std::vector<TestBlock> missing;
    InBatches(blocks, [&](std::span<const TestBlock> batch) {
      in_place ? ReadInPlace(batch, &missing) : ReadCopies(batch, &missing);
    });
    return missing;
  }
  void Put(std::span<const TestBlock> blocks) {
    InBatches(blocks, [this](std::span<const TestBlock> batch) { PutBatch(batch); });
  }

 private:
  void Connect(const std::string& folder, WriteMode mode) {
    auto client = Client::Connect({.socket_dir = folder});
    if (!client.ok()) return tally_.Fail(client.status().ToString());
    client_ = *std::move(client);
    auto session = client_->Attach({.engine_id = "churn", .write_mode = mode});
    if (!session.ok()) return tally_.Fail(session.status().ToString());
    const auto variants = (*session)->Register({&maker_.content, 1}, {&maker_.variant, 1});
    if (!variants.ok()) return tally_.Fail(variants.status().ToString());
    variant_ = variants->front();
    session_ = *std::move(session);
  }
  // Returns memory for the layers of a batch, one after the other.
  [[nodiscard]] std::vector<std::span<std::byte>> Layers(std::span<const TestBlock> batch) {
    buffer_.resize(PayloadBytes(batch));
    std::vector<std::span<std::byte>> layers;
    std::span<std::byte> rest = buffer_;
    for (const TestBlock& block : batch) {
      layers.push_back(rest.first(LayerBytes(block.digest)));
      rest = rest.subspan(SecondLayer(block.digest));
      layers.push_back(rest.first(LayerBytes(block.digest)));
      rest = rest.subspan(LayerBytes(block.digest));
    }
    return layers;
  }
  void PutBatch(std::span<const TestBlock> batch) {
    const std::vector<std::span<std::byte>> layers = Layers(batch);
    const std::vector<std::span<const std::byte>> views(layers.begin(), layers.end());
    std::vector<PutBlock> puts;
    for (size_t i = 0; i < batch.size(); ++i) {
      FillLayer(batch[i].digest, 0, layers[2 * i]);
      FillLayer(batch[i].digest, 1, layers[2 * i + 1]);
      puts.push_back({.digest = batch[i].digest,
                      .parent = batch[i].parent,
                      .tokens = batch[i].tokens,
                      .segments = std::span(views).subspan(2 * i, 2)});
    }
    const auto status = session_->Put(variant_, puts, {.deadline = kCallDeadline});
    if (!status.ok()) return tally_.Fail(absl::StrCat("put: ", status.status().ToString()));
    for (size_t i = 0; i < batch.size(); ++i) CountPut((*status)[i], batch[i].digest);
  }
  void CountPut(BlockStatus status, const Digest& digest) {
    switch (status) {
      case BlockStatus::kOk:
        ++tally_.published;
        tally_.published_bytes += PayloadBytes(digest);
        break;
      case BlockStatus::kDuplicate:
        ++tally_.duplicates;
        break;
      case BlockStatus::kFull:
        ++tally_.full;
        break;
      default:
        tally_.Fail(absl::StrCat("a put block is ", ToString(status)));
    }
  }
  void ReadCopies(std::span<const TestBlock> batch, std::vector<TestBlock>* missing) {
    const std::vector<std::span<std::byte>> layers = Layers(batch);
    // Bytes that an earlier call left there must not pass for an answer.
    std::fill(buffer_.begin(), buffer_.end(), std::byte{0xDD});
    std::vector<GetBlock> gets;
    for (size_t i = 0; i < batch.size(); ++i) {
      gets.push_back({.digest = batch[i].digest,
                      .segments = std::span(layers).subspan(2 * i, 2),
                      .first_layer = 0});
    }
    const auto status = session_->Get(variant_, gets, {.deadline = kCallDeadline});
    if (!status.ok()) return tally_.Fail(absl::StrCat("get: ", status.status().ToString()));
    for (size_t i = 0; i < batch.size(); ++i) {
      const bool right =
          (*status)[i] != BlockStatus::kOk || (LayerIsRight(batch[i].digest, 0, layers[2 * i]) &&
                                               LayerIsRight(batch[i].digest, 1, layers[2 * i + 1]));
      CountRead((*status)[i], right, batch[i], missing);
    }
  }
  void ReadInPlace(std::span<const TestBlock> batch, std::vector<TestBlock>* missing) {
    std::vector<Digest> digests;
    for (const TestBlock& block : batch) digests.push_back(block.digest);
    const auto lease = session_->Acquire(variant_, digests, {.deadline = kCallDeadline});
    if (!lease.ok()) return tally_.Fail(absl::StrCat("acquire: ", lease.status().ToString()));
    for (size_t i = 0; i < batch.size(); ++i) {
      BlockStatus status = lease->status(i);
      bool right = true;
      if (status == BlockStatus::kOk) {
        right = ViewIsRight(digests[i], lease->View(i));
        if (!lease->Valid()) status = BlockStatus::kCancelled;
      }
      CountRead(status, right, batch[i], missing);
    }
  }
  static bool ViewIsRight(const Digest& digest, std::span<const std::byte> view) {
    const uint64_t bytes = LayerBytes(digest);
    return view.size() == PayloadBytes(digest) && LayerIsRight(digest, 0, view.first(bytes)) &&
           LayerIsRight(digest, 1, view.subspan(SecondLayer(digest), bytes));
  }
  void CountRead(BlockStatus status, bool right, const TestBlock& block,
                 std::vector<TestBlock>* missing) {
    ++tally_.read;
    switch (status) {
      case BlockStatus::kOk:
        ++tally_.hits;
        tally_.hit_bytes += PayloadBytes(block.digest);
        if (!right) tally_.Fail(absl::StrCat("wrong bytes of block ", block.tokens[0] / 16));
        return;
      case BlockStatus::kMissing:
        break;
      case BlockStatus::kFull:
        ++tally_.full;
        break;
      case BlockStatus::kCancelled:
        ++tally_.late;
        break;
      default:
        tally_.Fail(absl::StrCat("a read block is ", ToString(status)));
    }
    missing->push_back(block);
  }

  const BlockMaker maker_;
  Tally& tally_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::vector<std::byte> buffer_;
};

// ---- what the kernel says

// Returns the disk usage as du counts it.  Files may come and go meanwhile.
uint64_t DiskUsage(int parent, const char* name) {
  struct stat file {};
  if (fstatat(parent, name, &file, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  uint64_t bytes = static_cast<uint64_t>(file.st_blocks) * 512;
  if (!S_ISDIR(file.st_mode)) return bytes;
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const folder = fd < 0 ? nullptr : fdopendir(fd);
  if (folder == nullptr) return bytes;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view inside = entry->d_name;
    if (inside != "." && inside != "..") bytes += DiskUsage(dirfd(folder), entry->d_name);
  }
  closedir(folder);
  return bytes;
}

// Returns the bytes that the kernel wrote to disks for a process, or 0 if the kernel does not
// report them.
uint64_t WrittenByKernel(pid_t pid) {
  std::ifstream counts("/proc/" + std::to_string(pid) + "/io");
  uint64_t value = 0;
  for (std::string name; counts >> name >> value;) {
    if (name == "write_bytes:") return value;
  }
  return 0;
}

double InMiB(double bytes) { return bytes / static_cast<double>(kMiB); }
double InMiB(uint64_t bytes) { return InMiB(static_cast<double>(bytes)); }

// ---- the test

class DiskChurnTest : public ::testing::Test {
 protected:
  struct Written {
    double put = 0;  // bytes of durable payloads
    double written = 0;
    uint64_t by_kernel = 0;
  };

  void Start() {
    daemon_.reset();
    const std::vector<std::string> flags = {
        "--pool", "128MiB", "--slab",       "16MiB",
        "--disk", disk_,    "--disk-limit", std::to_string(kDiskLimit)};
    daemon_ = std::make_unique<DaemonProcess>(flags, DaemonProcess::Options{.folder = folder_});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    start_ = Clock::now();
  }
  [[nodiscard]] double Moved(const std::string& how) const {
    return daemon_->Metric("larder_disk_moved_bytes_total{how=\"" + how + "\"}");
  }
  // Whether no block waits to be written to disk.
  [[nodiscard]] bool Spilled() const {
    return daemon_->Metric("larder_disk_waiting{for=\"spill\"}") == 0;
  }
  [[nodiscard]] Written WrittenSoFar() const {
    return {Moved("spilled"), Moved("written"), WrittenByKernel(daemon_->pid())};
  }
  void Look() {
    du_max_ = std::max(du_max_, DiskUsage(AT_FDCWD, disk_.c_str()));
    const double kept = daemon_->Metric("larder_kept_bytes{what=\"index\"}") +
                        daemon_->Metric("larder_kept_bytes{what=\"metadata\"}");
    const auto resident = static_cast<double>(daemon_->ResidentBytesBesidePool());
    memory_max_ = std::max(memory_max_, resident - kept);
    ++looks_;
  }
  void WatchUntil(Clock::time_point until) {
    constexpr std::chrono::milliseconds kBetweenLooks{200};
    auto report = Clock::now() + std::chrono::minutes(1);
    while (Clock::now() < until && daemon_->alive() && !HasFailure()) {
      Look();
      if (Clock::now() >= report) {
        report += std::chrono::minutes(1);
        Report();
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  [[nodiscard]] bool Pausing() const {
    return set_.ended() > 0 && (Clock::now() - start_) % kBurstEach >= kBurst;
  }
  // Runs an engine: it reads the stored blocks of a conversation and puts the missing and the new
  // ones, which a real engine would compute.
  void Churn(uint32_t seed, WriteMode mode) {
    Random random(seed);
    Engine engine(folder_->path(), mode, tally_);
    while (!end_ && engine.attached()) {
      const WorkingSet::Turn turn = set_.Next(random);
      const std::span<const TestBlock> all = turn.blocks;
      std::vector<TestBlock> missing = engine.Read(all.first(turn.known), random() % 2 == 0);
      missing.insert(missing.end(), all.begin() + static_cast<std::ptrdiff_t>(turn.known),
                     all.end());
      engine.Put(missing);
      const auto pause = kPauseMax * Uniform(random);
      if (Pausing()) std::this_thread::sleep_for(pause);
    }
  }
  void RunEngines() {
    const uint32_t seed = testing::TestSeed();
    std::vector<std::thread> engines;
    for (uint32_t i = 0; i < kSessions; ++i) {
      const WriteMode mode = i == 0 ? WriteMode::kStaged : WriteMode::kMapped;
      engines.emplace_back([this, i, seed, mode] { Churn(seed + i, mode); });
    }
    WatchUntil(Clock::now() + Duration());
    end_ = true;
    for (std::thread& engine : engines) engine.join();
  }

  void ExpectNothingFailed() {
    ASSERT_TRUE(daemon_->alive()) << daemon_->errors();
    EXPECT_EQ(tally_.failed, 0u);
    EXPECT_EQ(daemon_->Health(), "SERVING");
    EXPECT_EQ(tally_.late, 0u) << "a read was lost or took longer than its deadline";
    EXPECT_EQ(daemon_->Metric("larder_blocks_damaged_total{tier=\"host\"}"), 0);
    EXPECT_EQ(daemon_->Metric("larder_disk_spill_total{result=\"damaged\"}"), 0);
    EXPECT_EQ(daemon_->Metric("larder_disk_promote_total{result=\"damaged\"}"), 0);
    for (const char* kind : {"write", "read", "sync", "catalog", "damaged"}) {
      const auto sample = absl::StrCat("larder_disk_failures_total{kind=\"", kind, "\"}");
      EXPECT_EQ(daemon_->Metric(sample), 0) << sample << "\n" << daemon_->errors();
    }
    EXPECT_TRUE(Eventually([&] {
      const v1::TenantStats t = daemon_->Tenant();
      return t.pool_limit() > 0 && t.sessions() == 0 && t.leases() == 0 && t.reservations() == 0 &&
             t.pool_stored() + t.pool_free() == t.pool_limit();
    })) << daemon_->Tenant().ShortDebugString();
  }
  void ExpectWithinBounds() {
    EXPECT_LE(du_max_, kDiskLimit);
    EXPECT_LE(memory_max_, kMemoryMax);
    const Written now = WrittenSoFar();
    EXPECT_LE(now.written, kWrittenPerPut * now.put);
    EXPECT_LE(static_cast<double>(now.by_kernel), kWrittenPerPut * now.put);
    // Otherwise the test proves nothing.
    EXPECT_GT(set_.ended(), 0u) << "the working set was never full";
    EXPECT_GT(now.put, static_cast<double>(kDiskLimit));
    EXPECT_GT(Moved("promoted"), 0);
  }
  void Report() const {
    const Written now = WrittenSoFar();
    const auto published = static_cast<double>(tally_.published_bytes);
    const auto count = [](const std::atomic<uint64_t>& number) { return number.load(); };
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double lost = daemon_->Metric("larder_disk_spill_total{result=\"dropped_evicted\"}");
    std::printf(
        "%.0f s: published %lu blocks, %.0f MiB (%lu duplicates, %lu refused as full, %.0f left "
        "the pool before they were written); read %lu, hits %lu, %.0f MiB, from disk %.0f MiB; put "
        "to "
        "disk %.0f MiB, written %.0f MiB, ratio %.3f, by the kernel's count %.3f; written / "
        "published %.3f; du at most %.1f of %.0f MiB in %lu samples; memory without pool and index "
        "at most %.1f MiB\n",
        seconds, count(tally_.published), InMiB(published), count(tally_.duplicates),
        count(tally_.full), lost, count(tally_.read), count(tally_.hits),
        InMiB(count(tally_.hit_bytes)), InMiB(Moved("promoted")), InMiB(now.put),
        InMiB(now.written), now.written / now.put, static_cast<double>(now.by_kernel) / now.put,
        now.written / published, InMiB(du_max_), InMiB(kDiskLimit), looks_, InMiB(memory_max_));
    std::fflush(stdout);
  }

  [[nodiscard]] double OnDisk() const {
    return daemon_->Metric("larder_disk_blocks{where=\"all\"}");
  }
  // Expects that blocks still become durable.  They are put one at a time, because the daemon may
  // evict the block before to make space for a batch; and as any engine would, it puts a block
  // again if it has left meanwhile.
  void PutDurably(std::span<const TestBlock> fresh) {
    Tally tally;
    Engine engine(folder_->path(), WriteMode::kMapped, tally);
    ASSERT_TRUE(engine.attached());
    for (size_t i = 0; i < fresh.size(); ++i) {
      ASSERT_TRUE(Eventually([&] {
        engine.Put(engine.Read(fresh.subspan(i, 1), /*in_place=*/true));
        return engine.durable() > i;
      })) << i;
    }
    std::printf("afterwards %zu blocks became durable by %lu puts\n", fresh.size(),
                tally.published.load());
  }
  // Expects that the next daemon has the durable blocks and gives no wrong bytes.
  void ExpectTheNextDaemonFinds(std::span<const TestBlock> fresh) {
    const double on_disk = OnDisk();
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start());
    EXPECT_TRUE(Eventually([&] {
      Look();
      return daemon_->Metric("larder_disk_recovering") == 0;
    }));
    EXPECT_EQ(OnDisk(), on_disk);
    Tally tally, all;
    Engine engine(folder_->path(), WriteMode::kMapped, tally);
    Engine other(folder_->path(), WriteMode::kStaged, all);
    ASSERT_TRUE(engine.attached() && other.attached());
    // Space for a block may have been made by evicting earlier ones, but no block was put after the
    // last, so the last must be there.
    const std::vector<TestBlock> missing = engine.Read(fresh, /*in_place=*/false);
    EXPECT_TRUE(missing.empty() || missing.back().digest != fresh.back().digest);
    EXPECT_EQ(daemon_->Metric("larder_blocks_got_total{result=\"disk\"}"), tally.hits);
    static_cast<void>(other.Read(set_.All(), /*in_place=*/true));
    EXPECT_GT(all.hits, 0u);
    EXPECT_EQ(daemon_->Metric("larder_disk_promote_total{result=\"damaged\"}"), 0);
    Look();
    EXPECT_LE(du_max_, kDiskLimit);
    std::printf("the next daemon: %.0f blocks, %lu of %zu of the last, %lu of %lu of all\n",
                on_disk, tally.hits.load(), fresh.size(), all.hits.load(), all.read.load());
  }

  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  const std::string disk_ = folder_->File("disk");
  std::unique_ptr<DaemonProcess> daemon_;
  Clock::time_point start_;
  WorkingSet set_{BlockMaker().content.Id()};
  Tally tally_;
  std::atomic<bool> end_{false};
  uint64_t du_max_ = 0, looks_ = 0;
  double memory_max_ = 0;
};

TEST_F(DiskChurnTest, StaysWithinItsLimitsUnderFourTimesItsWorkingSet) {
  ASSERT_NO_FATAL_FAILURE(Start());
  RunEngines();
  EXPECT_TRUE(Eventually([&] { return !daemon_->alive() || Spilled(); }));
  ASSERT_NO_FATAL_FAILURE(ExpectNothingFailed());
  Look();
  ExpectWithinBounds();
  Report();
  std::vector<TestBlock> fresh;
  for (uint32_t i = 0; i < 16; ++i) fresh.push_back(BlockMaker().Block((1u << 27) + i));
  ASSERT_NO_FATAL_FAILURE(PutDurably(fresh));
  ExpectTheNextDaemonFinds(fresh);
}

}  // namespace
}  // namespace larder::e2e
