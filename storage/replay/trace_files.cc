#include "storage/replay/trace_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::replay {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMooncakeTokens = 512, kBailianTokens = 16, kBlockTokensMax = 1 << 20;
constexpr double kTimeLimit_s = 4294967296.0;  // an index counts seconds in 32 bits
constexpr int kNestingMax = 64;                // sessions within sessions
constexpr size_t kQuotedMax = 40;              // bytes of a file in an error

absl::Status Bad(const std::string& place, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
}
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", Printable({text.data(), std::min(text.size(), kQuotedMax)}), "'");
}

// A request as it is in a file.
struct FoundRequest {
  double at_s = 0;
  std::vector<uint64_t> ids;
};

// Makes a trace of what files have.
class TraceBuilder {
 public:
  // The beginning of all prompts whose ids mean the same.
  enum class Root : BlockId {};
  static constexpr Root kSharedRoot{0};

  // Returns the beginning of prompts whose ids mean something else than all others do.
  Root NewRoot() { return Root{next_++}; }
  // A request without blocks says nothing, and is left out.
  void Add(Root root, FoundRequest found) {
    if (found.ids.empty()) return;
    auto before = static_cast<BlockId>(root);
    for (uint64_t& id : found.ids) {
      const auto [at, is_new] = numbers_.try_emplace({before, id}, next_);
      if (is_new) ++next_;
      id = before = at->second;
    }
    trace_.requests.push_back({found.at_s, std::move(found.ids)});
  }
  // As Add, for files whose lines are in the order of time.
  absl::Status AddLine(const std::string& place, FoundRequest found) {
    const double last_s = trace_.requests.empty() ? 0 : trace_.requests.back().at_s;
    if (found.at_s < last_s)
      return Bad(place, absl::StrFormat("at %.3f s, which is before the request above it, at %.3f "
                                        "s; expected lines in the order of time (sort -n)",
                                        found.at_s, last_s));
    Add(kSharedRoot, std::move(found));
    return absl::OkStatus();
  }
  absl::Status SetBlockTokens(const std::string& place, uint32_t tokens) {
    if (trace_.block_tokens != 0 && trace_.block_tokens != tokens)
      return Bad(place, absl::StrCat("blocks of ", tokens, " tokens, but those above have ",
                                     trace_.block_tokens));
    trace_.block_tokens = tokens;
    return absl::OkStatus();
  }
  absl::StatusOr<RequestTrace> Finish(const std::string& name) && {
    if (trace_.requests.empty()) return Bad(name, "expected at least one request with blocks");
    // Sessions overlap, so their requests come in another order than their lines.
    std::stable_sort(
        trace_.requests.begin(), trace_.requests.end(),
        [](const TracedRequest& a, const TracedRequest& b) { return a.at_s < b.at_s; });
    return std::move(trace_);
  }

 private:
  RequestTrace trace_;
  absl::flat_hash_map<std::pair<BlockId, uint64_t>, BlockId> numbers_;  // by the block before, id
  BlockId next_ = 1;
};

absl::Status CheckTime(const std::string& place, double at_s) {
  if (at_s >= 0 && at_s < kTimeLimit_s) return absl::OkStatus();
  return Bad(place, absl::StrFormat("a time of %g s; expected seconds from 0 to 2^32", at_s));
}

// ---- plain lines

absl::StatusOr<double> TimeOf(const std::string& place, absl::string_view word) {
  double at_s = 0;
  if (!absl::SimpleAtod(word, &at_s))
    return Bad(place, absl::StrCat(Quoted(word), " is no time; expected seconds, then block ids"));
  LARDER_RETURN_IF_ERROR(CheckTime(place, at_s));
  return at_s;
}

absl::StatusOr<uint64_t> IdOf(const std::string& place, absl::string_view word) {
  uint64_t id = 0;
  const char* const end = word.data() + word.size();
  if (const auto [at, error] = std::from_chars(word.data(), end, id);
      error != std::errc() || at != end)
    return Bad(place, absl::StrCat(Quoted(word), " is no block id; expected a number below 2^64"));
  return id;
}

absl::Status ReadComment(const std::string& place, absl::string_view line, TraceBuilder* builder) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar("# \t\r"), absl::SkipEmpty());
  if (words.size() != 2 || words[0] != "block_tokens") return absl::OkStatus();
  uint32_t tokens = 0;
  if (!absl::SimpleAtoi(words[1], &tokens) || tokens == 0 || tokens > kBlockTokensMax)
    return Bad(place, absl::StrCat(Quoted(words[1]), "; expected 1 to ", kBlockTokensMax,
                                   " tokens after block_tokens"));
  return builder->SetBlockTokens(place, tokens);
}

absl::Status ReadPlain(const std::string& place, absl::string_view line, TraceBuilder* builder) {
  if (line[0] == '#') return ReadComment(place, line, builder);
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  FoundRequest found;
  LARDER_ASSIGN_OR_RETURN(found.at_s, TimeOf(place, words[0]));
  for (size_t i = 1; i < words.size(); ++i) {
    LARDER_ASSIGN_OR_RETURN(const uint64_t id, IdOf(place, words[i]));
    found.ids.push_back(id);
  }
  return builder->AddLine(place, std::move(found));
}

// ---- JSON

absl::StatusOr<double> NumberOf(const std::string& place, const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number())
    return Bad(place, absl::StrCat("expected a number \"", name, "\""));
  return found->get<double>();
}

absl::StatusOr<std::vector<uint64_t>> IdsOf(const std::string& place, const Json& object) {
  const auto found = object.find("hash_ids");
  if (found == object.end() || !found->is_array())
    return Bad(place, "expected a list \"hash_ids\"");
  std::vector<uint64_t> ids;
  for (const Json& id : *found) {
    if (!id.is_number_unsigned())
      return Bad(place, absl::StrCat("a ", id.is_number() ? id.dump() : id.type_name(),
                                     " in \"hash_ids\"; expected numbers below 2^64"));
    ids.push_back(id.get<uint64_t>());
  }
  return ids;
}

enum class Format { kUnknown, kPlain, kMooncake, kBailian, kSessions };

absl::Status ReadRequest(const std::string& place, const Json& object, Format format,
                         TraceBuilder* builder) {
  const bool mooncake = format == Format::kMooncake;
  LARDER_RETURN_IF_ERROR(
      builder->SetBlockTokens(place, mooncake ? kMooncakeTokens : kBailianTokens));
  FoundRequest found;
  LARDER_ASSIGN_OR_RETURN(const double at, NumberOf(place, object, "timestamp"));
  found.at_s = mooncake ? at / 1e3 : at;
  LARDER_RETURN_IF_ERROR(CheckTime(place, found.at_s));
  LARDER_ASSIGN_OR_RETURN(found.ids, IdsOf(place, object));
  return builder->AddLine(place, std::move(found));
}

// Adds the requests of a session, and of the sessions in it.
absl::Status ReadRequests(const std::string& place, const Json& session, double begin_s,
                          TraceBuilder::Root root, int depth, TraceBuilder* builder) {
  if (depth > kNestingMax)
    return Bad(place, absl::StrCat("expected sessions at most ", kNestingMax, " deep"));
  const auto requests = session.find("requests");
  if (requests == session.end() || !requests->is_array())
    return Bad(place, "expected a list \"requests\"");
  for (const Json& one : *requests) {
    if (one.contains("requests")) {
      LARDER_RETURN_IF_ERROR(ReadRequests(place, one, begin_s, root, depth + 1, builder));
      continue;
    }
    FoundRequest found;
    LARDER_ASSIGN_OR_RETURN(const double at_s, NumberOf(place, one, "t"));
    found.at_s = begin_s + at_s;
    LARDER_RETURN_IF_ERROR(CheckTime(place, found.at_s));
    LARDER_ASSIGN_OR_RETURN(found.ids, IdsOf(place, one));
    builder->Add(root, std::move(found));
  }
  return absl::OkStatus();
}

absl::Status ReadSession(const std::string& place, const Json& session, double begin_s,
                         TraceBuilder* builder) {
  LARDER_ASSIGN_OR_RETURN(const double tokens, NumberOf(place, session, "block_size"));
  if (!(tokens >= 1 && tokens <= kBlockTokensMax) || tokens != std::floor(tokens))
    return Bad(place, absl::StrCat("expected a \"block_size\" of 1 to ", kBlockTokensMax));
  LARDER_RETURN_IF_ERROR(builder->SetBlockTokens(place, static_cast<uint32_t>(tokens)));
  const auto scope = session.find("hash_id_scope");
  const bool global = scope != session.end() && *scope == "global";
  if (scope != session.end() && !global && *scope != "local")
    return Bad(place, "expected a \"hash_id_scope\" of \"local\" or \"global\"");
  return ReadRequests(place, session, begin_s,
                      global ? TraceBuilder::kSharedRoot : builder->NewRoot(), 0, builder);
}

absl::StatusOr<Json> ObjectOf(const std::string& place, std::string_view text) {
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Bad(place, "expected one JSON object");
  return object;
}

// ---- lines and files

Format FormatOf(const Json& object) {
  if (object.contains("requests")) return Format::kSessions;
  return object.contains("chat_id") ? Format::kBailian : Format::kMooncake;
}

// Reads lines one after another; the first tells the format of all.
class LineReader {
 public:
  LineReader(const ReadOptions& options, TraceBuilder* builder)
      : options_(options), builder_(builder) {}

  absl::Status Read(const std::string& place, absl::string_view line) {
    if (format_ == Format::kUnknown && line[0] != '{') format_ = Format::kPlain;
    if (format_ == Format::kPlain) return ReadPlain(place, line, builder_);
    LARDER_ASSIGN_OR_RETURN(const Json object, ObjectOf(place, {line.data(), line.size()}));
    if (format_ == Format::kUnknown) format_ = FormatOf(object);
    if (format_ != FormatOf(object)) return Bad(place, "expected the format of the first line");
    return format_ == Format::kSessions ? ReadNextSession(place, object)
                                        : ReadRequest(place, object, format_, builder_);
  }
  absl::Status ReadNextSession(const std::string& place, const Json& session) {
    const double begin_s = static_cast<double>(sessions_++) * options_.session_every_s;
    return ReadSession(place, session, begin_s, builder_);
  }

 private:
  const ReadOptions options_;
  TraceBuilder* const builder_;
  Format format_ = Format::kUnknown;
  size_t sessions_ = 0;
};

absl::StatusOr<std::string> ContentsOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return absl::NotFoundError(absl::StrCat(path, " is no file"));
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char part[1 << 16];
  while (file.read(part, sizeof part), file.gcount() > 0)
    text.append(part, static_cast<size_t>(file.gcount()));
  if (!file.eof()) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return text;
}

// Returns the files NAME.json of a folder, in the order of their names.
absl::StatusOr<std::vector<std::string>> SessionsIn(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".json") names.push_back(at->path().string());
  }
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot list ", path, ": ", error.message()));
  if (names.empty()) return Bad(path, "expected files *.json in this folder, each of one session");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<RequestTrace> ParseTrace(std::string_view lines, const std::string& name,
                                        const ReadOptions& options) {
  TraceBuilder builder;
  LineReader reader(options, &builder);
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(AbslView(lines), '\n')) {
    ++number;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (!text.empty()) LARDER_RETURN_IF_ERROR(reader.Read(absl::StrCat(name, ":", number), text));
  }
  return std::move(builder).Finish(name);
}

absl::StatusOr<RequestTrace> ReadTrace(const std::string& path, const ReadOptions& options) {
  std::error_code error;
  std::vector<std::string> sessions;
  if (std::filesystem::is_directory(path, error)) {
    LARDER_ASSIGN_OR_RETURN(sessions, SessionsIn(path));
  } else if (std::filesystem::path(path).extension() == ".json") {
    sessions = {path};
  } else {
    LARDER_ASSIGN_OR_RETURN(const std::string lines, ContentsOf(path));
    return ParseTrace(lines, path, options);
  }
  TraceBuilder builder;
  LineReader reader(options, &builder);
  for (const std::string& name : sessions) {
    LARDER_ASSIGN_OR_RETURN(const std::string text, ContentsOf(name));
    LARDER_ASSIGN_OR_RETURN(const Json session, ObjectOf(name, text));
    LARDER_RETURN_IF_ERROR(reader.ReadNextSession(name, session));
  }
  return std::move(builder).Finish(path);
}

}  // namespace larder::replay
