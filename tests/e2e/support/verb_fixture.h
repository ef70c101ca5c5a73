// A daemon with a disk, and a caller of the Cache service's verbs that uses only the generated
// stubs.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "larder/v1/cache.grpc.pb.h"
#include "tests/e2e/support/disk_fixture.h"

namespace larder::e2e {

inline constexpr uint32_t kPoolBlocks = 270;  // as many as the pool holds

class VerbTest : public DiskTest {
 protected:
  template <class Request>
  void Name(uint32_t from, uint32_t to, Request* request) const {
    for (uint32_t number = from; number < to; ++number) {
      const Digest digest = maker_.Block(number).digest;
      request->mutable_blocks()->mutable_digests()->append(
          reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
    }
  }
  template <class Call>
  grpc::Status Ask(Call call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return call(*v1::Cache::NewStub(daemon_->ControlChannel()), context);
  }
  static std::vector<v1::BlockStatus> StatusesOf(const v1::BlockAnswers& answers) {
    std::vector<v1::BlockStatus> statuses;
    for (const int status : answers.status())
      statuses.push_back(static_cast<v1::BlockStatus>(status));
    return statuses;
  }
  // Returns how many of the blocks from .. to-1 are in that tier.
  uint32_t CountIn(Tier tier, uint32_t from, uint32_t to) {
    uint32_t count = 0;
    for (uint32_t number = from; number < to; ++number) {
      const auto found = client_->Lookup(QueryOf(number));
      if (!found.ok() || found->instances.empty()) continue;
      for (const wire::TierHit& hit : found->instances[0].tiers) count += hit.tier == tier ? 1 : 0;
    }
    return count;
  }
  // Puts new blocks, `times` times as many as the pool holds.  Each is written to disk in turn.
  void Press(uint32_t times) {
    for (uint32_t i = 0; i < times * kPoolBlocks; ++i) ASSERT_EQ(Put(next_++), BlockStatus::kOk);
  }

  uint32_t next_ = 10'000;
};

}  // namespace larder::e2e
