// What a session has registered: its variants, which messages name by number, and its contents.
//
// An engine may have as many contents as it has users (salts), so a session keeps the ids of those
// that were registered last.  To store blocks of a content that it has forgotten, the client
// registers the content again.
// Thread-safety: Register from one thread at a time, the other methods from any thread.
// Locks: mu_ is held while the block index is asked for the id of a variant.  The instance table is
// called without it.
// Limits: kContentsMax contents; the shares of what can be registered (server/runtime/shares.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/runtime/shares.h"
#include "server/sessions/session_context.h"
#include "storage/mutex.h"

namespace larder {

class SessionRegistrations {
 public:
  static constexpr size_t kContentsMax = 65'536;  // whose ids the session keeps
  static constexpr size_t kContentsFree = 64;     // of these that count in no share
  explicit SessionRegistrations(SessionContext& context) : context_(context) {}

  // Registers contents and variants for the session's engine.  The answer's status is kFull at a
  // limit, kInvalid if the request is refused for another reason.
  [[nodiscard]] wire::Registered Register(const wire::Register& request) LARDER_EXCLUDES(mu_);
  // Returns the variant with this number, or nullopt if the session has not registered it.
  [[nodiscard]] std::optional<SessionVariant> Find(uint32_t number) const LARDER_EXCLUDES(mu_);
  // Returns the variants with these numbers, or nullopt if there are none or the session has not
  // registered one of them.
  [[nodiscard]] std::optional<std::vector<SessionVariant>> FindAll(
      std::span<const uint32_t> numbers) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<uint32_t> NumberOf(VariantIndex variant) const LARDER_EXCLUDES(mu_);
  // Sets the content of each block of a publish: its parent if that is a content that the session
  // keeps, otherwise the content that the block names, otherwise the only content that the session
  // has registered, otherwise none.  Returns false if a block names a content that the session does
  // not keep, or another one than the content that is its parent.
  [[nodiscard]] bool SetContents(wire::Publish* request) const LARDER_EXCLUDES(mu_);

 private:
  // Keeps the id of a content, if necessary in the place of the one that was registered longest
  // ago.
  void Keep(const Digest& content) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool SetContent(wire::PublishBlock* block) const LARDER_REQUIRES(mu_);

  SessionContext& context_;
  mutable Mutex mu_;
  std::vector<SessionVariant> variants_ LARDER_GUARDED_BY(mu_);
  std::list<Digest> contents_ LARDER_GUARDED_BY(mu_);  // the one that was registered last first
  absl::flat_hash_map<Digest, std::list<Digest>::iterator> content_at_ LARDER_GUARDED_BY(mu_);
  Shares::Ticket charged_ LARDER_GUARDED_BY(mu_);   // for the contents beyond kContentsFree
  bool forgot_one_ LARDER_GUARDED_BY(mu_) = false;  // there were more contents than these
};

}  // namespace larder
