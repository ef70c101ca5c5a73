// The registrations of engines on disk, so that after a restart Lookup answers for the engines
// before they have attached again.
//
// A registration is kept as a small value of the disk tier (DiskTier::PutFact) under
// "registration/ENGINE"; the value is a session message with one Register.  A failed write is
// usually retried later.  A registration for which the disk has no space left may wait until
// another registration is deleted.
// Ownership: Daemon owns it; tier, instances and counters outlive it.
// Thread-safety: all methods from any thread.  Save does not wait for the disk: this object's own
// thread writes.
// Locks: mu_ is a leaf; it is not held while the disk, the instance table or `warn` is called.
// Limits: those of InstanceTable.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/container/btree_set.h"
#include "server/instances/instance_table.h"
#include "server/metrics/counters.h"
#include "storage/disk/disk_breaker.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"

namespace larder {

class RegistrationStore {
 public:
  // Called on the store's thread when a write fails, but not for each of several failures.  May be
  // empty.
  using Warn = std::function<void(const std::string&)>;

  RegistrationStore(DiskTier& tier, InstanceTable& instances, std::string tenant,
                    Counters& counters, Warn warn);
  ~RegistrationStore();  // tries once to write what still waits
  RegistrationStore(const RegistrationStore&) = delete;
  RegistrationStore& operator=(const RegistrationStore&) = delete;

  // Registers the engines that are on disk in the InstanceTable, and returns how many.  Ignores
  // what it cannot read, and what InstanceTable refuses.
  size_t Load();
  // Has this object's thread write what the InstanceTable knows of the engine at the time of the
  // write, or delete the registration if the engine has no variants or is not known.
  void Save(const std::string& engine_id) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  // Writes or deletes one registration; if that fails, it may be retried later.
  void Write(const std::string& engine_id) LARDER_EXCLUDES(mu_);
  void Refuse(const std::string& engine_id, const absl::Status& why);
  void TryRefused() LARDER_EXCLUDES(mu_);

  DiskTier& tier_;
  InstanceTable& instances_;
  const std::string tenant_;
  Counters& counters_;
  const Warn warn_;
  DiskBreaker breaker_;                   // used by the thread only
  bool failing_ = false;                  // used by the thread only: suppresses warnings
  absl::btree_set<std::string> refused_;  // used by the thread only: engines without disk space
  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::btree_set<std::string> waiting_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
