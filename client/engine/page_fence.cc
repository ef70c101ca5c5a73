#include "client/engine/page_fence.h"

#include "storage/check.h"

namespace larder {

PageFence::PageFence(std::span<std::byte> memory)
    : words_(*reinterpret_cast<Words*>(memory.data())) {
  static_assert(sizeof(Words) == kBytes && std::atomic<uint64_t>::is_always_lock_free);
  LARDER_CHECK(memory.size() >= kBytes &&
               reinterpret_cast<uintptr_t>(memory.data()) % alignof(Words) == 0);
}

bool PageFence::BeginRead(uint64_t order) {
  words_.reading.fetch_add(1);
  if (!Voided(order)) return true;
  EndRead();
  return false;
}

void PageFence::EndRead() { words_.reading.fetch_sub(1); }

bool PageFence::Voided(uint64_t order) const { return order <= words_.voided.load(); }

void PageFence::CountEnded() { words_.ended.fetch_add(1); }

void PageFence::Void(uint64_t last_order) {
  uint64_t voided = words_.voided.load();
  while (voided < last_order && !words_.voided.compare_exchange_weak(voided, last_order)) {
  }
}

bool PageFence::Reads() const { return words_.reading.load() != 0; }

uint64_t PageFence::ended() const { return words_.ended.load(); }

}  // namespace larder
