// The device memory of a session's engine: the blocks that the engine reports there, and the
// directives that the daemon sends about them.
//
// DeviceTable (server/instances/device_table.h) keeps the reports, and DirectiveQueue waits for the
// answers; this class checks reports and sends directives.
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

  // To be called at the hello (the first message) if the client takes directives other than DRAIN.
  void TakeDirectives() { takes_directives_ = true; }
  // Handles an engine's report of what it stored in device memory and removed from it.  If the
  // session may not report for its engine id, the report is only counted.  Returns InvalidArgument
  // if the report is not valid.
  [[nodiscard]] absl::Status Report(const wire::DeviceBlocks& report);
  // Sends a directive, with the session's number for `variant`.  Returns kUnsupported if the client
  // takes no directives, kMissing if the directive names blocks and the session has not registered
  // `variant`, otherwise kOk.
  [[nodiscard]] BlockStatus Direct(VariantIndex variant, wire::Directive directive);

 private:
  SessionContext& context_;
  const SessionRegistrations& registered_;
  std::atomic<bool> takes_directives_ = false;
};

}  // namespace larder
