// Registrations of engines outlive the daemon, even if the disk fails for a while.
#include "server/instances/registration_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/disk/memory_disk_tier.h"
#include "storage/spin_wait.h"
#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
using testing::StoreFixture;
using testing::TestVariant;

// A disk tier whose first writes of facts fail.
class FailingTier final : public MemoryDiskTier {
 public:
  FailingTier(size_t failures, Medium& medium)
      : MemoryDiskTier(GiB(1), medium), failures_(failures) {}

  absl::Status PutFacts(std::span<const Fact> facts) override {
    MutexLock lock(mu_);
    changed_.NotifyAll();
    ++calls_;
    if (calls_ <= failures_) return absl::UnavailableError("the disk is on fire");
    return MemoryDiskTier::PutFacts(facts);
  }
  // Fails the test if the calls do not come in time.
  void AwaitCalls(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (calls_ < count && changed_.WaitUntil(mu_, until)) {
    }
    EXPECT_GE(calls_, count) << "writes of facts";
  }

 private:
  const size_t failures_;
  Mutex mu_;
  CondVar changed_;
  size_t calls_ LARDER_GUARDED_BY(mu_) = 0;
};

class RegistrationStoreTest : public ::testing::Test {
 protected:
  // The engines register while the first `failures` writes fail.  Returns what a later daemon knows
  // of them.
  std::vector<wire::InstanceInfo> Restart(size_t failures, std::vector<std::string> engines) {
    {
      FailingTier tier(failures, medium_);
      InstanceTable instances(f_.store(), f_.clock(), {});
      RegistrationStore store(tier, instances, "default", counters_,
                              [this](const std::string& text) { warnings_.push_back(text); });
      instances.SetOnChange([&](const std::string& engine_id) { store.Save(engine_id); });
      for (const std::string& engine : engines) {
        ContentSpec content;
        content.tenant = "default";
        content.model = engine;
        const VariantSpec variant = TestVariant();
        EXPECT_TRUE(instances.Register(engine, {&content, 1}, {&variant, 1}).ok());
      }
      tier.AwaitCalls(failures + engines.size());
    }
    MemoryDiskTier tier(GiB(1), medium_);
    InstanceTable instances(f_.store(), f_.clock(), {});
    RegistrationStore store(tier, instances, "default", counters_, nullptr);
    EXPECT_EQ(store.Load(), engines.size());
    return instances.List();
  }

  StoreFixture f_;
  MemoryDiskTier::Medium medium_;
  Counters counters_;
  std::vector<std::string> warnings_;
};

TEST_F(RegistrationStoreTest, ALaterDaemonKnowsTheEngines) {
  const auto known = Restart(0, {"a", "b"});
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].engine_id, "a");
  ASSERT_EQ(known[0].contents.size(), 1u);
  EXPECT_EQ(known[0].contents[0].model, "a");
  EXPECT_EQ(known[0].contents[0].tenant, "default");
  EXPECT_EQ(known[1].variants, std::vector{TestVariant()});
  EXPECT_EQ(counters_.registrations_failed.value(), 0u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(RegistrationStoreTest, RetriesFailedWrites) {
  const auto known = Restart(3, {"a", "b"});
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(counters_.registrations_failed.value(), 3u);
  ASSERT_EQ(warnings_.size(), 1u) << "a repeated failure is reported once";
  EXPECT_THAT(warnings_[0], HasSubstr("the disk is on fire"));
}

// The destructor does not wait for a disk that fails permanently.
TEST_F(RegistrationStoreTest, EndsEvenIfNothingCanBeWritten) {
  FailingTier tier(SIZE_MAX, medium_);
  InstanceTable instances(f_.store(), f_.clock(), {});
  const VariantSpec variant = TestVariant();
  EXPECT_TRUE(instances.Register("a", {}, {&variant, 1}).ok());
  {
    RegistrationStore store(tier, instances, "default", counters_, nullptr);
    store.Save("a");
    tier.AwaitCalls(1);
  }
  EXPECT_GE(counters_.registrations_failed.value(), 2u) << "the store tries once more when it ends";
}

// A registration for which no disk space is left does not block other registrations, and is written
// when space is freed.
TEST_F(RegistrationStoreTest, ARegistrationWithoutSpaceIsWrittenWhenAnotherIsForgotten) {
  MemoryDiskTier tier(MiB(2), medium_);  // 8 KiB for registrations
  InstanceTable instances(f_.store(), f_.clock(), {});
  RegistrationStore store(tier, instances, "default", counters_,
                          [this](const std::string& text) { warnings_.push_back(text); });
  instances.SetOnChange([&](const std::string& engine_id) { store.Save(engine_id); });
  const auto on_disk = [&](const std::string& engine_id) {
    MutexLock lock(medium_.mu);
    return medium_.facts.contains("registration/" + engine_id);
  };
  const auto eventually = [](const std::function<bool()>& condition) {
    return SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(20), condition);
  };
  const auto register_one = [&](const std::string& engine_id, size_t contents) {
    std::vector<ContentSpec> all(contents);
    for (size_t i = 0; i < contents; ++i) {
      all[i].tenant = "default";
      all[i].model = engine_id + std::string(240, static_cast<char>('a' + i));
      all[i].revision = all[i].lora = std::string(250, 'r');
    }
    const VariantSpec variant = TestVariant();
    ASSERT_TRUE(instances.Register(engine_id, all, {&variant, 1}).ok());
  };
  register_one("first", 8);
  ASSERT_TRUE(eventually([&] { return on_disk("first"); }));
  ASSERT_TRUE(instances.SessionBegan("large", {}).ok());
  ASSERT_TRUE(instances.SessionBegan("small", {}).ok());
  register_one("large", 8);
  register_one("small", 1);
  EXPECT_TRUE(eventually([&] { return on_disk("small"); }));
  EXPECT_TRUE(eventually([&] { return counters_.registrations_failed.value() == 1; }));
  EXPECT_FALSE(on_disk("large"));
  instances.Collect();  // "first" is not attached and has no blocks
  EXPECT_TRUE(eventually([&] { return on_disk("large") && !on_disk("first"); }));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("'large'"));
}

}  // namespace
}  // namespace larder
