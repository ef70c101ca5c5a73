#!/usr/bin/env python3
"""Times restores of vLLM's LarderScheduler: computed only, loaded only, and both at once, over an emulated link.

vllm_restore.py LARDERD PYTHON MODELS [--tokens N ...] [--ratios R ...] [--rounds N] [--tier pool|disk] [--json FILE]
PYTHON: of deploy/fetch-vllm.sh; MODELS: folder that tests/engines/hf_model.py wrote.

The link of one engine is so fast that loading the prompt takes R times as long as computing it.  In one process the three
take turns.  `best meet` is what costs of the same run give: the shortest time in which a head of whole blocks is computed
while the tail is loaded, and then the rest of the prompt is computed.  It fails if an answer has other tokens.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT / "tests" / "client" / "python")]

import kvlarder  # noqa: E402
from larderd import Larderd  # noqa: E402
from vllm_child import CHUNK, VllmChild  # noqa: E402

BLOCK = 128
WAYS = ("computed", "loaded", "both")
WARM = 3  # restores in which the engine learns what computing and loading cost


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = tempfile.TemporaryDirectory()
        self.disk = os.path.join(self.folder.name, "disk")
        os.mkdir(self.disk)
        self.daemon = Larderd(arguments.larderd, "--pool", "2GiB", "--disk", self.disk)
        self.daemon.await_pool()
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
        with self.vllm(env={}) as plain:
            ids = plain.tokens_of(text)
            plain.generate([{"tokens": ids[:600], "n": 1}])
            # The rest of a prompt is computed in one step, restored or not.
            self.prompts, at = {}, 1_000
            for n in arguments.tokens:
                self.prompts[n] = ids[at : at + n - (n - 1) % CHUNK + 20]
                at += n
            self.cold_s, self.tokens = {}, {}
            for n, prompt in self.prompts.items():
                cold = [plain.generate([{"tokens": prompt, "n": 8}])[0] for _ in range(3)]
                self.cold_s[n], self.tokens[n] = statistics.median(one["first_s"] for one in cold[1:]), cold[0]["tokens"]
        with self.vllm(connector={}, env={}) as stores:
            for prompt in self.prompts.values():
                stores.generate([{"tokens": prompt, "n": 1}])
            blocks, until = sum(len(prompt) // BLOCK for prompt in self.prompts.values()), time.monotonic() + 60
            while stores.metrics().get("vllm:larder_blocks_stored{}", 0) < blocks:
                stores.generate([{"tokens": [1], "n": 1}])
                if time.monotonic() > until:
                    sys.exit("the prompts are never stored")
                time.sleep(0.3)
            metrics = stores.metrics()
            self.block_bytes = metrics["vllm:larder_bytes_stored{}"] / metrics["vllm:larder_blocks_stored{}"]
        self.client = kvlarder.connect(self.daemon.socket_dir)
        time.sleep(5)  # the daemon writes blocks to its disk behind their stores

    def vllm(self, connector=None, env=None, **engine):
        connector = None if connector is None else {"socket_dir": self.daemon.socket_dir, "load_timeout_ms": 60_000, **connector}
        log = os.path.join(self.folder.name, f"{time.monotonic_ns()}.log")
        return VllmChild(self.arguments.python, os.path.join(self.arguments.models, "smol"), connector, log, env=env, **engine)

    def cell(self, n, ratio):
        """Returns the figures of one length and one link."""
        prompt = self.prompts[n]
        blocks = (len(prompt) - 1) // BLOCK
        rate = blocks * self.block_bytes / (self.cold_s[n] * ratio)
        connector = {"emulated_link_mb_per_s": rate / 1e6, "store": False}
        engine = {"scheduler_cls": "kvlarder.vllm.LarderScheduler", "connector": connector}
        with self.vllm(env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "LARDER_CACHE": self.folder.name}, **engine) as vllm:
            vllm.generate([{"tokens": prompt[:20], "n": 1}])
            times = {way: [] for way in WAYS}
            for round_ in range(-WARM, self.arguments.rounds):
                for way in WAYS if round_ >= 0 else ("loaded", "both"):
                    vllm.restore_by(way)
                    if self.arguments.tier == "disk":
                        self.client.clear(kvlarder.SelectionScope.ALL, tiers=[kvlarder.Tier.HOST])
                    answer = vllm.generate([{"tokens": prompt, "n": 8}])[0]
                    if answer["tokens"] != self.tokens[n]:
                        sys.exit(f"{n} tokens, {ratio}: other tokens when {way}: {answer['tokens']}, not {self.tokens[n]}")
                    if round_ >= 0:
                        times[way].append(answer["first_s"])
            costs = vllm.costs()
        m = {way: statistics.median(values) for way, values in times.items()}
        best = self.best_meet(costs, blocks, len(prompt))
        return {
            "tokens": n, "ratio": ratio, "link_mb_per_s": rate / 1e6, **{f"{way}_s": m[way] for way in WAYS}, "best_meet_s": best,
            "both / better": m["both"] / min(m["computed"], m["loaded"]), "both / best meet": m["both"] / best,
        }  # fmt: skip

    def best_meet(self, costs, blocks, tokens):
        def compute(begin, end):
            steps = -(-(end - begin) // CHUNK)
            return costs["fixed_s"] * steps + costs["linear_s"] * (end - begin) + costs["quadratic_s"] * (end**2 - begin**2) / 2

        rate = costs["rates"][0 if self.arguments.tier == "pool" else 1]
        return compute(blocks * BLOCK, tokens) + min(
            max(compute(0, meet * BLOCK), (blocks - meet) * self.block_bytes / rate) for meet in range(blocks + 1)
        )

    def run(self):
        cells = []
        for n in self.arguments.tokens:
            for ratio in self.arguments.ratios:
                cell = self.cell(n, ratio)
                cells.append(cell)
                print(
                    f"{n} tokens from the {self.arguments.tier}, link {cell['link_mb_per_s']:.2f} MB/s: computed {cell['computed_s']:.2f} s, "
                    f"loaded {cell['loaded_s']:.2f} s, both {cell['both_s']:.2f} s = {cell['both / better']:.3f} of the better, "
                    f"{cell['both / best meet']:.3f} of the best meet", flush=True,
                )  # fmt: skip
        if self.arguments.json:
            pathlib.Path(self.arguments.json).write_text(json.dumps(cells, indent=1), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larderd")
    parser.add_argument("python")
    parser.add_argument("models")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000, 4_000])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.4, 0.6, 0.8, 1.0, 1.4, 2.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tier", choices=("pool", "disk"), default="pool")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        bench.run()
    finally:
        bench.daemon.end()


if __name__ == "__main__":
    main()
