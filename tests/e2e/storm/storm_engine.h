// An engine of the storm: a client with its session that puts blocks of floats and checks every
// byte that it reads: all bytes of a block must belong to one writer, any writer.
//
// Open blocks, which the model does not predict, are numbered, and each begins its own chain.
// Ownership: client, session, and its leases and reservations.  Thread-safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "tests/e2e/storm/storm_chains.h"
#include "tests/e2e/storm/storm_tally.h"

namespace larder::e2e {

// The number of open blocks in calm rounds, which pool and disk hold, and in stormy rounds, several
// times what pool and disk hold.
inline constexpr uint32_t kOpenCalm = 40, kOpenStorm = 3'000;
inline constexpr uint64_t kStormChildSteps = 20;
[[nodiscard]] TestBlock OpenBlock(uint32_t number);
[[nodiscard]] inline ContentSpec OpenContent() { return StormContent("storm-open"); }

class StormEngine {
 public:
  explicit StormEngine(StormTally& tally) : tally_(tally) {}
  [[nodiscard]] absl::Status Connect(const std::string& folder, const std::string& engine_id,
                                     std::span<const ContentSpec> contents, WriteMode mode,
                                     bool accept_encoded);
  void Disconnect();
  [[nodiscard]] bool connected() const { return session_ != nullptr; }
  // Whether the session uses byte streams, so that it can hold no lease.
  [[nodiscard]] bool streams() const { return session_->write_mode() == WriteMode::kStream; }

  // Puts the blocks in one call.  Returns an unsuccessful status if there is one, otherwise the
  // first.
  [[nodiscard]] absl::StatusOr<BlockStatus> Put(const Digest& content,
                                                std::span<const TestBlock> blocks,
                                                size_t layer_bytes);
  // If the block was read, sets `*writer` to the writer of its bytes.
  [[nodiscard]] absl::StatusOr<BlockStatus> Get(const TestBlock& block, size_t layer_bytes,
                                                uint32_t* writer = nullptr);
  [[nodiscard]] absl::StatusOr<BlockStatus> Hold(const TestBlock& block, size_t layer_bytes,
                                                 uint64_t id);
  struct Held {
    uint64_t id = 0;
    Digest digest;
    size_t layer_bytes = 0;
    Lease lease;
  };
  [[nodiscard]] const std::deque<Held>& held() const { return held_; }
  // The nonce in the blocks that it puts, a new one with every Connect.
  [[nodiscard]] uint32_t writer() const { return maker_.writer; }
  // Releases the oldest lease.  Returns false if it was revoked.
  [[nodiscard]] bool Release();
  // Makes a reservation that is half written and never published.
  void HalfWrite(size_t layer_bytes);

 private:
  // Checks the bytes of both layers.  Returns their writer, or 0 if they are wrong.
  uint32_t Check(const Digest& digest, std::span<const std::byte> first,
                 std::span<const std::byte> second, const char* where);
  void CheckView(const Held& held);

  StormTally& tally_;
  BlockMaker maker_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::deque<Held> held_;
  std::deque<Reservation> rooms_;
};

}  // namespace larder::e2e
