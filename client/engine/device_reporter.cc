#include "client/engine/device_reporter.h"

#include <pthread.h>

#include <memory>
#include <utility>

#include "client/client.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {

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
  ++changes_;
  changed_.NotifyAll();
}

void DeviceReporter::Remove(std::span<const Digest> digests) {
  const MutexLock lock(mu_);
  for (const Digest& digest : digests) RemoveOne(digest);
  ++changes_;
  changed_.NotifyAll();
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
  ++changes_;
  changed_.NotifyAll();
}

absl::Status DeviceReporter::Flush(std::chrono::milliseconds at_most) {
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

DeviceReporter::Report DeviceReporter::Take(bool all) {
  Report report{.cleared = all};
  if (all) {
    absl::erase_if(blocks_, [](const auto& entry) { return entry.second.pages == 0; });
    news_.clear();
    for (const auto& [digest, block] : blocks_) news_.insert(digest);
  }
  std::vector<Digest> stored;
  for (const Digest& digest : news_) {
    const auto found = blocks_.find(digest);
    if (found->second.pages > 0) {
      found->second.told = true;
      stored.push_back(digest);
    } else {
      report.removed.push_back(digest);
      blocks_.erase(found);
    }
  }
  news_.clear();
  report.stored = RunsOf(stored);
  return report;
}

std::vector<DeviceReporter::Run> DeviceReporter::RunsOf(std::span<const Digest> digests) const {
  absl::flat_hash_map<Digest, std::vector<Digest>> children;  // by parent
  const absl::flat_hash_set<Digest> all(digests.begin(), digests.end());
  std::vector<Digest> heads;  // of runs
  for (const Digest& digest : digests) {
    const Digest& parent = blocks_.at(digest).parent;
    if (all.contains(parent)) {
      children[parent].push_back(digest);
    } else {
      heads.push_back(digest);
    }
  }
  std::vector<Run> runs;
  while (!heads.empty()) {
    Digest at = heads.back();
    heads.pop_back();
    Run& run = runs.emplace_back(Run{.parent = blocks_.at(at).parent});
    for (;;) {
      const std::vector<uint32_t>& tokens = blocks_.at(at).tokens;
      run.digests.push_back(at);
      run.tokens.insert(run.tokens.end(), tokens.begin(), tokens.end());
      const auto next = children.find(at);
      if (next == children.end()) break;
      heads.insert(heads.end(), next->second.begin() + 1, next->second.end());
      at = next->second.front();
    }
  }
  return runs;
}

namespace {

// Sends a report for all variants.
template <typename Report>
absl::Status Send(const Live& live, const Report& report) {
  bool first = true;
  for (const VariantHandle& variant : live.variants) {
    // `cleared` is about all variants.
    LARDER_RETURN_IF_ERROR(live.session->ReportDevice(
        variant, {.cleared = report.cleared && first, .removed = report.removed}));
    first = false;
    for (const auto& run : report.stored) {
      LARDER_RETURN_IF_ERROR(live.session->ReportDevice(
          variant, {.stored = run.digests, .parent = run.parent, .tokens = run.tokens}));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void DeviceReporter::Pause(const std::stop_token& stop, bool serves) {
  const MutexLock lock(mu_);
  const auto wait = [&](std::chrono::milliseconds how_long, auto until) LARDER_REQUIRES(mu_) {
    const TimePoint end = SteadyNow() + how_long;
    while (!stop.stop_requested() && !until() && changed_.WaitUntil(mu_, end)) {
    }
  };
  if (serves) wait(options_.look_every, [&]() LARDER_REQUIRES(mu_) { return changes_ > sent_; });
  const std::chrono::milliseconds gather = serves ? options_.every : options_.look_every;
  if (changes_ > sent_ || !serves) wait(gather, [&]() LARDER_REQUIRES(mu_) { return hurry_; });
  hurry_ = false;
}

void DeviceReporter::Work(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "device blocks");
  uint64_t told = 0;  // the number of the session that knows what blocks_ says it was told
  bool serves = false;
  for (;;) {
    Pause(stop, serves);
    if (stop.stop_requested()) return;
    const std::shared_ptr<Live> live = keeper_.Get();
    serves = live != nullptr;
    if (!serves) continue;
    Report report;
    uint64_t taken = 0;
    {
      const MutexLock lock(mu_);
      report = Take(live->number != told);
      taken = changes_;
    }
    const absl::Status sent = Send(*live, report);
    keeper_.Note(*live, sent);
    const MutexLock lock(mu_);
    if (sent.ok()) {
      stats_.sessions += live->number != told;
      told = live->number;
      sent_ = taken;
      changed_.NotifyAll();
    } else {
      ++stats_.reports_failed;
      told = 0;  // it may have taken a part
      serves = false;
    }
  }
}

}  // namespace larder
