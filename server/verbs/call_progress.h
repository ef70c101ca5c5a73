// What a verb of many blocks has done so far, and the word of its caller, who may want no more.
//
// Ownership, thread-safety: a local of the thread that does the work; `report` outlives it.
#pragma once

#include <chrono>
#include <functional>

#include "storage/clock.h"

namespace larder {

template <class Progress>
class CallProgress {
 public:
  // False: stop.
  using Report = std::function<bool(const Progress&)>;
  explicit CallProgress(const Report& report) : report_(report) {}

  Progress done;

  // Some times a second; `now`: whenever it was last.  False: stop.
  bool Tell(bool now) {
    const TimePoint time = std::chrono::steady_clock::now();
    if (stopped_ || (!now && time - reported_ < kBetweenReports)) return !stopped_;
    reported_ = time;
    stopped_ = !report_(done);
    return !stopped_;
  }
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  static constexpr Duration kBetweenReports = std::chrono::milliseconds(200);

  const Report& report_;
  TimePoint reported_{};
  bool stopped_ = false;
};

}  // namespace larder
