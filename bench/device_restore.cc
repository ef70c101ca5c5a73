// How close does a restore into pages of a device come to its bound, when it computes and loads at
// once?
//
//   bench_device_restore [--quick] [--json FILE]
//
// restore_device_both; restore_device_both_host where there is no GPU
//     8 GiB of blocks of Llama-3-8B's shape (32 layers, 8 heads of 128, bf16, 16 tokens) are
//     restored from the pool of a running daemon into pages of the GPU by client/paged_restore,
//     while chunks of 512 tokens are computed.  Computing is emulated: the thread waits, so that
//     the GPU has only the copies to do, and the wait is set to what loading alone takes.  Floor:
//     the bound T* = Tc Ti / (Tc + Ti), with Ti measured in the same round, before the restore and
//     after it in turn; the profile is right.  Seconds.  Ti is the time of Larder's own loads:
//     their rate is printed, so that it can be compared with device_to_*.
// On the host device it is 256 MiB, and the copies need the processor, which a GPU's copy engines
// would leave alone.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "client/paged_restore.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr char kOnGpu[] = "restore_device_both", kOnHost[] = "restore_device_both_host";
constexpr uint32_t kLayers = 32, kHeads = 8, kRowBytes = 256, kBlockTokens = 16, kChunk = 512,
                   kCut = 64;
constexpr uint32_t kLayerBytes = 2 * kHeads * kRowBytes * kBlockTokens;
constexpr uint64_t kBlockBytes = uint64_t{kLayers} * kLayerBytes;
constexpr uint64_t kBytesOfGpu = uint64_t{8} << 30, kBytesOfHost = 256 << 20;
constexpr size_t kPutAtOnce = 64;

// Pages as vLLM lays them out: layer by layer, K and V apart, tokens before heads.
PagedLayout LayoutAt(uint64_t address, uint32_t pages) {
  PagedLayout layout{.layers = kLayers,
                     .planes = 2,
                     .heads = kHeads,
                     .row_bytes = kRowBytes,
                     .page_tokens = kBlockTokens,
                     .pages = pages,
                     .page_stride = uint64_t{kBlockTokens} * kHeads * kRowBytes,
                     .token_stride = uint64_t{kHeads} * kRowBytes,
                     .head_stride = kRowBytes,
                     .bases = {}};
  for (uint32_t i = 0; i < 2 * kLayers; ++i)
    layout.bases.push_back(address + i * layout.page_stride * pages);
  return layout;
}

// Accurate to some microseconds: a sleeping thread wakes late, so the last part of the wait spins.
void WaitUntil(double at_s) {
  constexpr double kSleepsLate_s = 3e-4;
  if (const double left_s = at_s - SecondsNow(); left_s > kSleepsLate_s)
    std::this_thread::sleep_for(std::chrono::duration<double>(left_s - kSleepsLate_s));
  while (SecondsNow() < at_s) {
  }
}

class Node {
 public:
  static absl::StatusOr<std::unique_ptr<Node>> Start(Device& device, uint64_t bytes) {
    auto node = std::make_unique<Node>();
    LARDER_RETURN_IF_ERROR(node->Open(device, bytes));
    return node;
  }
  // Computing the prefix takes `compute_s`; if it is 0, nothing is computed.
  absl::StatusOr<Restorer::Restored> Restore(double compute_s, double load_s) {
    const auto tokens = static_cast<uint32_t>(blocks_.size()) * kBlockTokens;
    const double token_s = compute_s / tokens;
    std::vector<PagedGet> gets;
    for (size_t i = 0; i < blocks_.size(); ++i)
      gets.push_back({.digest = blocks_[i], .pages = {&pages_[i], 1}});
    PagedRestore engine({cache_.get()}, std::move(gets), {0, kLayers}, [&](TokenRange range) {
      WaitUntil(SecondsNow() + token_s * (range.end - range.begin));
      return absl::OkStatus();
    });
    Restorer::Options options;
    options.scheduler.hedges = false;
    options.scheduler.computes = compute_s > 0;
    options.scheduler.falls_back = false;
    const double rate = static_cast<double>(kBlockBytes * blocks_.size()) / load_s;
    Restorer restorer(*session_, variant_,
                      Profile{.model = "bench",
                              .layers = kLayers,
                              .compute = {.fixed_s = 0, .linear_s = std::max(token_s, 1e-9)},
                              .channels = {{"pool", rate}}},
                      options);
    const std::vector<ByteCount> layer_bytes(kLayers, ByteCount(kLayerBytes));
    return restorer.Restore({.blocks = blocks_,
                             .channel_of_block = std::vector(blocks_.size(), ChannelId{1}),
                             .layer_bytes = layer_bytes,
                             .chunk_tokens = kChunk,
                             .cut_tokens = kCut},
                            engine);
  }

 private:
  absl::Status Open(Device& device, uint64_t bytes) {
    const auto count = static_cast<uint32_t>(bytes / kBlockBytes);
    LARDER_ASSIGN_OR_RETURN(daemon_, DaemonProcess::Start({.pool = ByteCount(bytes + bytes / 4)}));
    LARDER_ASSIGN_OR_RETURN(memory_, device.Allocate(ByteCount(count * kBlockBytes)));
    LARDER_ASSIGN_OR_RETURN(client_, Client::Connect({.socket_dir = daemon_->socket_dir()}));
    LARDER_ASSIGN_OR_RETURN(session_, client_->Attach({.engine_id = "bench", .device = &device}));
    ContentSpec content;
    content.model = "bench";
    VariantSpec variant;
    variant.dtype = "bf16";
    variant.layout = "bench/paged/1";
    variant.block_tokens = kBlockTokens;
    variant.layers = kLayers;
    LARDER_ASSIGN_OR_RETURN(const auto variants, session_->Register({&content, 1}, {&variant, 1}));
    variant_ = variants.front();
    PayloadLayout payload{.block_tokens = kBlockTokens, .order = RowOrder::kTokenHead, .table = {}};
    payload.table.segments.assign(kLayers, {.layers = 1, .bytes = kLayerBytes});
    LARDER_ASSIGN_OR_RETURN(
        cache_, PagedCache::Make(*session_, device, variant_, LayoutAt(memory_->address(), count),
                                 payload, {}));
    return Store(content, count);
  }
  // Stores what the pages happen to hold: their bytes do not matter to the time.
  absl::Status Store(const ContentSpec& content, uint32_t count) {
    std::vector<uint32_t> tokens(size_t{count} * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 0);
    const Digest seed = session_->Seed(content);
    blocks_ = Chain(seed, tokens);
    pages_.resize(count);
    std::iota(pages_.begin(), pages_.end(), 0);
    for (size_t first = 0; first < count; first += kPutAtOnce) {
      std::vector<PagedPut> puts;
      for (size_t i = first; i < std::min<size_t>(count, first + kPutAtOnce); ++i) {
        puts.push_back({.digest = blocks_[i],
                        .parent = i == 0 ? seed : blocks_[i - 1],
                        .tokens = std::span(tokens).subspan(i * kBlockTokens, kBlockTokens),
                        .pages = {&pages_[i], 1}});
      }
      LARDER_ASSIGN_OR_RETURN(const auto put, cache_->Put(puts));
      if (std::ranges::any_of(put, [](BlockStatus s) { return s != BlockStatus::kOk; }))
        return absl::InternalError("a block was not stored");
    }
    return absl::OkStatus();
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::unique_ptr<PagedCache> cache_;
  std::vector<Digest> blocks_;
  std::vector<uint32_t> pages_;
};

int Run(Harness& harness) {
  const absl::StatusOr<OpenedDevice> opened = OpenDevice(DeviceWish::kAuto);
  if (!opened.ok()) return harness.Fail(opened.status());
  const bool gpu = opened->device->info().kind == DeviceKind::kCuda;
  if (!gpu) harness.Note(absl::StrCat("not run on a GPU: ", opened->reason));
  const uint64_t bytes = gpu ? kBytesOfGpu : kBytesOfHost;
  auto node = Node::Start(*opened->device, bytes);
  if (!node.ok()) return harness.Fail(node.status());
  std::vector<double> both, bound;
  double load_s = 1, compute_s = 0, computed = 0;
  const auto load = [&]() -> absl::Status {
    const auto loaded = (*node)->Restore(0, load_s);
    if (loaded.ok()) load_s = loaded->restore_s;
    return loaded.status();
  };
  // The first load maps and registers the slabs.
  for (int i = 0; i < 2; ++i)
    if (const absl::Status s = load(); !s.ok()) return harness.Fail(s);
  compute_s = load_s;
  for (int round = 0; round < harness.rounds(); ++round) {
    absl::Status status = round % 2 == 0 ? load() : absl::OkStatus();
    const auto restored = (*node)->Restore(compute_s, load_s);
    status.Update(restored.status());
    if (round % 2 == 1) status.Update(load());
    if (!status.ok()) return harness.Fail(status);
    both.push_back(restored->restore_s);
    bound.push_back(compute_s * load_s / (compute_s + load_s));
    computed += restored->computed_tokens;
  }
  harness.Report({.name = gpu ? kOnGpu : kOnHost,
                  .value = Median(both),
                  .unit = "s",
                  .floor = Median(bound),
                  .ratio = MedianRatio(both, bound),
                  .rounds = harness.rounds()});
  harness.Note(
      absl::StrFormat("%s, %s; loading alone %s; %.0f %% of the tokens computed; bar: at most 1.10",
                      opened->device->info().name, Pretty(static_cast<double>(bytes), "B"),
                      Pretty(static_cast<double>(bytes) / load_s, "B/s"),
                      100 * computed /
                          (static_cast<double>(harness.rounds()) * static_cast<double>(bytes) /
                           static_cast<double>(kBlockBytes) * kBlockTokens)));
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  larder::bench::Harness harness(argc, argv, {larder::bench::kOnGpu, larder::bench::kOnHost});
  if (harness.done()) return *harness.done();
  return larder::bench::Run(harness);
}
