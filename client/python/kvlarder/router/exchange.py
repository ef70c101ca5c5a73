"""One request on its way to a server, and the answer on its way back.

Until the first byte of an answer has come, the request can be sent to another server (Gone).  From then on its body is let
go, and what comes is passed on as it comes, at the pace of the client.
Invariants: whatever ends the exchange, the connection to the server is closed, or free for another request.
Thread-safety: one task uses an Exchange.
"""

import asyncio

import aiohttp
import yarl
from aiohttp import web
from kvlarder.router.servers import is_refusal

# Headers of one connection, which mean nothing on another one.
HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
NOT_SENT = HOP | {"host", "content-length", "content-encoding", "expect"}  # the body is sent whole and decoded
SERVER_HEADER = "larder-server"  # of an answer: the engine id of the server that gave it
ELSEWHERE = (502, 503, 504)  # another server may give a better answer
BROKEN = 500  # vLLM gives it also to requests that were under way when its engine ended


class Gone(Exception):
    """A server did not begin to answer.  The text says why; again: it is well, and may be asked again."""

    def __init__(self, text, again=False):
        super().__init__(text)
        self.again = again


class Late(Exception):
    """No server began to answer in time.  The text says so."""


def passed_on(headers, without):
    """Returns the headers that go to the other side."""
    named = {name.strip().lower() for value in headers.getall("Connection", ()) for name in value.split(",")}
    return [(name, value) for name, value in headers.items() if name.lower() not in without | named]


class Exchange:
    def __init__(self, request, body, share, options, servers, session):
        """share: of the memory that the body takes (bodies.Share); given back as soon as the body is not needed."""
        self._request, self.body, self._share = request, body, share
        self._options, self._servers, self._session = options, servers, session
        self._response = None  # once an answer has begun
        self._headers = passed_on(request.headers, NOT_SENT)
        self.server = None  # the last one that it was sent to
        self.outcome = ""  # how it ended (metrics.OUTCOMES); '' while no answer has begun

    @property
    def path(self):
        return self._request.path

    @property
    def key(self):
        """The client's key for servers, as headers."""
        key = self._request.headers.get("Authorization")
        return {} if key is None else {"Authorization": key}

    async def at(self, ticket, is_last):
        """Sends the request to the server of a ticket and passes its answer on.  Returns the response, which may be cut off.

        is_last: no other server could answer, so that any answer is passed on.  Raises Gone, and Late.
        """
        self.server = ticket.server
        try:
            async with asyncio.timeout(self._options.answer_timeout) as scope:
                ticket.scope = scope
                try:
                    if ticket.lost:
                        raise Gone("it is left out")
                    await self._exchange(ticket, is_last)
                finally:
                    ticket.scope = None
        except TimeoutError:
            if self._response is not None:
                self._cut_off()
            elif ticket.lost:
                raise Gone("it is left out") from None
            else:
                raise Late(f"the server did not begin to answer in {self._options.answer_timeout:g} s") from None
        return self._response

    async def _exchange(self, ticket, is_last):
        upstream, whole = None, False
        try:
            try:
                upstream = await self._open(ticket.server)
                part = await upstream.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                if is_refusal(error):
                    self._servers.refuses(ticket.server, error)
                    raise Gone("it accepts no connections") from None
                await self._servers.look(ticket.server)
                raise Gone(f"its connection failed ({type(error).__name__})", again=ticket.server.up) from None
            await self._check_status(ticket.server, upstream.status, is_last)
            ticket.server.begins(ticket, upstream.status)
            self._share.drop()
            self.body = None
            await self._pass_on(ticket.scope, upstream, part)
            whole = self.outcome == "answered"
        finally:
            if upstream is not None and not whole:
                upstream.close()

    def _open(self, server):
        return self._session.request(
            self._request.method,
            yarl.URL(server.url + self._request.rel_url.raw_path_qs, encoded=True),
            headers=self._headers,
            data=self.body or None,
            allow_redirects=False,
        )

    async def _check_status(self, server, status, is_last):
        """Raises Gone if another server may give a better answer."""
        if status in ELSEWHERE and not is_last:
            raise Gone(f"its answer was {status}")
        if status == BROKEN:
            await self._servers.look(server)
            if not server.up:
                raise Gone(f"its answer was {status}, and it is not well")

    async def _pass_on(self, scope, upstream, part):
        headers = passed_on(upstream.headers, HOP)
        self._response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        self._response.headers[SERVER_HEADER] = self.server.engine_id
        now = asyncio.get_running_loop().time
        try:
            self.outcome = "stalled"  # if it ends while the client takes something
            scope.reschedule(now() + self._options.stall_timeout)
            await self._response.prepare(self._request)
            while part:
                self.outcome = "stalled"
                scope.reschedule(now() + self._options.stall_timeout)
                await self._response.write(part)
                self.outcome = "broken"  # if it ends while the server is silent
                scope.reschedule(now() + self._options.silence_timeout)
                if (part := await self._part(upstream)) is None:
                    return self._cut_off()
            self.outcome = "stalled"
            scope.reschedule(now() + self._options.stall_timeout)
            await self._response.write_eof()
            self.outcome = "answered"
        except ConnectionError:
            self.outcome = "aborted"

    @staticmethod
    async def _part(upstream):
        """Returns the next part of the answer, b'' at its end, or None if its server ended in the middle of it."""
        try:
            return await upstream.content.readany()
        except (aiohttp.ClientError, OSError):
            return None

    def _cut_off(self):
        """Ends the client's connection, so that it does not take a part of an answer for the whole."""
        transport = self._request.transport
        if transport is None:
            return
        if self.outcome == "stalled":
            transport.abort()  # what it has not taken is thrown away
        else:
            transport.close()
