// Attacks with gRPC calls that need no session: stalled byte streams, heads without bytes, blocks
// under names of other engines, blocks with more metadata than bytes, watchers that do not read,
// pins.
#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "tests/e2e/attacks/attacker_tools.h"

namespace larder::e2e {
namespace {

// Opens a stream, sends one block's head, and waits until the daemon ends the call.
void StandStill(Attack& attack, const BlockMaker& maker, uint32_t number, uint32_t layer_bytes) {
  grpc::ClientContext context;
  context.set_deadline(NextYear());
  v1::StoreBlocksReply reply;
  const auto stub = v1::Engine::NewStub(attack.Channel());
  const auto stream = stub->StoreBlocks(&context, &reply);
  stream->Write(HeadOf(maker, maker.Block(number), layer_bytes, "attacker"));
  attack.tally.Done();
  const grpc::Status status = stream->Finish();
  attack.tally.Refused(status.ok() ? reply.message() : status.error_message());
  Pause(20);
}

void IdleByteStreams(Attack& attack) {
  const BlockMaker maker = MakerOf("attacker");
  OnThreads(64, [&](int i) { StandStill(attack, maker, 1'000 + static_cast<uint32_t>(i), 4'096); });
}

// Sends heads of blocks that together fill the pool, and no bytes of them.
void StoreHeads(Attack& attack) {
  const BlockMaker maker = MakerOf("attacker");
  OnThreads(16,
            [&](int i) { StandStill(attack, maker, 2'000 + static_cast<uint32_t>(i), 2 << 20); });
}

// Stores other bytes under the names of a victim's blocks, first of all the cold ones.
void Overwrite(Attack& attack) {
  const std::vector<BlockMaker> makers = {MakerOf("mapped"), MakerOf("staged")};
  for (int turn = 0; turn < 2'000; ++turn) {
    for (const BlockMaker& maker : makers) {
      StoreOwn(attack, maker, kColdBegin, kColdBegin + kColdBlocks, kWrittenLayerBytes);
      StoreOwn(attack, maker, 0, kHotBlocks, kWrittenLayerBytes);
    }
    Pause(20);
  }
}

// Stores blocks that need one page of memory and have 4,096 token ids each.
void Metadata(Attack& attack) {
  BlockMaker maker = MakerOf("attacker");
  maker.variant.block_tokens = 4'096;
  maker.variant.layers = 1;
  OnThreads(2, [&](int thread) {
    static std::atomic<uint32_t> next{0};
    grpc::ClientContext context;
    v1::StoreBlocksReply reply;
    const auto stub = v1::Engine::NewStub(attack.Channel());
    const auto stream = stub->StoreBlocks(&context, &reply);
    static_cast<void>(thread);
    for (uint32_t i = 0; i < 1'000; ++i) {
      TestBlock block{.digest = {}, .parent = maker.content.Id(), .tokens = {}};
      block.tokens.assign(4'096, ++next);
      block.digest = Chain(block.parent, block.tokens).back();
      v1::StoreBlocksRequest request = HeadOf(maker, block, 64, "attacker");
      if (i != 0) {
        request.clear_content();
        request.clear_variant();
        request.clear_engine_id();
      }
      std::string data(64, '\0');
      FillWritten(kAttackersNonce, block.digest, 0, std::as_writable_bytes(std::span(data)));
      request.set_data(data);
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    if (!status.ok()) {
      attack.tally.Refused(status.error_message());
      Pause(20);
    }
    for (const int answer : reply.status()) {
      if (answer == v1::BLOCK_STATUS_OK) attack.tally.Done();
    }
    if (!reply.message().empty()) attack.tally.Refused(reply.message());
  });
}

// Watches all events and reads none of them.
void Watchers(Attack& attack) {
  struct Watcher {
    grpc::ClientContext context;
    std::unique_ptr<v1::Cache::Stub> stub;
    std::unique_ptr<grpc::ClientReader<v1::WatchEventsReply>> stream;
  };
  v1::WatchEventsRequest request;
  request.set_snapshot(true);
  request.set_with_tokens(true);
  for (int turn = 0; turn < 100; ++turn) {
    std::vector<std::unique_ptr<Watcher>> watchers;
    std::shared_ptr<grpc::Channel> channel;
    for (int i = 0; i < 512; ++i) {
      if (i % 32 == 0) channel = attack.Channel();
      auto& watcher = watchers.emplace_back(std::make_unique<Watcher>());
      watcher->context.set_deadline(NextYear());
      watcher->stub = v1::Cache::NewStub(channel);
      watcher->stream = watcher->stub->WatchEvents(&watcher->context, request);
      attack.tally.Done();
    }
    Pause(2'000);
    // The last one shows whether watchers are refused; then all are cancelled.
    v1::WatchEventsReply reply;
    if (!watchers.back()->stream->Read(&reply))
      attack.tally.Refused(watchers.back()->stream->Finish().error_message());
    for (const auto& watcher : watchers) watcher->context.TryCancel();
  }
}

// Pins the hot blocks under ever new owners, for the longest time.
void Pins(Attack& attack) {
  const BlockMaker maker = MakerOf("mapped");
  const auto channel = attack.Channel();
  const std::string digests = HotDigests(maker, kHotBlocks);
  static std::atomic<int> owners{0};
  OnThreads(4, [&](int) {
    v1::PinRequest request;
    request.mutable_blocks()->set_digests(digests);
    request.set_owner("attacker-" + std::to_string(++owners));
    request.set_tier(owners % 2 == 0 ? v1::TIER_HOST : v1::TIER_DISK);
    request.set_ttl_ms(2'592'000'000);
    grpc::ClientContext context;
    context.set_deadline(NextYear());
    v1::PinReply reply;
    const grpc::Status status = v1::Cache::NewStub(channel)->Pin(&context, request, &reply);
    if (!status.ok()) {
      attack.tally.Refused(status.error_message());
      Pause(5);
      return;
    }
    for (const int answer : reply.blocks().status()) {
      if (answer == v1::BLOCK_STATUS_OK) {
        attack.tally.Done();
      } else {
        attack.tally.Refused("status " + std::to_string(answer));
      }
    }
  });
}

}  // namespace

std::vector<NamedAttack> StreamAttacks() {
  return {{"idle_byte_streams", IdleByteStreams},
          {"store_heads", StoreHeads},
          {"overwrite", Overwrite},
          {"metadata", Metadata},
          {"watchers", Watchers},
          {"pins", Pins}};
}

}  // namespace larder::e2e
