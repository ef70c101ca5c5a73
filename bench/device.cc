// How close does the device layer come to what the GPU can do?
//
//   bench_device [--quick] [--json FILE] [NAME...]   without a GPU it says so and exits with 0
//
// device_to_SIZE, device_from_SIZE
//     copies 1 GiB between the device and a memfd that is mapped and registered as a client does it
//     with the pool's slabs, in pieces of SIZE; floor: a cuMemcpyAsync for each piece, with host
//     memory of cuMemHostAlloc
// device_gather_*, device_scatter_*
//     moves 1 GiB of blocks of Llama-3-8B's shape (32 layers, 8 heads of 128, bf16; pages of 16
//     tokens) between pages and payloads; floor: one cuMemcpyAsync device to device
// device_gather_4sm, device_scatter_4sm
//     the same with at most 4 multiprocessors; floor: device_to_1m's floor
// device_gemm_beside_copies, device_gemm_beside_scatter
//     time of a bf16 matrix product of 8192^3 while a restore runs that only uses the copy engines,
//     or that also scatters with 4 multiprocessors; floor: the product without a restore
// device_register
//     registers 4 GiB of a memfd with Pin; no floor
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/harness.h"
#include "bench/matrix_product.h"
#include "cuda/cuda_device.h"
#include "cuda/driver_symbols.h"
#include "cuda/paged_plan.h"
#include "storage/check.h"

namespace larder::bench {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 30;
constexpr uint32_t kFewMultiprocessors = 4;

struct Piece {
  const char* name;
  uint64_t bytes;
};
constexpr Piece kPieces[] = {{"64k", 64 << 10}, {"256k", 256 << 10}, {"1m", 1 << 20},
                             {"4m", 4 << 20},   {"16m", 16 << 20},   {"64m", 64 << 20}};

struct MoveShape {
  const char* name;
  uint32_t block_tokens;
  bool heads_first;  // the engine's pages are HND, the payload is NHD
};
constexpr MoveShape kMoves[] = {
    {"16", 16, false}, {"256", 256, false}, {"16_hnd", 16, true}, {"256_hnd", 256, true}};

std::vector<std::string> Figures() {
  std::vector<std::string> names;
  for (const Piece& piece : kPieces)
    for (const char* way : {"to", "from"})
      names.push_back(absl::StrCat("device_", way, "_", piece.name));
  for (const MoveShape& move : kMoves)
    for (const char* way : {"gather", "scatter"})
      names.push_back(absl::StrCat("device_", way, "_", move.name));
  for (const char* name :
       {"device_gather_4sm", "device_scatter_4sm", "device_gemm_beside_copies",
        "device_gemm_beside_scatter", "device_gemm_beside_urgent_scatter", "device_register"})
    names.emplace_back(name);
  return names;
}

// A memfd, mapped as a client maps a slab of the pool.
class Slab {
 public:
  explicit Slab(uint64_t bytes) : bytes_(bytes) {
    const int fd = memfd_create("bench-slab", MFD_CLOEXEC);
    LARDER_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    LARDER_CHECK(at_ != MAP_FAILED);
    close(fd);
    std::memset(at_, 0x5A, bytes);
  }
  ~Slab() { munmap(at_, bytes_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<std::byte*>(at_), bytes_};
  }
  [[nodiscard]] uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }

 private:
  const uint64_t bytes_;
  void* at_ = nullptr;
};

template <class T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "bench_device: %s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}
void OrDie(const absl::Status& status) {
  (void)OrDie(absl::StatusOr<int>(status.ok() ? absl::StatusOr<int>(0) : status));
}

// The device under test, and the driver's own functions in the same context.
class Lab {
 public:
  explicit Lab(std::unique_ptr<Device> device)
      : device_(std::move(device)),
        driver_(OrDie(CudaSymbols::Load())),
        queue_(OrDie(device_->MakeQueue())) {
    CUcontext context = nullptr;
    Must(driver_.cuDevicePrimaryCtxRetain(&context, 0));
    Must(driver_.cuCtxPushCurrent_v2(context));
    Must(driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
  }
  ~Lab() {
    driver_.cuStreamDestroy_v2(stream_);
    driver_.cuDevicePrimaryCtxRelease_v2(0);
  }
  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] DeviceQueue& queue() { return *queue_; }
  void Must(CUresult result) const { OrDie(driver_.StatusOf(result, "the driver")); }
  void PlainCopy(uint64_t to, uint64_t from, uint64_t bytes) const {
    Must(driver_.cuMemcpyAsync(to, from, bytes, stream_));
  }
  void PlainWait() const { Must(driver_.cuStreamSynchronize(stream_)); }

 private:
  const std::unique_ptr<Device> device_;
  const CudaSymbols driver_;
  const std::unique_ptr<DeviceQueue> queue_;
  CUstream stream_ = nullptr;
};

// Seconds from the start of work() until wait() has seen its queue become empty.
template <class Work, class Wait>
double Seconds(Work work, Wait wait) {
  const double start = SecondsNow();
  work();
  wait();
  return SecondsNow() - start;
}

std::vector<uint64_t> ShuffledOffsets(uint64_t piece, uint64_t seed) {
  std::vector<uint64_t> offsets(kBytes / piece);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = i * piece;
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937_64(seed));
  return offsets;
}

void Report(Harness& harness, const std::string& name,
            const std::vector<std::vector<double>>& rates) {
  harness.Report({.name = name,
                  .value = Median(rates[0]),
                  .unit = "B/s",
                  .floor = Median(rates[1]),
                  .ratio = MedianRatio(rates[0], rates[1]),
                  .rounds = static_cast<int>(rates[0].size())});
}

// ---- copies

class Copies {
 public:
  explicit Copies(Lab& lab)
      : lab_(lab),
        slab_(kBytes),
        pinned_(OrDie(lab.device().Pin(slab_.bytes(), {}))),
        plain_(OrDie(lab.device().AllocatePinned(ByteCount(kBytes)))),
        there_(OrDie(lab.device().Allocate(ByteCount(kBytes)))) {
    pinned_->WaitDecided();
  }
  double Ours(const Piece& piece, bool to_device) {
    std::vector<DeviceCopy> copies;
    const auto from = ShuffledOffsets(piece.bytes, 1), to = ShuffledOffsets(piece.bytes, 2);
    for (size_t i = 0; i < from.size(); ++i) {
      const uint64_t host = slab_.address() + from[i], device = there_->address() + to[i];
      copies.push_back(to_device ? DeviceCopy{device, host, piece.bytes}
                                 : DeviceCopy{host, device, piece.bytes});
    }
    const auto way = to_device ? CopyDirection::kToDevice : CopyDirection::kFromDevice;
    return kBytes / Seconds([&] { OrDie(lab_.queue().CopyBatch(way, copies)); },
                            [&] { OrDie(lab_.queue().Wait()); });
  }
  double Floor(const Piece& piece, bool to_device) {
    const auto from = ShuffledOffsets(piece.bytes, 1), to = ShuffledOffsets(piece.bytes, 2);
    const auto host = reinterpret_cast<uint64_t>(plain_->bytes().data());
    return kBytes /
           Seconds(
               [&] {
                 for (size_t i = 0; i < from.size(); ++i)
                   to_device
                       ? lab_.PlainCopy(there_->address() + to[i], host + from[i], piece.bytes)
                       : lab_.PlainCopy(host + from[i], there_->address() + to[i], piece.bytes);
               },
               [&] { lab_.PlainWait(); });
  }

 private:
  Lab& lab_;
  const Slab slab_;
  const std::unique_ptr<PinnedMemory> pinned_, plain_;
  const std::unique_ptr<DeviceMemory> there_;
};

void RunCopies(Harness& harness, Lab& lab) {
  Copies copies(lab);
  for (const Piece& piece : kPieces)
    for (const bool to_device : {true, false}) {
      const std::string name = absl::StrCat("device_", to_device ? "to_" : "from_", piece.name);
      if (!harness.Wants(name)) continue;
      const Contestant both[] = {[&] { return copies.Ours(piece, to_device); },
                                 [&] { return copies.Floor(piece, to_device); }};
      Report(harness, name, OrDie(Interleave(harness, harness.rounds(), both)));
    }
}

// ---- gather and scatter

// A paged cache of Llama-3-8B's shape, and payloads with as many bytes.
class Pages {
 public:
  Pages(Lab& lab, const MoveShape& shape)
      : cache_(OrDie(lab.device().Allocate(ByteCount(kBytes)))),
        payloads_(OrDie(lab.device().Allocate(ByteCount(kBytes)))),
        plan_(OrDie(PagedPlan::Make(Engine(shape), Payload(shape)))) {
    const uint64_t block_bytes = plan_.BytesPerBlock({0, kLayers}).value();
    const uint32_t per_block = plan_.tiles_per_plane();
    pages_.resize(kPages);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937_64(3));
    for (uint64_t b = 0; b < kBytes / block_bytes; ++b)
      blocks_.push_back({payloads_->address() + b * block_bytes,
                         std::span(pages_).subspan(b * per_block, per_block), 0});
  }
  void Move(DeviceQueue& queue, bool gather, uint32_t multiprocessors) const {
    const PagedMove move{{0, kLayers}, blocks_, multiprocessors};
    OrDie(gather ? queue.Gather(plan_, move) : queue.Scatter(plan_, move));
  }
  // Scatters `count` blocks, from block `first` on.
  void Scatter(DeviceQueue& queue, size_t first, size_t count, uint32_t multiprocessors) const {
    OrDie(queue.Scatter(plan_,
                        {{0, kLayers}, std::span(blocks_).subspan(first, count), multiprocessors}));
  }
  [[nodiscard]] uint64_t cache() const { return cache_->address(); }
  [[nodiscard]] uint64_t payloads() const { return payloads_->address(); }

 private:
  static constexpr uint32_t kLayers = 32, kHeads = 8, kRow = 256, kPageTokens = 16;
  static constexpr uint64_t kPlane = uint64_t{kPageTokens} * kHeads * kRow;
  static constexpr uint32_t kPages = kBytes / (kPlane * 2 * kLayers);

  [[nodiscard]] PagedLayout Engine(const MoveShape& shape) const {
    PagedLayout engine{.layers = kLayers,
                       .planes = 2,
                       .heads = kHeads,
                       .row_bytes = kRow,
                       .page_tokens = kPageTokens,
                       .pages = kPages,
                       .page_stride = kPlane,
                       .token_stride = shape.heads_first ? kRow : kHeads * kRow,
                       .head_stride = shape.heads_first ? kPageTokens * kRow : kRow,
                       .bases = {}};
    for (uint32_t plane = 0; plane < 2 * kLayers; ++plane)
      engine.bases.push_back(cache_->address() + plane * kPlane * kPages);
    return engine;
  }
  static PayloadLayout Payload(const MoveShape& shape) {
    return {.block_tokens = shape.block_tokens,
            .order = RowOrder::kTokenHead,
            .table = UniformTable(kLayers, 2 * kHeads * kRow * shape.block_tokens)};
  }

  const std::unique_ptr<DeviceMemory> cache_, payloads_;
  const PagedPlan plan_;
  std::vector<uint32_t> pages_;
  std::vector<PagedBlock> blocks_;
};

void RunMoves(Harness& harness, Lab& lab) {
  for (const MoveShape& shape : kMoves)
    for (const bool gather : {true, false}) {
      const std::string name = absl::StrCat("device_", gather ? "gather_" : "scatter_", shape.name);
      if (!harness.Wants(name)) continue;
      const Pages pages(lab, shape);
      const Contestant both[] = {
          [&] {
            return kBytes / Seconds([&] { pages.Move(lab.queue(), gather, 0); },
                                    [&] { OrDie(lab.queue().Wait()); });
          },
          [&] {
            return kBytes / Seconds([&] { lab.PlainCopy(pages.cache(), pages.payloads(), kBytes); },
                                    [&] { lab.PlainWait(); });
          }};
      Report(harness, name, OrDie(Interleave(harness, harness.rounds(), both)));
    }
}

void RunFewMultiprocessors(Harness& harness, Lab& lab) {
  for (const bool gather : {true, false}) {
    const std::string name = gather ? "device_gather_4sm" : "device_scatter_4sm";
    if (!harness.Wants(name)) continue;
    const Pages pages(lab, kMoves[2]);
    Copies copies(lab);
    const Contestant both[] = {
        [&] {
          return kBytes / Seconds([&] { pages.Move(lab.queue(), gather, kFewMultiprocessors); },
                                  [&] { OrDie(lab.queue().Wait()); });
        },
        [&] { return copies.Floor(kPieces[2], true); }};
    Report(harness, name, OrDie(Interleave(harness, harness.rounds(), both)));
  }
}

// ---- beside an engine's work

// A restore that runs for as long as its owner calls Feed, as client/paged_cache does it: copies on
// one queue, scatters on the other.
class BusyRestore {
 public:
  BusyRestore(Lab& lab, const Pages& pages, bool scatter)
      : slab_(kStep),
        pinned_(OrDie(lab.device().Pin(slab_.bytes(), {}))),
        pages_(pages),
        scatter_(scatter),
        copies_(OrDie(lab.device().MakeQueue())),
        moves_(OrDie(lab.device().MakeQueue())) {
    pinned_->WaitDecided();
  }
  // Keeps the queues filled.  The owner must call it often.
  void Feed() {
    while (under_way_.size() < kSlots) {
      const uint64_t slot = steps_ % kSlots;
      if (done_[slot] != nullptr) OrDie(copies_->WaitFor(*done_[slot]));
      const DeviceCopy copy{pages_.payloads() + slot * kStep, slab_.address(), kStep};
      OrDie(copies_->CopyBatch(CopyDirection::kToDevice, std::span(&copy, 1)));
      if (scatter_) {
        OrDie(moves_->WaitFor(*OrDie(copies_->Record())));
        pages_.Scatter(*moves_, slot * kStepBlocks, kStepBlocks, kFewMultiprocessors);
      }
      DeviceQueue& last = scatter_ ? *moves_ : *copies_;
      done_[slot] = OrDie(last.Record());
      under_way_.push_back(OrDie(last.Record()));
      ++steps_;
    }
    while (!under_way_.empty() && OrDie(under_way_.front()->Done()))
      under_way_.erase(under_way_.begin());
  }
  [[nodiscard]] uint64_t bytes() const { return (steps_ - under_way_.size()) * kStep; }

 private:
  static constexpr uint64_t kStep = 64 << 20;
  static constexpr size_t kStepBlocks = 32;  // blocks of 2 MiB
  static constexpr size_t kSlots = 4;
  const Slab slab_;
  const std::unique_ptr<PinnedMemory> pinned_;
  const Pages& pages_;
  const bool scatter_;
  const std::unique_ptr<DeviceQueue> copies_, moves_;
  std::unique_ptr<DeviceEvent> done_[kSlots];
  std::vector<std::unique_ptr<DeviceEvent>> under_way_;
  uint64_t steps_ = 0;
};

void RunGemm(Harness& harness, Lab& lab) {
  for (const bool scatter : {false, true}) {
    const std::string name = scatter ? "device_gemm_beside_scatter" : "device_gemm_beside_copies";
    if (!harness.Wants(name)) continue;
    absl::StatusOr<std::unique_ptr<MatrixProduct>> product = MatrixProduct::Make(lab.device());
    if (!product.ok()) {
      harness.Note(absl::StrCat(name, " is left out: ", product.status().message()));
      continue;
    }
    const Pages pages(lab, kMoves[2]);
    double restored = 0;
    constexpr int kProducts = 200;
    const auto beside = [&]() -> absl::StatusOr<double> {
      BusyRestore restore(lab, pages, scatter);
      restore.Feed();
      const double start = SecondsNow();
      OrDie((*product)->Start(kProducts));
      while (!OrDie((*product)->Done())) restore.Feed();
      const double seconds = SecondsNow() - start;
      restored = static_cast<double>(restore.bytes()) / seconds;
      return seconds / kProducts;
    };
    const auto alone = [&]() -> absl::StatusOr<double> {
      const double start = SecondsNow();
      OrDie((*product)->Start(kProducts));
      while (!OrDie((*product)->Done())) {
      }
      return (SecondsNow() - start) / kProducts;
    };
    const Contestant both[] = {beside, alone};
    const auto seconds = OrDie(Interleave(harness, harness.rounds(), both));
    harness.Report({.name = name,
                    .value = Median(seconds[0]),
                    .unit = "s",
                    .floor = Median(seconds[1]),
                    .ratio = MedianRatio(seconds[0], seconds[1]),
                    .rounds = harness.rounds()});
    harness.Note(absl::StrFormat("restored meanwhile: %s; product alone: %.0f TFLOP/s",
                                 Pretty(restored, "B/s"),
                                 MatrixProduct::kOperations / Median(seconds[1]) / 1e12));
  }
}

void RunRegister(Harness& harness, Lab& lab) {
  if (!harness.Wants("device_register")) return;
  const Slab slab(4 * kBytes);
  for (const int threads : {1, 2, 4}) {
    std::vector<double> rates;
    for (int round = 0; round < harness.rounds(); ++round) {
      const double start = SecondsNow();
      const auto pinned = OrDie(lab.device().Pin(slab.bytes(), {.threads = threads}));
      pinned->WaitDecided();
      rates.push_back(static_cast<double>(slab.bytes().size()) / (SecondsNow() - start));
    }
    if (threads == PinOptions().threads)
      harness.Report({.name = "device_register",
                      .value = Median(rates),
                      .unit = "B/s",
                      .floor = {},
                      .ratio = {},
                      .rounds = harness.rounds()});
    else
      harness.Note(absl::StrFormat("device_register with %d threads: %s", threads,
                                   Pretty(Median(rates), "B/s")));
  }
}

int Run(Harness& harness) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenCudaDevice(0);
  if (absl::IsUnavailable(device.status())) {
    harness.Note(absl::StrCat("not run: ", device.status().message()));
    return 0;
  }
  Lab lab(OrDie(std::move(device)));
  const DeviceInfo& info = lab.device().info();
  std::printf("%s, %s of memory, %u multiprocessors, driver %s\n", info.name.c_str(),
              Pretty(static_cast<double>(info.memory.value()), "B").c_str(), info.multiprocessors,
              info.driver.c_str());
  for (const std::string& limit : info.limits) harness.Note(limit);
  RunCopies(harness, lab);
  RunMoves(harness, lab);
  RunFewMultiprocessors(harness, lab);
  RunGemm(harness, lab);
  RunRegister(harness, lab);
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  larder::bench::Harness harness(argc, argv, larder::bench::Figures());
  if (harness.done()) return *harness.done();
  return larder::bench::Run(harness);
}
