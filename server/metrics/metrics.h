// Serves the table of metrics to Prometheus, over HTTP on a loopback address.
//
// It collects the numbers when a reader requests them.
// Ownership: the counters and everything that `gauges` reads outlive this object.  It owns its
// threads: a listener and two workers.  A slow reader can delay other readers, but not the daemon's
// other threads.
// Thread-safety: one thread calls Start and destroys it; the workers call `gauges`.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics/counters.h"
#include "server/metrics/gauges.h"

namespace larder {

class MetricsServer {
 public:
  // `address` is what ParseLoopbackAddress returned, and not empty.  Returns Unavailable, with what
  // to do about it, if the server cannot listen there.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, const Counters& counters, std::function<Gauges()> gauges);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  [[nodiscard]] int port() const;         // the port that the kernel chose, if `address` had port 0
  [[nodiscard]] std::string url() const;  // "http://127.0.0.1:9464/metrics"

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder
