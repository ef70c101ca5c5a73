// Which clients may read the pool in place and which read by copies, and that neither can write it:
// not even the root of a container, which bypasses file modes.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {
namespace {

using ::testing::Each;

constexpr uid_t kStranger = 65534;
constexpr uint32_t kBlocks = 24;
constexpr size_t kLayerBytes = 300'000;

// An engine in this process.
class Engine {
 public:
  Engine(const DaemonProcess& daemon, size_t layer_bytes = kLayerBytes, ByteCount staging = MiB(64))
      : layer_bytes_(layer_bytes) {
    auto client = Client::Connect({.socket_dir = daemon.folder()->path()});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto session = client_->Attach({.engine_id = "reader", .staging_bytes = staging});
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    variant_ = session_->Register({&maker_.content, 1}, {&maker_.variant, 1})->front();
  }
  Session& session() { return *session_; }

  std::vector<BlockStatus> Put(uint32_t count) {
    std::vector<BlockStatus> all;
    for (uint32_t i = 0; i < count; ++i) {
      const FilledBlock block(maker_, maker_.Block(i), layer_bytes_);
      const PutBlock put = block.ToPut();
      all.push_back(session_->Put(variant_, {&put, 1})->front());
    }
    return all;
  }
  // Reads layers [first, first + layers) of blocks 0 .. count-1.  Fails the test if bytes are
  // wrong.
  std::vector<BlockStatus> Get(uint32_t count, uint32_t first = 0, uint32_t layers = 2) {
    std::vector<LayerSpace> spaces;
    std::vector<GetBlock> gets;
    for (uint32_t i = 0; i < count; ++i) {
      spaces.emplace_back(maker_.Block(i).digest, layers, layer_bytes_, first);
      gets.push_back(spaces.back().ToGet());
    }
    const auto begun = std::chrono::steady_clock::now();
    const auto got = session_->Get(variant_, gets);
    get_took_ = std::chrono::steady_clock::now() - begun;
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) return {};
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t l = 0; l < layers && (*got)[i] == BlockStatus::kOk; ++l)
        EXPECT_TRUE(LayerIsRight(gets[i].digest, first + l, spaces[i].layers()[l]))
            << "block " << i;
    }
    return *got;
  }
  // The duration of the last Get, without the check of the bytes.
  [[nodiscard]] double get_seconds() const {
    return std::chrono::duration<double>(get_took_).count();
  }
  absl::StatusOr<Lease> Acquire(uint32_t count, bool tables = false) {
    std::vector<Digest> names;
    for (uint32_t i = 0; i < count; ++i) names.push_back(maker_.Block(i).digest);
    return session_->Acquire(variant_, names, {.tables = tables});
  }
  void ExpectRight(const Lease& lease) {
    const size_t second = RoundUp(layer_bytes_, kSegmentAlign);
    for (size_t i = 0; i < lease.size(); ++i) {
      ASSERT_EQ(lease.status(i), BlockStatus::kOk) << i;
      ASSERT_EQ(lease.View(i).size(), second + layer_bytes_);
      const Digest name = maker_.Block(static_cast<uint32_t>(i)).digest;
      EXPECT_TRUE(LayerIsRight(name, 0, lease.View(i).first(layer_bytes_)));
      EXPECT_TRUE(LayerIsRight(name, 1, lease.View(i).subspan(second)));
    }
  }

 private:
  const size_t layer_bytes_;
  const BlockMaker maker_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::chrono::steady_clock::duration get_took_{};
};

std::vector<std::string> Flags(const std::string& trusted) {
  return {"--pool", "64MiB", "--trusted-uids", trusted, "--data-socket-mode", "0666"};
}
// Another user than the test's, so that the daemon does not trust the test's process.
std::string SomebodyElse() { return std::to_string(geteuid() + 4242); }

class ReadByCopies : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_ = std::make_unique<DaemonProcess>(Flags(SomebodyElse()));
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  }
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(ReadByCopies, ReportsCopiedReadsAndMapsNoSlab) {
  Engine engine(*daemon_);
  EXPECT_EQ(engine.session().read_mode(), ReadMode::kCopied);
  EXPECT_EQ(engine.session().write_mode(), WriteMode::kStaged);
  EXPECT_THAT(engine.session().read_mode_reason(), ::testing::HasSubstr("--trusted-uids"));
  EXPECT_THAT(engine.Put(kBlocks), Each(BlockStatus::kOk));
  EXPECT_THAT(engine.Get(kBlocks), Each(BlockStatus::kOk));
  EXPECT_THAT(engine.Get(kBlocks, 1, 1), Each(BlockStatus::kOk)) << "of a range of layers";
  EXPECT_EQ(daemon_->Metric("larder_sideband_given_total{what=\"slab_read\"}"), 0);
  EXPECT_EQ(daemon_->Metric("larder_sideband_given_total{what=\"slab_write\"}"), 0);
  EXPECT_EQ(daemon_->Metric("larder_sessions_reading{read_mode=\"copied\"}"), 1);
  EXPECT_GE(daemon_->Metric("larder_moved_bytes_total{road=\"copied\"}"),
            1.5 * kBlocks * 2 * kLayerBytes);
}

TEST_F(ReadByCopies, ViewsTakeStagingUntilTheyAreReleased) {
  Engine engine(*daemon_, kLayerBytes, MiB(8));
  EXPECT_THAT(engine.Put(kBlocks), Each(BlockStatus::kOk));
  for (int round = 0; round < 3; ++round) {  // the client learns the size of blocks in the first
    auto lease = engine.Acquire(6, round == 2);
    ASSERT_TRUE(lease.ok()) << lease.status();
    engine.ExpectRight(*lease);
    EXPECT_TRUE(lease->Valid());
    EXPECT_EQ(lease->Table(0) != nullptr, round == 2);
    EXPECT_TRUE(Eventually([&] { return daemon_->Metric("larder_holds{kind=\"lease\"}") == 0; }))
        << "views of copies still hold a lease on the pool's blocks";
    EXPECT_THAT(engine.Get(kBlocks), Each(BlockStatus::kOk)) << "while the views are held";
  }
  auto most = engine.Acquire(kBlocks);  // 14 MiB
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->status(0), BlockStatus::kOk);
  EXPECT_EQ(most->status(kBlocks - 1), BlockStatus::kFull);
  most->Release();
  auto again = engine.Acquire(6);
  ASSERT_TRUE(again.ok()) << again.status();
  engine.ExpectRight(*again);
}

TEST_F(ReadByCopies, ABatchLargerThanStagingSucceeds) {
  Engine engine(*daemon_, kLayerBytes, MiB(2));
  EXPECT_THAT(engine.Put(kBlocks), Each(BlockStatus::kOk));
  EXPECT_THAT(engine.Get(kBlocks), Each(BlockStatus::kOk));
}

// The last session finds no staging memory left and streams its bytes.  All sessions must work.
TEST(Staging, SessionsShareStagingAndThenFallBackToStreams) {
  std::vector<std::string> flags = Flags(SomebodyElse());
  flags.insert(flags.end(), {"--staging-limit", "16MiB", "--staging-uid-limit", "16MiB"});
  DaemonProcess daemon(flags);
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  std::vector<std::unique_ptr<Engine>> engines;
  for (const ReadMode mode :
       {ReadMode::kCopied, ReadMode::kCopied, ReadMode::kCopied, ReadMode::kStream}) {
    engines.push_back(std::make_unique<Engine>(daemon));
    ASSERT_EQ(engines.back()->session().read_mode(), mode) << engines.size();
  }
  Session& last = engines.back()->session();
  EXPECT_EQ(last.write_mode(), WriteMode::kStream);
  EXPECT_THAT(last.write_mode_reason(), ::testing::HasSubstr("--staging"));
  EXPECT_EQ(last.read_mode_reason(), last.write_mode_reason());
  EXPECT_EQ(daemon.Metric("larder_staging_bytes"), 16 << 20);
  EXPECT_TRUE(Eventually([&] {
    return daemon.Metric("larder_sessions{write_mode=\"staged\"}") == 3;
  })) << "a staged session that could not be used is still attached";
  EXPECT_THAT(engines[0]->Put(kBlocks), Each(BlockStatus::kOk));
  for (const auto& engine : engines) EXPECT_THAT(engine->Get(kBlocks), Each(BlockStatus::kOk));
  engines.erase(engines.begin(), engines.begin() + 3);
  EXPECT_TRUE(Eventually([&] { return daemon.Metric("larder_staging_bytes") == 0; }));
  EXPECT_EQ(Engine(daemon).session().read_mode(), ReadMode::kCopied);
}

// With no trusted user the pool is sealed: sessions write through the daemon and read in place.
TEST(SealedPool, IsReadInPlaceByAllAndMappedWritableByNone) {
  DaemonProcess daemon(Flags(""));
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  Engine engine(daemon);
  EXPECT_EQ(engine.session().read_mode(), ReadMode::kMapped);
  EXPECT_EQ(engine.session().write_mode(), WriteMode::kStaged);
  EXPECT_THAT(engine.Put(kBlocks), Each(BlockStatus::kOk));
  EXPECT_THAT(engine.Get(kBlocks), Each(BlockStatus::kOk));
  auto lease = engine.Acquire(6);
  ASSERT_TRUE(lease.ok()) << lease.status();
  engine.ExpectRight(*lease);
  EXPECT_EQ(daemon.Metric("larder_moved_bytes_total{road=\"copied\"}"), 0);
}

// ---- attacks

struct Attacked {
  int code = -1;
  std::string said;
};

Attacked RunAttacker(const DaemonProcess& daemon, const char* where) {
  const std::string command =
      absl::StrCat(ProgramAt(MEMORY_ATTACKER_PATH), " ", daemon.folder()->path(), " ", daemon.pid(),
                   " ", kStranger, " ", where, " 2>&1");
  Attacked result;
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::array<char, 512> line{};
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr)
    result.said += line.data();
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// Parameter: the value of --trusted-uids.
class PoolUnderAttack : public ::testing::TestWithParam<const char*> {};

TEST_P(PoolUnderAttack, AProcessThatBypassesFileModesCannotWriteThePool) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid with capabilities";
  DaemonProcess daemon(Flags(GetParam()));
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  ASSERT_EQ(chmod(daemon.folder()->path().c_str(), 0755), 0);
  Engine victim(daemon);
  const bool trusted = std::string(GetParam()) == "self";
  EXPECT_EQ(victim.session().write_mode(), trusted ? WriteMode::kMapped : WriteMode::kStaged);
  ASSERT_THAT(victim.Put(kBlocks), Each(BlockStatus::kOk));
  for (const char* const where : {"host", "namespaces"}) {
    SCOPED_TRACE(where);
    const Attacked attack = RunAttacker(daemon, where);
    std::printf("%s, trusted \"%s\":\n%s", where, GetParam(), attack.said.c_str());
    if (attack.code == 2) continue;  // this host does not permit such namespaces
    EXPECT_EQ(attack.code, 0) << attack.said;
    const std::string mode =
        trusted ? "reads copied, writes staged" : "reads mapped, writes staged";
    EXPECT_THAT(attack.said, ::testing::HasSubstr(mode));
    if (trusted) {
      EXPECT_THAT(attack.said, ::testing::HasSubstr(", 0 of them of slabs"));
    }
    EXPECT_THAT(victim.Get(kBlocks), Each(BlockStatus::kOk));
    auto lease = victim.Acquire(kBlocks);
    ASSERT_TRUE(lease.ok()) << lease.status();
    victim.ExpectRight(*lease);
    EXPECT_TRUE(lease->Valid()) << "the attack changed the session's revocation words";
  }
  EXPECT_EQ(daemon.Metric("larder_blocks_damaged_total{tier=\"host\"}"), 0);
  EXPECT_TRUE(daemon.alive());
}

INSTANTIATE_TEST_SUITE_P(Modes, PoolUnderAttack, ::testing::Values("self", ""),
                         [](const auto& mode) {
                           return std::string(mode.param).empty() ? "sealed" : "mapped_writers";
                         });

// ---- the cost, which is only printed

double MedianSeconds(Engine& engine) {
  std::vector<double> all;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(engine.Get(1), std::vector{BlockStatus::kOk});
    all.push_back(engine.get_seconds());
  }
  std::ranges::nth_element(all, all.begin() + 100);
  return all[100];
}

TEST(ReadModes, PrintsTheCostOfAGetByCopies) {
  DaemonProcess in_place(Flags("self")), by_copies(Flags(SomebodyElse()));
  ASSERT_TRUE(in_place.serves() && by_copies.serves());
  Engine mapped(in_place, 512 << 10), copied(by_copies, 512 << 10);
  ASSERT_THAT(mapped.Put(1), Each(BlockStatus::kOk));
  ASSERT_THAT(copied.Put(1), Each(BlockStatus::kOk));
  ASSERT_EQ(copied.session().read_mode(), ReadMode::kCopied);
  const double a = MedianSeconds(mapped), b = MedianSeconds(copied);
  std::printf("get of 1 MiB: mapped %.0f us, by copies %.0f us: %.2f times\n", a * 1e6, b * 1e6,
              b / a);
  RecordProperty("by_copies_over_mapped", absl::StrCat(b / a));
}

}  // namespace
}  // namespace larder::e2e
