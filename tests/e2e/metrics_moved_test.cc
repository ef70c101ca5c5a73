// Every metric is moved by some event on a real daemon.  A table lists the events and the samples
// that each moves.  A metric without a row fails EveryMetricIsMoved, so a new metric needs a row.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <future>
#include <set>

#include "server/metrics/metrics_table.h"
#include "server/runtime/version.h"
#include "tests/e2e/support/channel_of_user.h"
#include "tests/e2e/support/metrics_fixture.h"
#include "tests/server/grpc/http2_frames.h"
#include "tests/support/eventually.h"

namespace larder::e2e {

namespace {

// Changes a byte of block 0 in HOST, as any process that may write to the pool can.
void FlipAByteInHost(MetricsTest& at) {
  std::vector<std::byte> layer(kLayerBytes);
  FillLayer(at.maker_.Block(0).digest, 1, layer);
  const auto sideband =
      SidebandClient::Connect(at.daemon_->sideband_socket(), std::chrono::seconds(10));
  ASSERT_TRUE(sideband.ok()) << sideband.status();
  auto mapped = (*sideband)->MapSlab(SlabId{0}, /*writable=*/true);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const std::span<std::byte> bytes = mapped->writable_bytes();
  const auto found = std::search(bytes.begin(), bytes.end(), layer.begin(), layer.end());
  ASSERT_NE(found, bytes.end());
  *found ^= std::byte{1};
}

FileDescriptor ConnectTo(const std::string& path, int type) {
  FileDescriptor connection(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(connect(connection.get(), where, sizeof address), 0) << path;
  return connection;
}

std::vector<Happening> Happenings() {
  const std::string build = std::string("larder_build_info{version=\"") + Version() + "\"}";
  return {
      {"ItRuns",
       {build, "larder_start_time_seconds", "larder_cpu_seconds_total",
        "larder_resident_bytes{kind=\"anonymous\"}", "larder_pool_bytes{part=\"limit\"}",
        "larder_disk_bytes{part=\"limit\"}", "larder_disk_shards{state=\"all\"}"},
       [](MetricsTest& at) { at.Start(); }},
      {"DeviceMemory",
       {"larder_device_blocks", "larder_directives_total{step=\"sent\"}",
        "larder_directives_total{step=\"done\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.AttachDevice([] {}));
         at.Pin(0, 1, 60'000, v1::TIER_DEVICE);
       }},
      {"AnEngineHangs",
       {"larder_directives_total{step=\"unanswered\"}", "larder_directives_total{step=\"unsent\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         std::promise<void> wake;
         ASSERT_NO_FATAL_FAILURE(
             at.AttachDevice([woken = wake.get_future().share()] { woken.wait(); }));
         at.DropFromDevice(70'000);  // more than may be unanswered at one engine
         wake.set_value();
       }},
      {"TooManyDeviceBlocks",
       {"larder_device_blocks_left_out_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         std::vector<Digest> digests((1 << 20) + 1);
         for (uint32_t i = 0; i < digests.size(); ++i)
           std::memcpy(digests[i].bytes.data(), &i, sizeof i);
         ASSERT_TRUE(at.session_->ReportDevice(at.variant_, {.stored = digests}).ok());
         EXPECT_TRUE(Eventually([&] { return at.Moved("larder_device_blocks_left_out_total"); }));
       }},
      {"AWrongDeviceReport",
       {"larder_device_reports_refused_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         const TestBlock block = at.maker_.Block(0);
         const Digest wrong = at.maker_.Block(1).digest;
         ASSERT_TRUE(at.session_
                         ->ReportDevice(at.variant_, {.stored = {&wrong, 1},
                                                      .parent = block.parent,
                                                      .tokens = block.tokens})
                         .ok());
       }},
      {"APromise",
       {"larder_promises", "larder_promised_bytes", "larder_requests_total{kind=\"promise\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_EQ(at.Put(0), BlockStatus::kOk);
         const Digest chain = at.maker_.Block(0).digest;
         auto asked =
             at.session_->BeginPromise({.variants = {&at.variant_, 1}, .chain = {&chain, 1}});
         ASSERT_TRUE(asked.ok() && asked->Wait(std::chrono::seconds(10))) << asked.status();
         auto promise = asked->Take();
         ASSERT_TRUE(promise.ok()) << promise.status();
         at.promise_ = *std::move(promise);
       }},
      {"PutAndGet",
       {"larder_sessions_total{result=\"attached\"}",
        "larder_requests_total{kind=\"register\"}",
        "larder_requests_total{kind=\"reserve\"}",
        "larder_requests_total{kind=\"publish\"}",
        "larder_requests_total{kind=\"acquire\"}",
        "larder_requests_total{kind=\"lookup\"}",
        "larder_blocks_put_total{result=\"published\"}",
        "larder_blocks_put_total{result=\"duplicate\"}",
        "larder_blocks_got_total{result=\"hit\"}",
        "larder_blocks_got_total{result=\"missing\"}",
        "larder_put_bytes_total",
        "larder_put_tokens_total",
        "larder_got_bytes_total{tier=\"host\"}",
        "larder_got_tokens_total{tier=\"host\"}",
        "larder_request_seconds_count{kind=\"lookup\"}",
        "larder_request_seconds_count{kind=\"write\"}",
        "larder_request_seconds_count{kind=\"acquire\"}",
        "larder_host_checks_total",
        "larder_sideband_connections_total{step=\"accepted\"}",
        "larder_sideband_connections_total{step=\"welcomed\"}",
        "larder_sideband_given_total{what=\"slab_write\"}",
        "larder_sideband_given_total{what=\"session_page\"}",
        "larder_sideband_given_total{what=\"session_socket\"}",
        "larder_sideband_connections_open",
        "larder_connections_total{socket=\"data\"}",
        "larder_connections_total{socket=\"admin\"}",
        "larder_connections_open{socket=\"data\"}",
        "larder_descriptors{what=\"open\"}",
        "larder_descriptors{what=\"limit\"}",
        "larder_blocks",
        "larder_kept_bytes{what=\"index\"}",
        "larder_kept_bytes{what=\"metadata\"}",
        "larder_sessions{write_mode=\"mapped\"}",
        "larder_processes",
        "larder_share_held{kind=\"processes\"}",
        "larder_pool_bytes{part=\"stored\"}",
        "larder_pool_bytes{part=\"reserved\"}",
        "larder_pool_bytes{part=\"leased\"}",
        "larder_holds{kind=\"lease\"}",
        "larder_holds{kind=\"reservation\"}",
        "larder_disk_spill_total{result=\"offered\"}",
        "larder_disk_spill_total{result=\"spilled\"}",
        "larder_disk_moved_bytes_total{how=\"spilled\"}",
        "larder_disk_moved_bytes_total{how=\"written\"}",
        "larder_disk_blocks{where=\"all\"}",
        "larder_disk_facts_bytes{part=\"registrations\"}",
        "larder_disk_bytes{part=\"used\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--check-host-reads", "always"}));
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         EXPECT_EQ(at.Put(0), BlockStatus::kDuplicate);
         EXPECT_EQ(at.Get(0), BlockStatus::kOk);
         EXPECT_EQ(at.Get(99), BlockStatus::kMissing);
         EXPECT_TRUE(at.client_->Lookup(at.QueryOf(0)).ok());
         ASSERT_NO_FATAL_FAILURE(at.TakeLease(1));
         ASSERT_NO_FATAL_FAILURE(at.TakeReservation(KiB(64)));
       }},
      {"GetFromDisk",
       {"larder_blocks_got_total{result=\"disk\"}", "larder_got_bytes_total{tier=\"disk\"}",
        "larder_got_tokens_total{tier=\"disk\"}",
        "larder_request_seconds_count{kind=\"disk_read\"}",
        "larder_disk_promote_total{result=\"promoted\"}",
        "larder_disk_moved_bytes_total{how=\"promoted\"}",
        "larder_disk_blocks{where=\"disk_only\"}"},
       [](MetricsTest& at) {
         std::vector<Digest> digests;
         ASSERT_NO_FATAL_FAILURE(at.StartWithOnDisk(4, "", &digests));
         EXPECT_EQ(at.Get(0), BlockStatus::kOk);
       }},
      {"EvictedAhead",
       {"larder_blocks_evicted_total{cause=\"watermark\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.Press(2));
       }},
      {"EvictedOnDemand",
       {"larder_blocks_evicted_total{cause=\"demand\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--evict-watermark", "0"}));
         ASSERT_NO_FATAL_FAILURE(at.Press(2));
       }},
      {"TheDiskFails",
       {"larder_blocks_evicted_unspilled_total", "larder_disk_failures_total{kind=\"write\"}",
        "larder_disk_left_alone_total{for=\"spill\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--fault-points", "data.write=error"}));
         ASSERT_NO_FATAL_FAILURE(at.Press(2));
       }},
      {"TheCatalogFails",
       {"larder_disk_registration_failures_total", "larder_pin_write_failures_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--fault-points", "catalog.facts=error"}));
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
         at.Pin(0, 1, 60'000);
       }},
      {"ReadsFail",
       {"larder_disk_failures_total{kind=\"read\"}",
        "larder_disk_left_alone_total{for=\"promote\"}",
        "larder_disk_promote_total{result=\"missing\"}"},
       [](MetricsTest& at) {
         std::vector<Digest> digests;
         ASSERT_NO_FATAL_FAILURE(at.StartWithOnDisk(16, "data.read=error", &digests));
         for (uint32_t number = 0; number < 16; ++number) (void)at.Get(number);
       }},
      {"TheDiskIsSlow",
       {"larder_disk_waiting{for=\"spill\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--fault-points", "data.write=sleep:3s"}));
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
         EXPECT_EQ(at.Put(1), BlockStatus::kOk);
       }},
      {"TheDiskIsFull",
       {"larder_disk_evicted_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         for (int i = 0; i < 60 && !at.Moved("larder_disk_evicted_total"); ++i)
           ASSERT_NO_FATAL_FAILURE(at.Press(1));
       }},
      {"TheDiskIsVerified",
       {"larder_disk_verified_total{result=\"ok\"}", "larder_disk_verify_walks_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         at.daemon_->Kill9();
         ASSERT_NO_FATAL_FAILURE(at.Start({"--disk-verify-rate", "1GiB"}));
       }},
      {"ThePoolIsVerified",
       {"larder_host_verified_total{result=\"ok\"}", "larder_host_verify_walks_total",
        "larder_host_verify_seconds"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--host-verify-rate", "1GiB"}));
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
       }},
      {"ItRecovers",
       {"larder_disk_recovering"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         at.daemon_->Kill9();
         ASSERT_NO_FATAL_FAILURE(at.Start({"--fault-points", "catalog.scan=sleep:5s"}));
       }},
      {"AShardIsDamaged",
       {"larder_disk_shards_set_aside_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         at.daemon_->Kill9();
         std::filesystem::remove(at.folder_->File("disk/shard-00/catalog/CURRENT"));
         ASSERT_NO_FATAL_FAILURE(at.Start());
       }},
      {"ByteStreams",
       {"larder_requests_total{kind=\"store_blocks\"}",
        "larder_requests_total{kind=\"fetch_blocks\"}", "larder_moved_bytes_total{road=\"stored\"}",
        "larder_moved_bytes_total{road=\"fetched\"}", "larder_sessions{write_mode=\"stream\"}",
        "larder_sessions_reading{read_mode=\"stream\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         at.Attach(WriteMode::kStream);
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
         EXPECT_EQ(at.Get(0), BlockStatus::kOk);
       }},
      {"Staged",
       {"larder_moved_bytes_total{road=\"staged\"}",
        "larder_sideband_given_total{what=\"staging\"}",
        "larder_sideband_given_total{what=\"slab_read\"}", "larder_sessions{write_mode=\"staged\"}",
        "larder_sessions_reading{read_mode=\"mapped\"}", "larder_staging_bytes"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         at.Attach(WriteMode::kStaged);
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
         EXPECT_EQ(at.Get(0), BlockStatus::kOk);
       }},
      {"ByCopies",
       {"larder_moved_bytes_total{road=\"copied\"}",
        "larder_sessions_reading{read_mode=\"copied\"}",
        "larder_sideband_refused_total{cause=\"slab_denied\"}"},
       [](MetricsTest& at) {
         // The daemon trusts another user than the test's.
         ASSERT_NO_FATAL_FAILURE(at.Start({"--trusted-uids", std::to_string(geteuid() + 4242)}));
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
         EXPECT_EQ(at.Get(0), BlockStatus::kOk);
         const auto sideband =
             SidebandClient::Connect(at.daemon_->sideband_socket(), std::chrono::seconds(10));
         ASSERT_TRUE(sideband.ok()) << sideband.status();
         EXPECT_FALSE((*sideband)->MapSlab(SlabId{0}, /*writable=*/false).ok());
       }},
      {"NoRoom",
       {"larder_reserve_full_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--lease-share", "0.01"}));
         const ByteCount bytes = MiB(1);
         EXPECT_FALSE(
             at.session_->Reserve({&bytes, 1}, {.deadline = std::chrono::milliseconds(100)}).ok());
       }},
      {"Deadlines",
       {"larder_holds_expired_total{kind=\"lease\"}",
        "larder_holds_expired_total{kind=\"reservation\"}", "larder_pins_expired_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(2));
         ASSERT_NO_FATAL_FAILURE(at.TakeLease(0, std::chrono::milliseconds(100)));
         ASSERT_NO_FATAL_FAILURE(at.TakeReservation(KiB(64), std::chrono::milliseconds(100)));
         at.Pin(0, 1, 20);
       }},
      {"DamageInMemory",
       {"larder_blocks_damaged_total{tier=\"host\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start(
             {"--check-host-reads", "always", "--slab", "32MiB", "--host-verify-rate", "0"}));
         // Once it is on disk, the spiller, which could find the damage first, has read it.
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(1));
         ASSERT_NO_FATAL_FAILURE(FlipAByteInHost(at));
         EXPECT_EQ(at.Get(0), BlockStatus::kDamaged);
       }},
      {"DamageInMemoryThatNoEngineReads",
       {"larder_host_verified_total{result=\"damaged\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--slab", "32MiB", "--host-verify-rate", "1GiB"}));
         // Once it is on disk, the spiller, which could find the damage first, has read it.
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(1));
         ASSERT_NO_FATAL_FAILURE(FlipAByteInHost(at));
         // The daemon has walked the pool while it was empty; the next walk is 20 s later.
         const auto found = [&] {
           return at.daemon_->errors().find("is not what was published") != std::string::npos;
         };
         EXPECT_TRUE(Eventually(found, std::chrono::seconds(60)));
         (void)at.Get(0);  // reads from disk, where the block is by now
       }},
      {"DamageOnItsWay",
       {"larder_blocks_damaged_in_transit_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         const TestBlock block = at.maker_.Block(0);
         v1::StoreBlocksRequest request;
         wire::Encode(at.maker_.content, request.mutable_content());
         wire::Encode(at.maker_.variant, request.mutable_variant());
         request.mutable_block()->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
         wire::Encode(at.maker_.Table(block.digest, 100),
                      request.mutable_block()->mutable_segments());
         request.set_data(std::string(200, 'x'));
         v1::StoreBlocksReply reply;
         grpc::ClientContext context;
         const auto stub = v1::Engine::NewStub(at.daemon_->DataChannel());
         const auto stream = stub->StoreBlocks(&context, &reply);
         stream->Write(request);
         stream->WritesDone();
         EXPECT_TRUE(stream->Finish().ok());
       }},
      {"Compress",
       {"larder_compressed_blocks_total{to=\"host_lossless\"}",
        "larder_compressed_blocks_total{to=\"disk_lossless\"}",
        "larder_compressed_blocks_total{to=\"host_identity\"}",
        "larder_compressed_blocks_total{to=\"disk_identity\"}",
        "larder_compressed_bytes_total{room=\"host_before\"}",
        "larder_compressed_bytes_total{room=\"host_after\"}",
        "larder_compressed_bytes_total{room=\"disk_before\"}",
        "larder_compressed_bytes_total{room=\"disk_after\"}", "larder_decoded_for_leases_total"},
       [](MetricsTest& at) {
         at.maker_.floats = true;
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         for (const v1::Tier tier : {v1::TIER_DISK, v1::TIER_HOST}) {
           at.Compress(tier, v1::CODEC_LOSSLESS);
           EXPECT_EQ(at.Get(0), BlockStatus::kOk);
           at.Compress(tier, v1::CODEC_IDENTITY);
         }
       }},
      {"AnEngineIsLost",
       {"larder_sessions_total{result=\"lost\"}", "larder_pool_bytes{part=\"quarantined\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         at.engine_ = std::make_unique<ChildEngine>(*at.daemon_, "mapped", "churn", 1);
         ASSERT_EQ(at.engine_->Hear(), "ready");
         at.engine_->Signal(SIGUSR1);  // the engine closes its connections and lives on
       }},
      {"AnEngineIdOfAnotherOne",
       {"larder_engine_id_conflicts_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         if (geteuid() != 0) return;  // only root can connect as another user
         at.raw_ = std::make_unique<RawSession>(ChannelOfUser(*at.daemon_, kAttackerUid),
                                                RawSession::Options{.engine_id = "disk"});
         EXPECT_TRUE(Eventually([&] { return at.Moved("larder_engine_id_conflicts_total"); }));
       }},
      {"TooMuchIsRegisteredAndReported",
       {"larder_registrations_refused_total", "larder_damage_reports_dropped_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         at.raw_ = std::make_unique<RawSession>(at.daemon_->DataChannel(), RawSession::Options{});
         v1::Up up;
         v1::Register* const request = up.add_registers();
         request->set_id(1);
         wire::Encode(at.maker_.content, request->add_contents());
         wire::Encode(at.maker_.variant, request->add_variants());
         ASSERT_TRUE(at.raw_->Ask(up).has_value());
         for (int i = 1'000; i < 2'000; ++i) {
           wire::Encode(at.maker_.variant, request->add_variants());
           request->mutable_variants()->rbegin()->set_layout(std::string(100, 'x') +
                                                             std::to_string(i));
         }
         ASSERT_TRUE(at.raw_->Ask(up).has_value());
         v1::Up reports;
         std::string digests(2048 * 16, '\0');
         for (uint32_t i = 0; i < 2048; ++i) std::memcpy(digests.data() + 16 * i, &i, sizeof i);
         reports.add_damaged()->set_digests(digests);
         EXPECT_TRUE(at.raw_->Send(reports));
         EXPECT_TRUE(Eventually([&] { return at.Moved("larder_damage_reports_dropped_total"); }));
       }},
      {"Refusals",
       {"larder_sessions_total{result=\"refused\"}", "larder_invalid_messages_total",
        "larder_share_held{kind=\"sessions\"}", "larder_shares_refused_total{kind=\"sessions\"}",
        "larder_unknown_releases_total", "larder_blocks_put_total{result=\"refused\"}",
        "larder_sideband_refused_total{cause=\"bad_packet\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--sessions-max", "3"}));
         at.raw_ = std::make_unique<RawSession>(at.daemon_->DataChannel(), RawSession::Options{});
         EXPECT_FALSE(at.client_->Attach({.engine_id = "third"}).ok());
         v1::Up up;
         up.mutable_release()->add_lease_ids(12345);
         v1::Publish* const publish = up.add_publishes();
         publish->set_id(1);
         publish->set_reservation_id(12345);
         const TestBlock block = at.maker_.Block(0);
         v1::PublishBlock* const one = publish->add_blocks();
         one->set_digest(std::string(16, 'd'));
         one->set_parent(std::string(16, 'p'));
         one->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
         wire::Encode(at.maker_.Table(block.digest, 100), one->mutable_segments());
         EXPECT_TRUE(at.raw_->Ask(up).has_value());
         at.socket_ = ConnectTo(at.daemon_->sideband_socket(), SOCK_SEQPACKET);
         EXPECT_EQ(send(at.socket_.get(), "garbage", 7, MSG_NOSIGNAL), 7);
         v1::LookupRequest nothing;
         nothing.set_digests("half");
         v1::LookupReply reply;
         EXPECT_FALSE(at.Ask([&](auto& stub, auto& context) {
                          return stub.Lookup(&context, nothing, &reply);
                        }).ok());
       }},
      {"ACallAtTheWrongSocket",
       {"larder_calls_at_wrong_socket_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         grpc::ClientContext context;
         v1::ClearReply reply;
         const auto stub = v1::Cache::NewStub(at.daemon_->DataChannel());
         EXPECT_EQ(stub->Clear(&context, {}, &reply).error_code(),
                   grpc::StatusCode::PERMISSION_DENIED);
       }},
      {"AMessageThatDoesNotComeOn",
       {"larder_incoming_bytes{what=\"held\"}", "larder_incoming_bytes{what=\"limit\"}"},
       [](MetricsTest& at) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
         GTEST_SKIP() << "a sanitizer defines recvmsg itself, so larderd cannot watch its sockets";
#endif
         ASSERT_NO_FATAL_FAILURE(at.Start());
         at.socket_ = ConnectTo(at.daemon_->data_socket(), SOCK_STREAM);
         const std::string begun =
             std::string(kClientPreface) + Http2Frame(kSettingsFrame, 0, 0, "") +
             Http2Frame(kHeadersFrame, kEndHeadersFlag, 1, CallHeaders("/larder.v1.Cache/Lookup")) +
             Http2Frame(kDataFrame, 0, 1, Prefixed(std::string(20'000, 'm')).substr(0, 15'000));
         ASSERT_EQ(write(at.socket_.get(), begun.data(), begun.size()),
                   static_cast<ssize_t>(begun.size()));
       }},
      {"TooMuch",
       {"larder_calls_overloaded_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         const auto stub = v1::Cache::NewStub(at.daemon_->ControlChannel());
         constexpr size_t kWatchers = 65;
         std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
         std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchEventsReply>>> watchers;
         for (size_t i = 0; i < kWatchers; ++i) {
           contexts.push_back(std::make_unique<grpc::ClientContext>());
           v1::WatchEventsRequest request;
           request.set_snapshot(true);
           watchers.push_back(stub->WatchEvents(contexts.back().get(), request));
         }
         EXPECT_TRUE(Eventually([&] { return at.Moved("larder_calls_overloaded_total"); }));
         for (const auto& context : contexts) context->TryCancel();
         for (const auto& watcher : watchers) (void)watcher->Finish();
       }},
      {"Verbs",
       {"larder_requests_total{kind=\"list_instances\"}",
        "larder_requests_total{kind=\"query_ip\"}", "larder_requests_total{kind=\"pin\"}",
        "larder_requests_total{kind=\"unpin\"}", "larder_requests_total{kind=\"prefetch\"}",
        "larder_requests_total{kind=\"clear\"}", "larder_requests_total{kind=\"move\"}",
        "larder_requests_total{kind=\"watch_events\"}", "larder_pins",
        "larder_pinned_bytes{tier=\"host\"}", "larder_blocks_cleared_total{tier=\"host\"}",
        "larder_blocks_moved_total{to=\"disk\"}", "larder_blocks_moved_total{to=\"host\"}",
        "larder_events_told_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         at.Move(v1::TIER_HOST, v1::TIER_DISK);
         at.Move(v1::TIER_DISK, v1::TIER_HOST);
         EXPECT_TRUE(at.client_->ListInstances().ok());
         v1::QueryIpRequest where;
         where.set_engine_id("disk");
         v1::QueryIpReply ip;
         (void)at.Ask(
             [&](auto& stub, auto& context) { return stub.QueryIp(&context, where, &ip); });
         at.Pin(0, 1, 60'000);
         v1::UnpinRequest unpin;
         unpin.set_owner("unknown");
         unpin.set_all(true);
         v1::UnpinReply unpinned;
         (void)at.Ask(
             [&](auto& stub, auto& context) { return stub.Unpin(&context, unpin, &unpinned); });
         v1::PrefetchRequest prefetch;
         at.Name(1, 2, &prefetch);
         prefetch.set_ttl_ms(60'000);
         v1::PrefetchReply prefetched;
         (void)at.Ask([&](auto& stub, auto& context) {
           return stub.Prefetch(&context, prefetch, &prefetched);
         });
         v1::ClearRequest clear;
         clear.set_scope(v1::SELECTION_SCOPE_BLOCKS);
         at.Name(3, 4, &clear);
         v1::ClearReply cleared;
         (void)at.Ask(
             [&](auto& stub, auto& context) { return stub.Clear(&context, clear, &cleared); });
         at.WatchOnce();
       }},
      {"ASlowWatcher",
       {"larder_watchers_cut_off_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--events-max", "100"}));
         grpc::ChannelArguments small;  // gRPC accepts little before the watcher reads
         small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
         small.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
         const auto stub = v1::Cache::NewStub(grpc::CreateCustomChannel(
             "unix:" + at.daemon_->control_socket(), grpc::InsecureChannelCredentials(), small));
         grpc::ClientContext context;
         v1::WatchEventsRequest request;
         request.set_with_tokens(true);
         const auto reader = stub->WatchEvents(&context, request);
         EXPECT_TRUE(Eventually([&] {
           for (int i = 0; i < 100; ++i) (void)at.TryPut(at.Fresh());
           return at.Moved("larder_watchers_cut_off_total");
         }));
         context.TryCancel();
         (void)reader->Finish();
       }},
      {"MorePinsThanFit",
       {"larder_pins_not_restored_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         ASSERT_NO_FATAL_FAILURE(at.PutDurable(4));
         at.Pin(0, 4, 600'000);
         at.daemon_->Kill9();
         ASSERT_NO_FATAL_FAILURE(at.Start({"--pins-max", "1"}));
       }},
      {"SocketsInTrouble",
       {"larder_sockets_reopened_total{socket=\"data\"}",
        "larder_sockets_reopened_total{socket=\"sideband\"}",
        "larder_connections_refused_total{cause=\"data_process\"}"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start({"--connections-per-process", "3"}));
         for (int i = 0; i < 4; ++i) {
           at.connections_.push_back(at.daemon_->DataChannel());
           at.connections_.back()->GetState(/*try_to_connect=*/true);
         }
         ASSERT_TRUE(std::filesystem::remove(at.daemon_->data_socket()));
         ASSERT_TRUE(std::filesystem::remove(at.daemon_->sideband_socket()));
       }},
      {"AThreadThatStandsStill",
       {"larder_stuck_total"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         const Frozen frozen(at.daemon_->pid(),
                             [](const std::string& name) { return name == "housekeeper"; });
         EXPECT_TRUE(Eventually([&] { return at.Moved("larder_stuck_total"); }));
       }},
      {"ADrain",
       {"larder_draining"},
       [](MetricsTest& at) {
         ASSERT_NO_FATAL_FAILURE(at.Start());
         EXPECT_EQ(at.Put(0), BlockStatus::kOk);
         ASSERT_NO_FATAL_FAILURE(at.TakeLease(0));
         at.daemon_->Signal(SIGTERM);
       }},
  };
}

TEST_P(MetricsTest, MovesItsMetrics) {
  ASSERT_NO_FATAL_FAILURE(GetParam().happen(*this));
  if (IsSkipped()) return;
  for (const std::string& sample : GetParam().moves)
    EXPECT_TRUE(Eventually([&] { return Moved(sample); }))
        << sample << " is " << daemon_->Metric(sample);
}
INSTANTIATE_TEST_SUITE_P(By, MetricsTest, ::testing::ValuesIn(Happenings()),
                         [](const auto& row) { return row.param.name; });

// Prometheus's own checker examines names, units, help texts and types.
TEST(ScrapeTest, PromtoolFindsNothing) {
  if (std::system("command -v promtool >/dev/null") != 0)
    GTEST_SKIP() << "no promtool; deploy/fetch-promtool.sh fetches it, and tests/run.sh finds it";
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const std::string answer = daemon.Scrape();
  const std::string file = daemon.folder()->File("scrape");
  std::ofstream(file) << answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_EQ(std::system(("promtool check metrics < " + file).c_str()), 0);
}

// Sessions have no time series of their own, so a scrape stays small however many sessions there
// are.
TEST(ScrapeTest, StaysSmallWithAThousandSessions) {
  constexpr size_t kSessions = 1000, kPerConnection = 100;
  DaemonProcess daemon({"--sessions-max", "2100"});  // these callers' share is half of it
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const size_t alone = daemon.Scrape().size();
  std::vector<std::unique_ptr<RawSession>> sessions;
  std::shared_ptr<grpc::Channel> channel;
  for (size_t i = 0; i < kSessions; ++i) {
    if (i % kPerConnection == 0) channel = daemon.DataChannel();
    sessions.push_back(std::make_unique<RawSession>(
        channel, RawSession::Options{.engine_id = absl::StrCat("engine-", i)}));
    ASSERT_NE(sessions.back()->attached().session_id(), 0u) << i;
  }
  EXPECT_EQ(daemon.Metric("larder_sessions{write_mode=\"stream\"}"), kSessions);
  std::vector<double> took_ms;
  size_t bytes = 0;
  for (int i = 0; i < 21; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    bytes = daemon.Scrape().size();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    took_ms.push_back(took.count());
  }
  std::ranges::sort(took_ms);
  EXPECT_LT(bytes, alone + 1000) << "the scrape grows with the sessions";
  std::printf("a scrape with %zu sessions: %zu bytes, %.1f ms (p50), %.1f ms (max of %zu)\n",
              kSessions, bytes, took_ms[took_ms.size() / 2], took_ms.back(), took_ms.size());
}

TEST(MetricsTableTest, EveryMetricIsMoved) {
  std::set<std::string> moved;
  for (const Happening& happening : Happenings())
    for (const std::string& sample : happening.moves)
      moved.insert(sample.substr(0, sample.find('{')));
  for (const Metric& metric : Metrics()) {
    const bool times = metric.type == MetricType::kHistogram;
    if (std::string_view(metric.name) == "larder_pool_stalled")
      continue;  // pool_memory_test moves it
    EXPECT_TRUE(moved.contains(std::string(metric.name) + (times ? "_count" : "")))
        << metric.name << ": no row of Happenings() moves it";
  }
}

}  // namespace
}  // namespace larder::e2e
