// A session's device memory: which blocks its engine reports there, and what the daemon asks the
// engine to do with them.
//
// The device table (server/instances/device_table.h) keeps the reports, and the directive queue
// waits for the answers; this class checks reports and sends directives.
// Thread-safety: all methods from any thread.  Locks: none.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "server/sessions/session_context.h"
#include "server/sessions/session_registrations.h"

namespace larder {

class SessionDevice {
 public:
  SessionDevice(SessionContext& context, const SessionRegistrations& registered)
      : context_(context), registered_(registered) {}

  // The client takes directives other than DRAIN.  To be called at the hello.
  void TakeDirectives() { takes_directives_ = true; }
  // Reports what an engine stored in device memory and removed from it.  Returns InvalidArgument if
  // the variant is not registered, or if digests do not follow from parent and tokens.
  [[nodiscard]] absl::Status Report(const wire::DeviceBlocks& report);
  // Sends a directive, which lacks its variant.  Returns kOk if it is on its way, kUnsupported if
  // the client takes none, kMissing if the session has not registered the variant.
  [[nodiscard]] BlockStatus Direct(VariantIndex variant, wire::Directive directive);

 private:
  SessionContext& context_;
  const SessionRegistrations& registered_;
  std::atomic<bool> takes_directives_ = false;
};

}  // namespace larder
