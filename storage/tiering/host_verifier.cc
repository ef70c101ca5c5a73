#include "storage/tiering/host_verifier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace larder {

Duration HostVerifier::FindsWithin(const Options& options, ByteCount stored, uint64_t blocks) {
  const ByteCount charged(stored.value() + blocks * kChargedMin.value());
  const std::chrono::duration<double> walk(static_cast<double>(charged.value()) /
                                           static_cast<double>(options.bytes_per_s.value()));
  return std::chrono::duration_cast<Duration>(walk) + options.pause + VerifyLoop::kOwedMax;
}

HostVerifier::HostVerifier(const Options& options, BlockStore& store)
    : options_(options),
      store_(store),
      loop_({.thread = "host-verifier",
             .bytes_per_s = options.bytes_per_s,
             .charged_min = kChargedMin,
             .pause = options.pause},
            store.index(), [this](const BlockIndex::View& view) { return LookAt(view); }) {}

Duration HostVerifier::FindsWithinNow() const {
  const BlockStore::Stats stored = store_.stats();
  return FindsWithin(options_, stored.pool_stored, stored.blocks - stored.disk_only);
}

VerifyLoop::Examined HostVerifier::LookAt(const BlockIndex::View& view) {
  VerifyLoop::Examined looked;
  if (!InHost(view.state)) return looked;
  const BlockIndex::Held held = store_.HoldUntouched(view.variant, view.digest);
  if (held.ref.value == 0) return looked;
  if (InHost(held.state) && held.metadata != nullptr) {
    looked.bytes = held.metadata->payload_bytes();
    const SegmentRange all{0, held.metadata->segment_count(), 0, looked.bytes.value()};
    if (store_.Check(held, all)) {
      looked.outcome = VerifyLoop::Outcome::kOk;
    } else {
      looked.outcome = VerifyLoop::Outcome::kDamaged;
      store_.DropDamaged(held.ref);
      if (options_.warn) {
        options_.warn(absl::StrCat(
            "block ", view.digest.Hex(), " of variant ",
            store_.index().VariantId(view.variant).Hex(), " in slab ",
            static_cast<uint16_t>(held.extent.slab), " at ", held.extent.offset(),
            " is not what was published: it was dropped",
            held.state == BlockState::kHostDisk ? " from the pool, its copy on disk was kept" : "",
            "; look for a faulty memory module, or for a process that writes where it should not"));
      }
    }
  }
  store_.Unhold({&held.ref, 1});
  return looked;
}

}  // namespace larder
