// What does a disk cost, and what does it give, through the whole path?  How fast blocks become durable, how soon after
// kill -9 the next daemon answers from disk, and whether the pool notices.
//
// The daemon is killed and started again over one directory, on the disk that the build tree lies on.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/blocks.h"
#include "bench/disk_directory.h"
#include "bench/harness.h"
#include "bench/processes.h"
#include "storage/check.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/disk/page_buffer.h"

namespace larder::bench {
namespace {

constexpr char kSpill[] = "spill_1mib";
constexpr char kDurableIdle[] = "durable_idle";
constexpr char kDurableFull[] = "durable_full";
constexpr char kDropped[] = "spill_dropped";
constexpr char kReady[] = "restart_2gib_ready";
constexpr char kMillion[] = "restart_1m_index";
constexpr char kUnderSpill[] = "host_get_under_spill";
constexpr char kSlowDisk[] = "host_get_slow_disk";

constexpr size_t kRoundBlocks = 512;   // of 1 MiB
constexpr size_t kStoredBlocks = 2048;
constexpr size_t kSyncEvery = 32;      // blocks of the floor between two syncs
constexpr int kProbes = 300;
constexpr auto kProbePeriod = std::chrono::milliseconds(10);
constexpr double kDurableLimit_s = 60;
constexpr size_t kSmallBlocks = 1'000'000;  // of a page each
constexpr char kDiskLimit[] = "24GiB";
constexpr char kFullDiskLimit[] = "3GiB";   // of what is full all the time

const BlockShape& Shape() { return ShapeNamed("1mib"); }

SessionOptions Engine(const std::string& id) {
  SessionOptions options;
  options.engine_id = id;
  return options;
}

// A daemon over `disk`, and an engine attached to it.
struct Node {
  std::unique_ptr<DaemonProcess> daemon;
  Attachment engine;
};
absl::StatusOr<std::unique_ptr<Node>> StartNode(const std::string& disk, ByteCount pool,
                                                std::vector<std::string> flags = {}, bool whole_pool = true,
                                                const std::string& limit = kDiskLimit) {
  auto node = std::make_unique<Node>();
  for (const std::string& flag : {std::string("--disk"), disk, std::string("--disk-limit"), limit,
                                  std::string("--lease-share"), std::string("1")}) {
    flags.push_back(flag);
  }
  auto daemon = DaemonProcess::Start({pool, flags, whole_pool});
  if (!daemon.ok()) return daemon.status();
  node->daemon = *std::move(daemon);
  auto engine = AttachBench(node->daemon->socket_dir(), Shape(), Engine("bench"));
  if (!engine.ok()) return engine.status();
  node->engine = *std::move(engine);
  return node;
}

// Puts blocks of a new name each, `batch` at a time, and says when each was durable.
class Writer {
 public:
  explicit Writer(Attachment& engine) : engine_(engine) { source_.FillRandom(); }

  Names Next(size_t blocks) { return MakeNames(engine_.seed, ++salt_ << 20, blocks); }
  absl::Status Put(const Names& names) {
    const PutPlan plan = PlanPuts(Shape(), names, source_.bytes(), ShuffledOrder(source_.bytes().size() / Shape().bytes(), salt_));
    return InBatches(plan.blocks, [&](std::span<const PutBlock> batch) { return PutAll(engine_, batch, {}); });
  }
  absl::Status WaitDurable(uint64_t more) {
    const double until = SecondsNow() + kDurableLimit_s;
    durable_ += more;
    while (engine_.session->counters().blocks_durable < durable_) {
      if (SecondsNow() > until) {
        return absl::DeadlineExceededError(absl::StrCat(engine_.session->counters().blocks_durable, " of ", durable_,
                                                        " blocks are durable"));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return absl::OkStatus();
  }
  // Until no more come for a while; how many of those that were put were not.
  uint64_t CountDropped(uint64_t put) {
    constexpr double kQuiet_s = 3;
    const uint64_t before = durable_;
    for (double since = SecondsNow(); SecondsNow() < since + kQuiet_s;) {
      const uint64_t now = engine_.session->counters().blocks_durable;
      if (now != durable_) since = SecondsNow();
      durable_ = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return before + put - durable_;
  }
  [[nodiscard]] std::span<std::byte> source() const { return source_.bytes(); }

 private:
  Attachment& engine_;
  const Memory source_{64 << 20, Memory::Kind::kPrivate};
  uint64_t salt_ = 0, durable_ = 0;
};

// O_DIRECT writes of as many bytes.
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
  return static_cast<double>(kRoundBlocks * Shape().bytes()) / (SecondsNow() - start);
}

// Puts of blocks at a share of what the disk takes, `rate` bytes a second: how many it did not take.
absl::Status MeasureDropped(Harness& harness, Writer& writer, double rate) {
  const double seconds = harness.quick() ? 3 : 15;
  for (const double share : {0.8, 1.0}) {
    const auto batches = static_cast<size_t>(share * rate * seconds / static_cast<double>(kBatchBlocks * Shape().bytes()));
    const double start = SecondsNow();
    for (size_t batch = 0; batch < batches; ++batch) {
      const double due = start + seconds * static_cast<double>(batch) / static_cast<double>(batches);
      if (const double left = due - SecondsNow(); left > 0)
        std::this_thread::sleep_for(std::chrono::duration<double>(left));
      if (absl::Status s = writer.Put(writer.Next(kBatchBlocks)); !s.ok()) return s;
    }
    const double took = SecondsNow() - start;
    const uint64_t put = batches * kBatchBlocks;
    const uint64_t dropped = writer.CountDropped(put);
    harness.Report({absl::StrCat(kDropped, "_", static_cast<int>(share * 100)),
                    static_cast<double>(dropped) / static_cast<double>(put), "of 1", std::nullopt, std::nullopt, 1});
    harness.Note(absl::StrCat(dropped, " of ", put, " blocks of 1 MiB, put in ", took, " s at ", share,
                              " of the rate of ", kSpill));
  }
  return absl::OkStatus();
}

absl::Status MeasureSpill(Harness& harness, const std::string& directory) {
  auto node = StartNode(directory + "/disk", GiB(1), {}, true, kFullDiskLimit);
  if (!node.ok()) return node.status();
  Writer writer((*node)->engine);
  // Until the disk is full: from then on each block takes the place of another, as the floor's do.
  for (size_t written = 0; written < 7 * kRoundBlocks; written += kRoundBlocks) {
    if (absl::Status s = writer.Put(writer.Next(kRoundBlocks)); !s.ok()) return s;
    if (absl::Status s = writer.WaitDurable(kRoundBlocks); !s.ok()) return s;
  }
  const int fd = open((directory + "/raw").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  LARDER_CHECK(fd >= 0 && posix_fallocate(fd, 0, static_cast<off_t>(kRoundBlocks * Shape().bytes())) == 0);
  const Contestant contestants[] = {[&]() -> absl::StatusOr<double> {
                                      const Names names = writer.Next(kRoundBlocks);
                                      const double start = SecondsNow();
                                      if (absl::Status s = writer.Put(names); !s.ok()) return s;
                                      if (absl::Status s = writer.WaitDurable(kRoundBlocks); !s.ok()) return s;
                                      return static_cast<double>(kRoundBlocks * Shape().bytes()) /
                                             (SecondsNow() - start);
                                    },
                                    [&] { return RawRate(fd, writer.source()); }};
  const auto rates = Interleave(harness.rounds(), contestants);
  close(fd);
  if (!rates.ok()) return rates.status();
  harness.Report({kSpill, Median((*rates)[0]), "B/s", Median((*rates)[1]), MedianRatio((*rates)[0], (*rates)[1]),
                  harness.rounds()});
  harness.Note("from the first put of 512 blocks until the last is durable, on a disk that is full and evicts; floor: "
               "O_DIRECT over bytes written before, a sync each 32 MiB");

  std::vector<double> idle;
  for (int i = 0; i < kProbes; ++i) {
    const Names names = writer.Next(1);
    const double start = SecondsNow();
    if (absl::Status s = writer.Put(names); !s.ok()) return s;
    if (absl::Status s = writer.WaitDurable(1); !s.ok()) return s;
    idle.push_back(SecondsNow() - start);
  }
  harness.Report({kDurableIdle, Quantile(idle, 0.5), "s", std::nullopt, std::nullopt, kProbes});
  harness.Report({absl::StrCat(kDurableIdle, "_p99"), Quantile(idle, 0.99), "s", std::nullopt, std::nullopt, kProbes});

  // As fast as the disk takes them: each batch waits for the one before the last.
  std::vector<double> full;
  std::vector<double> started;
  for (size_t batch = 0; batch < kRoundBlocks / kBatchBlocks * 2; ++batch) {
    const Names names = writer.Next(kBatchBlocks);
    started.push_back(SecondsNow());
    if (absl::Status s = writer.Put(names); !s.ok()) return s;
    if (batch < 8) continue;
    if (absl::Status s = writer.WaitDurable(kBatchBlocks); !s.ok()) return s;
    full.push_back(SecondsNow() - started[batch - 8]);
  }
  if (absl::Status s = writer.WaitDurable(8 * kBatchBlocks); !s.ok()) return s;
  harness.Report({absl::StrCat(kDurableFull, "_p99"), Quantile(full, 0.99), "s", std::nullopt, std::nullopt,
                  static_cast<int>(full.size())});
  harness.Note("128 MiB ahead of the disk all the time");
  return MeasureDropped(harness, writer, Median((*rates)[0]));
}

absl::Status MeasureRestart(Harness& harness, const std::string& directory) {
  const std::string disk = directory + "/restart";
  Names names;
  {
    auto node = StartNode(disk, GiB(3));
    if (!node.ok()) return node.status();
    Writer writer((*node)->engine);
    names = writer.Next(kStoredBlocks);
    if (absl::Status s = writer.Put(names); !s.ok()) return s;
    if (absl::Status s = writer.WaitDurable(kStoredBlocks); !s.ok()) return s;
  }  // killed
  const Memory to(kBatchBlocks * Shape().bytes(), Memory::Kind::kPrivate);
  std::vector<double> ready;
  for (int round = 0; round < harness.rounds(); ++round) {
    const double start = SecondsNow();
    auto node = StartNode(disk, GiB(8), {}, false);
    if (!node.ok()) return node.status();
    const std::vector<uint32_t> order = {static_cast<uint32_t>(round * 100)};
    absl::Status got = absl::UnavailableError("not asked");
    while (!got.ok() && SecondsNow() < start + kDurableLimit_s) {
      got = GetAll((*node)->engine, PlanGets(Shape(), names.digests, order, to.bytes()).blocks);
    }
    if (!got.ok()) return got;
    ready.push_back(SecondsNow() - start);
  }
  harness.Report({kReady, Median(ready), "s", std::nullopt, std::nullopt, harness.rounds()});
  harness.Note("from the start of the process to the first block of 2 GiB read from disk; pool of 8 GiB, which is "
               "populated meanwhile");
  return absl::OkStatus();
}

// Blocks of one page each, straight into the tier.
absl::Status FillWithSmallBlocks(const std::string& disk) {
  constexpr size_t kBatch = 1000;
  FileDiskTier::Options options;
  options.directory = disk;
  options.limit = GiB(24);
  auto tier = FileDiskTier::Open(options);
  if (!tier.ok()) return tier.status();
  if (absl::Status s = (*tier)->Recover([](const DiskTier::Entry&) { return 0u; }, [] { return false; }); !s.ok())
    return s;
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
    (*tier)->Put(blocks, results);
    for (const DiskTier::PutResult& result : results) {
      if (result.status != DiskTier::PutStatus::kOk) return absl::InternalError(ToString(result.status));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureMillion(Harness& harness, const std::string& directory) {
  const std::string disk = directory + "/million";
  if (absl::Status s = FillWithSmallBlocks(disk); !s.ok()) return s;
  std::vector<double> complete;
  for (int round = 0; round < harness.rounds(); ++round) {
    const double start = SecondsNow();
    auto node = StartNode(disk, GiB(1), {}, false);
    if (!node.ok()) return node.status();
    for (uint64_t blocks = 0; blocks < kSmallBlocks;) {
      const auto now = (*node)->daemon->Stats();
      if (!now.ok()) return now.status();
      blocks = now->blocks;
      if (SecondsNow() > start + kDurableLimit_s)
        return absl::DeadlineExceededError(absl::StrCat(blocks, " blocks are in the index"));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    complete.push_back(SecondsNow() - start);
  }
  harness.Report({kMillion, Median(complete), "s", std::nullopt, std::nullopt, harness.rounds()});
  harness.Note("from the start of the process until a million blocks of a page each are in the index");
  return absl::OkStatus();
}

// Gets of a block in the pool every 10 ms.
absl::StatusOr<std::vector<double>> Probe(Attachment& engine, const Names& names, int count) {
  const Memory to(kBatchBlocks * Shape().bytes(), Memory::Kind::kPrivate);
  std::vector<double> took;
  for (int i = 0; i < count; ++i) {
    const std::vector<uint32_t> order = {static_cast<uint32_t>(static_cast<size_t>(i) % names.size())};
    const GetPlan plan = PlanGets(Shape(), names.digests, order, to.bytes());
    const double start = SecondsNow();
    if (absl::Status s = GetAll(engine, plan.blocks); !s.ok()) return s;
    took.push_back(SecondsNow() - start);
    std::this_thread::sleep_for(kProbePeriod);
  }
  return took;
}

absl::Status MeasureSlowDisk(Harness& harness, const std::string& directory) {
  std::vector<std::vector<double>> p99(2);
  for (int round = 0; round < 5; ++round) {
    for (const bool slow : {false, true}) {
      std::vector<std::string> flags;
      if (slow) {
        flags = {"--fault-points",
                 "data.write=sleep:500ms,data.read=sleep:500ms,data.sync=sleep:500ms,catalog.commit=sleep:500ms,"
                 "catalog.erase=sleep:500ms,catalog.read=sleep:500ms"};
      }
      auto node = StartNode(absl::StrCat(directory, "/slow-", slow, "-", round), GiB(1), flags);
      if (!node.ok()) return node.status();
      Writer writer((*node)->engine);
      const Names names = writer.Next(128);
      if (absl::Status s = writer.Put(names); !s.ok()) return s;
      if (!slow) {
        if (absl::Status s = writer.WaitDurable(128); !s.ok()) return s;
      }
      const auto took = Probe((*node)->engine, names, kProbes);
      if (!took.ok()) return took.status();
      p99[slow].push_back(Quantile(*took, 0.99));
    }
  }
  harness.Report({absl::StrCat(kSlowDisk, "_p99"), Median(p99[1]), "s", Median(p99[0]), MedianRatio(p99[1], p99[0]), 5});
  harness.Note("every operation of the disk takes 500 ms; floor: an idle disk");
  return absl::OkStatus();
}

absl::Status MeasureUnderSpill(Harness& harness, const std::string& directory) {
  std::vector<std::vector<double>> p99(2);
  auto node = StartNode(directory + "/under", GiB(2));
  if (!node.ok()) return node.status();
  auto other = AttachBench((*node)->daemon->socket_dir(), Shape(), Engine("writer"));
  if (!other.ok()) return other.status();
  Writer writer(*other);
  for (int round = 0; round < 5; ++round) {
    const Names names = writer.Next(64);
    if (absl::Status s = writer.Put(names); !s.ok()) return s;
    if (absl::Status s = writer.WaitDurable(64); !s.ok()) return s;
    const auto idle = Probe((*node)->engine, names, kProbes);
    if (!idle.ok()) return idle.status();
    p99[0].push_back(Quantile(*idle, 0.99));
    // Half of what the disk takes, about 1 GB/s: 16 MiB every 16 ms.
    std::atomic<bool> stop{false};
    absl::Status wrote;
    std::thread load([&] {
      while (!stop && wrote.ok()) {
        const double next = SecondsNow() + 0.016;
        wrote = writer.Put(writer.Next(kBatchBlocks));
        if (const double left = next - SecondsNow(); left > 0)
          std::this_thread::sleep_for(std::chrono::duration<double>(left));
      }
    });
    const auto busy = Probe((*node)->engine, names, kProbes);
    stop = true;
    load.join();
    if (!busy.ok()) return busy.status();
    if (!wrote.ok()) return wrote;
    p99[1].push_back(Quantile(*busy, 0.99));
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  harness.Report({absl::StrCat(kUnderSpill, "_p99"), Median(p99[1]), "s", Median(p99[0]), MedianRatio(p99[1], p99[0]), 5});
  harness.Note("another client puts 1 GB/s, which is spilled and evicts; floor: idle");
  return absl::OkStatus();
}

absl::Status Run(Harness& harness, const std::string& directory) {
  if (harness.Wants(kSpill) || harness.Wants(kDurableIdle) || harness.Wants(kDurableFull) || harness.Wants(kDropped)) {
    if (absl::Status s = MeasureSpill(harness, directory); !s.ok()) return s;
  }
  if (harness.Wants(kReady)) {
    if (absl::Status s = MeasureRestart(harness, directory); !s.ok()) return s;
  }
  if (harness.Wants(kMillion)) {
    if (absl::Status s = MeasureMillion(harness, directory); !s.ok()) return s;
  }
  if (harness.Wants(kSlowDisk)) {
    if (absl::Status s = MeasureSlowDisk(harness, directory); !s.ok()) return s;
  }
  if (harness.Wants(kUnderSpill)) return MeasureUnderSpill(harness, directory);
  return absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv, {kSpill, kDurableIdle, kDurableFull, kDropped, kReady, kMillion, kSlowDisk, kUnderSpill});
  if (harness.done()) return *harness.done();
  const absl::Status status = InDiskDirectory([&](const std::string& directory) { return Run(harness, directory); });
  return status.ok() ? 0 : harness.Fail(status);
}
