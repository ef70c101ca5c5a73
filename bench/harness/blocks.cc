#include "bench/harness/blocks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr auto kCallLimit = std::chrono::seconds(60);

template <class Span>
void AppendSegments(std::span<std::byte> payload, const BlockShape& shape,
                    std::vector<Span>* segments) {
  for (uint32_t s = 0; s < shape.segments; ++s) {
    segments->push_back(payload.subspan(s * shape.segment_bytes, shape.segment_bytes));
  }
}

absl::Status AllOk(const absl::StatusOr<std::vector<BlockStatus>>& answers, const char* what) {
  LARDER_RETURN_IF_ERROR(answers.status());
  for (const BlockStatus status : *answers) {
    if (status != BlockStatus::kOk)
      return absl::InternalError(absl::StrCat(what, ": ", ToString(status)));
  }
  return absl::OkStatus();
}

}  // namespace

Names MakeNames(const Digest& seed, uint64_t salt, size_t count) {
  Names names;
  names.tokens.resize(count * kBlockTokens);
  for (size_t i = 0; i < count; ++i) {
    const std::span<uint32_t> tokens =
        std::span(names.tokens).subspan(i * kBlockTokens, kBlockTokens);
    std::fill(tokens.begin(), tokens.end(), static_cast<uint32_t>(i));
    tokens[0] = static_cast<uint32_t>(salt);
    tokens[1] = static_cast<uint32_t>(salt >> 32);
    names.parents.push_back(i % kBatchBlocks == 0 ? seed : names.digests.back());
    names.digests.push_back(NextDigest(names.parents.back(), tokens));
  }
  return names;
}

Memory::Memory(size_t bytes, Kind kind) {
  const int fd = kind == Kind::kSharedMemfd ? memfd_create("larder-bench", MFD_CLOEXEC) : -1;
  LARDER_CHECK(kind == Kind::kPrivate ||
               (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0));
  const int flags = kind == Kind::kSharedMemfd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  LARDER_CHECK(at != MAP_FAILED);
  if (fd >= 0) close(fd);
  bytes_ = {static_cast<std::byte*>(at), bytes};
  for (size_t page = 0; page < bytes; page += kPageBytes) bytes_[page] = std::byte{1};
}

Memory::~Memory() { munmap(bytes_.data(), bytes_.size()); }

void Memory::FillRandom() const {
  std::mt19937_64 random(1);
  for (size_t at = 0; at + 8 <= bytes_.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes_[at], &word, sizeof word);
  }
}

std::vector<uint32_t> ShuffledOrder(size_t n, uint64_t salt) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(salt));
  return order;
}

absl::StatusOr<Attachment> AttachBench(const std::string& socket_dir, const BlockShape& shape,
                                       const SessionOptions& options) {
  Attachment made;
  ClientOptions client_options;
  client_options.socket_dir = socket_dir;
  LARDER_ASSIGN_OR_RETURN(made.client, Client::Connect(client_options));
  LARDER_ASSIGN_OR_RETURN(made.session, made.client->Attach(options));
  if (made.session->write_mode() != options.write_mode) {
    return absl::FailedPreconditionError(
        absl::StrCat("write mode: ", made.session->write_mode_reason()));
  }
  const ContentSpec content = BenchContent();
  const VariantSpec variant = BenchVariant(shape);
  LARDER_ASSIGN_OR_RETURN(auto registered, made.session->Register({&content, 1}, {&variant, 1}));
  made.variant = registered.front();
  made.seed = made.session->Seed(content);
  return made;
}

PutPlan PlanPuts(const BlockShape& shape, const Names& names, std::span<std::byte> source,
                 std::span<const uint32_t> order) {
  PutPlan plan;
  plan.segments.reserve(names.size() * shape.segments);
  for (size_t i = 0; i < names.size(); ++i) {
    AppendSegments(RingPiece(source, order[i % order.size()], shape.bytes()), shape,
                   &plan.segments);
    PutBlock& block = plan.blocks.emplace_back();
    block.digest = names.digests[i];
    block.parent = names.parents[i];
    block.tokens = names.TokensOf(i);
    block.segments = std::span(plan.segments).last(shape.segments);
  }
  return plan;
}

absl::Status PutAll(Attachment& to, std::span<const PutBlock> blocks, const CallOptions& options) {
  CallOptions longer = options;
  longer.deadline = kCallLimit;
  return AllOk(to.session->Put(to.variant, blocks, longer), "put");
}

GetPlan PlanGets(const BlockShape& shape, std::span<const Digest> digests,
                 std::span<const uint32_t> order, std::span<std::byte> ring) {
  GetPlan plan;
  plan.segments.reserve(order.size() * shape.segments);
  for (size_t i = 0; i < order.size(); ++i) {
    AppendSegments(RingPiece(ring, i, shape.bytes()), shape, &plan.segments);
    GetBlock& block = plan.blocks.emplace_back();
    block.digest = digests[order[i]];
    block.segments = std::span(plan.segments).last(shape.segments);
  }
  return plan;
}

absl::Status GetAll(Attachment& from, std::span<const GetBlock> blocks) {
  CallOptions longer;
  longer.deadline = kCallLimit;
  return AllOk(from.session->Get(from.variant, blocks, longer), "get");
}

absl::StatusOr<std::vector<std::span<const std::byte>>> MappedBlocks(
    Attachment& from, const BlockShape& shape, std::span<const Digest> digests) {
  constexpr uint64_t kLeaseBytes = 128 << 20;  // at a time: far below any session's share
  std::vector<std::span<const std::byte>> all;
  while (!digests.empty()) {
    const size_t n = std::min<size_t>({digests.size(), kLeaseBytes / shape.bytes(), 1024});
    LARDER_ASSIGN_OR_RETURN(auto lease, from.session->Acquire(from.variant, digests.first(n)));
    for (size_t i = 0; i < n; ++i) {
      if (lease.status(i) != BlockStatus::kOk)
        return absl::InternalError("a block that was just put is not in the pool");
      all.push_back(lease.View(i));
    }
    digests = digests.subspan(n);
  }
  return all;
}

}  // namespace larder::bench
