#include "tests/e2e/storm/storm_engine.h"

#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace larder::e2e {
namespace {

constexpr std::chrono::milliseconds kTransferLimit{30'000}, kHoldLimit{300'000};

}  // namespace

TestBlock OpenBlock(uint32_t number) {
  BlockMaker maker;
  maker.content = OpenContent();
  return maker.Block(number);
}

absl::Status StormEngine::Connect(const std::string& folder, const std::string& engine_id,
                                  std::span<const ContentSpec> contents, WriteMode mode,
                                  bool accept_encoded) {
  maker_.floats = true;
  maker_.writer = std::random_device()() | 1;
  auto client = Client::Connect({.socket_dir = folder, .retry_budget = 0, .retries_max = 0});
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  auto session = client_->Attach({.engine_id = engine_id,
                                  .write_mode = mode,
                                  .staging_bytes = MiB(1),
                                  .accept_encoded = accept_encoded});
  if (!session.ok()) return session.status();
  const VariantSpec variant = StormVariant();
  const auto variants = (*session)->Register(contents, {&variant, 1});
  if (!variants.ok()) return variants.status();
  variant_ = variants->front();
  session_ = *std::move(session);
  return absl::OkStatus();
}

void StormEngine::Disconnect() {
  held_.clear();
  rooms_.clear();
  session_.reset();
  client_.reset();
}

uint32_t StormEngine::Check(const Digest& digest, std::span<const std::byte> first,
                            std::span<const std::byte> second, const char* where) {
  const std::optional<uint32_t> writers[] = {maker_.WriterOf(digest, 0, first),
                                             maker_.WriterOf(digest, 1, second)};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    if (!writers[layer])
      tally_.WrongBytes(absl::StrCat(where, ", layer ", layer, " of ", digest.Hex()));
  }
  if (!writers[0] || !writers[1]) return 0;
  if (*writers[0] != *writers[1])
    tally_.WrongBytes(absl::StrCat(where, ", two writers in one block: ", digest.Hex()));
  return *writers[0];
}

absl::StatusOr<BlockStatus> StormEngine::Put(const Digest& content,
                                             std::span<const TestBlock> blocks,
                                             size_t layer_bytes) {
  std::vector<FilledBlock> filled;
  std::vector<PutBlock> puts;
  for (const TestBlock& block : blocks) {
    filled.emplace_back(maker_, block, layer_bytes);
    puts.push_back(filled.back().ToPut(content));
  }
  const auto status = session_->Put(variant_, puts, {.deadline = kTransferLimit});
  if (!status.ok()) return status.status();
  for (const BlockStatus one : *status) {
    if (one != BlockStatus::kOk && one != BlockStatus::kDuplicate) return one;
  }
  return status->front();
}

absl::StatusOr<BlockStatus> StormEngine::Get(const TestBlock& block, size_t layer_bytes,
                                             uint32_t* writer) {
  const LayerSpace space(block.digest, maker_.variant.layers, layer_bytes);
  const GetBlock get = space.ToGet();
  const auto status = session_->Get(variant_, {&get, 1}, {.deadline = kTransferLimit});
  if (!status.ok()) return status.status();
  if (status->front() != BlockStatus::kOk) return status->front();
  ++tally_.hits;
  const uint32_t seen = Check(block.digest, space.layers()[0], space.layers()[1], "get");
  if (writer != nullptr) *writer = seen;
  return BlockStatus::kOk;
}

absl::StatusOr<BlockStatus> StormEngine::Hold(const TestBlock& block, size_t layer_bytes,
                                              uint64_t id) {
  auto lease = session_->Acquire(variant_, {&block.digest, 1}, {.deadline = kHoldLimit});
  if (!lease.ok()) return lease.status();
  const BlockStatus status = lease->status(0);
  if (status != BlockStatus::kOk) return status;
  ++tally_.hits;
  held_.push_back({id, block.digest, layer_bytes, *std::move(lease)});
  CheckView(held_.back());
  return status;
}

// The view must be right even if the block was cleared since, because a lease keeps its bytes.
void StormEngine::CheckView(const Held& held) {
  const std::span<const std::byte> view = held.lease.View(0);
  const size_t second = RoundUp(held.layer_bytes, kSegmentAlign);
  if (view.size() < second + held.layer_bytes) {
    tally_.WrongBytes(absl::StrCat("a view of ", view.size(), " bytes"));
  } else if (held.lease.Valid()) {
    Check(held.digest, view.first(held.layer_bytes), view.subspan(second, held.layer_bytes),
          "view");
  }
}

bool StormEngine::Release() {
  CheckView(held_.front());
  const bool valid = held_.front().lease.Valid();
  held_.pop_front();
  return valid;
}

void StormEngine::HalfWrite(size_t layer_bytes) {
  const ByteCount bytes(2 * layer_bytes);
  auto room = session_->Reserve({&bytes, 1}, {.deadline = kHoldLimit});
  if (!room.ok()) return;
  std::memset(room->Bytes(0).data(), 0xDD, room->Bytes(0).size() / 2);
  rooms_.push_back(*std::move(room));
  if (rooms_.size() > 3) rooms_.pop_front();
}

}  // namespace larder::e2e
