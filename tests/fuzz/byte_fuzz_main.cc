// Driver of a byte fuzz without libFuzzer: mutates the seeds without feedback, for a limited time.
//
//   LARDER_FUZZ_SEED     replays a run: the n-th input depends only on it (default: random)
//   LARDER_FUZZ_SECONDS  how long (default 2)
//   arguments            files to run once instead, as libFuzzer does
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "storage/check.h"
#include "tests/fuzz/byte_fuzz.h"
#include "tests/fuzz/instruction_fuzz.h"

namespace larder {
namespace {

constexpr size_t kInputBytesMax = 128 * 1024;

uint64_t Seconds() {
  const char* text = std::getenv("LARDER_FUZZ_SECONDS");
  uint64_t seconds = 2;
  if (text != nullptr) LARDER_CHECK(absl::SimpleAtoi(text, &seconds));
  return seconds;
}

class Mutator {
 public:
  explicit Mutator(FuzzRun* run) : run_(*run), seeds_(FuzzSeeds()) {
    LARDER_CHECK(!seeds_.empty());
  }

  [[nodiscard]] std::string Next() {
    std::string input = seeds_[Below(seeds_.size())];
    for (uint64_t changes = Below(6); changes > 0; --changes) Change(&input);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    return input;
  }

 private:
  uint64_t Below(uint64_t bound) { return run_.Below(bound); }
  char AnyByte() { return static_cast<char>(Below(256)); }

  void Change(std::string* input) {
    if (input->empty()) return input->push_back(AnyByte());
    const size_t at = Below(input->size());
    switch (Below(7)) {
      case 0:
        (*input)[at] = static_cast<char>((*input)[at] ^ (1 << Below(8)));
        break;
      case 1:
        (*input)[at] = AnyByte();
        break;
      case 2:
        Overwrite(input, at);
        break;
      case 3:
        input->erase(at, 1 + Below(16));
        break;
      case 4:
        input->insert(at, 1 + Below(16), AnyByte());
        break;
      case 5:
        input->resize(at);
        break;
      default:
        Splice(input, at);
        break;
    }
  }

  // Writes a number near limits at which lengths and counts often fail.
  void Overwrite(std::string* input, size_t at) {
    static constexpr uint64_t kEdges[] = {
        0, 1, 63, 64, 255, 256, 65'535, 65'536, (1u << 30) - 1, 1u << 30, ~0ull};
    const uint64_t value = kEdges[Below(std::size(kEdges))] + Below(3) - 1;
    const size_t size = std::min<size_t>(size_t{1} << Below(4), input->size() - at);
    std::memcpy(input->data() + at, &value, size);
  }

  void Splice(std::string* input, size_t at) {
    const std::string& other = seeds_[Below(seeds_.size())];
    if (!other.empty())
      input->replace(at, std::string::npos, other, Below(other.size()), std::string::npos);
  }

  FuzzRun& run_;
  std::vector<std::string> seeds_;
};

void RunOne(const std::string& input) {
  // A copy of exactly this size, so that a sanitizer detects the first byte read beyond it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int RunFiles(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    LARDER_CHECK(file.good());
    RunOne({std::istreambuf_iterator<char>(file), {}});
  }
  return 0;
}

int RunMutations(const char* program) {
  FuzzRun run(program, UINT64_MAX);
  for (const std::string& input : FuzzSeeds()) RunOne(input);
  Mutator mutator(&run);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(Seconds());
  uint64_t steps = 0;
  while (steps < run.steps() && std::chrono::steady_clock::now() < end) {
    const uint64_t batch = std::min<uint64_t>(256, run.steps() - steps);
    for (uint64_t i = 0; i < batch; ++i) RunOne(mutator.Next());
    steps += batch;
  }
  std::printf("%" PRIu64 " inputs\n", steps);
  return 0;
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  return argc > 1 ? larder::RunFiles(argc, argv) : larder::RunMutations(argv[0]);
}
