// WatchEvents: the streams of all watchers, and the one thread that tells them.
//
// A watcher is told as fast as he reads; one who does not is cut off when what he should hear next
// is gone (EventFeed), and slows nobody.  If he does not read that either, his call is cancelled.
// Ownership: EventStreams by Daemon, outlives its streams, which gRPC's end of the call deletes.
// Thread-safety: all methods from any thread.
// Limits: each process's and uid's share of watchers (server/runtime/shares.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/support/server_callback.h>

#include "larder/v1/cache.pb.h"
#include "server/instances/event_feed.h"
#include "server/metrics/counters.h"
#include "server/runtime/shares.h"
#include "storage/mutex.h"

namespace larder {

class EventStreams {
 public:
  using Reactor = grpc::ServerWriteReactor<v1::WatchEventsReply>;

  EventStreams(BlockStore& store, DiskTier* disk, const DeviceTable& devices, std::string boot_id,
               Counters& counters);
  ~EventStreams();
  EventStreams(const EventStreams&) = delete;
  EventStreams& operator=(const EventStreams&) = delete;

  // A stream of what `query` asks for; or one that ends with why not.
  [[nodiscard]] Reactor* Watch(grpc::CallbackServerContext& context, const Shares::Account& account,
                               const wire::WatchQuery& query) LARDER_EXCLUDES(mu_);
  // Ends all, and refuses others.
  void EndAll() LARDER_EXCLUDES(mu_);
  // One that ends with `why`.
  [[nodiscard]] static Reactor* Refuse(const absl::Status& why);

 private:
  class Stream;
  void Run() LARDER_EXCLUDES(mu_);
  // Tells each who can take more; true: there is more to tell at once.
  [[nodiscard]] bool TellAll(std::vector<Stream*>* streams);
  void Wake() LARDER_EXCLUDES(mu_);

  BlockStore& store_;
  DiskTier* const disk_;
  const DeviceTable& devices_;
  const std::string boot_id_;
  Counters& counters_;

  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  bool woken_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<Stream*> new_ LARDER_GUARDED_BY(mu_);  // not yet the thread's
  std::thread thread_;
};

}  // namespace larder
