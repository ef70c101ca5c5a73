// The table of metrics: each declared once, with its type, unit, help and label.
//
// /metrics, Admin.Stats and docs/metrics.md are made from it.  Knows no Prometheus library.
// Names follow its rules: larder_ in front, the base unit behind, _total behind counters.
// Thread-safety: constant data; reading is as safe as what is read.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "server/metrics/counters.h"
#include "server/metrics/gauges.h"

namespace larder {

// Memory of this process by what backs it; a pool of 4 KiB pages is `shmem`.
struct ProcessMemory {
  ByteCount anonymous;
  ByteCount file;
  ByteCount shmem;
};
// Zeros when /proc does not say.
[[nodiscard]] ProcessMemory ReadProcessMemory();
// Processor time of all its threads so far.
[[nodiscard]] double ReadProcessorSeconds();

// What gauges are read from, taken once for each scrape.
struct MetricReadings {
  Gauges daemon;
  ProcessMemory memory;
  double processor_s = 0;
};

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// One number of a metric, or its times; exactly one of the sources is set.
struct MetricSample {
  std::string_view label;  // the value of the metric's label; empty when it has none
  Counter Counters::*counter = nullptr;
  double (*reading)(const MetricReadings&) = nullptr;
  Histogram Latencies::*histogram = nullptr;

  // REQUIRES: not a histogram.
  [[nodiscard]] double Read(const Counters& counters, const MetricReadings& readings) const;
};

struct Metric {
  std::string_view name;
  MetricType type = MetricType::kCounter;
  std::string_view unit;
  std::string_view label_name;  // empty: no label, one sample
  std::span<const MetricSample> samples;
  std::string_view help;
};

[[nodiscard]] std::span<const Metric> Metrics();

// Calls visit("larder_requests_total{kind=\"lookup\"}", 7) for every counter but those of seconds.
void VisitCounters(const Counters& counters, const MetricReadings& readings,
                   const std::function<void(const std::string&, uint64_t)>& visit);

// The same of gauges, and of counters of seconds.
void VisitReadings(const MetricReadings& readings,
                   const std::function<void(const std::string&, double)>& visit);

// docs/metrics.md.
[[nodiscard]] std::string MetricsReference();

}  // namespace larder
