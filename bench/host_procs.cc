// Do many engine processes together get as much as the memory gives?  Blocks of 1 MiB in batches of
// 16, in random order over 1 GiB, by 1, 8 and 32 client processes (one thread each; a single
// process may copy with as many threads as there are cores), against one process in which as many
// threads as cores run the fastest copy kernel over the same blocks.
//
// Each process and each thread copies into its own ring of 64 MiB, for the same span of time; the
// rates are summed.
#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/blocks.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "bench/harness/worker.h"
#include "storage/memory/copy_kernels.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr uint64_t kDataBytes = 1 << 30;
constexpr uint64_t kRingBytes = 64 << 20;
constexpr double kHeadStart_s = 0.03;  // from the command to the common start
constexpr size_t kProcessCounts[] = {1, 8, 32};

const BlockShape& Shape() { return ShapeNamed("1mib"); }
size_t Blocks() { return kDataBytes / Shape().bytes(); }
uint32_t Cores() { return std::max(1u, std::thread::hardware_concurrency()); }
std::string FigureName(size_t processes) { return absl::StrCat("host_get_procs_", processes); }

// Runs batch(i) for i = 0, 1, ... from `start` until `seconds` have passed; returns bytes per
// second.
template <class Batch>
absl::StatusOr<double> RateOver(double start, double seconds, Batch batch) {
  SleepUntil(start);
  const double begin = SecondsNow();
  double now = begin;
  uint64_t bytes = 0;
  for (size_t i = 0; now < start + seconds || bytes == 0; ++i) {
    LARDER_RETURN_IF_ERROR(batch(i));
    bytes += kBatchBlocks * Shape().bytes();
    now = SecondsNow();
  }
  return static_cast<double>(bytes) / (now - begin);
}

// ---- a client process; its arguments are SOCKET_DIR COPY_THREADS

int Work(const WorkerArguments& arguments) {
  SessionOptions options;
  options.engine_id = absl::StrCat("bench-", arguments.index);
  options.copy_threads = static_cast<uint32_t>(std::atoi(arguments.rest.at(1).c_str()));
  auto engine = AttachBench(arguments.rest.at(0), Shape(), options);
  if (!engine.ok()) return ServeWorker(engine.status(), {});
  const Memory ring(kRingBytes, Memory::Kind::kPrivate);
  const Names names = MakeNames(engine->seed, 1, Blocks());
  const GetPlan gets =
      PlanGets(Shape(), names.digests, ShuffledOrder(Blocks(), arguments.index), ring.bytes());
  const auto handle = [&](const std::vector<double>& command) -> absl::StatusOr<std::string> {
    const size_t batches = gets.blocks.size() / kBatchBlocks;
    LARDER_ASSIGN_OR_RETURN(
        const auto rate, RateOver(command.at(0), command.at(1), [&](size_t i) {
          return GetAll(*engine,
                        std::span(gets.blocks).subspan(i % batches * kBatchBlocks, kBatchBlocks));
        }));
    return absl::StrFormat("%.0f", rate);
  };
  return ServeWorker(absl::OkStatus(), handle);
}

// ---- the parent

absl::StatusOr<double> OursRate(WorkerGroup& workers, double seconds) {
  LARDER_ASSIGN_OR_RETURN(
      const auto answers,
      workers.Ask(absl::StrFormat("%.6f %.6f", SecondsNow() + kHeadStart_s, seconds)));
  double sum = 0;
  for (const std::string& answer : answers) sum += std::atof(answer.c_str());
  return sum;
}

// As many threads as cores; each copies all blocks in an order of its own.
double FloorRate(const CopyKernel& kernel, std::span<const std::span<const std::byte>> blocks,
                 std::span<const std::unique_ptr<Memory>> rings, double seconds) {
  std::vector<double> rates(rings.size());
  std::vector<std::thread> threads;
  const double start = SecondsNow() + kHeadStart_s;
  for (size_t t = 0; t < rings.size(); ++t) {
    threads.emplace_back([&, t] {
      const std::vector<uint32_t> order = ShuffledOrder(blocks.size(), t);
      const auto rate = RateOver(start, seconds, [&](size_t batch) {
        for (size_t i = batch * kBatchBlocks; i < (batch + 1) * kBatchBlocks; ++i) {
          kernel.Copy(RingPiece(rings[t]->bytes(), i, Shape().bytes()),
                      blocks[order[i % order.size()]]);
        }
        StoreFence();
        return absl::OkStatus();
      });
      rates[t] = rate.ok() ? *rate : 0;
    });
  }
  double sum = 0;
  for (size_t t = 0; t < threads.size(); ++t) {
    threads[t].join();
    sum += rates[t];
  }
  return sum;
}

absl::Status Measure(Harness& harness, const std::string& socket_dir, size_t processes,
                     std::span<const std::span<const std::byte>> blocks,
                     std::span<const std::unique_ptr<Memory>> rings) {
  const uint32_t copy_threads = processes == 1 ? Cores() : 1;
  LARDER_ASSIGN_OR_RETURN(auto workers,
                          WorkerGroup::Start(processes, {socket_dir, absl::StrCat(copy_threads)}));
  const double seconds = harness.quick() ? 0.4 : 1.0;
  const std::vector<CopyKernel> kernels = AllKernels();
  std::vector<Contestant> contestants = {[&] { return OursRate(workers, seconds); }};
  for (const CopyKernel& kernel : kernels) {
    contestants.push_back([&, kernel]() -> absl::StatusOr<double> {
      return FloorRate(kernel, blocks, rings, seconds);
    });
  }
  LARDER_ASSIGN_OR_RETURN(const auto rates, Interleave(harness, harness.rounds(), contestants));
  const std::span<const std::vector<double>> floors = std::span(rates).subspan(1);
  const size_t best = Fastest(floors);
  harness.Report({FigureName(processes), Median(rates.front()), "B/s", Median(floors[best]),
                  MedianRatio(rates.front(), floors[best]), harness.rounds()});
  std::string note = absl::StrFormat(
      "copy threads per process %d; floor: %s on %d threads; floors GB/s:", copy_threads,
      kernels[best].name(), Cores());
  for (size_t k = 0; k < kernels.size(); ++k) {
    absl::StrAppendFormat(&note, " %s %.2f", kernels[k].name(), Median(floors[k]) / 1e9);
  }
  harness.Note(note);
  return absl::OkStatus();
}

absl::Status Run(Harness& harness) {
  LARDER_ASSIGN_OR_RETURN(auto daemon, DaemonProcess::Start({MiB(1536), {}}));
  SessionOptions options;
  options.engine_id = "bench-writer";
  LARDER_ASSIGN_OR_RETURN(auto engine, AttachBench(daemon->socket_dir(), Shape(), options));
  std::vector<std::unique_ptr<Memory>> rings;
  for (uint32_t t = 0; t < Cores(); ++t) {
    rings.push_back(std::make_unique<Memory>(kRingBytes, Memory::Kind::kPrivate));
  }
  rings[0]->FillRandom();
  const Names names = MakeNames(engine.seed, 1, Blocks());
  const PutPlan puts =
      PlanPuts(Shape(), names, rings[0]->bytes(), ShuffledOrder(kRingBytes / Shape().bytes(), 1));
  const auto put = [&](std::span<const PutBlock> batch) { return PutAll(engine, batch, {}); };
  LARDER_RETURN_IF_ERROR(InBatches(puts.blocks, put));
  LARDER_ASSIGN_OR_RETURN(const auto blocks, MappedBlocks(engine, Shape(), names.digests));
  for (const size_t processes : kProcessCounts) {
    if (!harness.Wants(FigureName(processes))) continue;
    LARDER_RETURN_IF_ERROR(Measure(harness, daemon->socket_dir(), processes, blocks, rings));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  if (const auto worker = ParseWorker(argc, argv)) return Work(*worker);
  std::vector<std::string> figures;
  for (const size_t processes : kProcessCounts) figures.push_back(FigureName(processes));
  Harness harness(argc, argv, figures);
  if (harness.done()) return *harness.done();
  const absl::Status status = Run(harness);
  return status.ok() ? 0 : harness.Fail(status);
}
