// Binds the directives of client/client.h.
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/engine/directive_inbox.h"
#include "client/python/directive.h"
#include "client/python/session.h"
#include "storage/clock.h"

namespace larder::python {

bool PyDirective::Done(std::vector<BlockStatus> status) const {
  const bool refused = said_.digests.empty() && status == std::vector{BlockStatus::kUnsupported};
  if (status.size() != said_.digests.size() && !refused)
    Raise(absl::InvalidArgumentError("there must be a status for each of the digests"));
  return inbox_->Answer(said_.directive_id, std::move(status));
}

std::unique_ptr<PyDirective> TakeDirective(const std::shared_ptr<DirectiveInbox>& inbox,
                                           double timeout_s,
                                           const std::function<void()>& raise_if_over) {
  const TimePoint until = SteadyNow() + Milliseconds(timeout_s, "timeout_s", 600);
  for (;;) {
    raise_if_over();
    const TimePoint look_at_signals = SteadyNow() + std::chrono::milliseconds(100);
    std::optional<wire::Directive> directive;
    {
      const WithoutGil released;
      directive = inbox->Take(std::min(until, look_at_signals));
    }
    if (directive) return std::make_unique<PyDirective>(inbox, *std::move(directive));
    if (SteadyNow() >= until || inbox->closed()) return nullptr;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

namespace {

std::unique_ptr<PyDirective> Take(const PySession& self, double timeout_s) {
  const std::shared_ptr<SessionParts> parts = self.Parts();
  if (parts->inbox == nullptr)
    Raise(absl::InvalidArgumentError("attach with directives=True to take directives"));
  return TakeDirective(parts->inbox, timeout_s, [&] { OrRaise(parts->session->status()); });
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
      .def_prop_ro(
          "waits", &PyDirective::Waits,
          "Whether the daemon still waits for the answer.  If not, the directive is not to "
          "be carried out any more.")
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
