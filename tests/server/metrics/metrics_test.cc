// The table of metrics is complete, its page is current, and Prometheus can read the served text.
#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "server/metrics/metrics_table.h"
#include "server/processes/sideband_connection.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kCountersBytes = sizeof(Counters) - sizeof(Latencies);

std::string Get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t n = 0; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;) answer.append(bytes, n);
  close(fd);
  return answer;
}

TEST(MetricsTableTest, EveryCounterBelongsToExactlyOneMetric) {
  std::vector<Counter Counters::*> seen;
  std::vector<Histogram Latencies::*> histograms;
  std::set<std::string> names;
  for (const Metric& metric : Metrics()) {
    EXPECT_TRUE(names.insert(std::string(metric.name)).second) << metric.name;
    EXPECT_TRUE(metric.name.starts_with("larder_")) << metric.name;
    EXPECT_EQ(metric.name.ends_with("_total"), metric.type == MetricType::kCounter) << metric.name;
    EXPECT_FALSE(metric.help.empty() || metric.unit.empty()) << metric.name;
    EXPECT_TRUE(!metric.label_name.empty() || metric.samples.size() == 1) << metric.name;
    for (const MetricSample& sample : metric.samples) {
      EXPECT_EQ(sample.label.empty(), metric.label_name.empty()) << metric.name;
      const int sources = int{sample.counter != nullptr} + int{sample.reading != nullptr} +
                          int{sample.histogram != nullptr};
      EXPECT_EQ(sources, 1) << metric.name;
      EXPECT_EQ(sample.histogram != nullptr, metric.type == MetricType::kHistogram) << metric.name;
      for (const auto other : histograms) EXPECT_TRUE(other != sample.histogram) << sample.label;
      if (sample.histogram != nullptr) histograms.push_back(sample.histogram);
      if (sample.counter == nullptr) continue;
      for (const auto other : seen) EXPECT_TRUE(other != sample.counter) << sample.label;
      seen.push_back(sample.counter);
    }
  }
  EXPECT_EQ(seen.size() * sizeof(Counter), kCountersBytes) << "every counter belongs to a metric";
  EXPECT_EQ(histograms.size() * sizeof(Histogram), sizeof(Latencies))
      << "every histogram belongs to a metric";
}

TEST(MetricsTableTest, CountersByName) {
  Counters counters;
  ++counters.requests_lookup;
  counters.staged_bytes += 4096;
  std::map<std::string, uint64_t> all;
  MetricReadings readings;
  readings.daemon.store.evicted_demand = 7;
  VisitCounters(counters, readings,
                [&](const std::string& name, uint64_t value) { all[name] = value; });
  VisitReadings(readings, [&](const std::string& name, double) {
    EXPECT_FALSE(all.contains(name)) << name << " is a counter and a gauge";
    EXPECT_TRUE(name.find("_total") == std::string::npos || name.find("_seconds_total") < 64)
        << name;
  });
  EXPECT_EQ(all.at("larder_blocks_evicted_total{cause=\"demand\"}"), 7u);
  EXPECT_GT(all.size() * sizeof(Counter), kCountersBytes);
  EXPECT_EQ(all.at("larder_requests_total{kind=\"lookup\"}"), 1u);
  EXPECT_EQ(all.at("larder_moved_bytes_total{road=\"staged\"}"), 4096u);
  EXPECT_EQ(all.at("larder_calls_overloaded_total"), 0u);
}

TEST(MetricsTableTest, ThePageIsCurrent) {
  std::ifstream page(LARDER_SOURCE_DIR "/docs/metrics.md");
  std::stringstream text;
  text << page.rdbuf();
  EXPECT_EQ(text.str(), MetricsReference())
      << "write it again: larderd --print-metrics-reference > docs/metrics.md";
}

TEST(MetricsTableTest, ReadsTheMemoryOfThisProcess) {
  const ProcessMemory memory = ReadProcessMemory();
  EXPECT_GT(memory.anonymous, KiB(4));
  EXPECT_GT(memory.file, KiB(4));
}

TEST(MetricsServerTest, ServesTheCurrentValues) {
  Counters counters;
  SidebandCounters sideband;
  Gauges gauges;
  gauges.sessions.staged = 3;
  counters.latencies.lookup.Observe(std::chrono::microseconds(20));
  counters.latencies.lookup.Observe(std::chrono::seconds(4));
  gauges.store.pool_limit = GiB(8);
  gauges.store.evicted_demand = 11;
  gauges.store.evicted_disk = 12;
  gauges.store.evicted_unspilled = 13;
  gauges.sideband = &sideband;
  gauges.disk.emplace();
  gauges.disk->tier.shards = 8;
  gauges.disk->tier.shards_failed = 1;
  gauges.disk->tier.shards_set_aside = 2;
  gauges.disk->spiller.breaker_opened = 3;
  gauges.disk->promoter.breaker_opened = 4;
  gauges.disk->promoter.refused = 5;
  auto server = MetricsServer::Start("127.0.0.1:0", counters, [&] { return gauges; });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              HasSubstr("larder_sessions_total{result=\"attached\"} 0\n"));
  ++counters.sessions_attached;
  ++sideband.bad_packets;
  const std::string answer = Get((*server)->port(), "/metrics");
  EXPECT_THAT(answer, HasSubstr("# TYPE larder_sessions_total counter\n"));
  EXPECT_THAT(answer, HasSubstr("larder_sessions_total{result=\"attached\"} 1\n"));
  EXPECT_THAT(answer, HasSubstr("larder_sideband_refused_total{cause=\"bad_packet\"} 1\n"));
  EXPECT_THAT(answer, HasSubstr("larder_blocks_evicted_total{cause=\"demand\"} 11\n"));
  EXPECT_THAT(answer, HasSubstr("larder_blocks_evicted_unspilled_total 13\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_evicted_total 12\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_shards{state=\"all\"} 8\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_shards{state=\"failed\"} 1\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_shards_set_aside_total 2\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_left_alone_total{for=\"spill\"} 3\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_left_alone_total{for=\"promote\"} 4\n"));
  EXPECT_THAT(answer, HasSubstr("larder_disk_promote_total{result=\"refused\"} 5\n"));
  EXPECT_THAT(answer, HasSubstr("larder_sessions{write_mode=\"staged\"} 3\n"));
  for (const char* line :
       {"_bucket{kind=\"lookup\",le=\"1e-05\"} 0\n", "_bucket{kind=\"lookup\",le=\"3e-05\"} 1\n",
        "_bucket{kind=\"lookup\",le=\"3\"} 1\n", "_bucket{kind=\"lookup\",le=\"+Inf\"} 2\n",
        "_count{kind=\"lookup\"} 2\n", "_sum{kind=\"lookup\"} 4.00002\n"})
    EXPECT_THAT(answer, HasSubstr(std::string("larder_request_seconds") + line));
  EXPECT_THAT(answer, HasSubstr("larder_pool_bytes{part=\"limit\"} 8589934592\n"));
  EXPECT_THAT(Get((*server)->port(), "/etc/passwd"), Not(HasSubstr("root:")));
}

TEST(MetricsServerTest, ATakenPortSaysWhatToDo) {
  Counters counters;
  const auto gauges = [] { return Gauges{}; };
  const auto first = MetricsServer::Start("127.0.0.1:0", counters, gauges);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = "127.0.0.1:" + std::to_string((*first)->port());
  const auto second = MetricsServer::Start(address, counters, gauges);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen on " + address + " for metrics"));
}

}  // namespace
}  // namespace larder
