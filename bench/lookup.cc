// How much does a request cost in addition to its round trip?  Lookup by digests and by token ids
// among 10 million blocks, and a lease on 128 real blocks, each against an echo of as many bytes
// over the same kind of call and server.
//
// Client and server are two processes, and the client is gRPC's own.  Every Lookup by digests asks
// for another chain, whose entries are in no cache: of blocks that were inserted one after the
// other, as a prompt's are, and, for _scattered, of blocks from all over the index.  A release
// travels with the next acquire, as the client library sends it.
#include <cstdio>
#include <filesystem>
#include <memory>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "bench/harness/blocks.h"
#include "bench/harness/echo.h"
#include "bench/harness/harness.h"
#include "bench/harness/lookup_keys.h"
#include "bench/harness/processes.h"
#include "bench/harness/socket_echo.h"
#include "client/local/sideband_client.h"
#include "larder/v1/cache.grpc.pb.h"
#include "larder/v1/engine.grpc.pb.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr char kByDigests[] = "lookup_500";
constexpr char kScattered[] = "lookup_500_scattered";
constexpr char kByTokens[] = "lookup_tokens_131072";
constexpr char kAcquire[] = "acquire_release_128";
constexpr char kAcquireClient[] = "acquire_release_128_client";
constexpr char kAcquireBare[] = "acquire_release_128_client_bare";
constexpr size_t kAcquireBlocks = 128;
constexpr size_t kChains =
    2000;  // a million blocks, whose entries are in no cache when their turn comes again
constexpr auto kCallLimit = std::chrono::seconds(10);

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(status.error_message());
}

std::string Packed(std::span<const Digest> digests) {
  return {reinterpret_cast<const char*>(digests.data()), digests.size() * kDigestBytes};
}

// Seconds of one call, or its error.
template <class Call>
absl::StatusOr<double> Timed(Call call) {
  const double begin = SecondsNow();
  const absl::Status status = call();
  const double seconds = SecondsNow() - begin;
  LARDER_RETURN_IF_ERROR(status);
  return seconds;
}

// The server that all three measurements use.
struct Server {
  std::unique_ptr<TempDir> dir;
  std::unique_ptr<Child> process;
  std::unique_ptr<EchoClient> echo;
  std::shared_ptr<grpc::Channel> channel;
  uint64_t entries = 0;
  Digest seed;
};

absl::StatusOr<Attachment> AttachEngine(const Server& server) {
  SessionOptions options;
  options.engine_id = "bench";
  return AttachBench(server.dir->path(), ShapeNamed(kLookupShape), options);
}

absl::StatusOr<Server> StartServer(uint64_t entries) {
  Server server;
  server.entries = entries;
  LARDER_ASSIGN_OR_RETURN(server.dir, TempDir::Make());
  const auto program = std::filesystem::path(OwnProgram()).parent_path() / "bench_lookup_server";
  LARDER_ASSIGN_OR_RETURN(
      server.process, Child::Start({program.string(), server.dir->path(), absl::StrCat(entries)}));
  if (auto line = server.process->ReadLine(); !line.ok()) return line.status();
  LARDER_ASSIGN_OR_RETURN(server.echo,
                          EchoClient::Connect(absl::StrCat(server.dir->path(), "/echo.sock")));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(16 << 20);
  server.channel =
      grpc::CreateCustomChannel(absl::StrCat("unix:", server.dir->path(), "/data.sock"),
                                grpc::InsecureChannelCredentials(), arguments);
  // This session only registers and is dropped: its threads would share this process' poller with
  // the calls that are timed.
  LARDER_ASSIGN_OR_RETURN(const auto engine, AttachEngine(server));
  server.seed = engine.seed;
  return server;
}

class LookupCaller {
 public:
  explicit LookupCaller(const Server& server) : stub_(v1::Cache::NewStub(server.channel)) {
    request.mutable_content()->set_model(BenchContent().model);
  }
  // Fails if the answer does not cover all tokens of the request.
  absl::Status Call(uint32_t tokens) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    LARDER_RETURN_IF_ERROR(ToStatus(stub_->Lookup(&context, request, &reply)));
    const bool all = reply.instances_size() == 1 && reply.instances(0).tiers_size() == 1 &&
                     reply.instances(0).tiers(0).contiguous_tokens() == tokens;
    return all ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("lookup: ", reply.ShortDebugString()));
  }
  v1::LookupRequest request;
  v1::LookupReply reply;

 private:
  std::unique_ptr<v1::Cache::Stub> stub_;
};

absl::Status MeasureDigests(Harness& harness, const Server& server, bool scattered) {
  LookupCaller caller(server);
  // Made before the clock starts: if the client computed between its calls, the server would fall
  // asleep meanwhile, and the echo would not.
  std::vector<std::string> chains;
  const uint64_t apart =
      server.entries / kLookupDigests / kChains;  // chains from all over the index
  for (size_t c = 0; c < kChains; ++c)
    chains.push_back(PackedFillerChain(c * apart, server.entries, scattered));
  size_t turn = 0;
  const auto ours = [&]() -> absl::StatusOr<double> {
    caller.request.set_digests(chains[++turn % kChains]);
    return Timed([&] { return caller.Call(kLookupDigests * kStepTokens); });
  };
  if (auto first = ours(); !first.ok()) return first.status();
  server.echo->SetSizes(caller.request.ByteSizeLong(), caller.reply.ByteSizeLong());
  const auto floor = [&] { return Timed([&] { return server.echo->Call(); }); };
  LARDER_ASSIGN_OR_RETURN(const auto duel,
                          RunDuel(harness, harness.quick() ? 1000 : 3000, ours, floor));
  ReportDuel(harness, scattered ? kScattered : kByDigests, duel);
  harness.Note(absl::StrCat("among ", server.entries, " blocks; request ",
                            caller.request.ByteSizeLong(), " B, reply ",
                            caller.reply.ByteSizeLong(), " B"));
  return absl::OkStatus();
}

absl::Status MeasureTokens(Harness& harness, const Server& server) {
  LookupCaller caller(server);
  const std::vector<uint32_t> tokens = LookupTokens();
  caller.request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  const auto ours = [&] { return Timed([&] { return caller.Call(kLookupTokens); }); };
  if (auto first = ours(); !first.ok()) return first.status();
  server.echo->SetSizes(caller.request.ByteSizeLong(), caller.reply.ByteSizeLong());
  std::vector<Digest> chain;
  const auto floor = [&] {
    return Timed([&] {
      chain.clear();
      AppendChain(server.seed, tokens, &chain);
      return server.echo->Call();
    });
  };
  LARDER_ASSIGN_OR_RETURN(const auto duel,
                          RunDuel(harness, harness.quick() ? 100 : 300, ours, floor));
  ReportDuel(harness, kByTokens, duel);
  harness.Note(absl::StrCat("floor: echo + SHA-256 of the chain; request ",
                            caller.request.ByteSizeLong(), " B"));
  return absl::OkStatus();
}

// A session stream through gRPC's own client, so that both sides of the comparison make the same
// call.
class RawSession {
 public:
  static absl::StatusOr<std::unique_ptr<RawSession>> Attach(const Server& server) {
    LARDER_ASSIGN_OR_RETURN(
        auto sideband,
        SidebandClient::Connect(absl::StrCat(server.dir->path(), "/sideband.sock"), kCallLimit));
    std::unique_ptr<RawSession> session(new RawSession);
    session->sideband_ = std::move(sideband);
    session->context_.AddMetadata("larder-token", session->sideband_->TokenHex());
    session->stub_ = v1::Engine::NewStub(server.channel);
    session->stream_ = session->stub_->Attach(&session->context_);
    v1::Up up;
    up.mutable_hello()->set_engine_id("bench-raw");
    up.mutable_hello()->set_role(v1::ROLE_BOTH);
    up.mutable_hello()->set_write_mode(v1::WRITE_MODE_MAPPED);
    LARDER_RETURN_IF_ERROR(session->Exchange(up));
    v1::Up registers;
    v1::Register& part = *registers.add_registers();
    part.set_id(1);
    part.add_contents()->set_model(BenchContent().model);
    const VariantSpec spec = BenchVariant(ShapeNamed(kLookupShape));
    v1::Variant& variant = *part.add_variants();
    variant.set_dtype(spec.dtype);
    variant.set_layout(spec.layout);
    variant.set_ranks(spec.ranks);
    variant.set_block_tokens(spec.block_tokens);
    variant.set_layers(spec.layers);
    LARDER_RETURN_IF_ERROR(session->Exchange(registers));
    if (session->down.registered_size() != 1 || session->down.registered(0).variants_size() != 1) {
      return absl::InternalError(session->down.ShortDebugString());
    }
    session->variant_ = session->down.registered(0).variants(0);
    return session;
  }
  ~RawSession() {
    v1::Up bye;
    bye.set_bye(true);
    stream_->Write(bye);
    stream_->WritesDone();
    v1::Down rest;
    while (stream_->Read(&rest)) {
    }
    (void)stream_->Finish();
  }
  absl::Status Exchange(const v1::Up& message) {
    if (stream_->Write(message) && stream_->Read(&down)) return absl::OkStatus();
    return ToStatus(stream_->Finish());
  }
  // Takes a lease on all blocks and releases the previous one.
  absl::Status Acquire(const std::string& digests) {
    up.Clear();
    if (lease_ != 0) up.mutable_release()->add_lease_ids(lease_);
    v1::Acquire& acquire = *up.add_acquires();
    acquire.set_id(++id_);
    acquire.set_variant(variant_);
    acquire.set_digests(digests);
    acquire.set_what(v1::ACQUIRE_WHAT_BYTES);
    LARDER_RETURN_IF_ERROR(Exchange(up));
    const bool ok = down.grants_size() == 1 && down.grants(0).lease_id() != 0 &&
                    down.grants(0).offsets_size() == static_cast<int>(kAcquireBlocks);
    if (!ok) return absl::InternalError(absl::StrCat("acquire: ", down.ShortDebugString()));
    lease_ = down.grants(0).lease_id();
    return absl::OkStatus();
  }
  v1::Up up;
  v1::Down down;

 private:
  RawSession() = default;
  std::unique_ptr<SidebandClient> sideband_;
  std::unique_ptr<v1::Engine::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
  uint32_t variant_ = 0;
  uint64_t id_ = 1, lease_ = 0;
};

absl::Status PutBlocks(const Server& server, const Names& names) {
  LARDER_ASSIGN_OR_RETURN(auto engine, AttachEngine(server));
  const BlockShape& shape = ShapeNamed(kLookupShape);
  const Memory source(names.size() * shape.bytes(), Memory::Kind::kPrivate);
  return PutAll(engine,
                PlanPuts(shape, names, source.bytes(), ShuffledOrder(names.size(), 1)).blocks, {});
}

absl::Status MeasureAcquire(Harness& harness, const Server& server, const Names& names) {
  LARDER_ASSIGN_OR_RETURN(auto raw, RawSession::Attach(server));
  const std::string digests = Packed(names.digests);
  const auto ours = [&] { return Timed([&] { return raw->Acquire(digests); }); };
  for (int i = 0; i < 2; ++i) {  // the second call also carries a release
    if (auto one = ours(); !one.ok()) return one.status();
  }
  const size_t up_bytes = raw->up.ByteSizeLong(), down_bytes = raw->down.ByteSizeLong();
  server.echo->SetSizes(up_bytes, down_bytes);
  const auto floor = [&] { return Timed([&] { return server.echo->StreamPing(); }); };
  LARDER_ASSIGN_OR_RETURN(const auto duel,
                          RunDuel(harness, harness.quick() ? 1000 : 3000, ours, floor));
  ReportDuel(harness, kAcquire, duel);
  harness.Note(absl::StrCat("gRPC's own client; up ", up_bytes, " B, down ", down_bytes, " B"));
  return absl::OkStatus();
}

// The same through liblarder_client: message conversion, waiting for the answer, mapped views.  Its
// session uses a session socket.  One floor is an echo over gRPC, which the session would use
// otherwise; the other is the least that two processes can do, an echo on a bare socket.
absl::Status MeasureAcquireByClient(Harness& harness, const Server& server, const Names& names) {
  LARDER_ASSIGN_OR_RETURN(auto engine, AttachEngine(server));
  const auto ours = [&] {
    return Timed([&]() -> absl::Status {
      LARDER_ASSIGN_OR_RETURN(auto lease, engine.session->Acquire(engine.variant, names.digests));
      return lease.View(names.size() - 1).empty() ? absl::InternalError("an empty view")
                                                  : absl::OkStatus();
    });
  };
  const size_t bytes = names.size() * kDigestBytes;
  server.echo->SetSizes(bytes, bytes);
  LARDER_ASSIGN_OR_RETURN(
      auto bare,
      SocketEchoClient::Connect(absl::StrCat(server.dir->path(), "/bare.sock"), bytes, bytes));
  const auto floor = [&] { return Timed([&] { return server.echo->StreamPing(); }); };
  const auto bare_floor = [&] { return Timed([&] { return bare->Ping(); }); };
  const int calls = harness.quick() ? 1000 : 3000;
  if (harness.Wants(kAcquireClient)) {
    LARDER_ASSIGN_OR_RETURN(const auto duel, RunDuel(harness, calls, ours, floor));
    ReportDuel(harness, kAcquireClient, duel);
    harness.Note(
        "through liblarder_client, with views, some of which are checked by the daemon's policy; "
        "floor: over gRPC");
  }
  if (!harness.Wants(kAcquireBare)) return absl::OkStatus();
  LARDER_ASSIGN_OR_RETURN(const auto duel, RunDuel(harness, calls, ours, bare_floor));
  ReportDuel(harness, kAcquireBare, duel);
  harness.Note(
      "the same; floor: an echo on a bare UNIX socket, both ends spinning before they sleep");
  return absl::OkStatus();
}

absl::Status Run(Harness& harness) {
  LARDER_ASSIGN_OR_RETURN(auto server, StartServer(harness.quick() ? 1'000'000 : 10'000'000));
  for (const bool scattered : {false, true}) {
    if (!harness.Wants(scattered ? kScattered : kByDigests)) continue;
    LARDER_RETURN_IF_ERROR(MeasureDigests(harness, server, scattered));
  }
  if (harness.Wants(kByTokens)) {
    LARDER_RETURN_IF_ERROR(MeasureTokens(harness, server));
  }
  const bool by_client = harness.Wants(kAcquireClient) || harness.Wants(kAcquireBare);
  if (!harness.Wants(kAcquire) && !by_client) return absl::OkStatus();
  const Names names = MakeNames(server.seed, 1, kAcquireBlocks);
  LARDER_RETURN_IF_ERROR(PutBlocks(server, names));
  if (harness.Wants(kAcquire)) {
    LARDER_RETURN_IF_ERROR(MeasureAcquire(harness, server, names));
  }
  return by_client ? MeasureAcquireByClient(harness, server, names) : absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(
      argc, argv,
      WithP99({kByDigests, kScattered, kByTokens, kAcquire, kAcquireClient, kAcquireBare}));
  if (harness.done()) return *harness.done();
  const absl::Status status = Run(harness);
  return status.ok() ? 0 : harness.Fail(status);
}
