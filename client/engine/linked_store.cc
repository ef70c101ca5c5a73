#include "client/engine/linked_store.h"

#include <algorithm>
#include <thread>

#include "storage/status_macros.h"

namespace larder {
namespace {

// Lets a block be written once it has arrived.
class WritesOnArrival final : public PageWrites {
 public:
  WritesOnArrival(TokenBucket& link, ByteCount block_bytes, const std::stop_token& stop,
                  TimePoint until, PageWrites* next)
      : link_(link), block_bytes_(block_bytes), stop_(stop), until_(until), next_(next) {}
  [[nodiscard]] bool Begin(size_t block) override {
    const TimePoint here = link_.Pass(block_bytes_, SteadyNow());
    while (SteadyNow() < std::min(here, until_) && !stop_.stop_requested() && Wanted(block))
      std::this_thread::sleep_for(std::min<Duration>(here - SteadyNow(), kLook));
    if (stop_.stop_requested() || here > until_) return false;
    return next_ == nullptr || next_->Begin(block);
  }
  [[nodiscard]] bool Wanted(size_t block) const override {
    return next_ == nullptr || next_->Wanted(block);
  }

 private:
  static constexpr std::chrono::milliseconds kLook{10};
  TokenBucket& link_;
  const ByteCount block_bytes_;
  const std::stop_token& stop_;
  const TimePoint until_;
  PageWrites* const next_;
};

class LinkedMover final : public PageStore::Mover {
 public:
  LinkedMover(std::unique_ptr<Mover> mover, std::shared_ptr<TokenBucket> link,
              ByteCount block_bytes)
      : mover_(std::move(mover)), link_(std::move(link)), block_bytes_(block_bytes) {}
  [[nodiscard]] PageStore::Moved Load(std::span<const PagedGet> blocks, LeaseId promise,
                                      std::chrono::milliseconds deadline,
                                      const std::stop_token& stop, PageWrites* writes) override {
    WritesOnArrival arrive(*link_, block_bytes_, stop, SteadyNow() + deadline, writes);
    return mover_->Load(blocks, promise, deadline, stop, &arrive);
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
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageStore::Mover>> LinkedStore::MakeMover() {
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<Mover> mover, store_->MakeMover());
  return std::make_unique<LinkedMover>(std::move(mover), link_, block_bytes_);
}

}  // namespace larder
