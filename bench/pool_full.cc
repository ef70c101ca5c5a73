// What does a full pool cost a writer?  Four client processes put always new 1 MiB blocks, mapped,
// into a pool of 2 GiB where every put evicts, against the same puts into a pool that has capacity
// for all blocks.  And is the limit respected meanwhile?
//
// Two daemons run at once, one per pool; rounds alternate.  The full pool's use is sampled through
// Admin.Stats all the time.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/blocks.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "bench/harness/worker.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr char kRate[] = "host_put_full_pool";
constexpr char kAbove[] = "pool_bytes_above_limit";
constexpr size_t kClients = 4;
constexpr uint64_t kRingBytes = 64 << 20;
constexpr uint64_t kFullPoolBytes = 2ull << 30;
constexpr uint64_t kRoundBytes = 128 << 20;  // by each client
constexpr double kHeadStart_s = 0.03;
constexpr auto kSamplePeriod = std::chrono::milliseconds(2);

const BlockShape& Shape() { return ShapeNamed("1mib"); }

// ---- a client process; its argument is SOCKET_DIR.  The command START BYTES puts and is answered
// with the time at which the puts ended; if BYTES is 0, it maps the pool instead

// Mapping a slab for the first time fills page tables, which is not part of the question, so it
// happens before.  The empty pool is reserved as a whole, touched, and released.
absl::Status MapWholePool(Attachment& engine) {
  constexpr uint64_t kPiece = 16 << 20;
  const uint64_t pool = engine.session->attached().lease_bytes_max.value();
  const std::vector<ByteCount> sizes(pool / kPiece, ByteCount(kPiece));
  // The release of the previous client may still be under way.
  const double until = SecondsNow() + 10;
  auto reservation = engine.session->Reserve(sizes);
  while (absl::IsResourceExhausted(reservation.status()) && SecondsNow() < until) {
    SleepUntil(SecondsNow() + 0.01);
    reservation = engine.session->Reserve(sizes);
  }
  LARDER_RETURN_IF_ERROR(reservation.status());
  for (size_t i = 0; i < reservation->size(); ++i) {
    if (reservation->Bytes(i).empty()) return absl::InternalError("an extent cannot be mapped");
  }
  return absl::OkStatus();
}

int Work(const WorkerArguments& arguments) {
  SessionOptions options;
  options.engine_id = absl::StrCat("bench-", arguments.index);
  auto engine = AttachBench(arguments.rest.at(0), Shape(), options);
  if (!engine.ok()) return ServeWorker(engine.status(), {});
  const Memory ring(kRingBytes, Memory::Kind::kPrivate);
  ring.FillRandom();
  uint64_t salt = uint64_t{arguments.index} << 32;
  const auto handle = [&](const std::vector<double>& command) -> absl::StatusOr<std::string> {
    if (command.at(1) == 0) {
      LARDER_RETURN_IF_ERROR(MapWholePool(*engine));
      return "mapped";
    }
    const Names names =
        MakeNames(engine->seed, ++salt, static_cast<size_t>(command.at(1)) / Shape().bytes());
    const PutPlan puts =
        PlanPuts(Shape(), names, ring.bytes(), ShuffledOrder(kRingBytes / Shape().bytes(), salt));
    SleepUntil(command.at(0));
    const auto put = [&](std::span<const PutBlock> batch) { return PutAll(*engine, batch, {}); };
    LARDER_RETURN_IF_ERROR(InBatches(puts.blocks, put));
    return absl::StrFormat("%.9f", SecondsNow());
  };
  return ServeWorker(absl::OkStatus(), handle);
}

// ---- the parent

// Bytes of all clients, divided by the time until the last one was done.
absl::StatusOr<double> PutRate(WorkerGroup& clients, uint64_t bytes_each) {
  const double start = SecondsNow() + kHeadStart_s;
  LARDER_ASSIGN_OR_RETURN(const auto answers,
                          clients.Ask(absl::StrFormat("%.6f %d", start, bytes_each)));
  double end = start;
  for (const std::string& answer : answers) end = std::max(end, std::atof(answer.c_str()));
  return static_cast<double>(bytes_each * kClients) / (end - start);
}

// Samples the use of a pool until Stop.
class LimitSampler {
 public:
  LimitSampler(const DaemonProcess& daemon, uint64_t limit)
      : thread_([this, &daemon, limit] {
          while (!stop_) {
            if (const auto memory = daemon.Stats(); memory.ok()) {
              ++samples_;
              used_ = std::max(used_, memory->used.value());
              above_ = std::max(above_, used_ > limit ? used_ - limit : 0);
            }
            std::this_thread::sleep_for(kSamplePeriod);
          }
        }) {}
  ~LimitSampler() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // REQUIRES: Stop was called.
  [[nodiscard]] uint64_t samples() const { return samples_; }
  [[nodiscard]] uint64_t used_max() const { return used_; }
  [[nodiscard]] uint64_t above_max() const { return above_; }

 private:
  std::atomic<bool> stop_{false};
  uint64_t samples_ = 0, used_ = 0, above_ = 0;
  std::thread thread_;
};

absl::Status Run(Harness& harness) {
  // Capacity for all rounds and their warm-up, plus more than the watermark needs.
  const uint64_t roomy_bytes =
      (static_cast<uint64_t>(harness.rounds()) + 3) * kRoundBytes * kClients;
  const std::vector<std::string> flags = {"--lease-share", "1"};
  LARDER_ASSIGN_OR_RETURN(auto full, DaemonProcess::Start({ByteCount(kFullPoolBytes), flags}));
  LARDER_ASSIGN_OR_RETURN(auto roomy, DaemonProcess::Start({ByteCount(roomy_bytes), flags}));
  LARDER_ASSIGN_OR_RETURN(auto full_clients, WorkerGroup::Start(kClients, {full->socket_dir()}));
  LARDER_ASSIGN_OR_RETURN(auto roomy_clients, WorkerGroup::Start(kClients, {roomy->socket_dir()}));

  for (WorkerGroup* clients : {&full_clients, &roomy_clients}) {
    LARDER_RETURN_IF_ERROR(clients->AskInTurn("0 0"));
  }

  LimitSampler sampler(*full, kFullPoolBytes);
  if (auto filled = PutRate(full_clients, kFullPoolBytes / 2); !filled.ok()) return filled.status();
  const Contestant contestants[] = {[&] { return PutRate(full_clients, kRoundBytes); },
                                    [&] { return PutRate(roomy_clients, kRoundBytes); }};
  LARDER_ASSIGN_OR_RETURN(const auto rates, Interleave(harness, harness.rounds(), contestants));
  sampler.Stop();
  if (sampler.samples() == 0)
    return absl::InternalError("Admin.Stats did not answer while clients were writing");
  harness.Report({kRate, Median(rates[0]), "B/s", Median(rates[1]), MedianRatio(rates[0], rates[1]),
                  harness.rounds()});
  harness.Note(
      absl::StrCat(kClients, " client processes; floor: the same into a pool that never fills"));
  harness.Report({kAbove, static_cast<double>(sampler.above_max()), "B", std::nullopt, std::nullopt,
                  harness.rounds()});
  harness.Note(absl::StrCat(sampler.samples(), " samples; at most ", sampler.used_max(), " of ",
                            kFullPoolBytes, " B stored and reserved"));
  return absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  if (const auto worker = ParseWorker(argc, argv)) return Work(*worker);
  Harness harness(argc, argv, {kRate, kAbove});
  if (harness.done()) return *harness.done();
  const absl::Status status = Run(harness);
  return status.ok() ? 0 : harness.Fail(status);
}
