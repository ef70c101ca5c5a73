// An engine of the storm: a client and its session, blocks of floats, and a look at every byte that
// it is given: all of a block are one writer's, whoever that is.
//
// Blocks that nobody predicts ("open") are numbered, and each begins a chain of its own.
// Ownership: client, session, and what it holds.  Thread-safety: none.
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

// Of open blocks: all stay, or they are several times what pool and disk hold.
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
  // By the byte stream: it can hold nothing.
  [[nodiscard]] bool streams() const { return session_->write_mode() == WriteMode::kStream; }

  // In one call; the worst of their statuses.
  [[nodiscard]] absl::StatusOr<BlockStatus> Put(const Digest& content,
                                                std::span<const TestBlock> blocks,
                                                size_t layer_bytes);
  // *writer: whose bytes it was given, if it was.
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
  // The nonce in what it puts: another one each time that it connects.
  [[nodiscard]] uint32_t writer() const { return maker_.writer; }
  // Of the oldest.  False: it was revoked.
  [[nodiscard]] bool Release();
  // Room that is half written and never published.
  void HalfWrite(size_t layer_bytes);

 private:
  // Of both layers; whose they are, or 0.
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
