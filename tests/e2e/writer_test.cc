// The writer of a block, whose user comes from the kernel: blocks of two users are found and
// cleared by user and by engine, and by user also after the daemon that stored them has been
// killed.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "storage/check.h"
#include "tests/e2e/support/other_user.h"
#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kStore[] = "--store";  // as the first argument: run as an engine, see main

// ---- an engine, in a separate process because it has another user

int Failed(const absl::Status& status) {
  std::fprintf(stderr, "writer_test %s: %s\n", kStore, status.ToString().c_str());
  return 1;
}

// Stores blocks from .. to-1.  Returns the exit code of the process.
int StoreAs(const std::string& folder, uid_t uid, const std::string& engine, uint32_t from,
            uint32_t to) {
  BecomeUser(uid, static_cast<gid_t>(uid));
  const auto client = Client::Connect({.socket_dir = folder});
  if (!client.ok()) return Failed(client.status());
  const auto session = (*client)->Attach({.engine_id = engine, .staging_bytes = MiB(1)});
  if (!session.ok()) return Failed(session.status());
  const BlockMaker maker;
  const auto variants = (*session)->Register({&maker.content, 1}, {&maker.variant, 1});
  if (!variants.ok()) return Failed(variants.status());
  for (uint32_t number = from; number < to; ++number) {
    const FilledBlock block(maker, maker.Block(number), kLayerBytes);
    const PutBlock put = block.ToPut();
    const auto status = (*session)->Put(variants->front(), {&put, 1});
    if (!status.ok()) return Failed(status.status());
    if (status->front() != BlockStatus::kOk) return Failed(absl::UnknownError("not stored"));
  }
  return 0;
}

// Runs this program as an engine and returns its exit code.
int RunEngine(const std::string& folder, uid_t uid, const std::string& engine, uint32_t from,
              uint32_t to) {
  std::array<std::string, 7> words = {"writer_test",       kStore, folder,
                                      std::to_string(uid), engine, std::to_string(from),
                                      std::to_string(to)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  LARDER_CHECK(child >= 0);
  if (child == 0) {
    execv("/proc/self/exe", arguments.data());
    _exit(98);
  }
  int status = 0;
  LARDER_CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// ---- the operator

constexpr uint32_t kOurs = 4, kGood = 4, kBad = 2, kAll = kOurs + kGood + kBad;

class WriterTest : public VerbTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    ASSERT_EQ(chmod(folder_->path().c_str(), 0755), 0);
    ASSERT_NO_FATAL_FAILURE(Start({"--data-socket-mode", "0666"}));
  }
  // Stores blocks of our engine "disk" and then of two engines of another user, and waits until all
  // are durable.
  void PutOfBoth() {
    ASSERT_NO_FATAL_FAILURE(PutDurable(kOurs));
    ASSERT_EQ(RunEngine(folder_->path(), kAttackerUid, "good", kOurs, kOurs + kGood), 0);
    ASSERT_EQ(RunEngine(folder_->path(), kAttackerUid, "bad", kOurs + kGood, kAll), 0);
    ASSERT_TRUE(Eventually([&] { return OnDisk() == kAll; })) << OnDisk();
  }
  // Returns the uid and the engine's number of each of the blocks from .. to-1 in that tier.  The
  // number is 0 if the daemon does not report the engine.
  using Writers = std::vector<std::pair<uint32_t, uint32_t>>;
  Writers WritersOf(v1::Tier tier, uint32_t from, uint32_t to) {
    std::map<std::string, std::pair<uint32_t, uint32_t>> told;
    v1::WatchEventsRequest request;
    request.set_snapshot(true);
    request.set_with_tokens(true);
    request.add_tiers(tier);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stub = v1::Cache::NewStub(daemon_->ControlChannel());
    const auto stream = stub->WatchEvents(&context, request);
    v1::WatchEventsReply reply;
    for (bool end = false; !end && stream->Read(&reply); end = reply.snapshot_end()) {
      for (const v1::Event& event : reply.events()) {
        const v1::Event::Stored& stored = event.stored();
        if (stored.has_writer())
          told[stored.digests()] = {stored.writer().uid(), stored.writer().engine()};
      }
    }
    context.TryCancel();
    (void)stream->Finish();
    Writers writers;
    for (uint32_t number = from; number < to; ++number) {
      const auto found = told.find(Packed(maker_.Block(number).digest));
      if (found != told.end()) writers.push_back(found->second);
    }
    return writers;
  }
  // Clears the blocks of a user, or of one of the user's engines.  Returns how many blocks it
  // cleared in HOST and on DISK.
  std::pair<uint64_t, uint64_t> Clear(uint32_t uid, const std::string& engine = "") {
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_WRITER);
    request.mutable_blocks()->mutable_writer()->set_uid(uid);
    if (!engine.empty())
      request.mutable_blocks()->mutable_writer()->set_engine(EngineNumber(engine));
    v1::ClearReply reply;
    const grpc::Status status =
        Ask([&](auto& stub, auto& context) { return stub.Clear(&context, request, &reply); });
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::pair<uint64_t, uint64_t> cleared;
    for (const v1::TierCleared& of : reply.tiers())
      (of.tier() == v1::TIER_HOST ? cleared.first : cleared.second) = of.blocks();
    return cleared;
  }
  void StartAnew() {
    daemon_->Kill9();
    ASSERT_NO_FATAL_FAILURE(Start({"--data-socket-mode", "0666"}));
    ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  }
};

TEST_F(WriterTest, BlocksAreFoundAndClearedByUserAndEngine) {
  ASSERT_NO_FATAL_FAILURE(PutOfBoth());
  for (const v1::Tier tier : {v1::TIER_HOST, v1::TIER_DISK}) {
    EXPECT_THAT(WritersOf(tier, 0, kOurs),
                AllOf(SizeIs(kOurs), Each(Pair(0u, EngineNumber("disk")))));
    EXPECT_THAT(WritersOf(tier, kOurs, kOurs + kGood),
                AllOf(SizeIs(kGood), Each(Pair(kAttackerUid, EngineNumber("good")))));
    EXPECT_THAT(WritersOf(tier, kOurs + kGood, kAll),
                AllOf(SizeIs(kBad), Each(Pair(kAttackerUid, EngineNumber("bad")))));
  }
  EXPECT_EQ(Clear(kAttackerUid, "disk"), std::pair(uint64_t{0}, uint64_t{0}))
      << "the engine belongs to another user";
  EXPECT_EQ(Clear(kAttackerUid, "bad"), std::pair(uint64_t{kBad}, uint64_t{kBad}));
  EXPECT_EQ(CountIn(Tier::kHost, kOurs, kOurs + kGood), kGood);
  EXPECT_EQ(Clear(kAttackerUid), std::pair(uint64_t{kGood}, uint64_t{kGood}));
  EXPECT_EQ(CountHits(0, kOurs), kOurs);
  EXPECT_TRUE(Eventually([&] { return OnDisk() == kOurs; })) << OnDisk();
  ExpectNothingHeld();
}

TEST_F(WriterTest, TheUserButNotTheEngineIsKnownAfterKill9) {
  ASSERT_NO_FATAL_FAILURE(PutOfBoth());
  ASSERT_NO_FATAL_FAILURE(StartAnew());
  EXPECT_THAT(WritersOf(v1::TIER_DISK, 0, kOurs), AllOf(SizeIs(kOurs), Each(Pair(0u, 0u))));
  EXPECT_THAT(WritersOf(v1::TIER_DISK, kOurs, kAll),
              AllOf(SizeIs(kGood + kBad), Each(Pair(kAttackerUid, 0u))));
  EXPECT_EQ(CountHits(kOurs, kOurs + 1), 1u);
  EXPECT_THAT(WritersOf(v1::TIER_HOST, kOurs, kOurs + 1),
              AllOf(SizeIs(1), Each(Pair(kAttackerUid, 0u))))
      << "the block was read from disk";
  EXPECT_EQ(Clear(kAttackerUid, "good"), std::pair(uint64_t{0}, uint64_t{0}));
  EXPECT_EQ(Clear(kAttackerUid), std::pair(uint64_t{1}, uint64_t{kGood + kBad}));
  ASSERT_NO_FATAL_FAILURE(StartAnew());
  EXPECT_EQ(OnDisk(), kOurs);
  EXPECT_EQ(CountHits(0, kAll), kOurs);
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == larder::e2e::kStore) {
    return larder::e2e::StoreAs(argv[2], static_cast<uid_t>(std::atoi(argv[3])), argv[4],
                                static_cast<uint32_t>(std::atoi(argv[5])),
                                static_cast<uint32_t>(std::atoi(argv[6])));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
