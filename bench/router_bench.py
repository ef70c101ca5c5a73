#!/usr/bin/env python3
"""What the router (python -m kvlarder.router) adds to the time to the first byte of an answer.

router_bench.py LARDERD [--rate N] [--seconds S] [--only TEXT]   with a Python that has aiohttp, such as that of deploy/fetch-vllm.sh

First, how long a Lookup takes from Python, by tokens, alone and through kvlarder.aio.  Then, per row:
a larderd that has the prompts, four servers that compute nothing (tests/engines/fake_openai.py) and the router are processes
of their own.  Requests go out at `rate` per second, whether or not earlier ones have been answered; between two of them, as
many go to the servers directly, so that both see the same machine.  `added` is the difference of the two percentiles.
"""

import argparse
import array
import asyncio
import dataclasses
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT / "tests" / "client" / "python")]

import aiohttp  # noqa: E402
import kvlarder.aio  # noqa: E402
from fake_openai import FakeProcess, tokens_of  # noqa: E402
from larderd import Larderd  # noqa: E402
from router_prices_test import Engine  # noqa: E402

SERVERS, PROMPTS, TOKENS = 4, 16, 4_096
WARM_S = 1.0


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    policy: str
    text: bool = False  # otherwise ids
    new: bool = False  # every prompt is another one


ROWS = (
    Row("ids, stored", "kv"),
    Row("text, stored, said before", "kv", text=True),
    Row("text, new", "kv", text=True, new=True),
    Row("ids, round robin", "round_robin"),
)


class Prompts:
    """Prompts whose first half is stored for all servers."""

    def __init__(self, daemon):
        client, content = kvlarder.connect(daemon.socket_dir), kvlarder.ContentSpec("m", "r2:x")
        self.texts = [("%04d " % number) * (TOKENS // 5) for number in range(PROMPTS)]
        self._engines = [Engine(client, str(number), "same") for number in range(SERVERS)]
        for engine in self._engines:
            for text in self.texts:
                engine.store(content, array.array("I", tokens_of(text)[: TOKENS // 2]))

    def body(self, row, number):
        text = self.texts[number % PROMPTS] + (f"{number:08d}" if row.new else "")
        return {"model": "m", "stream": True, "prompt": text if row.text else tokens_of(text)}


async def first_byte(http, url, body):
    began = time.perf_counter()
    async with http.post(url + "/v1/completions", json=body) as reply:
        await reply.content.readany()
        seconds = time.perf_counter() - began
        await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {await reply.text()}")
    return seconds


async def measure(http, row, prompts, router, servers, rate, seconds):
    """Returns (times through the router, times without it)."""
    times, tasks, began = ([], []), [], time.perf_counter()

    async def one(side, url, number):
        taken = await first_byte(http, url, prompts.body(row, number))
        if time.perf_counter() - began > WARM_S:
            times[side].append(taken)

    for number in range(int((WARM_S + seconds) * rate)):
        for side, url in enumerate((router, servers[number % len(servers)].url)):
            await asyncio.sleep(max(0.0, began + (number + side / 2) / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(one(side, url, number)))
    await asyncio.gather(*tasks)
    return times


def percentile(times, part):
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def show(row, routed, direct):
    figures = [percentile(times, part) for times in (direct, routed) for part in (0.5, 0.99)]
    figures += [figures[2] - figures[0], figures[3] - figures[1]]
    cells = (f"{1e3 * one:{width}.2f}" for one, width in zip(figures, (12, 9, 12, 9, 11, 9), strict=True))
    print(f"{row.name:<28}{''.join(cells)}   {len(routed)}", flush=True)


async def start_router(daemon, servers, policy):
    flags = [flag for number, one in enumerate(servers) for flag in ("--server", f"{number}={one.url}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvlarder.router", *flags, "--listen", "127.0.0.1:0", "--socket-dir", daemon.socket_dir,
        "--policy", policy, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    while True:
        line = (await process.stderr.readline()).decode()
        if not line:
            raise RuntimeError("the router has ended")
        if found := re.search(r"listens at (\S+),", line):
            return process, f"http://{found[1]}"


async def show_lookups(daemon, prompts, count=300):
    """Prints the time of a Lookup of a stored prompt, and of the longest one that Larder looks up."""
    content, sync = kvlarder.ContentSpec("m", "r2:x"), kvlarder.connect(daemon.socket_dir)
    longest = array.array("I", range(kvlarder.LOOKUP_TOKENS_MAX))
    async with await kvlarder.aio.connect(daemon.socket_dir) as client:
        for tokens in (array.array("I", tokens_of(prompts.texts[0])), longest):
            times = ([], [])
            for _ in range(count):
                began = time.perf_counter()
                sync.lookup(content, tokens=tokens)
                between = time.perf_counter()
                await client.lookup(content, tokens=tokens)
                times[0].append(between - began)
                times[1].append(time.perf_counter() - between)
            figures = (1e3 * percentile(one, part) for one in times for part in (0.5, 0.99))
            text = "p50 {:.2f} ms, p99 {:.2f}; by kvlarder.aio p50 {:.2f}, p99 {:.2f}"
            print(f"Lookup of {len(tokens)} tokens: {text.format(*figures)}", flush=True)


async def run(arguments):
    daemon = Larderd(arguments.larderd, "--pool", "256MiB")
    servers = [FakeProcess(first_s=0.02) for _ in range(SERVERS)]
    try:
        prompts = Prompts(daemon)
        await show_lookups(daemon, prompts)
        print(f"{'prompts':<28}{'direct p50':>12}{'p99':>9}{'router p50':>12}{'p99':>9}{'added p50':>11}{'p99':>9}   ms, n")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            for row in (row for row in ROWS if arguments.only in row.name):
                process, url = await start_router(daemon, servers, row.policy)
                routed, direct = await measure(http, row, prompts, url, servers, arguments.rate, arguments.seconds)
                process.terminate()
                await process.communicate()
                show(row, routed, direct)
    finally:
        for one in servers:
            one.kill()
        daemon.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larderd")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each row")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name has this")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores; {arguments.rate:g} requests/s to the router and as many to {SERVERS} servers directly")
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main()
