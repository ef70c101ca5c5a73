"""The router as a whole: its parts, its tasks, and how they begin and end.

Thread-safety: one event loop uses a Router.
"""

import asyncio
import contextlib

import aiohttp
from aiohttp import web
from kvlarder.router import policy
from kvlarder.router.directory import Directory
from kvlarder.router.metrics import Metrics
from kvlarder.router.proxy import Proxy
from kvlarder.router.servers import Servers
from kvlarder.router.tokenizer import Tokenizer

CONNECT_S = 5.0
SERVER_KEEPALIVE_S = 4.0  # of idle connections to servers: vLLM closes its own after 5 s


class Router:
    """`async with Router(options) as router`: it serves meanwhile, and then lets the requests under way end.

    Entering raises OSError if it cannot listen.
    """

    def __init__(self, options):
        self._options = options
        self._tasks, self._stack = [], contextlib.AsyncExitStack()
        self.metrics = Metrics()
        self.servers = self.proxy = self.directory = self.address = None

    async def __aenter__(self):
        async with self._stack as stack:
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=SERVER_KEEPALIVE_S),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),  # cookies are the clients'
                    skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                )
            )
            self.servers = Servers(self._options, self.metrics, session)
            self.proxy = Proxy(self._options, self.servers, self._chooser(session), self.metrics, session)
            self.metrics.follow(self.servers, self.proxy.budget)
            stack.push_async_callback(self._end_tasks)
            seen = [self.servers] if self.directory is None else [self.servers, self.directory]
            await asyncio.gather(*(one.refresh() for one in seen))
            self._tasks += [asyncio.create_task(one.run()) for one in seen]
            await self._listen(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    def _chooser(self, session):
        if self._options.policy == "round_robin":
            return policy.RoundRobin(self.servers, self.metrics)
        self.directory = Directory(self._options, self.metrics)
        tokenizer = Tokenizer(self._options, self.metrics, session)
        return policy.ByPrice(self._options, self.servers, self.directory, tokenizer, self.metrics)

    async def _listen(self, stack):
        app = web.Application()
        app.router.add_get("/health", self.proxy.health)
        app.router.add_get("/metrics", self.proxy.metrics)
        app.router.add_route("*", "/{path:.*}", self.proxy.handle)
        # handler_cancellation: when a client leaves, its request ends, and the server stops computing for it.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        host, port = self._options.host_and_port
        site = web.TCPSite(runner, host, port, backlog=1_024)
        await site.start()
        stack.push_async_callback(self._drain, site)
        host, port = runner.addresses[0][:2]
        self.address = f"{host}:{port}"

    async def _drain(self, site):
        """Takes no new connections, refuses new requests, and waits until those under way have ended."""
        self.proxy.draining = True
        await site.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_timeout):
                await self.proxy.idle.wait()

    async def _end_tasks(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
