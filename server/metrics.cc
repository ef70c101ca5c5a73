#include "server/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/metrics_table.h"

namespace larder {
namespace {

class TableCollectable final : public prometheus::Collectable {
 public:
  TableCollectable(const Counters& counters, std::function<Daemon::Gauges()> gauges)
      : counters_(counters), gauges_(std::move(gauges)) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    const MetricReadings readings{.daemon = gauges_(), .memory = ReadProcessMemory()};
    std::vector<prometheus::MetricFamily> families;
    for (const Metric& metric : Metrics()) families.push_back(Family(metric, readings));
    return families;
  }

 private:
  [[nodiscard]] prometheus::MetricFamily Family(const Metric& metric,
                                                const MetricReadings& readings) const {
    const bool counts = metric.type == MetricType::kCounter;
    prometheus::MetricFamily family;
    family.name = std::string(metric.name);
    family.help = std::string(metric.help);
    family.type = counts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    for (const MetricSample& sample : metric.samples) {
      prometheus::ClientMetric& one = family.metric.emplace_back();
      if (!metric.label_name.empty()) {
        one.label.push_back({std::string(metric.label_name), std::string(sample.label)});
      }
      (counts ? one.counter.value : one.gauge.value) = sample.Read(counters_, readings);
    }
    return family;
  }

  const Counters& counters_;
  const std::function<Daemon::Gauges()> gauges_;
};

}  // namespace

struct MetricsServer::Impl {
  std::string host;
  std::shared_ptr<TableCollectable> collectable;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, const Counters& counters, std::function<Daemon::Gauges()> gauges) {
  auto impl = std::make_unique<Impl>();
  impl->host = address.substr(0, address.rfind(':'));
  impl->collectable = std::make_shared<TableCollectable>(counters, std::move(gauges));
  // The library's HTTP server says by an exception alone that it cannot listen.
  try {
    impl->exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"});
  } catch (const std::exception&) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     " for metrics: another program does, most likely; choose another port with "
                     "--metrics-listen HOST:PORT, or turn metrics off with --metrics-listen \"\""));
  }
  impl->exposer->RegisterCollectable(impl->collectable);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

int MetricsServer::port() const {
  const std::vector<int> ports = impl_->exposer->GetListeningPorts();
  return ports.empty() ? 0 : ports.front();
}

std::string MetricsServer::url() const {
  return absl::StrCat("http://", impl_->host, ":", port(), "/metrics");
}

}  // namespace larder
