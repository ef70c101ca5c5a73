#!/usr/bin/env python3
"""Times a vLLM server with Larder and one without it, in turn, under requests that come at random (a Poisson process).

vllm_serving.py LARDERD MODEL [--new] [--requests N] [--rounds N] [--rates R ...] [--seed N] [--json FILE]
with vLLM's Python; MODEL: the folder `smol` that tests/engines/hf_model.py wrote

Each request asks about one of some documents, which together have more than twice the tokens of a server's own cache, and
every document was asked about once before. Rates are parts of what the server without Larder answers with 8 clients at
most, which is measured first. At each rate both servers get the same requests; the order changes from round to round.
--new   every prompt is new, so that nothing is found and everything is stored: throughput with 8 clients, and times at a
        rate of 0.7
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import aiohttp

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench" / "vllm_demo"), str(ROOT / "tests" / "client" / "python")]

import chats  # noqa: E402
import clients  # noqa: E402
import counts  # noqa: E402
import processes  # noqa: E402
import tables  # noqa: E402
from larderd import Larderd  # noqa: E402

WITH, WITHOUT = "with", "without"
DOCUMENTS, CHARACTERS, CACHE_TOKENS, ANSWER_TOKENS, CLIENTS = 14, 1_600, 2_560, 16, 8
BEYOND = (1.5, 2.0, 3.0, 4.0, 6.0)  # rates at which the server with Larder is tried, too, until it is too slow
LATE_S = 5.0
NEW_RATE = 0.7


class Times:
    """Of one server at one rate: times to first token, and between tokens, of all rounds."""

    def __init__(self):
        self.firsts, self.gaps, self.rounds = [], [], []

    def add(self, answers):
        self.firsts += [answer.first_s for answer in answers]
        self.gaps += [gap for answer in answers for gap in answer.gaps_s]
        self.rounds.append(tables.percentile(sorted(answer.first_s for answer in answers), 0.99))

    def first(self, part):
        return tables.percentile(sorted(self.firsts), part)

    @property
    def gap_p99(self):
        return tables.percentile(sorted(self.gaps), 0.99)


class Bench:
    def __init__(self, arguments, http, servers):
        """servers: {WITH: processes.Server, WITHOUT: one}."""
        self.arguments, self.http, self.servers = arguments, http, servers
        self.documents = chats.documents(ROOT / "docs", DOCUMENTS, CHARACTERS)
        self.text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))

    def messages(self, rolls):
        """Returns (messages, salt) of one request."""
        if self.arguments.new:
            begin = rolls.randrange(len(self.text) - CHARACTERS)
            return [{"role": "user", "content": self.text[begin : begin + CHARACTERS]}], f"new {rolls.random()}"
        document = rolls.choice(self.documents)
        return self.about(document, f"{rolls.choice(chats.QUESTIONS)} ({rolls.randrange(10**6)})"), "serving"

    @staticmethod
    def about(document, question):
        return [{"role": "system", "content": chats.INSTRUCTION + document}, {"role": "user", "content": question}]

    async def ask(self, name, request):
        messages, salt = request
        return await clients.ask(self.http, self.servers[name].url, messages, salt, ANSWER_TOKENS)

    async def fill(self):
        for name in self.servers:
            for document in self.documents:
                await self.ask(name, (self.about(document, chats.QUESTIONS[0]), "serving"))

    async def throughput(self, name, count, seed):
        """Returns requests per second with CLIENTS that wait for their answers."""
        rolls = random.Random(seed)
        requests = [self.messages(rolls) for _ in range(count)]

        async def client():
            while requests:
                await self.ask(name, requests.pop())

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return count / (time.perf_counter() - began)

    async def at(self, name, rate, count, seed):
        """Returns the answers to `count` requests that come at random, `rate` per second."""
        rolls = random.Random(seed)

        async def one(at_s, request):
            await asyncio.sleep(at_s)
            return await self.ask(name, request)

        at_s, asked = 0.0, []
        for _ in range(count):
            at_s += rolls.expovariate(rate)
            asked.append(one(at_s, self.messages(rolls)))
        return await asyncio.gather(*asked)

    async def rounds(self, names, rate):
        """Returns {name: Times}."""
        times = {name: Times() for name in names}
        for round_ in range(self.arguments.rounds):
            for name in names if round_ % 2 else names[::-1]:
                times[name].add(await self.at(name, rate, self.arguments.requests, f"{self.arguments.seed} {rate} {round_}"))
        return times

    async def again(self):
        """Documents that come again."""
        await self.fill()
        most = statistics.median([await self.throughput(WITHOUT, 5 * CLIENTS, f"most {number}") for number in range(3)])
        print(f"without Larder, {CLIENTS} clients get {most:.2f} answers per second", flush=True)
        best, found = {WITH: 0.0, WITHOUT: 0.0}, []
        for part in (*self.arguments.rates, *BEYOND):
            beyond = part > max(self.arguments.rates)
            if beyond and best[WITH] < found[-1]["rate"]:
                break
            times = await self.rounds([WITH] if beyond else [WITH, WITHOUT], part * most)
            for name, one in times.items():
                if one.first(0.99) <= LATE_S:
                    best[name] = part * most
            found.append({"rate": part * most, **{name: self.figures(one) for name, one in times.items()}})
            self.show(found[-1])
        ratio = best[WITH] / best[WITHOUT] if best[WITHOUT] else float("inf")
        print(f"highest rate whose p99 to first token is at most {LATE_S:g} s: with {best[WITH]:.2f}/s, without {best[WITHOUT]:.2f}/s: {ratio:.2f}x")
        return found

    async def new(self):
        """Prompts that never come again."""
        throughputs = {WITH: [], WITHOUT: []}
        for round_ in range(self.arguments.rounds):
            for name in (WITH, WITHOUT) if round_ % 2 else (WITHOUT, WITH):
                throughputs[name].append(await self.throughput(name, self.arguments.requests, f"{self.arguments.seed} {round_}"))
        ratios = [one / other for one, other in zip(*throughputs.values(), strict=True)]
        print(f"new prompts, {CLIENTS} clients: throughput {statistics.median(ratios):.3f} of that without Larder {throughputs}", flush=True)
        times = await self.rounds([WITH, WITHOUT], NEW_RATE * statistics.median(throughputs[WITHOUT]))
        found = {"rate": NEW_RATE, **{name: self.figures(one) for name, one in times.items()}}
        self.show(found)
        return [found]

    @staticmethod
    def figures(times):
        return {"p50": times.first(0.5), "p99": times.first(0.99), "gap_p99": times.gap_p99, "p99 of rounds": times.rounds}

    @staticmethod
    def show(found):
        line = f"{found['rate']:.2f}/s:"
        for name in (WITH, WITHOUT):
            if one := found.get(name):
                line += f" {name} Larder first token p50 {one['p50']:.3f} s, p99 {one['p99']:.3f} s, between tokens p99 {one['gap_p99']:.3f} s;"
        if WITHOUT in found:
            line += " ratios " + ", ".join(f"{found[WITH][key] / found[WITHOUT][key]:.3f}" for key in ("p50", "p99", "gap_p99"))
        print(line, flush=True)


async def run(arguments):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="larder-serving."))
        disk = os.path.join(folder, "disk")
        os.mkdir(disk)
        daemon = Larderd(arguments.larderd, "--pool", "2GiB", "--disk", disk, "--disk-limit", "4GiB")
        stack.callback(daemon.end)
        env = processes.environment(folder, 2)
        started = stack.enter_context(processes.ended([]))
        for name in (WITH, WITHOUT):
            socket_dir = daemon.socket_dir if name == WITH else None
            started.append(processes.Server(name, arguments.model, CACHE_TOKENS, socket_dir, folder, env))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await asyncio.gather(*(server.up(http) for server in started))
            bench = Bench(arguments, http, dict(zip((WITH, WITHOUT), started, strict=True)))
            found = await (bench.new() if arguments.new else bench.again())
            print({name: dict(await counts.counts(http, [server])) for name, server in bench.servers.items()})
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larderd")
    parser.add_argument("model")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--requests", type=int, default=200, help="of one round at one rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.85, 1.0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    try:
        asyncio.run(run(parser.parse_args()))
    except (processes.Failed, aiohttp.ClientError) as error:
        sys.exit(f"vllm_serving: {error}")


if __name__ == "__main__":
    main()
