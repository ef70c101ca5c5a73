// The daemon's log: one event per line on standard error, as key=value text or JSON.
//
//   log.Info("session_attached", {{"session", id.value}, {"engine", engine_id}});
//   2026-01-31T12:00:00.123Z info session_attached session=7 engine=llama-0
//
// An event is a name in snake_case that never changes, so that alerts can rely on it; everything
// that varies is a field.  Values may come from clients: whatever bytes a value contains, the event
// stays on one line, and a long value is cut.  An event that clients can cause any number of times,
// or that recurs until an operator repairs its cause, should go through a LogRepeats or a
// LogLimiter, so that it cannot fill the log.
//
// A line is not guaranteed to be written: a full disk or a closed pipe loses lines, but the work
// that logs them goes on.
// Ownership: server/main.cc creates the log.  Other parts of the daemon report through functions
// that it passes to them.
// Thread-safety: all methods of Log, LogLimiter and LogRepeats may be called from any thread.
// Limits: the first kLogValueBytesMax bytes of a text are logged.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "storage/clock.h"
#include "storage/mutex.h"

namespace spdlog {
class logger;
}

namespace larder {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kText, kJson };

inline constexpr size_t kLogValueBytesMax = 512;

// A key and a value.  The texts that they refer to must stay alive until the line is written.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  template <std::signed_integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<int64_t>(v)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) LogField(std::string_view k, T v)
      : key(k), value(static_cast<uint64_t>(v)) {}

  std::string_view key;
  std::variant<std::string_view, bool, double, int64_t, uint64_t> value;
};
using LogFields = std::initializer_list<LogField>;

class Log {
 public:
  Log(LogLevel level, LogFormat format);                     // to standard error
  Log(LogLevel level, LogFormat format, std::ostream& out);  // REQUIRES: `out` outlives this
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  [[nodiscard]] bool Enabled(LogLevel level) const { return level >= level_; }
  void Write(LogLevel level, std::string_view event, LogFields fields = {}) const;

  void Debug(std::string_view event, LogFields fields = {}) const {
    Write(LogLevel::kDebug, event, fields);
  }
  void Info(std::string_view event, LogFields fields = {}) const {
    Write(LogLevel::kInfo, event, fields);
  }
  void Warning(std::string_view event, LogFields fields = {}) const {
    Write(LogLevel::kWarning, event, fields);
  }
  void Error(std::string_view event, LogFields fields = {}) const {
    Write(LogLevel::kError, event, fields);
  }

 private:
  Log(LogLevel level, LogFormat format, std::unique_ptr<spdlog::logger> logger);

  const LogLevel level_;
  const LogFormat format_;
  const std::unique_ptr<spdlog::logger> logger_;
};

// Lets at most `lines_per_s` lines of one kind into the log in each window of one second, and
// reports how many it suppressed.  A window begins with the first line after the end of the window
// before.  Each kind of line needs a limiter of its own.
//
//   if (const auto pass = limiter.Pass()) {
//     log.Warning("frame_refused", {{"why", why}, {"suppressed", pass->suppressed}});
//   }
//
// The lines that were suppressed at the very end of a flood are reported with the next line of this
// kind, or never.
class LogLimiter {
 public:
  struct Line {
    uint64_t suppressed = 0;  // lines of this kind since the last one that passed
  };
  // REQUIRES: lines_per_s > 0; the clock outlives this.
  LogLimiter(const Clock& clock, uint32_t lines_per_s) : clock_(clock), lines_per_s_(lines_per_s) {}

  [[nodiscard]] std::optional<Line> Pass() LARDER_EXCLUDES(mu_);

 private:
  const Clock& clock_;
  const uint32_t lines_per_s_;
  Mutex mu_;
  TimePoint window_ LARDER_GUARDED_BY(mu_){};   // when the window of one second began
  uint32_t passed_ LARDER_GUARDED_BY(mu_) = 0;  // lines that passed in the window
  uint64_t suppressed_ LARDER_GUARDED_BY(mu_) = 0;
};

// Lets a text into the log only if the same text was not logged within the last `quiet`, as far as
// it remembers (kTextsMax).  It is for a condition that the daemon finds again at every retry, such
// as a part of the disk that stays unavailable.
class LogRepeats {
 public:
  // How many texts are remembered.  One more text replaces the text that was logged longest ago; a
  // text that was replaced passes at once when it recurs.
  static constexpr size_t kTextsMax = 64;
  // REQUIRES: the clock outlives this.
  LogRepeats(const Clock& clock, Duration quiet) : clock_(clock), quiet_(quiet) {}

  [[nodiscard]] std::optional<LogLimiter::Line> Pass(const std::string& text) LARDER_EXCLUDES(mu_);

 private:
  struct Said {
    TimePoint when;
    uint64_t suppressed = 0;
  };
  const Clock& clock_;
  const Duration quiet_;
  Mutex mu_;
  std::map<std::string, Said> said_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
