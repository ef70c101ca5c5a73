#include "tests/e2e/attacks/attacker_tools.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/convert/convert.h"
#include "proto/frames/sideband_packet.h"

namespace larder::e2e {

std::shared_ptr<grpc::Channel> Attack::Channel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel("unix:" + data(), grpc::InsecureChannelCredentials(), arguments);
}

FileDescriptor ConnectTo(const std::string& path, int type) {
  FileDescriptor fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  return fd;
}

FileDescriptor LingeringSocket() {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  const int small = 4096;
  setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
    return {};
  FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return {};
  FileDescriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  static_cast<void>(peer.Release());
  const linger slow{.l_onoff = 1, .l_linger = 15};
  setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &slow, sizeof slow);
  fcntl(client.get(), F_SETFL, O_NONBLOCK);
  const std::vector<char> bytes(1 << 16);
  while (send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
  }
  fcntl(client.get(), F_SETFL, 0);  // the close of a non-blocking socket would not wait
  return client;
}

bool SendWith(int socket, std::span<const std::byte> bytes, int descriptor) {
  return SendPacket(socket, bytes, {.descriptor = descriptor, .credentials = false}) ==
         SendResult::kSent;
}

std::unique_ptr<SidebandClient> Handshake(Attack& attack) {
  auto sideband = SidebandClient::Connect(attack.sideband(), std::chrono::seconds(10));
  if (!sideband.ok()) {
    attack.tally.Refused(sideband.status().ToString());
    return nullptr;
  }
  return *std::move(sideband);
}

RawSideband::RawSideband(Attack& attack)
    : attack_(attack), socket_(ConnectTo(attack.sideband(), SOCK_SEQPACKET)) {
  const auto challenge = Ask(EncodeFrame(HelloFrame{}).bytes());
  if (!challenge) return;
  const auto frame = DecodeFrame(challenge->bytes());
  const auto* asked = frame.ok() ? std::get_if<ChallengeFrame>(&*frame) : nullptr;
  if (asked == nullptr ||
      !Ask(EncodeFrame(ChallengeReplyFrame{.nonce = asked->nonce}).bytes(), {.credentials = true}))
    socket_ = FileDescriptor();
}

std::optional<ReceivedPacket> RawSideband::Ask(std::span<const std::byte> bytes,
                                               const SendExtras& extras) {
  ReceivedPacket packet;
  pollfd look{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (!socket_ || SendPacket(socket_.get(), bytes, extras) != SendResult::kSent ||
      poll(&look, 1, 10'000) != 1 ||
      ReceivePacket(socket_.get(), packet) != ReceiveResult::kPacket) {
    attack_.tally.Refused("the sideband closed");
    socket_ = FileDescriptor();
    return std::nullopt;
  }
  const auto frame = DecodeFrame(packet.bytes());
  if (frame.ok() && std::holds_alternative<ErrorFrame>(*frame)) {
    attack_.tally.Refused(std::get<ErrorFrame>(*frame).text);
    return std::nullopt;
  }
  return packet;
}

bool RawSideband::Say(std::span<const std::byte> bytes) {
  return socket_ && SendPacket(socket_.get(), bytes, {.credentials = true}) == SendResult::kSent;
}

std::string RawSideband::Packet(uint16_t type, uint64_t number) {
  std::string packet(kFrameHeaderBytes + sizeof number, '\0');
  const uint32_t length = sizeof number;
  std::memcpy(packet.data(), &type, sizeof type);
  std::memcpy(packet.data() + 2, &kSidebandVersion, sizeof kSidebandVersion);
  std::memcpy(packet.data() + 4, &length, sizeof length);
  std::memcpy(packet.data() + kFrameHeaderBytes, &number, sizeof number);
  return packet;
}

namespace {

// Without these, the daemon takes it for an older client and has it stream its bytes.
constexpr uint64_t kAllFeatures = wire::kFeatureTiers | wire::kFeatureCodecs |
                                  wire::kFeatureDeviceBlocks | wire::kFeatureDirectives |
                                  wire::kFeatureCopiedReads;

std::unique_ptr<RawSession> Attached(Attack& attack, std::unique_ptr<RawSession> session) {
  if (session->attached().session_id() != 0) return session;
  attack.tally.Refused(session->End().error_message());
  return nullptr;
}

}  // namespace

std::unique_ptr<RawSession> AttachBySocket(Attack& attack, SidebandClient& sideband,
                                           const std::string& engine_id) {
  auto socket = sideband.OpenSession();
  if (!socket.ok()) {
    attack.tally.Refused(socket.status().ToString());
    return nullptr;
  }
  return Attached(attack,
                  std::make_unique<RawSession>(std::make_unique<RawSocket>(*std::move(socket)),
                                               RawSession::Options{.engine_id = engine_id,
                                                                   .mode = v1::WRITE_MODE_STAGED,
                                                                   .feature_bits = kAllFeatures}));
}

std::unique_ptr<RawSession> AttachByGrpc(Attack& attack, const std::string& engine_id) {
  return Attached(attack, std::make_unique<RawSession>(
                              attack.Channel(), RawSession::Options{.engine_id = engine_id,
                                                                    .feature_bits = kAllFeatures}));
}

bool RegisterOf(Attack& attack, RawSession& session, const BlockMaker& maker) {
  v1::Up up;
  v1::Register* request = up.add_registers();
  request->set_id(1);
  wire::Encode(maker.content, request->add_contents());
  wire::Encode(maker.variant, request->add_variants());
  const std::optional<v1::Down> down = session.Ask(up);
  if (!down || down->registered_size() != 1) return false;
  if (down->registered(0).status() == v1::BLOCK_STATUS_OK) return true;
  attack.tally.Refused(down->registered(0).message());
  return false;
}

v1::StoreBlocksRequest HeadOf(const BlockMaker& maker, const TestBlock& block, uint32_t layer_bytes,
                              const std::string& engine_id) {
  v1::StoreBlocksRequest request;
  wire::Encode(maker.content, request.mutable_content());
  wire::Encode(maker.variant, request.mutable_variant());
  request.set_engine_id(engine_id);
  v1::StoreBlock* head = request.mutable_block();
  head->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
  SegmentTable table = UniformTable(maker.variant.layers, layer_bytes);
  std::vector<std::byte> bytes(layer_bytes);
  for (uint32_t layer = 0; layer < maker.variant.layers; ++layer) {
    FillWritten(kAttackersNonce, block.digest, layer, bytes);
    table.segments[layer].xxh3 = HashBytes(bytes);
  }
  table.hashed = true;
  wire::Encode(table, head->mutable_segments());
  return request;
}

void StoreOwn(Attack& attack, const BlockMaker& maker, uint32_t from, uint32_t to,
              uint32_t layer_bytes) {
  grpc::ClientContext context;
  v1::StoreBlocksReply reply;
  const auto stub = v1::Engine::NewStub(attack.Channel());
  const auto stream = stub->StoreBlocks(&context, &reply);
  for (uint32_t number = from; number < to; ++number) {
    const TestBlock block = maker.Block(number);
    v1::StoreBlocksRequest request = HeadOf(maker, block, layer_bytes, "attacker");
    if (number != from) {
      request.clear_content();
      request.clear_variant();
      request.clear_engine_id();
    }
    std::string data(layer_bytes, '\0');
    for (uint32_t layer = 0; layer < maker.variant.layers; ++layer) {
      FillWritten(kAttackersNonce, block.digest, layer, std::as_writable_bytes(std::span(data)));
      request.set_data(data);
      if (!stream->Write(request)) break;
      request.Clear();
    }
  }
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return attack.tally.Refused(status.error_message());
  for (const int answer : reply.status()) {
    if (answer == v1::BLOCK_STATUS_OK) {
      attack.tally.Done();
    } else {
      attack.tally.Refused("status " + std::to_string(answer) + " " + reply.message());
    }
  }
}

std::chrono::system_clock::time_point NextYear() {
  return std::chrono::system_clock::now() + std::chrono::hours(365 * 24);
}

void OnThreads(int count, const std::function<void(int)>& call) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([i, &call] {
      for (;;) call(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string HotDigests(const BlockMaker& maker, uint32_t count) {
  std::string digests;
  for (uint32_t i = 0; i < count; ++i) digests += Packed(maker.Block(i).digest);
  return digests;
}

}  // namespace larder::e2e
