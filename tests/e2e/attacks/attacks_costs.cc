// Attacks on the daemon's processor and memory: messages that are within every share and cheap to
// send, but costly to handle.
#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "tests/e2e/attacks/attacker_tools.h"
#include "tests/e2e/support/open_call.h"
#include "tests/server/grpc/http2_frames.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kHourMs = 600'000;
constexpr int kPartsMax = 64;

// A session on a session socket, registered with the content and variant of a victim.
struct Caller {
  std::unique_ptr<SidebandClient> sideband;
  std::unique_ptr<RawSession> session;
};
Caller Call(Attack& attack, const BlockMaker& maker) {
  for (;;) {
    Caller caller{.sideband = Handshake(attack), .session = nullptr};
    if (caller.sideband != nullptr)
      caller.session = AttachBySocket(attack, *caller.sideband, "attacker");
    if (caller.session != nullptr && RegisterOf(attack, *caller.session, maker)) return caller;
    Pause(100);
  }
}

// Sends the message as fast as the daemon accepts it, while another thread reads the answers.
void Flood(Attack& attack, RawSession& session, const v1::Up& up) {
  std::thread reader([&session] {
    while (session.Receive()) {
    }
  });
  while (session.Send(up)) attack.tally.Done();
  reader.join();
  attack.tally.Refused(session.End().error_message());
}

// Registers 1,000 variants once, and then sends empty registrations, 64 in each message.
void EmptyRegisters(Attack& attack) {
  const Caller caller = Call(attack, MakerOf("attacker"));
  v1::Up much;
  v1::Register* const request = much.add_registers();
  request->set_id(1);
  for (uint32_t i = 0; i < 1'000; ++i) {
    v1::Variant* const variant = request->add_variants();
    wire::Encode(MakerOf("attacker").variant, variant);
    variant->set_group("g" + std::to_string(i));
  }
  static_cast<void>(caller.session->Ask(much));
  v1::Up up;
  for (int i = 0; i < kPartsMax; ++i) up.add_registers()->set_id(static_cast<uint64_t>(i) + 2);
  Flood(attack, *caller.session, up);
}

// Cancels requests that were never made, in a session with thousands of leases.
void Cancels(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  const Caller caller = Call(attack, maker);
  for (uint64_t id = 1; id <= 4'000;) {
    v1::Up up;
    for (int i = 0; i < kPartsMax; ++i) {
      v1::Acquire* const acquire = up.add_acquires();
      acquire->set_id(id++);
      acquire->set_digests(Packed(maker.Block(0).digest));
      acquire->set_what(v1::ACQUIRE_WHAT_PROMISE);
      acquire->set_deadline_ms(kHourMs);
    }
    const auto down = caller.session->Ask(up);
    if (!down) break;
    attack.tally.Done(kPartsMax);
  }
  v1::Up up;
  for (int i = 0; i < kPartsMax; ++i)
    up.add_cancels()->set_id(1'000'000 + static_cast<uint64_t>(i));
  Flood(attack, *caller.session, up);
}

// Registers a victim's content and variant under thousands of engine ids, so that every lookup of
// that content has to consider all of them.
void NamedEngines(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  for (uint32_t i = 0; i < 4'000; ++i) {
    const auto session = AttachByGrpc(attack, "attacker-" + std::to_string(i));
    if (session != nullptr && RegisterOf(attack, *session, maker)) {
      attack.tally.Done();
      session->Bye();
    } else {
      Pause(20);
    }
  }
}

// Many sessions, without waiting for answers, acquire copies of one block, as often as a message
// can name it, into the same staging segment.
void SameKeys(Attack& attack) {
  constexpr uint64_t kSegment = 16 << 20;
  const BlockMaker maker = MakerOf("mapped");
  RawSideband staging(attack);
  const std::string packet = RawSideband::Packet(26, kSegment);  // FrameType::kMakeStaging
  const auto made = staging.Ask(std::as_bytes(std::span(packet)));
  uint32_t id = 0;
  if (made && made->size >= kFrameHeaderBytes + sizeof id)
    std::memcpy(&id, made->data.data() + kFrameHeaderBytes, sizeof id);
  v1::Up up;
  v1::Acquire* const acquire = up.add_acquires();
  std::string digests;
  for (int i = 0; i < 2'000; ++i) digests += Packed(maker.Block(0).digest);
  acquire->set_digests(digests);
  acquire->set_what(v1::ACQUIRE_WHAT_BYTES);
  acquire->set_deadline_ms(kHourMs);
  acquire->set_staging_id(id);
  acquire->set_staging_bytes(kSegment);
  OnThreads(32, [&](int) {
    const Caller caller = Call(attack, maker);
    v1::Up mine = up;
    for (uint64_t request = 1;; ++request) {
      mine.mutable_acquires(0)->set_id(request);
      if (!caller.session->Send(mine)) break;
      attack.tally.Done();
    }
    attack.tally.Refused(caller.session->End().error_message());
  });
}

// Asks for descriptors on the sideband repeatedly and reads no answer.
void UnreadAnswers(Attack& attack) {
  const Caller caller = Call(attack, MakerOf("attacker"));
  const std::string packet = RawSideband::Packet(16, 0);  // FrameType::kOpenSession
  std::vector<std::unique_ptr<RawSideband>> held;
  for (int i = 0;; ++i) {
    auto sideband = std::make_unique<RawSideband>(attack);
    if (!*sideband) {
      Pause(20);
      continue;
    }
    while (sideband->Say(std::as_bytes(std::span(packet).first(kFrameHeaderBytes)))) {
      attack.tally.Done();
      Pause(1);
    }
    attack.tally.Refused("closed by the daemon");
    if (held.size() < 8) held.push_back(std::move(sideband));
  }
}

// Sends a message of 16 MiB that consists of millions of empty parts.
void EmptyParts(Attack& attack) {
  constexpr size_t kBytes = 16 << 20;
  std::string body;
  body.reserve(kBytes);
  // An empty part of field "aborts": the field's tag and a length of 0.
  v1::Up one;
  one.add_aborts();
  const std::string part = one.SerializeAsString();
  while (body.size() + part.size() <= kBytes) body += part;
  const auto header = EncodeSessionFrameHeader(SessionFrameType::kMessage, body.size());
  const std::string frame = std::string(header.data(), header.size()) + body;
  OnThreads(4, [&](int thread) {
    if (thread % 2 == 0) {
      const auto sideband = Handshake(attack);
      if (sideband == nullptr) return Pause(100);
      auto socket = sideband->OpenSession();
      if (!socket.ok()) return Pause(100);
      RawSocket raw(*std::move(socket));
      v1::Up hello;
      hello.mutable_hello()->set_engine_id("attacker");
      v1::Down down;
      if (raw.Write(hello) && raw.Read(&down) && raw.WriteBytes(frame)) attack.tally.Done();
      while (raw.Read(&down)) {
      }
    } else {
      const auto session = AttachByGrpc(attack, "attacker");
      if (session == nullptr) return Pause(100);
      v1::Up up;
      for (int i = 0; i < 200'000; ++i) up.add_aborts();
      if (session->Send(up)) attack.tally.Done();
      attack.tally.Refused(session->End().error_message());
    }
    Pause(20);
  });
}

// Sends requests of 15 MiB that would take half a GiB if they were parsed, to methods of all kinds.
// Another thread makes calls whose answers of a MiB it does not read, as many as the daemon begins.
void HeavyRequests(Attack& attack) {
  constexpr size_t kBytes = 15 << 20;
  std::string nothing = "\x73";  // field 14, a group with empty fields, which no message has
  nothing.reserve(kBytes);
  while (nothing.size() + 3 <= kBytes) nothing.append("\x0a\x00", 2);
  nothing += "\x74";
  v1::PrefetchRequest prefetch;
  wire::Encode(MakerOf("mapped").content, prefetch.mutable_blocks()->mutable_content());
  for (uint32_t i = 0; i < 1 << 20; ++i) prefetch.mutable_blocks()->add_tokens(i);
  const std::string unread = prefetch.SerializeAsString();
  OnThreads(5, [&](int thread) {
    constexpr std::array<const char*, 4> kMethods = {
        "/larder.v1.Cache/Lookup", "/larder.v1.Cache/Pin", "/larder.v1.Engine/FetchBlocks",
        "/larder.v1.Engine/StoreBlocks"};
    const bool reads = thread < 4;
    std::vector<std::unique_ptr<OpenCall>> calls;
    const auto channel = ChannelThatTakesLittle(attack.data());
    for (int i = 0; i < (reads ? 4 : 128); ++i) {
      calls.push_back(std::make_unique<OpenCall>(
          channel, reads ? kMethods[static_cast<size_t>(thread)] : "/larder.v1.Cache/Prefetch",
          reads ? nothing : unread));
      attack.tally.Done();
    }
    for (const auto& call : calls) {
      if (!reads) continue;
      const grpc::Status status = call->End();
      if (!status.ok()) attack.tally.Refused(status.error_message());
    }
    if (!reads) Pause(2'000);
  });
}

// Opens connections that end as soon as they have sent a call, forever.
[[noreturn]] void ComeAndGo(Attack& attack) {
  const grpc::Slice short_one("x");  // no valid message
  for (;;) {
    const auto channel = attack.Channel();
    (void)OpenCall(channel, "/larder.v1.Cache/Lookup", short_one, OpenCall::Options()).End();
    attack.tally.Done();
  }
}

// Sends long messages in hundreds of calls and streams at once on a few connections, so that of
// most messages only a part has arrived (server/grpc/incoming_messages.h).  Meanwhile other
// connections come and go: to free memory for requests, gRPC writes to a connection that has ended
// (server/grpc/freed_endpoints.h).
void PartialRequests(Attack& attack) {
  // Most are single calls, because there are few slots for streams.
  constexpr const char* kLookup = "/larder.v1.Cache/Lookup";
  constexpr const char* kMethods[] = {kLookup,
                                      kLookup,
                                      kLookup,
                                      kLookup,
                                      "/larder.v1.Engine/StoreBlocks",
                                      "/larder.v1.Engine/Attach"};
  constexpr int kComing = 2;
  const grpc::Slice long_one(std::string(15 << 20, '\x0a'));
  OnThreads(kComing + static_cast<int>(std::size(kMethods)), [&](int number) {
    if (number < kComing) ComeAndGo(attack);
    std::vector<std::unique_ptr<OpenCall>> calls;
    const auto channel = attack.Channel();
    for (int i = 0; i < 128; ++i) {
      calls.push_back(std::make_unique<OpenCall>(channel, kMethods[number - kComing], long_one,
                                                 OpenCall::Options{.await_sent = false}));
      attack.tally.Done();
    }
    for (const auto& call : calls) {
      const grpc::Status status = call->End();
      if (!status.ok()) attack.tally.Refused(status.error_message());
    }
  });
}

// Sends frames that no gRPC client sends: small pieces of a message, each together with many bytes
// that gRPC skips, so that a piece keeps all bytes that were read with it; and endless headers.
void OddFrames(Attack& attack) {
  const std::string begun = std::string(kClientPreface) + Http2Frame(kSettingsFrame, 0, 0, "");
  const std::string call = CallHeaders("/larder.v1.Cache/Lookup");
  const std::string part(16'000, 'x');
  constexpr uint8_t kUnknown = 99;
  const std::string first =
      begun + Http2Frame(kHeadersFrame, kEndHeadersFlag, 1, call) +
      Http2Frame(kDataFrame, 0, 1, Prefixed(std::string(15 << 20, 'm')).substr(0, 5));
  const std::string skipped = Http2Frame(kUnknown, 0, 0, part);
  const std::string piece =
      Http2Frame(kDataFrame, 0, 1, std::string(24, 'm')) + skipped + skipped + skipped + skipped;
  // A field whose name and value have a GiB each, encoded as in RFC 7541, section 5.1.
  const std::string long_field = std::string(1, '\0') + "\x7f\x81\xff\xff\xff\x03";
  const std::string endless = begun + Http2Frame(kHeadersFrame, 0, 1, call + long_field);
  const std::string more_headers = Http2Frame(kContinuationFrame, 0, 1, part);
  OnThreads(4, [&](int number) {
    const bool headers = number == 0;
    const FileDescriptor socket = ConnectTo(attack.data(), SOCK_STREAM);
    (void)fcntl(socket.get(), F_SETFL, 0);  // blocking, so that send waits for the daemon
    const auto put = [&socket](const std::string& bytes) {
      return send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
    };
    bool goes_on = put(headers ? endless : first);
    for (; goes_on; attack.tally.Done()) goes_on = put(headers ? more_headers : piece);
    attack.tally.Refused("the daemon has closed the connection");
  });
}

}  // namespace

std::vector<NamedAttack> CostAttacks() {
  return {{"empty_registers", EmptyRegisters},
          {"cancels", Cancels},
          {"named_engines", NamedEngines},
          {"same_keys", SameKeys},
          {"unread_answers", UnreadAnswers},
          {"empty_parts", EmptyParts},
          {"heavy_requests", HeavyRequests},
          {"partial_requests", PartialRequests},
          {"odd_frames", OddFrames}};
}

}  // namespace larder::e2e
