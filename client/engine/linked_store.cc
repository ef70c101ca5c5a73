#include "client/engine/linked_store.h"

#include <algorithm>
#include <thread>

#include "absl/functional/function_ref.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// Waits until `here`, but not beyond `until`, and while it is wanted.  Returns false if `here` is
// too late.
bool AwaitArrival(TimePoint here, TimePoint until, const std::stop_token& stop,
                  absl::FunctionRef<bool()> wanted) {
  constexpr std::chrono::milliseconds kLook{10};
  while (SteadyNow() < std::min(here, until) && !stop.stop_requested() && wanted())
    std::this_thread::sleep_for(std::min<Duration>(here - SteadyNow(), kLook));
  return here <= until;
}

// Lets a block be written once it has arrived.
class WritesOnArrival final : public PageWrites {
 public:
  WritesOnArrival(TokenBucket& link, ByteCount block_bytes, const std::stop_token& stop,
                  TimePoint until, PageWrites* next)
      : link_(link), block_bytes_(block_bytes), stop_(stop), until_(until), next_(next) {}
  [[nodiscard]] bool Begin(size_t block) override {
    const TimePoint here = link_.Pass(block_bytes_, SteadyNow());
    if (!AwaitArrival(here, until_, stop_, [&] { return Wanted(block); }) || stop_.stop_requested())
      return false;
    return next_ == nullptr || next_->Begin(block);
  }
  [[nodiscard]] bool Wanted(size_t block) const override {
    return next_ == nullptr || next_->Wanted(block);
  }

 private:
  TokenBucket& link_;
  const ByteCount block_bytes_;
  const std::stop_token& stop_;
  const TimePoint until_;
  PageWrites* const next_;
};

// Tells of layers once all of their bytes have arrived.
class LayersOnArrival final : public PageStore::LayerArrivals {
 public:
  LayersOnArrival(TokenBucket& link, ByteCount layer_bytes, const std::stop_token& stop,
                  TimePoint until, PageStore::LayerArrivals& next)
      : link_(link), layer_bytes_(layer_bytes), stop_(stop), until_(until), next_(next) {}
  [[nodiscard]] bool Arrived(uint32_t layers) override {
    const ByteCount bytes((layers - told_) * layer_bytes_.value());
    told_ = layers;
    late_ = !AwaitArrival(link_.Pass(bytes, SteadyNow()), until_, stop_, [] { return true; });
    return !late_ && !stop_.stop_requested() && next_.Arrived(layers);
  }
  // Whether layers were not told of because they came too late.
  [[nodiscard]] bool late() const { return late_; }

 private:
  TokenBucket& link_;
  const ByteCount layer_bytes_;  // of all blocks
  const std::stop_token& stop_;
  const TimePoint until_;
  PageStore::LayerArrivals& next_;
  uint32_t told_ = 0;
  bool late_ = false;
};

class LinkedMover final : public PageStore::Mover {
 public:
  LinkedMover(std::unique_ptr<Mover> mover, std::shared_ptr<TokenBucket> link,
              ByteCount block_bytes, uint32_t layers)
      : mover_(std::move(mover)),
        link_(std::move(link)),
        block_bytes_(block_bytes),
        layers_(layers) {}
  [[nodiscard]] PageStore::Moved Load(std::span<const PagedGet> blocks, LeaseId promise,
                                      std::chrono::milliseconds deadline,
                                      const std::stop_token& stop, PageWrites* writes) override {
    WritesOnArrival arrive(*link_, block_bytes_, stop, SteadyNow() + deadline, writes);
    return mover_->Load(blocks, promise, deadline, stop, &arrive);
  }
  [[nodiscard]] PageStore::Moved LoadLayers(std::span<const PagedGet> blocks, LeaseId promise,
                                            std::chrono::milliseconds deadline,
                                            const std::stop_token& stop,
                                            PageStore::LayerArrivals& arrivals) override {
    const ByteCount layer_bytes(blocks.size() * block_bytes_.value() / layers_);
    LayersOnArrival arrive(*link_, layer_bytes, stop, SteadyNow() + deadline, arrivals);
    PageStore::Moved moved = mover_->LoadLayers(blocks, promise, deadline, stop, arrive);
    if (moved.cause.ok() && arrive.late())
      moved.cause = absl::DeadlineExceededError("layers were not loaded in time");
    return moved;
  }
  [[nodiscard]] PageStore::Moved Store(std::span<const PagedPut> blocks, const ContentSpec& content,
                                       std::chrono::milliseconds deadline,
                                       const std::stop_token& stop, PageReads* reads) override {
    return mover_->Store(blocks, content, deadline, stop, reads);
  }
  void Rest() override { mover_->Rest(); }

 private:
  const std::unique_ptr<Mover> mover_;
  const std::shared_ptr<TokenBucket> link_;
  const ByteCount block_bytes_;
  const uint32_t layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageStore::Mover>> LinkedStore::MakeMover() {
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<Mover> mover, store_->MakeMover());
  return std::make_unique<LinkedMover>(std::move(mover), link_, block_bytes_, layers_);
}

}  // namespace larder
