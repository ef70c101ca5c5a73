#!/usr/bin/env python3
"""The router over HTTP, with servers that compute nothing and a real daemon: good weather, bad weather, nothing left over.

router_test.py LARDERD [PYTHON]           runs the tests; with PYTHON, which has aiohttp, if this Python has none
router_test.py LARDERD [PYTHON] --write   writes the tables of docs/engines/router.md
"""

import array
import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import unittest
import zlib
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

try:
    import aiohttp
    import prometheus_client  # noqa: F401
except ImportError:
    if len(sys.argv) > 2 and not sys.argv[2].startswith("-"):
        os.execv(sys.argv[2], [sys.argv[2], "-B", *sys.argv[:2], *sys.argv[3:]])
    print("skipped: no aiohttp and prometheus_client; deploy/fetch-vllm.sh fetches them")
    sys.exit(77)

import kvlarder  # noqa: E402
from fake_openai import Fake, FakeProcess, tokens_of  # noqa: E402
from kvlarder.router import directory, metrics, options, prices, prompt, rates, servers, tokenizer  # noqa: E402
from kvlarder.router.exchange import Exchange  # noqa: E402
from kvlarder.router.router import Router  # noqa: E402
from larderd import Larderd  # noqa: E402
from router_prices_test import BLOCK, Engine  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "engines" / "router.md"
COMPLETIONS = "/v1/completions"
PATIENCE_S = 60.0  # for what must happen


def open_sockets():
    """Returns how many sockets this process has."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith("socket:") for link in links)


async def until(true, what):
    """Waits until something is true, which `what` says."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not in {PATIENCE_S:g} s: {what}") from None


def sample(text, name, **labels):
    """Returns the sum of a metric's samples that have these labels."""
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found is not None:
            has = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
            if all(has.get(label) == value for label, value in labels.items()):
                total += float(found[2])
    return total


class RouterTest(unittest.IsolatedAsyncioTestCase):
    """A router in this event loop, whose servers and clients are there, too."""

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)  # it makes thousands of requests slow
        self.stack = contextlib.AsyncExitStack()
        self.addAsyncCleanup(self.stack.aclose)
        self.http = await self.stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        logging.getLogger("larder.router").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("larder.router").setLevel, logging.NOTSET)

    async def fakes(self, count=2, **behaviour):
        return [await self.stack.enter_async_context(Fake(**behaviour)) for _ in range(count)]

    async def start(self, fakes, **chosen):
        chosen = {"socket_dir": "/nonexistent", "listen": "127.0.0.1:0", "health_interval": 0.05, **chosen}
        addresses = tuple(options.Address("abcdef"[index], fake.url) for index, fake in enumerate(fakes))
        self.router = await self.stack.enter_async_context(Router(options.Options(servers=addresses, **chosen)))
        self.url = f"http://{self.router.address}"
        return self.router

    def post(self, path=COMPLETIONS, **fields):
        fields = {"prompt": [1, 2, 3], "stream": True, **fields} if path == COMPLETIONS else fields
        return self.http.post(self.url + path, json=fields)

    async def ask(self, path=COMPLETIONS, **fields):
        """Returns (status, headers, body) of an answer."""
        async with self.post(path, **fields) as reply:
            return reply.status, reply.headers, await reply.read()

    async def server_of(self, **fields):
        status, headers, _ = await self.ask(**fields)
        self.assertEqual(status, 200)
        return headers["larder-server"]

    async def count(self, name, **labels):
        async with self.http.get(self.url + "/metrics") as reply:
            return sample(await reply.text(), f"larder_router_{name}", **labels)

    async def nothing_is_left(self, fakes=()):
        router = self.router
        await until(lambda: router.proxy.requests == 0, "no request")
        router.servers.check_invariants()
        self.assertEqual(router.servers.waiting, 0)
        self.assertEqual([server.requests for server in router.servers.all], [0] * len(router.servers.all))
        self.assertEqual(router.proxy.budget.held, 0)
        for fake in fakes:
            await until(lambda one=fake: one.counts.open == 0, "no request at a server")


class GoodWeather(RouterTest):
    async def test_an_answer_is_passed_on_as_it_comes(self):
        (fake,) = await self.fakes(1, parts=100_000, part_s=0.01)
        await self.start([fake])
        async with self.post() as reply:
            self.assertEqual(await reply.content.readexactly(64), b"0" * 64)
            self.assertEqual((fake.counts.ended, fake.counts.open), (0, 1))  # it goes on
            reply.close()
        await self.nothing_is_left([fake])

    async def test_the_answer_is_the_servers(self):
        (fake,) = await self.fakes(1)
        await self.start([fake])
        status, headers, body = await self.ask()
        self.assertEqual((status, body), (200, b"0" * 64 + b"1" * 64 + b"2" * 64))
        self.assertEqual((headers["Content-Type"], headers["larder-server"]), ("text/event-stream", "a"))
        fake.does.status = 422
        status, _, body = await self.ask()
        self.assertEqual((status, json.loads(body)), (422, {"error": {"message": "as told"}}))
        await self.nothing_is_left([fake])

    async def test_headers_are_passed_on_but_those_of_the_connection(self):
        (fake,) = await self.fakes(1)
        fake.url = fake.url.replace("127.0.0.1", "localhost")  # aiohttp keeps no cookies of addresses
        await self.start([fake])
        headers = {"Authorization": "Bearer k", "X-Own": "1", "Connection": "X-Hop", "X-Hop": "2", "Cookie": "c=3"}
        async with self.http.post(self.url + COMPLETIONS, json={"prompt": "hi"}, headers=headers) as reply:
            self.assertEqual((reply.status, reply.headers["Set-Cookie"]), (200, "of=server"))
        got = fake.counts.headers
        self.assertEqual((got["Authorization"], got["X-Own"], got["Cookie"]), ("Bearer k", "1", "c=3"))
        self.assertNotIn("X-Hop", got)
        await self.ask()
        self.assertNotIn("Cookie", fake.counts.headers)

    async def test_compressed_requests(self):
        (fake,) = await self.fakes(1)
        await self.start([fake])
        body = zlib.compress(json.dumps({"prompt": [4, 5]}).encode())
        async with self.http.post(self.url + COMPLETIONS, data=body, headers={"Content-Encoding": "deflate"}) as reply:
            self.assertEqual(reply.status, 200)
        self.assertEqual(fake.counts.last, {"prompt": [4, 5]})

    async def test_other_paths(self):
        fakes = await self.fakes(2)
        await self.start(fakes)
        async with self.http.get(self.url + "/v1/models?x=%2F") as reply:
            self.assertEqual(((await reply.json())["data"], reply.status), ([{"id": "m", "parent": None}], 200))
        status, _, body = await self.ask("/tokenize", prompt="ab")
        self.assertEqual((status, json.loads(body)["tokens"]), (200, [97, 98]))
        for path in ("/sleep", "/v1/load_lora_adapter", "/v1/unload_lora_adapter/", "/v1/%2e%2e/sleep", "/"):
            async with self.http.post(aiohttp.client.URL(self.url + path, encoded=True), json={}) as reply:
                self.assertEqual(reply.status, 404, path)
        self.assertEqual(await self.count("choices_total", reason="pass"), 2)

    async def test_a_browsers_question_before_its_request(self):
        (fake,) = await self.fakes(1)
        await self.start([fake])
        async with self.http.options(self.url + COMPLETIONS) as reply:
            self.assertEqual((reply.status, reply.headers["Access-Control-Allow-Origin"]), (200, "*"))
        self.assertEqual(fake.counts.requests, 0)
        await self.nothing_is_left([fake])

    async def test_round_robin(self):
        fakes = await self.fakes(3)
        await self.start(fakes, policy="round_robin")
        self.assertEqual([await self.server_of() for _ in range(6)], list("abcabc"))
        self.assertEqual((await self.count("choices_total", reason="round_robin"), fakes[0].counts.tokenized), (6, 0))

    async def test_a_model_goes_to_the_servers_that_have_it(self):
        fakes = await self.fakes(3)
        fakes[1].does.models = {"m": None, "tuned": "m"}
        await self.start(fakes, policy="round_robin")
        self.assertEqual({await self.server_of(model="tuned") for _ in range(4)}, {"b"})
        self.assertEqual({await self.server_of(model="m") for _ in range(6)}, {"a", "b", "c"})
        self.assertEqual({await self.server_of(model="none knows") for _ in range(6)}, {"a", "b", "c"})
        fakes[1].does.health = 503
        await until(lambda: not self.router.servers.all[1].up, "it is seen")
        status, _, body = await self.ask(model="tuned")
        self.assertEqual((status, json.loads(body)["error"]["message"]), (503, "no server that has the model 'tuned' is up"))

    async def test_texts_are_turned_into_tokens_once(self):
        fakes = await self.fakes(2)
        await self.start(fakes)
        for _ in range(3):
            await self.server_of(prompt="x" * 500, model="m")
        await self.ask("/v1/chat/completions", messages=[{"role": "user", "content": "x" * 500}])
        self.assertEqual(sum(fake.counts.tokenized for fake in fakes), 2)
        self.assertEqual([await self.count("tokenizations_total", outcome=one) for one in ("asked", "cached")], [2, 2])

    async def test_a_server_that_cannot_tokenize_is_not_asked_again(self):
        (fake,) = await self.fakes(1, tokenizes=404)
        await self.start([fake])
        for text in "xyz":
            await self.server_of(prompt=text)
        self.assertEqual(fake.counts.tokenized, 1)
        self.assertEqual(await self.count("tokenizations_total", outcome="failed"), 3)

    async def test_a_server_that_tokenizes_slowly_is_not_waited_for(self):
        (fake,) = await self.fakes(1, tokenize_s=1_000)
        await self.start([fake], tokenize_timeout=0.05)
        await self.server_of(prompt="x")
        self.assertEqual(await self.count("tokenizations_total", outcome="failed"), 1)

    async def test_a_server_that_fails_to_tokenize_is_left_alone_for_longer_and_longer(self):
        (fake,) = await self.fakes(1, tokenizes=500)
        now, server = [0.0], mock.Mock(url=fake.url, tokens=0)
        asks = tokenizer.Tokenizer(options.Options(), mock.Mock(), self.http, clock=lambda: now[0])
        numbers = iter(range(100))

        async def asked(*times):
            """Returns how many questions the server got of five at each of these times, since the last one."""
            counts = []
            for when in times:
                now[0], before = now[0] + when, fake.counts.tokenized
                for _ in range(5):
                    question = prompt.of(COMPLETIONS, json.dumps({"prompt": f"{next(numbers)}"}).encode())
                    found = await asks.tokens_of(question, [server], {})
                    self.assertEqual(found.counted, fake.does.tokenizes == 200 and found.tokens is not None)
                counts.append(fake.counts.tokenized - before)
            return counts

        self.assertEqual(await asked(0.0, 1.9, 0.1, 3.9, 0.1, 7.9, 0.1), [3, 0, 1, 0, 1, 0, 1])
        fake.does.tokenizes = 400  # of the questions, which it answers in time
        self.assertEqual(await asked(60.0), [5])
        fake.does.tokenizes = 200
        self.assertEqual(await asked(0.0), [5])
        fake.does.tokenizes = 500
        self.assertEqual(await asked(0.0, 2.0), [3, 1])

    async def test_requests_that_come_at_once_do_not_make_a_pause_longer(self):
        (fake,) = await self.fakes(1, tokenizes=500)
        now, server = [0.0], mock.Mock(url=fake.url, tokens=0)
        asks = tokenizer.Tokenizer(options.Options(), mock.Mock(), self.http, clock=lambda: now[0])
        questions = [prompt.of(COMPLETIONS, b'{"prompt": "%d"}' % number) for number in range(20)]
        await asyncio.gather(*(asks.tokens_of(question, [server], {}) for question in questions))
        self.assertEqual(fake.counts.tokenized, 20)
        now[0] = tokenizer.PAUSE_S
        await asyncio.gather(*(asks.tokens_of(question, [server], {}) for question in questions))
        self.assertEqual(fake.counts.tokenized, 21)

    async def test_the_rate_of_a_server_is_learnt(self):
        (fake,) = await self.fakes(1, token_s=1e-4)
        await self.start([fake])
        for _ in range(5):
            await self.server_of(prompt=[1] * 1_000)
        rate = await self.count("prefill_tokens_per_second")
        self.assertTrue(1_000 < rate < 10_001, rate)  # of 10,000; a busy machine adds to the time
        await self.server_of(prompt=[1] * 1_000, stream=False)
        self.assertEqual(await self.count("prefill_tokens_per_second"), rate)  # when it began to answer is not seen

    async def test_refusals_say_nothing_about_the_rate(self):
        (fake,) = await self.fakes(1, status=422)
        await self.start([fake], prefill_rate=1_234.0)
        for _ in range(5):
            await self.ask(prompt=[1] * 1_000)
        self.assertEqual(await self.count("prefill_tokens_per_second"), 1_234.0)

    async def test_requests_under_way_make_a_server_dearer(self):
        fakes = await self.fakes(2, first_s=1_000)
        await self.start(fakes, prefill_rate=100.0)
        tasks = [asyncio.create_task(self.ask(prompt=[1] * 1_000)) for _ in range(6)]
        await until(lambda: sum(fake.counts.open for fake in fakes) == 6, "all are under way")
        self.assertEqual([fake.counts.open for fake in fakes], [3, 3])
        for server in self.router.servers.all:
            self.assertGreater(server.queue_s(), 0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.nothing_is_left(fakes)
        self.assertEqual([server.queue_s() for server in self.router.servers.all], [0, 0])


class Learning(unittest.TestCase):
    """What answers tell about the rate of their server."""

    def setUp(self):
        self.now = 0.0
        address = options.Address("a", "http://a")
        self.server = servers.Server(address, options.Options(), mock.Mock(), [], clock=lambda: self.now)

    def take(self, tokens=1_000, covered=prices.NOTHING, counted=True):
        ticket = servers.Ticket(self.server, self.server.price(covered, tokens), tokens, True, counted)
        self.server.take(ticket)
        return ticket

    def answers(self, seconds, status=200, **asked):
        for _ in range(15):
            ticket = self.take(**asked)
            self.now += seconds
            self.server.begins(ticket, status)
            self.server.release(ticket)

    def test_answers_without_loads_and_with_small_ones_tell_it(self):
        self.answers(0.1)
        self.assertAlmostEqual(self.server.prefill.rate, 10_000.0)
        self.answers(0.1, covered=prices.Coverage(host=400, load_s=0.009))
        self.assertAlmostEqual(self.server.prefill.rate, 6_000.0)

    def test_others_tell_nothing(self):
        self.answers(0.1)
        for asked in (
            {"status": 400},
            {"status": 503},
            {"counted": False},
            {"covered": prices.Coverage(host=400, load_s=0.3)},  # and vLLM had it in its own cache
            {"covered": prices.Coverage(host=990, load_s=0.3)},
        ):
            self.answers(0.001, **asked)
            self.assertAlmostEqual(self.server.prefill.rate, 10_000.0)
            self.assertEqual(self.server.prefill.fixed_s, 0.0)
        self.server.check_invariants()

    def test_neither_do_those_that_waited_beside_a_request_that_left(self):
        self.answers(0.1)
        for leave in (lambda ticket: self.server.begins(ticket, 400), self.server.release):
            for _ in range(15):
                first, other = self.take(), self.take()
                self.now += 0.1
                leave(other)
                self.now += 0.001
                self.server.begins(first, 200)
                for ticket in (first, other)[: self.server.requests]:
                    self.server.release(ticket)
            self.assertAlmostEqual(self.server.prefill.rate, 10_000.0)
        self.server.check_invariants()


class Stored(RouterTest):
    """With a daemon that has the beginning of a prompt for one of two servers."""

    tokens = array.array("I", range(1_000, 1_000 + 16 * BLOCK))

    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.enterContext(mock.patch.object(directory, "CONNECT_S", 3.0))  # a busy daemon accepts late
        self.daemon = Larderd(sys.argv[1], "--pool", "64MiB")
        self.addCleanup(self.daemon.end)
        client = kvlarder.connect(self.daemon.socket_dir)
        self.engines = [Engine(client, engine_id) for engine_id in "ab"]
        for engine in self.engines:
            self.addCleanup(engine.close)
        content = kvlarder.ContentSpec("m", "r2:x")
        self.engines[0].store(content, array.array("I", range(BLOCK)))
        self.engines[1].store(content, self.tokens)

    async def start(self, fakes, **chosen):
        return await super().start(fakes, socket_dir=self.daemon.socket_dir, lookup_timeout=5.0, **chosen)

    async def test_the_server_that_has_the_prompt_takes_it(self):
        await self.start(await self.fakes(2), close=0.0)
        for _ in range(4):
            self.assertEqual(await self.server_of(prompt=list(self.tokens) + [7, 8]), "b")
        self.assertEqual(await self.count("choices_total", reason="cheapest"), 4)
        self.assertEqual(await self.count("expected_tokens_total", where="host"), 4 * 16 * BLOCK)
        self.assertEqual(await self.count("expected_tokens_total", where="computed"), 4 * 2)
        self.assertEqual(await self.count("lookups_total", outcome="answered"), 4)

    async def test_texts_are_looked_up_too(self):
        text = "".join(map(chr, range(32, 127))) * 20
        self.engines[1].store(kvlarder.ContentSpec("m", "r2:x"), array.array("I", tokens_of(text)[: 10 * BLOCK]))
        await self.start(await self.fakes(2), close=0.0)
        self.assertEqual(await self.server_of(prompt=text), "b")
        self.assertEqual(await self.count("expected_tokens_total", where="host"), 10 * BLOCK)
        chat = [{"role": "user", "content": text[:700]}, {"role": "assistant", "content": text[700:]}]
        _, headers, _ = await self.ask("/v1/chat/completions", messages=chat)
        self.assertEqual(headers["larder-server"], "b")

    async def test_a_long_queue_outweighs_what_is_stored(self):
        fakes = await self.fakes(2, first_s=1_000)
        await self.start(fakes, prefill_rate=10_000.0)
        tasks = [asyncio.create_task(self.ask(prompt=[9] * 50_000)) for _ in range(1)]
        await until(lambda: sum(fake.counts.open for fake in fakes) == 1, "it is under way")
        busy = [fake.counts.open for fake in fakes].index(1)
        if busy == 0:  # then the second goes to the server that has the prompt
            tasks.append(asyncio.create_task(self.ask(prompt=[8] * 100_000)))
            await until(lambda: fakes[1].counts.open == 1, "it is under way")
            fakes[0].does.first_s = 0.0
        fakes[0].does.first_s = 0.0
        self.assertEqual(await self.server_of(prompt=list(self.tokens)), "a")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.nothing_is_left(fakes)

    async def test_close_prices_stay_where_the_prompt_was(self):
        # How long an answer takes on a busy machine must not change the prices.
        self.enterContext(mock.patch.object(rates.Prefill, "observe"))
        await self.start(await self.fakes(2), prefill_rate=1e7)
        mine, other = [5] * 1_000, [6] * 1_000  # nobody has them
        first, second = await self.server_of(prompt=mine), await self.server_of(prompt=other)
        self.assertEqual({first, second}, {"a", "b"})
        for _ in range(3):
            self.assertEqual(await self.server_of(prompt=mine + [1]), first)
            self.assertEqual(await self.server_of(prompt=other + [1]), second)
        self.assertEqual(await self.count("choices_total", reason="sticky"), 6)

    async def test_a_daemon_that_dies_is_not_missed(self):
        fakes = await self.fakes(2)
        await self.start(fakes)
        logging.getLogger("larder.router").setLevel(logging.WARNING)
        with self.assertLogs("larder.router", "WARNING") as log:
            self.daemon.kill()
            for _ in range(10):
                await self.server_of(prompt=list(self.tokens))
        self.assertEqual(len([line for line in log.output if "queue alone" in line]), 1, log.output)
        self.assertEqual(await self.count("choices_total", reason="queue"), 10)
        self.assertEqual(await self.count("lookups_total", outcome="failed"), 3)
        self.assertEqual(await self.count("lookups_total", outcome="no_daemon"), 7)
        self.assertEqual(await self.count("larder_up"), 0)


class BadRequests(RouterTest):
    async def status_and_text(self, data, path=COMPLETIONS, **more):
        async with self.http.post(self.url + path, data=data, **more) as reply:
            return reply.status, (await reply.json())["error"]["message"]

    async def test_what_is_no_json_object(self):
        fakes = await self.fakes(1)
        await self.start(fakes)
        for body in (b"", b"{", b"[1]", b"\xff\xfe\xfa", b"[" * 200_000):
            status, text = await self.status_and_text(body)
            self.assertEqual(status, 400, body[:9])
            self.assertIn("JSON", text)
        async with self.http.get(self.url + COMPLETIONS) as reply:
            self.assertEqual(reply.status, 405)
        self.assertEqual((fakes[0].counts.requests, await self.count("refused_total", status="400")), (0, 5))
        await self.nothing_is_left(fakes)

    async def test_ten_megabytes_of_prompt(self):
        fakes = await self.fakes(1)
        await self.start(fakes)
        body = json.dumps({"prompt": "x" * 10_000_000}).encode()

        async def parts():
            for begin in range(0, len(body), 1 << 16):
                yield body[begin : begin + (1 << 16)]

        for data in (body, parts()):
            with contextlib.suppress(aiohttp.ClientConnectionError):  # it may end before all was sent
                status, text = await self.status_and_text(data)
                self.assertEqual((status, text), (413, f"the body has more than {8 << 20} bytes"))
        await until(lambda: self.router.metrics.registry.get_sample_value(
            "larder_router_refused_total", {"status": "413"}) == 2, "both were refused")  # fmt: skip
        self.assertEqual(fakes[0].counts.requests, 0)
        await self.nothing_is_left(fakes)

    async def test_bodies_take_bounded_memory_together(self):
        fakes = await self.fakes(1, first_s=1_000)
        await self.start(fakes, max_bodies=3_000_000)
        body = json.dumps({"prompt": [1, 2], "x": "x" * 1_000_000})
        tasks = [asyncio.create_task(self.http.post(self.url + COMPLETIONS, data=body)) for _ in range(2)]
        await until(lambda: fakes[0].counts.open == 2, "both are under way")
        async with self.http.post(self.url + COMPLETIONS, data=body) as reply:
            self.assertEqual((reply.status, reply.headers["Retry-After"]), (503, "1"))
            self.assertIn("memory", (await reply.json())["error"]["message"])
        for task in tasks:
            task.cancel()
        await self.nothing_is_left(fakes)

    async def test_a_body_is_let_go_when_its_answer_begins(self):
        fakes = await self.fakes(1, parts=100_000, part_s=0.01)
        await self.start(fakes)
        async with self.post(x="x" * 1_000_000) as reply:
            await reply.content.readany()
            self.assertEqual(self.router.proxy.budget.held, 0)
            reply.close()
        await self.nothing_is_left(fakes)

    async def test_a_body_that_never_ends(self):
        await self.start(await self.fakes(1), body_timeout=0.1)
        host, port = self.router.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        self.assertIn(b" 408 ", await reader.readline())
        writer.close()
        await self.nothing_is_left()


class Busy(RouterTest):
    async def test_requests_wait_for_a_server_in_their_order(self):
        (fake,) = await self.fakes(1, first_s=1_000)
        await self.start([fake], server_requests=1, health_interval=600.0)
        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(self.ask(prompt=[number])))
            await until(lambda: self.router.proxy.requests == number + 1, "it has come")
            await until(lambda: self.router.servers.waiting == number, "it waits")
        self.assertEqual((fake.counts.open, await self.count("queue_length")), (1, 3))
        fake.does.first_s = 0.0
        tasks[0].cancel()
        order = []
        for task in tasks[1:]:
            task.add_done_callback(lambda done: order.append(tasks.index(done)))
        for status, _, _ in await asyncio.gather(*tasks[1:]):
            self.assertEqual(status, 200)
        await until(lambda: len(order) == 3, "all have ended")
        self.assertEqual(order, [1, 2, 3])
        await self.nothing_is_left([fake])

    async def test_nobody_waits_behind_requests_for_another_server(self):
        fakes = await self.fakes(2, first_s=1_000)
        for fake, model in zip(fakes, "xy", strict=True):
            fake.does.models = {model: None}
        await self.start(fakes, server_requests=1, queue=1, health_interval=600.0)
        tasks = [asyncio.create_task(self.ask(model="x")) for _ in range(2)]
        await until(lambda: self.router.servers.waiting == 1, "one waits, and the queue is full")
        fakes[1].does.first_s = 0.0
        self.assertEqual(await self.server_of(model="y"), "b")
        self.assertEqual((await self.ask(model="x"))[0], 503)
        for task in tasks:
            task.cancel()
        await self.nothing_is_left(fakes)

    async def one_that_waits(self, fakes):
        """Starts a router whose one server takes one request.  Returns (its Servers, the Ticket of that request, the task of
        another one, which waits)."""
        one = (await self.start(fakes, server_requests=1)).servers

        def choose():
            server = one.all[0]
            return servers.Ticket(server, server.price(prices.NOTHING, 1), 1, True) if server.has_room else None

        first, waiting = await one.acquire(choose), asyncio.create_task(one.acquire(choose))
        await until(lambda: one.waiting == 1, "it waits")
        return one, first, waiting

    async def test_a_request_that_was_chosen_is_not_in_the_queue(self):
        fakes = await self.fakes(1)
        one, first, waiting = await self.one_that_waits(fakes)
        one.release(first)
        self.assertEqual(one.waiting, 0)
        one.release(await waiting)
        await self.nothing_is_left(fakes)

    async def test_a_full_queue_refuses(self):
        (fake,) = await self.fakes(1, first_s=1_000)
        await self.start([fake], server_requests=1, queue=1)
        tasks = [asyncio.create_task(self.ask()) for _ in range(2)]
        await until(lambda: self.router.servers.waiting == 1, "one waits")
        status, headers, body = await self.ask()
        self.assertEqual((status, headers["Retry-After"]), (503, "1"))
        self.assertIn("all servers are busy, and so is the queue", body.decode())
        for task in tasks:
            task.cancel()
        await self.nothing_is_left([fake])

    async def test_nobody_waits_for_ever(self):
        (fake,) = await self.fakes(1, first_s=1_000)
        await self.start([fake], server_requests=1, queue_timeout=0.05)
        task = asyncio.create_task(self.ask())
        await until(lambda: fake.counts.open == 1, "it is under way")
        status, _, body = await self.ask()
        self.assertEqual(status, 503)
        self.assertIn("all servers have been busy for too long", body.decode())
        task.cancel()
        await self.nothing_is_left([fake])

    async def test_a_request_that_leaves_as_it_is_chosen_gives_its_place_back(self):
        fakes = await self.fakes(1)
        one, first, waiting = await self.one_that_waits(fakes)
        one.release(first)  # chooses for the one that waits
        self.assertEqual(one.all[0].requests, 1)
        waiting.cancel()  # before it has run
        await asyncio.gather(waiting, return_exceptions=True)
        await self.nothing_is_left(fakes)

    async def test_those_that_wait_are_told_when_the_last_server_is_gone(self):
        (fake,) = await self.fakes(1, first_s=1_000)
        await self.start([fake], server_requests=1)
        tasks = [asyncio.create_task(self.ask()) for _ in range(3)]
        await until(lambda: self.router.servers.waiting == 2, "two wait")
        fake.does.health = 503
        for status, _, body in await asyncio.gather(*tasks):
            self.assertEqual((status, json.loads(body)["error"]["message"]), (503, "no server is up"))
        await self.nothing_is_left([fake])


class BadServers(RouterTest):
    async def test_no_server(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        fake = Fake()
        fake.url = f"http://127.0.0.1:{port}"
        await self.start([fake])
        status, headers, body = await self.ask()
        self.assertEqual((status, headers["Retry-After"]), (503, "1"))
        self.assertEqual(json.loads(body)["error"]["message"], "no server is up")
        async with self.http.get(self.url + "/health") as reply:
            self.assertEqual(reply.status, 503)
        await self.stack.enter_async_context(fake)
        await fake.listen(port)
        await until(lambda: self.router.servers.all[0].up, "it is seen")
        self.assertEqual(await self.server_of(), "a")

    async def test_killed_under_load_no_request_is_lost_that_was_not_begun_to_be_answered(self):
        await self.killed_under_load(headers_first=True, first_s=0.1)

    async def killed_under_load(self, **behaviour):
        with contextlib.ExitStack() as processes:
            fakes = [processes.enter_context(FakeProcess(parts=20, part_s=0.01, **behaviour)) for _ in range(2)]
            await self.start(fakes)
            begun, whole, cut_off, lost = set(), set(), set(), set()

            async def one(number):
                try:
                    async with self.post(prompt=[number]) as reply:
                        if reply.status != 200:
                            return lost.add(number)
                        while part := await reply.content.readany():
                            begun.add(number)
                        return whole.add(number)
                except aiohttp.ClientError:
                    (cut_off if number in begun else lost).add(number)

            tasks = []
            for number in range(200):
                tasks.append(asyncio.create_task(one(number)))
                await asyncio.sleep(0.002)
                if number == 100:
                    self.assertGreater(self.router.servers.all[0].requests, 5)
                    fakes[0].kill()
            await asyncio.gather(*tasks)
            self.assertEqual(lost, set())
            self.assertTrue(cut_off, "nobody was being answered")
            self.assertEqual(len(whole) + len(cut_off), 200)
            self.assertGreater(await self.count("retries_total"), 0)
            self.assertEqual(await self.count("requests_total", outcome="broken"), len(cut_off))
            await self.nothing_is_left()

    async def test_a_server_that_hangs_is_left_out_and_its_requests_go_elsewhere(self):
        with FakeProcess(first_s=0.05) as hanging, FakeProcess(first_s=0.05) as good:
            await self.start([hanging, good], policy="round_robin", health_timeout=0.5)
            hanging.process.send_signal(signal.SIGSTOP)
            answers = await asyncio.gather(*(self.ask() for _ in range(10)))
            self.assertEqual([status for status, _, _ in answers], [200] * 10)
            self.assertEqual({headers["larder-server"] for _, headers, _ in answers}, {"b"})
            hanging.process.send_signal(signal.SIGCONT)
            await until(lambda: self.router.servers.all[0].up, "it is well again")
            await self.nothing_is_left()

    async def test_a_server_that_dies_after_its_headers_has_not_begun(self):
        fakes = await self.fakes(2, headers_first=True)
        fakes[0].does.dies_after = 0
        await self.start(fakes, policy="round_robin")
        for _ in range(4):
            self.assertEqual(await self.server_of(), "b")
        await self.nothing_is_left(fakes)

    async def test_a_server_that_dies_in_the_middle_is_seen_by_the_client(self):
        (fake,) = await self.fakes(1, dies_after=2, part_s=0.01)
        await self.start([fake])
        with self.assertRaises(aiohttp.ClientPayloadError):
            await self.ask()
        self.assertEqual(await self.count("requests_total", outcome="broken"), 1)
        await self.nothing_is_left([fake])

    async def test_what_the_router_itself_lacks_takes_no_server_down(self):
        (fake,) = await self.fakes(1)
        await self.start([fake], health_interval=600.0)
        (server,) = self.router.servers.all
        logging.getLogger("larder.router").setLevel(logging.INFO)
        for error, up in (
            (OSError(errno.EMFILE, "Too many open files"), [True] * 4),
            (OSError(errno.ETIMEDOUT, "Connection timed out"), [True, False, False, False]),
            (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), [True, False, False, False]),
            (OSError(errno.ECONNREFUSED, "Connection refused"), [False] * 4),
        ):
            await self.router.servers.refresh()
            self.assertTrue(server.up)
            with (
                self.assertLogs("larder.router", "WARNING") as log,
                mock.patch("aiohttp.connector.aiohappyeyeballs.start_connection", side_effect=error),
            ):
                seen = []
                for _ in up:
                    async with aiohttp.ClientSession() as new:  # which has no connection yet
                        await server.look(new)
                    seen.append(server.up)
            self.assertEqual((seen, len(log.output)), (up, 1), error)
            self.assertIn(error.strerror, log.output[0])

    async def test_a_request_that_gets_no_connection_takes_no_server_down(self):
        (fake,) = await self.fakes(1, parts=100_000, part_s=0.01)
        await self.start([fake], health_interval=600.0)
        connect, port = aiohttp.connector.aiohappyeyeballs.start_connection, int(fake.url.rpartition(":")[2])

        async def lacks_files(addr_infos, **more):
            if addr_infos[0][4][1] == port:
                raise OSError(errno.EMFILE, "Too many open files")
            return await connect(addr_infos, **more)

        async with self.post() as first:  # over the connection that the router has
            await first.content.readany()
            with mock.patch("aiohttp.connector.aiohappyeyeballs.start_connection", lacks_files):
                status, _, body = await self.ask()
            self.assertEqual(status, 502)
            self.assertIn("its connection failed", body.decode())
            self.assertTrue(self.router.servers.all[0].up)
            await first.content.readany()  # it goes on
            first.close()
        await self.nothing_is_left([fake])

    async def test_a_server_that_falls_silent(self):
        (fake,) = await self.fakes(1, part_s=1_000)
        await self.start([fake], silence_timeout=0.1)
        with self.assertRaises(aiohttp.ClientPayloadError):
            await self.ask()
        self.assertEqual(await self.count("requests_total", outcome="broken"), 1)
        await self.nothing_is_left([fake])

    async def test_a_server_that_never_begins(self):
        (fake,) = await self.fakes(1, first_s=1_000)
        await self.start([fake], answer_timeout=0.1)
        status, _, body = await self.ask()
        self.assertEqual(status, 504)
        self.assertIn("did not begin to answer in 0.1 s", body.decode())
        await self.nothing_is_left([fake])

    async def test_a_server_that_goes_down_twice_at_once(self):
        """As when several requests and a look at it notice at the same time."""
        (fake, other) = await self.fakes(2, first_s=1_000)
        await self.start([fake, other], policy="round_robin", health_interval=600.0)
        task = asyncio.create_task(self.ask())
        await until(lambda: fake.counts.open == 1, "it is under way")
        other.does.first_s = 0.0
        self.router.servers.all[0].down("for a test")
        await asyncio.sleep(0)  # its request is told to leave, and has not left
        self.router.servers.all[0].down("for a test")
        status, headers, _ = await task
        self.assertEqual((status, headers["larder-server"]), (200, "b"))
        await self.nothing_is_left([fake, other])

    async def test_overloaded_servers(self):
        fakes = await self.fakes(2)
        await self.start(fakes, policy="round_robin")
        fakes[0].does.status = 503
        for _ in range(3):
            self.assertEqual(await self.server_of(), "b")
        fakes[1].does.status = 503
        status, _, body = await self.ask()
        self.assertEqual((status, json.loads(body)), (503, {"error": {"message": "as told"}}))  # the server's own words
        await self.nothing_is_left(fakes)

    async def test_an_engine_that_ended(self):
        fakes = await self.fakes(2)
        await self.start(fakes, policy="round_robin", health_interval=600.0)
        fakes[0].does.status = 500
        status, headers, _ = await self.ask()  # it is well, so the request is to blame
        self.assertEqual((status, headers["larder-server"]), (500, "a"))
        fakes[0].does.health = 503
        self.assertEqual([await self.server_of() for _ in range(4)], ["b"] * 4)
        self.assertEqual(fakes[0].counts.requests, 2)
        await self.nothing_is_left(fakes)

    async def test_a_connection_that_was_closed_while_it_was_idle(self):
        """A server may close it at the moment in which a request is sent."""
        requests = 0

        async def serve(reader, writer):
            nonlocal requests
            served = 0
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    if length := re.search(rb"(?i)content-length: (\d+)", head):
                        await reader.readexactly(int(length[1]))
                        requests += 1
                        served += 1
                        if served == 2:
                            break
                    body = b'{"data": []}'
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        fake = Fake()
        fake.url = "http://127.0.0.1:{}".format(listening.sockets[0].getsockname()[1])
        await self.start([fake], health_interval=600.0)
        for _ in range(3):
            self.assertEqual(await self.server_of(prompt=[1]), "a")
        self.assertGreater(requests, 3)
        await self.nothing_is_left()
        listening.close()

    async def test_a_request_that_kills_servers_kills_only_so_many(self):
        fakes = await self.fakes(4, headers_first=True, dies_after=0)
        await self.start(fakes, tries=2, policy="round_robin", health_interval=600.0)
        for fake in fakes:
            fake.does.health = 503
        status, _, body = await self.ask()
        self.assertEqual(status, 502)
        self.assertIn("2 servers did not answer; the last one: it", body.decode())
        self.assertEqual(sum(fake.counts.requests for fake in fakes), 2)
        await self.nothing_is_left(fakes)


class BadClients(RouterTest):
    async def test_a_client_that_stops_reading_takes_no_memory_and_is_cut_off(self):
        (fake,) = await self.fakes(1, parts=100_000, part_bytes=65_536)
        await self.start([fake], stall_timeout=0.5)
        async with self.post() as reply:
            await reply.content.readany()
            reply.connection.transport.pause_reading()
            await until(lambda: self.router.proxy.requests == 0, "it was cut off")
            sent = fake.counts.sent  # what sockets hold; of 6.5 GB
            self.assertLess(sent, 64 << 20)
            reply.connection.transport.abort()
        self.assertEqual(await self.count("requests_total", outcome="stalled"), 1)
        await self.nothing_is_left([fake])

    async def test_many_clients_that_leave_leave_nothing(self):
        count = max(200, int(2_000 * SCALE))
        fakes = await self.fakes(2, first_s=0.02, parts=5, part_s=0.005)
        await self.start(fakes, server_requests=20, queue=1_000, health_interval=600.0)  # so that idle connections end
        before, sockets = asyncio.all_tasks(), open_sockets()

        async def leave(number):
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(0.003 * (number % 100)):  # before, in the queue, waiting, in the middle
                    await self.ask(prompt=[number] * 200 if number % 3 else "x" * number)

        for first in range(0, count, 100):
            await asyncio.gather(*(leave(number) for number in range(first, first + 100)))
        await self.nothing_is_left(fakes)
        self.assertGreater(sum(fake.counts.cancelled for fake in fakes), 0)
        self.assertGreater(await self.count("requests_total", outcome="aborted"), count / 10)
        await self.http.connector.close()
        await until(lambda: not asyncio.all_tasks() - before, "no task")
        await until(lambda: open_sockets() <= sockets, "no connection")
        gc.collect()
        self.assertEqual([one for one in gc.get_objects() if isinstance(one, (servers.Ticket, Exchange))], [])

    async def test_a_client_that_leaves_stops_its_server(self):
        for first_s, parts in ((1_000, 1), (0.0, 100_000)):
            (fake,) = await self.fakes(1, first_s=first_s, parts=parts, part_s=0.01)
            await self.start([fake])
            task = asyncio.create_task(self.ask())
            await until(lambda: fake.counts.open == 1, "it is under way")
            task.cancel()
            await until(lambda: fake.counts.cancelled == 1, "its server knows")
            await self.nothing_is_left([fake])
            self.assertEqual(await self.count("requests_total", outcome="aborted"), 1)


class Process(unittest.IsolatedAsyncioTestCase):
    """The router as an operator starts it."""

    @staticmethod
    async def end(process):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()

    async def start(self, fake, *more):
        flags = ("--server", f"a={fake.url}", "--listen", "127.0.0.1:0", "--socket-dir", "/nonexistent", *more)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-B", "-m", "kvlarder.router", *flags, stderr=asyncio.subprocess.PIPE
        )
        self.addAsyncCleanup(self.end, process)
        lines = []
        while not lines or "listens at" not in lines[-1]:
            lines.append((await process.stderr.readline()).decode())
            self.assertTrue(lines[-1], lines)
        return process, "http://" + re.search(r"listens at (\S+),", lines[-1])[1]

    async def test_answers_under_way_take_no_memory_for_their_requests(self):
        async with Fake(parts=100_000, part_s=0.1, tokenizes=404) as fake, aiohttp.ClientSession() as http:
            process, url = await self.start(fake)
            pages = lambda: int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1])  # noqa: E731
            bodies = [json.dumps(body).encode() for body in ({"prompt": "x" * 4_000_000}, {"prompt": [1_000] * 600_000})]
            replies, before = [], pages()
            for number in range(40):
                replies.append(await http.post(url + COMPLETIONS, data=bodies[number % 2]))
                self.assertEqual(replies[-1].status, 200)
            taken = (pages() - before) * os.sysconf("SC_PAGE_SIZE")
            self.assertLess(taken, 80_000_000)  # of 152 million bytes of requests
            for reply in replies:
                reply.close()

    async def test_at_sigterm_requests_end_and_no_more_are_taken(self):
        async with Fake(parts=30, part_s=0.06) as fake, aiohttp.ClientSession() as http, aiohttp.ClientSession() as new:
            process, url = await self.start(fake)
            async with http.get(url + "/health") as health:
                self.assertEqual(health.status, 200)
            async with new.post(url + COMPLETIONS, json={"prompt": [1]}) as reply:
                await reply.content.readexactly(64)
                process.terminate()
                while health.status != 503:  # over the connection that it has
                    async with http.get(url + "/health") as health:
                        await health.read()
                async with http.post(url + COMPLETIONS, json={"prompt": [1]}) as refused:
                    self.assertEqual((refused.status, refused.headers["Retry-After"]), (503, "1"))
                with self.assertRaises(aiohttp.ClientConnectorError):
                    while True:
                        async with new.get(url + "/health") as health:
                            self.assertEqual(health.status, 503)
                self.assertEqual(len(await reply.read()), 29 * 64)
            self.assertEqual(await process.wait(), 0)
            self.assertRegex((await process.stderr.read()).decode(), "ends: 1 requests are under way\n(.|\n)*has ended\n$")

    async def test_it_may_open_as_many_files_as_its_user_allows(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        try:
            async with Fake() as fake:
                process, _ = await self.start(fake)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.assertEqual(resource.prlimit(process.pid, resource.RLIMIT_NOFILE), (hard, hard))

    async def test_it_does_not_wait_for_ever(self):
        async with Fake(first_s=1_000) as fake, aiohttp.ClientSession() as http:
            process, url = await self.start(fake, "--drain-timeout", "0.1")
            task = asyncio.create_task(http.post(url + COMPLETIONS, json={"prompt": [1]}))
            await until(lambda: fake.counts.open == 1, "it is under way")
            process.terminate()
            self.assertEqual(await process.wait(), 0)
            with self.assertRaises(aiohttp.ClientError):
                await task

    async def test_an_address_that_is_taken(self):
        async with Fake() as fake:
            ended = await asyncio.create_subprocess_exec(
                sys.executable, "-B", "-m", "kvlarder.router", "--server", f"a={fake.url}",
                "--listen", fake.url.removeprefix("http://"), stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, text = await ended.communicate()
            self.assertEqual(ended.returncode, 1)
            self.assertIn("the router cannot listen at 127.0.0.1:", text.decode())

    def test_help(self):
        shown = subprocess.run(
            [sys.executable, "-B", "-m", "kvlarder.router", "--help"], capture_output=True, check=True, text=True
        ).stdout
        for field in options.FLAGS:
            self.assertIn(options.flag_of(field.name), shown)


def metric_rows():
    yield from ("| metric | type | labels | meaning |", "|---|---|---|---|")
    for name, (kind, labels, text) in metrics.SERIES.items():
        shown = metrics.metric_name(name) + ("_total" if kind == "counter" else "")
        yield f"| `{shown}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '-'} | {text} |"


def value_rows(values):
    yield from ("| value | meaning |", "|---|---|")
    for name, text in values.items():
        yield f"| `{name}` | {text} |"


def page_with_tables(text):
    for name, rows in (
        ("metrics", metric_rows()),
        ("outcomes", value_rows(metrics.OUTCOMES)),
        ("reasons", value_rows(metrics.REASONS)),
    ):
        begin, end = f"<!-- {name}: made by tests/engines/router_test.py --write -->\n", f"<!-- {name} end -->"
        before, rest = text.split(begin)
        text = before + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1]
    return text


class Docs(unittest.TestCase):
    def test_the_tables_are_up_to_date(self):
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(text, page_with_tables(text), "run router_test.py LARDERD --write")


if __name__ == "__main__":
    if sys.argv[-1] == "--write":
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        unittest.main(argv=[sys.argv[0], *[one for one in sys.argv[2:] if not one.startswith("/")]])
