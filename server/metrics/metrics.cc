#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/metrics_table.h"

namespace larder {
namespace {

class TableCollectable final : public prometheus::Collectable {
 public:
  TableCollectable(const Counters& counters, std::function<Gauges()> gauges)
      : counters_(counters), gauges_(std::move(gauges)) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    const MetricReadings readings = ReadingsOf(gauges_());
    std::vector<prometheus::MetricFamily> families;
    for (const Metric& metric : Metrics()) families.push_back(Family(metric, readings));
    return families;
  }

 private:
  [[nodiscard]] prometheus::MetricFamily Family(const Metric& metric,
                                                const MetricReadings& readings) const {
    prometheus::MetricFamily family;
    family.name = std::string(metric.name);
    family.help = std::string(metric.help);
    family.type = TypeOf(metric.type);
    for (const MetricSample& sample : metric.samples) {
      prometheus::ClientMetric& one = family.metric.emplace_back();
      if (!metric.label_name.empty()) {
        one.label.push_back({std::string(metric.label_name), std::string(sample.label)});
      }
      if (sample.histogram != nullptr) {
        Fill(counters_.latencies.*sample.histogram, &one.histogram);
      } else {
        const bool counts = metric.type == MetricType::kCounter;
        (counts ? one.counter.value : one.gauge.value) = sample.Read(counters_, readings);
      }
    }
    return family;
  }
  static prometheus::MetricType TypeOf(MetricType type) {
    switch (type) {
      case MetricType::kCounter:
        return prometheus::MetricType::Counter;
      case MetricType::kGauge:
        return prometheus::MetricType::Gauge;
      case MetricType::kHistogram:
        break;
    }
    return prometheus::MetricType::Histogram;
  }
  static void Fill(const Histogram& from, prometheus::ClientMetric::Histogram* to) {
    for (size_t i = 0; i <= Histogram::kBounds.size(); ++i) {
      const bool last = i == Histogram::kBounds.size();
      to->sample_count += from.bucket(i);
      to->bucket.push_back({to->sample_count, last ? std::numeric_limits<double>::infinity()
                                                   : Histogram::kBounds[i]});
    }
    to->sample_sum = from.sum_s();
  }

  const Counters& counters_;
  const std::function<Gauges()> gauges_;
};

// Connects and closes the connection at once.  Whether the connection succeeds does not matter.
void Knock(const std::string& host, int port) {
  const bool v6 = host.starts_with('[');
  sockaddr_in to4{};
  to4.sin_family = AF_INET;
  to4.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in6 to6{};
  to6.sin6_family = AF_INET6;
  to6.sin6_port = to4.sin_port;
  to6.sin6_addr = in6addr_loopback;
  if (!v6 && inet_pton(AF_INET, host.c_str(), &to4.sin_addr) != 1) return;
  const int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const auto* const to =
      v6 ? reinterpret_cast<const sockaddr*>(&to6) : reinterpret_cast<const sockaddr*>(&to4);
  (void)connect(fd, to, v6 ? socklen_t{sizeof to6} : socklen_t{sizeof to4});
  close(fd);
}

}  // namespace

struct MetricsServer::Impl {
  std::string host;  // as it is written in a URL
  int port = 0;
  std::shared_ptr<TableCollectable> collectable;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// The library's listener checks only every 2 s, or when a client connects, whether it should stop.
// So the destructor connects again and again, and the daemon ends without this delay.
MetricsServer::~MetricsServer() {
  auto ended = std::async(std::launch::async, [this] { impl_->exposer.reset(); });
  do {
    Knock(impl_->host, impl_->port);
  } while (ended.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready);
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, const Counters& counters, std::function<Gauges()> gauges) {
  auto impl = std::make_unique<Impl>();
  impl->host = address.substr(0, address.rfind(':'));
  impl->collectable = std::make_shared<TableCollectable>(counters, std::move(gauges));
  // The library's HTTP server reports only by an exception that it cannot listen.
  try {
    impl->exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"});
  } catch (const std::exception&) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     " for metrics, most likely because another program listens there; choose "
                     "another port with --metrics-listen HOST:PORT, or turn metrics off with "
                     "--metrics-listen \"\""));
  }
  impl->exposer->RegisterCollectable(impl->collectable);
  const std::vector<int> ports = impl->exposer->GetListeningPorts();
  impl->port = ports.empty() ? 0 : ports.front();
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

int MetricsServer::port() const { return impl_->port; }

std::string MetricsServer::url() const {
  return absl::StrCat("http://", impl_->host, ":", port(), "/metrics");
}

}  // namespace larder
