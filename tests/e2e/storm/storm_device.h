// Device memory in the storm: an engine that says what it has there of its chains, and does what
// directives ask of it.
//
// The model of it is exact (StormChain::Block::device): nothing leaves device memory by itself, who
// has a chain on loan is the only one that changes it, and a session ends while nobody has one.
// Each chain is of one such engine.
// Ownership: client, session, and the memory.  Thread-safety: none, but that directives come on a
// thread of the session's.
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
  // Until the gate says that it is over.
  void Run();
  // Its session ends, and with it all that it had; another begins.  While the gate is closed: a
  // controller asks by tokens for the blocks of this engine, which are none to a daemon that has
  // not yet heard of it.
  [[nodiscard]] bool BeginAnew();

 private:
  [[nodiscard]] bool Connect();
  void Disconnect();
  void Step();
  // After this the daemon has worked off what was reported.
  [[nodiscard]] absl::Status RoundTrip();
  [[nodiscard]] std::vector<BlockStatus> Do(const wire::Directive& directive);

  StormWorld& world_;
  const size_t number_;
  StormRandom random_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  Session* live_ = nullptr;  // session_, also while that ends
  VariantHandle variant_;
  DeviceMemory memory_;
};

}  // namespace larder::e2e
