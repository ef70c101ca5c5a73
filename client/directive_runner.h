// Runs an engine's handler for directives, one at a time on a thread of its own, and sends what it
// answers.
//
// Ownership: by SessionCore.  Thread-safety: all methods from any thread.
// Lifecycle: made (starts the thread) -> Add ... -> Stop (waits for a handler under way).
// Limits: kWaitingMax directives wait; one more is answered UNSUPPORTED, for the engine hangs.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/wire/messages.h"
#include "storage/mutex.h"

namespace larder {

class DirectiveRunner {
 public:
  static constexpr size_t kWaitingMax = 256;

  // A status for each key of the directive; of none, none.
  using Handler = std::function<std::vector<BlockStatus>(const wire::Directive&)>;
  using Send = std::function<absl::Status(wire::Up)>;
  DirectiveRunner(Handler handler, Send send);
  ~DirectiveRunner();
  DirectiveRunner(const DirectiveRunner&) = delete;
  DirectiveRunner& operator=(const DirectiveRunner&) = delete;

  void Add(wire::Directive directive) LARDER_EXCLUDES(mu_);
  // Nothing is handled or sent any more.  Idempotent.
  void Stop() LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  struct Waiting {
    wire::Directive directive;
    bool refused = false;  // one too many
  };

  const Handler handler_;
  const Send send_;
  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::deque<Waiting> waiting_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
