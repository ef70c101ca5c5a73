// A session without gRPC: the parts that it shares with the daemon, a sink that records its
// messages, and a child process that the session belongs to.  For tests only.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/instances/device_table.h"
#include "server/instances/directive_queue.h"
#include "server/sessions/damage_checks.h"
#include "server/sessions/promise_table.h"
#include "server/sessions/quarantine.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"
#include "storage/check.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/support/child_process.h"

namespace larder::testing {

class RecordingSink final : public SessionSink {
 public:
  void Send(wire::Down message) override {
    MutexLock lock(mu_);
    sent_.push_back(std::move(message));
    arrived_.NotifyAll();
  }
  void Finish(absl::Status status) override {
    MutexLock lock(mu_);
    if (!finished_) finished_ = std::move(status);
  }
  // Returns the next message, waiting for one that a copy has yet to send.  Ends the test program
  // if none comes, because the callers read the message without a check.
  [[nodiscard]] wire::Down Next() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(mu_);
    while (sent_.empty()) LARDER_CHECK(arrived_.WaitUntil(mu_, until) || !sent_.empty());
    wire::Down first = std::move(sent_.front());
    sent_.erase(sent_.begin());
    return first;
  }
  [[nodiscard]] bool empty() const {
    MutexLock lock(mu_);
    return sent_.empty();
  }
  [[nodiscard]] std::optional<absl::Status> finished() const {
    MutexLock lock(mu_);
    return finished_;
  }

 private:
  mutable Mutex mu_;
  CondVar arrived_;
  std::vector<wire::Down> sent_ LARDER_GUARDED_BY(mu_);
  std::optional<absl::Status> finished_ LARDER_GUARDED_BY(mu_);
};

class SessionFixture {
 public:
  explicit SessionFixture(const Shares::Sizes& sizes = {.sessions_max = 16, .pool = MiB(32)})
      : shares_(Shares::LimitsOf(sizes)) {
    processes_->Start([this](ProcessId process) { quarantine_.Release(process); });
  }
  ~SessionFixture() { processes_->Stop(); }

  // A process in the table, attached as the sideband attaches one.
  [[nodiscard]] AttachedProcess Process(pid_t pid, bool writable) {
    auto attachment = processes_->Attach(*PeerProcess::OfPid(pid, 0), writable);
    LARDER_CHECK(attachment.ok());
    return *processes_->Find(attachment->token);
  }
  [[nodiscard]] std::shared_ptr<AttachedSession> Open(std::optional<AttachedProcess> process,
                                                      RecordingSink& sink) {
    auto session =
        sessions_.Add(deps_, process, process ? HolderOf(*process) : ShareHolder{}, "test", sink);
    LARDER_CHECK(session.ok());
    return *session;
  }

  [[nodiscard]] BlockStore& store() { return store_.store(); }
  [[nodiscard]] ManualClock& clock() { return store_.clock(); }
  [[nodiscard]] Quarantine& quarantine() { return quarantine_; }
  [[nodiscard]] StagingTable& staging() { return staging_; }
  [[nodiscard]] InstanceTable& instances() { return instances_; }
  [[nodiscard]] SessionTable& sessions() { return sessions_; }
  [[nodiscard]] Counters& counters() { return counters_; }
  [[nodiscard]] SessionDeps& deps() { return deps_; }
  [[nodiscard]] Shares& shares() { return shares_; }

 private:
  StoreFixture store_{MiB(32), MiB(2)};
  Shares shares_;
  Quarantine quarantine_;
  InstanceTable instances_{store_.store(), store_.clock(), {{Tier::kHost, 1e10}}};
  StagingTable staging_{StagingTable::Options{}};
  std::unique_ptr<ProcessTable> processes_ = *ProcessTable::Create({});
  ConnectionPeers peers_{shares_};
  WorkerPool workers_{2, 64, 1 << 20};
  Counters counters_;
  SessionTable sessions_;
  DamageChecks damage_checks_{store_.store(), counters_};
  PromiseTable promises_{store_.store(), store_.clock()};
  DeviceTable devices_{store_.store().index().events()};
  DirectiveQueue directives_{devices_, store_.clock(), UnixMilliseconds, counters_,
                             [this](SessionId id, VariantIndex variant, wire::Directive directive) {
                               const auto session = sessions_.Find(id);
                               return session ? session->Direct(variant, std::move(directive))
                                              : BlockStatus::kMissing;
                             }};
  SessionDeps deps_{.store = store_.store(),
                    .instances = instances_,
                    .quarantine = quarantine_,
                    .processes = *processes_,
                    .peers = peers_,
                    .staging = staging_,
                    .workers = workers_,
                    .counters = counters_,
                    .clock = store_.clock(),
                    .copy_kernel = MemcpyKernel(),
                    .boot_id = "boot",
                    .tenant = "default",
                    .check_one_in = 2,
                    .devices = devices_,
                    .directives = directives_,
                    .shares = shares_,
                    .damage_checks = damage_checks_,
                    .promises = promises_};
};

}  // namespace larder::testing
