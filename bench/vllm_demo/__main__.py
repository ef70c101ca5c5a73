#!/usr/bin/env python3
"""Chats about shared documents with two vLLM servers behind the router: with and without Larder, by the KV that servers have
and in turn.  deploy/demo-vllm.sh runs it; README.md beside it says how to run it alone.

Every configuration gets the same questions at the same rates.  None finds what an earlier one has left: each run has a
cache_salt of its own, which names of blocks contain, in vLLM's own cache and in Larder.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import os
import pathlib
import signal
import sys
import tempfile
import time

import aiohttp

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "client" / "python"))

import chats  # noqa: E402
import clients  # noqa: E402
import counts  # noqa: E402
import picture  # noqa: E402
import processes  # noqa: E402
import tables  # noqa: E402
from larderd import Larderd  # noqa: E402

INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    larder: bool
    policy: str


# Those with equal servers lie next to each other.
CONFIGURATIONS = (
    Configuration("Larder, kv", True, "kv"),
    Configuration("Larder, round robin", True, "round_robin"),
    Configuration("without, round robin", False, "round_robin"),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes.  The documents have about twice as many tokens as one server's own cache, so that two servers together can keep
    them all if each of them gets its own."""

    documents: int
    characters: int  # of a document; 3.5 of them are a token
    turns: int
    # Pairs: how many questions per second, and how many chats.  1.0 is as many questions as both servers can compute if they
    # find nothing, so that machines of different speed are equally busy.
    runs: tuple
    cache_tokens: int  # of one server's own cache
    context: int  # tokens of a prompt and its answer at most
    answer_tokens: int = 24


SERVERS = 2
FULL = Plan(documents=6, characters=5_600, turns=3, runs=((0.75, 24), (1.5, 24)), cache_tokens=5_376, context=2_304)
QUICK = Plan(documents=4, characters=1_600, turns=2, runs=((1.5, 8),), cache_tokens=1_280, context=1_216, answer_tokens=12)


def say(text):
    print(f"demo-vllm: {text}", file=sys.stderr, flush=True)


class Demo:
    def __init__(self, plan, arguments, folder, http):
        self.plan, self.arguments, self.folder, self.http = plan, arguments, folder, http
        self.env = processes.environment(folder, os.cpu_count() or 1)
        self.texts = chats.documents(ROOT / "docs", plan.documents, plan.characters)

    @contextlib.asynccontextmanager
    async def servers(self, socket_dir):
        """Two vLLM servers that answer.  socket_dir: of the daemon; None: they run without Larder."""
        began = time.monotonic()
        say(f"starting two vLLM servers {'with' if socket_dir else 'without'} Larder")
        with processes.ended([]) as started:
            for number in range(SERVERS):
                started.append(
                    processes.Server(
                        f"vllm-{number}", self.arguments.model, self.plan.cache_tokens, socket_dir, self.folder, self.env,
                        flags=("--max-model-len", str(self.plan.context)),
                    )  # fmt: skip
                )
            await asyncio.gather(*(server.up(self.http) for server in started))
            say(f"they answer, after {time.monotonic() - began:.0f} s")
            yield started

    async def warm(self, servers):
        """Asks each server twice, both at once.  Returns (the tokens per second that one computes of a prompt, the tokens of the
        prompt)."""
        for salt in ("warm-up 1", "warm-up 2"):
            messages = [{"role": "user", "content": self.texts[0]}]
            answers = await asyncio.gather(*(clients.ask(self.http, one.url, messages, salt, 2) for one in servers))
        return min(answer.prompt_tokens / answer.first_s for answer in answers), answers[0].prompt_tokens

    async def run(self, configuration, servers, socket_dir, prefill_rate, rate, count):
        """Returns the tables.Result of one configuration at one rate."""
        plan = self.plan
        sent = chats.chats(self.texts, count, plan.turns, rate, self.arguments.seed)
        salt = f"{configuration.name}, {rate:g}"
        router = processes.Router(configuration.policy, servers, socket_dir, prefill_rate, self.folder, self.env)
        with processes.ended([router]):
            url = await router.up()
            before = await counts.counts(self.http, servers)
            held = await clients.hold(self.http, url, sent, salt, plan.answer_tokens)
            after = await counts.counts(self.http, servers)
        after.subtract(before)
        result = tables.Result(configuration.name, configuration.larder, configuration.policy, rate, held, after)
        say(
            f"{result.name}, {rate:g} requests/s: {len(held.answers)} answers in {held.seconds:.0f} s, "
            f"first tokens after {result.mean_first_s:.2f} s on average"
        )
        return result

    async def all(self, daemon):
        """Returns the Results of all configurations at all rates.  How fast the first servers compute decides about the rates."""
        results, rates = [], None
        for larder, configurations in itertools.groupby(CONFIGURATIONS, lambda one: one.larder):
            async with self.servers(daemon.socket_dir if larder else None) as servers:
                prefill, tokens = await self.warm(servers)
                say(f"a server computes {prefill:.0f} tokens of a prompt per second, in {processes.DTYPE}")
                rates = rates or [float(f"{part * SERVERS * prefill / tokens:.2g}") for part, _ in self.plan.runs]
                for configuration in configurations:
                    for rate, (_, count) in zip(rates, self.plan.runs, strict=True):
                        results.append(await self.run(configuration, servers, daemon.socket_dir, prefill, rate, count))
        return results


def show(results, out):
    """Prints the tables, and draws the picture into a folder."""
    for rate in dict.fromkeys(one.rate for one in results):
        of_rate = [one for one in results if one.rate == rate]
        print("\n".join(["", *tables.table(of_rate), "", *tables.comparison(of_rate), *tables.troubles(of_rate)]))
    path = os.path.join(out, "demo-vllm.svg")
    with open(path, "w", encoding="utf-8") as file:
        file.write(picture.svg(results))
    print(f"\n  picture: {path}")


async def demo(plan, arguments):
    """Ends what it has started, and removes its folder, also when SIGINT or SIGTERM ends it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="larder-demo-vllm."))
        disk = os.path.join(folder, "disk")
        os.mkdir(disk)
        daemon = Larderd(arguments.larderd, "--pool", "1GiB", "--disk", disk, "--disk-limit", "2GiB")
        stack.callback(daemon.end)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            results = await Demo(plan, arguments, folder, http).all(daemon)
    show(results, arguments.out)


def main():
    parser = argparse.ArgumentParser(
        prog="vllm_demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("larderd")
    parser.add_argument("model", help="folder of a chat model as Hugging Face has it")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter chats")
    parser.add_argument("--seed", type=int, default=1, help="of the chats")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the picture goes")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.out):
        parser.error(f"'{arguments.out}' is no folder")
    plan, began = QUICK if arguments.quick else FULL, time.monotonic()
    try:
        asyncio.run(demo(plan, arguments))
    except (processes.Failed, aiohttp.ClientError) as error:
        say(f"failed: {error}")
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        say("interrupted; everything that it had started has ended")
        return INTERRUPTED
    say(f"took {time.monotonic() - began:.0f} s; everything that it had started has ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
