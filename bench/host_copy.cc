// How close do gets and puts come to the memory itself?  One client thread, batches of 16 blocks in
// random order over 1 GiB, and a real daemon, against the fastest copy kernel on the same work plus
// one stream echo per batch.
//
// Blocks: 64 KiB of one segment, 1 MiB of 16, 8 MiB of 32.  Gets go into a ring of 256 MiB; the
// floor copies the same blocks out of the client's own mapping of the pool, in the same order, into
// the same ring.  Gets by copies, of a client that may not map the pool, have the same floor, out
// of a shared memfd.  Puts of always new keys go into a pool of 2 GiB that is full after the first
// passes, so that each evicts another block; the floor copies into a shared memfd of that size.
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/blocks.h"
#include "bench/harness/echo.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "storage/format/layout.h"
#include "storage/memory/copy_kernels.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr uint64_t kPassBytes = 1 << 30;
constexpr uint64_t kRingBytes = 256 << 20;
constexpr uint64_t kStagingBytes = 64 << 20;
constexpr size_t kEchoBytes = 400;  // about the size of an acquire of 16 blocks, or of its grant

// One stream echo per batch: the round trip in the floor.
struct Echo {
  std::unique_ptr<TempDir> dir;
  std::unique_ptr<Child> server;
  std::unique_ptr<EchoClient> client;
};

absl::StatusOr<Echo> StartEcho() {
  Echo echo;
  LARDER_ASSIGN_OR_RETURN(echo.dir, TempDir::Make());
  const std::string path = absl::StrCat(echo.dir->path(), "/echo.sock");
  LARDER_ASSIGN_OR_RETURN(echo.server, Child::Start({OwnProgram(), EchoServerFlag(path)}));
  LARDER_ASSIGN_OR_RETURN(echo.client, EchoClient::Connect(path));
  echo.client->SetSizes(kEchoBytes, kEchoBytes);
  return echo;
}

// The floor's work on one block.
using BlockWork = std::function<void(const CopyKernel& kernel, size_t block)>;

// Bytes per second of a pass over all blocks; with `echo`, one ping after each batch.
absl::StatusOr<double> FloorPass(const CopyKernel& kernel, const BlockShape& shape,
                                 const BlockWork& work, EchoClient* echo) {
  const size_t blocks = kPassBytes / shape.bytes();
  const double begin = SecondsNow();
  for (size_t at = 0; at < blocks; at += kBatchBlocks) {
    for (size_t i = at; i < std::min(blocks, at + kBatchBlocks); ++i) work(kernel, i);
    StoreFence();
    if (echo == nullptr) continue;
    LARDER_RETURN_IF_ERROR(echo->StreamPing());
  }
  return static_cast<double>(kPassBytes) / (SecondsNow() - begin);
}

// One figure: how Larder's side runs, what the floor does with a block, and a plain copy of a
// block.
struct Comparison {
  std::string name;
  const BlockShape* shape = nullptr;
  Contestant ours;
  BlockWork work, copy;
};

// Runs Larder's side, the floor with every kernel, and libc's memcpy alone in turn; reports
// Larder's side and the best of the floors.
absl::Status Compare(Harness& harness, EchoClient& echo, const Comparison& c) {
  const std::vector<CopyKernel> kernels = AllKernels();
  std::vector<Contestant> contestants = {c.ours};
  for (const CopyKernel& kernel : kernels) {
    contestants.push_back(
        [&c, &echo, kernel] { return FloorPass(kernel, *c.shape, c.work, &echo); });
  }
  contestants.push_back([&c] { return FloorPass(MemcpyKernel(), *c.shape, c.copy, nullptr); });
  LARDER_ASSIGN_OR_RETURN(const auto rates, Interleave(harness, harness.rounds(), contestants));
  const std::vector<double>& ours = rates.front();
  const std::span<const std::vector<double>> floors = std::span(rates).subspan(1, kernels.size());
  const size_t best = Fastest(floors);
  harness.Report({c.name, Median(ours), "B/s", Median(floors[best]),
                  MedianRatio(ours, floors[best]), harness.rounds()});
  std::string note =
      absl::StrFormat("floor: %s; to libc memcpy alone %.3f; floors GB/s:", kernels[best].name(),
                      MedianRatio(ours, rates.back()));
  for (size_t k = 0; k < kernels.size(); ++k) {
    absl::StrAppendFormat(&note, " %s %.2f", kernels[k].name(), Median(floors[k]) / 1e9);
  }
  harness.Note(note);
  return absl::OkStatus();
}

SessionOptions EngineOptions(WriteMode mode) {
  SessionOptions options;
  options.engine_id = "bench";
  options.write_mode = mode;
  return options;
}

// ---- get

struct GetCase {
  std::string name;
  const BlockShape* shape = nullptr;
  ReadMode mode = ReadMode::kMapped;
};

// With kCopied the daemon trusts only a user that does not exist, so it lets this client map no
// slab.
absl::StatusOr<Attachment> AttachReader(const DaemonProcess& daemon, const GetCase& c) {
  const WriteMode writes = c.mode == ReadMode::kCopied ? WriteMode::kStaged : WriteMode::kMapped;
  auto engine = AttachBench(daemon.socket_dir(), *c.shape, EngineOptions(writes));
  if (engine.ok() && engine->session->read_mode() != c.mode) {
    return absl::FailedPreconditionError(
        absl::StrCat("read mode: ", engine->session->read_mode_reason()));
  }
  return engine;
}

std::vector<std::string> GetFlags(const GetCase& c) {
  if (c.mode == ReadMode::kMapped) return {};
  return {"--trusted-uids", absl::StrCat(geteuid() + 4242)};
}

// What the floor copies from: the client's own mapping of the pool or, if the client may not map
// it, a memfd of the same size.
struct GetFloor {
  std::unique_ptr<Memory> instead;
  std::vector<std::span<const std::byte>> blocks;
};

absl::StatusOr<GetFloor> MakeGetFloor(Attachment& engine, const GetCase& c,
                                      std::span<const Digest> digests) {
  GetFloor floor;
  if (c.mode == ReadMode::kMapped) {
    LARDER_ASSIGN_OR_RETURN(floor.blocks, MappedBlocks(engine, *c.shape, digests));
    return floor;
  }
  floor.instead = std::make_unique<Memory>(kPassBytes, Memory::Kind::kSharedMemfd);
  for (size_t i = 0; i < digests.size(); ++i) {
    floor.blocks.push_back(RingPiece(floor.instead->bytes(), i, c.shape->bytes()));
  }
  return floor;
}

absl::Status MeasureGet(Harness& harness, EchoClient& echo, const GetCase& c) {
  const BlockShape& shape = *c.shape;
  LARDER_ASSIGN_OR_RETURN(auto daemon, DaemonProcess::Start({MiB(1536), GetFlags(c)}));
  LARDER_ASSIGN_OR_RETURN(auto engine, AttachReader(*daemon, c));
  const Memory ring(kRingBytes, Memory::Kind::kPrivate);
  ring.FillRandom();
  const Names names = MakeNames(engine.seed, 1, kPassBytes / shape.bytes());
  const PutPlan puts =
      PlanPuts(shape, names, ring.bytes(), ShuffledOrder(kRingBytes / shape.bytes(), 1));
  const auto put = [&](std::span<const PutBlock> batch) { return PutAll(engine, batch, {}); };
  LARDER_RETURN_IF_ERROR(InBatches(puts.blocks, put));
  LARDER_ASSIGN_OR_RETURN(const auto floor, MakeGetFloor(engine, c, names.digests));

  uint64_t salt = 0;
  std::vector<uint32_t> order;
  const auto ours = [&]() -> absl::StatusOr<double> {
    order = ShuffledOrder(names.size(), ++salt);
    const GetPlan gets = PlanGets(shape, names.digests, order, ring.bytes());
    const double begin = SecondsNow();
    const auto get = [&](std::span<const GetBlock> batch) { return GetAll(engine, batch); };
    LARDER_RETURN_IF_ERROR(InBatches(gets.blocks, get));
    return static_cast<double>(kPassBytes) / (SecondsNow() - begin);
  };
  const BlockWork copy = [&](const CopyKernel& kernel, size_t i) {
    kernel.Copy(RingPiece(ring.bytes(), i, shape.bytes()), floor.blocks[order[i]]);
  };
  LARDER_RETURN_IF_ERROR(Compare(harness, echo, {c.name, &shape, ours, copy, copy}));
  if (c.mode == ReadMode::kCopied) {
    harness.Note(
        "the daemon copies every block into a staging segment, and the client copies it from "
        "there");
    return absl::OkStatus();
  }
  const Session::Counters counters = engine.session->counters();
  harness.Note(absl::StrCat("check policy: one block in ", engine.session->attached().check_one_in,
                            "; blocks checked ", counters.checked, " of ", counters.blocks_got,
                            ", damaged ", counters.damaged));
  return absl::OkStatus();
}

std::vector<GetCase> GetCases() {
  std::vector<GetCase> cases;
  for (const BlockShape& shape : Shapes()) {
    cases.push_back({absl::StrCat("host_get_", shape.name), &shape, ReadMode::kMapped});
  }
  cases.push_back({"host_get_copied_1mib", &ShapeNamed("1mib"), ReadMode::kCopied});
  return cases;
}

// ---- put

struct PutCase {
  std::string name;
  const BlockShape* shape = nullptr;
  WriteMode mode = WriteMode::kMapped;
  bool hash = true;
};

// The memory that the floors of puts work on.
struct PutFloor {
  Memory pool{2ull << 30, Memory::Kind::kSharedMemfd};
  Memory staging{kStagingBytes, Memory::Kind::kSharedMemfd};
  size_t at = 0;        // the block of the pool that is written next
  uint64_t hashes = 0;  // keeps the hashes from being optimized away
};

BlockWork PutWork(const PutCase& c, std::span<std::byte> source, const std::vector<uint32_t>& order,
                  PutFloor& floor) {
  return [&c, source, &order, &floor](const CopyKernel& kernel, size_t i) {
    const uint64_t bytes = c.shape->bytes();
    std::span<const std::byte> from = RingPiece(source, order[i], bytes);
    const std::span<std::byte> to = RingPiece(floor.pool.bytes(), floor.at++, bytes);
    if (c.mode == WriteMode::kStaged) {
      const std::span<std::byte> staged = RingPiece(floor.staging.bytes(), i, bytes);
      kernel.Copy(staged, from);
      from = staged;
    }
    kernel.Copy(to, from);
    if (!c.hash || c.mode == WriteMode::kStaged) return;
    for (uint32_t s = 0; s < c.shape->segments; ++s) {
      floor.hashes += HashBytes(from.subspan(s * c.shape->segment_bytes, c.shape->segment_bytes));
    }
  };
}

absl::Status MeasurePut(Harness& harness, EchoClient& echo, const PutCase& c,
                        std::span<std::byte> source) {
  PutFloor floor;
  LARDER_ASSIGN_OR_RETURN(auto daemon,
                          DaemonProcess::Start({ByteCount(floor.pool.bytes().size()), {}}));
  LARDER_ASSIGN_OR_RETURN(auto engine,
                          AttachBench(daemon->socket_dir(), *c.shape, EngineOptions(c.mode)));

  uint64_t salt = 0;
  std::vector<uint32_t> order;
  const auto ours = [&]() -> absl::StatusOr<double> {
    const size_t blocks = kPassBytes / c.shape->bytes();
    order = ShuffledOrder(blocks, ++salt);
    const Names names = MakeNames(engine.seed, salt, blocks);
    const PutPlan puts = PlanPuts(*c.shape, names, source, order);
    CallOptions options;
    options.hash = c.hash;
    const double begin = SecondsNow();
    const auto put = [&](std::span<const PutBlock> batch) {
      return PutAll(engine, batch, options);
    };
    LARDER_RETURN_IF_ERROR(InBatches(puts.blocks, put));
    return static_cast<double>(kPassBytes) / (SecondsNow() - begin);
  };
  for (int fill = 0; fill < 2; ++fill) {  // from here on every put evicts
    if (auto rate = ours(); !rate.ok()) return rate.status();
  }
  const PutCase plain = {c.name, c.shape, WriteMode::kMapped, /*hash=*/false};
  return Compare(harness, echo,
                 {c.name, c.shape, ours, PutWork(c, source, order, floor),
                  PutWork(plain, source, order, floor)});
}

std::vector<PutCase> PutCases() {
  std::vector<PutCase> cases;
  for (const bool hash : {true, false}) {
    for (const BlockShape& shape : Shapes()) {
      cases.push_back({absl::StrCat("host_put_mapped_", shape.name, hash ? "" : "_nohash"), &shape,
                       WriteMode::kMapped, hash});
    }
  }
  cases.push_back({"host_put_staged_1mib", &ShapeNamed("1mib"), WriteMode::kStaged, true});
  return cases;
}

// ---- all

std::vector<std::string> Figures() {
  std::vector<std::string> figures;
  for (const GetCase& c : GetCases()) figures.push_back(c.name);
  for (const PutCase& c : PutCases()) figures.push_back(c.name);
  return figures;
}

absl::Status Run(Harness& harness) {
  LARDER_ASSIGN_OR_RETURN(auto echo, StartEcho());
  for (const GetCase& c : GetCases()) {
    if (!harness.Wants(c.name)) continue;
    LARDER_RETURN_IF_ERROR(MeasureGet(harness, *echo.client, c));
  }
  std::unique_ptr<Memory> source;
  for (const PutCase& c : PutCases()) {
    if (!harness.Wants(c.name)) continue;
    if (!source) {
      source = std::make_unique<Memory>(kPassBytes, Memory::Kind::kPrivate);
      source->FillRandom();
    }
    LARDER_RETURN_IF_ERROR(MeasurePut(harness, *echo.client, c, source->bytes()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  if (const auto code = MaybeServeEcho(argc, argv)) return *code;
  Harness harness(argc, argv, Figures());
  if (harness.done()) return *harness.done();
  const absl::Status status = Run(harness);
  return status.ok() ? 0 : harness.Fail(status);
}
