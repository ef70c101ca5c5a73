// An attacker takes everything that the daemon gives it, while a victim works.  The attacker gets
// no more than its share, and the victim's calls succeed without delay.  The attacker has no
// sideband and another user, so that the daemon counts it as another holder than this process,
// which is the victim.
#include <algorithm>
#include <cstdio>

#include "client/client.h"
#include "gmock/gmock.h"
#include "tests/e2e/support/channel_of_user.h"
#include "tests/e2e/support/hostile_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kVictimBytes = 64 << 10;  // per layer
// The longest that a put and get may take.  A short run shares its machine.
const std::chrono::milliseconds kWorkMax{testing::TestScale() >= 1 ? 1'000 : 5'000};
constexpr auto kYear = std::chrono::hours(24 * 365);

class HostileShares : public HostileTest {
 protected:
  static double Held(const std::string& kind) {
    return daemon_->Metric("larder_share_held{kind=\"" + kind + "\"}");
  }
  static uint64_t Refused(const std::string& kind) {
    return Counter("larder_shares_refused_total{kind=\"" + kind + "\"}");
  }
  void StartVictim(WriteMode mode, const std::string& engine = "victim") {
    auto client = Client::Connect({.socket_dir = daemon_->folder()->path()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto session = client_->Attach({.engine_id = engine, .write_mode = mode});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    variant_ = variants->at(0);
  }
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: the attacker is another user";
    HostileTest::SetUp();
    channel_ = ChannelOfUser(*daemon_, kAttackerUid);
  }
  void TearDown() override {
    if (channel_ == nullptr) return;
    EndVictim();
    HostileTest::TearDown();
  }
  void EndVictim() {
    session_.reset();
    client_.reset();
  }
  // Looks up a block of the victim's, as a router does.
  v1::LookupReply LookUpVictim(uint32_t number) const {
    v1::LookupRequest request;
    wire::Encode(maker_.content, request.mutable_content());
    const TestBlock block = maker_.Block(number);
    request.mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
    request.set_engine_id("victim");
    grpc::ClientContext context;
    v1::LookupReply reply;
    const grpc::Status status = v1::Cache::NewStub(channel_)->Lookup(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  // Puts and gets `count` blocks one after the other.  Returns the longest time of a put and get.
  milliseconds Work(uint32_t first, uint32_t count) {
    Clock::duration most{};
    for (uint32_t number = first; number < first + count; ++number) {
      const FilledBlock block(maker_, maker_.Block(number), kVictimBytes);
      const PutBlock put[] = {block.ToPut()};
      const LayerSpace space(put[0].digest, maker_.variant.layers, kVictimBytes);
      const GetBlock get[] = {space.ToGet()};
      const auto begun = Clock::now();
      const auto stored = session_->Put(variant_, put);
      const auto loaded = session_->Get(variant_, get);
      most = std::max(most, Clock::now() - begun);
      EXPECT_TRUE(stored.ok() && stored->at(0) == BlockStatus::kOk) << number;
      EXPECT_TRUE(loaded.ok() && loaded->at(0) == BlockStatus::kOk) << number;
      EXPECT_TRUE(block.layers() == space.layers()) << number;
    }
    return std::chrono::ceil<milliseconds>(most);
  }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
};

// Byte streams of the attacker, each of which has sent its head.
class Streams {
 public:
  explicit Streams(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::Engine::NewStub(std::move(channel))) {}
  ~Streams() {
    for (const auto& stream : streams_) stream->context.TryCancel();
    for (const auto& stream : streams_) (void)stream->writer->Finish();
  }
  void Open(const v1::StoreBlocksRequest& head) {
    auto stream = std::make_unique<Stream>();
    stream->context.set_deadline(std::chrono::system_clock::now() + kYear);
    stream->writer = stub_->StoreBlocks(&stream->context, &stream->reply);
    (void)stream->writer->Write(head);
    streams_.push_back(std::move(stream));
  }
  // Waits for the end of the last stream and returns its status.
  grpc::Status EndOfLast() {
    const std::unique_ptr<Stream> last = std::move(streams_.back());
    streams_.pop_back();
    return last->writer->Finish();
  }

 private:
  struct Stream {
    grpc::ClientContext context;
    v1::StoreBlocksReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::StoreBlocksRequest>> writer;
  };
  std::unique_ptr<v1::Engine::Stub> stub_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST_F(HostileShares, IdleStreamsTakeSlotsButNoMemoryForMessages) {
  ASSERT_NO_FATAL_FAILURE(StartVictim(WriteMode::kMapped));
  const milliseconds before = Work(0, 50);
  const uint64_t refused = Refused("byte_streams");
  auto streams = std::make_unique<Streams>(channel_);
  for (uint32_t i = 0; i < 80; ++i) streams->Open(StoreHead(maker_.Block(2000 + i)));
  const grpc::Status last = streams->EndOfLast();
  EXPECT_EQ(last.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(last.error_message(),
              HasSubstr("share of byte_streams: uid 64901 without a sideband"));
  EXPECT_EQ(Held("byte_streams"), 32)
      << "the user's share is not half of the streams that the memory limit permits";
  EXPECT_TRUE(Eventually([&] { return Refused("byte_streams") == refused + 48; }));
  EXPECT_LE(Held("message_bytes"), 32 * (16 << 10)) << "idle streams are charged for messages";
  const milliseconds during = Work(100, 50);
  std::printf("put and get, longest of 50: %ld ms before, %ld ms beside 32 idle streams\n",
              static_cast<long>(before.count()), static_cast<long>(during.count()));
  EXPECT_LE(during, std::max(10 * before, kWorkMax));
  // On a session socket of this process, a message so long that it is charged to the share.
  auto socket = sideband_->OpenSession();
  ASSERT_TRUE(socket.ok()) << socket.status();
  RawSession session(std::make_unique<RawSocket>(*std::move(socket)),
                     {.engine_id = "victim", .mode = v1::WRITE_MODE_MAPPED});
  attached_.push_back(SessionId{session.attached().session_id()});
  Register(session);
  v1::Up up;
  v1::Acquire* const acquire = up.add_acquires();
  acquire->set_id(9);
  acquire->set_what(v1::ACQUIRE_WHAT_BYTES);
  acquire->set_digests(std::string(4096 * 16, 'x'));
  const auto begun = Clock::now();
  const std::optional<v1::Down> down = session.Ask(up);
  ASSERT_TRUE(down && down->grants_size() == 1);
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(5));
  EXPECT_TRUE(session.Bye().ok());
  EndVictim();
  streams.reset();
  EXPECT_TRUE(Eventually([] { return Held("byte_streams") == 0; }));
}

TEST_F(HostileShares, HeadsWithoutBytesEvictNoBlocks) {
  ASSERT_NO_FATAL_FAILURE(StartVictim(WriteMode::kMapped));
  (void)Work(200, 40);
  const v1::TenantStats before = daemon_->Tenant();
  const std::string stored = "larder_moved_bytes_total{road=\"stored\"}";
  const uint64_t stored_before = Counter(stored);
  constexpr uint32_t kStreams = 30, kLayer = 1 << 20;  // about the user's share; blocks of 60 MiB
  auto streams = std::make_unique<Streams>(channel_);
  for (uint32_t i = 0; i < kStreams; ++i) {
    const TestBlock block = maker_.Block(3000 + i);
    v1::StoreBlocksRequest head = StoreHead(block);
    wire::Encode(maker_.Table(block.digest, kLayer), head.mutable_block()->mutable_segments());
    if (i % 2 == 1) head.set_data("x");
    streams->Open(head);
  }
  EXPECT_TRUE(Eventually([&] { return Counter(stored) == stored_before + kStreams / 2; }));
  const v1::TenantStats during = daemon_->Tenant();
  EXPECT_LE(during.pool_reserved() - before.pool_reserved(), during.pool_limit() / 4)
      << "more than one process's share, without what the victim has reserved ahead";
  EXPECT_EQ(during.blocks(), before.blocks()) << "blocks were evicted for the reservations";
  EXPECT_GT(Refused("reserved_bytes"), 0u);
  EXPECT_LE(Work(300, 20), kWorkMax);
  EndVictim();
}

TEST_F(HostileShares, DamageReportsDoNotDelayCopies) {
  Store(1);
  ASSERT_NO_FATAL_FAILURE(StartVictim(WriteMode::kStaged));
  const milliseconds before = Work(400, 20);
  const auto attacker = Attach(v1::WRITE_MODE_STREAM);
  Register(*attacker);
  std::string digests;
  for (int i = 0; i < 4096; ++i) digests += Packed(maker_.Block(1).digest);
  v1::Up up;
  for (int i = 0; i < 64; ++i) up.add_damaged()->set_digests(digests);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(attacker->Send(up));
  v1::Up acquire;  // the daemon answers it after the reports
  acquire.add_acquires()->set_digests(Packed(maker_.Block(1).digest));
  acquire.mutable_acquires(0)->set_id(1);
  acquire.mutable_acquires(0)->set_what(v1::ACQUIRE_WHAT_PROMISE);
  EXPECT_TRUE(attacker->Ask(acquire).has_value());
  const milliseconds during = Work(500, 20);
  std::printf("staged put and get, longest of 20: %ld ms before, %ld ms beside 1 M reports\n",
              static_cast<long>(before.count()), static_cast<long>(during.count()));
  EXPECT_LE(during, std::max(10 * before, kWorkMax));
  EXPECT_TRUE(attacker->Bye().ok());
  EndVictim();
}

// A promise gives no access to bytes, so the daemon ends it without waiting for its holder.
TEST_F(HostileShares, PromisesEndAtTheirDeadline) {
  Store(1);
  const auto attacker = Attach(v1::WRITE_MODE_STREAM);
  Register(*attacker);
  for (uint32_t i = 0; i < 100; ++i) {
    v1::Up up;
    v1::Acquire* const acquire = up.add_acquires();
    acquire->set_id(i + 1);
    acquire->set_digests(Packed(maker_.Block(1).digest));
    acquire->set_what(v1::ACQUIRE_WHAT_PROMISE);
    acquire->set_deadline_ms(500);
    const std::optional<v1::Down> down = attacker->Ask(up);
    ASSERT_TRUE(down.has_value());
  }
  EXPECT_TRUE(Eventually([] { return daemon_->Tenant().leases() == 0; }))
      << "the daemon waits for an acknowledgement that never comes";
  EXPECT_EQ(daemon_->Tenant().pool_leased(), 0u);
  EXPECT_EQ(Held("leases"), 0);
  EXPECT_TRUE(attacker->Bye().ok());
}

// An engine id is a name and no proof.  The user that took it first cannot keep another user from
// working under it.
TEST_F(HostileShares, AnEngineIdThatAnotherUserTookCanBeUsed) {
  const char* const kConflicts = "larder_engine_id_conflicts_total";
  auto squatter =
      std::make_unique<RawSession>(channel_, RawSession::Options{.engine_id = "squatted"});
  attached_.push_back(SessionId{squatter->attached().session_id()});
  ASSERT_GT(squatter->attached().session_id(), 0u);
  const uint64_t before = Counter(kConflicts);
  ASSERT_NO_FATAL_FAILURE(StartVictim(WriteMode::kMapped, "squatted"));
  (void)Work(650, 5);
  EXPECT_GT(Counter(kConflicts), before) << "the conflict is not counted";
  squatter->Cancel();
  squatter.reset();
  EndVictim();
}

TEST_F(HostileShares, AnotherUserCannotReportBlocksOfAnEngine) {
  ASSERT_NO_FATAL_FAILURE(StartVictim(WriteMode::kMapped));
  (void)Work(700, 5);
  const v1::LookupReply known = LookUpVictim(700);
  ASSERT_EQ(known.instances_size(), 1);
  const auto attacker =
      std::make_unique<RawSession>(channel_, RawSession::Options{.engine_id = "victim"});
  attached_.push_back(SessionId{attacker->attached().session_id()});
  v1::Up up;
  v1::Register* const request = up.add_registers();
  request->set_id(1);
  wire::Encode(maker_.content, request->add_contents());
  VariantSpec rank = maker_.variant;  // another variant, of which nothing is stored
  rank.rank = 1;
  rank.ranks = 2;
  wire::Encode(rank, request->add_variants());
  const std::optional<v1::Down> down = attacker->Ask(up);
  ASSERT_TRUE(down && down->registered_size() == 1);
  EXPECT_EQ(down->registered(0).status(), v1::BLOCK_STATUS_OK) << down->registered(0).message();
  const uint64_t left_out = Counter("larder_device_blocks_left_out_total");
  v1::Up report;
  report.add_device_blocks()->set_stored(Packed(maker_.Block(700).digest));
  EXPECT_TRUE(attacker->Send(report));
  EXPECT_TRUE(
      Eventually([&] { return Counter("larder_device_blocks_left_out_total") == left_out + 1; }));
  EXPECT_EQ(LookUpVictim(700).SerializeAsString(), known.SerializeAsString());
  EXPECT_TRUE(attacker->Bye().ok()) << "the session ended because of its report";
  EndVictim();
}

TEST_F(HostileShares, AUserCannotTakeAllSessions) {
  std::vector<std::unique_ptr<RawSession>> sessions;
  for (int i = 0; i < 2 * kSessionsMax; ++i) sessions.push_back(Attach(v1::WRITE_MODE_STREAM));
  EXPECT_EQ(Held("sessions"), kUnnamedSessionsMax);
  ASSERT_NO_FATAL_FAILURE(StartVictim(WriteMode::kMapped));
  (void)Work(600, 5);
  const v1::StatsReply stats = daemon_->Stats();
  const auto share = std::ranges::find(stats.shares(), "sessions", &v1::ShareUse::kind);
  ASSERT_NE(share, stats.shares().end());
  EXPECT_EQ(share->limit(), uint64_t{2 * kSessionsMax});
  ASSERT_GE(share->holders_size(), 2);
  for (const char* const who : {"uid 64901", "uid 64901 without a sideband"}) {
    const auto holder = std::ranges::find(share->holders(), who, &v1::ShareHolder::who);
    ASSERT_NE(holder, share->holders().end()) << who;
    EXPECT_EQ(holder->held(), uint64_t{kUnnamedSessionsMax}) << who;
  }
  EXPECT_GT(share->refused(), 0u);
  EndVictim();
}

}  // namespace
}  // namespace larder::e2e
