#include "tests/e2e/storm/storm_device.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/e2e/storm/storm_engine_actor.h"

namespace larder::e2e {
namespace {

constexpr std::chrono::milliseconds kTransferLimit{30'000};

}  // namespace

void StormDeviceActor::Run() {
  const auto park = [this](bool another) {
    if (another) Disconnect();
  };
  while (world_.gate.Pass(park)) {
    if (session_ == nullptr && !Connect()) continue;
    if (world_.tally.EnginesAhead()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    Step();
  }
  Disconnect();
}

bool StormDeviceActor::BeginAnew() {
  Disconnect();
  for (const auto& chain : world_.chains.all()) {
    if (chain->number % kDeviceEngines == number_) chain->ForgetDevice();
  }
  return Connect();
}

bool StormDeviceActor::Connect() {
  const auto attach = [this]() -> absl::Status {
    auto client =
        Client::Connect({.socket_dir = world_.folder->path(), .retry_budget = 0, .retries_max = 0});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    auto session = client_->Attach(
        {.engine_id = absl::StrCat("storm-device-", number_),
         .staging_bytes = MiB(1),
         .on_directive = [this](const wire::Directive& directive) { return Do(directive); }});
    if (!session.ok()) return session.status();
    session_ = *std::move(session);
    live_ = session_.get();
    const VariantSpec variant = StormVariant();
    const auto variants = session_->Register(StormContents(world_), {&variant, 1});
    if (variants.ok()) variant_ = variants->front();
    return variants.status();
  };
  if (world_.Answered(attach(), "attach a device engine")) return true;
  Disconnect();
  return false;
}

void StormDeviceActor::Disconnect() {
  session_.reset();  // waits for a directive that is under way
  live_ = nullptr;
  client_.reset();
  memory_.Clear();
}

// Adds a block to device memory, or removes it, whether or not it is pinned.
void StormDeviceActor::Step() {
  const uint64_t own = random_() % (kChains / kDeviceEngines);
  const StormChains::Loan chain = world_.chains.BorrowThis(own * kDeviceEngines + number_);
  StormChain::Block& block = chain->blocks[random_() % kChainBlocks];
  const Digest& digest = block.names.digest;
  world_.tally.Count(StormVerb::kReport);
  DeviceReport report;
  if (block.device.there) {
    report.removed = {&digest, 1};
  } else {
    report.stored = {&digest, 1};
    if (random_() % 4 != 0) {
      report.parent = block.names.parent;
      report.tokens = block.names.tokens;
    }
  }
  block.device.there ? memory_.Remove(digest) : memory_.Add(digest);
  absl::Status status = session_->ReportDevice(variant_, report);
  if (status.ok()) status = RoundTrip();
  block.device = {.there = !block.device.there, .linked = !report.tokens.empty()};
  if (!world_.Answered(status, "report of device memory")) Disconnect();
}

absl::Status StormDeviceActor::RoundTrip() {
  std::vector<std::byte> bytes(kChainLayerBytes);
  const std::vector<std::span<std::byte>> layers(StormVariant().layers, bytes);
  const GetBlock nowhere{.digest = Digest{}, .segments = layers};
  return session_->Get(variant_, {&nowhere, 1}, {.deadline = kTransferLimit}).status();
}

std::vector<BlockStatus> StormDeviceActor::Do(const wire::Directive& directive) {
  std::vector<BlockStatus> statuses = memory_.Do(directive);
  std::vector<Digest> dropped;
  for (size_t i = 0; directive.kind == wire::DirectiveKind::kDrop && i < statuses.size(); ++i) {
    if (statuses[i] == BlockStatus::kOk) dropped.push_back(directive.digests[i]);
  }
  // Reported before the answer, so that the caller's next lookup does not find them.
  if (!dropped.empty()) (void)live_->ReportDevice(variant_, {.removed = dropped});
  return statuses;
}

}  // namespace larder::e2e
