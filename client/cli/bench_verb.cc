// bench: puts and gets blocks of its own through the client library, as an engine does.
#include <csignal>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "client/client.h"

namespace larder::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kLayers = 16;
constexpr size_t kBatch = 16;

struct BenchOptions {
  uint64_t blocks = 256;
  uint64_t bytes = 1 << 20;
  bool stop = false;
};

struct Figures {
  double put = 0, get = 0;  // bytes a second
  double lookup_s = 0;      // of one, of all these blocks
  uint64_t put_blocks = 0, got_blocks = 0, wrong = 0;
  std::string write_mode;
};

// One run.  What it stored is cleared again by Clean, also when it failed.
class Bench {
 public:
  Bench(const BenchOptions& options, Shell& shell, RpcStub& cache)
      : options_(options), shell_(shell), cache_(cache) {
    content_.model = "larderctl-bench";
    content_.revision = absl::StrCat(getpid(), "-", Clock::now().time_since_epoch().count());
    variant_.dtype = "f16";
    variant_.layout = "larderctl/bench/1";
    variant_.block_tokens = kStepTokens;
    variant_.layers = kLayers;
  }

  absl::Status Run(Figures* figures);
  absl::Status Clean();

 private:
  struct Block {
    Digest digest, parent;
    std::vector<uint32_t> tokens;
  };
  void MakeBlocks();
  // Bytes of a layer follow from the block's name.
  [[nodiscard]] std::vector<std::byte> LayerOf(const Block& block, uint32_t layer) const;
  absl::Status Put(Figures* figures);
  absl::Status Get(Figures* figures);
  absl::Status Lookup(Figures* figures);
  [[nodiscard]] absl::Status CheckInterrupt() const {
    return shell_.interrupt().signal() == 0 ? absl::OkStatus()
                                            : absl::CancelledError("interrupted");
  }

  const BenchOptions& options_;
  Shell& shell_;
  RpcStub& cache_;
  ContentSpec content_;
  VariantSpec variant_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle handle_;
  std::vector<Block> blocks_;
};

void Bench::MakeBlocks() {
  Digest parent = session_->Seed(content_);
  for (uint32_t i = 0; i < options_.blocks; ++i) {
    Block block{.digest = {}, .parent = parent, .tokens = std::vector<uint32_t>(kStepTokens, i)};
    block.digest = Chain(parent, block.tokens).back();
    parent = block.digest;
    blocks_.push_back(std::move(block));
  }
}

std::vector<std::byte> Bench::LayerOf(const Block& block, uint32_t layer) const {
  std::vector<std::byte> bytes(options_.bytes / kLayers);
  uint64_t state = block.digest.Hash64() ^ ((uint64_t{layer} + 1) * 0x9E3779B97F4A7C15u);
  for (size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof state, bytes.size() - at));
  }
  return bytes;
}

absl::Status Bench::Run(Figures* figures) {
  absl::StatusOr<std::unique_ptr<Client>> client =
      Client::Connect({.socket_dir = shell_.SocketFolder(), .tenant = shell_.options().tenant});
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  absl::StatusOr<std::unique_ptr<Session>> session =
      client_->Attach({.engine_id = absl::StrCat("larderctl-bench-", getpid())});
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  figures->write_mode = ToString(session_->write_mode());
  const auto handles = session_->Register({&content_, 1}, {&variant_, 1});
  if (!handles.ok()) return handles.status();
  handle_ = handles->front();
  MakeBlocks();
  absl::Status status = Put(figures);
  if (status.ok()) status = Get(figures);
  if (status.ok()) status = Lookup(figures);
  return status;
}

absl::Status Bench::Put(Figures* figures) {
  ProgressBar bar("put");
  double seconds = 0;
  for (size_t first = 0; first < blocks_.size(); first += kBatch) {
    if (absl::Status status = CheckInterrupt(); !status.ok()) return status;
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
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    if (!statuses.ok()) return statuses.status();
    for (const BlockStatus status : *statuses)
      figures->put_blocks += status == BlockStatus::kOk ? 1 : 0;
    bar.Show({first + count, blocks_.size(), (first + count) * options_.bytes,
              blocks_.size() * options_.bytes});
  }
  figures->put = static_cast<double>(figures->put_blocks * options_.bytes) / seconds;
  return absl::OkStatus();
}

absl::Status Bench::Get(Figures* figures) {
  ProgressBar bar("get");
  double seconds = 0;
  std::vector<std::vector<std::byte>> layers(kBatch * kLayers,
                                             std::vector<std::byte>(options_.bytes / kLayers));
  const std::vector<std::span<std::byte>> views(layers.begin(), layers.end());
  for (size_t first = 0; first < blocks_.size(); first += kBatch) {
    if (absl::Status status = CheckInterrupt(); !status.ok()) return status;
    const size_t count = std::min(kBatch, blocks_.size() - first);
    std::vector<GetBlock> gets;
    for (size_t i = 0; i < count; ++i) {
      gets.push_back({.digest = blocks_[first + i].digest,
                      .segments = std::span(views).subspan(i * kLayers, kLayers)});
    }
    const Clock::time_point begin = Clock::now();
    const auto statuses = session_->Get(handle_, gets);
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    if (!statuses.ok()) return statuses.status();
    for (size_t i = 0; i < count; ++i) {
      if ((*statuses)[i] != BlockStatus::kOk) continue;
      ++figures->got_blocks;
      // One layer says enough of the road.
      const auto layer = static_cast<uint32_t>(i % kLayers);
      const bool right = layers[i * kLayers + layer] == LayerOf(blocks_[first + i], layer);
      figures->wrong += right ? 0 : 1;
    }
    bar.Show({first + count, blocks_.size(), (first + count) * options_.bytes,
              blocks_.size() * options_.bytes});
  }
  figures->get = static_cast<double>(figures->got_blocks * options_.bytes) / seconds;
  return absl::OkStatus();
}

absl::Status Bench::Lookup(Figures* figures) {
  constexpr int kTimes = 100;
  wire::LookupQuery query;
  query.tenant = shell_.options().tenant;
  query.content = content_;
  for (const Block& block : blocks_) query.digests.push_back(block.digest);
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kTimes; ++i) {
    const auto found = cache_.Lookup(query, shell_.Limits());
    if (!found.ok()) return found.status();
  }
  figures->lookup_s = std::chrono::duration<double>(Clock::now() - begin).count() / kTimes;
  return absl::OkStatus();
}

absl::Status Bench::Clean() {
  session_.reset();
  wire::ClearQuery query;
  query.tenant = shell_.options().tenant;
  query.scope = wire::SelectionScope::kContent;
  query.blocks.content = content_;
  // Without the interrupt: nothing is to stay.
  return cache_.Clear(query, {std::chrono::minutes(1)}).status();
}

void Print(const BenchOptions& options, const Figures& f, Shell& shell) {
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

ExitCode RunBench(const BenchOptions& options, Shell& shell) {
  if (options.bytes < 4096 || options.bytes > (256u << 20) || options.bytes % (kLayers * 64) != 0)
    return shell.Fail(
        absl::InvalidArgumentError("--block-bytes: 4096 to 256MiB, a multiple of 1024"));
  if (options.blocks < 1 || options.blocks > wire::kLookupDigestsMax)
    return shell.Fail(absl::InvalidArgumentError("--blocks: 1 to 8192"));
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  // Whoever reads what this prints may go; what it stored must not stay.
  std::signal(SIGPIPE, SIG_IGN);
  Bench bench(options, shell, **cache);
  Figures figures;
  absl::Status status = bench.Run(&figures);
  status.Update(bench.Clean());
  std::signal(SIGPIPE, SIG_DFL);
  if (!status.ok()) return shell.Fail(status);
  Print(options, figures, shell);
  if (figures.put_blocks == options.blocks && figures.got_blocks == options.blocks &&
      figures.wrong == 0)
    return ExitCode::kOk;
  shell.Say("not all of it came back: the pool has no room for so much, beside what is in use");
  shell.SayNext("larderctl bench --blocks 64, or larderctl status");
  return ExitCode::kIncomplete;
}

}  // namespace

void AddBench(CommandTree& tree) {
  tree.Add({.name = "bench",
            .summary = "how fast this daemon is for an engine on this host",
            .about = "Puts blocks of its own through the client library, gets and checks them, "
                     "looks them up, and clears them again. It may evict what is least worth "
                     "keeping.",
            .examples = {{"bench", "256 blocks of 1 MiB."},
                         {"bench --blocks 1000 --block-bytes 64KiB", "Small ones."}}},
           [](CLI::App& app) -> RunVerb {
             const auto options = std::make_shared<BenchOptions>();
             app.add_option("--blocks", options->blocks, "How many.")
                 ->type_name("COUNT")
                 ->capture_default_str();
             AddBytes(app, "--block-bytes", &options->bytes, "Bytes of each. Default: 1MiB.");
             return [options](Shell& shell) { return RunBench(*options, shell); };
           });
}

}  // namespace larder::cli
