#include "client/cli/verbs/scratch_blocks.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/shell/progress_bar.h"
#include "storage/status_macros.h"

namespace larder::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kLayers = 16;
constexpr size_t kBatch = 16;

}  // namespace

absl::Status Check(const ScratchSize& size) {
  if (size.bytes < 4096 || size.bytes > (256u << 20) || size.bytes % (kLayers * 64) != 0)
    return absl::InvalidArgumentError("--block-bytes: 4096 to 256MiB, a multiple of 1024");
  if (size.blocks < 1 || size.blocks > wire::kLookupDigestsMax)
    return absl::InvalidArgumentError("--blocks: 1 to 8192");
  return absl::OkStatus();
}

ScratchBlocks::ScratchBlocks(const std::string& verb, const ScratchSize& size, Shell& shell,
                             RpcStub& cache)
    : verb_(verb), size_(size), shell_(shell), cache_(cache) {
  content_.model = absl::StrCat("larderctl-", verb);
  content_.revision = absl::StrCat(getpid(), "-", Clock::now().time_since_epoch().count());
  variant_.dtype = "f16";
  variant_.layout = absl::StrCat("larderctl/", verb, "/1");
  variant_.block_tokens = kStepTokens;
  variant_.layers = kLayers;
}

absl::Status ScratchBlocks::Begin() {
  LARDER_ASSIGN_OR_RETURN(client_, Client::Connect({.socket_dir = shell_.SocketFolder(),
                                                    .tenant = shell_.options().tenant}));
  LARDER_ASSIGN_OR_RETURN(
      session_, client_->Attach({.engine_id = absl::StrCat("larderctl-", verb_, "-", getpid())}));
  LARDER_ASSIGN_OR_RETURN(const auto handles, session_->Register({&content_, 1}, {&variant_, 1}));
  handle_ = handles.front();
  Digest parent = session_->Seed(content_);
  for (uint32_t i = 0; i < size_.blocks; ++i) {
    Block block{.digest = {}, .parent = parent, .tokens = std::vector<uint32_t>(kStepTokens, i)};
    block.digest = Chain(parent, block.tokens).back();
    parent = block.digest;
    blocks_.push_back(std::move(block));
  }
  return absl::OkStatus();
}

absl::Status ScratchBlocks::CheckInterrupt() const {
  return shell_.interrupt().signal() == 0 ? absl::OkStatus() : absl::CancelledError("interrupted");
}

std::vector<std::byte> ScratchBlocks::LayerOf(const Block& block, uint32_t layer) const {
  std::vector<std::byte> bytes(size_.bytes / kLayers);
  uint64_t state = block.digest.Hash64() ^ ((uint64_t{layer} + 1) * 0x9E3779B97F4A7C15u);
  for (size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof state, bytes.size() - at));
  }
  return bytes;
}

absl::Status ScratchBlocks::Put(const std::string& what, std::vector<Batch>* batches) {
  ProgressBar bar(what);
  for (size_t first = 0; first < blocks_.size(); first += kBatch) {
    LARDER_RETURN_IF_ERROR(CheckInterrupt());
    const size_t count = std::min(kBatch, blocks_.size() - first);
    std::vector<std::vector<std::byte>> layers;
    for (size_t i = 0; i < count; ++i) {
      for (uint32_t layer = 0; layer < kLayers; ++layer)
        layers.push_back(LayerOf(blocks_[first + i], layer));
    }
    const std::vector<std::span<const std::byte>> views(layers.begin(), layers.end());
    std::vector<PutBlock> puts;
    for (size_t i = 0; i < count; ++i) {
      const Block& block = blocks_[first + i];
      puts.push_back({.digest = block.digest,
                      .parent = block.parent,
                      .tokens = block.tokens,
                      .segments = std::span(views).subspan(i * kLayers, kLayers)});
    }
    const Clock::time_point begin = Clock::now();
    const auto statuses = session_->Put(handle_, puts);
    Batch batch{.seconds = std::chrono::duration<double>(Clock::now() - begin).count()};
    LARDER_RETURN_IF_ERROR(statuses.status());
    for (const BlockStatus status : *statuses) batch.blocks += status == BlockStatus::kOk ? 1 : 0;
    batches->push_back(batch);
    bar.Show({first + count, blocks_.size(), (first + count) * size_.bytes,
              blocks_.size() * size_.bytes});
  }
  return absl::OkStatus();
}

absl::Status ScratchBlocks::Get(const std::string& what, std::vector<Batch>* batches) {
  ProgressBar bar(what);
  std::vector<std::vector<std::byte>> layers(kBatch * kLayers,
                                             std::vector<std::byte>(size_.bytes / kLayers));
  const std::vector<std::span<std::byte>> views(layers.begin(), layers.end());
  for (size_t first = 0; first < blocks_.size(); first += kBatch) {
    LARDER_RETURN_IF_ERROR(CheckInterrupt());
    const size_t count = std::min(kBatch, blocks_.size() - first);
    std::vector<GetBlock> gets;
    for (size_t i = 0; i < count; ++i) {
      gets.push_back({.digest = blocks_[first + i].digest,
                      .segments = std::span(views).subspan(i * kLayers, kLayers)});
    }
    const Clock::time_point begin = Clock::now();
    const auto statuses = session_->Get(handle_, gets);
    Batch batch{.seconds = std::chrono::duration<double>(Clock::now() - begin).count()};
    LARDER_RETURN_IF_ERROR(statuses.status());
    for (size_t i = 0; i < count; ++i) {
      if ((*statuses)[i] != BlockStatus::kOk) continue;
      ++batch.blocks;
      // Comparing one layer of each block, a different one for each block of a batch, is enough to
      // check the path of the bytes.
      const auto layer = static_cast<uint32_t>(i % kLayers);
      const bool right = layers[i * kLayers + layer] == LayerOf(blocks_[first + i], layer);
      batch.wrong += right ? 0 : 1;
    }
    batches->push_back(batch);
    bar.Show({first + count, blocks_.size(), (first + count) * size_.bytes,
              blocks_.size() * size_.bytes});
  }
  return absl::OkStatus();
}

std::vector<Digest> ScratchBlocks::digests() const {
  std::vector<Digest> digests;
  for (const Block& block : blocks_) digests.push_back(block.digest);
  return digests;
}

absl::Status ScratchBlocks::Clear() {
  session_.reset();
  wire::ClearQuery query;
  query.tenant = shell_.options().tenant;
  query.scope = wire::SelectionScope::kContent;
  query.blocks.content = content_;
  // The first Ctrl-C must not end this call, so that no block stays behind: it gets no CallCancel.
  return cache_.Clear(query, {std::chrono::minutes(1)}).status();
}

ScratchBlocks::Batch Sum(const std::vector<ScratchBlocks::Batch>& batches) {
  ScratchBlocks::Batch sum;
  for (const ScratchBlocks::Batch& batch : batches) {
    sum.blocks += batch.blocks;
    sum.seconds += batch.seconds;
    sum.wrong += batch.wrong;
  }
  return sum;
}

}  // namespace larder::cli
