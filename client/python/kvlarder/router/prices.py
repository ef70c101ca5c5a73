"""What a request costs at each server, in seconds until its first token, and which server takes it.

    price = load + compute + queue
    load     what Larder says that loading takes of those tokens that lie in the pool and on disk (TierHit.load_s)
    compute  the rest of the prompt, at the server's own rate
    queue    what the server has to do before (servers.py)
Tokens that the engine reported to be in its own device memory cost nothing.
Thread-safety: Affinity is for one thread; the rest are values and pure functions.
"""

import collections
import dataclasses
import hashlib

import kvlarder

# cheapest() takes its close_s for at least and at most this, in seconds: differences of milliseconds never matter, and where all
# servers are busy, even the shortest answers take long.
CLOSE_LEAST_S, CLOSE_MOST_S = 0.005, 0.5
# Two servers have about as much of a prompt in their device memories if the difference is at most this part of the prompt.
HELD_PART = 0.05
NAMES = {kvlarder.Tier.DEVICE: "device", kvlarder.Tier.HOST: "host", kvlarder.Tier.DISK: "disk"}


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The tokens from position 0 on that an engine need not compute, by where they lie, and the seconds to load them."""

    device: int = 0
    host: int = 0
    disk: int = 0
    load_s: float = 0.0

    @property
    def tokens(self):
        return self.device + self.host + self.disk


NOTHING = Coverage()


class _Ranges:
    """The ranges of one tier, read once from the beginning."""

    def __init__(self, hit):
        self.name, self._load_s = NAMES[hit.tier], hit.load_s
        self._ranges = [(one.begin, one.end) for one in hit.ranges]
        self._tokens = max(1, sum(end - begin for begin, end in self._ranges))
        self._at = 0

    def next(self, position):
        """Returns the range that covers the position, or else the next one; None if there is none."""
        while self._at < len(self._ranges) and self._ranges[self._at][1] <= position:
            self._at += 1
        return self._ranges[self._at] if self._at < len(self._ranges) else None

    def seconds(self, tokens):
        return self._load_s * tokens / self._tokens


def coverage_of(tiers, prompt_tokens):
    """Returns the Coverage of a prompt by the TierHits of one engine, the fastest tier first.

    Each token comes from the fastest tier that has it, until no tier has the next one.  The last token of a prompt is
    always computed.  It takes time in the number of ranges.
    """
    ranges = [_Ranges(hit) for hit in tiers if hit.tier in NAMES]
    taken, seconds, position, last = collections.Counter(), 0.0, 0, prompt_tokens - 1
    while position < last:
        end, until = position, last  # until: where a faster tier goes on
        for tier in ranges:
            if (found := tier.next(position)) is None:
                continue
            if found[0] <= position:
                end = min(found[1], until)
                break
            until = min(until, found[0])
        if end == position:
            break
        taken[tier.name] += end - position
        seconds += tier.seconds(end - position)
        position = end
    return Coverage(**taken, load_s=seconds)


@dataclasses.dataclass(frozen=True)
class Price:
    """Seconds until the first token of a request at one server, and what they are for."""

    covered: Coverage
    computed_tokens: int
    compute_s: float
    queue_s: float

    @property
    def work_s(self):
        return self.covered.load_s + self.compute_s

    @property
    def total_s(self):
        return self.work_s + self.queue_s

    @property
    def prompt_tokens(self):
        return self.covered.tokens + self.computed_tokens


def cheapest(offers, sticky, close, close_s=0.0):
    """Returns (the offer that is taken, why).

    offers: of objects with `price`, `tokens` under way and `turn`, when it was last chosen; not empty.  sticky: an offer
    that has answered the beginning of this prompt before, or None.  Prices are close to the lowest one if they exceed it by at
    most its part `close` and close_s seconds together.

    Among prices that are close, the offer is taken whose server has most of the prompt in its own device memory: each copy of
    a prefix takes the place of another prefix there.  Among those that have about as much, the sticky offer is taken, or else
    the one with the fewest tokens under way.
    """
    if len(offers) == 1:
        return offers[0], "only"
    least = min(offer.price.total_s for offer in offers)
    limit = least * (1 + close) + min(max(close_s, CLOSE_LEAST_S), CLOSE_MOST_S)
    near = [offer for offer in offers if offer.price.total_s <= limit]
    if len(near) == 1:
        return near[0], "cheapest"
    most = max(offer.price.covered.device for offer in near)
    near = [offer for offer in near if most - offer.price.covered.device <= HELD_PART * offer.price.prompt_tokens]
    if len(near) == 1:
        return near[0], "device"
    if sticky in near:
        return sticky, "sticky"
    return min(near, key=lambda offer: (offer.tokens, offer.turn)), "even"


class Affinity:
    """Which server has answered the beginning of a prompt last.

    It remembers digests of prefixes of a few fixed lengths, the last ones used: bounded by `capacity` entries.
    """

    # Prefixes are remembered at each block of vLLM for the first 1,024 tokens, then every 1,024.
    LENGTHS = (*range(128, 1_024, 128), *range(1_024, 131_072 + 1, 1_024))

    def __init__(self, capacity=65_536):
        self._capacity = capacity
        self._servers = collections.OrderedDict()

    def __len__(self):
        return len(self._servers)

    @classmethod
    def keys(cls, what, tokens):
        """Returns the digests of a prompt's prefixes.  what: bytes that say what the tokens mean; tokens: an array."""
        hasher, view, begin, keys = hashlib.blake2b(what, digest_size=16), memoryview(tokens), 0, []
        for length in cls.LENGTHS:
            if length > len(view):
                break
            hasher.update(view[begin:length])
            keys.append(hasher.digest())
            begin = length
        return keys

    def server(self, keys):
        """Returns the server that has answered the longest of these prefixes, or None."""
        for key in reversed(keys):
            if (server := self._servers.get(key)) is not None:
                return server
        return None

    def remember(self, keys, server):
        for key in keys:
            self._servers[key] = server
            self._servers.move_to_end(key)
        while len(self._servers) > self._capacity:
            self._servers.popitem(last=False)
