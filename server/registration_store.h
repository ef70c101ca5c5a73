// Which engines there were, on disk: so that Lookup answers for them after a restart, before they
// have attached again.
//
// A registration is a fact of the disk tier (DiskTier::PutFact) under "registration/ENGINE"; its
// value is the Register message of the wire.
// Ownership: made by Daemon; tier and instances outlive it.  Thread-safety: all methods from any
// thread.  Save never waits: a thread of its own writes.
// Limits: those of InstanceTable.
#pragma once

#include <string>
#include <thread>

#include "absl/container/btree_set.h"
#include "server/instance_table.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"

namespace larder {

class RegistrationStore {
 public:
  RegistrationStore(DiskTier& tier, InstanceTable& instances, std::string tenant);
  ~RegistrationStore();  // what was saved is written, within one operation of the disk each
  RegistrationStore(const RegistrationStore&) = delete;
  RegistrationStore& operator=(const RegistrationStore&) = delete;

  // Registers all that are there; how many.  What cannot be read is passed over.
  size_t Load();
  // What `instances` knows of the engine when it is written; nothing: it is forgotten.
  void Save(const std::string& engine_id) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);

  DiskTier& tier_;
  InstanceTable& instances_;
  const std::string tenant_;
  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::btree_set<std::string> waiting_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
