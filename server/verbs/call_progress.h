// What the calls of several verbs share: how long they try a block again that is in use, and the
// progress of a call such as Move or Verify.  A CallProgress reports it to the caller, and learns
// from the answer whether the caller still wants the call.
//
// Ownership: a local variable of the thread that does the work; `report` outlives it.
// Thread-safety: none.
#pragma once

#include <chrono>
#include <functional>

#include "storage/clock.h"

namespace larder {

// At its end a call tries those blocks again that were in use, for at most this long: most blocks
// are held only for a short time.
inline constexpr Duration kHoldLimit = std::chrono::seconds(1);

template <class Progress>
class CallProgress {
 public:
  // Returns false if the call is to stop.
  using Report = std::function<bool(const Progress&)>;
  explicit CallProgress(const Report& report) : report_(report) {}

  Progress done;

  // Reports `done` if `now`, or if there was no report for kBetweenReports, unless a report has
  // already said that the call is to stop.  Returns false if the call is to stop.
  bool Tell(bool now) {
    const TimePoint time = SteadyNow();
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
