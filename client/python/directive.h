// A directive of the daemon, as an object of Python.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/engine/directive_inbox.h"
#include "client/python/binding.h"

namespace larder::python {

// If the engine lets go of it without an answer, the inbox returns it again.
class PyDirective {
 public:
  PyDirective(std::shared_ptr<DirectiveInbox> inbox, wire::Directive said)
      : inbox_(std::move(inbox)), said_(std::move(said)) {}
  PyDirective(const PyDirective&) = delete;
  PyDirective& operator=(const PyDirective&) = delete;
  // A forked child has no thread that could unlock the inbox.
  ~PyDirective() {
    if (getpid() == process_) inbox_->PutBack(said_.directive_id);
  }
  [[nodiscard]] bool Waits() const { return inbox_->Waits(said_.directive_id); }
  [[nodiscard]] const wire::Directive& said() const { return said_; }
  // Returns false if the daemon does not wait any more.  Raises ValueError for another number of
  // statuses than the directive has blocks.
  [[nodiscard]] bool Done(std::vector<BlockStatus> status) const;

 private:
  const pid_t process_ = getpid();
  const std::shared_ptr<DirectiveInbox> inbox_;
  const wire::Directive said_;
};

// Returns the directive that waits, or null if there is none within timeout_s, at most 600, or the
// inbox is closed.  raise_if_over: called with the GIL again and again; raises to end the wait.
[[nodiscard]] std::unique_ptr<PyDirective> TakeDirective(
    const std::shared_ptr<DirectiveInbox>& inbox, double timeout_s,
    const std::function<void()>& raise_if_over);

}  // namespace larder::python
