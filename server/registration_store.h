// Which engines there were, on disk: so that Lookup answers for them after a restart, before they
// have attached again.
//
// A registration is a fact of the disk tier (DiskTier::PutFact) under "registration/ENGINE"; its
// value is the Register message of the wire.
// Ownership: made by Daemon; tier outlives it.  Thread-safety: all methods from any thread.  Save
// and Forget never wait: a thread of its own writes, the last word for an engine wins.
// Limits: those of InstanceTable.
#pragma once

#include <string>
#include <thread>

#include "absl/container/btree_map.h"
#include "server/instance_table.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"

namespace larder {

class RegistrationStore {
 public:
  RegistrationStore(DiskTier& tier, std::string tenant);
  ~RegistrationStore();  // what was saved is written, within one operation of the disk each
  RegistrationStore(const RegistrationStore&) = delete;
  RegistrationStore& operator=(const RegistrationStore&) = delete;

  // Registers all that are there; how many.  What cannot be read is passed over.
  size_t Load(InstanceTable& instances);
  void Save(const std::string& engine_id, std::span<const ContentSpec> contents,
            std::span<const VariantSpec> variants) LARDER_EXCLUDES(mu_);
  void Forget(const std::string& engine_id) LARDER_EXCLUDES(mu_);

 private:
  void Queue(const std::string& engine_id, std::string value) LARDER_EXCLUDES(mu_);
  void Run() LARDER_EXCLUDES(mu_);

  DiskTier& tier_;
  const std::string tenant_;
  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  absl::btree_map<std::string, std::string> waiting_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
