// larderctl bench: puts and gets blocks of its own through the client library, as an engine does.
#include <chrono>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/scratch_blocks.h"
#include "client/cli/verbs/verbs.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Figures {
  double put = 0, get = 0;  // bytes per second
  double lookup_s = 0;      // seconds of one Lookup of all blocks
  uint64_t put_blocks = 0, got_blocks = 0, wrong = 0;
  std::string write_mode;
};

absl::Status Lookup(const ScratchBlocks& blocks, Shell& shell, RpcStub& cache, Figures* figures) {
  constexpr int kTimes = 100;
  wire::LookupQuery query;
  query.tenant = shell.options().tenant;
  query.content = blocks.content();
  query.digests = blocks.digests();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kTimes; ++i) {
    LARDER_ASSIGN_OR_RETURN(const auto found, cache.Lookup(query, shell.Limits()));
  }
  figures->lookup_s = std::chrono::duration<double>(Clock::now() - begin).count() / kTimes;
  return absl::OkStatus();
}

absl::Status Measure(const ScratchSize& options, Shell& shell, RpcStub& cache,
                     ScratchBlocks& blocks, Figures* figures) {
  LARDER_RETURN_IF_ERROR(blocks.Begin());
  figures->write_mode = blocks.write_mode();
  std::vector<ScratchBlocks::Batch> puts, gets;
  LARDER_RETURN_IF_ERROR(blocks.Put("put", &puts));
  LARDER_RETURN_IF_ERROR(blocks.Get("get", &gets));
  const ScratchBlocks::Batch put = Sum(puts), got = Sum(gets);
  figures->put_blocks = put.blocks;
  figures->got_blocks = got.blocks;
  figures->wrong = got.wrong;
  figures->put = static_cast<double>(put.blocks * options.bytes) / put.seconds;
  figures->get = static_cast<double>(got.blocks * options.bytes) / got.seconds;
  return Lookup(blocks, shell, cache, figures);
}

void Print(const ScratchSize& options, const Figures& f, Shell& shell) {
  if (shell.json()) {
    return shell.PrintJson(Json{{"blocks", options.blocks},
                                {"block_bytes", options.bytes},
                                {"write_mode", f.write_mode},
                                {"put_bytes_per_s", f.put},
                                {"get_bytes_per_s", f.get},
                                {"lookup_s", f.lookup_s},
                                {"put", f.put_blocks},
                                {"got", f.got_blocks},
                                {"wrong", f.wrong}});
  }
  const std::string size = FormatBytes(static_cast<double>(options.bytes));
  shell.Print(FormatFacts(
      {{"put", absl::StrCat(FormatBytes(f.put), "/s, ", FormatCount(f.put_blocks), " blocks of ",
                            size, ", ", f.write_mode)},
       {"get", absl::StrCat(FormatBytes(f.get), "/s, ", FormatCount(f.got_blocks), " blocks, ",
                            FormatCount(f.wrong), " wrong")},
       {"lookup",
        absl::StrCat(FormatSeconds(f.lookup_s), ", of ", FormatCount(options.blocks), " digests")}},
      shell.width()));
}

ExitCode RunBench(const ScratchSize& options, Shell& shell) {
  if (absl::Status status = Check(options); !status.ok()) return shell.Fail(status);
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  // Without SIGPIPE, larderctl clears its blocks even if the reader of its output has gone.
  std::signal(SIGPIPE, SIG_IGN);
  ScratchBlocks blocks("bench", options, shell, **cache);
  Figures figures;
  absl::Status status = Measure(options, shell, **cache, blocks, &figures);
  status.Update(blocks.Clear());
  std::signal(SIGPIPE, SIG_DFL);
  if (!status.ok()) return shell.Fail(status);
  Print(options, figures, shell);
  if (figures.put_blocks == options.blocks && figures.got_blocks == options.blocks &&
      figures.wrong == 0)
    return ExitCode::kOk;
  shell.Say(
      "not all blocks came back as they were put; unless some are wrong, the pool has too little "
      "memory for so many beside the blocks in use");
  shell.SayNext("larderctl bench --blocks 64, or larderctl status");
  return ExitCode::kIncomplete;
}

}  // namespace

void AddBench(CommandTree& tree) {
  tree.Add({.name = "bench",
            .summary = "measures how fast this daemon is for an engine on this host",
            .about = "Puts blocks of its own through the client library, gets and checks them, "
                     "looks them up, and clears them again. To store them, the daemon may evict "
                     "the blocks that are least worth keeping.",
            .examples = {{"bench", "256 blocks of 1 MiB."},
                         {"bench --blocks 1000 --block-bytes 64KiB", "Small blocks."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<ScratchSize>();
             verb.AddNumber("--blocks", &options->blocks, "COUNT", "Number of blocks.");
             verb.AddBytes("--block-bytes", &options->bytes, "Bytes of each block. Default: 1MiB.");
             return [options](Shell& shell) { return RunBench(*options, shell); };
           });
}

}  // namespace larder::cli
