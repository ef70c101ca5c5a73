// Loads blocks from the pool of a running daemon as fast as it can, for bench/python_get.py, which
// compares Python and the two ways of C++ in turn.
//
//   bench_paged_get SOCKET_DIR BLOCKS LAYERS BYTES PAGES
//
// BYTES are those of the segment of one layer.  PAGES is a file of BLOCKS * LAYERS * BYTES bytes of
// memory, which both programs map: where memory lies changes how fast it is by some percent.
// Stores the blocks, then answers each line of standard input with the seconds of one round:
//   paged    PagedCache::Load into pages of the host device
//   get      Session::Get into the same memory
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/harness/harness.h"
#include "client/client.h"
#include "client/paged_cache.h"
#include "cuda/device.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr uint32_t kBlockTokens = 16;

class Loads {
 public:
  absl::Status Open(const std::string& socket_dir, uint32_t blocks, uint32_t layers, uint32_t bytes,
                    const char* file) {
    LARDER_ASSIGN_OR_RETURN(opened_, OpenDevice(DeviceWish::kHost));
    LARDER_ASSIGN_OR_RETURN(client_, Client::Connect({.socket_dir = socket_dir}));
    LARDER_ASSIGN_OR_RETURN(session_,
                            client_->Attach({.engine_id = "cpp", .device = opened_.device.get()}));
    ContentSpec content;
    content.model = "bench";
    VariantSpec variant;
    variant.dtype = "u8";
    variant.layout = "bench/opaque/1";
    variant.block_tokens = kBlockTokens;
    variant.layers = layers;
    LARDER_ASSIGN_OR_RETURN(const auto variants, session_->Register({&content, 1}, {&variant, 1}));
    variant_ = variants.front();
    LARDER_ASSIGN_OR_RETURN(const uint64_t pages, Map(file, uint64_t{blocks} * layers * bytes));
    std::vector<uint64_t> bases;
    for (uint32_t i = 0; i < layers; ++i) bases.push_back(pages + uint64_t{i} * blocks * bytes);
    const PagedLayout layout =
        PagedLayout::Opaque(std::move(bases), bytes, bytes, blocks, kBlockTokens);
    LARDER_ASSIGN_OR_RETURN(cache_, PagedCache::Make(*session_, *opened_.device, variant_, layout,
                                                     PayloadLayout::Opaque(layout), {}));
    layers_ = layers;
    return Store(content, layout, blocks, bytes);
  }
  absl::StatusOr<double> Paged() {
    const double begun = SecondsNow();
    LARDER_ASSIGN_OR_RETURN(PagedLoad load, cache_->Load(paged_, {0, layers_}));
    LARDER_ASSIGN_OR_RETURN(const auto status,
                            load.Wait(std::chrono::steady_clock::now() + std::chrono::seconds(10)));
    return Checked(status, SecondsNow() - begun);
  }
  absl::StatusOr<double> Get() {
    const double begun = SecondsNow();
    LARDER_ASSIGN_OR_RETURN(const auto status, session_->Get(variant_, gets_));
    return Checked(status, SecondsNow() - begun);
  }

 private:
  absl::Status Store(const ContentSpec& content, const PagedLayout& layout, uint32_t blocks,
                     uint32_t bytes) {
    std::vector<uint32_t> tokens(size_t{blocks} * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 0);
    const Digest seed = session_->Seed(content);
    digests_ = Chain(seed, tokens);
    pages_.resize(blocks);
    std::iota(pages_.begin(), pages_.end(), 0);
    std::vector<PagedPut> puts;
    for (uint32_t b = 0; b < blocks; ++b) {
      puts.push_back({.digest = digests_[b],
                      .parent = b == 0 ? seed : digests_[b - 1],
                      .tokens = std::span(tokens).subspan(size_t{b} * kBlockTokens, kBlockTokens),
                      .pages = {&pages_[b], 1}});
      paged_.push_back({.digest = digests_[b], .pages = {&pages_[b], 1}});
      std::vector<std::span<std::byte>>& segments = segments_.emplace_back();
      for (const uint64_t base : layout.bases)
        segments.emplace_back(reinterpret_cast<std::byte*>(base + uint64_t{b} * bytes), bytes);
    }
    for (uint32_t b = 0; b < blocks; ++b) gets_.push_back({digests_[b], segments_[b]});
    LARDER_ASSIGN_OR_RETURN(const auto status, cache_->Put(puts));
    return Checked(status, 0).status();
  }
  // Returns the address of the file's memory, which stays mapped.
  static absl::StatusOr<uint64_t> Map(const char* file, uint64_t bytes) {
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, file);
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (address == MAP_FAILED) return absl::ErrnoToStatus(errno, file);
    return reinterpret_cast<uint64_t>(address);
  }
  static absl::StatusOr<double> Checked(const std::vector<BlockStatus>& status, double seconds) {
    for (const BlockStatus s : status)
      if (s != BlockStatus::kOk && s != BlockStatus::kDuplicate)
        return absl::InternalError(absl::StrCat("a block has the status ", static_cast<int>(s)));
    return seconds;
  }

  OpenedDevice opened_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<PagedCache> cache_;
  VariantHandle variant_;
  uint32_t layers_ = 0;
  std::vector<Digest> digests_;
  std::vector<uint32_t> pages_;
  std::vector<std::vector<std::span<std::byte>>> segments_;
  std::vector<PagedGet> paged_;
  std::vector<GetBlock> gets_;
};

int Run(std::span<char*> args) {
  uint32_t blocks = 0, layers = 0, bytes = 0;
  if (args.size() != 6 || !absl::SimpleAtoi(args[2], &blocks) ||
      !absl::SimpleAtoi(args[3], &layers) || !absl::SimpleAtoi(args[4], &bytes)) {
    std::fprintf(stderr, "usage: bench_paged_get SOCKET_DIR BLOCKS LAYERS BYTES PAGES\n");
    return 2;
  }
  Loads loads;
  if (const absl::Status opened = loads.Open(args[1], blocks, layers, bytes, args[5]);
      !opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.ToString().c_str());
    return 1;
  }
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::string what; std::getline(std::cin, what);) {
    const absl::StatusOr<double> seconds = what == "paged" ? loads.Paged() : loads.Get();
    if (!seconds.ok()) {
      std::fprintf(stderr, "%s\n", seconds.status().ToString().c_str());
      return 1;
    }
    std::printf("%.9f\n", *seconds);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) { return larder::bench::Run({argv, static_cast<size_t>(argc)}); }
