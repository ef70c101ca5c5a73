// What a test's engine has in device memory: names, and who pins them; does what directives ask.
//
// Says nothing to the daemon: what a DROP took, the engine reports (Session::ReportDevice).
// Thread-safety: all methods from any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/messages/messages.h"
#include "storage/mutex.h"

namespace larder::e2e {

class DeviceMemory {
 public:
  // A status for each name.
  std::vector<BlockStatus> Do(const wire::Directive& directive) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (directive.digests.empty() && directive.kind == wire::DirectiveKind::kUnpin)
      for (auto& [digest, pins] : blocks_) pins.erase(directive.owner);
    std::vector<BlockStatus> statuses;
    for (const Digest& digest : directive.digests) statuses.push_back(DoOne(directive, digest));
    return statuses;
  }
  void Add(const Digest& digest) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    blocks_[digest];
  }
  // Pinned or not.
  void Remove(const Digest& digest) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    blocks_.erase(digest);
  }
  void Clear() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    blocks_.clear();
  }
  [[nodiscard]] std::set<std::string> PinsOf(const Digest& digest) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return blocks_[digest];
  }

 private:
  BlockStatus DoOne(const wire::Directive& directive, const Digest& digest) LARDER_REQUIRES(mu_) {
    const auto it = blocks_.find(digest);
    if (it == blocks_.end()) return BlockStatus::kMissing;
    switch (directive.kind) {
      case wire::DirectiveKind::kPin:
        it->second.insert(directive.owner);
        return BlockStatus::kOk;
      case wire::DirectiveKind::kUnpin:
        return it->second.erase(directive.owner) > 0 ? BlockStatus::kOk : BlockStatus::kMissing;
      case wire::DirectiveKind::kDrop:
        if (!it->second.empty() && !directive.pinned) return BlockStatus::kKept;
        blocks_.erase(it);
        return BlockStatus::kOk;
      default:
        return BlockStatus::kOk;
    }
  }

  Mutex mu_;
  std::map<Digest, std::set<std::string>> blocks_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder::e2e
