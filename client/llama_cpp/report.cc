#include "client/llama_cpp/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;

// Bytes that are not UTF-8 (half a character at the end of an answer) become the replacement
// character.
std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double P99(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() * 99 + 99) / 100 - 1];
}

Json ToJson(const Restorer::Restored& what, const PromptRestored& restored) {
  return {{"met_at_token", restored.met_at_token()}, {"computed_tokens", what.computed_tokens},
          {"loaded_tokens", what.loaded_tokens},     {"restore_s", what.restore_s},
          {"engine_busy_s", what.compute_s},         {"link_busy_s", what.load_s}};
}

Json ToJson(const RunResult& result) {
  Json json = {{"prompt_tokens", result.prompt_tokens},
               {"restorable_tokens", PromptCache::RestorableTokens(result.prompt_tokens)},
               {"hit_tokens", result.hit_tokens},
               {"restored_bytes", result.restored_bytes.value()},
               {"stored_blocks", result.stored_blocks},
               {"stored_bytes", result.stored_bytes.value()},
               {"refused_blocks", result.refused_blocks},
               {"ttft_s", result.ttft_s},
               {"load_s", result.load_s},
               {"compute_s", result.compute_s},
               {"store_s", result.store_s},
               {"durable", result.durable},
               {"answer", result.answer},
               {"text", result.text}};
  if (result.link_bytes_per_s > 0) json["emulated_link_bytes_per_s"] = result.link_bytes_per_s;
  if (result.restored) json["restore"] = ToJson(result.restored->what, *result.restored);
  if (!result.decode_gaps_s.empty()) json["decode_gap_p99_s"] = P99(result.decode_gaps_s);
  if (!result.picture.empty()) json["picture"] = result.picture;
  if (!result.cache_status.ok()) json["larder"] = result.cache_status.ToString();
  return json;
}

struct Summary {
  double median = 0;
  double worst = 0;
};

Summary Speedups(std::span<const LengthResult> results) {
  std::vector<double> ratios;
  for (const LengthResult& result : results) ratios.push_back(result.speedup());
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const size_t middle = ratios.size() / 2;
  const double median =
      ratios.size() % 2 == 1 ? ratios[middle] : (ratios[middle - 1] + ratios[middle]) / 2;
  return {.median = median, .worst = ratios.front()};
}

std::string RestoreAsText(const PromptRestored& restored) {
  const Restorer::Restored& what = restored.what;
  const double whole_s = std::max(what.restore_s, 1e-9);
  return absl::StrFormat(
      "restore     %.3f s; met at token %u: %u tokens computed, %u loaded\n"
      "busy        engine %.0f %%, loading %.0f %% of that time\n",
      what.restore_s, restored.met_at_token(), what.computed_tokens, what.loaded_tokens,
      100 * what.compute_s / whole_s, 100 * what.load_s / whole_s);
}

const char* YesNo(bool yes) { return yes ? "yes" : "NO"; }

}  // namespace

std::string RunAsText(const RunResult& result) {
  std::string out = absl::StrFormat(
      "prompt      %u tokens, %u from Larder (%u bytes)\n"
      "first token %.3f s (restore %.3f s, compute the rest %.3f s)\n"
      "stored      %u blocks, %u bytes, %.3f s\n",
      result.prompt_tokens, result.hit_tokens, result.restored_bytes.value(), result.ttft_s,
      result.load_s, result.compute_s, result.stored_blocks, result.stored_bytes.value(),
      result.store_s);
  if (result.link_bytes_per_s > 0)
    absl::StrAppendFormat(&out, "link        emulated, %.3g MB/s\n", result.link_bytes_per_s / 1e6);
  if (result.restored) absl::StrAppend(&out, RestoreAsText(*result.restored));
  if (!result.decode_gaps_s.empty())
    absl::StrAppendFormat(&out,
                          "decoding    %u steps meanwhile, p99 %.0f ms from one to the next\n",
                          result.decode_gaps_s.size(), 1e3 * P99(result.decode_gaps_s));
  if (!result.picture.empty()) absl::StrAppend(&out, "picture     ", result.picture, "\n");
  if (result.refused_blocks > 0)
    absl::StrAppend(&out, "refused     ", result.refused_blocks, " blocks\n");
  if (!result.cache_status.ok())
    absl::StrAppend(&out, "larder      ", result.cache_status.ToString(), "\n");
  absl::StrAppend(&out, "answer      ", result.text, "\n");
  return out;
}

std::string RunAsJson(const RunResult& result) { return Line(ToJson(result)) + "\n"; }

std::string BenchAsText(std::span<const LengthResult> results) {
  std::string out =
      "tokens  cold_s  restored_s  speedup  hit_tokens  restored_bytes  store_s  same_tokens  "
      "same_logits\n";
  for (const LengthResult& r : results) {
    absl::StrAppendFormat(&out, "%6u  %6.3f  %10.4f  %6.1fx  %10u  %14u  %7.3f  %11s  %11s\n",
                          r.cold.prompt_tokens, r.cold.ttft_s, r.restored.ttft_s, r.speedup(),
                          r.restored.hit_tokens, r.restored.restored_bytes.value(), r.cold.store_s,
                          YesNo(r.same_answer()), YesNo(r.same_logits()));
  }
  const Summary summary = Speedups(results);
  absl::StrAppendFormat(&out, "median %.1fx, worst %.1fx\n", summary.median, summary.worst);
  return out;
}

std::string BenchAsJson(std::span<const LengthResult> results) {
  Json lengths = Json::array();
  for (const LengthResult& r : results) {
    lengths.push_back({{"prompt_tokens", r.cold.prompt_tokens},
                       {"cold_s", r.cold.ttft_s},
                       {"restored_s", r.restored.ttft_s},
                       {"load_s", r.restored.load_s},
                       {"compute_s", r.restored.compute_s},
                       {"speedup", r.speedup()},
                       {"hit_tokens", r.restored.hit_tokens},
                       {"restored_bytes", r.restored.restored_bytes.value()},
                       {"store_s", r.cold.store_s},
                       {"answer_tokens", r.cold.answer.size()},
                       {"same_tokens", r.same_answer()},
                       {"same_logits", r.same_logits()}});
  }
  const Summary summary = Speedups(results);
  return Line(Json{{"median_speedup", summary.median},
                   {"worst_speedup", summary.worst},
                   {"lengths", lengths}}) +
         "\n";
}

}  // namespace larder::llama
