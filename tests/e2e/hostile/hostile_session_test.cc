// Sessions that break the contract, over gRPC and on session sockets.  Each ends with a message
// that names the field, is counted, and leaves nothing behind.
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "tests/e2e/support/hostile_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

enum class Carrier { kGrpc, kSocket };

class HostileSession : public HostileTest, public ::testing::WithParamInterface<Carrier> {
 protected:
  [[nodiscard]] std::unique_ptr<RawStream> OpenStream(v1::WriteMode mode) override {
    if (GetParam() == Carrier::kGrpc) return HostileTest::OpenStream(mode);
    return std::make_unique<RawSocket>(OpenSocket());
  }
  [[nodiscard]] FileDescriptor OpenSocket() const {
    auto socket = sideband_->OpenSession();
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : FileDescriptor();
  }
  // Opens a session that has not sent Hello.
  [[nodiscard]] std::unique_ptr<RawSession> Open() {
    return std::make_unique<RawSession>(OpenStream(v1::WRITE_MODE_STREAM),
                                        RawSession::Options{.hello = false});
  }
  // Sends this message and expects that the stream ends with INVALID_ARGUMENT.
  void ExpectEnds(RawSession& session, const v1::Up& up, const std::string& words) {
    const uint64_t before = Invalid();
    session.Send(up);
    const grpc::Status status = session.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    EXPECT_EQ(Invalid(), before + 1);
  }
  static v1::Up AcquireOf(const std::string& digests, uint32_t variant = 0) {
    v1::Up up;
    v1::Acquire* acquire = up.add_acquires();
    acquire->set_id(2);
    acquire->set_variant(variant);
    acquire->set_digests(digests);
    acquire->set_what(v1::ACQUIRE_WHAT_BYTES);
    return up;
  }
  // Reserves the bytes of one block and returns the daemon's answer.
  static v1::Reserved Reserve(RawSession& session, uint64_t bytes = PayloadBytes().value()) {
    v1::Up up;
    up.add_reserves()->set_id(3);
    up.mutable_reserves(0)->add_bytes(bytes);
    const std::optional<v1::Down> down = session.Ask(up);
    return down && down->reserved_size() == 1 ? down->reserved(0) : v1::Reserved();
  }
  v1::Up PublishOf(uint64_t reservation, uint32_t number) const {
    const TestBlock block = maker_.Block(number);
    v1::Up up;
    v1::Publish* publish = up.add_publishes();
    publish->set_id(4);
    publish->set_reservation_id(reservation);
    v1::PublishBlock* b = publish->add_blocks();
    b->set_digest(Packed(block.digest));
    b->set_parent(Packed(block.parent));
    b->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
    wire::Encode(UniformTable(2, kLayerBytes), b->mutable_segments());
    return up;
  }
  // Expects that the publish is answered with status `want` and a message that contains `words`,
  // and is counted as refused.
  static void ExpectRefused(RawSession& session, const v1::Up& up, v1::BlockStatus want,
                            const std::string& words) {
    const uint64_t before = Counter("larder_blocks_put_total{result=\"refused\"}");
    const std::optional<v1::Down> down = session.Ask(up);
    ASSERT_TRUE(down && down->published_size() == 1);
    ASSERT_EQ(down->published(0).status_size(), 1);
    EXPECT_EQ(down->published(0).status(0), want);
    EXPECT_THAT(down->published(0).message(), HasSubstr(words));
    EXPECT_EQ(Counter("larder_blocks_put_total{result=\"refused\"}"), before + 1);
  }
};

using HostileToken = HostileTest;  // only over gRPC: a session socket needs no token

INSTANTIATE_TEST_SUITE_P(Carriers, HostileSession,
                         ::testing::Values(Carrier::kGrpc, Carrier::kSocket),
                         [](const auto& carrier) {
                           return carrier.param == Carrier::kGrpc ? "Grpc" : "Socket";
                         });

TEST_P(HostileSession, ASessionWithoutHelloEnds) {
  const grpc::Status status = Open()->End();  // the daemon ends the stream
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("hello"));
}

TEST_P(HostileSession, AnotherMessageBeforeHelloIsRefused) {
  ExpectEnds(*Open(), AcquireOf(std::string(16, 'x')), "hello");
}

TEST_P(HostileSession, ASecondHelloIsRefused) {
  const auto session = Attach(v1::WRITE_MODE_STREAM);
  v1::Up up;
  up.mutable_hello()->set_engine_id("raw");
  up.mutable_hello()->set_role(v1::ROLE_BOTH);
  up.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
  ExpectEnds(*session, up, "hello: only in the first message");
}

TEST_P(HostileSession, AHelloBeyondALimitIsRefused) {
  const auto ends = [this](const std::function<void(v1::Hello*)>& change,
                           const std::string& words) {
    v1::Up up;
    up.mutable_hello()->set_engine_id("raw");
    up.mutable_hello()->set_role(v1::ROLE_BOTH);
    up.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
    change(up.mutable_hello());
    ExpectEnds(*Open(), up, words);
  };
  ends([](v1::Hello* hello) { hello->clear_engine_id(); }, "hello.engine_id");
  ends([](v1::Hello* hello) { hello->set_engine_id(std::string(257, 'e')); }, "hello.engine_id");
  ends([](v1::Hello* hello) { hello->set_client(std::string(1 << 20, 'c')); }, "hello.client");
  ends([](v1::Hello* hello) { hello->clear_role(); }, "hello.role");
  ends([](v1::Hello* hello) { hello->clear_write_mode(); }, "hello.write_mode");
  ends([](v1::Hello* hello) { hello->set_write_mode(static_cast<v1::WriteMode>(99)); },
       "hello.write_mode");
}

TEST_P(HostileSession, ASessionBeyondTheLimitIsRefused) {
  const std::string refused_counter = "larder_sessions_total{result=\"refused\"}";
  const uint64_t before = Counter(refused_counter);
  std::vector<std::unique_ptr<RawSession>> sessions;
  // Session sockets come from a sideband and count for its process; these gRPC calls have no token.
  const int most = GetParam() == Carrier::kSocket ? kSessionsMax : kUnnamedSessionsMax;
  for (int i = 0; i < most; ++i) sessions.push_back(Attach(v1::WRITE_MODE_STREAM));
  for (const auto& session : sessions) EXPECT_NE(session->attached().session_id(), 0u);
  const auto refused = Attach(v1::WRITE_MODE_STREAM);
  EXPECT_EQ(refused->attached().session_id(), 0u);
  const grpc::Status status = refused->End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("share of sessions"));
  EXPECT_GT(refused->retry_after_ms(), 0);
  EXPECT_EQ(Counter(refused_counter), before + 1);
  EXPECT_TRUE(sessions.front()->Bye().ok());
  EXPECT_TRUE(Eventually([&] { return daemon_->Tenant().sessions() == uint64_t(most - 1); }));
  EXPECT_NE(Attach(v1::WRITE_MODE_STREAM)->attached().session_id(), 0u)
      << "the slot of the session that ended is not free";
}

TEST_F(HostileToken, InvalidTokensAreRefused) {
  const auto refused = [this](const std::string& token) {
    RawSession session(channel_, {.token = token, .mode = v1::WRITE_MODE_MAPPED});
    EXPECT_EQ(session.attached().session_id(), 0u);
    const grpc::Status status = session.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(status.error_message(), HasSubstr("larder-token"));
  };
  refused("no hexadecimal digits");
  refused(std::string(31, 'a'));
  refused(std::string(1'000, 'a'));
  refused(std::string(32, 'a'));
  std::string token;
  {
    auto gone = SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(gone.ok());
    token = (*gone)->TokenHex();
  }
  ASSERT_TRUE(Eventually([] { return daemon_->Metric("larder_sideband_connections_open") == 1; }));
  refused(token);
}

TEST_P(HostileSession, ARegistrationBeyondALimitIsRefused) {
  const auto session = Attach(v1::WRITE_MODE_STREAM);
  v1::Up up;
  up.add_registers()->set_id(1);
  for (int i = 0; i < 65; ++i) {
    v1::Content* content = up.mutable_registers(0)->add_contents();
    wire::Encode(maker_.content, content);
    content->set_revision(std::to_string(i));
  }
  wire::Encode(maker_.variant, up.mutable_registers(0)->add_variants());
  session->Send(up);
  const std::optional<v1::Down> down = session->Receive();
  if (down) {
    ASSERT_EQ(down->registered_size(), 1);
    EXPECT_THAT(down->registered(0).status(),
                ::testing::AnyOf(v1::BLOCK_STATUS_INVALID, v1::BLOCK_STATUS_FULL));
    EXPECT_FALSE(down->registered(0).message().empty());
  } else {
    EXPECT_THAT(session->End().error_message(), HasSubstr("contents"));
  }
}

TEST_P(HostileSession, ReservationsOfImpossibleSizesAreRefused) {
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  const v1::Reserved large = Reserve(*session, (8 << 20) + 1);
  EXPECT_EQ(large.status(), v1::BLOCK_STATUS_INVALID);
  EXPECT_THAT(large.message(), HasSubstr("slab"));
  EXPECT_EQ(Reserve(*session, UINT64_MAX).status(), v1::BLOCK_STATUS_INVALID);
  v1::Up up;
  up.add_reserves()->set_id(3);
  up.mutable_reserves(0)->add_bytes(0);
  const std::optional<v1::Down> zero = session->Ask(up);
  if (zero) {
    EXPECT_EQ(zero->reserved(0).status(), v1::BLOCK_STATUS_INVALID);
  } else {
    EXPECT_THAT(session->End().error_message(), HasSubstr("reserves[0].bytes"));
  }
}

TEST_P(HostileSession, AReservationOfTooManyExtentsIsRefused) {
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  v1::Up up;
  up.add_reserves()->set_id(3);
  for (int i = 0; i < 4097; ++i) up.mutable_reserves(0)->add_bytes(1);
  ExpectEnds(*session, up, "reserves[0].bytes");
}

TEST_P(HostileSession, ReservationsBeyondTheShareAreRefused) {
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  std::vector<v1::Reserved> held;
  v1::Reserved last;
  while ((last = Reserve(*session, 4 << 20)).status() == v1::BLOCK_STATUS_OK) held.push_back(last);
  EXPECT_EQ(last.status(), v1::BLOCK_STATUS_FULL);
  EXPECT_GT(last.retry_after_ms(), 0u);
  EXPECT_EQ(held.size(), 4u) << "the share is a quarter of 64 MiB";
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, InvalidPublishesAreRefused) {
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  Register(*session);
  const v1::Reserved reserved = Reserve(*session);
  ASSERT_EQ(reserved.status(), v1::BLOCK_STATUS_OK);
  const uint64_t id = reserved.reservation_id();
  const uint32_t mine =
      GetParam() == Carrier::kGrpc ? 301 : 302;  // one daemon serves both carriers

  v1::Up up = PublishOf(id, 1);
  up.mutable_publishes(0)->mutable_blocks(0)->set_digest(std::string(16, 'd'));
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "digest");
  up = PublishOf(id, 1);
  up.mutable_publishes(0)->mutable_blocks(0)->set_tokens(5, 77);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "digest");
  up = PublishOf(id, 1);
  for (int i = 0; i < 16; ++i) up.mutable_publishes(0)->mutable_blocks(0)->add_tokens(1);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "tokens");
  up = PublishOf(id, 1);
  wire::Encode(UniformTable(2, kLayerBytes - 1000),
               up.mutable_publishes(0)->mutable_blocks(0)->mutable_segments());
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "segments");
  up = PublishOf(id, 1);
  wire::Encode(UniformTable(3, kLayerBytes),
               up.mutable_publishes(0)->mutable_blocks(0)->mutable_segments());
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "segments");
  up = PublishOf(id, 1);
  up.mutable_publishes(0)->mutable_blocks(0)->set_extent(1);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_NOT_HELD, "");
  up = PublishOf(id + 1, 1);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_NOT_HELD, "reservation");
  up = PublishOf(id, 1);
  up.mutable_publishes(0)->set_variant(1);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "variant");

  const std::optional<v1::Down> right = session->Ask(PublishOf(id, mine));
  ASSERT_TRUE(right && right->published_size() == 1);
  EXPECT_EQ(right->published(0).status(0), v1::BLOCK_STATUS_OK)
      << "the reservation did not survive the refused publishes";
  ExpectRefused(*session, PublishOf(id, 2), v1::BLOCK_STATUS_NOT_HELD, "reservation");
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, PublishesFromUnknownStagingAreRefused) {
  const auto session = Attach(v1::WRITE_MODE_STAGED);
  Register(*session);
  const v1::Reserved reserved = Reserve(*session);
  ASSERT_EQ(reserved.status(), v1::BLOCK_STATUS_OK);
  EXPECT_EQ(reserved.extents(0).offset() + reserved.extents(0).slab(), 0u)
      << "a staged session was told the place of its extent";
  v1::Up up = PublishOf(reserved.reservation_id(), 1);
  up.mutable_publishes(0)->mutable_blocks(0)->set_staging_id(12345);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "staging");
  up.mutable_publishes(0)->mutable_blocks(0)->set_staging_offset(UINT64_MAX - 5);
  ExpectRefused(*session, up, v1::BLOCK_STATUS_INVALID, "staging");
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, AcquiresOfUnknownBlocksGetNoLease) {
  Store(1);
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  Register(*session);
  const auto status_of = [&](const v1::Up& up) {
    const std::optional<v1::Down> down = session->Ask(up);
    EXPECT_TRUE(down && down->grants_size() == 1);
    EXPECT_EQ(down->grants(0).lease_id(), 0u);
    return down->grants(0).status(0);
  };
  EXPECT_EQ(status_of(AcquireOf(std::string(16, 'x'))), v1::BLOCK_STATUS_MISSING);
  EXPECT_EQ(status_of(AcquireOf(Packed(maker_.Block(1).digest), 7)), v1::BLOCK_STATUS_INVALID);
  v1::Up beyond = AcquireOf(Packed(maker_.Block(1).digest));
  beyond.mutable_acquires(0)->set_first_layer(2);
  EXPECT_EQ(status_of(beyond), v1::BLOCK_STATUS_INVALID);
  ExpectEnds(*session, AcquireOf(std::string(16 * 4097, 'x')), "acquires[0].digests");
}

TEST_P(HostileSession, AnAcquireOfHalfADigestIsRefused) {
  const auto session = Attach(v1::WRITE_MODE_STREAM);
  ExpectEnds(*session, AcquireOf(std::string(24, 'x')), "acquires[0].digests: 24 bytes");
}

TEST_P(HostileSession, TheTablesOfTooManyKeysAreRefused) {
  const auto session = Attach(v1::WRITE_MODE_STREAM);
  Register(*session);
  v1::Up up = AcquireOf(std::string(512 * 16, 'x'));
  up.mutable_acquires(0)->set_want_tables(true);
  EXPECT_TRUE(session->Ask(up));
  up.mutable_acquires(0)->set_digests(std::string(513 * 16, 'x'));
  ExpectEnds(*session, up, "tables");
}

TEST_P(HostileSession, ReleasesOfUnknownLeasesAreCounted) {
  const std::string counter = "larder_unknown_releases_total";
  const uint64_t before = Counter(counter);
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  v1::Up up;
  for (uint64_t id = 1; id <= 100; ++id) up.mutable_release()->add_lease_ids(id << 32);
  up.mutable_revoke_ack()->add_lease_ids(99);
  up.mutable_revoke_ack()->add_reservation_ids(99);
  up.add_aborts()->set_reservation_id(99);
  up.add_cancels()->set_id(5);
  ASSERT_TRUE(session->Send(up));
  EXPECT_TRUE(Eventually([&] { return Counter(counter) >= before + 100; }));
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, UnknownFieldsAndFeaturesAreIgnored) {
  const auto session = Open();
  v1::Up up;
  v1::Hello* hello = up.mutable_hello();
  hello->set_engine_id("from the future");
  hello->set_role(v1::ROLE_BOTH);
  hello->set_write_mode(v1::WRITE_MODE_STREAM);
  hello->set_feature_bits(~uint64_t{0});
  hello->GetReflection()->MutableUnknownFields(hello)->AddLengthDelimited(9000,
                                                                          std::string(1000, 'n'));
  up.GetReflection()->MutableUnknownFields(&up)->AddVarint(9001, 1);
  const std::optional<v1::Down> down = session->Ask(up);
  ASSERT_TRUE(down && down->has_attached());
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, AHelloWithoutOptionalFieldsIsServed) {
  Store(1);
  const auto session = Attach(v1::WRITE_MODE_MAPPED);  // its Hello has no rank, tenant or client
  Register(*session);
  const std::optional<v1::Down> down = session->Ask(AcquireOf(Packed(maker_.Block(1).digest)));
  ASSERT_TRUE(down && down->grants_size() == 1);
  EXPECT_EQ(down->grants(0).status(0), v1::BLOCK_STATUS_OK);
  EXPECT_EQ(down->grants(0).deadline_ms(), 30'000u) << "not the contract's default";
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, WhatALostSessionHeldIsQuarantined) {
  Store(1);
  auto session = Attach(v1::WRITE_MODE_MAPPED);
  Register(*session);
  ASSERT_TRUE(session->Ask(AcquireOf(Packed(maker_.Block(1).digest))));
  ASSERT_EQ(Reserve(*session).status(), v1::BLOCK_STATUS_OK);
  const SessionId lost{session->attached().session_id()};
  session.reset();  // this process lives on, so the daemon may not reuse anything that it held
  ASSERT_TRUE(Eventually([] { return daemon_->Tenant().sessions() == 0; }));
  EXPECT_GT(daemon_->Tenant().pool_quarantined(), 0u);
  EXPECT_EQ(daemon_->Tenant().leases(), 1u);
  const auto released = sideband_->Clean(lost);
  ASSERT_TRUE(released.ok());
  EXPECT_GT(released->value(), 0u);
}

TEST_P(HostileSession, AnExpiredLeaseIsKeptUntilItIsAcknowledged) {
  Store(1);
  const std::string counter = "larder_holds_expired_total{kind=\"lease\"}";
  const uint64_t before = Counter(counter);
  const auto session = Attach(v1::WRITE_MODE_MAPPED);
  Register(*session);
  v1::Up up = AcquireOf(Packed(maker_.Block(1).digest));
  up.mutable_acquires(0)->set_deadline_ms(1);
  ASSERT_TRUE(session->Ask(up));
  const std::optional<v1::Down> revoked = session->Receive();
  ASSERT_TRUE(revoked && revoked->revocations_size() == 1);
  EXPECT_EQ(revoked->revocations(0).cause(), v1::REVOCATION_CAUSE_DEADLINE);
  EXPECT_EQ(Counter(counter), before + 1);
  EXPECT_EQ(daemon_->Tenant().leases(), 1u)
      << "the lease ended before the client acknowledged the revocation";
  v1::Up ack;
  ack.mutable_revoke_ack()->add_lease_ids(revoked->revocations(0).lease_ids(0));
  session->Send(ack);
  EXPECT_TRUE(Eventually([] { return daemon_->Tenant().leases() == 0; }));
  EXPECT_TRUE(session->Bye().ok());
}

TEST_P(HostileSession, ASessionThatDoesNotReadIsStoppedByBackPressure) {
  const uint64_t resident = daemon_->ResidentBytesBesidePool();
  const auto session = Attach(v1::WRITE_MODE_STREAM);
  Register(*session);
  // The client never reads the answers, of 4,096 keys each.  The daemon then stops reading, so at
  // some point the writer waits.
  const v1::Up up = AcquireOf(std::string(4096 * 16, 'x'));
  std::atomic<int> written{0};
  std::thread writer([&] {
    while (written < 20'000 && session->Send(up)) ++written;
  });
  int seen = -1;
  EXPECT_TRUE(Eventually([&] {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(300));  // the writer waits if it sends nothing for so long
    return std::exchange(seen, written.load()) == seen;
  }));
  EXPECT_LT(written, 20'000) << "no back-pressure reached the writer";
  EXPECT_EQ(daemon_->Health(), "SERVING");
  EXPECT_LT(daemon_->ResidentBytesBesidePool(), resident + (128 << 20));
  session->Cancel();
  writer.join();
}

// ---- what a client can do only on a session socket

class HostileSocket : public HostileTest {
 protected:
  // Sends bytes on a new session socket and returns how the daemon ends the session.
  grpc::Status After(const std::string& bytes) {
    auto socket = sideband_->OpenSession();
    EXPECT_TRUE(socket.ok()) << socket.status();
    auto stream = std::make_unique<RawSocket>(*std::move(socket));
    const RawSocket& raw = *stream;
    RawSession session(std::move(stream), {});
    attached_.push_back(SessionId{session.attached().session_id()});
    EXPECT_TRUE(raw.WriteBytes(bytes));
    return session.End();
  }
  static std::string FrameOf(uint32_t length, uint16_t type, uint16_t version,
                             const std::string& body) {
    std::string frame(8, '\0');
    std::memcpy(frame.data(), &length, 4);
    std::memcpy(frame.data() + 4, &type, 2);
    std::memcpy(frame.data() + 6, &version, 2);
    return frame + body;
  }
};

TEST_F(HostileSocket, InvalidFramesEndTheSession) {
  const uint64_t before = Invalid();
  EXPECT_EQ(After(FrameOf(4, 3, 1, "abcd")).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(After(FrameOf(4, 1, 2, "abcd")).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(After(FrameOf(UINT32_MAX, 1, 1, "abcd")).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(After(FrameOf(4, 1, 1, "\xff\xff\xff\xff")).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(After(FrameOf(0, 2, 1, "")).error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << "only the daemon may send END";
  EXPECT_EQ(Invalid(), before + 5);
}

TEST_F(HostileSocket, AnEmptyMessageIsAccepted) {
  auto socket = sideband_->OpenSession();
  ASSERT_TRUE(socket.ok());
  auto stream = std::make_unique<RawSocket>(*std::move(socket));
  const RawSocket& raw = *stream;
  RawSession session(std::move(stream), {});
  ASSERT_TRUE(raw.WriteBytes(FrameOf(0, 1, 1, "")));
  EXPECT_TRUE(session.Bye().ok());
}

TEST_F(HostileSocket, RandomBytesEndTheSession) {
  std::mt19937 random(20'261'121);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(1 + random() % 4096, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // With a permitted length in its header, the daemon would wait for the rest of the message.
    const uint32_t length = UINT32_MAX;
    if (bytes.size() >= 4) std::memcpy(bytes.data(), &length, 4);
    if (bytes.size() < 8) bytes.resize(8, '\x7f');
    EXPECT_FALSE(After(bytes).ok());
  }
}

TEST_F(HostileSocket, AClientMayLeaveInTheMiddleOfAMessage) {
  for (const size_t kept : {1u, 7u, 8u, 100u}) {
    auto socket = sideband_->OpenSession();
    ASSERT_TRUE(socket.ok());
    auto stream = std::make_unique<RawSocket>(*std::move(socket));
    const RawSocket& raw = *stream;
    RawSession session(std::move(stream), {});
    attached_.push_back(SessionId{session.attached().session_id()});
    ASSERT_TRUE(raw.WriteBytes(FrameOf(1000, 1, 1, std::string(1000, 'x')).substr(0, kept)));
  }
}

// Session sockets count as sessions of their process even if no client sends Hello on them.
TEST_F(HostileSocket, ASessionSocketBeyondTheLimitIsRefused) {
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < kSessionsMax; ++i) {
    auto socket = sideband_->OpenSession();
    ASSERT_TRUE(socket.ok()) << socket.status();
    sockets.push_back(*std::move(socket));
  }
  auto one_more = sideband_->OpenSession();
  ASSERT_TRUE(one_more.ok()) << one_more.status();
  RawSession refused(std::make_unique<RawSocket>(*std::move(one_more)), {});
  EXPECT_EQ(refused.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GT(refused.retry_after_ms(), 0);
}

}  // namespace
}  // namespace larder::e2e
