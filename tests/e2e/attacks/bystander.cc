// A client beside an attacker: an engine with the client library, or a router with the generated
// stubs.  For each of its calls it writes a record to standard output, with the call's begin, end
// and outcome (bystander_record.h).
//
//   bystander mapped|staged|router SOCKET_DIR UID
//
// An engine stores the blocks that it reads, waits until they are on disk, writes a kReady record
// and then puts, gets, looks up and restores until SIGTERM.  A second thread attaches as a new
// client repeatedly.  All bytes that it reads must be its own.  After a daemon has ended, it
// attaches to the next one.
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/restorer.h"
#include "tests/e2e/attacks/bystander_record.h"
#include "tests/e2e/attacks/router.h"
#include "tests/e2e/attacks/written_blocks.h"
#include "tests/e2e/support/other_user.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kBlockTokens = 16;
constexpr milliseconds kPause{2};
constexpr milliseconds kAttachPause{40};
constexpr milliseconds kReconnectPause{50};
constexpr uint32_t kGetBlocks = 4;
constexpr size_t kPlannedBlocks = 2'048;
constexpr int64_t kDurableLimitNs = 10'000'000'000;

volatile std::sig_atomic_t end_asked = 0;

// An engine whose KV is what this process wrote.  It takes 5 ms to compute a chunk.
class OwnEngine final : public RestoreEngine {
 public:
  OwnEngine(const BlockMaker& maker, uint64_t writer, std::span<const Digest> blocks)
      : maker_(maker), writer_(writer), blocks_(blocks) {}

  absl::Status Compute(TokenRange tokens) override {
    std::this_thread::sleep_for(milliseconds(5));
    for (uint32_t b = tokens.begin / kBlockTokens; b < tokens.end / kBlockTokens; ++b) {
      std::vector<std::byte>& block =
          cache_.emplace_back(maker_.variant.layers * kWrittenLayerBytes);
      for (uint32_t layer = 0; layer < maker_.variant.layers; ++layer)
        FillWritten(writer_, blocks_[b], layer, LayerOf(block, layer));
    }
    return absl::OkStatus();
  }
  absl::Status Place(TokenRange, std::span<const Layers> blocks) override {
    for (const Layers& layers : blocks) {
      std::vector<std::byte>& block = cache_.emplace_back();
      for (const std::span<const std::byte> layer : layers)
        block.insert(block.end(), layer.begin(), layer.end());
    }
    return absl::OkStatus();
  }
  [[nodiscard]] bool IsRight() {
    if (cache_.size() != blocks_.size()) return false;
    for (size_t b = 0; b < cache_.size(); ++b) {
      for (uint32_t layer = 0; layer < maker_.variant.layers; ++layer) {
        if (!IsWritten(writer_, blocks_[b], layer, LayerOf(cache_[b], layer))) return false;
      }
    }
    return true;
  }

 private:
  static std::span<std::byte> LayerOf(std::vector<std::byte>& block, uint32_t layer) {
    return std::span(block).subspan(layer * kWrittenLayerBytes, kWrittenLayerBytes);
  }
  const BlockMaker& maker_;
  const uint64_t writer_;
  const std::span<const Digest> blocks_;
  std::vector<std::vector<std::byte>> cache_;
};

// The outcome of a call.
struct Answer {
  Outcome outcome = Outcome::kOk;
  std::string why = {};
};

class Engine {
 public:
  Engine(std::string role, std::string dir)
      : role_(std::move(role)),
        dir_(std::move(dir)),
        maker_(MakerOf(role_)),
        writer_((uint64_t{random_()} << 32 | random_()) | 1) {
    for (const TestBlock& block : PrefixOf(maker_)) chain_.push_back(block.digest);
  }

  // A client with its session.
  struct Attached {
    std::unique_ptr<Client> client;
    std::unique_ptr<Session> session;
    VariantHandle variant;
  };
  [[nodiscard]] absl::StatusOr<Attached> Attach(const std::string& engine_id) const {
    Attached attached;
    auto client = Client::Connect({.socket_dir = dir_});
    if (!client.ok()) return client.status();
    attached.client = *std::move(client);
    const WriteMode mode = role_ == "mapped" ? WriteMode::kMapped : WriteMode::kStaged;
    auto session = attached.client->Attach(
        {.engine_id = engine_id, .write_mode = mode, .staging_bytes = MiB(4)});
    if (!session.ok()) return session.status();
    attached.session = *std::move(session);
    if (attached.session->write_mode() != mode)
      return absl::FailedPreconditionError(attached.session->write_mode_reason());
    const auto variants = attached.session->Register({&maker_.content, 1}, {&maker_.variant, 1});
    if (!variants.ok()) return variants.status();
    attached.variant = variants->front();
    return attached;
  }

  // Stores the blocks that it will read and waits until they are on disk.
  [[nodiscard]] absl::Status SetUp() {
    auto attached = Attach(EngineOf(role_));
    if (!attached.ok()) return attached.status();
    own_ = *std::move(attached);
    const std::vector<TestBlock> blocks = ReadBlocksOf(maker_);
    for (const TestBlock& block : blocks) {
      if (const Answer put = Put(block); put.outcome != Outcome::kOk)
        return absl::InternalError(put.why);
    }
    for (int i = 0; own_.session->counters().blocks_durable < blocks.size(); ++i) {
      if (i == 3'000) return absl::DeadlineExceededError("the blocks are not on disk after 30 s");
      std::this_thread::sleep_for(milliseconds(10));
    }
    return absl::OkStatus();
  }

  void Run() {
    std::thread newcomer([this] { ComeAgain(); });
    for (uint64_t turn = 0; end_asked == 0; ++turn) {
      Turn(turn);
      std::this_thread::sleep_for(kPause);
    }
    newcomer.join();
  }

 private:
  void Turn(uint64_t turn) {
    if (const absl::Status status = own_.session->status(); !status.ok()) {
      Emit(Op::kAttach, Outcome::kFailed, NowNs(), status.ToString());
      return Reattach();
    }
    switch (turn % 8) {
      case 0:
        return PutNew();
      case 1:
      case 3:
      case 5:
        return Tell(Op::kGet, [this] { return Get(own_, HotNumbers()); });
      case 2:
        return Tell(Op::kLookup, [this] { return LookUp(); });
      case 4:
        return Tell(Op::kCold,
                    [this] { return Get(own_, {kColdBegin + random_() % kColdBlocks}); });
      case 6:
        if (turn % 16 == 6) return Tell(Op::kPlan, [this] { return Plan(); });
        return Tell(Op::kRestore, [this] { return Restore(); });
      default:
        return LookAtDurable();
    }
  }
  template <class Call>
  void Tell(Op op, const Call& call) {
    const int64_t begin = NowNs();
    const Answer answer = call();
    Emit(op, answer.outcome, begin, answer.why);
  }
  // Attaches again after the daemon or the session has ended.
  void Reattach() {
    durable_waits_ = 0;
    durable_base_ = put_ = 0;
    own_.session.reset();
    own_.client.reset();
    while (end_asked == 0 && own_.session == nullptr) {
      std::this_thread::sleep_for(kReconnectPause);
      const int64_t begin = NowNs();
      if (auto attached = Attach(EngineOf(role_)); attached.ok()) {
        own_ = *std::move(attached);
      } else {
        Emit(Op::kAttach, Outcome::kFailed, begin, attached.status().ToString());
      }
    }
  }
  void ComeAgain() {
    while (end_asked == 0) {
      const int64_t begin = NowNs();
      Answer answer;
      if (const auto attached = Attach("newcomer-" + role_); attached.ok()) {
        answer = Get(*attached, {0});
      } else {
        answer = {Outcome::kFailed, attached.status().ToString()};
      }
      Emit(Op::kAttach, answer.outcome, begin, answer.why);
      std::this_thread::sleep_for(kAttachPause);
    }
  }

  Answer Put(const TestBlock& block) {
    const FilledBlock written(
        block, maker_.variant.layers, kWrittenLayerBytes,
        [this](const Digest& digest, uint32_t layer, std::span<std::byte> bytes) {
          FillWritten(writer_, digest, layer, bytes);
        });
    const PutBlock put = written.ToPut();
    const auto status = own_.session->Put(own_.variant, {&put, 1});
    if (!status.ok()) return {Outcome::kFailed, status.status().ToString()};
    if (status->front() != BlockStatus::kOk)
      return {Outcome::kFailed, absl::StrCat("put: ", Name(status->front()))};
    ++put_;
    return {};
  }
  void PutNew() {
    const bool waits = durable_waits_ != 0;
    const int64_t begin = NowNs();
    const Answer answer = Put(maker_.Block(kNewBegin + new_++));
    Emit(Op::kPut, answer.outcome, begin, answer.why);
    if (waits || answer.outcome != Outcome::kOk) return;
    durable_waits_ = put_;
    durable_since_ = begin;
  }
  // Follows one put at a time until the daemon reports it as durable.
  void LookAtDurable() {
    if (durable_waits_ == 0) return;
    if (own_.session->counters().blocks_durable + durable_base_ >= durable_waits_) {
      Emit(Op::kDurable, Outcome::kOk, durable_since_);
    } else if (NowNs() - durable_since_ > kDurableLimitNs) {
      Emit(Op::kDurable, Outcome::kFailed, durable_since_, "a put is not on disk after 10 s");
      // The lost puts are given up, so that the next one can be followed.
      durable_base_ = put_ - own_.session->counters().blocks_durable;
    } else {
      return;
    }
    durable_waits_ = 0;
  }

  std::vector<uint32_t> HotNumbers() {
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < kGetBlocks; ++i) numbers.push_back((random_() % 4) * kGetBlocks + i);
    return numbers;
  }
  Answer Get(const Attached& by, const std::vector<uint32_t>& numbers) const {
    std::vector<LayerSpace> spaces;
    std::vector<GetBlock> gets;
    for (const uint32_t number : numbers) {
      spaces.emplace_back(maker_.Block(number).digest, maker_.variant.layers, kWrittenLayerBytes);
      gets.push_back(spaces.back().ToGet());
    }
    const auto status = by.session->Get(by.variant, gets);
    if (!status.ok()) return {Outcome::kFailed, status.status().ToString()};
    for (size_t i = 0; i < numbers.size(); ++i) {
      if ((*status)[i] == BlockStatus::kMissing)
        return {Outcome::kMissed, absl::StrCat("block ", numbers[i], " is missing")};
      if ((*status)[i] != BlockStatus::kOk)
        return {Outcome::kFailed, absl::StrCat("block ", numbers[i], ": ", Name((*status)[i]))};
      const std::vector<std::vector<std::byte>>& layers = spaces[i].layers();
      for (uint32_t layer = 0; layer < layers.size(); ++layer) {
        if (IsWritten(writer_, gets[i].digest, layer, layers[layer])) continue;
        return {Outcome::kWrong, absl::StrCat("block ", numbers[i], " has bytes of writer ",
                                              WriterOf(layers[layer]), ", not ", writer_)};
      }
    }
    return {};
  }

  Answer LookUp() {
    const TestBlock block = maker_.Block(random_() % kHotBlocks);
    wire::LookupQuery query;
    query.content = maker_.content;
    query.content.tenant.clear();
    query.tokens = block.tokens;
    query.engine_id = EngineOf(role_);
    const auto found = own_.client->Lookup(query);
    if (!found.ok()) return {Outcome::kFailed, found.status().ToString()};
    if (found->instances.empty() || found->instances[0].tiers.empty())
      return {Outcome::kMissed, "the look-up finds nothing"};
    return {};
  }

  // Acquires many names: the message is larger than the memory that a session always has for one.
  Answer Plan() {
    if (planned_.empty()) {
      for (uint32_t i = 0; i < kHotBlocks; ++i) planned_.push_back(maker_.Block(i).digest);
      while (planned_.size() < kPlannedBlocks)
        planned_.push_back(NextDigest(planned_.back(), std::vector<uint32_t>(kBlockTokens)));
    }
    const auto lease = own_.session->Acquire(own_.variant, planned_);
    if (!lease.ok()) return {Outcome::kFailed, lease.status().ToString()};
    return AnswerOf(*lease, kHotBlocks, "a plan");
  }

  Answer Restore() {
    const std::vector<ByteCount> layer_bytes(maker_.variant.layers, ByteCount(kWrittenLayerBytes));
    const RestorePrefix prefix{
        .blocks = chain_,
        .channel_of_block = std::vector<ChannelId>(kChainBlocks, ChannelId{1}),
        .layer_bytes = layer_bytes,
        .chunk_tokens = 64};
    // Computing all of it would take 20 ms, loading it 1 ms.
    Restorer restorer(*own_.session, own_.variant,
                      {.model = "attacks",
                       .layers = static_cast<uint16_t>(maker_.variant.layers),
                       .compute = {.fixed_s = 1e-4, .linear_s = 5e-3 / 64, .quadratic_s = 0},
                       .channels = {{"pool", 500e6}}},
                      {});
    OwnEngine engine(maker_, writer_, chain_);
    const auto restored = restorer.Restore(prefix, engine);
    if (!restored.ok()) return {Outcome::kFailed, restored.status().ToString()};
    if (!engine.IsRight()) return {Outcome::kWrong, "the restored prefix has other bytes"};
    if (restored->loaded_tokens > 0) return {};
    // Computing was faster, which is a matter of time, or there was nothing to load.
    const auto lease = own_.session->Acquire(own_.variant, chain_);
    if (!lease.ok()) return {Outcome::kFailed, lease.status().ToString()};
    const Answer stored = AnswerOf(*lease, chain_.size(), "a restore");
    if (stored.outcome != Outcome::kOk) return stored;
    return {Outcome::kComputed, "the whole prefix had to be computed"};
  }

  // Returns kOk if the first `blocks` blocks of the lease are there.
  static Answer AnswerOf(const Lease& lease, size_t blocks, const char* call) {
    for (size_t i = 0; i < blocks; ++i) {
      const BlockStatus status = lease.status(i);
      if (status == BlockStatus::kMissing)
        return {Outcome::kMissed, absl::StrCat("block ", i, " of ", call, " is missing")};
      if (status != BlockStatus::kOk)
        return {Outcome::kFailed, absl::StrCat("block ", i, " of ", call, ": ", Name(status))};
    }
    return {};
  }
  static std::string Name(BlockStatus status) {
    return absl::StrCat("status ", static_cast<int>(status));
  }

  const std::string role_;
  const std::string dir_;
  const BlockMaker maker_;
  std::random_device random_;
  const uint64_t writer_;
  std::vector<Digest> chain_;
  std::vector<Digest> planned_;
  Attached own_;
  uint32_t new_ = 0;
  uint64_t put_ = 0;            // puts of this session
  uint64_t durable_waits_ = 0;  // how many puts must be durable; 0: no put is followed
  uint64_t durable_base_ = 0;   // puts that were given up
  int64_t durable_since_ = 0;
};

int RunBystander(const std::string& role, const std::string& dir, uid_t uid) {
  // A router belongs to the group of control.sock, which is the daemon's group.
  BecomeUser(uid, role == "router" ? getegid() : static_cast<gid_t>(uid));
  std::signal(SIGTERM, [](int) { end_asked = 1; });
  if (role == "router") return RunRouter(dir, end_asked);
  Engine engine(role, dir);
  if (const absl::Status status = engine.SetUp(); !status.ok()) {
    Emit(Op::kReady, Outcome::kFailed, NowNs(), status.ToString());
    return 1;
  }
  Emit(Op::kReady, Outcome::kOk, NowNs());
  engine.Run();
  return 0;
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "bystander mapped|staged|router SOCKET_DIR UID\n");
    return 2;
  }
  return larder::e2e::RunBystander(argv[1], argv[2], static_cast<uid_t>(std::atoi(argv[3])));
}
