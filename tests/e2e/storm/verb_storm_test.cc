// Calls all verbs at random and compares every answer with a model.  4 controllers call the verbs,
// beside 4 engines that put and get and 2 engines with device memory, while engines and the daemon
// are killed.  No answer may differ from what the model allows, no byte may be wrong, and at the
// end the daemon must hold nothing.
//
// The model predicts every answer about 16 chains of 6 blocks.  The actor that works on a chain has
// it on loan, so each answer about the chain follows from the answers before (storm_chains.h,
// storm_model.h).  Meanwhile the nine other actors work on other chains and on open blocks, which
// the model does not predict.  The model takes calls on a chain in turns, and does not allow for
// overlapping calls, because Move and Compress take many steps: a search over their interleavings
// would allow nearly every answer, while this model allows one.  Calls race only about open
// blocks.  Of those the test checks every byte, that each status is one that the call may return,
// the sets that watchers build, and what is left at the end.
//
// Rounds are calm (pool and disk hold everything, so no block may leave by itself) or stormy
// (engines put several times what pool and disk hold, so blocks without a pin or a lease may
// leave).  Many rounds end with kill -9 or SIGTERM of the daemon in the middle of calls.  Between
// two rounds the test checks everything: each block's tiers and codecs, that pinned blocks are in
// their tiers, the sets of four watchers that are cut off all the time, and the number of pins.
//
// LARDER_TEST_SCALE (default 0.1) scales the 200,000 steps; LARDER_TEST_SEED replays the random
// choices, not the timing.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/e2e/storm/storm_controller.h"
#include "tests/e2e/storm/storm_device.h"
#include "tests/e2e/storm/storm_engine_actor.h"
#include "tests/e2e/support/nothing_left.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

constexpr uint64_t kSteps = 200'000, kStepsARound = 2'000;
constexpr std::chrono::minutes kRoundLimit{5};
constexpr uint64_t kMemoryGrowthMax = 64 << 20;  // of the daemon's memory without the pool

size_t OwnDescriptors() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// Returns the number of the daemon's descriptors without files of its disk, of which it opens more
// or fewer at any time.  It counts in one pass, because the disk's files change meanwhile.
size_t DescriptorsBesideDisk(const DaemonProcess& daemon, const std::string& disk) {
  size_t count = 0;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", daemon.pid(), "/fd"))) {
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    count += gone || file.starts_with(disk) ? 0 : 1;
  }
  return count;
}

// Returns how many mappings of the daemon's memory this process has.
size_t SharedMappings() {
  size_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:") != std::string::npos ? 1 : 0;
  return count;
}

class VerbStormTest : public ::testing::Test {
 protected:
  void Start() {
    world_.daemon.reset();
    const std::vector<std::string> flags = {"--pool", "16MiB", "--slab",       "8MiB",
                                            "--disk", disk_,   "--disk-limit", "96MiB"};
    world_.daemon =
        std::make_unique<DaemonProcess>(flags, DaemonProcess::Options{.folder = world_.folder});
    ASSERT_TRUE(world_.daemon->serves()) << world_.daemon->errors();
    ASSERT_TRUE(Eventually([&] { return Metric("larder_disk_recovering") == 0; }));
    // A first client, because what the daemon opens once with the first connections is no leak.
    StormEngine engine(world_.tally);
    const auto contents = StormContents(world_);
    ASSERT_TRUE(
        engine.Connect(world_.folder->path(), kStormEngineId, contents, WriteMode::kMapped, false)
            .ok());
    const TestBlock block = OpenBlock(0);
    ASSERT_TRUE(engine.Put(OpenContent().Id(), {&block, 1}, kOpenLayerBytes).ok());
    engine.Disconnect();
    (void)SettledDescriptors(*world_.daemon);
    descriptors_ = DescriptorsBesideDisk(*world_.daemon, disk_);
    memory_ = world_.daemon->ResidentBytesBesidePool();
  }
  [[nodiscard]] double Metric(const std::string& name) const { return world_.daemon->Metric(name); }
  [[nodiscard]] double Evicted() const {
    return Metric("larder_blocks_evicted_total{cause=\"demand\"}") +
           Metric("larder_blocks_evicted_total{cause=\"watermark\"}") +
           Metric("larder_disk_evicted_total");
  }
  [[nodiscard]] bool Settled() const {
    return Metric("larder_disk_waiting{for=\"spill\"}") == 0 &&
           Metric("larder_disk_waiting{for=\"promote\"}") == 0;
  }
  [[nodiscard]] bool Right() const {
    return world_.tally.differences == 0 && world_.tally.wrong_bytes == 0;
  }

  void StartActors(uint64_t seed) {
    for (int i = 0; i < kControllers; ++i) {
      controllers_.push_back(
          std::make_unique<StormController>(world_, seed * 100 + threads_.size()));
      threads_.emplace_back([who = controllers_.back().get()] { who->Run(); });
    }
    for (int i = 0; i < kSessionEngines; ++i) {
      threads_.emplace_back([this, i, own = seed * 100 + threads_.size()] {
        StormSessionActor(world_, static_cast<uint64_t>(i) + 1, own).Run();
      });
    }
    for (int i = 0; i < kChildEngines; ++i) {
      threads_.emplace_back(
          [this, own = seed * 100 + threads_.size()] { StormChildActor(world_, own).Run(); });
    }
    for (int i = 0; i < kDeviceEngines; ++i) {
      devices_.push_back(
          std::make_unique<StormDeviceActor>(world_, i, seed * 100 + threads_.size()));
      threads_.emplace_back([who = devices_.back().get()] { who->Run(); });
    }
    world_.gate.Close();
    BeginDevices(1);
  }
  // Makes about one in `of` device engines attach again with an empty memory.
  void BeginDevices(uint32_t of) {
    for (const auto& device : devices_) {
      if (random_() % of == 0) {
        EXPECT_TRUE(device->BeginAnew());
      }
    }
  }
  void EndActors() {
    world_.gate.Open(/*end=*/true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void SetWeather(bool pressure) {
    world_.pressure = pressure;
    for (const auto& chain : world_.chains.all()) chain->SetPressure(pressure);
  }
  // Runs the actors until they have done `steps` steps in all.  The caller then closes the gate or
  // ends the daemon.
  void RunUntil(uint64_t steps) {
    world_.gate.Open();
    EXPECT_TRUE(Eventually(
        [&] { return !Right() || world_.tally.StepsSoFar() >= steps || !world_.daemon->alive(); },
        kRoundLimit))
        << "the storm hangs";
    EXPECT_TRUE(world_.daemon->alive()) << world_.daemon->errors();
  }
  // Ends the daemon in the middle of calls and starts the next one.
  void Restart(bool kill) {
    ++(kill ? killed_ : terminated_);
    world_.gate.SetStopping(true);
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
    evicted_ += Evicted();
    world_.daemon->Signal(kill ? SIGKILL : SIGTERM);
    world_.gate.Close();
    const std::optional<int> code = world_.daemon->Wait();
    EXPECT_EQ(code, kill ? 128 + SIGKILL : 0) << world_.daemon->errors();
    for (const auto& chain : world_.chains.all()) chain->Crash();
    ASSERT_NO_FATAL_FAILURE(Start());
    world_.gate.SetStopping(false);
    BeginDevices(1);
  }

  // ---- between two rounds

  // Clears the open blocks, so that nothing has to be evicted any more.
  void ClearOpen(StormController& by) {
    (void)by.cache().Unpin({.tenant = {}, .blocks = std::nullopt, .owner = kOpenOwner}, kCallLimit);
    wire::ClearQuery query = {.tenant = {},
                              .scope = wire::SelectionScope::kContent,
                              .blocks = {},
                              .tiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk)};
    query.blocks.content = WithoutTenant(OpenContent());
    EXPECT_TRUE(Eventually([&] {
      const auto cleared = by.cache().Clear(query, kCallLimit);
      return cleared.ok() && cleared->kept_pinned == 0 && Settled();
    }));
  }
  // Whether every pinned block that is stored is in the tiers in which it is pinned.
  [[nodiscard]] bool PinsKept(StormController& by, StormChain& chain) {
    if (!by.LookUp(chain)) return true;  // the difference is already counted
    for (const StormChain::Block& block : chain.blocks) {
      for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
        const StormState pins = PinBit(0, tier) | PinBit(1, tier), copy = CopyBit(tier);
        const auto astray = [=](StormState s) {
          return (s & pins) != 0 && Copies(s) != 0 && (s & copy) == 0;
        };
        if (block.possible.Always(astray)) return false;
      }
    }
    return true;
  }
  // Whether the daemon has as many pins as the model, which is not certain of every pin.
  [[nodiscard]] bool PinsCounted() {
    size_t least = 0, most = 0;
    for (const auto& chain : world_.chains.all()) {
      for (const StormChain::Block& block : chain->blocks) {
        for (StormState bit = PinBit(0, Tier::kHost); bit <= kPrefetched;
             bit = static_cast<StormState>(bit << 1)) {
          const auto has = [bit](StormState s) { return (s & bit) != 0; };
          least += block.possible.Always(has) && bit != kPrefetched ? 1 : 0;
          most += block.possible.Ever(has) ? 1 : 0;
        }
      }
    }
    const double pins = Metric("larder_pins");
    return pins >= static_cast<double>(least) && pins <= static_cast<double>(most);
  }
  // Returns the blocks that the watcher lists and Lookup does not, or the other way round.
  [[nodiscard]] std::string HeardWrong(StormController& who) {
    who.CatchUp();
    std::set<StormWatcher::Entry> there, differ;
    for (const auto& chain : world_.chains.all()) {
      (void)who.LookUp(*chain);
      for (const StormChain::Block& block : chain->blocks) {
        const auto in = [&](StormState copy) {
          return block.possible.Always([=](StormState s) { return (s & copy) != 0; });
        };
        if (in(kInHost)) there.insert({block.names.digest, Tier::kHost});
        if (in(kOnDisk)) there.insert({block.names.digest, Tier::kDisk});
        if (block.device.there)
          there.insert({block.names.digest, Tier::kDevice, DeviceEngineOf(*chain)});
      }
    }
    std::ranges::set_symmetric_difference(there, who.watcher().blocks,
                                          std::inserter(differ, differ.end()));
    std::string wrong;
    for (const StormWatcher::Entry& entry : differ)
      absl::StrAppend(&wrong, "\n", entry.digest.Hex(), there.contains(entry) ? " is" : " is not",
                      " in ", ToString(entry.tier), " ", entry.engine);
    return wrong;
  }
  void LookAtEverything() {
    for (const auto& who : controllers_) who->Connect();
    StormController& by = *controllers_[0];
    BeginDevices(3);
    ClearOpen(by);
    for (const auto& chain : world_.chains.all()) {
      EXPECT_TRUE(Eventually([&] { return PinsKept(by, *chain); })) << [&] {
        std::string all = absl::StrCat("chain ", chain->number);
        for (size_t i = 0; i < kChainBlocks; ++i)
          absl::StrAppend(&all, "\n  block ", i, ": ", chain->Describe(i));
        return all;
      }();
    }
    EXPECT_TRUE(Eventually([&] { return Settled(); }));
    SetWeather(false);
    for (const auto& chain : world_.chains.all()) {
      (void)by.LookUp(*chain);
      (void)by.LookAtCodecs(*chain);
      by.LookUpDevice(*chain);
      chain->EndRound();
    }
    EXPECT_TRUE(Eventually([&] { return PinsCounted(); })) << Metric("larder_pins") << " pins";
    for (const auto& who : controllers_)
      EXPECT_TRUE(Eventually([&] { return HeardWrong(*who).empty(); })) << HeardWrong(*who);
  }

  // ---- at the end

  void ExpectNothingIsLeft() {
    {
      RpcStub cache({.socket_path = world_.daemon->control_socket()});
      const wire::ClearQuery all = {.tenant = {},
                                    .scope = wire::SelectionScope::kAll,
                                    .blocks = {},
                                    .tiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk),
                                    .pinned = true};
      EXPECT_TRUE(Eventually([&] {
        return cache.Clear(all, kCallLimit).ok() && Settled() &&
               Metric("larder_disk_blocks{where=\"all\"}") == 0;
      }));
      wire::UnpinQuery owner;  // ends pins of names whose blocks are in no tier
      for (const auto& chain : world_.chains.all()) {
        for (uint32_t i = 0; i < kOwners; ++i) {
          owner.owner = chain->Owner(i);
          EXPECT_TRUE(cache.Unpin(owner, kCallLimit).ok());
        }
      }
      owner.owner = kOpenOwner;
      EXPECT_TRUE(cache.Unpin(owner, kCallLimit).ok());
    }
    const v1::TenantStats t = world_.daemon->Tenant();
    EXPECT_EQ(t.pool_stored(), 0u);
    EXPECT_EQ(t.blocks(), 0u);
    EXPECT_EQ(Metric("larder_device_blocks"), 0);
    EXPECT_EQ(Metric("larder_pinned_bytes{tier=\"host\"}"), 0);
    EXPECT_EQ(Metric("larder_pinned_bytes{tier=\"disk\"}"), 0);
    EXPECT_EQ(Metric("larder_disk_bytes{part=\"used\"}"), 0);
    EXPECT_EQ(Metric("larder_disk_failures_total{kind=\"damaged\"}"), 0);
    EXPECT_EQ(SharedMappings(), 0u) << "this process still maps the daemon's memory";
    const uint64_t memory = world_.daemon->ResidentBytesBesidePool();
    EXPECT_LE(memory, memory_ + testing::MemoryBound(kMemoryGrowthMax));
    const auto open = [&] { return DescriptorsBesideDisk(*world_.daemon, disk_); };
    std::printf(
        "daemon: %zu descriptors without its disk's at first, %zu at the end; %.1f and %.1f ",
        descriptors_, open(), static_cast<double>(memory_) / (1 << 20),
        static_cast<double>(memory) / (1 << 20));
    std::printf("MiB without the pool\n");
    ExpectNothingLeft(*world_.daemon, descriptors_, open);
  }
  void Report() {
    const StormTally& tally = world_.tally;
    std::printf("%lu steps:", tally.StepsSoFar());
    for (size_t i = 0; i < kStormVerbs.size(); ++i)
      std::printf(" %s %lu,", kStormVerbs[i], tally.steps[i].load());
    std::printf(
        " of engine processes %lu; %lu reads with bytes; %lu cancelled; %lu unanswered as the "
        "daemon ended; moved %lu, kept as in use %lu; cleared %lu, kept %lu; recoded %lu, kept "
        "%lu; engines killed %lu; daemon killed %d, terminated %d; evictions %.0f; differences "
        "%lu, wrong bytes %lu\n",
        tally.child_steps.load(), tally.hits.load(), tally.cancelled.load(),
        tally.unanswered.load(), tally.moved.done.load(), tally.moved.left.load(),
        tally.cleared.done.load(), tally.cleared.left.load(), tally.recoded.done.load(),
        tally.recoded.left.load(), world_.children_killed.load(), killed_, terminated_,
        evicted_ + Evicted(), tally.differences.load(), tally.wrong_bytes.load());
    std::fflush(stdout);
  }

  StormWorld world_;
  const std::string disk_ = world_.folder->File("disk");
  StormRandom random_;
  std::vector<std::unique_ptr<StormController>> controllers_;
  std::vector<std::unique_ptr<StormDeviceActor>> devices_;
  std::vector<std::thread> threads_;
  size_t descriptors_ = 0;  // of the daemon, without those of its disk
  uint64_t memory_ = 0;
  double evicted_ = 0;  // blocks that daemons have evicted that have ended
  int killed_ = 0, terminated_ = 0;
};

TEST_F(VerbStormTest, EveryAnswerIsOneThatTheModelAllows) {
  const uint32_t seed = testing::TestSeed();
  random_.seed(seed);
  const size_t descriptors_before = OwnDescriptors();
  const uint64_t steps = testing::Scaled(kSteps);
  const uint64_t rounds = std::max<uint64_t>(4, steps / kStepsARound);
  ASSERT_NO_FATAL_FAILURE(Start());
  StartActors(seed);
  for (uint64_t round = 0; round < rounds && Right() && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const bool storm = round % 2 == 1;
    SetWeather(storm);
    const double evicted = evicted_ + Evicted();
    RunUntil((round + 1) * steps / rounds);
    if (!storm) {
      EXPECT_EQ(evicted_ + Evicted(), evicted) << "blocks were evicted in a calm round";
    }
    const uint64_t draw = random_() % 4;
    // The last daemon lives for a quarter of the rounds, so that slow leaks show.
    if (draw < 2 && Right() && 4 * round < 3 * rounds) {
      Restart(draw == 0);
    } else {
      world_.gate.Close();
    }
    if (!Right() || HasFatalFailure()) break;
    LookAtEverything();
  }
  EndActors();
  Report();
  EXPECT_EQ(world_.tally.differences, 0u);
  EXPECT_EQ(world_.tally.wrong_bytes, 0u);
  for (const StormTally::Done* verb :
       {&world_.tally.recoded, &world_.tally.moved, &world_.tally.cleared})
    EXPECT_GT(verb->done, verb->left);
  controllers_.clear();
  if (HasFailure()) return;
  EXPECT_GT(evicted_ + Evicted(), 0);
  ExpectNothingIsLeft();
  EXPECT_TRUE(Eventually([&] { return OwnDescriptors() <= descriptors_before + 8; }))
      << OwnDescriptors() << " descriptors here, " << descriptors_before << " before";
  if (!HasFailure()) std::printf("leaks 0\n");
}

}  // namespace
}  // namespace larder::e2e
