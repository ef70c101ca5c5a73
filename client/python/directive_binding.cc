// Binds the directives of client/client.h.
#include <memory>
#include <utility>

#include "client/python/directives.h"
#include "client/python/session.h"
#include "storage/clock.h"

namespace larder::python {

std::vector<BlockStatus> DirectiveInbox::Handle(const wire::Directive& directive) {
  const TimePoint until = SteadyNow() + kAnswerMost;
  const MutexLock lock(mu_);
  waiting_ = directive;
  taken_ = false;
  answer_.reset();
  changed_.NotifyAll();
  while (!closed_ && !answer_ && changed_.WaitUntil(mu_, until)) {
  }
  waiting_.reset();
  if (answer_) return *std::exchange(answer_, std::nullopt);
  return std::vector(directive.digests.size(), BlockStatus::kCancelled);
}

std::optional<wire::Directive> DirectiveInbox::Take(TimePoint until) {
  const MutexLock lock(mu_);
  while (!closed_ && (!waiting_ || taken_) && changed_.WaitUntil(mu_, until)) {
  }
  if (!waiting_ || taken_) return std::nullopt;
  taken_ = true;
  return waiting_;
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

// A directive for Python.
struct PyDirective {
  wire::Directive said;
  std::shared_ptr<DirectiveInbox> inbox;

  [[nodiscard]] bool Done(std::vector<BlockStatus> status) const {
    if (status.size() != said.digests.size())
      Raise(absl::InvalidArgumentError("there must be a status for each of the digests"));
    return inbox->Answer(said.directive_id, std::move(status));
  }
};

std::optional<PyDirective> Take(const PySession& self, double timeout_s) {
  const auto parts = self.Parts();
  if (parts->inbox == nullptr)
    Raise(absl::InvalidArgumentError("attach with directives=True to take directives"));
  const TimePoint until = SteadyNow() + Milliseconds(timeout_s, "timeout_s", 600);
  std::optional<wire::Directive> directive;
  {
    nb::gil_scoped_release released;
    directive = parts->inbox->Take(until);
  }
  if (!directive) return std::nullopt;
  return PyDirective{*std::move(directive), parts->inbox};
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
      "(Session.report_device).  The daemon waits for about 4 s for done.")
      .def_prop_ro("kind", [](const PyDirective& self) { return self.said.kind; })
      .def_prop_ro(
          "variant", [](const PyDirective& self) { return self.said.variant; },
          "The index of the blocks' VariantHandle.")
      .def_prop_ro("digests", [](const PyDirective& self) { return self.said.digests; })
      .def_prop_ro("owner", [](const PyDirective& self) { return self.said.owner; })
      .def_prop_ro("pinned", [](const PyDirective& self) { return self.said.pinned; })
      .def_prop_ro(
          "codec", [](const PyDirective& self) { return self.said.codec; },
          "For COMPRESS: the Codec; IDENTITY means to decode.  None for the other kinds.")
      .def_prop_ro(
          "ends_unix_s",
          [](const PyDirective& self) {
            return static_cast<double>(self.said.deadline_unix_ms) / 1e3;
          },
          "For PIN: when the pins end.")
      .def("done", &PyDirective::Done, "status"_a,
           "Answers with a BlockStatus for each digest: OK; MISSING, it is not in device memory; "
           "KEPT, it is pinned or in use; FULL, no more can be pinned; UNSUPPORTED.  Blocks that "
           "were dropped are reported as removed (Session.report_device) before.  Returns False if "
           "the daemon does not wait any more.");
  session.def("take_directive", &Take, nb::kw_only(), "timeout_s"_a = 0.0,
              "Returns the Directive that waits, each once, or None if there is none within "
              "timeout_s.  For sessions that were attached with directives=True; the daemon takes "
              "one that nobody takes for not carried out.");
}

}  // namespace larder::python
