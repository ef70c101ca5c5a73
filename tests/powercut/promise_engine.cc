#include "tests/powercut/promise_engine.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "larder/v1/cache.grpc.pb.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/eventually.h"

namespace larder::powercut {
namespace {

using e2e::BlockMaker;
using e2e::DaemonProcess;
using e2e::TestBlock;

constexpr const char* kOwner = "router";
constexpr std::chrono::seconds kCallLimit{30};

// ---- Blocks.

size_t LayerBytes(uint32_t number) { return 4'096 + number * 7'919 % 56'000; }

void Fill(const BlockMaker& maker, uint32_t number, uint32_t version, uint32_t layer,
          std::span<std::byte> bytes) {
  Digest of = maker.Block(number).digest;
  for (size_t i = 0; i < sizeof version; ++i)
    of.bytes[i] ^= std::byte{static_cast<uint8_t>(version >> (8 * i))};
  e2e::FillLayer(of, layer, bytes);
  std::memcpy(bytes.data(), &version, sizeof version);
}

// The layers of a block.
struct Payload {
  explicit Payload(const BlockMaker& maker, uint32_t number) {
    for (uint32_t i = 0; i < maker.variant.layers; ++i) layers.emplace_back(LayerBytes(number));
  }
  std::vector<std::vector<std::byte>> layers;
};

// Returns 0 if the bytes are those of no version.
uint32_t VersionOf(const BlockMaker& maker, uint32_t number, const Payload& payload) {
  uint32_t version = 0;
  std::memcpy(&version, payload.layers[0].data(), sizeof version);
  for (uint32_t i = 0; i < payload.layers.size(); ++i) {
    std::vector<std::byte> want(payload.layers[i].size());
    Fill(maker, number, version, i, want);
    if (want != payload.layers[i]) return 0;
  }
  return version;
}

// ---- Calls.

void Name(const BlockMaker& maker, std::span<const uint32_t> numbers, v1::BlockSelection* blocks) {
  for (const uint32_t number : numbers)
    blocks->mutable_digests()->append(e2e::Packed(maker.Block(number).digest));
}

std::unique_ptr<v1::Cache::Stub> CacheOf(const DaemonProcess& daemon) {
  return v1::Cache::NewStub(daemon.ControlChannel());
}

template <class Call>
grpc::Status Ask(v1::Cache::Stub& stub, Call call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  return call(stub, context);
}

grpc::Status Unpin(v1::Cache::Stub& stub, const BlockMaker& maker,
                   std::span<const uint32_t> numbers, v1::UnpinReply* reply) {
  v1::UnpinRequest request;
  Name(maker, numbers, request.mutable_blocks());
  request.set_owner(kOwner);
  request.set_tier(v1::TIER_DISK);
  return Ask(stub, [&](auto& to, auto& context) { return to.Unpin(&context, request, reply); });
}

// A client with a session.
struct Attached {
  absl::Status Attach(const std::string& folder, const BlockMaker& maker, WriteMode mode) {
    auto connected = Client::Connect({.socket_dir = folder});
    if (!connected.ok()) return connected.status();
    client = *std::move(connected);
    auto attached = client->Attach({.engine_id = "power", .write_mode = mode});
    if (!attached.ok()) return attached.status();
    session = *std::move(attached);
    const auto variants = session->Register({&maker.content, 1}, {&maker.variant, 1});
    if (!variants.ok()) return variants.status();
    variant = variants->front();
    return absl::OkStatus();
  }
  std::unique_ptr<Client> client;
  std::unique_ptr<Session> session;
  VariantHandle variant;
};

absl::Status LookAtBlocks(DaemonProcess& daemon, const BlockMaker& maker, Found* found) {
  Attached engine;
  if (absl::Status status = engine.Attach(daemon.folder()->path(), maker, WriteMode::kStaged);
      !status.ok())
    return status;
  for (uint32_t number = 0; number < kNames; ++number) {
    Payload payload(maker, number);
    const std::vector<std::span<std::byte>> views(payload.layers.begin(), payload.layers.end());
    const GetBlock get{.digest = maker.Block(number).digest, .segments = views, .first_layer = 0};
    const auto status = engine.session->Get(engine.variant, {&get, 1}, {.deadline = kCallLimit});
    if (!status.ok()) return status.status();
    switch (status->front()) {
      case BlockStatus::kOk:
        found->blocks[number] = VersionOf(maker, number, payload);
        break;
      case BlockStatus::kMissing:
        break;
      case BlockStatus::kDamaged:
        ++found->damaged;
        break;
      default:
        return absl::InternalError(
            absl::StrCat("block ", number, " reads as ", ToString(status->front())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Found Look(DaemonProcess& daemon) {
  Found found;
  const BlockMaker maker;
  if (!Eventually([&] { return daemon.Metric("larder_disk_recovering") == 0; })) {
    found.failure = "it does not end to recover";
    return found;
  }
  if (absl::Status status = LookAtBlocks(daemon, maker, &found); !status.ok()) {
    found.failure = status.ToString();
    return found;
  }
  std::vector<uint32_t> all;
  for (uint32_t number = 0; number < kNames; ++number) all.push_back(number);
  v1::UnpinReply reply;
  const auto stub = CacheOf(daemon);
  if (const grpc::Status status = Unpin(*stub, maker, all, &reply); !status.ok())
    found.failure = "Unpin: " + status.error_message();
  for (int i = 0; i < reply.blocks().status_size(); ++i)
    found.pinned[static_cast<size_t>(i)] = reply.blocks().status(i) == v1::BLOCK_STATUS_OK;
  found.damaged +=
      static_cast<uint64_t>(daemon.Metric("larder_disk_failures_total{kind=\"damaged\"}"));
  return found;
}

// ---- One thread of the engine.

class PromiseEngine::Worker {
 public:
  Worker(DaemonProcess& daemon, Ledger& ledger, uint64_t seed, uint32_t version, uint32_t first,
         const Found& found)
      : ledger_(ledger),
        first_(first),
        random_(seed),
        version_(version),
        stub_(CacheOf(daemon)),
        folder_(daemon.folder()->path()),
        there_(found.blocks.size()),
        pinned_(found.pinned) {
    for (size_t i = 0; i < there_.size(); ++i) there_[i] = found.blocks[i].has_value();
  }

  absl::Status Run(const std::atomic<bool>& stopping) {
    // It is unknown whether blocks that `hasty_` puts will be reported durable.
    const WriteMode mode = first_ % 2 == 0 ? WriteMode::kMapped : WriteMode::kStaged;
    if (absl::Status status = engine_.Attach(folder_, maker_, mode); !status.ok()) return status;
    if (absl::Status status = hasty_.Attach(folder_, maker_, mode); !status.ok()) return status;
    while (!stopping) {
      if (absl::Status status = Step(stopping); !status.ok()) return status;
      // Without pauses the disk would never be idle, and each sync would include the writes of
      // other calls.
      if (random_() % 2 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 30));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Step(const std::atomic<bool>& stopping) {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        return PutDurable(stopping);
      case 3:
        return PutAndClear();
      case 4:
        return Clear(Some([this](uint32_t n) { return there_[n] && !pinned_[n]; }), false);
      case 5:
        return Pin(Some([this](uint32_t n) { return there_[n] && !pinned_[n]; }));
      case 6:
        return Unpin(Some([this](uint32_t n) { return pinned_[n]; }));
      default:
        return Clear(Some([this](uint32_t n) { return there_[n] && pinned_[n]; }), true);
    }
  }
  // Returns numbers of this worker.
  template <class Which>
  [[nodiscard]] std::vector<uint32_t> Some(Which which) {
    std::vector<uint32_t> numbers;
    const auto from = static_cast<uint32_t>(random_() % (kNames / kWorkers) * kWorkers + first_);
    const uint64_t count = 1 + random_() % 5;
    for (uint32_t i = 0; i < kNames && numbers.size() < count; i += kWorkers) {
      if (which((from + i) % kNames)) numbers.push_back((from + i) % kNames);
    }
    return numbers;
  }
  void Hear(Book book, Said said, std::span<const uint32_t> numbers, uint32_t version) {
    for (const uint32_t number : numbers)
      ledger_.Hear({.book = book, .said = said, .number = number, .version = version});
  }

  absl::Status Put(Attached& by, std::span<const uint32_t> numbers) {
    ++version_;
    std::vector<Payload> payloads;
    std::vector<TestBlock> blocks;
    std::vector<std::vector<std::span<const std::byte>>> views;
    for (const uint32_t number : numbers) {
      blocks.push_back(maker_.Block(number));
      Payload& payload = payloads.emplace_back(maker_, number);
      for (uint32_t i = 0; i < payload.layers.size(); ++i)
        Fill(maker_, number, version_, i, payload.layers[i]);
      views.emplace_back(payload.layers.begin(), payload.layers.end());
    }
    std::vector<PutBlock> puts;
    for (size_t i = 0; i < blocks.size(); ++i) {
      puts.push_back({.digest = blocks[i].digest,
                      .parent = blocks[i].parent,
                      .tokens = blocks[i].tokens,
                      .segments = views[i]});
    }
    Hear(Book::kBlocks, Said::kStoring, numbers, version_);
    const auto status = by.session->Put(by.variant, puts, {.deadline = kCallLimit});
    if (!status.ok()) return status.status();
    for (size_t i = 0; i < numbers.size(); ++i) {
      // The block is not there, and no other worker puts it.
      if ((*status)[i] != BlockStatus::kOk)
        return absl::InternalError(
            absl::StrCat("a put of ", numbers[i], " is ", ToString((*status)[i])));
      there_[numbers[i]] = true;
    }
    return absl::OkStatus();
  }
  absl::Status PutDurable(const std::atomic<bool>& stopping) {
    const std::vector<uint32_t> numbers = Some([this](uint32_t n) { return !there_[n]; });
    if (absl::Status status = Put(engine_, numbers); !status.ok()) return status;
    durable_ += numbers.size();
    const auto told = [this] { return engine_.session->counters().blocks_durable; };
    if (!Eventually([&] { return stopping || told() >= durable_; }))
      return absl::InternalError(
          absl::StrCat("of ", durable_, " blocks ", told(), " were told durable"));
    if (told() >= durable_) Hear(Book::kBlocks, Said::kStored, numbers, version_);
    return absl::OkStatus();
  }
  // The blocks are usually on their way to the disk when they are cleared.
  absl::Status PutAndClear() {
    const std::vector<uint32_t> numbers = Some([this](uint32_t n) { return !there_[n]; });
    if (absl::Status status = Put(hasty_, numbers); !status.ok()) return status;
    return Clear(numbers, false);
  }
  absl::Status Clear(const std::vector<uint32_t>& numbers, bool pinned) {
    if (numbers.empty()) return absl::OkStatus();
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_BLOCKS);
    Name(maker_, numbers, request.mutable_blocks());
    request.set_pinned(pinned);
    Hear(Book::kBlocks, Said::kRemoving, numbers, 0);
    if (pinned) Hear(Book::kFacts, Said::kRemoving, numbers, 0);
    v1::ClearReply reply;
    const grpc::Status status = Ask(
        *stub_, [&](auto& stub, auto& context) { return stub.Clear(&context, request, &reply); });
    if (!status.ok()) return absl::InternalError("Clear: " + status.error_message());
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (reply.blocks().status(static_cast<int>(i)) != v1::BLOCK_STATUS_OK)
        return absl::InternalError(absl::StrCat("Clear of ", numbers[i], " is ",
                                                reply.blocks().status(static_cast<int>(i))));
      there_[numbers[i]] = false;
      if (pinned) pinned_[numbers[i]] = false;
    }
    Hear(Book::kBlocks, Said::kRemoved, numbers, 0);
    if (pinned) Hear(Book::kFacts, Said::kRemoved, numbers, 0);
    return absl::OkStatus();
  }
  absl::Status Pin(const std::vector<uint32_t>& numbers) {
    if (numbers.empty()) return absl::OkStatus();
    v1::PinRequest request;
    Name(maker_, numbers, request.mutable_blocks());
    request.set_owner(kOwner);
    request.set_tier(v1::TIER_DISK);
    Hear(Book::kFacts, Said::kStoring, numbers, 1);
    v1::PinReply reply;
    const grpc::Status status =
        Ask(*stub_, [&](auto& stub, auto& context) { return stub.Pin(&context, request, &reply); });
    if (!status.ok()) return absl::InternalError("Pin: " + status.error_message());
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (reply.blocks().status(static_cast<int>(i)) != v1::BLOCK_STATUS_OK || !reply.durable())
        return absl::InternalError(absl::StrCat("Pin of ", numbers[i], " is ",
                                                reply.blocks().status(static_cast<int>(i))));
      pinned_[numbers[i]] = true;
    }
    Hear(Book::kFacts, Said::kStored, numbers, 1);
    return absl::OkStatus();
  }
  absl::Status Unpin(const std::vector<uint32_t>& numbers) {
    if (numbers.empty()) return absl::OkStatus();
    Hear(Book::kFacts, Said::kRemoving, numbers, 0);
    v1::UnpinReply reply;
    const grpc::Status status = powercut::Unpin(*stub_, maker_, numbers, &reply);
    if (!status.ok()) return absl::InternalError("Unpin: " + status.error_message());
    for (const uint32_t number : numbers) pinned_[number] = false;
    Hear(Book::kFacts, Said::kRemoved, numbers, 0);
    return absl::OkStatus();
  }

  Ledger& ledger_;
  const uint32_t first_;
  std::mt19937_64 random_;
  uint32_t version_;
  const std::unique_ptr<v1::Cache::Stub> stub_;
  const std::string folder_;
  const BlockMaker maker_;
  Attached engine_, hasty_;
  uint64_t durable_ = 0;  // put by engine_
  std::vector<bool> there_, pinned_;
};

// ---- The whole engine.

PromiseEngine::PromiseEngine(DaemonProcess& daemon, Ledger& ledger, uint64_t seed, uint32_t version,
                             const Found& found) {
  for (uint32_t i = 0; i < kWorkers; ++i) {
    auto worker = std::make_shared<Worker>(daemon, ledger, seed * kWorkers + i, version, i, found);
    threads_.emplace_back([this, worker] {
      const absl::Status status = worker->Run(stopping_);
      if (status.ok() || stopping_) return;
      MutexLock lock(mu_);
      failures_.push_back(status.ToString());
    });
  }
}

PromiseEngine::~PromiseEngine() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::string> PromiseEngine::failures() const {
  MutexLock lock(mu_);
  return failures_;
}

// ---- Judging.

std::vector<std::string> FlagsFor(const std::string& disk) {
  return {"--pool", "32MiB", "--disk", disk, "--disk-limit", "96MiB"};
}

Found StartAndJudge(const std::string& disk, const Promises& promises, Tally* tally) {
  ++tally->looks;
  DaemonProcess daemon(FlagsFor(disk));
  Found found;
  if (!daemon.serves()) {
    ++tally->failed_starts;
    found.failure = "the daemon does not serve";
    ADD_FAILURE() << found.failure << ": " << daemon.errors();
    return found;
  }
  found = Look(daemon);
  EXPECT_EQ(found.failure, "") << daemon.errors();
  const auto set_aside =
      static_cast<uint64_t>(daemon.Metric("larder_disk_shards_set_aside_total") +
                            daemon.Metric("larder_disk_shards{state=\"failed\"}"));
  EXPECT_EQ(set_aside, 0u) << daemon.errors();
  tally->set_aside += set_aside;
  tally->damaged += found.damaged;
  for (uint32_t number = 0; number < kNames; ++number) {
    const Promise block = number < promises.blocks.size() ? promises.blocks[number] : Promise();
    const Promise pin = number < promises.facts.size() ? promises.facts[number] : Promise();
    const Verdict of_block = block.Judge(found.blocks[number]);
    const Verdict of_pin =
        pin.Judge(found.pinned[number] ? std::optional<uint32_t>(1) : std::nullopt);
    EXPECT_EQ(of_block, Verdict::kRight)
        << "block " << number << " version " << found.blocks[number].value_or(0) << " is "
        << ToString(of_block);
    EXPECT_EQ(of_pin, Verdict::kRight)
        << "the pin of block " << number << " is " << ToString(of_pin);
    tally->promised += block.may_be_missing() ? 0 : 1;
    tally->pins += pin.may_be_missing() ? 0 : 1;
    tally->lost += of_block == Verdict::kLost ? 1 : 0;
    tally->back += of_block == Verdict::kBack ? 1 : 0;
    tally->wrong += of_block == Verdict::kWrong ? 1 : 0;
    tally->pins_lost += of_pin == Verdict::kLost ? 1 : 0;
    tally->pins_back += of_pin == Verdict::kBack ? 1 : 0;
  }
  daemon.Kill9();
  return found;
}

void Tell(const Found& found, Ledger* ledger) {
  for (uint32_t number = 0; number < kNames; ++number) {
    if (found.blocks[number])
      ledger->Hear({.book = Book::kBlocks,
                    .said = Said::kStored,
                    .number = number,
                    .version = *found.blocks[number]});
  }
}

void Print(const char* what, const Tally& t) {
  std::printf(
      "%lu %s: %lu durable blocks, %lu lost, %lu cleared ones back, %lu wrong; %lu pins, %lu lost, "
      "%lu back; %lu failed starts, %lu shards set aside or closed, %lu damaged that were not "
      "promised\n",
      t.looks, what, t.promised, t.lost, t.back, t.wrong, t.pins, t.pins_lost, t.pins_back,
      t.failed_starts, t.set_aside, t.damaged);
}

}  // namespace larder::powercut
