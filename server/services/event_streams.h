// WatchEvents: the streams of all watchers, and the one thread that sends events to them.
//
// A watcher that does not read slows down no other watcher: it is cut off when its next event is no
// longer kept (EventFeed), and its call is cancelled if it does not read that error either.
// Ownership: Daemon owns EventStreams, which outlives its streams.  A stream deletes itself when
// gRPC is done with the call.
// Thread-safety: all methods from any thread.
// Locks: mu_ is held while streams are finished at the end, and not while events are sent.
// Limits: the share of watchers of each process and uid (server/runtime/shares.h).
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

  // Returns a stream of the events that `query` selects, or one that ends at once with an error.
  [[nodiscard]] Reactor* Watch(grpc::CallbackServerContext& context, const Shares::Account& account,
                               const wire::WatchQuery& query) LARDER_EXCLUDES(mu_);
  // Makes the thread end all streams soon.  A stream that begins later ends at once.
  void EndAll() LARDER_EXCLUDES(mu_);
  // Returns a stream that ends with `why`.
  [[nodiscard]] static Reactor* Refuse(const absl::Status& why);

 private:
  class Stream;
  void Run() LARDER_EXCLUDES(mu_);
  // Sends to each watcher that can take more, and removes the streams that ended.  Returns true if
  // there may be more to send at once.
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
  std::vector<Stream*> new_ LARDER_GUARDED_BY(mu_);  // streams that the thread has not taken yet
  std::thread thread_;
};

}  // namespace larder
