#include "server/runtime/logging.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace larder {
namespace {

constexpr spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

std::unique_ptr<spdlog::logger> MakeLogger(spdlog::sink_ptr sink, LogLevel level,
                                           LogFormat format) {
  auto logger = std::make_unique<spdlog::logger>("larderd", std::move(sink));
  logger->set_level(SpdlogLevel(level));
  logger->flush_on(spdlog::level::debug);
  // Without this handler spdlog prints lines of its own about failed writes.
  logger->set_error_handler([](const std::string&) {});
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      format == LogFormat::kText ? "%Y-%m-%dT%H:%M:%S.%eZ %l %v"
                                 : R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})",
      spdlog::pattern_time_type::utc));
  return logger;
}

// Returns true for bytes that both formats can carry unescaped.  Bytes beyond ASCII are escaped,
// because a value is not trusted to be UTF-8.
bool IsPlain(unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

void AppendQuoted(std::string_view text, LogFormat format, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsPlain(byte)) {
      out->push_back(c);
    } else if (c == '"' || c == '\\') {
      out->append({'\\', c});
    } else {
      out->append(format == LogFormat::kJson ? "\\u00" : "\\x");
      out->append({kHex[byte >> 4], kHex[byte & 15]});
    }
  }
  out->push_back('"');
}

void AppendText(std::string_view text, LogFormat format, std::string* out) {
  const bool cut = text.size() > kLogValueBytesMax;
  const std::string_view shown = text.substr(0, kLogValueBytesMax);
  bool bare = format == LogFormat::kText && !shown.empty() && !cut;
  for (const char c : shown)
    bare = bare && IsPlain(static_cast<unsigned char>(c)) && c != ' ' && c != '=';
  if (bare) {
    out->append(shown);
  } else if (cut) {
    AppendQuoted(std::string(shown) + "...", format, out);
  } else {
    AppendQuoted(shown, format, out);
  }
}

template <class Number>
void AppendNumber(Number number, std::string* out) {
  char digits[32];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

struct ValueAppender {
  LogFormat format;
  std::string* out;
  void operator()(std::string_view v) const { AppendText(v, format, out); }
  void operator()(bool v) const { out->append(v ? "true" : "false"); }
  void operator()(int64_t v) const { AppendNumber(v, out); }
  void operator()(uint64_t v) const { AppendNumber(v, out); }
  void operator()(double v) const {
    if (std::isfinite(v)) return AppendNumber(v, out);
    out->append(format == LogFormat::kJson ? "null" : "nan");  // JSON has no infinities
  }
};

std::string Line(LogFormat format, std::string_view event, LogFields fields) {
  std::string line;
  line.reserve(128);
  if (format == LogFormat::kJson) line.append("\"event\":");
  AppendText(event, format, &line);
  for (const LogField& field : fields) {
    line.push_back(format == LogFormat::kJson ? ',' : ' ');
    AppendText(field.key, format, &line);
    line.push_back(format == LogFormat::kJson ? ':' : '=');
    std::visit(ValueAppender{format, &line}, field.value);
  }
  return line;
}

}  // namespace

Log::Log(LogLevel level, LogFormat format, std::unique_ptr<spdlog::logger> logger)
    : level_(level), format_(format), logger_(std::move(logger)) {}

Log::Log(LogLevel level, LogFormat format)
    : Log(level, format,
          MakeLogger(std::make_shared<spdlog::sinks::stderr_sink_mt>(), level, format)) {}

Log::Log(LogLevel level, LogFormat format, std::ostream& out)
    : Log(level, format,
          MakeLogger(std::make_shared<spdlog::sinks::ostream_sink_mt>(out), level, format)) {}

Log::~Log() = default;

void Log::Write(LogLevel level, std::string_view event, LogFields fields) const {
  if (!Enabled(level)) return;
  const std::string line = Line(format_, event, fields);
  logger_->log(SpdlogLevel(level), spdlog::string_view_t(line.data(), line.size()));
}

std::optional<LogLimiter::Line> LogLimiter::Pass() {
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  if (now - window_ >= std::chrono::seconds(1)) {
    window_ = now;
    passed_ = 0;
  }
  if (passed_ == lines_per_s_) {
    ++suppressed_;
    return std::nullopt;
  }
  ++passed_;
  return Line{.suppressed = std::exchange(suppressed_, 0)};
}

std::optional<LogLimiter::Line> LogRepeats::Pass(const std::string& text) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  const auto found = said_.find(text);
  if (found != said_.end()) {
    if (now - found->second.when < quiet_) {
      ++found->second.suppressed;
      return std::nullopt;
    }
    found->second.when = now;
    return LogLimiter::Line{.suppressed = std::exchange(found->second.suppressed, 0)};
  }
  if (said_.size() == kTextsMax) {
    said_.erase(
        std::ranges::min_element(said_, {}, [](const auto& one) { return one.second.when; }));
  }
  said_.emplace(text, Said{.when = now});
  return LogLimiter::Line{};
}

}  // namespace larder
