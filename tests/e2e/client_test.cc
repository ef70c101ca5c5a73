// Uses the public client library with the real daemon: every write and read mode, and the death of
// the daemon.
#include <algorithm>
#include <csignal>
#include <string>

#include <unistd.h>

#include "client/client.h"
#include "client/local/sideband_client.h"
#include "tests/contract/transport_contract.h"
#include "tests/e2e/support/child_engine.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {
namespace {

// ---- the contract of transports, from the client library to the daemon and back

class SessionTransport final : public Transport {
 public:
  explicit SessionTransport(Session& session) : session_(session) {}
  [[nodiscard]] const char* name() const override { return "session"; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options) override {
    return session_.Put(variant, blocks, options);
  }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options) override {
    return session_.Get(variant, blocks, options);
  }

 private:
  Session& session_;
};

// The trusted user of a daemon that does not trust the test.
const std::string kSomebodyElse = std::to_string(geteuid() + 4242);

class DaemonWorld final : public TransportWorld {
 public:
  explicit DaemonWorld(WriteMode mode, const char* session_sockets = "true",
                       const std::string& trusted = "self", ReadMode read_mode = ReadMode::kMapped)
      : daemon_({"--pool", "80MiB", "--check-host-reads", "always", "--session-sockets",
                 session_sockets, "--trusted-uids", trusted}) {
    client_ = *Client::Connect({.socket_dir = daemon_.folder()->path()});
    session_ = *client_->Attach({.engine_id = "contract", .write_mode = mode});
    EXPECT_EQ(session_->write_mode(), mode) << session_->write_mode_reason();
    const bool stream = mode == WriteMode::kStream;
    EXPECT_EQ(session_->read_mode(), stream ? ReadMode::kStream : read_mode);
    transport_.emplace(*session_);
  }
  Transport& transport() override { return *transport_; }
  VariantHandle Register(ContentSpec content, const VariantSpec& spec, Digest* seed) override {
    const auto variants = session_->Register({&content, 1}, {&spec, 1});
    EXPECT_TRUE(variants.ok()) << variants.status();
    *seed = session_->Seed(content);
    return variants->front();
  }

 private:
  DaemonProcess daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  std::optional<SessionTransport> transport_;
};

INSTANTIATE_TEST_SUITE_P(
    Daemon, TransportContract,
    ::testing::Values(
        TransportRoad{"mapped", [] { return std::make_unique<DaemonWorld>(WriteMode::kMapped); }},
        TransportRoad{"staged", [] { return std::make_unique<DaemonWorld>(WriteMode::kStaged); }},
        TransportRoad{"mapped_session_over_grpc",
                      [] { return std::make_unique<DaemonWorld>(WriteMode::kMapped, "false"); }},
        TransportRoad{"staged_session_over_grpc",
                      [] { return std::make_unique<DaemonWorld>(WriteMode::kStaged, "false"); }},
        TransportRoad{"copied",
                      [] {
                        return std::make_unique<DaemonWorld>(WriteMode::kStaged, "true",
                                                             kSomebodyElse, ReadMode::kCopied);
                      }},
        TransportRoad{"copied_session_over_grpc",
                      [] {
                        return std::make_unique<DaemonWorld>(WriteMode::kStaged, "false",
                                                             kSomebodyElse, ReadMode::kCopied);
                      }},
        TransportRoad{"sealed",
                      [] { return std::make_unique<DaemonWorld>(WriteMode::kStaged, "true", ""); }},
        TransportRoad{"stream", [] { return std::make_unique<DaemonWorld>(WriteMode::kStream); }}),
    [](const auto& road) { return road.param.name; });

}  // namespace

// ---- one engine and its daemon

// Parameter: whether the daemon hands out session sockets; if not, the session travels over gRPC.
class ClientTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr size_t kLayerBytes = 30'000;

  static std::vector<std::string> Carrier() {
    return {"--session-sockets", GetParam() ? "true" : "false"};
  }
  void Start(std::vector<std::string> flags = {}) {
    const std::vector<std::string> carrier = Carrier();
    flags.insert(flags.end(), carrier.begin(), carrier.end());
    daemon_ = std::make_unique<DaemonProcess>(flags);
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    auto client = Client::Connect({.socket_dir = daemon_->folder()->path(),
                                   .connect_deadline = std::chrono::milliseconds(2'000)});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    Attach(WriteMode::kMapped);
  }
  void Attach(WriteMode mode) {
    session_.reset();
    auto session = client_->Attach({.engine_id = "client", .write_mode = mode});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    const auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    variant_ = variants->front();
  }
  absl::StatusOr<std::vector<BlockStatus>> Put(uint32_t number, const CallOptions& options = {}) {
    const FilledBlock block(maker_, maker_.Block(number), kLayerBytes);
    const PutBlock put = block.ToPut();
    return session_->Put(variant_, {&put, 1}, options);
  }
  // Fails the test if a block that is kOk has wrong bytes.
  absl::StatusOr<std::vector<BlockStatus>> Get(uint32_t number) {
    const LayerSpace space(maker_.Block(number).digest, maker_.variant.layers, kLayerBytes);
    const GetBlock get = space.ToGet();
    auto status = session_->Get(variant_, {&get, 1});
    if (status.ok() && status->front() == BlockStatus::kOk) {
      for (uint32_t i = 0; i < space.layers().size(); ++i)
        EXPECT_TRUE(LayerIsRight(get.digest, i, space.layers()[i])) << number;
    }
    return status;
  }
  static void ExpectOne(const absl::StatusOr<std::vector<BlockStatus>>& got, BlockStatus want) {
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_STREQ(ToString(got->front()), ToString(want));
  }

  const BlockMaker maker_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
};

INSTANTIATE_TEST_SUITE_P(Carriers, ClientTest, ::testing::Values(true, false),
                         [](const auto& sockets) { return sockets.param ? "Socket" : "Grpc"; });

TEST_P(ClientTest, CallsFailAfterKill9AndANewSessionWorks) {
  for (const WriteMode mode : {WriteMode::kMapped, WriteMode::kStaged, WriteMode::kStream}) {
    SCOPED_TRACE(wire::ToString(mode));
    Start();
    Attach(mode);
    ExpectOne(Put(1), BlockStatus::kOk);
    ExpectOne(Get(1), BlockStatus::kOk);
    daemon_->Kill9();
    ASSERT_TRUE(Eventually([&] { return absl::IsUnavailable(session_->status()); }))
        << session_->status();
    EXPECT_FALSE(session_->status().message().empty());
    EXPECT_TRUE(absl::IsUnavailable(Put(2).status())) << Put(2).status();
    EXPECT_TRUE(absl::IsUnavailable(Get(1).status())) << Get(1).status();
    const Digest digest = maker_.Block(1).digest;
    EXPECT_TRUE(absl::IsUnavailable(session_->Acquire(variant_, {&digest, 1}).status()));
    const ByteCount bytes(100);
    EXPECT_TRUE(absl::IsUnavailable(session_->Reserve({&bytes, 1}).status()));
    EXPECT_FALSE(client_->Attach({.engine_id = "client"}).ok()) << "there is no daemon";

    const auto folder = daemon_->folder();
    daemon_ = std::make_unique<DaemonProcess>(Carrier(), DaemonProcess::Options{.folder = folder});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    EXPECT_TRUE(absl::IsUnavailable(Get(1).status())) << "the old session stays dead";
    Attach(mode);
    ExpectOne(Get(1), BlockStatus::kMissing);
    ExpectOne(Put(1), BlockStatus::kOk);
    ExpectOne(Get(1), BlockStatus::kOk);
  }
}

TEST_P(ClientTest, ALeaseGivesAViewOfTheBlock) {
  Start();
  ExpectOne(Put(1), BlockStatus::kOk);
  const std::vector<Digest> digests = {maker_.Block(1).digest, maker_.Block(2).digest};
  auto lease = session_->Acquire(variant_, digests);
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_EQ(lease->size(), 2u);
  EXPECT_EQ(lease->status(1), BlockStatus::kMissing);
  EXPECT_TRUE(lease->View(1).empty());
  ASSERT_EQ(lease->status(0), BlockStatus::kOk);
  const size_t second = RoundUp(kLayerBytes, kSegmentAlign);
  ASSERT_EQ(lease->View(0).size(), second + kLayerBytes);
  EXPECT_TRUE(LayerIsRight(digests[0], 0, lease->View(0).first(kLayerBytes)));
  EXPECT_TRUE(LayerIsRight(digests[0], 1, lease->View(0).subspan(second)));
  EXPECT_TRUE(lease->Valid());
  EXPECT_EQ(daemon_->Tenant().leases(), 1u);
  lease->Release();
  EXPECT_FALSE(lease->Valid());
  EXPECT_TRUE(Eventually([&] { return daemon_->Tenant().leases() == 0; }));
}

// The daemon keeps what a call without a life was granted for as long as the call might wait.
TEST_P(ClientTest, LeaseWithoutALifeEndsAtTheDeadline) {
  Start();
  ExpectOne(Put(1), BlockStatus::kOk);
  const Digest digest = maker_.Block(1).digest;
  const auto begun = std::chrono::steady_clock::now();
  auto lease = session_->Acquire(variant_, {&digest, 1}, {.deadline = std::chrono::seconds(3)});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Eventually([&] { return !lease->Valid(); }));
  const auto took = std::chrono::steady_clock::now() - begun;
  EXPECT_GE(took, std::chrono::seconds(2));
  EXPECT_LT(took, CallOptions().deadline);
}

TEST_P(ClientTest, LeaseEndsAfterItsLife) {
  Start();
  ExpectOne(Put(1), BlockStatus::kOk);
  const Digest digest = maker_.Block(1).digest;
  auto lease = session_->Acquire(variant_, {&digest, 1}, {.life = std::chrono::milliseconds(100)});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Eventually([&] { return !lease->Valid(); }));
  lease->Release();
  EXPECT_TRUE(Eventually([&] { return daemon_->Tenant().leases() == 0; }));
}

TEST_P(ClientTest, ReservationIsFilledInPlace) {
  Start();
  const TestBlock block = maker_.Block(5);
  SegmentTable table = UniformTable(2, kLayerBytes);
  const ByteCount bytes = table.PayloadBytes();
  auto reservation = session_->Reserve({&bytes, 1});
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  const std::span<std::byte> room = reservation->Bytes(0);
  ASSERT_GE(room.size(), bytes.value());
  std::memset(room.data(), 0, room.size());
  FillLayer(block.digest, 0, room.first(kLayerBytes));
  FillLayer(block.digest, 1, room.subspan(RoundUp(kLayerBytes, kSegmentAlign), kLayerBytes));
  const Reservation::Block published{.extent = 0,
                                     .digest = block.digest,
                                     .parent = block.parent,
                                     .tokens = block.tokens,
                                     .table = table};
  ExpectOne(reservation->Publish(variant_, {&published, 1}), BlockStatus::kOk);
  ExpectOne(Get(5), BlockStatus::kOk);
}

// The blocks are so large that several threads of the daemon copy one publish together.
TEST_P(ClientTest, StagedBlocksCopiedByManyThreadsAreWhole) {
  constexpr size_t kLarge = 1 << 20;
  constexpr uint32_t kBlocks = 8;
  Start({"--copy-threads", "4", "--pool", "256MiB"});
  Attach(WriteMode::kStaged);
  std::vector<TestBlock> blocks;
  std::vector<std::vector<std::byte>> bytes(2 * kBlocks, std::vector<std::byte>(kLarge));
  std::vector<std::vector<std::byte>> read = bytes;
  std::vector<std::vector<std::span<const std::byte>>> from(kBlocks);
  std::vector<std::vector<std::span<std::byte>>> to(kBlocks);
  std::vector<PutBlock> puts;
  std::vector<GetBlock> gets;
  for (uint32_t i = 0; i < kBlocks; ++i) blocks.push_back(maker_.Block(i + 1));
  for (uint32_t i = 0; i < kBlocks; ++i) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      FillLayer(blocks[i].digest, layer, bytes[2 * i + layer]);
      from[i].push_back(bytes[2 * i + layer]);
      to[i].push_back(read[2 * i + layer]);
    }
    puts.push_back({blocks[i].digest, blocks[i].parent, blocks[i].tokens, from[i]});
    gets.push_back({.digest = blocks[i].digest, .segments = to[i]});
  }
  const auto put = session_->Put(variant_, puts);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_THAT(*put, ::testing::Each(BlockStatus::kOk));
  const auto got = session_->Get(variant_, gets);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(*got, ::testing::Each(BlockStatus::kOk));
  EXPECT_TRUE(read == bytes);
  EXPECT_EQ(daemon_->Tenant().reservations(), 1u) << "only the session's stock is a reservation";
}

TEST_P(ClientTest, LookupListsADetachedEngine) {
  Start();
  ExpectOne(Put(1), BlockStatus::kOk);
  wire::LookupQuery query;
  query.content = maker_.content;
  query.content.tenant.clear();
  query.tokens = maker_.Block(1).tokens;
  auto found = client_->Lookup(query);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->instances.size(), 1u);
  EXPECT_TRUE(found->instances[0].attached);
  session_.reset();
  ASSERT_TRUE(Eventually([&] { return daemon_->Tenant().sessions() == 0; }));
  found = client_->Lookup(query);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->instances.size(), 1u);
  EXPECT_EQ(found->instances[0].engine_id, "client");
  EXPECT_FALSE(found->instances[0].attached);
  ASSERT_EQ(found->instances[0].tiers.size(), 1u);
  EXPECT_EQ(found->instances[0].tiers[0].contiguous.value(), 16u);
  EXPECT_EQ(daemon_->Tenant().pool_quarantined(), 0u)
      << "the session ended with a bye, so nothing is quarantined";
}

TEST_P(ClientTest, AnotherProcessReadsWhatOneWrote) {
  Start();
  uint32_t first = 0;
  for (const char* writer : {"mapped", "staged", "stream"}) {
    ChildEngine put(*daemon_, writer, "put", first);
    ASSERT_EQ(put.Wait(), 0) << writer;
    for (const char* reader : {"mapped", "staged", "stream"}) {
      ChildEngine get(*daemon_, reader, "get", first);
      EXPECT_EQ(get.Wait(), 0) << writer << " to " << reader;
    }
    first += 32;
  }
}

// A trusted writer can damage any block, but no reader may get the damaged bytes.
TEST_P(ClientTest, ADamagedBlockIsReportedAndDropped) {
  Start({"--check-host-reads", "always", "--pool", "16MiB"});
  const auto sideband =
      SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
  ASSERT_TRUE(sideband.ok()) << sideband.status();
  uint32_t number = 1;
  for (const WriteMode mode : {WriteMode::kMapped, WriteMode::kStream}) {
    SCOPED_TRACE(wire::ToString(mode));
    Attach(mode);
    ExpectOne(Put(number), BlockStatus::kOk);
    ExpectOne(Get(number), BlockStatus::kOk);
    std::vector<std::byte> layer(kLayerBytes);
    FillLayer(maker_.Block(number).digest, 1, layer);
    int places = 0;
    for (uint16_t slab = 0; slab < 2; ++slab) {
      auto mapped = (*sideband)->MapSlab(SlabId{slab}, /*writable=*/true);
      ASSERT_TRUE(mapped.ok()) << mapped.status();
      const std::span<std::byte> bytes = mapped->writable_bytes();
      const auto at = std::search(bytes.begin(), bytes.end(), layer.begin(), layer.end());
      if (at == bytes.end()) continue;
      ++places;
      at[kLayerBytes / 2] ^= std::byte{1};
    }
    ASSERT_EQ(places, 1);
    const double before = daemon_->Metric("larder_blocks_damaged_total{tier=\"host\"}");
    ExpectOne(Get(number), BlockStatus::kDamaged);
    EXPECT_TRUE(Eventually([&] {
      return daemon_->Metric("larder_blocks_damaged_total{tier=\"host\"}") == before + 1;
    }));
    ExpectOne(Get(number), BlockStatus::kMissing);
    ExpectOne(Put(number), BlockStatus::kOk);
    ExpectOne(Get(number), BlockStatus::kOk);
    ++number;
  }
}

// The daemon keeps at most 16 staging segments of a process, so sessions that end must free theirs.
TEST_P(ClientTest, EndedStagedSessionsFreeTheirStaging) {
  Start();
  for (uint32_t i = 0; i < 40; ++i) {
    Attach(WriteMode::kStaged);
    ASSERT_EQ(session_->write_mode(), WriteMode::kStaged) << i;
    ExpectOne(Put(i), BlockStatus::kOk);
  }
}

// The sessions of a process have one share of the pool together.  What each of them reserves ahead
// must leave enough for the others.
TEST_P(ClientTest, ManySessionsOfAProcessCanAllPut) {
  Start({"--pool", "64MiB", "--lease-share", "0.01"});
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t i = 0; i < 16; ++i) {
    ExpectOne(Put(i), BlockStatus::kOk);
    sessions.push_back(std::move(session_));
    Attach(WriteMode::kMapped);
  }
  ExpectOne(Put(16), BlockStatus::kOk);
}

TEST_P(ClientTest, AHandleIsRefusedByAnotherSession) {
  Start();
  ExpectOne(Put(1), BlockStatus::kOk);
  const VariantHandle old = variant_;
  Attach(WriteMode::kMapped);
  variant_ = old;
  EXPECT_TRUE(absl::IsInvalidArgument(Put(2).status())) << Put(2).status();
  EXPECT_TRUE(absl::IsInvalidArgument(Get(1).status())) << Get(1).status();
  const Digest digest = maker_.Block(1).digest;
  EXPECT_TRUE(absl::IsInvalidArgument(session_->Acquire(variant_, {&digest, 1}).status()));
}

TEST_P(ClientTest, ImpossibleReservationsAreRefused) {
  Start();
  for (const ByteCount bytes : {ByteCount(0), GiB(1024)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(session_->Reserve({&bytes, 1}).status())) << bytes.value();
  }
  const std::vector<ByteCount> many(wire::kKeysMax + 1, ByteCount(64));
  EXPECT_TRUE(absl::IsInvalidArgument(session_->Reserve(many).status()));
  const std::vector<VariantSpec> variants(wire::kVariantsMax + 1, maker_.variant);
  EXPECT_TRUE(absl::IsInvalidArgument(session_->Register({}, variants).status()));
  ExpectOne(Put(1), BlockStatus::kOk);
}

TEST_P(ClientTest, APublishWithoutAnswerGivesUpItsExtents) {
  Start();
  const TestBlock block = maker_.Block(5);
  const SegmentTable table = UniformTable(2, kLayerBytes);
  const ByteCount bytes = table.PayloadBytes();
  auto reservation = session_->Reserve({&bytes, 1});
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  Reservation::Block published{
      .extent = 0, .digest = block.digest, .parent = block.parent, .tokens = {}, .table = table};
  ExpectOne(reservation->Publish(variant_, {&published, 1}), BlockStatus::kInvalid);
  EXPECT_FALSE(reservation->Bytes(0).empty())
      << "the reservation stays, so that the caller can correct the block";
  published.tokens = block.tokens;
  daemon_->Signal(SIGSTOP);
  const auto answer =
      reservation->Publish(variant_, {&published, 1}, {.deadline = std::chrono::milliseconds(20)});
  daemon_->Signal(SIGCONT);
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status())) << answer.status();
  EXPECT_TRUE(reservation->Bytes(0).empty());
  ExpectOne(reservation->Publish(variant_, {&published, 1}), BlockStatus::kNotHeld);
}

// The daemon does not store encoded blocks that an engine publishes, and keeps no memory for them.
TEST_P(ClientTest, APublishThatIsNotTakenGivesUpItsExtents) {
  Start();
  const TestBlock block = maker_.Block(5);
  SegmentTable table = UniformTable(2, kLayerBytes);
  const ByteCount bytes = table.PayloadBytes();
  auto reservation = session_->Reserve({&bytes, 1}, {.deadline = std::chrono::minutes(10)});
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  EXPECT_GT(daemon_->Tenant().pool_reserved(), 0u);
  for (Segment& segment : table.segments) {
    segment.codec = Codec::kLossless;
    segment.raw_bytes = segment.bytes;
  }
  const Reservation::Block published{.extent = 0,
                                     .digest = block.digest,
                                     .parent = block.parent,
                                     .tokens = block.tokens,
                                     .table = table};
  ExpectOne(reservation->Publish(variant_, {&published, 1}), BlockStatus::kUnsupported);
  EXPECT_TRUE(reservation->Bytes(0).empty());
  EXPECT_TRUE(Eventually([&] {
    const v1::TenantStats tenant = daemon_->Tenant();
    return tenant.pool_limit() > 0 && tenant.pool_reserved() == 0;
  })) << daemon_->Tenant().pool_reserved();
}

TEST_P(ClientTest, AnAcquireOfTooManyTablesIsRefused) {
  Start();
  std::vector<Digest> digests(wire::Acquire::kTablesMax + 1, maker_.Block(1).digest);
  EXPECT_TRUE(
      absl::IsInvalidArgument(session_->Acquire(variant_, digests, {.tables = true}).status()));
  digests.pop_back();
  EXPECT_TRUE(session_->Acquire(variant_, digests, {.tables = true}).ok());
  ExpectOne(Put(1), BlockStatus::kOk);
}

// A session is lost while another session of the process lives.  CLEAN frees only what the lost one
// held.
TEST_P(ClientTest, CleanFreesOnlyTheLostSession) {
  Start();
  ExpectOne(Put(1), BlockStatus::kOk);
  const Digest digest = maker_.Block(1).digest;
  auto lost = client_->Attach({.engine_id = "lost"});
  ASSERT_TRUE(lost.ok()) << lost.status();
  const auto variants = (*lost)->Register({&maker_.content, 1}, {&maker_.variant, 1});
  ASSERT_TRUE(variants.ok()) << variants.status();
  auto lease = (*lost)->Acquire(variants->front(), {&digest, 1});
  ASSERT_TRUE(lease.ok()) << lease.status();
  lost->reset();  // without a bye, because the lease is in use
  EXPECT_TRUE(Eventually([&] { return daemon_->Tenant().pool_quarantined() > 0; }));
  lease->Release();
  auto mine = session_->Acquire(variant_, {&digest, 1});
  ASSERT_TRUE(mine.ok()) << mine.status();
  const auto next = client_->Attach({.engine_id = "next"});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(daemon_->Tenant().pool_quarantined(), 0u);
  EXPECT_TRUE(mine->Valid());
}

TEST_P(ClientTest, CallsToAStoppedDaemonEndAtTheirDeadlines) {
  Start();
  daemon_->Signal(SIGSTOP);
  const Digest digest = maker_.Block(1).digest;
  const auto lease =
      session_->Acquire(variant_, {&digest, 1}, {.deadline = std::chrono::milliseconds(1)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(lease.status())) << lease.status();
  session_.reset();
  EXPECT_FALSE(client_->Attach({.engine_id = "client"}).ok());
  daemon_->Signal(SIGCONT);
}

// The session sends more than its socket accepts.  Messages queue, callers return at their
// deadlines, and the session works again once the daemon does.
TEST_P(ClientTest, CallsEndAtTheirDeadlinesWhileTheSocketIsFull) {
  Start();
  const std::vector<Digest> many(wire::kKeysMax, maker_.Block(1).digest);  // 64 KiB per message
  daemon_->Signal(SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) {
    const auto lease =
        session_->Acquire(variant_, many, {.deadline = std::chrono::milliseconds(20)});
    ASSERT_TRUE(absl::IsDeadlineExceeded(lease.status())) << lease.status();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  daemon_->Signal(SIGCONT);
  ExpectOne(Put(1), BlockStatus::kOk);
}

TEST_P(ClientTest, ConnectFailsWithoutADaemon) {
  const TemporarySocketDirectory empty;
  const auto client = Client::Connect(
      {.socket_dir = empty.path(), .connect_deadline = std::chrono::milliseconds(100)});
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  EXPECT_NE(client.status().message().find(empty.path()), std::string_view::npos)
      << client.status();
}

TEST_P(ClientTest, ASessionIsToldOfADrain) {
  Start();
  daemon_->Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] { return session_->draining() || !session_->status().ok(); }));
  session_.reset();
  EXPECT_EQ(daemon_->Wait(), 0) << daemon_->errors();
}

}  // namespace larder::e2e
