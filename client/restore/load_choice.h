// Chooses what a channel loads next of one request.
//
// The rules in outline, in the order in which they win:
//   1. Activations that computing will need next; of several stages, those for the earliest chunk.
//   2. A piece (layers of a block) that is unclaimed, of the stage with the most time left, unless
//      computing should have everything that is left clearly sooner, or the load should end after
//      the request's deadline.
//   3. A hedge: a piece that is being computed, if loading it may end first.  The scheduler tries
//      this rule after rules 1 and 2 have found nothing for any request, and only if hedges are
//      allowed and the engine can drop steps.
// These are functions of a Forecast and a request; the Scheduler gives out what they choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/restore/forecast.h"
#include "client/restore/trace.h"

namespace larder {

struct LoadChoice {
  uint16_t stage = 0;
  size_t lane = 0;  // of the piece; unused for activations
  StagePiece piece = {};
};
[[nodiscard]] std::optional<LoadChoice> ChooseBoundary(const Forecast& forecast,
                                                       RequestState& request, ChannelId channel);
// If ChooseLoad leaves layers to the engine because computing ends sooner, it adds a kLeave
// decision to *trace.
[[nodiscard]] std::optional<LoadChoice> ChooseLoad(const Forecast& forecast, RequestState& request,
                                                   ChannelId channel, Trace* trace);
[[nodiscard]] std::optional<LoadChoice> ChooseHedgeLoad(const Forecast& forecast,
                                                        const RequestState& request,
                                                        ChannelId channel);

}  // namespace larder
