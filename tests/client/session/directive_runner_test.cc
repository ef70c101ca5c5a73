// A handler of directives on its own thread: what it is given, and what is answered in its name.
#include "client/session/directive_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>

namespace larder {
namespace {

using ::testing::ElementsAre;

class DirectiveRunnerTest : public ::testing::Test {
 protected:
  static wire::Directive Order(uint64_t id, size_t keys, uint64_t valid_unix_ms = 100) {
    wire::Directive directive{.directive_id = id, .kind = wire::DirectiveKind::kPin};
    directive.digests.resize(keys);
    directive.valid_unix_ms = valid_unix_ms;
    return directive;
  }
  // Returns the next answer.
  wire::DirectiveDone Next() {
    MutexLock lock(mu_);
    while (sent_.empty()) came_.Wait(mu_);
    wire::DirectiveDone done = std::move(sent_.front());
    sent_.erase(sent_.begin());
    return done;
  }
  DirectiveRunner::Send Sender() {
    return [this](wire::Up up) {
      MutexLock lock(mu_);
      sent_.push_back(std::move(up.directives_done.front()));
      came_.NotifyAll();
      return absl::OkStatus();
    };
  }

  std::atomic<uint64_t> now_ms_{50};
  Mutex mu_;
  CondVar came_;
  std::vector<wire::DirectiveDone> sent_ LARDER_GUARDED_BY(mu_);
};

TEST_F(DirectiveRunnerTest, AnswersInOrder) {
  DirectiveRunner runner(
      [](const wire::Directive& directive) {
        return std::vector(directive.digests.size(), BlockStatus::kKept);
      },
      [this] { return now_ms_.load(); }, Sender());
  runner.Add(Order(1, 2));
  runner.Add(Order(2, 0));
  const wire::DirectiveDone first = Next();
  EXPECT_EQ(first.directive_id, 1u);
  EXPECT_THAT(first.status, ElementsAre(BlockStatus::kKept, BlockStatus::kKept));
  EXPECT_EQ(Next().directive_id, 2u);
}

TEST_F(DirectiveRunnerTest, AnAnswerWithAWrongNumberOfKeysIsUnsupported) {
  DirectiveRunner runner([](const wire::Directive&) { return std::vector{BlockStatus::kOk}; },
                         [this] { return now_ms_.load(); }, Sender());
  runner.Add(Order(1, 2));
  EXPECT_THAT(Next().status, ElementsAre(BlockStatus::kUnsupported, BlockStatus::kUnsupported));
}

TEST_F(DirectiveRunnerTest, WithoutKeysTheAnswerSaysWhyItWasNotDone) {
  BlockStatus says = BlockStatus::kFull;
  DirectiveRunner runner([&says](const wire::Directive&) { return std::vector{says}; },
                         [this] { return now_ms_.load(); }, Sender());
  runner.Add(Order(1, 0));
  EXPECT_THAT(Next().status, ElementsAre(BlockStatus::kFull));
  says = BlockStatus::kOk;
  runner.Add(Order(2, 0));
  EXPECT_THAT(Next().status, ElementsAre());
}

// Of three directives that arrived while the handler hung, those that have expired are not carried
// out.
TEST_F(DirectiveRunnerTest, ExpiredDirectivesAreNotCarriedOut) {
  std::promise<void> wake;
  std::atomic<int> handled{0};
  DirectiveRunner runner(
      [&, woken = wake.get_future().share()](const wire::Directive& directive) {
        ++handled;
        woken.wait();
        return std::vector(directive.digests.size(), BlockStatus::kOk);
      },
      [this] { return now_ms_.load(); }, Sender());
  runner.Add(Order(1, 1));
  runner.Add(Order(2, 1, 100));
  runner.Add(Order(3, 1, 300));
  while (handled.load() == 0) std::this_thread::yield();
  now_ms_ = 200;
  wake.set_value();
  EXPECT_THAT(Next().status, ElementsAre(BlockStatus::kOk));
  EXPECT_THAT(Next().status, ElementsAre(BlockStatus::kCancelled));
  EXPECT_THAT(Next().status, ElementsAre(BlockStatus::kOk));
  EXPECT_EQ(handled.load(), 2);
}

TEST_F(DirectiveRunnerTest, StopWaitsForTheDirectiveUnderWay) {
  std::promise<void> wake;
  std::atomic<int> handling{0}, handled{0};
  std::optional<DirectiveRunner> runner;
  runner.emplace(
      [&, woken = wake.get_future().share()](const wire::Directive&) {
        ++handling;
        woken.wait();
        ++handled;
        return std::vector<BlockStatus>();
      },
      [this] { return now_ms_.load(); }, Sender());
  runner->Add(Order(1, 0));
  runner->Add(Order(2, 0));
  while (handling.load() == 0) std::this_thread::yield();
  auto stopped = std::async(std::launch::async, [&] { runner->Stop(); });
  while (!runner->stopped()) std::this_thread::yield();
  wake.set_value();
  stopped.get();
  EXPECT_EQ(handling.load(), 1) << "the second directive must not be started";
  EXPECT_EQ(handled.load(), 1) << "Stop must wait for the handler";
}

}  // namespace
}  // namespace larder
