"""Draws the times to first token of all requests as SVG: for each rate a panel, for each configuration a line that says which
share of the requests had their first token by then.

Thread-safety: pure functions.
"""

import math
from xml.sax.saxutils import escape

COLOURS = ("#0b6e99", "#d1495b", "#777", "#edae49")
PANEL_W, PANEL_H, LEFT, TOP, GAP, BOTTOM = 360, 240, 60, 70, 40, 60
TICKS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def _limits(results):
    """Returns the ticks around all times, at least two."""
    times = [time for one in results for time in one.firsts_s]
    low = max((tick for tick in TICKS_S if tick <= min(times)), default=TICKS_S[0])
    high = min((tick for tick in TICKS_S if tick >= max(times)), default=TICKS_S[-1])
    return low, high if high > low else 10 * low


def _text(x, y, text, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" {more}>{escape(text)}</text>'


class _Panel:
    """The panel of one rate; x is the time, logarithmic, y the share."""

    def __init__(self, left, low, high):
        self._left, self._low, self._high = left, low, high

    def x(self, seconds):
        inside = min(max(seconds, self._low), self._high)
        return self._left + PANEL_W * math.log(inside / self._low) / math.log(self._high / self._low)

    @staticmethod
    def y(share):
        return TOP + PANEL_H * (1 - share)

    def frame(self, title):
        for share in (0, 0.25, 0.5, 0.75, 1):
            yield f'<path d="M{self._left} {self.y(share):.1f}h{PANEL_W}" stroke="#ddd"/>'
            yield _text(self._left - 6, self.y(share) + 4, f"{100 * share:g} %", "end")
        for tick in (tick for tick in TICKS_S if self._low <= tick <= self._high):
            yield f'<path d="M{self.x(tick):.1f} {TOP}v{PANEL_H}" stroke="#ddd"/>'
            yield _text(self.x(tick), TOP + PANEL_H + 18, f"{tick:g}")
        yield _text(self._left + PANEL_W / 2, TOP - 10, title, more='font-weight="bold"')
        yield _text(self._left + PANEL_W / 2, TOP + PANEL_H + 42, "time to first token, s")

    def line(self, times, colour):
        steps = "".join(f"H{self.x(time):.1f}V{self.y(number / len(times)):.1f}" for number, time in enumerate(times, 1))
        path = f"M{self._left} {self.y(0):.1f}{steps}H{self._left + PANEL_W}"
        return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def svg(results):
    """Returns the picture of Results: those of one rate lie next to each other, in the same order at every rate."""
    rates = list(dict.fromkeys(one.rate for one in results))
    low, high = _limits(results)
    width, height = LEFT + len(rates) * (PANEL_W + GAP + LEFT) - LEFT, TOP + PANEL_H + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, one in enumerate(one for one in results if one.rate == rates[0]):
        parts.append(_text(LEFT, 14 + 14 * number, one.name, "start", f'fill="{COLOURS[number]}"'))
    for column, rate in enumerate(rates):
        panel = _Panel(LEFT + column * (PANEL_W + GAP + LEFT), low, high)
        parts += panel.frame(f"{rate:g} requests/s")
        parts += [panel.line(one.firsts_s, COLOURS[at]) for at, one in enumerate(one for one in results if one.rate == rate)]
    return "\n".join([*parts, "</svg>", ""])
