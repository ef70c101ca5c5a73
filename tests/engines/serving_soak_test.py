#!/usr/bin/env python3
"""Two vLLM servers with LarderScheduler behind the router, 8 clients, and a daemon that is killed and started again and again:
the same answers all the time, nothing left held, no memory that grows.

serving_soak_test.py LARDERD MODELS   with vLLM's Python; MODELS: folder that hf_model.py wrote
"""

import asyncio
import os
import pathlib
import random
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "vllm_demo"), str(ROOT / "tests" / "client" / "python")]

import aiohttp  # noqa: E402
import counts  # noqa: E402
import kvlarder  # noqa: E402
import processes  # noqa: E402
import psutil  # noqa: E402
from larderd import Larderd  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
SEED = int(os.environ.get("LARDER_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
SECONDS, RESTARTS = 600 * SCALE, 10
CLIENTS, CONVERSATIONS, TURNS, ANSWER = 8, 12, 3, 8
CACHE_TOKENS = 3_200  # of one server's own cache, less than the conversations of one round have together
# PyTorch keeps prepared computations, one for each shape that a step had; without this their number grows for half an hour.
FEW_PREPARED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4", "LRU_CACHE_CAPACITY": "4"}


def own_bytes(pid):
    """Returns the resident bytes of a process and of those that it started, without what they share with others."""
    me = psutil.Process(pid)
    infos = [process.memory_info() for process in [me, *me.children(recursive=True)]]
    return sum(info.rss - info.shared for info in infos)


class Talkers:
    """Clients that hold the same conversations over and over, each time with another salt or one that was used before."""

    def __init__(self, http, url, until):
        rolls = random.Random(SEED)
        self.texts = [[[rolls.randrange(1_000) for _ in range(rolls.randrange(150, 250))] for _ in range(TURNS)]
                      for _ in range(CONVERSATIONS)]  # fmt: skip
        self.http, self.url, self.until = http, url, until
        self.known, self.errors, self.wrong, self.asked, self.begun = {}, [], [], 0, 0

    async def run(self):
        await asyncio.gather(*(self.client() for _ in range(CLIENTS)))

    async def client(self):
        while time.monotonic() < self.until:
            number, self.begun = self.begun, self.begun + 1
            salt = f"round {number // CONVERSATIONS // 2}"  # each twice, so that half of the conversations are found
            await self.converse(number % CONVERSATIONS, salt)

    async def converse(self, number, salt):
        tokens = []
        for turn, user in enumerate(self.texts[number]):
            tokens = tokens + user
            if (answer := await self.ask(tokens, salt)) is None:
                return
            if self.known.setdefault((number, turn), answer) != answer:
                self.wrong.append((number, turn, salt))
            tokens = tokens + answer

    async def ask(self, tokens, salt):
        body = {"model": "demo", "prompt": tokens, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True,
                "cache_salt": salt, "return_token_ids": True}  # fmt: skip
        self.asked += 1
        try:
            async with self.http.post(f"{self.url}/v1/completions", json=body) as reply:
                if reply.status == 200:
                    return (await reply.json())["choices"][0]["token_ids"]
                self.errors.append(f"status {reply.status}: {(await reply.text())[:300]}")
        except aiohttp.ClientError as error:
            self.errors.append(repr(error))
        return None


class ServingSoak(unittest.IsolatedAsyncioTestCase):
    async def test_servers_router_and_restarts(self):
        print(f"LARDER_TEST_SEED={SEED}", flush=True)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        disk = os.path.join(folder, "disk")
        os.mkdir(disk)
        daemon = Larderd(LARDERD, "--pool", "1GiB", "--disk", disk, "--disk-limit", "2GiB")
        self.addCleanup(daemon.end)
        env = {**processes.environment(folder, 2), **FEW_PREPARED, "VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
        started = self.enterContext(processes.ended([]))
        for number in range(2):
            started.append(
                processes.Server(
                    f"vllm-{number}", os.path.join(MODELS, "smol"), CACHE_TOKENS, daemon.socket_dir, folder, env,
                    # A link on which loading takes about as long as computing, so that both are done at once.
                    options={"emulated_link_mb_per_s": 20.0, "load_timeout_ms": 5_000, "patience_ms": 1_000},
                    flags=("--dtype", "float32", "--scheduler-cls", "kvlarder.vllm.LarderScheduler"),
                )  # fmt: skip
            )
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            await asyncio.gather(*(server.up(http) for server in started))
            router = processes.Router("kv", started, daemon.socket_dir, 500, folder, env)
            self.enterContext(processes.ended([router]))
            await self.talk(http, daemon, started, router, await router.up())
            await self.nothing_held(http, daemon, started)

    async def talk(self, http, daemon, servers, router, url):
        talkers = Talkers(http, url, time.monotonic() + SECONDS)
        talk, sizes, restarts = asyncio.create_task(talkers.run()), {}, 0
        while not talk.done():
            await asyncio.wait([talk], timeout=SECONDS / RESTARTS)
            if not talk.done():
                await asyncio.to_thread(daemon.kill)
                await asyncio.sleep(0.5)
                await asyncio.to_thread(daemon.start)
                restarts += 1
            for process in (*servers, router):
                sizes.setdefault(process.name, []).append(own_bytes(process.pid))
        await talk
        counted = await counts.counts(http, servers)
        growths = {name: (found[-1] - found[len(found) // 4]) / found[len(found) // 4] for name, found in sizes.items()}
        print(
            f"{talkers.asked} requests in {SECONDS:.0f} s, {restarts} restarts of the daemon, {len(talkers.errors)} errors, "
            f"{len(talkers.wrong)} other answers; {dict(counted)}; growth after the first quarter "
            f"{ {name: round(growth, 4) for name, growth in growths.items()} } of {sizes}", flush=True,
        )  # fmt: skip
        self.assertEqual((talkers.errors, talkers.wrong), ([], []))
        self.assertGreater(restarts, 1)
        self.assertGreater(counted["restores"] + counted["host"] + counted["disk"], 0)
        for name, growth in growths.items():
            self.assertLessEqual(growth, 0.02 if SCALE >= 1 else 0.1, name)

    async def nothing_held(self, http, daemon, servers):
        for server in servers:
            async with http.post(f"{server.url}/reset_prefix_cache") as reply:
                self.assertEqual(reply.status, 200)
            self.assertNotIn("Failed to reset prefix cache", server.output(), "blocks of vLLM are still held")
        client = kvlarder.connect(daemon.socket_dir)
        left = client.clear(kvlarder.SelectionScope.ALL, dry_run=True)
        self.assertEqual((left.leased, left.kept_pinned, left.kept_in_use), (0, 0, 0))


if __name__ == "__main__":
    LARDERD, MODELS = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
