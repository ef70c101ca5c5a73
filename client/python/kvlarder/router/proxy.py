"""The HTTP side: takes requests, finds servers for them, and answers those that none takes.

Invariants: whatever ends a request (its client leaves, its server dies, a timeout), its ticket is released, and nothing
of its body is held.
Thread-safety: one event loop uses a Proxy.
"""

import asyncio
import logging
import re
import time

import aiohttp
from aiohttp import web
from kvlarder.router import bodies, policy, prompt
from kvlarder.router.exchange import Exchange, Gone, Late
from kvlarder.router.servers import Busy, NoServer

LOG = logging.getLogger("larder.router")
COMPLETIONS = (prompt.COMPLETIONS, prompt.CHAT)
# Other paths that any server may answer.  What changes a server is not among them: an operator asks that server itself.
PASSED = re.compile(r"/(v1/.*|tokenize|detokenize|tokenizer_info|version)")
REFUSED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
RETRY_AFTER_S = 1
SAY_FULL_S = 10.0  # between two lines of the log that say that requests are refused


class Answer(Exception):
    """Ends a request with an answer of the router's own."""

    def __init__(self, status, text, retry=False):
        super().__init__(text)
        self.status, self.retry = status, retry


def error_response(answer):
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    body = {"error": {"message": str(answer), "type": kind, "param": None, "code": answer.status}}
    headers = {"Retry-After": str(RETRY_AFTER_S)} if answer.retry else None
    return web.json_response(body, status=answer.status, headers=headers)


class Proxy:
    def __init__(self, options, servers, chooser, metrics, session):
        self._options, self._servers, self._metrics, self._session = options, servers, metrics, session
        self._completions, self._others = chooser, policy.RoundRobin(servers, metrics, "pass")
        self.budget = bodies.Budget(options.max_bodies)
        self.draining = False
        self.requests = 0  # under way, without those for /health and /metrics
        self.idle = asyncio.Event()  # set while there are none
        self.idle.set()
        self._said_full = -SAY_FULL_S  # when the log said last that requests are refused

    # ---- the router's own paths

    async def health(self, _):
        if self.draining:
            return error_response(Answer(503, "the router ends"))
        if not any(server.up for server in self._servers.all):
            return error_response(Answer(503, "no server is up"))
        return web.json_response({"servers": {server.name: server.up for server in self._servers.all}})

    async def metrics(self, _):
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    # ---- all others

    async def handle(self, request):
        self.requests += 1
        self.idle.clear()
        try:
            with self.budget.share() as share:
                return await self._handle(request, share)
        except Answer as answer:
            self._metrics.refused(answer.status)
            return error_response(answer)
        finally:
            self.requests -= 1
            if self.requests == 0:
                self.idle.set()

    async def _handle(self, request, share):
        if self.draining:
            raise Answer(503, "the router ends: send the request again", retry=True)
        path = request.path
        completes = path in COMPLETIONS and request.method != "OPTIONS"  # which is a browser's, before its request
        if not completes and (path.rstrip("/") in REFUSED or ".." in path or not PASSED.fullmatch(path)):
            raise Answer(404, f"the router does not pass {path} on: ask the server itself")
        if completes and request.method != "POST":
            raise Answer(405, f"{path} takes POST")
        # No variable but the exchange's keeps the body: it lets it go.
        exchange = Exchange(request, await self._body(request, share), share, self._options, self._servers, self._session)
        return await self._send(exchange, self._completions if completes else self._others)

    async def _body(self, request, share):
        most = self._options.max_body
        try:
            if (request.content_length or 0) > most:
                raise bodies.TooLarge(f"the body has more than {most} bytes")
            async with asyncio.timeout(self._options.body_timeout):
                return await bodies.read(request.content, most, share)
        except bodies.TooLarge as error:
            raise Answer(413, str(error)) from None
        except bodies.NoMemory as error:
            raise Answer(503, str(error), retry=True) from None
        except TimeoutError:
            raise Answer(408, "the body did not come in time") from None
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, ValueError) as error:
            raise Answer(400, f"the body cannot be read: {error}") from None

    async def _send(self, exchange, chooser):
        """Sends a request to servers until one answers."""
        outcome = "failed"
        try:
            decision = await chooser.decide(self._asked(exchange, chooser), exchange.key)
            response = await self._try(exchange, chooser, decision)
            outcome = exchange.outcome
            return response
        except prompt.NotJson as error:
            outcome = None  # it was not sent anywhere, nor would it ever be
            raise Answer(400, str(error)) from None
        except NoServer as error:
            raise Answer(503, str(error), retry=True) from None
        except Late as error:
            raise Answer(504, str(error)) from None
        except asyncio.CancelledError:
            outcome = "aborted"
            raise
        finally:
            if outcome is not None:
                self._metrics.ended(exchange.server, outcome)

    def _asked(self, exchange, chooser):
        """Returns the Prompt of a request."""
        if chooser is self._others:
            return prompt.Prompt()
        return prompt.of(exchange.path, exchange.body)

    async def _try(self, exchange, chooser, decision):
        """Returns the response of the first server that answers.  Raises NoServer, Late, Answer."""
        for tries_left in reversed(range(self._options.tries)):
            ticket = await self._acquire(lambda: chooser.choose(decision))
            try:
                chooser.took(decision, ticket)
                return await exchange.at(ticket, is_last=tries_left == 0 or not self._others_than(ticket.server, decision))
            except Gone as gone:
                self._metrics.retried(ticket.server)
                why = str(gone)
                if not gone.again:
                    decision.tried.append(ticket.server)
            finally:
                self._servers.release(ticket)
        raise Answer(502, f"{self._options.tries} servers did not answer; the last one: {why}")

    def _others_than(self, server, decision):
        try:
            return bool(self._servers.candidates(decision.asked.model, [*decision.tried, server]))
        except NoServer:
            return False

    async def _acquire(self, choose):
        began = time.monotonic()
        try:
            ticket = await self._servers.acquire(choose)
        except Busy as error:
            self._say_full(str(error))
            raise Answer(503, str(error), retry=True) from None
        self._metrics.queued(time.monotonic() - began)
        return ticket

    def _say_full(self, why):
        if time.monotonic() - self._said_full >= SAY_FULL_S:
            self._said_full = time.monotonic()
            LOG.warning("requests are refused: %s", why)
