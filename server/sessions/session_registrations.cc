#include "server/sessions/session_registrations.h"

#include <algorithm>
#include <string>
#include <utility>

namespace larder {

wire::Registered SessionRegistrations::Register(const wire::Register& request) {
  SessionDeps& deps = context_.deps;
  wire::Registered answer;
  answer.id = request.id;
  std::vector<ContentSpec> contents = request.contents;
  for (ContentSpec& content : contents) content.tenant = deps.tenant;
  absl::StatusOr<std::vector<VariantIndex>> indices =
      deps.instances.Register(context_.engine_id, contents, request.variants, &context_.account);
  if (!indices.ok()) {
    ++deps.counters.registrations_refused;
    answer.status =
        absl::IsResourceExhausted(indices.status()) ? BlockStatus::kFull : BlockStatus::kInvalid;
    answer.message = std::string(indices.status().message());
    return answer;
  }
  MutexLock lock(mu_);
  for (size_t i = 0; i < indices->size(); ++i) {
    const VariantIndex index = (*indices)[i];
    auto it = std::ranges::find(variants_, index, &SessionVariant::index);
    if (it == variants_.end()) {
      variants_.push_back({index, request.variants[i].block_tokens, request.variants[i].layers});
      it = variants_.end() - 1;
    }
    answer.variants.push_back(static_cast<uint32_t>(it - variants_.begin()));
    answer.variant_ids.push_back(deps.store.index().VariantId(index));
  }
  for (const ContentSpec& content : contents) {
    const Digest id = content.Id();
    answer.content_ids.push_back(id);
    if (std::ranges::find(contents_, id) == contents_.end()) contents_.push_back(id);
  }
  return answer;
}

std::optional<SessionVariant> SessionRegistrations::Find(uint32_t number) const {
  MutexLock lock(mu_);
  if (number >= variants_.size()) return std::nullopt;
  return variants_[number];
}

std::optional<uint32_t> SessionRegistrations::NumberOf(VariantIndex variant) const {
  MutexLock lock(mu_);
  const auto it = std::ranges::find(variants_, variant, &SessionVariant::index);
  if (it == variants_.end()) return std::nullopt;
  return static_cast<uint32_t>(it - variants_.begin());
}

bool SessionRegistrations::SetContents(wire::Publish* request) const {
  MutexLock lock(mu_);
  bool right = true;
  for (wire::PublishBlock& block : request->blocks) right = SetContent(&block) && right;
  return right;
}

bool SessionRegistrations::SetContent(wire::PublishBlock* block) const {
  const auto known = [&](const Digest& id) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::find(contents_, id) != contents_.end();
  };
  if (known(block->parent)) {
    const bool agree = block->content == Digest() || block->content == block->parent;
    block->content = block->parent;
    return agree;
  }
  if (block->content != Digest()) return known(block->content);
  if (contents_.size() == 1) block->content = contents_.front();
  return true;
}

}  // namespace larder
