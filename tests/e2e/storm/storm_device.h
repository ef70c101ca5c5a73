// Device memory in the storm: an engine that reports the blocks of its chains in its device memory,
// and executes directives.
//
// The model of device memory is exact (StormChain::Block::device): no block leaves it by itself,
// only the actor that has a chain on loan changes its blocks there, and a session ends only while
// no chain is on loan.  Each chain belongs to one of these engines.
// Ownership: client, session, and the memory.  Thread-safety: none, except that directives come on
// a thread of the session.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/e2e/storm/storm_world.h"
#include "tests/e2e/support/device_memory.h"

namespace larder::e2e {

[[nodiscard]] inline std::string DeviceEngineOf(const StormChain& chain) {
  return "storm-device-" + std::to_string(chain.number % kDeviceEngines);
}

class StormDeviceActor {
 public:
  StormDeviceActor(StormWorld& world, size_t number, uint64_t seed)
      : world_(world), number_(number), random_(seed) {}
  // Runs until the gate ends it.
  void Run();
  // Ends the session, and with it all that the engine had, and attaches another one.  Call it only
  // while the gate is closed: a controller names blocks of this engine by tokens, and a daemon at
  // which the engine has not registered yet finds none.
  [[nodiscard]] bool BeginAnew();

 private:
  [[nodiscard]] bool Connect();
  void Disconnect();
  void Step();
  // Waits until the daemon has handled the reports.
  [[nodiscard]] absl::Status RoundTrip();
  [[nodiscard]] std::vector<BlockStatus> Do(const wire::Directive& directive);

  StormWorld& world_;
  const size_t number_;
  StormRandom random_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  Session* live_ = nullptr;  // equals session_, also while that is being destroyed
  VariantHandle variant_;
  DeviceMemory memory_;
};

}  // namespace larder::e2e
