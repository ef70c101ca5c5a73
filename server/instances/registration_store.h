// Which engines there were, on disk: so that Lookup answers for them after a restart, before they
// have attached again.
//
// A registration is a fact of the disk tier (DiskTier::PutFact) under "registration/ENGINE"; its
// value is the Register message of the wire.  What cannot be written is counted and written again
// after a while: engines say what they are once.  What finds the disk's part for registrations used
// up waits until another registration is forgotten.
// Ownership: made by Daemon; tier, instances and counters outlive it.  Thread-safety: all methods
// from any thread.  Save never waits: a thread of its own writes.
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
  // Hears of the first failure since one was written, on the store's thread.
  using Warn = std::function<void(const std::string&)>;

  RegistrationStore(DiskTier& tier, InstanceTable& instances, std::string tenant,
                    Counters& counters, Warn warn);
  ~RegistrationStore();  // what was saved is written, or tried once more
  RegistrationStore(const RegistrationStore&) = delete;
  RegistrationStore& operator=(const RegistrationStore&) = delete;

  // Registers all that are there; how many.  What cannot be read is passed over.
  size_t Load();
  // What `instances` knows of the engine when it is written; nothing: it is forgotten.
  void Save(const std::string& engine_id) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  // Or lets it wait until the disk is worth asking again.
  void Write(const std::string& engine_id) LARDER_EXCLUDES(mu_);
  void Refuse(const std::string& engine_id, const absl::Status& why);
  void TryRefused() LARDER_EXCLUDES(mu_);

  DiskTier& tier_;
  InstanceTable& instances_;
  const std::string tenant_;
  Counters& counters_;
  const Warn warn_;
  DiskBreaker breaker_;                   // of the thread
  bool failing_ = false;                  // likewise
  absl::btree_set<std::string> refused_;  // likewise: the disk has no part left for them
  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::btree_set<std::string> waiting_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
