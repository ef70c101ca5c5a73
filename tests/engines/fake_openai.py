#!/usr/bin/env python3
"""A server that speaks OpenAI's API as vLLM does, and computes nothing: it answers when and how it is told.

In a test's own event loop: `async with Fake() as fake`.  As a process, which can be killed: FakeProcess(), or
fake_openai.py, which prints its URL; POST /control {"first_s": 0.1} sets fields of its Behaviour, GET /counts shows Counts.
"""

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys

from aiohttp import web


@dataclasses.dataclass
class Behaviour:
    first_s: float = 0.0  # until the first part of an answer
    token_s: float = 0.0  # in addition, for each token of the prompt
    headers_first: bool = False  # as vLLM, which sends the headers of a stream before its first token
    parts: int = 3
    part_bytes: int = 64
    part_s: float = 0.0  # between two parts
    dies_after: int = -1  # parts; then the connection ends
    status: int = 200
    health: int = 200
    tokenizes: int = 200  # status of /tokenize
    tokenize_s: float = 0.0
    models: dict = dataclasses.field(default_factory=lambda: {"m": None})  # {name: parent}


@dataclasses.dataclass
class Counts:
    requests: int = 0  # of completions
    open: int = 0  # under way
    ended: int = 0  # answered whole
    cancelled: int = 0  # the client left
    tokenized: int = 0
    last: dict | None = None  # the body of the last one
    headers: dict | None = None
    sent: int = 0  # bytes of answers


def tokens_of(text):
    return list(text.encode())


class Fake:
    def __init__(self, **behaviour):
        self.does, self.counts = Behaviour(**behaviour), Counts()
        self.url, self._runner = None, None

    async def __aenter__(self):
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_options("/v1/completions", self._preflight)
        app.router.add_post("/control", self._control)
        app.router.add_get("/counts", self._show_counts)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen(0)
        return self

    async def listen(self, port):
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = "http://127.0.0.1:{}".format(self._runner.addresses[0][1])

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _health(self, _):
        return web.Response(status=self.does.health)

    async def _models(self, _):
        return web.json_response({"data": [{"id": name, "parent": parent} for name, parent in self.does.models.items()]})

    async def _tokenize(self, request):
        self.counts.tokenized += 1
        asked = await request.json()
        await asyncio.sleep(self.does.tokenize_s)
        text = asked["prompt"] if "prompt" in asked else "".join(message["content"] for message in asked["messages"])
        tokens = tokens_of(text)
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 1 << 20}, status=self.does.tokenizes)

    async def _preflight(self, _):
        return web.Response(headers={"Access-Control-Allow-Origin": "*"})

    async def _control(self, request):
        self.does = dataclasses.replace(self.does, **await request.json())
        return web.json_response({})

    async def _show_counts(self, _):
        return web.json_response(dataclasses.asdict(dataclasses.replace(self.counts, last=None, headers=None)))

    async def _complete(self, request):
        counts, does = self.counts, self.does
        counts.requests += 1
        counts.open += 1
        try:
            counts.last, counts.headers = await request.json(), dict(request.headers)
            response = await self._answer(request, does)
            counts.ended += response is not None
            return web.Response() if response is None else response
        except (asyncio.CancelledError, ConnectionError):
            counts.cancelled += 1
            raise
        finally:
            counts.open -= 1

    async def _answer(self, request, does):
        if does.status != 200:
            return web.json_response({"error": {"message": "as told"}}, status=does.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Set-Cookie": "of=server"})
        if does.headers_first:
            await response.prepare(request)
        await asyncio.sleep(does.first_s + does.token_s * len(self.counts.last.get("prompt", ())))
        if not does.headers_first:
            await response.prepare(request)
        for part in range(does.parts):
            if part == does.dies_after:
                request.transport.abort()
                return None
            await response.write(b"%d" % (part % 10) * does.part_bytes)
            self.counts.sent += does.part_bytes
            if does.part_s:
                await asyncio.sleep(does.part_s)
        await response.write_eof()
        return response


class FakeProcess:
    """A Fake in a process of its own.  Ready when the constructor returns."""

    def __init__(self, **behaviour):
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, json.dumps(behaviour)], stdout=subprocess.PIPE, text=True
        )
        self.url = self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


async def main():
    async with Fake(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")) as fake:
        print(fake.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
