// What does a daemon with a million blocks cost while no client asks it for anything?  Its
// processor time over a minute, as a share of one core: with the blocks in the pool, and with the
// blocks on disk alone, where the daemon reads them again to verify them (--disk-verify-rate).  And
// is the first call after a second of silence answered as fast as the next one?
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/harness/blocks.h"
#include "bench/harness/disk_node.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "bench/harness/temporary_directory.h"
#include "client/client.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr char kHost[] = "idle_cpu_host_1m";
constexpr char kDisk[] = "idle_cpu_disk_1m";
constexpr char kUnverified[] = "idle_cpu_disk_1m_unverified";
constexpr char kFirst[] = "idle_first_lookup";
constexpr size_t kBurst = 8, kLookupTokens = 8192;
constexpr double kSilence_s = 1;  // plus up to a tenth
constexpr uint64_t kBlocks = 1'000'000;
constexpr size_t kPutAtOnce = 4000;
constexpr uint64_t kAhead = 40'000;  // blocks that the disk may be behind
const BlockShape kPage{"page", 1, 4096};

absl::Status Fill(Node& node) {
  const Memory ring(kPutAtOnce * kPage.bytes(), Memory::Kind::kPrivate);
  ring.FillRandom();
  const std::vector<uint32_t> order = ShuffledOrder(kPutAtOnce, 1);
  for (uint64_t put = 0; put < kBlocks; put += kPutAtOnce) {
    const Names names = MakeNames(node.engine.seed, put + 1, kPutAtOnce);
    const PutPlan plan = PlanPuts(kPage, names, ring.bytes(), order);
    LARDER_RETURN_IF_ERROR(PutAll(node.engine, plan.blocks, {}));
    // The disk must keep up, or it would drop some of the blocks.
    LARDER_RETURN_IF_ERROR(WaitFor("blocks to be durable", [&]() -> absl::StatusOr<bool> {
      return node.engine.session->counters().blocks_durable + kAhead >= put + kPutAtOnce;
    }));
  }
  return WaitFor("all blocks to be durable", [&]() -> absl::StatusOr<bool> {
    return node.engine.session->counters().blocks_durable >= kBlocks;
  });
}

// The daemon's share of a core from now on.
absl::StatusOr<double> Share(const DaemonProcess& daemon, double seconds) {
  absl::SleepFor(absl::Seconds(2));  // let it finish what the last call left to do
  const double before = daemon.CpuSeconds(), from = SecondsNow();
  absl::SleepFor(absl::Seconds(seconds));
  return (daemon.CpuSeconds() - before) / (SecondsNow() - from);
}

absl::Status Report(Harness& harness, const std::string& figure, const Node& node,
                    const char* note) {
  LARDER_RETURN_IF_ERROR(WaitForBlocks(node, kBlocks));
  const double seconds = harness.quick() ? 20 : 60;
  LARDER_ASSIGN_OR_RETURN(const double share, Share(*node.daemon, seconds));
  harness.Report({figure, share, "of 1", std::nullopt, std::nullopt, 1});
  harness.Note(absl::StrCat("of one core, over ", seconds, " s; ", note));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Node>> StartWith(NodeConfig config) {
  LARDER_ASSIGN_OR_RETURN(auto daemon,
                          DaemonProcess::Start({config.pool, std::move(config.flags), true}));
  LARDER_ASSIGN_OR_RETURN(auto engine,
                          AttachBench(daemon->socket_dir(), kPage, {.engine_id = "bench-idle"}));
  auto node = std::make_unique<Node>();
  node->daemon = std::move(daemon);
  node->engine = std::move(engine);
  return node;
}

// Seconds of a lookup of blocks that do not exist.
absl::StatusOr<double> TimeLookup(Client& client) {
  wire::LookupQuery query;
  query.content.model = "bench-idle";
  query.tokens.assign(kLookupTokens, 1);
  const double begin = SecondsNow();
  LARDER_ASSIGN_OR_RETURN(const auto found, client.Lookup(query));
  return SecondsNow() - begin;
}

// The slowest tenth of the first calls after a silence, and of the calls right after them.
absl::Status ReportFirst(Harness& harness) {
  LARDER_ASSIGN_OR_RETURN(auto daemon, DaemonProcess::Start({.pool = MiB(64)}));
  LARDER_ASSIGN_OR_RETURN(auto client, Client::Connect({.socket_dir = daemon->socket_dir()}));
  const int rounds = harness.quick() ? 10 : 40;
  std::vector<double> first, next;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::thread> burst;
    std::vector<absl::Status> ended(kBurst);
    for (absl::Status& status : ended)
      burst.emplace_back([&] { status = TimeLookup(*client).status(); });
    for (std::thread& thread : burst) thread.join();
    for (const absl::Status& status : ended) {
      LARDER_RETURN_IF_ERROR(status);
    }
    absl::SleepFor(absl::Seconds(kSilence_s * (1 + 0.1 * round / rounds)));
    for (std::vector<double>* of : {&first, &next}) {
      LARDER_ASSIGN_OR_RETURN(const double took, TimeLookup(*client));
      of->push_back(took);
    }
  }
  const double ours = Quantile(first, 0.9), floor = Quantile(next, 0.9);
  harness.Report({kFirst, ours, "s", floor, ours / floor, rounds});
  harness.Note("p90 of the first lookup after a burst and a second of silence; floor: the next");
  return absl::OkStatus();
}

absl::Status Run(Harness& harness, const std::string& directory) {
  if (harness.Wants(kFirst)) {
    LARDER_RETURN_IF_ERROR(ReportFirst(harness));
  }
  if (!harness.Wants(kHost) && !harness.Wants(kDisk) && !harness.Wants(kUnverified))
    return absl::OkStatus();
  const std::vector<std::string> disk = {"--disk", directory + "/idle", "--disk-limit", kAmpleDisk};
  {
    LARDER_ASSIGN_OR_RETURN(auto node, StartWith({.disk = {}, .pool = MiB(4800), .flags = disk}));
    LARDER_RETURN_IF_ERROR(Fill(*node));
    LARDER_RETURN_IF_ERROR(Report(harness, kHost, *node, "in the pool, and on disk"));
  }  // the daemon is killed here
  std::vector<std::string> flags = disk;
  {
    LARDER_ASSIGN_OR_RETURN(auto node, StartWith({.disk = {}, .pool = MiB(64), .flags = flags}));
    LARDER_RETURN_IF_ERROR(Report(harness, kDisk, *node, "on disk alone, read again at 8 MiB/s"));
  }
  flags.insert(flags.end(), {"--disk-verify-rate", "0"});
  LARDER_ASSIGN_OR_RETURN(auto node, StartWith({.disk = {}, .pool = MiB(64), .flags = flags}));
  return Report(harness, kUnverified, *node, "on disk alone, not read again");
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  using namespace larder::bench;
  Harness harness(argc, argv, {kFirst, kHost, kDisk, kUnverified});
  if (harness.done()) return *harness.done();
  const absl::Status status =
      InDiskDirectory([&](const std::string& directory) { return Run(harness, directory); });
  return status.ok() ? 0 : harness.Fail(status);
}
