// What a session has registered: its variants, which messages name by number, and its contents.
//
// Thread-safety: Register from one thread at a time, the other methods from any thread.
// Locks: mu_ is held while the block index is asked for the id of a variant.  The instance table is
// called without it.
// Limits: the shares of what can be registered (server/runtime/shares.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/sessions/session_context.h"
#include "storage/mutex.h"

namespace larder {

class SessionRegistrations {
 public:
  explicit SessionRegistrations(SessionContext& context) : context_(context) {}

  // Registers contents and variants for the session's engine.  The answer's status is kFull at a
  // limit, kInvalid if the request is refused for another reason.
  [[nodiscard]] wire::Registered Register(const wire::Register& request) LARDER_EXCLUDES(mu_);
  // Returns the variant with this number, or nullopt if the session has not registered it.
  [[nodiscard]] std::optional<SessionVariant> Find(uint32_t number) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<uint32_t> NumberOf(VariantIndex variant) const LARDER_EXCLUDES(mu_);
  // Sets the content of each block of a publish: its parent if that is a registered content,
  // otherwise the content that the block names, otherwise the registered content if there is only
  // one, otherwise none.  Returns false if a block names a content that is not registered, or
  // another one than the content that is its parent.
  [[nodiscard]] bool SetContents(wire::Publish* request) const LARDER_EXCLUDES(mu_);

 private:
  [[nodiscard]] bool SetContent(wire::PublishBlock* block) const LARDER_REQUIRES(mu_);

  SessionContext& context_;
  mutable Mutex mu_;
  std::vector<SessionVariant> variants_ LARDER_GUARDED_BY(mu_);
  std::vector<Digest> contents_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
