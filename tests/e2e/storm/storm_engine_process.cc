// An engine of the storm as a separate process, which may be killed at any instant.  It puts, gets,
// holds and half-writes open blocks at random until a call fails.
//
//   storm_engine_process SOCKET_DIR MODE(mapped|staged|stream) CALM|STORM SEED
//
// Prints a line after each kStormChildSteps steps.  Exit codes: 3 wrong bytes; 4 the daemon ended.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/e2e/storm/storm_engine.h"

namespace larder::e2e {
namespace {

int Run(const std::string& folder, WriteMode mode, uint32_t numbers, uint32_t seed) {
  StormTally tally;
  StormEngine engine(tally);
  StormRandom random(seed);
  const ContentSpec content = OpenContent();
  if (!engine.Connect(folder, "stray", {&content, 1}, mode, random() % 2 == 0).ok()) return 4;
  for (uint64_t step = 1;; ++step) {
    usleep(static_cast<useconds_t>(random() % 10'000));  // as if it computed
    const TestBlock block = OpenBlock(static_cast<uint32_t>(random() % numbers));
    absl::StatusOr<BlockStatus> answer = BlockStatus::kOk;
    switch (random() % 8) {
      case 0:
        if (!engine.streams()) answer = engine.Hold(block, kOpenLayerBytes, step);
        break;
      case 1:
        if (mode == WriteMode::kMapped) engine.HalfWrite(kOpenLayerBytes);
        break;
      case 2:
      case 3:
      case 4:
        answer = engine.Put(content.Id(), {&block, 1}, kOpenLayerBytes);
        break;
      default:
        answer = engine.Get(block, kOpenLayerBytes);
    }
    if (engine.held().size() > 3) (void)engine.Release();
    if (tally.wrong_bytes > 0 || (answer.ok() && *answer == BlockStatus::kDamaged)) return 3;
    if (!answer.ok()) return 4;
    if (step % kStormChildSteps != 0) continue;
    std::puts("steps");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  using larder::WriteMode;
  if (argc != 5) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string mode = argv[2], weather = argv[3];
  return larder::e2e::Run(argv[1],
                          mode == "mapped"   ? WriteMode::kMapped
                          : mode == "staged" ? WriteMode::kStaged
                                             : WriteMode::kStream,
                          weather == "calm" ? larder::e2e::kOpenCalm : larder::e2e::kOpenStorm,
                          static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
}
