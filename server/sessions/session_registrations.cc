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
      const VariantSpec& spec = request.variants[i];
      variants_.push_back({index, spec.block_tokens, spec.layers, RuleOf(spec)});
      it = variants_.end() - 1;
    }
    answer.variants.push_back(static_cast<uint32_t>(it - variants_.begin()));
    answer.variant_ids.push_back(deps.store.index().VariantId(index));
  }
  for (const ContentSpec& content : contents) {
    answer.content_ids.push_back(content.Id());
    Keep(answer.content_ids.back());
  }
  return answer;
}

void SessionRegistrations::Keep(const Digest& content) {
  if (const auto known = content_at_.find(content); known != content_at_.end()) {
    contents_.splice(contents_.begin(), contents_, known->second);
    return;
  }
  contents_.push_front(content);
  content_at_.emplace(content, contents_.begin());
  if (contents_.size() <= kContentsFree + charged_.amount()) return;
  const Shares::Account user = context_.account.OfUid();
  if (contents_.size() <= kContentsMax && user.Room(ShareKind::kContents) > 0)
    charged_.Merge(user.Take(ShareKind::kContents).ticket);
  if (contents_.size() <= kContentsFree + charged_.amount()) return;
  content_at_.erase(contents_.back());
  contents_.pop_back();
  forgot_one_ = true;
}

std::optional<SessionVariant> SessionRegistrations::Find(uint32_t number) const {
  MutexLock lock(mu_);
  if (number >= variants_.size()) return std::nullopt;
  return variants_[number];
}

std::optional<std::vector<SessionVariant>> SessionRegistrations::FindAll(
    std::span<const uint32_t> numbers) const {
  std::vector<SessionVariant> variants;
  MutexLock lock(mu_);
  for (const uint32_t number : numbers) {
    if (number >= variants_.size()) return std::nullopt;
    variants.push_back(variants_[number]);
  }
  if (variants.empty()) return std::nullopt;
  return variants;
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
  if (content_at_.contains(block->parent)) {
    const bool agree = block->content == Digest() || block->content == block->parent;
    block->content = block->parent;
    return agree;
  }
  if (block->content != Digest()) return content_at_.contains(block->content);
  if (contents_.size() == 1 && !forgot_one_) block->content = contents_.front();
  return true;
}

}  // namespace larder
