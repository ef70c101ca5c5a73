#include "client/engine/device_reporter.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/client.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {

using std::chrono::milliseconds;
using Live = SessionKeeper::Live;

DeviceReporter::DeviceReporter(SessionKeeper& keeper, const Options& options)
    : keeper_(keeper),
      options_(options),
      thread_([this](const std::stop_token& stop) { Work(stop); }) {}

DeviceReporter::~DeviceReporter() {
  thread_.request_stop();
  {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  thread_.join();
}

void DeviceReporter::Add(const Digest& parent, std::span<const Digest> digests,
                         std::span<const uint32_t> tokens) {
  if (digests.empty()) return;
  const size_t each = tokens.size() / digests.size();
  Digest before = parent;
  const MutexLock lock(mu_);
  for (size_t b = 0; b < digests.size(); ++b) {
    Block& block = blocks_[digests[b]];
    if (block.pages++ == 0) {
      ++present_;
      if (block.told) {
        news_.erase(digests[b]);  // it left and came back
      } else {
        const std::span<const uint32_t> own = tokens.subspan(b * each, each);
        block.parent = before;
        block.tokens.assign(own.begin(), own.end());
        news_.insert(digests[b]);
      }
    }
    before = digests[b];
  }
  Changed();
}

void DeviceReporter::Remove(std::span<const Digest> digests) {
  const MutexLock lock(mu_);
  for (const Digest& digest : digests) RemoveOne(digest);
  Changed();
}

void DeviceReporter::RemoveOne(const Digest& digest) {
  const auto found = blocks_.find(digest);
  if (found == blocks_.end() || found->second.pages == 0 || --found->second.pages > 0) return;
  --present_;
  if (found->second.told) {
    news_.insert(digest);
  } else {
    news_.erase(digest);
    blocks_.erase(found);
  }
}

void DeviceReporter::Clear() {
  const MutexLock lock(mu_);
  news_.clear();
  absl::erase_if(blocks_, [](const auto& entry) { return !entry.second.told; });
  for (auto& [digest, block] : blocks_) {
    block.pages = 0;
    news_.insert(digest);
  }
  present_ = 0;
  Changed();
}

// The thread is woken once for each report, not for each change.
void DeviceReporter::Changed() {
  if (changes_++ == taken_) changed_.NotifyAll();
}

absl::Status DeviceReporter::Flush(milliseconds at_most) {
  const TimePoint until = SteadyNow() + at_most;
  const MutexLock lock(mu_);
  const uint64_t wanted = changes_;
  hurry_ = true;
  changed_.NotifyAll();
  while (sent_ < wanted) {
    if (!changed_.WaitUntil(mu_, until) && sent_ < wanted)
      return absl::DeadlineExceededError("the daemon was not told in time");
  }
  return absl::OkStatus();
}

DeviceReporter::Stats DeviceReporter::stats() const {
  const MutexLock lock(mu_);
  Stats stats = stats_;
  stats.blocks = present_;
  return stats;
}

DeviceReporter::News DeviceReporter::Take(bool all) {
  News news{.all = all};
  if (all) {
    absl::erase_if(blocks_, [](const auto& entry) { return entry.second.pages == 0; });
    news_.clear();
    for (const auto& [digest, block] : blocks_) news_.insert(digest);
  }
  for (const Digest& digest : news_) {
    const auto found = blocks_.find(digest);
    Block& block = found->second;
    if (block.pages > 0) {
      block.told = true;
      news.stored.push_back({digest, block.parent, block.tokens});
    } else {
      news.removed.push_back(digest);
      blocks_.erase(found);
    }
  }
  news_.clear();
  taken_ = changes_;
  return news;
}

namespace {

// Consecutive blocks of a chain.
struct ChainRun {
  Digest parent = {};
  std::vector<Digest> digests = {};
  std::vector<uint32_t> tokens = {};
};

// Returns the blocks as few runs.
std::vector<ChainRun> RunsOf(std::span<const DeviceReporter::StoredBlock> blocks) {
  absl::flat_hash_map<Digest, const DeviceReporter::StoredBlock*> by_digest;
  for (const auto& block : blocks) by_digest[block.digest] = &block;
  absl::flat_hash_map<Digest, std::vector<Digest>> children;  // by parent
  std::vector<Digest> heads;                                  // of runs
  for (const auto& block : blocks) {
    (by_digest.contains(block.parent) ? children[block.parent] : heads).push_back(block.digest);
  }
  std::vector<ChainRun> runs;
  while (!heads.empty()) {
    const DeviceReporter::StoredBlock* at = by_digest.at(heads.back());
    heads.pop_back();
    ChainRun& run = runs.emplace_back(ChainRun{.parent = at->parent});
    for (;;) {
      run.digests.push_back(at->digest);
      run.tokens.insert(run.tokens.end(), at->tokens.begin(), at->tokens.end());
      const auto next = children.find(at->digest);
      if (next == children.end()) break;
      heads.insert(heads.end(), next->second.begin() + 1, next->second.end());
      at = by_digest.at(next->second.front());
    }
  }
  return runs;
}

// Reports for all variants.
absl::Status Send(const Live& live, bool all, std::span<const Digest> removed,
                  std::span<const ChainRun> stored) {
  bool first = true;
  for (const VariantHandle& variant : live.variants) {
    // `cleared` is about all variants.
    LARDER_RETURN_IF_ERROR(
        live.session->ReportDevice(variant, {.cleared = all && first, .removed = removed}));
    first = false;
    for (const ChainRun& run : stored) {
      LARDER_RETURN_IF_ERROR(live.session->ReportDevice(
          variant, {.stored = run.digests, .parent = run.parent, .tokens = run.tokens}));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void DeviceReporter::Pause(const std::stop_token& stop, bool serves, milliseconds otherwise) {
  const MutexLock lock(mu_);
  const auto wait = [&](milliseconds how_long, auto until) LARDER_REQUIRES(mu_) {
    const TimePoint end = SteadyNow() + how_long;
    while (!stop.stop_requested() && !until() && changed_.WaitUntil(mu_, end)) {
    }
  };
  if (serves) wait(options_.look_every, [&]() LARDER_REQUIRES(mu_) { return changes_ > sent_; });
  if (changes_ > sent_ || !serves)
    wait(serves ? options_.every : otherwise, [&]() LARDER_REQUIRES(mu_) { return hurry_; });
  hurry_ = false;
}

void DeviceReporter::Work(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "device blocks");
  uint64_t told = 0;  // the number of the session that knows what blocks_ says it was told
  bool serves = false;
  milliseconds otherwise = options_.look_every;
  for (;;) {
    Pause(stop, serves, otherwise);
    if (stop.stop_requested()) return;
    const std::shared_ptr<Live> live = keeper_.Get();
    serves = live != nullptr;
    if (!serves) continue;
    News news;
    uint64_t taken = 0;
    {
      const MutexLock lock(mu_);
      news = Take(live->number != told);
      taken = taken_;
    }
    const absl::Status sent = Send(*live, news.all, news.removed, RunsOf(news.stored));
    // A report that was sent says nothing about whether the daemon answers in time.
    if (!sent.ok()) keeper_.Note(*live, sent);
    const MutexLock lock(mu_);
    if (sent.ok()) {
      stats_.sessions += live->number != told;
      told = live->number;
      otherwise = options_.look_every;
      sent_ = taken;
      changed_.NotifyAll();
    } else {
      ++stats_.reports_failed;
      told = 0;  // it may have taken a part
      serves = false;
      otherwise = std::min(2 * otherwise, options_.backoff_max);
    }
  }
}

}  // namespace larder
