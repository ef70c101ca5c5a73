// The table of metrics: each is declared once, with its type, unit, help and label.
//
// /metrics, the metrics in Admin.Stats and docs/metrics.md are generated from the table.  The table
// does not depend on a Prometheus library.  Names follow the rules of Prometheus: the prefix
// larder_, base units (seconds, bytes), and the suffix _total for counters.
// Thread-safety: the table is constant; reading a metric is as thread-safe as what it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "server/metrics/counters.h"
#include "server/metrics/gauges.h"

namespace larder {

// Resident memory of this process by what backs it; a pool of 4 KiB pages counts as `shmem`.
struct ProcessMemory {
  ByteCount anonymous;
  ByteCount file;
  ByteCount shmem;
};
// Returns zeros if /proc does not report it.
[[nodiscard]] ProcessMemory ReadProcessMemory();

// The sources of the numbers that are not in Counters.
struct MetricReadings {
  Gauges daemon;
  ProcessMemory memory;
  double processor_s = 0;  // the processor time of all threads of this process so far
};
// Adds the current readings of this process to `daemon`.
[[nodiscard]] MetricReadings ReadingsOf(Gauges daemon);

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// One number of a metric, or one histogram.  Exactly one of `counter`, `reading` and `histogram` is
// set.
struct MetricSample {
  std::string_view label;  // the value of the metric's label; empty if it has none
  Counter Counters::*counter = nullptr;
  double (*reading)(const MetricReadings&) = nullptr;
  Histogram Latencies::*histogram = nullptr;

  // REQUIRES: this sample is not a histogram.
  [[nodiscard]] double Read(const Counters& counters, const MetricReadings& readings) const;
};

struct Metric {
  std::string_view name;
  MetricType type = MetricType::kCounter;
  std::string_view unit;
  std::string_view label_name;  // empty if the metric has no label and only one sample
  std::span<const MetricSample> samples;
  std::string_view help;
};

[[nodiscard]] std::span<const Metric> Metrics();

// Calls, for example, visit("larder_requests_total{kind=\"lookup\"}", 7) for every sample of every
// counter, except counters of seconds.
void VisitCounters(const Counters& counters, const MetricReadings& readings,
                   const std::function<void(const std::string&, uint64_t)>& visit);

// Calls, for example, visit("larder_blocks", 7) for every sample of every gauge and of every
// counter of seconds, but not for histograms.
void VisitReadings(const MetricReadings& readings,
                   const std::function<void(const std::string&, double)>& visit);

// Returns the text of docs/metrics.md.
[[nodiscard]] std::string MetricsReference();

}  // namespace larder
