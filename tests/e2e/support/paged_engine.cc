// An engine of the end-to-end tests with a paged KV cache on a device, using client/paged_cache.h.
//
//   paged_engine SOCKET_DIR MODE(mapped|staged|stream) VERB SEED
//
// The device is the host device, or the one that LARDER_TEST_DEVICE names (shared_memory.h).  SEED
// chooses the layout of the cache.  The bytes of a block follow from its name, in the payload's
// order, so engines with other layouts must read the same bytes.
// Verbs, with the lines that each prints:
//   once    stores blocks SEED .. SEED+31 and loads them three times, whole and by layers; prints
//           "done N" with the number of loaded blocks, then ends
//   tell    as once, then describes its device and what the device did in lines "WHAT VALUE", the
//           last of which is "ready"; runs until it is killed
//   churn   prints "ready"; stores, loads and drops loads under way at random, until it is killed
//   own     shares device memory, with bytes that follow from SEED, by descriptor or, on a GPU with
//           an odd SEED, by handle; prints "ticket HEX"; runs until it is killed
// Exit codes: 0 the verb has ended; 1 a call failed that must not fail; 3 bytes were wrong.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/paged_cache.h"
#include "cuda/paged_plan.h"
#include "tests/cuda/paged_oracle.h"
#include "tests/e2e/support/shared_memory.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kLayers = 3, kHeads = 4, kBlockTokens = 16, kBlocks = 24;
constexpr uint32_t kNumbers = 200;  // blocks that the engines share

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void Die(int code, const std::string& why) {
  std::fprintf(stderr, "paged_engine %d: %s\n", static_cast<int>(getpid()), why.c_str());
  _exit(code);
}

template <class T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) Die(1, value.status().ToString());
  return *std::move(value);
}
void OrDie(const absl::Status& status) {
  if (!status.ok()) Die(1, status.ToString());
}

WriteMode ModeOf(const std::string& name) {
  return name == "staged"   ? WriteMode::kStaged
         : name == "stream" ? WriteMode::kStream
                            : WriteMode::kMapped;
}

// The cache on the device, and an image in the process of what each of its bytes must be.
class Cache {
 public:
  Cache(Device& device, uint32_t seed) : queue_(OrDie(device.MakeQueue())) {
    constexpr uint32_t kPageTokens[] = {8, 16, 32};
    const EngineKind kind = kEngineKinds[seed % std::size(kEngineKinds)];
    // Rows have 64 bytes, or an odd number of bytes.
    const EngineShape shape{.layers = kLayers,
                            .heads = kHeads,
                            .row_bytes = seed / 24 % 2 == 0 ? 64u : 33u,
                            .page_tokens = kPageTokens[seed / 8 % 3],
                            .pages = kBlocks * kBlockTokens / kPageTokens[seed / 8 % 3]};
    const uint64_t bytes = LayOut(kind, shape, &engine_);
    memory_ = OrDie(device.Allocate(ByteCount(bytes)));
    buffer_ = OrDie(device.AllocatePinned(ByteCount(bytes)));
    absolute_ = engine_;
    for (uint64_t& base : absolute_.bases) base += memory_->address();
    image_.resize(bytes);
    payload_ = PayloadOf(engine_, kBlockTokens,
                         seed % 2 == 0 ? RowOrder::kTokenHead : RowOrder::kHeadToken, 1);
    OrDie(PagedPlan::Make(absolute_, payload_).status());
  }
  [[nodiscard]] const PagedLayout& layout() const { return absolute_; }
  [[nodiscard]] const PayloadLayout& payload() const { return payload_; }
  // Engines that return the same name have the same payload layout.
  [[nodiscard]] std::string PayloadName() const {
    return "paged/" + std::to_string(engine_.planes) + "/" + std::to_string(engine_.row_bytes) +
           "/" + std::to_string(engine_.heads) +
           (payload_.order == RowOrder::kTokenHead ? "/NHD" : "/HND");
  }

  // Where a block lies in the cache, which has kBlocks places.
  struct Place {
    std::vector<uint32_t> pages;
    uint32_t first_slot = 0;
  };
  [[nodiscard]] Place PlaceOf(uint32_t place) const {
    const uint32_t per_page = std::max(1u, engine_.page_tokens / kBlockTokens);
    if (per_page > 1) return {{place / per_page}, place % per_page * kBlockTokens};
    const uint32_t pages = kBlockTokens / engine_.page_tokens;
    std::vector<uint32_t> all(pages);
    std::iota(all.rbegin(), all.rend(), place * pages);  // last page first
    return {std::move(all), 0};
  }

  // Writes a block's bytes to its place in the image.
  void Expect(const Digest& digest, const Place& place, LayerRange layers) {
    const uint32_t layer_bytes = payload_.table.segments[0].bytes;
    std::vector<std::byte> moved(size_t{layers.count} * RoundUp(layer_bytes, kSegmentAlign));
    for (uint32_t i = 0; i < layers.count; ++i)
      FillLayer(digest, layers.first + i,
                std::span(moved).subspan(i * RoundUp(layer_bytes, kSegmentAlign), layer_bytes));
    ForEachRow(engine_, payload_, layers, place.pages, place.first_slot,
               [&](uint64_t in_engine, uint64_t in_payload) {
                 std::memcpy(image_.data() + in_engine, moved.data() + in_payload,
                             engine_.row_bytes);
               });
  }
  // Copies a place from the device's memory into the image: the load of its block did not succeed,
  // so its rows may hold anything.
  void TakeAsIs(const Place& place, LayerRange layers) {
    const auto there = reinterpret_cast<const std::byte*>(buffer_->bytes().data());
    ForEachRow(engine_, payload_, layers, place.pages, place.first_slot,
               [&](uint64_t in_engine, uint64_t) {
                 std::memcpy(image_.data() + in_engine, there + in_engine, engine_.row_bytes);
               });
  }
  void Upload() {
    std::memcpy(const_cast<std::byte*>(buffer_->bytes().data()), image_.data(), image_.size());
    Copy(CopyDirection::kToDevice, memory_->address(), BufferAt());
  }
  void Download() { Copy(CopyDirection::kFromDevice, BufferAt(), memory_->address()); }
  void Check(const std::string& when) const {
    if (std::memcmp(buffer_->bytes().data(), image_.data(), image_.size()) != 0)
      Die(3, "wrong bytes in the cache " + when);
  }
  [[nodiscard]] std::unique_ptr<DeviceEvent> Event() { return OrDie(queue_->Record()); }

 private:
  [[nodiscard]] uint64_t BufferAt() const {
    return reinterpret_cast<uint64_t>(buffer_->bytes().data());
  }
  void Copy(CopyDirection way, uint64_t to, uint64_t from) {
    const DeviceCopy copy{to, from, image_.size()};
    OrDie(queue_->CopyBatch(way, std::span(&copy, 1)));
    OrDie(queue_->Wait());
  }

  PagedLayout engine_, absolute_;
  PayloadLayout payload_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<PinnedMemory> buffer_;
  std::vector<std::byte> image_;
  std::unique_ptr<DeviceQueue> queue_;
};

class Engine {
 public:
  Engine(const std::string& dir, WriteMode mode, uint32_t seed)
      : random_(seed), device_(OrDie(OpenTestDevice())), cache_(*device_, seed) {
    client_ = OrDie(Client::Connect({.socket_dir = dir}));
    session_ = OrDie(client_->Attach({.engine_id = "paged-" + cache_.PayloadName(),
                                      .write_mode = mode,
                                      .staging_bytes = MiB(4),
                                      .device = device_.get()}));
    if (session_->write_mode() != mode) Die(1, session_->write_mode_reason());
    maker_.variant.layers = kLayers;
    maker_.variant.layout = cache_.PayloadName();
    variant_ = OrDie(session_->Register({&maker_.content, 1}, {&maker_.variant, 1})).front();
    // The staging holds only a few blocks, so that a call takes several steps.
    paged_ =
        OrDie(PagedCache::Make(*session_, *device_, variant_, cache_.layout(), cache_.payload(),
                               {.staging_bytes = KiB(512), .multiprocessors = 2}));
  }

  // Stores blocks by number.  Returns how many of them are stored now.
  uint32_t Put(const std::vector<uint32_t>& numbers) {
    const std::vector<Cache::Place> places = RandomPlaces(numbers.size());
    std::vector<TestBlock> blocks;
    std::vector<PagedPut> puts;
    for (size_t i = 0; i < numbers.size(); ++i) {
      blocks.push_back(maker_.Block(numbers[i]));
      cache_.Expect(blocks[i].digest, places[i], {0, kLayers});
    }
    for (size_t i = 0; i < numbers.size(); ++i)
      puts.push_back({blocks[i].digest, blocks[i].parent, blocks[i].tokens, places[i].pages,
                      places[i].first_slot});
    cache_.Upload();
    const auto computed = cache_.Event();
    const auto put = paged_->Put(puts, computed.get());
    if (!put.ok()) return MayFail(put.status());
    return static_cast<uint32_t>(std::ranges::count_if(*put, [](BlockStatus status) {
      return status == BlockStatus::kOk || status == BlockStatus::kDuplicate;
    }));
  }
  // Loads blocks and checks every byte of the cache.  Returns how many blocks were loaded.
  uint32_t Load(const std::vector<uint32_t>& numbers, LayerRange layers, bool drop) {
    const std::vector<Cache::Place> places = RandomPlaces(numbers.size());
    std::vector<TestBlock> blocks;
    std::vector<PagedGet> gets;
    for (size_t i = 0; i < numbers.size(); ++i) {
      blocks.push_back(maker_.Block(numbers[i]));
      gets.push_back({blocks[i].digest, places[i].pages, places[i].first_slot});
    }
    cache_.Upload();
    const auto pages_free = cache_.Event();
    std::vector<BlockStatus> status(numbers.size(), BlockStatus::kCancelled);
    {
      absl::StatusOr<PagedLoad> load = paged_->Load(gets, layers, pages_free.get());
      if (!load.ok()) return MayFail(load.status());
      if (!drop)
        status = OrDie(load->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
    }
    cache_.Download();
    uint32_t came = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (status[i] == BlockStatus::kDamaged || status[i] == BlockStatus::kInvalid)
        Die(3, "block " + std::to_string(numbers[i]) + " reads as " + ToString(status[i]));
      if (status[i] == BlockStatus::kOk) {
        cache_.Expect(blocks[i].digest, places[i], layers);
        ++came;
      } else {
        cache_.TakeAsIs(places[i], layers);
      }
    }
    cache_.Check(drop ? "after a load that was dropped" : "after a load");
    return came;
  }

  void Once(uint32_t first) {
    uint32_t came = 0;
    for (uint32_t begin = 0; begin < 32; begin += 16) {
      std::vector<uint32_t> numbers(16);
      std::iota(numbers.begin(), numbers.end(), first + begin);
      if (Put(numbers) != numbers.size()) Die(1, "blocks were not stored");
      CheckPadding(numbers);
      came += Load(numbers, {0, kLayers}, false);
      came += Load(numbers, {1, 2}, false);
      came += Load(numbers, {kLayers - 1, 1}, false);
    }
    Say("done " + std::to_string(came));
  }
  [[noreturn]] void Tell(uint32_t first) {
    Once(first);
    while (device_->stats().pinned_pending.value() > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const DeviceInfo& info = device_->info();
    const DeviceStats stats = device_->stats();
    Say(std::string("kind ") + ToString(info.kind));
    Say(std::string("wish ") + ToString(info.wish));
    Say("reason " + info.reason);
    for (const std::string& limit : info.limits) Say("limit " + limit);
    Say("registered " + std::to_string(stats.pinned_registered.value()));
    Say("read-only " + std::to_string(stats.pinned_read_only.value()));
    Say("staged " + std::to_string(stats.pinned_staged.value()));
    Say("launches " + std::to_string(stats.launches));
    Say("ready");
    for (;;) pause();
  }
  // The padding between segments must be zero, whatever the device's memory held before.
  void CheckPadding(const std::vector<uint32_t>& numbers) {
    if (session_->write_mode() == WriteMode::kStream) return;
    std::vector<Digest> digests;
    for (const uint32_t number : numbers) digests.push_back(maker_.Block(number).digest);
    const Lease lease = OrDie(session_->Acquire(variant_, digests));
    for (size_t i = 0; i < numbers.size(); ++i) {
      size_t at = 0;
      for (const Segment& segment : cache_.payload().table.segments) {
        at += segment.bytes;
        for (; at % kSegmentAlign != 0 && at < lease.View(i).size(); ++at)
          if (lease.View(i)[at] != std::byte{0}) Die(3, "padding that is not zero");
      }
    }
  }
  [[noreturn]] void Churn() {
    Say("ready");
    for (;;) {
      std::vector<uint32_t> numbers(1 + random_() % 12);
      for (uint32_t& number : numbers) number = static_cast<uint32_t>(random_() % kNumbers);
      std::ranges::sort(numbers);
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
      const auto first = static_cast<uint32_t>(random_() % kLayers);
      if (random_() % 3 == 0)
        Put(numbers);
      else
        Load(numbers, {first, 1 + static_cast<uint32_t>(random_() % (kLayers - first))},
             random_() % 4 == 0);
    }
  }

 private:
  std::vector<Cache::Place> RandomPlaces(size_t count) {
    std::vector<uint32_t> all(kBlocks);
    std::iota(all.begin(), all.end(), 0u);
    std::ranges::shuffle(all, random_);
    std::vector<Cache::Place> places;
    for (size_t i = 0; i < count; ++i) places.push_back(cache_.PlaceOf(all[i]));
    return places;
  }
  // A busy daemon may have a full pool or miss a deadline.  Any other error ends the process.
  static uint32_t MayFail(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status) && !absl::IsDeadlineExceeded(status))
      Die(1, status.ToString());
    return 0;
  }

  std::mt19937 random_;
  BlockMaker maker_;
  const std::unique_ptr<Device> device_;
  Cache cache_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::unique_ptr<PagedCache> paged_;
};

[[noreturn]] void Own(const std::string& dir, uint32_t seed) {
  const std::unique_ptr<Device> device = OrDie(OpenTestDevice());
  const bool cuda = device->info().kind == DeviceKind::kCuda;
  const auto memory =
      OrDie(device->Allocate(ByteCount(kSharedBytes),
                             cuda && seed % 2 == 1 ? SharePath::kHandle : SharePath::kDescriptor));
  const auto buffer = OrDie(device->AllocatePinned(ByteCount(kSharedBytes)));
  const auto queue = OrDie(device->MakeQueue());
  const std::span bytes(const_cast<std::byte*>(buffer->bytes().data()), kSharedBytes);
  FillShared(seed, bytes);
  const DeviceCopy copy{memory->address(), reinterpret_cast<uint64_t>(bytes.data()), kSharedBytes};
  OrDie(queue->CopyBatch(CopyDirection::kToDevice, std::span(&copy, 1)));
  OrDie(queue->Wait());
  const auto client = OrDie(Client::Connect({.socket_dir = dir}));
  const ShareTicket ticket = OrDie(client->ShareMemory(OrDie(device->Export(*memory))));
  Say("ticket " + Digest{ticket}.Hex());
  for (;;) pause();
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  using namespace larder::e2e;
  if (argc != 5) Die(2, "usage: paged_engine SOCKET_DIR MODE VERB SEED");
  const std::string verb = argv[3];
  const auto seed = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10));
  if (verb == "own") Own(argv[1], seed);
  Engine engine(argv[1], ModeOf(argv[2]), seed);
  if (verb == "churn") engine.Churn();
  if (verb == "tell") engine.Tell(seed);
  if (verb != "once") Die(2, "no verb " + verb);
  engine.Once(seed);
}
