// The server of bench_lookup: the daemon's real services over a store whose index is filled with
// entries without bytes, and an echo on a socket file beside it.  A program of its own, because
// client and server must not be one process.
//
// Usage: bench_lookup_server DIR ENTRIES.  Prints "ready" when it serves DIR; ends with its parent.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "bench/harness/echo.h"
#include "bench/harness/lookup_keys.h"
#include "bench/harness/shapes.h"
#include "bench/harness/socket_echo.h"
#include "server/daemon.h"
#include "server/runtime/malloc_tuning.h"
#include "storage/check.h"
#include "storage/memory/slab_pool.h"
#include "storage/store/block_store.h"

namespace larder::bench {
namespace {

void Insert(BlockIndex& index, VariantIndex variant, const Digest& digest) {
  BlockIndex::NewBlock block;
  block.variant = variant;
  block.digest = digest;
  LARDER_CHECK(index.Insert(std::move(block), 0) == BlockIndex::InsertResult::kInserted);
}

void Fill(BlockIndex& index, uint64_t entries) {
  const auto variant = index.InternVariant(BenchVariant(ShapeNamed(kLookupShape)).Id());
  LARDER_CHECK(variant.ok());
  for (uint64_t i = 0; i < entries; ++i) Insert(index, *variant, FillerDigest(i));
  ContentSpec content = BenchContent();
  content.tenant = "default";
  for (const Digest& digest : Chain(content.Id(), LookupTokens())) Insert(index, *variant, digest);
}

int Serve(const std::string& dir, uint64_t entries) {
  const SteadyClock clock;
  SlabPool::Options pool_options;
  pool_options.bytes = MiB(256);
  const auto pool = SlabPool::Create(pool_options);
  LARDER_CHECK(pool.ok());
  BlockStore store({}, **pool, clock);
  LARDER_CHECK((*pool)->PopulateAll().ok());
  for (uint32_t slab = 0; slab < (*pool)->slab_count(); ++slab)
    store.AddSlab(SlabId(static_cast<uint16_t>(slab)));
  Fill(store.index(), entries);

  DaemonOptions options;
  options.socket_dir = dir;
  options.trusted_uids = {getuid()};
  options.boot_id = "00000000-0000-4000-8000-000000000000";
  options.version = "bench";
  options.host_verify_rate = ByteCount(0);  // the blocks have no bytes to verify
  Counters counters;
  const auto daemon = Daemon::Start(options, store, counters, clock);
  const auto echo = EchoServer::Start(absl::StrCat(dir, "/echo.sock"));
  const auto bare = SocketEchoServer::Start(absl::StrCat(dir, "/bare.sock"));
  if (!daemon.ok() || !echo.ok() || !bare.ok()) {
    std::fprintf(stderr, "bench: %s %s %s\n", daemon.status().ToString().c_str(),
                 echo.status().ToString().c_str(), bare.status().ToString().c_str());
    return 1;
  }
  std::printf("ready\n");
  std::fflush(stdout);
  while (true) pause();
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_lookup_server DIR ENTRIES\n");
    return 2;
  }
  larder::KeepHeapWarm();  // as in larderd
  return larder::bench::Serve(argv[1], std::strtoull(argv[2], nullptr, 10));
}
