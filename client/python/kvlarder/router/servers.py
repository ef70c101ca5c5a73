"""The servers: which are up, what each has under way, and which requests wait because all are busy.

A server is up once it has said that it is well, and down when no process accepts connections there, when it says that it is
not well, or when it has said nothing twice in a row.  Requests that a server had not begun to answer leave it then.
When the router has no file or memory left for a connection, that says nothing about the server.

A request at a server (Ticket):  waiting --its first byte--> answering --> ended
Invariants (check_invariants):
  * A server has at most `server_requests` tickets, and every ticket is released exactly once.
  * Requests wait only while no server takes them, in the order in which they came; at most `queue` of them.
Thread-safety: one event loop uses the objects of this file.
"""

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import time

import aiohttp
from kvlarder.router import bodies, prices, rates
from kvlarder.router.options import api_key

LOG = logging.getLogger("larder.router")
MISSES_MOST = 2  # answers that a server may owe in a row
MODELS_EVERY = 5  # looks at a server, then its models are asked for again
MODELS_BYTES_MAX = 4 << 20
LOAD_SMALL = 0.1  # part of the time until an answer began: the rest tells how fast a server computes
REFUSALS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)  # of connections: no server listens there
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)  # the router's own


def is_refusal(error):
    """Returns whether an error of aiohttp says that no server listens there."""
    return isinstance(error, aiohttp.ClientConnectorError) and error.errno in REFUSALS


class NoServer(Exception):
    """No server is up that could take a request.  The text says so."""


class Busy(Exception):
    """All servers are busy, and so is the queue.  The text says so."""


@dataclasses.dataclass(eq=False)
class Ticket:
    """One request at one server."""

    server: "Server"
    price: prices.Price
    tokens: int  # of its prompt
    streams: bool
    counted: bool = False  # tokens is no guess
    scope: asyncio.Timeout | None = None  # while the request is at the server: it ends the stay
    sent: float = 0.0
    due: float = 0.0  # when its prompt should be computed
    alone: bool = False  # no request whose beginning is not seen was under way beside it
    lost: bool = False  # the server went down before it began to answer

    def lose(self):
        """Ends the request's stay at its server, which has gone down."""
        if not self.lost:
            self.lost = True
            with contextlib.suppress(RuntimeError):  # it ends already, for another reason
                if self.scope is not None:
                    self.scope.reschedule(0.0)


class Server:
    def __init__(self, address, options, metrics, peers, clock=time.monotonic):
        """peers: the rates of all servers, a list (rates.Prefill)."""
        self.engine_id, self.url, self.name = address.engine_id, address.url, address.name
        self._options, self._metrics, self._clock = options, metrics, clock
        self.up, self.models = False, {}  # models: {name: whether it is an adapter}
        self.prefill = rates.Prefill(options.prefill_rate, options.running_weight, peers)
        self.turn = 0  # when it was last chosen, counted in choices
        self._waiting, self._answering = {}, {}  # Tickets, in the order in which they were sent
        self._answering_tokens = 0
        self._mark = 0.0  # since when the first waiting request has been computed
        self._misses = self._looks = 0
        self._said = None  # the last state in the log
        self._probe = None  # a look at the server that is under way

    @property
    def requests(self):
        return len(self._waiting) + len(self._answering)

    @property
    def has_room(self):
        return self.requests < self._options.server_requests

    @property
    def tokens(self):
        """Tokens of the prompts under way."""
        return self._answering_tokens + sum(ticket.tokens for ticket in self._waiting)

    # ---- prices

    def price(self, covered, prompt_tokens):
        """Returns the Price of a prompt, of which `covered` need not be computed."""
        computed = max(prompt_tokens - covered.tokens, 1)
        return prices.Price(covered, computed, self.prefill.seconds(computed), self.queue_s())

    def queue_s(self):
        """Returns how long the server will be busy with what it has, before it begins with a new prompt."""
        now = self._clock()
        ahead = [ticket.price.work_s for ticket in self._waiting if ticket.streams or now < ticket.due]
        if ahead:
            ahead[0] -= min(now - self._mark, ahead[0])
        return sum(ahead) + self.prefill.running_s(len(self._answering), self._answering_tokens)

    # ---- tickets

    def take(self, ticket):
        ticket.sent, ticket.due = self._clock(), self._clock() + ticket.price.total_s
        if not self._waiting:
            self._mark = ticket.sent
            self.prefill.forget()
        blind = not ticket.streams or any(not other.streams for other in self._waiting)
        ticket.alone = not blind
        if blind:
            for other in self._waiting:
                other.alone = False
        self._waiting[ticket] = None

    def begins(self, ticket, status):
        """The first byte of an answer has come.  status: of the answer."""
        del self._waiting[ticket]
        running = len(self._answering)
        self._answering[ticket] = None
        self._answering_tokens += ticket.tokens
        now = self._clock()
        self._metrics.first_byte(self, now - ticket.sent)
        if status >= 400:
            self._lose_count()
        elif self._tells(ticket, now - self._mark):
            self.prefill.observe(ticket.price.computed_tokens, now - self._mark, running)
        else:
            self.prefill.forget()
        self._mark = now

    @staticmethod
    def _tells(ticket, seconds):
        """Returns whether an answer that began after so many seconds tells how fast its prompt was computed."""
        # Whether a load took its time is not seen: what Larder has may be in vLLM's own prefix cache, too.
        return ticket.alone and ticket.counted and ticket.price.covered.load_s <= LOAD_SMALL * seconds

    def _lose_count(self):
        """A request has left of which it is not known how much was computed: nor is it of what those took that wait."""
        self.prefill.forget()
        for other in self._waiting:
            other.alone = False
        self._mark = self._clock()

    def release(self, ticket):
        if ticket in self._answering:
            del self._answering[ticket]
            self._answering_tokens -= ticket.tokens
            return
        del self._waiting[ticket]
        self._lose_count()

    # ---- health

    async def look(self, session):
        """Looks whether the server is well.  Looks that are wanted meanwhile share this one."""
        if self._probe is None:
            self._probe = asyncio.ensure_future(self._look(session))
            self._probe.add_done_callback(self._looked)
        await asyncio.shield(self._probe)

    def _looked(self, probe):
        self._probe = None
        if not probe.cancelled():
            probe.exception()  # a caller that waits for the look gets it

    async def _look(self, session):
        limit = aiohttp.ClientTimeout(total=self._options.health_timeout)
        try:
            async with session.get(f"{self.url}/health", timeout=limit) as reply:
                status = reply.status
            if status == 200 and (not self.up or self._looks % MODELS_EVERY == 0):
                await self._read_models(session, limit)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return self._says_nothing(error)
        self._looks += 1
        if status != 200:
            return self.down(f"it says that it is not well (status {status} of /health)")
        return self._is_well()

    def _says_nothing(self, error):
        """It was asked whether it is well, and did not answer."""
        if is_refusal(error):
            self.refuses(error)
        elif getattr(error, "errno", None) in SHORTAGES:
            self._say("not asked", "server %s (engine %s) cannot be asked whether it is well: %s", os.strerror(error.errno))
        else:
            self._misses += 1
            if self._misses >= MISSES_MOST or not self.up:
                self.down(f"it does not say that it is well ({error or 'no answer in time'})")

    async def _read_models(self, session, limit):
        async with session.get(f"{self.url}/v1/models", timeout=limit, headers=api_key()) as reply:
            if reply.status != 200:
                return
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, bodies.TooLarge):
                found = json.loads(await bodies.read(reply.content, MODELS_BYTES_MAX))
                self.models = {one["id"]: one.get("parent") is not None for one in found["data"]}

    def _is_well(self):
        self._misses = 0
        self.up = True
        self._say("up", "server %s (engine %s) is up")

    def refuses(self, error):
        """error: a refusal (is_refusal)."""
        self.down(f"no process accepts connections there ({os.strerror(error.errno)})")

    def down(self, why):
        """The server is left out until it says that it is well; what it had not begun to answer leaves it."""
        self._misses = 0
        self.up = False
        for ticket in self._waiting:
            ticket.lose()
        self._say("down", "server %s (engine %s) is left out: %s", why)

    def _say(self, state, text, *values):
        if self._said != state:
            self._said = state
            LOG.log(logging.INFO if state == "up" else logging.WARNING, text, self.name, self.engine_id, *values)

    def check_invariants(self):
        """For tests."""
        assert not self._waiting.keys() & self._answering.keys()
        assert self._answering_tokens == sum(ticket.tokens for ticket in self._answering)
        assert self.requests <= self._options.server_requests


class _Waiter:
    """A request that waits because no server takes it yet."""

    def __init__(self, choose):
        self.choose, self.chosen = choose, asyncio.get_running_loop().create_future()


class Servers:
    """All servers, and the queue in front of them."""

    def __init__(self, options, metrics, session):
        self._options, self._metrics, self._session = options, metrics, session
        peers = []
        self.all = [Server(address, options, metrics, peers) for address in options.servers]
        self._waiters = {}  # _Waiter, in the order in which they came
        self._turns = 0

    @property
    def waiting(self):
        return len(self._waiters)

    # ---- health

    async def run(self):
        """Looks at the servers until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for server in self.all:
                group.create_task(self._watch(server))

    async def _watch(self, server):
        while True:
            await asyncio.sleep(self._options.health_interval)
            try:
                await self.look(server)
            except Exception:  # whatever it is, the next look may be right
                LOG.exception("looking at server %s failed", server.name)

    async def look(self, server):
        await server.look(self._session)
        self._serve_waiters()

    async def refresh(self):
        """Looks at all servers once."""
        await asyncio.gather(*map(self.look, self.all))

    def refuses(self, server, error):
        """A server accepts no connections.  error: a refusal (is_refusal)."""
        server.refuses(error)
        self._serve_waiters()

    # ---- which servers take a request

    def candidates(self, model, without=()):
        """Returns the servers that are up and have a model: all that are up if none lists it.  Raises NoServer."""
        up = [server for server in self.all if server.up]
        if not up:
            raise NoServer("no server is up")
        listed = [server for server in self.all if model in server.models] if model else []
        have = [server for server in up if server in listed] if listed else up
        if not have:
            raise NoServer(f"no server that has the model '{model}' is up")
        left = [server for server in have if server not in without]
        if not left:
            raise NoServer("every server that is up was tried")
        return left

    async def acquire(self, choose):
        """Returns the Ticket that choose() returns, which this takes at its server; release it.

        choose: returns a Ticket, or None while no server has room; raises NoServer.  It is called whenever that may have
        changed.  Raises Busy if there is no room in the queue, or none at a server in time.
        """
        # Those that wait were offered every place that came free: none of them can take one that is free now.
        if (ticket := choose()) is not None:
            return self._take(ticket)
        if len(self._waiters) >= self._options.queue:
            raise Busy("all servers are busy, and so is the queue")
        waiter = _Waiter(choose)
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(self._options.queue_timeout):
                return await waiter.chosen
        except BaseException as error:
            if waiter.chosen.done() and not waiter.chosen.cancelled() and waiter.chosen.exception() is None:
                self.release(waiter.chosen.result())  # it was chosen at the moment in which its request left
            if isinstance(error, TimeoutError):
                raise Busy("all servers have been busy for too long") from None
            raise
        finally:
            self._waiters.pop(waiter, None)

    def _take(self, ticket):
        self._turns += 1
        ticket.server.turn = self._turns
        ticket.server.take(ticket)
        return ticket

    def release(self, ticket):
        ticket.server.release(ticket)
        self._serve_waiters()

    def _serve_waiters(self):
        for waiter in list(self._waiters):
            if waiter.chosen.done():
                continue
            try:
                if (ticket := waiter.choose()) is None:
                    continue
                waiter.chosen.set_result(self._take(ticket))
            except NoServer as error:
                waiter.chosen.set_exception(error)
            del self._waiters[waiter]

    def check_invariants(self):
        """For tests."""
        for server in self.all:
            server.check_invariants()
        assert len(self._waiters) <= self._options.queue
