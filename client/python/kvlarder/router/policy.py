"""Which server takes a request.

A Decision is made once for each request: its token ids, and what of them each server can load.  choose() then prices the
servers by their queues at that moment, as often as it is called.
Thread-safety: one event loop uses the objects of this file.
"""

import dataclasses
import time

from kvlarder.router import prices, prompt
from kvlarder.router.servers import Ticket


@dataclasses.dataclass
class Offer:
    """What one server asks for a request (prices.cheapest)."""

    server: object
    price: prices.Price
    tokens: int
    turn: int


@dataclasses.dataclass
class Decision:
    asked: prompt.Prompt  # without what it says, which takes memory for as long as the answer lasts
    covered: dict | None = None  # {engine id: Coverage}; None: not known
    keys: list = dataclasses.field(default_factory=list)  # of the prompt's prefixes (Affinity)
    tried: list = dataclasses.field(default_factory=list)  # servers that did not answer it
    reason: str = ""  # of the last choice


class ByPrice:
    """--policy kv."""

    def __init__(self, options, servers, directory, tokenizer, metrics):
        self._options, self._servers, self._directory = options, servers, directory
        self._tokenizer, self._metrics = tokenizer, metrics
        self.affinity = prices.Affinity()

    async def decide(self, asked, headers):
        """Returns the Decision of a prompt.  headers: of the client, for its questions to servers.  Raises NoServer."""
        began = time.monotonic()
        servers = self._servers.candidates(asked.model)
        asked = await self._tokenizer.tokens_of(asked, servers, headers)
        decision = Decision(asked.without_content())
        if asked.tokens is not None:
            decision.keys = self.affinity.keys(repr((asked.model, asked.salt)).encode(), asked.tokens)
            decision.covered = await self._directory.hits(
                [server.engine_id for server in servers],
                asked.model,
                any(server.models.get(asked.model) for server in servers),
                asked.salt,
                asked.tokens,
            )
        self._metrics.decided(time.monotonic() - began)
        return decision

    def choose(self, decision):
        """Returns the Ticket of the best server with room, or None if none has room.  Raises NoServer."""
        asked, covered = decision.asked, decision.covered or {}
        servers = [one for one in self._servers.candidates(asked.model, decision.tried) if one.has_room]
        if not servers:
            return None
        offers = [
            Offer(one, one.price(covered.get(one.engine_id, prices.NOTHING), asked.count), one.tokens, one.turn)
            for one in servers
        ]
        last = self.affinity.server(decision.keys)
        sticky = next((offer for offer in offers if offer.server is last), None)
        # A server's shortest answers take about one of its steps, and a queue is not known more exactly than that: a smaller
        # difference between two servers is no reason to leave the one that has the prompt.
        shortest_s = min(server.prefill.fixed_s for server in servers)
        offer, reason = prices.cheapest(offers, sticky, self._options.close, shortest_s)
        decision.reason = "queue" if decision.covered is None else reason
        return Ticket(offer.server, offer.price, asked.count, asked.streams, asked.counted)

    def took(self, decision, ticket):
        """The request is sent to the server."""
        self._metrics.chosen(decision.reason, ticket.price)
        self.affinity.remember(decision.keys, ticket.server)


class RoundRobin:
    """--policy round_robin: each server in its turn."""

    def __init__(self, servers, metrics, reason="round_robin"):
        self._servers, self._metrics, self._reason = servers, metrics, reason

    async def decide(self, asked, _):
        return Decision(asked.without_content())

    def choose(self, decision):
        servers = [one for one in self._servers.candidates(decision.asked.model, decision.tried) if one.has_room]
        if not servers:
            return None
        asked, server = decision.asked, min(servers, key=lambda one: one.turn)
        return Ticket(server, server.price(prices.NOTHING, asked.count), asked.count, asked.streams, asked.counted)

    def took(self, *_):
        self._metrics.chosen(self._reason)
