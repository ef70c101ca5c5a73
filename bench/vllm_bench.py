#!/usr/bin/env python3
"""Times vLLM with Larder: time to first token from the pool and from disk, and what storing costs.

vllm_bench.py LARDERD PYTHON MODELS [--rounds N]
PYTHON: of deploy/fetch-vllm.sh; MODELS: folder that tests/engines/hf_model.py wrote.
Every ratio is of medians over rounds in which both were measured in turn.
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT / "tests" / "client" / "python")]

from larderd import Larderd  # noqa: E402
from vllm_child import VllmChild  # noqa: E402

BLOCK = 128


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = tempfile.TemporaryDirectory()
        self.disk = os.path.join(self.folder.name, "disk")
        os.mkdir(self.disk)
        self.daemon = Larderd(arguments.larderd, "--pool", "4GiB", "--disk", self.disk)
        self.rolls = random.Random(1)
        self.texts = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))

    def vllm(self, larder, **engine):
        """larder: whether vLLM uses Larder, or options with which it does."""
        more = larder if isinstance(larder, dict) else {}
        connector = {"socket_dir": self.daemon.socket_dir, **more} if larder else None
        model = os.path.join(self.arguments.models, "smol")
        log = os.path.join(self.folder.name, f"{time.monotonic_ns()}.log")
        return VllmChild(self.arguments.python, model, connector, log, **engine)

    def first(self, vllm, tokens, salt):
        return vllm.generate([{"tokens": tokens, "salt": salt, "n": 1}])[0]

    @staticmethod
    def count(vllm, name):
        return vllm.metrics().get(f"vllm:larder_{name}{{}}", 0)

    def stored(self, vllm, before, blocks):
        """Waits until the stores of a cold prompt have ended."""
        while self.count(vllm, "blocks_stored") < before + blocks:
            vllm.generate([{"tokens": [1], "n": 1}])
            time.sleep(0.3)

    def durable(self):
        """Waits until the daemon writes nothing to its disk any more."""
        last = None
        while True:
            files = [path.stat() for path in pathlib.Path(self.disk).rglob("*") if path.is_file()]
            now = [(file.st_mtime_ns, file.st_blocks) for file in files]
            if now == last:
                return
            last = now
            time.sleep(3)

    def first_tokens(self):
        with self.vllm(True, enable_prefix_caching=True) as vllm:
            ids = vllm.tokens_of(self.texts)
            self.first(vllm, ids[:600], "warm-up")
            for length in (2_000, 4_000):
                cold, own, pool, disk, prompts = [], [], [], [], []
                for number in range(self.arguments.rounds):
                    at = self.rolls.randrange(len(ids) - length)
                    prompt, salt = ids[at : at + length], f"{length}-{number}"
                    prompts.append((prompt, salt))
                    before = self.count(vllm, "blocks_stored")
                    cold.append(self.first(vllm, prompt, salt)["first_s"])
                    self.stored(vllm, before, (length - 1) // BLOCK)
                    own.append(self.first(vllm, prompt, salt)["first_s"])
                    assert vllm.reset(connector=False)
                    answer = self.first(vllm, prompt, salt)
                    assert answer["cached"] == (length - 1) // BLOCK * BLOCK, (answer, vllm.metrics())
                    pool.append(answer["first_s"])
                m = statistics.median
                print(
                    f"{length} tokens, {len(cold)} rounds: cold {m(cold):.3f} s; from the pool {m(pool):.3f} s = "
                    f"{m(pool) / m(cold):.4f} of cold, {m(p / o for p, o in zip(pool, own)):.3f} of vLLM's own hit "
                    f"({m(own):.3f} s)",
                    flush=True,
                )
                self.durable()
                sessions = self.count(vllm, "sessions")
                self.daemon.kill()
                self.daemon.start()
                while self.count(vllm, "sessions") < sessions + 2:  # scheduler and worker are attached again
                    vllm.generate([{"tokens": [1], "n": 1}])
                    time.sleep(0.3)
                assert vllm.reset(connector=False)
                for prompt, salt in prompts:
                    answer = self.first(vllm, prompt, salt)
                    assert answer["cached"] == (length - 1) // BLOCK * BLOCK, answer
                    disk.append(answer["first_s"])
                print(f"{length} tokens: from disk {m(disk):.3f} s = {m(disk) / m(cold):.4f} of cold", flush=True)

    def cost_of_storing(self):
        with self.vllm(False, max_num_seqs=8) as plain, self.vllm(True, max_num_seqs=8) as stores:
            ids = plain.tokens_of(self.texts)
            both = (plain, stores)
            for vllm in both:
                self.first(vllm, ids[:600], None)
            seconds = {plain: [], stores: []}
            for number in range(max(20, self.arguments.rounds)):
                at = self.rolls.randrange(len(ids) - 2_000)
                for vllm in both if number % 2 else reversed(both):
                    seconds[vllm].append(self.first(vllm, ids[at : at + 2_000], f"s{number}")["first_s"])
            ratio = statistics.median(s / p for s, p in zip(seconds[stores], seconds[plain]))
            print(
                f"cold and storing, 2,000 tokens, {len(seconds[plain])} pairs: {statistics.median(seconds[stores]):.3f} s "
                f"/ {statistics.median(seconds[plain]):.3f} s without Larder = {ratio:.3f}",
                flush=True,
            )
            rates = {plain: [], stores: []}
            for number in range(5):
                prompts = []
                for client in range(16):
                    at = self.rolls.randrange(len(ids) - 1_000)
                    prompts.append({"tokens": ids[at : at + 1_000], "n": 16, "salt": f"t{number}-{client}"})
                for vllm in both if number % 2 else reversed(both):
                    rates[vllm].append(16 / vllm.serve(prompts, clients=8)["seconds"])
            ratio = statistics.median(s / p for s, p in zip(rates[stores], rates[plain]))
            print(f"8 clients, distinct prompts of 1,000 tokens, 5 rounds: throughput {ratio:.3f} of that without Larder")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larderd")
    parser.add_argument("python")
    parser.add_argument("models")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("first_tokens", "cost_of_storing"))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        for name in ("first_tokens", "cost_of_storing"):
            if arguments.only in (None, name):
                getattr(bench, name)()
    finally:
        bench.daemon.end()


if __name__ == "__main__":
    main()
