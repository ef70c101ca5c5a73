#include "storage/fault_points.h"

#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder {
namespace {

constexpr int kCrashCode = 66;

constexpr std::array<std::string_view, kFaultPoints> kNames = {
    "data.create",    "data.created",    "data.write",    "data.read",     "data.sync",
    "put.allocated",  "put.written",     "put.synced",    "put.committed", "catalog.open",
    "catalog.commit", "catalog.erase",   "erase.written", "catalog.read",  "catalog.scan",
    "catalog.facts",  "shard.set-aside", "socket.rights",
};

// splitmix64.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

std::string_view ToString(FaultPoint point) { return kNames[static_cast<size_t>(point)]; }

// Layout of the result, from its highest bit: action 8 bits, every 24, sleep in microseconds 32.
uint64_t FaultPoints::Pack(const Plan& plan) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(plan.sleep).count();
  return uint64_t{static_cast<uint8_t>(plan.action)} << 56 | uint64_t{plan.every} << 32 |
         static_cast<uint32_t>(us);
}

FaultPoints::Plan FaultPoints::Unpack(uint64_t bits) {
  return {.action = static_cast<Action>(bits >> 56),
          .every = static_cast<uint32_t>(bits >> 32) & 0xFFFFFF,
          .sleep = std::chrono::microseconds(static_cast<uint32_t>(bits))};
}

absl::Status FaultPoints::Parse(std::string_view part, FaultPoint* point, Plan* plan) {
  const auto wrong = [&](auto... words) {
    return absl::InvalidArgumentError(absl::StrCat("fault '", AbslView(part), "': ", words...));
  };
  const std::vector<absl::string_view> sides =
      absl::StrSplit(AbslView(part), absl::MaxSplits('=', 1));
  if (sides.size() != 2) return wrong("write POINT=ACTION[:TIME][/EVERY]");
  size_t at = 0;
  while (at < kFaultPoints && AbslView(kNames[at]) != sides[0]) ++at;
  if (at == kFaultPoints) {
    return wrong("there is no such point; the points are ",
                 absl::StrJoin(kNames, ", ", [](std::string* out, std::string_view name) {
                   absl::StrAppend(out, AbslView(name));
                 }));
  }
  *point = static_cast<FaultPoint>(at);
  const std::vector<absl::string_view> every = absl::StrSplit(sides[1], absl::MaxSplits('/', 1));
  if (every.size() == 2 &&
      (!absl::SimpleAtoi(every[1], &plan->every) || plan->every == 0 || plan->every > 0xFFFFFF)) {
    return wrong("'", every[1], "' is not a number of arrivals; write 1 to 16777215");
  }
  const std::vector<absl::string_view> action = absl::StrSplit(every[0], absl::MaxSplits(':', 1));
  absl::Duration sleep;
  if (action[0] == "sleep" && action.size() == 2 && absl::ParseDuration(action[1], &sleep) &&
      sleep > absl::ZeroDuration() && sleep <= absl::Minutes(10)) {
    plan->action = Action::kSleep;
    plan->sleep = absl::ToChronoNanoseconds(sleep);
    return absl::OkStatus();
  }
  if (action.size() == 1 && action[0] == "error") plan->action = Action::kError;
  if (action.size() == 1 && action[0] == "full") plan->action = Action::kFull;
  if (action.size() == 1 && action[0] == "short") plan->action = Action::kShort;
  if (action.size() == 1 && action[0] == "crash") plan->action = Action::kCrash;
  if (plan->action == Action::kNone) {
    return wrong("'", every[0],
                 "' is not an action; write error, full, short, crash or sleep:TIME (up to 10m)");
  }
  return absl::OkStatus();
}

absl::Status FaultPoints::Arm(std::string_view text) {
  std::array<Plan, kFaultPoints> plans;
  bool any = false;
  for (const absl::string_view part : absl::StrSplit(AbslView(text), ',', absl::SkipEmpty())) {
    FaultPoint point{};
    Plan plan;
    LARDER_RETURN_IF_ERROR(Parse({part.data(), part.size()}, &point, &plan));
    plans[static_cast<size_t>(point)] = plan;
    any = true;
  }
  for (size_t i = 0; i < kFaultPoints; ++i) points_[i].plan.store(Pack(plans[i]));
  armed_.store(any);
  return absl::OkStatus();
}

FaultPoints::Fault FaultPoints::Arrive(FaultPoint which) {
  Point& point = points_[static_cast<size_t>(which)];
  const Plan plan = Unpack(point.plan.load());
  if (plan.action == Action::kNone) return Fault::kNone;
  const uint64_t arrival = point.arrivals.fetch_add(1);
  if (Mix(arrival * kFaultPoints + static_cast<size_t>(which)) % plan.every != 0)
    return Fault::kNone;
  point.faults.fetch_add(1);
  switch (plan.action) {
    case Action::kError:
      return Fault::kError;
    case Action::kFull:
      return Fault::kFull;
    case Action::kShort:
      return Fault::kShort;
    case Action::kCrash:
      _exit(kCrashCode);
    case Action::kSleep:
      std::this_thread::sleep_for(plan.sleep);
      return Fault::kNone;
    case Action::kNone:
      break;
  }
  return Fault::kNone;
}

absl::Status FaultPoints::StatusAt(FaultPoint point) {
  switch (At(point)) {
    case Fault::kNone:
      return absl::OkStatus();
    case Fault::kFull:
      return absl::ResourceExhaustedError(
          absl::StrCat("no space left (fault point ", AbslView(ToString(point)), ")"));
    case Fault::kError:
    case Fault::kShort:
      break;
  }
  return absl::UnavailableError(
      absl::StrCat("I/O error (fault point ", AbslView(ToString(point)), ")"));
}

uint64_t FaultPoints::arrivals(FaultPoint point) const {
  return points_[static_cast<size_t>(point)].arrivals.load();
}
uint64_t FaultPoints::faults(FaultPoint point) const {
  return points_[static_cast<size_t>(point)].faults.load();
}

}  // namespace larder
