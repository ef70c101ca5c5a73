// An engine with a paged cache on machines with different CUDA drivers: none, an old one, one that
// lacks required functions, one without a GPU.  The engine must start with each of them and move
// the right bytes, and engine, daemon and larderctl must report which device it has, what that
// device cannot do, and why.
//
// The drivers are those of tests/cuda/fake_libcuda.cc.  LARDER_TEST_PAGED_ENGINE names another
// engine program, which was linked without CUDA (tests/e2e/support/CMakeLists.txt).
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/rpc/rpc_stub.h"
#include "gtest/gtest.h"
#include "tests/e2e/support/child_engine.h"
#include "tests/e2e/support/ctl_process.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

constexpr std::chrono::milliseconds kCallLimit{10'000};

struct DriverState {
  const char* name;
  const char* driver = "";  // suffix of a driver in FAKE_CUDA_DIR; empty: no driver
  const char* kind;
  const char* reason = "";                // a part of the reported reason; empty: no reason
  std::vector<const char*> limits = {};   // each is a part of a reported limit
  std::vector<const char*> without = {};  // none is a part of a reported limit
  bool stages_reads = false;              // copies slabs mapped read-only through pinned memory
  const char* environment = nullptr;      // a variable to set to 1
  friend void PrintTo(const DriverState& state, std::ostream* out) { *out << state.name; }
};

const DriverState kStates[] = {
    {.name = "no_driver", .kind = "host", .reason = "no CUDA driver: libcuda.so.1"},
    {.name = "cuda_13",
     .driver = "13",
     .kind = "cuda",
     .limits = {"memory mapped read-only is copied through a pinned buffer"},
     .without = {"shared by descriptor", "each copy is a call"},
     .stages_reads = true},
    {.name = "cuda_13_that_registers_what_is_read_only",
     .driver = "13",
     .kind = "cuda",
     .without = {"memory mapped read-only"},
     .environment = "LARDER_TEST_CUDA_READ_ONLY"},
    {.name = "cuda_12",
     .driver = "12",
     .kind = "cuda",
     .without = {"shared by descriptor", "each copy is a call"},
     .stages_reads = true},
    {.name = "cuda_11",
     .driver = "11",
     .kind = "cuda",
     .limits = {"shared by descriptor: the driver is older", "shared by handle: the driver has no",
                "each copy is a call of its own: the driver is older"},
     .stages_reads = true},
    {.name = "driver_that_lacks_what_is_needed",
     .driver = "broken",
     .kind = "host",
     .reason = "CUDA 11.0 (driver 450) or later is needed"},
    {.name = "driver_without_a_gpu",
     .driver = "13",
     .kind = "host",
     .reason = "no CUDA-capable device is detected",
     .environment = "LARDER_TEST_CUDA_NO_DEVICE"},
};

const char* EngineWithoutCuda() { return std::getenv("LARDER_TEST_PAGED_ENGINE"); }

class DriverStates : public ::testing::TestWithParam<DriverState> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.serves()) << daemon_.errors();
    const DriverState& state = GetParam();
    if (state.driver[0] != '\0') {
#ifdef FAKE_CUDA_DIR
      Set("LD_LIBRARY_PATH", absl::StrCat(FAKE_CUDA_DIR, "/fake_cuda_", state.driver));
#else
      GTEST_SKIP() << "built without a CUDA toolkit, so there is no fake driver";
#endif
    } else if (dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) {
      GTEST_SKIP() << "this machine has a CUDA driver";
    }
    if (state.environment != nullptr) Set(state.environment, "1");
  }
  void TearDown() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  // Starts an engine, which runs until the returned object is destroyed.
  std::unique_ptr<ChildEngine> Start(const char* wish, const char* verb) {
    Set("LARDER_TEST_DEVICE", wish);
    const char* const other = EngineWithoutCuda();
    return std::make_unique<ChildEngine>(daemon_, "mapped", verb, 0,
                                         other == nullptr ? PAGED_ENGINE_PATH : other);
  }

  DaemonProcess daemon_{{"--pool", "64MiB", "--slab", "16MiB", "--check-one-in", "1"}};
  std::vector<std::string> set_;
};

// Returns the lines in which the engine describes its device, by the first word of the line.
std::multimap<std::string, std::string> Heard(ChildEngine& engine) {
  std::multimap<std::string, std::string> said;
  for (;;) {
    const std::optional<std::string> line = engine.Hear();
    if (!line) return said;
    const size_t space = line->find(' ');
    said.emplace(line->substr(0, space), space == line->npos ? "" : line->substr(space + 1));
    if (*line == "ready") return said;
  }
}

void ExpectLimits(const DriverState& state, const std::vector<std::string>& limits) {
  const auto any = [&](const char* part) {
    return std::ranges::any_of(
        limits, [&](const std::string& limit) { return absl::StrContains(limit, part); });
  };
  for (const char* part : state.limits) EXPECT_TRUE(any(part)) << part;
  for (const char* part : state.without) EXPECT_FALSE(any(part)) << part;
}

TEST_P(DriverStates, AnEngineThatAcceptsAnyDeviceStartsAndReportsIt) {
  DriverState state = GetParam();
  if (EngineWithoutCuda() != nullptr)
    state = {.name = "", .kind = "host", .reason = "this build has no CUDA: install the toolkit"};
  const std::unique_ptr<ChildEngine> engine = Start("auto", "tell");
  const auto said = Heard(*engine);
  ASSERT_EQ(said.count("ready"), 1u);
  EXPECT_EQ(said.find("done")->second, "96");  // loaded blocks; the engine checked their bytes
  EXPECT_EQ(said.find("kind")->second, state.kind);
  EXPECT_EQ(said.find("wish")->second, "auto");
  EXPECT_TRUE(absl::StrContains(said.find("reason")->second, state.reason));
  EXPECT_EQ(said.find("reason")->second.empty(), state.reason[0] == '\0');
  std::vector<std::string> limits;
  for (auto [at, end] = said.equal_range("limit"); at != end; ++at) limits.push_back(at->second);
  ExpectLimits(state, limits);
  // The session maps slabs to write and slabs to read.
  EXPECT_GE(std::stoull(said.find("registered")->second), 16u << 20);
  EXPECT_EQ(std::stoull(said.find("staged")->second) > 0, state.stages_reads);
  EXPECT_EQ(std::stoull(said.find("read-only")->second) > 0, !state.stages_reads);
  // The host device copies the pages' runs itself.
  EXPECT_EQ(std::stoull(said.find("launches")->second) > 0, std::string(state.kind) == "cuda");

  RpcStub cache({.socket_path = daemon_.data_socket()});
  const auto instances = cache.ListInstances("", kCallLimit);
  ASSERT_TRUE(instances.ok()) << instances.status();
  ASSERT_EQ(instances->size(), 1u);
  ASSERT_EQ((*instances)[0].sessions.size(), 1u);
  const wire::EngineDevice& told = (*instances)[0].sessions[0].device;
  EXPECT_EQ(told.kind, state.kind);
  EXPECT_EQ(told.wish, "auto");
  EXPECT_TRUE(absl::StrContains(told.reason, state.reason)) << told.reason;
  ExpectLimits(state, told.limits);

  const CtlOutcome table = RunCtl({"instances"}, {.socket_dir = daemon_.folder()->path()});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(absl::StrContains(table.out, "DEVICE")) << table.out;
  EXPECT_TRUE(
      absl::StrContains(table.out, absl::StrCat(state.kind, state.reason[0] == '\0' ? " " : "*")))
      << table.out;
}

TEST_P(DriverStates, AnEngineThatRequiresCudaStartsOnlyWithCuda) {
  const bool starts = std::string(GetParam().kind) == "cuda" && EngineWithoutCuda() == nullptr;
  const std::unique_ptr<ChildEngine> engine = Start("cuda", "once");
  EXPECT_EQ(engine->Hear(), starts ? std::optional<std::string>("done 96") : std::nullopt);
  EXPECT_EQ(engine->Wait(), starts ? 0 : 1);
  EXPECT_TRUE(daemon_.alive()) << daemon_.errors();
}

INSTANTIATE_TEST_SUITE_P(Drivers, DriverStates, ::testing::ValuesIn(kStates),
                         [](const auto& state) { return state.param.name; });

}  // namespace
}  // namespace larder::e2e
