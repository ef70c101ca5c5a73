#include "client/engine/session_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {

SessionKeeper::SessionKeeper(Options options)
    : options_(std::move(options)), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

SessionKeeper::~SessionKeeper() {
  thread_.request_stop();
  {
    MutexLock lock(mu_);
    look_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::shared_ptr<SessionKeeper::Live> SessionKeeper::Get() const {
  MutexLock lock(mu_);
  return live_;
}

absl::StatusOr<std::shared_ptr<SessionKeeper::Live>> SessionKeeper::Serving() const {
  MutexLock lock(mu_);
  if (live_ == nullptr) return status_;
  return live_;
}

absl::Status SessionKeeper::status() const {
  MutexLock lock(mu_);
  return status_;
}

std::optional<std::string> SessionKeeper::Tenant() const {
  MutexLock lock(mu_);
  return tenant_;
}

void SessionKeeper::Note(const Live& live, const absl::Status& result) {
  MutexLock lock(mu_);
  if (live_ == nullptr || live_->number != live.number) return;
  if (absl::IsDeadlineExceeded(result)) {
    if (++timeouts_ == options_.timeouts_max) look_ = true;
  } else if (absl::IsUnavailable(result)) {
    look_ = true;
  } else {
    timeouts_ = 0;
  }
  if (look_) changed_.NotifyAll();
}

absl::Status SessionKeeper::WaitServing(std::chrono::milliseconds at_most) {
  const TimePoint until = SteadyNow() + at_most;
  MutexLock lock(mu_);
  while (live_ == nullptr && changed_.WaitUntil(mu_, until)) {
  }
  return status_;
}

SessionKeeper::Stats SessionKeeper::stats() const {
  MutexLock lock(mu_);
  return stats_;
}

void SessionKeeper::Show(std::shared_ptr<Live> live, const absl::Status& why) {
  bool changed = false;
  {
    MutexLock lock(mu_);
    changed = status_.code() != why.code() || status_.message() != why.message();
    live_ = std::move(live);
    if (live_ != nullptr) tenant_ = live_->session->attached().tenant;
    status_ = why;
    timeouts_ = 0;
    changed_.NotifyAll();
  }
  if (changed && options_.on_change) options_.on_change(why);
}

void SessionKeeper::Sleep(const std::stop_token& stop, std::chrono::milliseconds how_long) {
  const TimePoint until = SteadyNow() + how_long;
  MutexLock lock(mu_);
  while (!look_ && !stop.stop_requested() && changed_.WaitUntil(mu_, until)) {
  }
  look_ = false;
}

absl::StatusOr<std::shared_ptr<SessionKeeper::Live>> SessionKeeper::Attach() {
  if (client_ == nullptr) {
    LARDER_ASSIGN_OR_RETURN(client_, Client::Connect(options_.client));
  }
  auto live = std::make_shared<Live>();
  live->client = client_;
  LARDER_ASSIGN_OR_RETURN(live->session, client_->Attach(options_.session));
  LARDER_ASSIGN_OR_RETURN(live->variants,
                          live->session->Register(options_.contents, options_.variants,
                                                  {.deadline = options_.client.connect_deadline}));
  live->number = ++number_;
  if (options_.prepare) LARDER_RETURN_IF_ERROR(options_.prepare(*live));
  return live;
}

// An empty registration is answered once the daemon has handled what came before.
absl::Status SessionKeeper::Probe(Live& live) const {
  return live.session->Register({}, {}, {.deadline = options_.probe_deadline}).status();
}

void SessionKeeper::Run(const std::stop_token& stop) {
  std::shared_ptr<Live> live;
  std::vector<std::shared_ptr<Live>> retired;  // callers of Get may still use them
  bool breaker = false;
  std::chrono::milliseconds backoff = options_.backoff_min;
  while (!stop.stop_requested()) {
    // To end a session may take a while, so that is done here, after its last user has let it go.
    std::erase_if(retired, [](const auto& one) { return one.use_count() == 1; });
    if (live == nullptr) {
      absl::StatusOr<std::shared_ptr<Live>> attached = Attach();
      {
        MutexLock lock(mu_);
        ++(attached.ok() ? stats_.attached : stats_.failed);
      }
      if (attached.ok()) {
        live = *std::move(attached);
        backoff = options_.backoff_min;
        Show(live, absl::OkStatus());
        continue;
      }
      Show(nullptr, attached.status());
      Sleep(stop, backoff);
      backoff = std::min(2 * backoff, options_.backoff_max);
      continue;
    }
    Sleep(stop, breaker ? options_.probe_every : options_.look_every);
    absl::Status serves = live->session->status();
    if (serves.ok() && live->session->draining()) serves = absl::UnavailableError("larderd drains");
    bool timed_out = false;
    {
      MutexLock lock(mu_);
      timed_out = timeouts_ >= options_.timeouts_max;
    }
    if (serves.ok() && (breaker || timed_out)) {
      const absl::Status probed = Probe(*live);
      const bool slow = absl::IsDeadlineExceeded(probed);
      if (slow && !breaker) {
        MutexLock lock(mu_);
        ++stats_.breaker_opened;
      }
      breaker = slow;
      {
        MutexLock lock(mu_);
        stats_.breaker_open = breaker;
      }
      Show(slow ? nullptr : live,
           slow ? absl::UnavailableError("larderd does not answer in time") : probed);
      serves = slow ? absl::OkStatus() : probed;
    }
    if (serves.ok()) continue;
    breaker = false;
    {
      MutexLock lock(mu_);
      stats_.breaker_open = false;
    }
    Show(nullptr, serves);
    retired.push_back(std::exchange(live, nullptr));
  }
  Show(nullptr, absl::UnavailableError("the engine has stopped using Larder"));
}

}  // namespace larder
