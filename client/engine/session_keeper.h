// Keeps an engine attached.  A thread connects, attaches and registers, and does so again when the
// daemon was restarted, drains or is gone; meanwhile every question is answered "not now" at once.
//
// A call to a daemon that hangs takes its whole deadline.  So after `timeouts_max` calls in a row
// that timed out, the keeper answers "not now" as well (its breaker is open), and asks the daemon
// itself, every `probe_every`, until the daemon answers.
//
// Ownership: owns client and session; a Live keeps both for as long as a caller uses them.
// Thread-safety: all methods from any thread.  Options::prepare and on_change are called on the
// keeper's thread, one at a time.
// Locks: mu_ is a leaf.  It is not held while the keeper waits for the daemon.
// Lifecycle: made (the thread tries at once) -> destroyed (waits for an attempt that is under way
// and for the end of the session, each at most about connect_deadline plus 2 s).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "storage/mutex.h"

namespace larder {

class SessionKeeper {
 public:
  // A session that serves, and what the engine registered with it.
  struct Live {
    std::shared_ptr<Client> client;
    std::unique_ptr<Session> session;     // destroyed before the client
    std::vector<VariantHandle> variants;  // of Options::variants
    uint64_t number = 0;                  // of the attachment: 1, 2, ...
  };
  struct Options {
    ClientOptions client = {};
    SessionOptions session = {};
    std::vector<ContentSpec> contents = {};
    std::vector<VariantSpec> variants = {};
    std::chrono::milliseconds backoff_min{100}, backoff_max{1'000};  // between two tries to attach
    std::chrono::milliseconds look_every{100};  // how often it checks that the session serves
    int timeouts_max = 3;
    std::chrono::milliseconds probe_every{1'000};
    std::chrono::milliseconds probe_deadline{500};
    // Called with a new session before it serves, to do what a session needs besides registering.
    std::function<absl::Status(Live&)> prepare = {};
    // Called when the state has changed: with OK when a session serves, otherwise with the reason.
    std::function<void(const absl::Status&)> on_change = {};
  };

  explicit SessionKeeper(Options options);
  ~SessionKeeper();
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  // Returns the session that serves, or null.  Never waits.
  [[nodiscard]] std::shared_ptr<Live> Get() const LARDER_EXCLUDES(mu_);
  // Returns the session that serves, or why none does.  Never waits.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<Live>> Serving() const LARDER_EXCLUDES(mu_);
  // Returns OK if a session serves, otherwise why none does.  A session may come or go between this
  // call and one of Get: Serving tells both at once.
  [[nodiscard]] absl::Status status() const LARDER_EXCLUDES(mu_);
  // Returns the tenant that the daemon said at the last attachment; nullopt before the first.
  [[nodiscard]] std::optional<std::string> Tenant() const LARDER_EXCLUDES(mu_);
  // To be told the result of each call that was made with `live`.  A call that timed out counts
  // toward the breaker; one that failed because the session is lost makes the keeper look at once.
  void Note(const Live& live, const absl::Status& result) LARDER_EXCLUDES(mu_);
  // Waits until a session serves.  For tests and tools.
  [[nodiscard]] absl::Status WaitServing(std::chrono::milliseconds at_most) LARDER_EXCLUDES(mu_);

  struct Stats {
    uint64_t attached = 0;        // sessions so far
    uint64_t failed = 0;          // tries that failed
    uint64_t breaker_opened = 0;  // times that calls timed out too often
    bool breaker_open = false;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  void Run(const std::stop_token& stop);
  // Attaches and registers.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<Live>> Attach();
  // Returns whether the daemon answers the session in time.
  [[nodiscard]] absl::Status Probe(Live& live) const;
  // Waits, unless there is news for the thread or it is to stop.
  void Sleep(const std::stop_token& stop, std::chrono::milliseconds how_long) LARDER_EXCLUDES(mu_);
  // Makes `live` what Get returns, or null with the reason, and tells on_change if that changed.
  void Show(std::shared_ptr<Live> live, const absl::Status& why) LARDER_EXCLUDES(mu_);

  const Options options_;
  std::shared_ptr<Client> client_;  // only the thread uses it
  uint64_t number_ = 0;             // only the thread uses it

  mutable Mutex mu_;
  CondVar changed_;
  std::shared_ptr<Live> live_ LARDER_GUARDED_BY(mu_);  // null: not now
  std::optional<std::string> tenant_ LARDER_GUARDED_BY(mu_);
  absl::Status status_ LARDER_GUARDED_BY(mu_) = absl::UnavailableError("not attached yet");
  int timeouts_ LARDER_GUARDED_BY(mu_) = 0;  // of live_, in a row
  bool look_ LARDER_GUARDED_BY(mu_) = false;
  Stats stats_ LARDER_GUARDED_BY(mu_);

  std::jthread thread_;  // uses the members above
};

}  // namespace larder
