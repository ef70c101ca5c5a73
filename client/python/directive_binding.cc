// Binds the directives of client/client.h.
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/python/directives.h"
#include "client/python/session.h"
#include "storage/clock.h"

namespace larder::python {

std::vector<BlockStatus> DirectiveInbox::Handle(const wire::Directive& directive) {
  constexpr int64_t kOnItsWayMs = 200;
  const auto left = static_cast<int64_t>(directive.valid_unix_ms - UnixMilliseconds());
  const std::chrono::milliseconds most(std::max<int64_t>(0, left - kOnItsWayMs));
  const TimePoint until = SteadyNow() + std::min(kAnswerMost, most);
  const MutexLock lock(mu_);
  waiting_ = directive;
  taken_ = false;
  answer_.reset();
  changed_.NotifyAll();
  while (!closed_ && !answer_ && changed_.WaitUntil(mu_, until)) {
  }
  waiting_.reset();
  if (answer_) return *std::exchange(answer_, std::nullopt);
  return std::vector(std::max<size_t>(1, directive.digests.size()), BlockStatus::kCancelled);
}

std::optional<wire::Directive> DirectiveInbox::Take(TimePoint until) {
  const MutexLock lock(mu_);
  while (!closed_ && (!waiting_ || taken_) && changed_.WaitUntil(mu_, until)) {
  }
  if (!waiting_ || taken_) return std::nullopt;
  taken_ = true;
  return waiting_;
}

void DirectiveInbox::PutBack(uint64_t directive_id) {
  const MutexLock lock(mu_);
  if (!waiting_ || waiting_->directive_id != directive_id || answer_) return;
  taken_ = false;
  changed_.NotifyAll();
}

bool DirectiveInbox::Answer(uint64_t directive_id, std::vector<BlockStatus> status) {
  const MutexLock lock(mu_);
  if (!waiting_ || waiting_->directive_id != directive_id || answer_) return false;
  answer_ = std::move(status);
  changed_.NotifyAll();
  return true;
}

void DirectiveInbox::Close() {
  const MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

namespace {

// A directive for Python.  If the engine lets go of it without an answer, Take returns it again.
class PyDirective {
 public:
  PyDirective(std::shared_ptr<SessionParts> parts, wire::Directive said)
      : parts_(std::move(parts)), said_(std::move(said)) {}
  PyDirective(const PyDirective&) = delete;
  PyDirective& operator=(const PyDirective&) = delete;
  ~PyDirective() {
    if (getpid() == parts_->process) parts_->inbox->PutBack(said_.directive_id);
  }
  [[nodiscard]] const wire::Directive& said() const { return said_; }
  [[nodiscard]] bool Done(std::vector<BlockStatus> status) const {
    const bool refused = said_.digests.empty() && status == std::vector{BlockStatus::kUnsupported};
    if (status.size() != said_.digests.size() && !refused)
      Raise(absl::InvalidArgumentError("there must be a status for each of the digests"));
    OrRaise(parts_->session->status());
    return parts_->inbox->Answer(said_.directive_id, std::move(status));
  }

 private:
  std::shared_ptr<SessionParts> parts_;
  const wire::Directive said_;
};

std::unique_ptr<PyDirective> Take(const PySession& self, double timeout_s) {
  auto parts = self.Parts();
  if (parts->inbox == nullptr)
    Raise(absl::InvalidArgumentError("attach with directives=True to take directives"));
  const TimePoint until = SteadyNow() + Milliseconds(timeout_s, "timeout_s", 600);
  for (;;) {
    OrRaise(parts->session->status());
    const TimePoint look_at_signals = SteadyNow() + std::chrono::milliseconds(100);
    std::optional<wire::Directive> directive;
    {
      const WithoutGil released;
      directive = parts->inbox->Take(std::min(until, look_at_signals));
    }
    if (directive) return std::make_unique<PyDirective>(std::move(parts), *std::move(directive));
    if (SteadyNow() >= until || parts->inbox->closed()) return nullptr;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

void BindDirectives(nb::module_& module, nb::class_<PySession>& session) {
  nb::enum_<wire::DirectiveKind>(module, "DirectiveKind",
                                 "What the daemon asks of an engine's blocks in device memory.")
      .value("PIN", wire::DirectiveKind::kPin, "keep them for `owner` until ends_unix_s")
      .value("UNPIN", wire::DirectiveKind::kUnpin,
             "end this owner's pins: of these blocks, or all if there are none")
      .value("DROP", wire::DirectiveKind::kDrop, "drop them; `pinned`: pinned ones, too")
      .value("COMPRESS", wire::DirectiveKind::kCompress, "encode them with `codec`");
  nb::enum_<Codec>(module, "Codec")
      .value("IDENTITY", Codec::kIdentity)
      .value("LOSSLESS", Codec::kLossless)
      .value("QUANTIZED", Codec::kQuantized)
      .value("JOINT", Codec::kJoint);
  nb::class_<PyDirective>(
      module, "Directive",
      "What the daemon asks an engine to do with blocks that it reported to have in device memory "
      "(Session.report_device).  The engine has 4 s for done, or less if it waited behind another "
      "directive.  After that the session tells the daemon that the engine did not carry it out.  "
      "If "
      "the engine lets go of this object before, take_directive returns the directive again.")
      .def_prop_ro("kind", [](const PyDirective& self) { return self.said().kind; })
      .def_prop_ro(
          "variant", [](const PyDirective& self) { return self.said().variant; },
          "The index of the blocks' VariantHandle.")
      .def_prop_ro("digests", [](const PyDirective& self) { return self.said().digests; })
      .def_prop_ro("owner", [](const PyDirective& self) { return self.said().owner; })
      .def_prop_ro("pinned", [](const PyDirective& self) { return self.said().pinned; })
      .def_prop_ro(
          "codec", [](const PyDirective& self) { return self.said().codec; },
          "For COMPRESS: the Codec; IDENTITY means to decode.  None for the other kinds.")
      .def_prop_ro(
          "ends_unix_s",
          [](const PyDirective& self) {
            return static_cast<double>(self.said().deadline_unix_ms) / 1e3;
          },
          "For PIN: when the pins end.")
      .def("done", &PyDirective::Done, "status"_a,
           "Answers with a BlockStatus for each digest: OK; MISSING, it is not in device memory; "
           "KEPT, it is pinned or in use; FULL, no more can be pinned, or there is no memory to "
           "compress it; UNSUPPORTED.  For a directive without digests: [] if it was carried out, "
           "otherwise [UNSUPPORTED].  Blocks that were dropped are reported as removed "
           "(Session.report_device) before.  Returns False if the daemon does not wait any more.");
  session.def(
      "take_directive", &Take, nb::kw_only(), "timeout_s"_a = 0.0,
      "Returns the Directive that waits, or None if there is none within timeout_s (at most "
      "600) or the session is closed meanwhile.  For sessions that were attached with "
      "directives=True.  Each directive holds up the next one until it is answered: answer "
      "all kinds.");
}

}  // namespace larder::python
