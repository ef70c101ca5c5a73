#include "client/llama_cpp/restore_picture.h"

#include "client/llama_cpp/prompt_restorer.h"

namespace larder::llama {

Plot PictureOf(const Restorer::Restored& restored, const std::string& title) {
  Series computed{.name = "computed"}, pool{.name = "loaded from the pool"},
      disk{.name = "loaded from the disk"},
      late{.name = "loaded, but computed sooner", .hollow = true};
  for (const Restorer::Span& span : restored.spans) {
    Series& series = span.channel == ChannelId::kNowhere ? computed
                     : !span.used                        ? late
                     : span.channel == kPoolChannel      ? pool
                                                         : disk;
    series.boxes.push_back({.x_begin = span.begin_s,
                            .x_end = span.end_s,
                            .y_begin = static_cast<double>(span.tokens.begin),
                            .y_end = static_cast<double>(span.tokens.end)});
  }
  Plot plot{.title = title, .x_label = "seconds", .y_label = "tokens of the prefix"};
  for (Series* series : {&computed, &pool, &disk, &late}) {
    if (!series->boxes.empty()) plot.series.push_back(std::move(*series));
  }
  return plot;
}

}  // namespace larder::llama
