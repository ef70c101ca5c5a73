// The device memory of a test's engine: the names of its blocks and the owners that pin them.  It
// executes the daemon's directives.
//
// It does not talk to the daemon: the engine reports what a DROP removed (Session::ReportDevice).
// Thread-safety: all methods may be called from any thread.
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
  // Executes a directive.  Returns a status for each block that it names.
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
  // Removes the block, whether or not it is pinned.
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
