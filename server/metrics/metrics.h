// Serves the table of metrics to Prometheus, over HTTP on a loopback address.
//
// Collects when somebody asks; between scrapes it costs nothing.
// Ownership: counters and what `gauges` looks at outlive this.  Owns its threads (a listener and
// two workers: a slow or hostile reader can delay other readers, for 5 s a request, never the
// daemon). Thread-safety: Start and destruction from one thread; `gauges` is called on the workers.
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
  // `address` as ParseLoopbackAddress gives it, not empty.  Unavailable: it cannot listen there,
  // and what to do.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, const Counters& counters, std::function<Gauges()> gauges);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  [[nodiscard]] int port() const;         // the one it got, when asked for 0
  [[nodiscard]] std::string url() const;  // "http://127.0.0.1:9464/metrics"

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder
