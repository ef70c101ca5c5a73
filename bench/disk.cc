// What does the disk tier cost, and what does it give, on the whole path?  How fast blocks become
// durable, and how soon after kill -9 the next daemon answers from disk.
//
// The daemon is killed and started again over one directory, on the disk that holds the build tree.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "bench/harness/disk_node.h"
#include "bench/harness/temporary_directory.h"
#include "storage/check.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/disk/page_buffer.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr char kSpill[] = "spill_1mib";
constexpr char kDurableIdle[] = "durable_idle";
constexpr char kDurableFull[] = "durable_full_p99";
constexpr char kDropped[] = "spill_dropped";
constexpr char kReady[] = "restart_2gib_ready";
constexpr char kMillion[] = "restart_1m_index";

constexpr size_t kStoredBlocks = 2048;
constexpr size_t kSyncEvery = 32;  // blocks between two syncs of the floor
constexpr int kProbes = 300;
constexpr size_t kLoggedBlocks = 256;       // left in a log before each kill
constexpr double kLatePuts = 1.05;          // times the seconds that the puts should take
constexpr size_t kSmallBlocks = 1'000'000;  // of a page each
constexpr char kFullDisk[] = "3GiB";        // a disk tier that is full all the time

// Writes as many bytes with O_DIRECT; returns bytes per second.
absl::StatusOr<double> RawRate(int fd, std::span<const std::byte> source) {
  const double start = SecondsNow();
  for (size_t i = 0; i < kRoundBlocks; ++i) {
    const auto piece = source.subspan(i * Shape().bytes() % source.size(), Shape().bytes());
    if (pwrite(fd, piece.data(), piece.size(), static_cast<off_t>(i * Shape().bytes())) !=
            static_cast<ssize_t>(piece.size()) ||
        ((i + 1) % kSyncEvery == 0 && fdatasync(fd) != 0)) {
      return absl::ErrnoToStatus(errno, "cannot write the file of the floor");
    }
  }
  return Mebibytes(kRoundBlocks) / (SecondsNow() - start);
}

// Puts blocks at a share of the disk's `rate` (bytes per second) and reports which share of them
// was dropped.
absl::Status MeasureDropped(Harness& harness, Writer& writer, double rate) {
  const double seconds = harness.quick() ? 3 : 15;
  for (const double share : {0.8, 1.0}) {
    const auto batches = static_cast<size_t>(share * rate * seconds / Mebibytes(kBatchBlocks));
    const double start = SecondsNow();
    LARDER_RETURN_IF_ERROR(
        PutAtRate(writer, share * rate, [&](size_t batch) { return batch < batches; }));
    const double took = SecondsNow() - start;
    const uint64_t put = batches * kBatchBlocks;
    const uint64_t dropped = writer.CountDropped(put);
    const std::string figure = absl::StrCat(kDropped, "_", static_cast<int>(share * 100));
    if (took > kLatePuts * seconds) {
      return absl::UnavailableError(absl::StrCat(figure, ": the puts took ", took, " s instead of ",
                                                 seconds, ", so the rate was not reached; ",
                                                 dropped, " of ", put, " dropped"));
    }
    harness.Report({figure, static_cast<double>(dropped) / static_cast<double>(put), "of 1",
                    std::nullopt, std::nullopt, 1});
    harness.Note(absl::StrCat(dropped, " of ", put, " blocks of 1 MiB, put in ", took, " s at ",
                              share, " of the rate of ", kSpill));
  }
  return absl::OkStatus();
}

absl::Status MeasureDurableIdle(Harness& harness, Writer& writer) {
  std::vector<double> idle;
  for (int i = 0; i < kProbes; ++i) {
    const Names names = writer.Next(1);
    const double start = SecondsNow();
    LARDER_RETURN_IF_ERROR(writer.PutDurable(names));
    idle.push_back(SecondsNow() - start);
  }
  harness.Report({kDurableIdle, Quantile(idle, 0.5), "s", std::nullopt, std::nullopt, kProbes});
  harness.Report({absl::StrCat(kDurableIdle, "_p99"), Quantile(idle, 0.99), "s", std::nullopt,
                  std::nullopt, kProbes});
  return absl::OkStatus();
}

// Puts as fast as the disk takes blocks: eight batches are under way at a time.
absl::Status MeasureDurableFull(Harness& harness, Writer& writer) {
  constexpr size_t kAhead = 8;
  std::vector<double> full, started;
  for (size_t batch = 0; batch < kRoundBlocks / kBatchBlocks * 2; ++batch) {
    const Names names = writer.Next(kBatchBlocks);
    started.push_back(SecondsNow());
    LARDER_RETURN_IF_ERROR(writer.Put(names));
    if (batch < kAhead) continue;
    LARDER_RETURN_IF_ERROR(writer.WaitDurable(kBatchBlocks));
    full.push_back(SecondsNow() - started[batch - kAhead]);
  }
  LARDER_RETURN_IF_ERROR(writer.WaitDurable(kAhead * kBatchBlocks));
  harness.Report({kDurableFull, Quantile(full, 0.99), "s", std::nullopt, std::nullopt,
                  static_cast<int>(full.size())});
  harness.Note("128 MiB wait for the disk all the time");
  return absl::OkStatus();
}

// Measures the spill rate and returns it.
absl::StatusOr<double> MeasureRate(Harness& harness, Writer& writer, const std::string& directory) {
  const int fd = open((directory + "/raw").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  LARDER_CHECK(fd >= 0 &&
               posix_fallocate(fd, 0, static_cast<off_t>(kRoundBlocks * Shape().bytes())) == 0);
  const Contestant contestants[] = {[&] { return writer.SpillRate(writer.Next(2 * kRoundBlocks)); },
                                    [&] { return RawRate(fd, writer.source()); }};
  const auto rates = Interleave(harness, harness.rounds(), contestants);
  close(fd);
  LARDER_RETURN_IF_ERROR(rates.status());
  const double rate = Median((*rates)[0]);
  harness.Report({kSpill, rate, "B/s", Median((*rates)[1]), MedianRatio((*rates)[0], (*rates)[1]),
                  harness.rounds()});
  harness.Note(
      "from the first put of 1,024 blocks until the last is durable, with 128 waiting for the disk "
      "all the time, on a disk that is full and evicts; floor: O_DIRECT over bytes written before, "
      "a sync "
      "every 32 MiB");
  return rate;
}

bool WantsDropped(const Harness& harness) {
  return harness.Wants(absl::StrCat(kDropped, "_80")) ||
         harness.Wants(absl::StrCat(kDropped, "_100"));
}

absl::Status MeasureSpill(Harness& harness, const std::string& directory) {
  LARDER_ASSIGN_OR_RETURN(
      auto node, StartNode({.disk = directory + "/disk", .pool = GiB(1), .limit = kFullDisk}));
  Writer writer(node->engine);
  // Fill the disk first: from then on every block overwrites the place of another, as the floor
  // does.
  for (size_t written = 0; written < 7 * kRoundBlocks; written += kRoundBlocks) {
    LARDER_RETURN_IF_ERROR(writer.PutDurable(writer.Next(kRoundBlocks)));
  }
  double rate = 0;
  if (harness.Wants(kSpill) || WantsDropped(harness)) {
    LARDER_ASSIGN_OR_RETURN(rate, MeasureRate(harness, writer, directory));
  }
  if (harness.Wants(kDurableIdle)) {
    LARDER_RETURN_IF_ERROR(MeasureDurableIdle(harness, writer));
  }
  if (harness.Wants(kDurableFull)) {
    LARDER_RETURN_IF_ERROR(MeasureDurableFull(harness, writer));
  }
  return WantsDropped(harness) ? MeasureDropped(harness, writer, rate) : absl::OkStatus();
}

// ---- restarts: each daemon is killed after it has put some blocks, so that the next one has a log
// to read

// `life` is the daemon's number, from 1.
absl::Status LeaveLog(Node& node, uint64_t life) {
  const auto enough = [](const DaemonProcess::Holdings& now) { return now.online >= GiB(1); };
  LARDER_RETURN_IF_ERROR(WaitForNode(node, "the pool", enough));
  Writer writer(node.engine, life);
  return writer.PutDurable(writer.Next(kLoggedBlocks));
}

// Seconds from the start of a process until ready(node) returns, one for each round; the first
// restart does not count.
using Ready = std::function<absl::Status(Node&, uint64_t life)>;
absl::StatusOr<std::vector<double>> TimeRestarts(int rounds, const std::string& disk,
                                                 ByteCount pool, const Ready& ready) {
  std::vector<double> took;
  for (uint64_t life = 1; life <= static_cast<uint64_t>(rounds) + 1; ++life) {
    const double start = SecondsNow();
    LARDER_ASSIGN_OR_RETURN(auto node,
                            StartNode({.disk = disk, .pool = pool, .whole_pool = false}));
    LARDER_RETURN_IF_ERROR(ready(*node, life));
    if (life > 1) took.push_back(SecondsNow() - start);
    LARDER_RETURN_IF_ERROR(LeaveLog(*node, life));
  }
  return took;
}

absl::Status MeasureRestart(Harness& harness, const std::string& directory) {
  const std::string disk = directory + "/restart";
  Names names;
  {
    LARDER_ASSIGN_OR_RETURN(auto node, StartNode({.disk = disk, .pool = GiB(3)}));
    Writer writer(node->engine);
    names = writer.Next(kStoredBlocks);
    LARDER_RETURN_IF_ERROR(writer.PutDurable(names));
  }  // the daemon is killed here
  const Memory to(kBatchBlocks * Shape().bytes(), Memory::Kind::kPrivate);
  LARDER_ASSIGN_OR_RETURN(
      const auto ready,
      TimeRestarts(harness.rounds(), disk, GiB(8), [&](Node& node, uint64_t life) {
        const std::vector<uint32_t> order = {static_cast<uint32_t>(life * 100)};
        const GetPlan plan = PlanGets(Shape(), names.digests, order, to.bytes());
        return WaitFor("the first block", [&]() -> absl::StatusOr<bool> {
          return GetAll(node.engine, plan.blocks).ok();
        });
      }));
  harness.Report({kReady, Median(ready), "s", std::nullopt, std::nullopt, harness.rounds()});
  harness.Note(
      "from the start of the process to the first block of 2 GiB read from disk; pool of 8 GiB, "
      "which is populated meanwhile; the daemon before it put 256 blocks and was killed");
  return absl::OkStatus();
}

// Puts blocks of one page each directly into the tier.
absl::Status FillWithSmallBlocks(const std::string& disk) {
  constexpr size_t kBatch = 1000;
  FileDiskTier::Options options;
  options.directory = disk;
  options.limit = GiB(24);
  LARDER_ASSIGN_OR_RETURN(auto tier, FileDiskTier::Open(options));
  LARDER_RETURN_IF_ERROR(
      tier->Recover([](const DiskTier::Entry&) { return 0u; }, [] { return false; }));
  const PageBuffer payload(1);
  const std::vector<uint32_t> tokens(16, 1);
  SegmentTable table = UniformTable(1, kPageBytes);
  HashPayload(payload.bytes(), &table);
  std::vector<RecordHeader> headers(kBatch);
  std::vector<DiskTier::NewBlock> blocks(kBatch);
  std::vector<DiskTier::PutResult> results(kBatch);
  for (uint64_t number = 0; number < kSmallBlocks;) {
    for (size_t i = 0; i < kBatch; ++i) {
      RecordHeader& header = headers[i];
      const uint64_t mixed = ++number * 0x9E3779B97F4A7C15;
      std::memcpy(header.key.digest.bytes.data(), &mixed, sizeof mixed);
      header.block_tokens = 16;
      header.layout = "bench/1";
      header.dtype = "f16";
      header.table = table;
      blocks[i] = {.header = &header, .tokens = tokens, .payload = payload.bytes()};
    }
    tier->Put(blocks, results);
    for (const DiskTier::PutResult& result : results) {
      if (result.status != DiskTier::PutStatus::kOk)
        return absl::InternalError(ToString(result.status));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureMillion(Harness& harness, const std::string& directory) {
  const std::string disk = directory + "/million";
  LARDER_RETURN_IF_ERROR(FillWithSmallBlocks(disk));
  LARDER_ASSIGN_OR_RETURN(
      const auto complete,
      TimeRestarts(harness.rounds(), disk, GiB(1), [](Node& node, uint64_t life) {
        return WaitForBlocks(node, kSmallBlocks + (life - 1) * kLoggedBlocks);
      }));
  harness.Report({kMillion, Median(complete), "s", std::nullopt, std::nullopt, harness.rounds()});
  harness.Note(
      "from the start of the process until a million blocks of a page each are in the index; the "
      "daemon before it put 256 more and was killed");
  return absl::OkStatus();
}

absl::Status Run(Harness& harness, const std::string& directory) {
  if (harness.Wants(kSpill) || harness.Wants(kDurableIdle) || harness.Wants(kDurableFull) ||
      WantsDropped(harness)) {
    LARDER_RETURN_IF_ERROR(MeasureSpill(harness, directory));
  }
  if (harness.Wants(kReady)) {
    LARDER_RETURN_IF_ERROR(MeasureRestart(harness, directory));
  }
  return harness.Wants(kMillion) ? MeasureMillion(harness, directory) : absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv,
                  {kSpill, kDurableIdle, "durable_idle_p99", kDurableFull, "spill_dropped_80",
                   "spill_dropped_100", kReady, kMillion});
  if (harness.done()) return *harness.done();
  const absl::Status status =
      InDiskDirectory([&](const std::string& directory) { return Run(harness, directory); });
  return status.ok() ? 0 : harness.Fail(status);
}
