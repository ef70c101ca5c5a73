#include "server/verbs/chain_forest.h"

#include <algorithm>

namespace larder {

ChainForest::ChainForest(const BlockIndex& index, const Links& more) : children_(more) {
  for (const auto& [parent, name] : more) names_.insert(name);
  index.ForEachLink([&](const ChainLink& block) {
    names_.insert(block.name);
    if (block.parent != 0) children_.emplace_back(block.parent, block.name);
  });
  std::sort(children_.begin(), children_.end());
}

ChainForest::Names ChainForest::Below(std::vector<uint64_t> names) const {
  Names found;
  while (!names.empty()) {
    const uint64_t name = names.back();
    names.pop_back();
    if (!found.insert(name).second) continue;
    const std::pair<uint64_t, uint64_t> first{name, 0};
    for (auto it = std::lower_bound(children_.begin(), children_.end(), first);
         it != children_.end() && it->first == name; ++it) {
      names.push_back(it->second);
    }
  }
  return found;
}

}  // namespace larder
