#include "tests/e2e/attacks/router.h"

#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "larder/v1/cache.grpc.pb.h"
#include "larder/v1/engine.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/mutex.h"
#include "tests/e2e/attacks/bystander_record.h"
#include "tests/e2e/attacks/written_blocks.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{4};
constexpr milliseconds kConnectPause{40};
constexpr std::chrono::seconds kDeadline{10};
constexpr int64_t kBringNs = 2'000'000'000;
constexpr int kFailed = -1;

class Router {
 public:
  Router(const std::string& dir, const volatile std::sig_atomic_t& end_asked)
      : path_(ControlSocketIn(dir)), data_(dir + "/data.sock"), end_asked_(end_asked) {}

  int Run() {
    channel_ = Connect(path_);
    data_channel_ = Connect(data_);
    Emit(Op::kReady, Outcome::kOk, NowNs());
    std::thread watcher([this] { Watch(); });
    std::thread newcomer([this] { ComeAgain(); });
    for (uint64_t turn = 0; !ending(); ++turn) {
      if (turn % 16 == 15) {
        PinAndUnpin();
      } else if (turn % 16 == 7) {
        Fetch();
      } else {
        const int64_t begin = NowNs();
        LookUp(channel_, Op::kLookup, begin);
      }
      std::this_thread::sleep_for(kPause);
    }
    newcomer.join();
    {
      const MutexLock lock(mu_);
      if (watching_ != nullptr) watching_->TryCancel();
    }
    watcher.join();
    return 0;
  }

 private:
  [[nodiscard]] bool ending() const { return end_asked_ != 0; }
  [[nodiscard]] static std::shared_ptr<grpc::Channel> Connect(const std::string& path) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
  }
  static void Limit(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  }

  // Looks up one hot block of a victim.  It must be found, and not in the engine's device memory,
  // where only an attacker would report it.
  void LookUp(const std::shared_ptr<grpc::Channel>& channel, Op op, int64_t begin) {
    thread_local std::mt19937 random{std::random_device()()};
    const std::string role = random() % 2 == 0 ? "mapped" : "staged";
    const BlockMaker maker = MakerOf(role);
    v1::LookupRequest request;
    wire::Encode(maker.content, request.mutable_content());
    const TestBlock block = maker.Block(static_cast<uint32_t>(random() % kHotBlocks));
    request.mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
    request.set_engine_id(EngineOf(role));
    grpc::ClientContext context;
    Limit(context);
    v1::LookupReply reply;
    const grpc::Status status = v1::Cache::NewStub(channel)->Lookup(&context, request, &reply);
    if (!status.ok()) return Emit(op, Outcome::kFailed, begin, status.error_message());
    bool found = false;
    for (const v1::InstanceHit& hit : reply.instances()) {
      for (const v1::TierHit& tier : hit.tiers()) {
        if (tier.tier() == v1::TIER_DEVICE)
          return Emit(op, Outcome::kWrong, begin,
                      "the look-up lists a block in DEVICE that the victim never had there");
        found = found || tier.contiguous_tokens() > 0;
      }
    }
    if (!found) return Emit(op, Outcome::kMissed, begin, "the look-up finds nothing");
    Emit(op, Outcome::kOk, begin);
  }
  void ComeAgain() {
    while (!ending()) {
      const int64_t begin = NowNs();
      LookUp(Connect(path_), Op::kConnect, begin);
      std::this_thread::sleep_for(kConnectPause);
    }
  }
  // Reads a block as an engine without a sideband does: from HOST, after a prefetch if it is not
  // there.
  void Fetch() {
    const BlockMaker maker = MakerOf("mapped");
    const int64_t begin = NowNs();
    int answer = FetchOnce(maker, begin);
    const int64_t until = begin + kBringNs;
    while (answer == v1::BLOCK_STATUS_MISSING && NowNs() < until) {
      v1::PrefetchRequest request;
      request.mutable_blocks()->set_digests(Packed(maker.Block(0).digest));
      request.set_ttl_ms(1'000);
      grpc::ClientContext context;
      Limit(context);
      v1::PrefetchReply reply;
      static_cast<void>(v1::Cache::NewStub(data_channel_)->Prefetch(&context, request, &reply));
      answer = FetchOnce(maker, begin);
    }
    if (answer == kFailed) return;  // FetchOnce has written the record
    if (answer != v1::BLOCK_STATUS_OK)
      return Emit(Op::kFetch, Outcome::kMissed, begin, "fetch: status " + std::to_string(answer));
    Emit(Op::kFetch, Outcome::kOk, begin);
  }
  // Returns the block's status, or kFailed after writing a record of the failure.
  int FetchOnce(const BlockMaker& maker, int64_t begin) {
    v1::FetchBlocksRequest request;
    wire::Encode(maker.variant, request.mutable_variant());
    request.set_digests(Packed(maker.Block(0).digest));
    grpc::ClientContext context;
    Limit(context);
    const auto stub = v1::Engine::NewStub(data_channel_);
    const auto stream = stub->FetchBlocks(&context, request);
    v1::FetchBlocksReply reply;
    int answer = 0;
    while (stream->Read(&reply)) {
      if (reply.has_start()) answer = reply.start().status();
    }
    const grpc::Status status = stream->Finish();
    if (status.ok()) return answer;
    Emit(Op::kFetch, Outcome::kFailed, begin, status.error_message());
    return kFailed;
  }
  void PinAndUnpin() {
    const BlockMaker maker = MakerOf("mapped");
    std::string digests;
    for (uint32_t i = 0; i < 4; ++i) digests += Packed(maker.Block(i).digest);
    const int64_t begin = NowNs();
    const auto stub = v1::Cache::NewStub(channel_);
    {
      v1::PinRequest request;
      request.mutable_blocks()->set_digests(digests);
      request.set_owner("router");
      request.set_tier(v1::TIER_HOST);
      request.set_ttl_ms(60'000);
      grpc::ClientContext context;
      Limit(context);
      v1::PinReply reply;
      const grpc::Status status = stub->Pin(&context, request, &reply);
      if (!status.ok()) return Emit(Op::kPin, Outcome::kFailed, begin, status.error_message());
      for (const int answer : reply.blocks().status()) {
        if (answer != v1::BLOCK_STATUS_OK && answer != v1::BLOCK_STATUS_PENDING)
          return Emit(Op::kPin, Outcome::kFailed, begin, "pin: status " + std::to_string(answer));
      }
    }
    v1::UnpinRequest request;
    request.set_owner("router");
    request.set_all(true);
    grpc::ClientContext context;
    Limit(context);
    v1::UnpinReply reply;
    const grpc::Status status = stub->Unpin(&context, request, &reply);
    if (!status.ok()) return Emit(Op::kPin, Outcome::kFailed, begin, status.error_message());
    Emit(Op::kPin, Outcome::kOk, begin);
  }
  // Watches events, which the victims' puts cause, and records the time between two messages.
  void Watch() {
    while (!ending()) {
      grpc::ClientContext context;
      {
        const MutexLock lock(mu_);
        watching_ = &context;
      }
      int64_t last = NowNs();
      const auto channel = Connect(path_);
      const auto stub = v1::Cache::NewStub(channel);
      const auto stream = stub->WatchEvents(&context, {});
      v1::WatchEventsReply reply;
      while (stream->Read(&reply)) {
        Emit(Op::kWatch, Outcome::kOk, last);
        last = NowNs();
      }
      const grpc::Status status = stream->Finish();
      {
        const MutexLock lock(mu_);
        watching_ = nullptr;
      }
      if (ending()) return;
      Emit(Op::kWatch, Outcome::kFailed, last, status.error_message());
      std::this_thread::sleep_for(kConnectPause);
    }
  }

  const std::string path_, data_;
  const volatile std::sig_atomic_t& end_asked_;
  std::shared_ptr<grpc::Channel> channel_, data_channel_;
  Mutex mu_;
  grpc::ClientContext* watching_ LARDER_GUARDED_BY(mu_) = nullptr;
};

}  // namespace

int RunRouter(const std::string& dir, const volatile std::sig_atomic_t& end_asked) {
  return Router(dir, end_asked).Run();
}

}  // namespace larder::e2e
