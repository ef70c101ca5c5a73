// What a channel loads next of one request.
//
// The rules, in the order in which they win:
//   1. Activations that computing will need next, for the stage that has come least far.
//   2. A piece that no one has claimed, of the stage with the most left, unless computing has all
//      of the rest sooner, or the load would end after the request's deadline.
//   3. A hedge: a piece that is being computed, if loading it ends first.  The scheduler asks for
//      it after rules 1 and 2 of all requests, and only if the engine can drop steps.
// Functions of a forecast and a request; what is chosen is claimed by the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/restore/forecast.h"
#include "client/restore/trace.h"

namespace larder {

struct LoadChoice {
  uint16_t stage = 0;
  size_t lane = 0;  // of a piece of KV
  StagePiece piece = {};
};
[[nodiscard]] std::optional<LoadChoice> ChooseBoundary(const Forecast& forecast,
                                                       RequestState& request, ChannelId channel);
// Why it leaves a piece to computing is noted in *trace.
[[nodiscard]] std::optional<LoadChoice> ChooseLoad(const Forecast& forecast, RequestState& request,
                                                   ChannelId channel, Trace* trace);
[[nodiscard]] std::optional<LoadChoice> ChooseHedgeLoad(const Forecast& forecast,
                                                        const RequestState& request,
                                                        ChannelId channel);

}  // namespace larder
