"""What the demo prints: a table for each rate of requests, and how the configurations compare.

Thread-safety: values and pure functions.
"""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one configuration at one rate of requests.  counted: by how much the servers' counters grew meanwhile
    (counts.COUNTERS)."""

    name: str
    larder: bool
    policy: str
    rate: float
    held: object  # clients.Held
    counted: dict

    @property
    def firsts_s(self):
        return sorted(answer.first_s for answer in self.held.answers)

    @property
    def gaps_ms(self):
        return sorted(1e3 * gap for answer in self.held.answers for gap in answer.gaps_s)

    @property
    def mean_first_s(self):
        return statistics.mean(self.firsts_s)


def percentile(values, part):
    """values: sorted, not empty."""
    return values[min(len(values) - 1, int(part * len(values)))]


def _per_second(result, count):
    return count / result.held.seconds


ROWS = (  # (name, format, what of a Result)
    ("time to first token, s: mean", "{:.2f}", lambda one: one.mean_first_s),
    ("  median", "{:.2f}", lambda one: percentile(one.firsts_s, 0.5)),
    ("  p90", "{:.2f}", lambda one: percentile(one.firsts_s, 0.9)),
    ("between two tokens, ms: median", "{:.0f}", lambda one: percentile(one.gaps_ms, 0.5)),
    ("  p99", "{:.0f}", lambda one: percentile(one.gaps_ms, 0.99)),
    ("tokens of prompts", "{:,}", lambda one: sum(answer.prompt_tokens for answer in one.held.answers)),
    ("  hits on the device", "{:,.0f}", lambda one: one.counted["device"]),
    ("  hits in Larder's pool", "{:,.0f}", lambda one: one.counted["host"]),
    ("  hits on Larder's disk", "{:,.0f}", lambda one: one.counted["disk"]),
    ("  computed", "{:,.0f}", lambda one: one.counted["computed"]),
    ("loaded from Larder, MB", "{:,.0f}", lambda one: one.counted["bytes_loaded"] / 1e6),
    ("answers per second", "{:.2f}", lambda one: _per_second(one, len(one.held.answers))),
    ("generated tokens per second", "{:.1f}", lambda one: _per_second(one, sum(answer.tokens for answer in one.held.answers))),
)


def table(results):
    """Returns the lines of a table of Results at one rate, one of them in each column."""
    width = max(20, *(len(one.name) + 3 for one in results))
    title = f"{results[0].rate:g} requests/s, {len(results[0].held.answers)} requests"
    lines = [f"  {title:<32}" + "".join(f"{one.name:>{width}}" for one in results)]
    for name, form, value in ROWS:
        lines.append(f"  {name:<32}" + "".join(f"{form.format(value(one)):>{width}}" for one in results))
    return lines


def _ratio(over, under):
    return f"{over / under:.2f}" if under else "-"


def comparison(results):
    """Returns the lines that compare Results at one rate."""
    kv, turns = (next((one for one in results if one.larder and one.policy == name), None) for name in ("kv", "round_robin"))
    plain = next((one for one in results if not one.larder and one.policy == "round_robin"), None)
    lines = []
    if kv and turns:
        device, loaded = (_ratio(kv.counted[name], turns.counted[name]) for name in ("device", "bytes_loaded"))
        lines.append(
            f"  with Larder, kv / round robin: hits on the device {device}, bytes loaded {loaded}, "
            f"mean time to first token {_ratio(kv.mean_first_s, turns.mean_first_s)}"
        )
    if kv and plain:
        lines.append(
            "  with Larder, kv / without Larder, round robin: mean time to first token "
            f"{_ratio(kv.mean_first_s, plain.mean_first_s)}"
        )
    return lines


def troubles(results):
    """Returns a line for whatever happened that the figures do not show."""
    found = []
    for one in results:
        for name, text in (("blocks_failed", "blocks that could not be loaded"), ("preempted", "requests that vLLM preempted")):
            if one.counted[name]:
                found.append(f"  {one.name}, {one.rate:g} requests/s: {one.counted[name]:.0f} {text}")
    return found
