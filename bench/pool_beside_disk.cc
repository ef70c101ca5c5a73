// Does the disk slow down the pool?  Gets from the pool every 10 ms while the disk is slow, or
// while the daemon spills, evicts and promotes.
//
// The disk is the one that holds the build tree.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/harness/disk_node.h"
#include "bench/harness/temporary_directory.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr char kUnderSpill[] = "host_get_under_spill_p99";
constexpr char kSlowDisk[] = "host_get_slow_disk_p99";
constexpr int kRounds = 5;
constexpr int kProbes = 300;
constexpr auto kProbePeriod = std::chrono::milliseconds(10);

// Acquires batch after batch on its own thread, starting at most one every `period_s` seconds.
class Reader {
 public:
  using NextBatch = std::function<std::vector<Digest>()>;
  Reader(Attachment& engine, double period_s, NextBatch next)
      : engine_(engine), period_s_(period_s), next_(std::move(next)), thread_([this] { Run(); }) {}
  ~Reader() { (void)Stop(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  // Waits for the acquire that is under way; returns the first error.
  absl::Status Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  [[nodiscard]] bool waits() const { return waits_; }
  // The seconds of the fastest acquire.
  // REQUIRES: Stop was called.
  [[nodiscard]] double least_s() const { return least_s_; }

 private:
  void Run() {
    CallOptions longer;
    longer.deadline = std::chrono::seconds(60);
    while (!stop_ && status_.ok()) {
      const std::vector<Digest> digests = next_();
      const double start = SecondsNow();
      waits_ = true;
      status_ = engine_.session->Acquire(engine_.variant, digests, longer).status();
      waits_ = false;
      const double took = SecondsNow() - start;
      least_s_ = std::min(least_s_, took);
      std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, period_s_ - took)));
    }
  }
  Attachment& engine_;
  const double period_s_;
  const NextBatch next_;
  std::atomic<bool> stop_{false}, waits_{false};
  absl::Status status_;
  double least_s_ = kDiskWait_s;
  std::thread thread_;
};

// Gets one block of the pool every 10 ms.
absl::StatusOr<std::vector<double>> Probe(Attachment& engine, const Names& names, int count) {
  const Memory to(kBatchBlocks * Shape().bytes(), Memory::Kind::kPrivate);
  std::vector<double> took;
  for (int i = 0; i < count; ++i) {
    const std::vector<uint32_t> order = {
        static_cast<uint32_t>(static_cast<size_t>(i) % names.size())};
    const GetPlan plan = PlanGets(Shape(), names.digests, order, to.bytes());
    const double start = SecondsNow();
    LARDER_RETURN_IF_ERROR(GetAll(engine, plan.blocks));
    took.push_back(SecondsNow() - start);
    std::this_thread::sleep_for(kProbePeriod);
  }
  return took;
}

constexpr size_t kStockedBlocks = 256;  // reading them takes longer than a round
constexpr char kSlowFaults[] =
    "data.write=sleep:500ms,data.read=sleep:500ms,data.sync=sleep:500ms,catalog.commit=sleep:500ms,"
    "catalog.erase=sleep:500ms,catalog.read=sleep:500ms";
constexpr double kSlow_s = 0.5;

// One round: another session waits for the disk all the time, and so do the blocks that were put.
absl::StatusOr<double> ProbeSlowDisk(const std::string& disk) {
  History stock;
  {
    LARDER_ASSIGN_OR_RETURN(auto node, StartNode({.disk = disk, .pool = GiB(1)}));
    Writer writer(node->engine, 1);
    const Names names = writer.Next(kStockedBlocks);
    LARDER_RETURN_IF_ERROR(writer.PutDurable(names));
    stock.Add(names);
  }  // the daemon is killed: now the disk alone has them
  LARDER_ASSIGN_OR_RETURN(
      auto node,
      StartNode({.disk = disk, .pool = GiB(1), .flags = {"--fault-points", kSlowFaults}}));
  LARDER_ASSIGN_OR_RETURN(auto other, AttachTo(*node, "reader"));
  LARDER_RETURN_IF_ERROR(WaitForBlocks(*node, kStockedBlocks));
  Writer writer(node->engine);
  const Names names = writer.Next(128);
  LARDER_RETURN_IF_ERROR(writer.Put(names));
  Reader reader(other, 0, [&] { return stock.Next(0, kStockedBlocks); });
  const auto took = Probe(node->engine, names, kProbes);
  const bool waits = reader.waits();
  LARDER_RETURN_IF_ERROR(reader.Stop());
  LARDER_RETURN_IF_ERROR(took.status());
  if (!waits || reader.least_s() < kSlow_s)
    return absl::InternalError("the other session did not wait for the slow disk");
  return Quantile(*took, 0.99);
}

absl::StatusOr<double> ProbeIdleDisk(const std::string& disk) {
  LARDER_ASSIGN_OR_RETURN(auto node, StartNode({.disk = disk, .pool = GiB(1)}));
  Writer writer(node->engine);
  const Names names = writer.Next(128);
  LARDER_RETURN_IF_ERROR(writer.PutDurable(names));
  LARDER_ASSIGN_OR_RETURN(const auto took, Probe(node->engine, names, kProbes));
  return Quantile(took, 0.99);
}

absl::Status MeasureSlowDisk(Harness& harness, const std::string& directory) {
  int round = 0;
  const Contestant contestants[] = {
      [&] { return ProbeSlowDisk(absl::StrCat(directory, "/slow-", ++round)); },
      [&] { return ProbeIdleDisk(absl::StrCat(directory, "/idle-", round)); }};
  LARDER_ASSIGN_OR_RETURN(const auto p99, Interleave(harness, kRounds, contestants));
  harness.Report(
      {kSlowDisk, Median(p99[0]), "s", Median(p99[1]), MedianRatio(p99[0], p99[1]), kRounds});
  harness.Note(
      "every operation of the disk takes 500 ms, and another session waits for it all the time; "
      "floor: an idle disk");
  return absl::OkStatus();
}

// The range that is read while the pool of 1024 blocks and the disk of 6 GiB evict: these blocks
// have left the pool and are still on disk.
constexpr size_t kColdFrom = 1536, kColdTo = 4608;
constexpr size_t kFillRounds = 13;
constexpr char kChurnDisk[] = "6GiB";

// Three sessions at one daemon: the measured one, one that puts, and one that reads what the pool
// has evicted.
class Churn {
 public:
  static absl::StatusOr<std::unique_ptr<Churn>> Start(const std::string& disk) {
    std::unique_ptr<Churn> churn(new Churn);
    LARDER_ASSIGN_OR_RETURN(churn->node_,
                            StartNode({.disk = disk, .pool = GiB(1), .limit = kChurnDisk}));
    for (const auto& [name, engine] :
         {std::pair{"writer", &churn->putting_}, std::pair{"reader", &churn->reading_}}) {
      LARDER_ASSIGN_OR_RETURN(*engine, AttachTo(*churn->node_, name));
    }
    churn->writer_ = std::make_unique<Writer>(churn->putting_);
    LARDER_RETURN_IF_ERROR(churn->Fill());
    return churn;
  }
  // Adds one round's 99th percentiles: of an idle daemon, and of one that spills, evicts and
  // promotes.
  absl::Status Round() {
    const Names names = writer_->Next(64);
    LARDER_RETURN_IF_ERROR(writer_->PutDurable(names));
    // Held by a lease, so that none leaves the pool: the time to promote a block is another figure.
    CallOptions longer;
    longer.deadline = std::chrono::minutes(5);
    LARDER_ASSIGN_OR_RETURN(const auto held, node_->engine.session->Acquire(node_->engine.variant,
                                                                            names.digests, longer));
    for (size_t i = 0; i < held.size(); ++i) {
      if (held.status(i) != BlockStatus::kOk) return absl::InternalError(ToString(held.status(i)));
    }
    LARDER_ASSIGN_OR_RETURN(const auto quiet, Probe(node_->engine, names, kProbes));
    LARDER_ASSIGN_OR_RETURN(const auto busy, Busy(names));
    idle.push_back(Quantile(quiet, 0.99));
    under.push_back(Quantile(busy, 0.99));
    return absl::OkStatus();
  }
  std::vector<double> idle, under;        // one for each round
  std::vector<double> spilled, promoted;  // bytes per second, likewise
  uint64_t dropped = 0;                   // blocks, in all rounds
  [[nodiscard]] double rate() const { return rate_; }

 private:
  Churn() = default;
  // Fills the pool and the disk, and takes the disk's rate when both are full.
  absl::Status Fill() {
    std::vector<double> rates;
    for (size_t round = 0; round < kFillRounds; ++round) {
      const Names names = writer_->Next(kRoundBlocks);
      LARDER_ASSIGN_OR_RETURN(const auto rate, writer_->SpillRate(names));
      rates.push_back(rate);
      history_.Add(names);
    }
    rate_ = Median({rates.end() - 5, rates.end()});
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<double>> Busy(const Names& names) {
    const auto durable = [&] { return putting_.session->counters().blocks_durable; };
    const auto brought = [&] {
      return node_->daemon->Counter("larder_blocks_got_total{result=\"disk\"}");
    };
    std::atomic<bool> stop{false};
    absl::Status put;
    size_t batches = 0;
    const auto go_on = [&](size_t so_far) {
      batches = so_far;
      return !stop;
    };
    std::thread load([&] { put = PutAtRate(*writer_, rate_ / 2, go_on, &history_); });
    Reader reader(reading_, Mebibytes(kBatchBlocks) / (rate_ / 4),
                  [&] { return history_.Next(kColdFrom, kColdTo); });
    const double start = SecondsNow();
    const uint64_t durable_before = durable();
    const auto brought_before = brought();
    auto took = Probe(node_->engine, names, kProbes);
    const auto brought_after = brought();
    const uint64_t durable_after = durable();
    const double seconds = SecondsNow() - start;
    stop = true;
    load.join();
    for (const absl::Status& s :
         {reader.Stop(), put, brought_before.status(), brought_after.status()}) {
      LARDER_RETURN_IF_ERROR(s);
    }
    dropped +=
        writer_->CountDropped(batches * kBatchBlocks);  // waits until the disk is done with them
    const auto rate = [&](uint64_t blocks) { return Mebibytes(blocks) / seconds; };
    spilled.push_back(rate(durable_after - durable_before));
    promoted.push_back(rate(*brought_after - *brought_before));
    if (spilled.back() < rate_ / 8 || promoted.back() == 0)
      return absl::InternalError(absl::StrCat(
          "the daemon did not spill and promote meanwhile: spilled ", Pretty(spilled.back(), "B/s"),
          ", promoted ", Pretty(promoted.back(), "B/s")));
    return took;
  }

  std::unique_ptr<Node> node_;
  Attachment putting_, reading_;
  std::unique_ptr<Writer> writer_;
  History history_;
  double rate_ = 0;
};

absl::Status MeasureUnderSpill(Harness& harness, const std::string& directory) {
  LARDER_ASSIGN_OR_RETURN(auto churn, Churn::Start(directory + "/under"));
  for (int round = 0; round < kRounds; ++round) {
    LARDER_RETURN_IF_ERROR(churn->Round());
  }
  const Churn& c = *churn;
  harness.Report(
      {kUnderSpill, Median(c.under), "s", Median(c.idle), MedianRatio(c.under, c.idle), kRounds});
  harness.Note(absl::StrCat("a full disk that takes ", Pretty(c.rate(), "B/s"),
                            ": one session puts at half of that, one "
                            "reads at a quarter of it what the pool evicted; spilled ",
                            Pretty(Median(c.spilled), "B/s"), ", promoted ",
                            Pretty(Median(c.promoted), "B/s"), ", ", c.dropped,
                            " blocks dropped; floor: idle"));
  return absl::OkStatus();
}

absl::Status Run(Harness& harness, const std::string& directory) {
  if (harness.Wants(kSlowDisk)) {
    LARDER_RETURN_IF_ERROR(MeasureSlowDisk(harness, directory));
  }
  return harness.Wants(kUnderSpill) ? MeasureUnderSpill(harness, directory) : absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv, {kSlowDisk, kUnderSpill});
  if (harness.done()) return *harness.done();
  const absl::Status status =
      InDiskDirectory([&](const std::string& directory) { return Run(harness, directory); });
  return status.ok() ? 0 : harness.Fail(status);
}
