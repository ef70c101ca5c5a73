// larderctl profile: puts and gets blocks of its own to measure what loading from this daemon
// costs, and can write the profile (a file) with which restores begin.
#include <algorithm>
#include <csignal>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cli/shell/progress_bar.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/scratch_blocks.h"
#include "client/cli/verbs/verbs.h"
#include "client/restore/costs/profile.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

constexpr double kMeasuredDoubt = 0.05;  // relative, of the rates that this verb measures

struct ProfileOptions {
  ScratchSize size;
  std::string engine, write;  // files
};

// The median over the batches, in bytes per second, so that a pause of the machine during one batch
// does not count.
double MedianRate(const std::vector<ScratchBlocks::Batch>& batches, uint64_t block_bytes) {
  std::vector<double> rates;
  for (const ScratchBlocks::Batch& batch : batches) {
    if (batch.blocks > 0 && batch.seconds > 0)
      rates.push_back(static_cast<double>(batch.blocks * block_bytes) / batch.seconds);
  }
  if (rates.empty()) return 0;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

absl::Status ToDisk(const ScratchBlocks& blocks, Shell& shell, RpcStub& cache) {
  ProgressBar bar("move to disk");
  wire::MoveQuery query;  // from the pool to disk
  query.tenant = shell.options().tenant;
  query.scope = wire::SelectionScope::kContent;
  query.blocks.content = blocks.content();
  return cache.Move(
      query, shell.Limits(std::chrono::minutes(10)), [&](const wire::MoveProgress& done) {
        bar.Show({done.blocks_done, done.blocks, done.bytes_done.value(), done.bytes.value()});
        return true;
      });
}

// Gets all blocks, and appends the rate of the channel.  Returns an error if Get misses a block or
// finds wrong bytes.
absl::Status AddChannel(const std::string& name, const ProfileOptions& options,
                        ScratchBlocks& blocks, std::vector<ChannelCost>* channels) {
  std::vector<ScratchBlocks::Batch> batches;
  LARDER_RETURN_IF_ERROR(blocks.Get("get from " + name, &batches));
  const ScratchBlocks::Batch sum = Sum(batches);
  if (sum.wrong > 0) {
    return absl::DataLossError(
        absl::StrCat(sum.wrong, " blocks from ", name,
                     " are not what was put; larderctl verify checks all that is stored"));
  }
  if (sum.blocks < options.size.blocks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(sum.blocks, " of ", options.size.blocks, " blocks came back from ", name,
                     ": its capacity is too small for so many beside the blocks in use; try "
                     "--blocks 64"));
  }
  channels->push_back({name, MedianRate(batches, options.size.bytes)});
  return absl::OkStatus();
}

absl::Status Measure(const ProfileOptions& options, Shell& shell, RpcStub& cache,
                     ScratchBlocks& blocks, std::vector<ChannelCost>* channels) {
  LARDER_RETURN_IF_ERROR(blocks.Begin());
  std::vector<ScratchBlocks::Batch> puts;
  LARDER_RETURN_IF_ERROR(blocks.Put("put", &puts));
  LARDER_RETURN_IF_ERROR(AddChannel("pool", options, blocks, channels));
  const absl::Status moved = ToDisk(blocks, shell, cache);
  if (absl::IsFailedPrecondition(moved)) return absl::OkStatus();  // the daemon has no disk
  LARDER_RETURN_IF_ERROR(moved);
  return AddChannel("disk", options, blocks, channels);
}

// A measured channel replaces the channel of the same name at the same index, because the index
// determines the ChannelId.  A profile has one doubt (a relative standard deviation), that of its
// worst part.
Profile Merge(Profile profile, const std::vector<ChannelCost>& measured) {
  for (const ChannelCost& channel : measured) {
    const auto same = std::find_if(profile.channels.begin(), profile.channels.end(),
                                   [&](const auto& one) { return one.name == channel.name; });
    if (same != profile.channels.end()) {
      *same = channel;
    } else {
      profile.channels.push_back(channel);
    }
  }
  profile.doubt = std::max(profile.doubt, kMeasuredDoubt);
  return profile;
}

void Print(const std::optional<Profile>& profile, const std::vector<ChannelCost>& channels,
           const ProfileOptions& options, Shell& shell) {
  if (shell.json()) {
    Json out{{"blocks", options.size.blocks}, {"block_bytes", options.size.bytes}};
    out["channels"] = Json::array();
    for (const ChannelCost& channel : channels)
      out["channels"].push_back({{"name", channel.name}, {"bytes_per_s", channel.bytes_per_s}});
    if (profile.has_value()) {
      const ComputeCost& compute = profile->compute;
      out["engine"] = Json{{"model", profile->model}, {"layers", profile->layers}};
      out["compute"] = Json{{"fixed_s", compute.fixed_s},
                            {"linear_s", compute.linear_s},
                            {"quadratic_s", compute.quadratic_s}};
    }
    if (!options.write.empty()) out["file"] = options.write;
    return shell.PrintJson(out);
  }
  std::vector<std::pair<std::string, std::string>> facts;
  for (const ChannelCost& channel : channels)
    facts.emplace_back(channel.name, absl::StrCat(FormatBytes(channel.bytes_per_s), "/s"));
  if (profile.has_value()) {
    const double chunk_s = profile->compute.Seconds({0, 512});
    facts.emplace_back("compute", absl::StrCat(FormatSeconds(chunk_s), ", 512 tokens of ",
                                               profile->model.empty() ? "the engine's model"
                                                                      : Printable(profile->model)));
  }
  if (!options.write.empty()) facts.emplace_back("file", Printable(options.write));
  shell.Print(FormatFacts(facts, shell.width()));
}

ExitCode RunProfile(const ProfileOptions& options, Shell& shell) {
  if (absl::Status status = Check(options.size); !status.ok()) return shell.Fail(status);
  if (!options.write.empty() && options.engine.empty()) {
    return shell.Fail(absl::InvalidArgumentError(
        "--write needs --engine: only the engine can measure what computing costs"));
  }
  // A wrong file is reported before minutes of measuring.
  std::optional<Profile> profile;
  if (!options.engine.empty()) {
    absl::StatusOr<Profile> read = ReadProfile(options.engine);
    if (!read.ok()) return shell.Fail(read.status(), "larderctl profile --help");
    profile = *std::move(read);
  }
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  std::signal(SIGPIPE, SIG_IGN);  // the blocks are cleared even if the reader has gone
  ScratchBlocks blocks("profile", options.size, shell, **cache);
  std::vector<ChannelCost> channels;
  absl::Status status = Measure(options, shell, **cache, blocks, &channels);
  status.Update(blocks.Clear());
  std::signal(SIGPIPE, SIG_DFL);
  if (!status.ok()) return shell.Fail(status);
  if (profile.has_value()) profile = Merge(*std::move(profile), channels);
  if (!options.write.empty()) status = WriteProfile(*profile, options.write);
  if (!status.ok()) return shell.Fail(status, "larderctl profile --help");
  Print(profile, channels, options, shell);
  if (channels.size() < 2) shell.Say("this daemon has no disk: only its pool was measured");
  return ExitCode::kOk;
}

}  // namespace

void AddProfile(CommandTree& tree) {
  tree.Add(
      {.name = "profile",
       .summary = "measures what loading costs here, for restores to start from",
       .about = "Puts blocks of its own through the client library, gets them from the pool and "
                "then from disk, and clears them again. That gives the rates of both channels. "
                "Only the engine can measure what computing costs: --engine reads its profile, and "
                "--write writes both as one file. To store the blocks, the daemon may evict those "
                "that are least worth keeping.",
       .examples = {{"profile", "The rates of pool and disk."},
                    {"profile --engine engine.toml --write profile.toml", "One file with both."}}},
      [](VerbOptions& verb) -> RunVerb {
        const auto options = std::make_shared<ProfileOptions>();
        verb.AddText("--engine", &options->engine, "FILE",
                     "Profile that the engine wrote, with what computing costs. Other channels "
                     "in it are kept.");
        verb.AddText("--write", &options->write, "FILE", "File to write the merged profile to.");
        verb.AddNumber("--blocks", &options->size.blocks, "COUNT", "Number of blocks.");
        verb.AddBytes("--block-bytes", &options->size.bytes, "Bytes of each block. Default: 1MiB.");
        return [options](Shell& shell) { return RunProfile(*options, shell); };
      });
}

}  // namespace larder::cli
