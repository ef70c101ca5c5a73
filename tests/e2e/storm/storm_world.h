// The state that the actors of the storm share.
//
// Thread-safety: as each member states; `daemon` and `pressure` change only while the gate is
// closed.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tests/e2e/storm/storm_chains.h"
#include "tests/e2e/storm/storm_gate.h"
#include "tests/e2e/storm/storm_tally.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {

inline constexpr int kControllers = 4, kSessionEngines = 2, kChildEngines = 2, kDeviceEngines = 2;
inline constexpr const char* kStormEngineId = "storm";  // id of sessions that register all chains
inline constexpr const char* kOpenOwner = "open";       // owner of the pins of open blocks
inline constexpr std::chrono::milliseconds kCallLimit{60'000};  // deadline of a gRPC call

struct StormWorld {
  const std::shared_ptr<TemporarySocketDirectory> folder =
      std::make_shared<TemporarySocketDirectory>();
  std::unique_ptr<DaemonProcess> daemon;
  bool pressure = false;
  StormChains chains;
  StormTally tally;
  StormGate gate{kControllers + kSessionEngines + kChildEngines + kDeviceEngines};
  std::atomic<uint64_t> children_killed{0};

  // Returns whether the call was answered.  Counts a difference if it failed although the daemon is
  // not about to end.
  [[nodiscard]] bool Answered(const absl::Status& status, const std::string& what) {
    if (status.ok()) return true;
    ++tally.unanswered;
    if (!gate.stopping()) tally.Differs(what + ": " + status.ToString());
    return false;
  }
};

}  // namespace larder::e2e
