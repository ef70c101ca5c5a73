#!/usr/bin/env python3
"""Times restores of vLLM's LarderScheduler: computed only, loaded only, and both at once, over an emulated link.

vllm_restore.py LARDERD PYTHON MODELS [--only cells|together|nothing_stored|by_layer] [--tokens N ...] [--ratios R ...]
                [--rounds N] [--tier pool|disk] [--json FILE]
PYTHON: of deploy/fetch-vllm.sh; MODELS: folder that tests/engines/hf_model.py wrote.

The link of one engine is so fast that loading the prompt takes R times as long as computing it.  In one process the three
take turns.
cells            one request alone, of each length and ratio.  `best meet` is what costs of the same run give: the shortest
                 time in which a head of whole blocks is computed while the tail is loaded, and then the rest is computed.
                 It fails if an answer has other tokens, or a prompt was not loaded or restored
together         four requests at once at the crossing (ratio 1), alone and beside two that decode
by_layer         a prefix whose load takes as long as computing what follows it in one step, with vLLM's own scheduler: layer by
                 layer / first loaded, then computed
nothing_stored   prompts of which nothing is stored, 8 clients: LarderScheduler / vLLM's own scheduler, both with the connector
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "engines"), str(ROOT / "tests" / "client" / "python")]

import kvlarder  # noqa: E402
import vllm_bench  # noqa: E402
from vllm_child import CHUNK  # noqa: E402

BLOCK = vllm_bench.BLOCK
WAYS = ("computed", "loaded", "both")
WARM = 3  # restores in which the engine learns what computing and loading cost
SCHEDULER = "kvlarder.vllm.LarderScheduler"
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # for VllmChild.restore_by
TOGETHER = 4
PARTS = ("cells", "together", "by_layer", "nothing_stored")


def percentile(values, part):
    return sorted(values)[int(len(values) * part)]


def whole_steps(tokens):
    """Returns how long a prompt of about so many tokens is: such that vLLM computes what lies behind its last whole block in
    one step, whether the blocks were restored or computed."""
    return tokens - (tokens - 1) % CHUNK + CHUNK + 20


class Bench(vllm_bench.Bench):
    def __init__(self, arguments):
        super().__init__(arguments)
        self.client = kvlarder.connect(self.daemon.socket_dir)
        with self.vllm(False) as plain:
            self.ids = plain.tokens_of(self.texts)

    def prepare(self, prompts):
        """Stores the prompts.  Returns (seconds to the first token, tokens of the answer) of each, computed."""
        computed = []
        with self.vllm(False) as plain:
            self.first(plain, self.ids[:600], None)
            for prompt in prompts:
                cold = [plain.generate([{"tokens": prompt, "n": 8}])[0] for _ in range(2)]
                computed.append((cold[1]["first_s"], cold[0]["tokens"]))
        with self.vllm(True) as stores:
            for prompt in prompts:
                before = self.count(stores, "blocks_stored")
                self.first(stores, prompt, None)
                self.stored(stores, before, (len(prompt) - 1) // BLOCK)
            self.block_bytes = self.count(stores, "bytes_stored") / self.count(stores, "blocks_stored")
        self.durable()
        return computed

    def restoring(self, link_bytes_per_s, **engine):
        connector = {"emulated_link_mb_per_s": link_bytes_per_s / 1e6, "store": False, "load_timeout_ms": 60_000, "patience_ms": 5_000}
        env = {**IN_PROCESS, "LARDER_CACHE": self.folder.name}
        return self.vllm(connector, scheduler_cls=SCHEDULER, env=env, **engine)

    def cells(self):
        prompts, at = [], 1_000
        for tokens in self.arguments.tokens:
            prompts.append(self.ids[at : at + whole_steps(tokens)])
            at += tokens
        cells = []
        for tokens, prompt, computed in zip(self.arguments.tokens, prompts, self.prepare(prompts)):
            for ratio in self.arguments.ratios:
                cell = self.cell(tokens, prompt, computed, ratio)
                cells.append(cell)
                print(
                    f"{cell['tokens']} tokens from the {self.arguments.tier}, link {cell['link_mb_per_s']:.2f} MB/s: computed "
                    f"{cell['computed_s']:.2f} s, loaded {cell['loaded_s']:.2f} s, both {cell['both_s']:.2f} s = "
                    f"{cell['both / better']:.3f} of the better, {cell['both / best meet']:.3f} of the best meet", flush=True,
                )  # fmt: skip
        if self.arguments.json:
            pathlib.Path(self.arguments.json).write_text(json.dumps(cells, indent=1), encoding="utf-8")

    def cell(self, n, prompt, computed, ratio):
        """Returns the figures of one length and one link."""
        cold_s, tokens = computed
        blocks = (len(prompt) - 1) // BLOCK
        rate = blocks * self.block_bytes / (cold_s * ratio)
        with self.restoring(rate) as vllm:
            vllm.generate([{"tokens": prompt[:20], "n": 1}])
            times = {way: [] for way in WAYS}
            for round_ in range(-WARM, self.arguments.rounds):
                for way in WAYS if round_ >= 0 else ("loaded", "both"):
                    vllm.restore_by(way)
                    if self.arguments.tier == "disk":
                        self.client.clear(kvlarder.SelectionScope.ALL, tiers=[kvlarder.Tier.HOST])
                    answer = vllm.generate([{"tokens": prompt, "n": 8}])[0]
                    if answer["tokens"] != tokens:
                        sys.exit(f"{n} tokens, {ratio}: other tokens when {way}: {answer['tokens']}, not {tokens}")
                    if way == "loaded" and answer["cached"] != blocks * BLOCK:
                        sys.exit(f"{n} tokens, {ratio}: {answer['cached']} of {blocks * BLOCK} tokens were loaded")
                    if round_ >= 0:
                        times[way].append(answer["first_s"])
            costs = vllm.costs()
            time.sleep(1.1)  # counters come once a second
            vllm.generate([{"tokens": prompt[:20], "n": 1}])
            if (restores := self.count(vllm, "restores")) != WARM + self.arguments.rounds:
                sys.exit(f"{n} tokens, {ratio}: {restores} of {WARM + self.arguments.rounds} prompts were restored")
        m = {way: statistics.median(values) for way, values in times.items()}
        best = self.best_meet(costs, blocks, len(prompt))
        return {
            "tokens": len(prompt), "ratio": ratio, "link_mb_per_s": rate / 1e6, **{f"{way}_s": m[way] for way in WAYS}, "best_meet_s": best,
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

    def together(self):
        """Several restores at once, and beside requests that decode."""
        length = whole_steps(self.arguments.tokens[0])
        prompts = [self.ids[at : at + length] for at in range(1_000, 1_000 + TOGETHER * length, length)]
        computed = self.prepare(prompts)
        restored = [{"tokens": prompt, "n": 8} for prompt in prompts]
        talks = [{"tokens": self.ids[at : at + 40], "n": 300} for at in (100, 200)]
        rate = (length - 1) // BLOCK * self.block_bytes / statistics.median(seconds for seconds, _ in computed)
        with self.restoring(rate, max_num_seqs=8) as vllm:
            vllm.generate([{"tokens": prompts[0][:20], "n": 1}])
            means, gaps, others = {way: [] for way in WAYS}, {way: [] for way in WAYS}, 0
            for round_ in range(-1, self.arguments.rounds):
                for way in WAYS:
                    vllm.restore_by(way)
                    alone = vllm.serve(restored, clients=TOGETHER)
                    beside = vllm.serve(talks + restored, clients=TOGETHER + len(talks))
                    others += sum(alone["answers"][str(number)] != right for number, (_, right) in enumerate(computed))
                    if round_ >= 0:
                        means[way].append(statistics.mean(alone["first_s"].values()))
                        gaps[way] += beside["gaps_s"]["0"] + beside["gaps_s"]["1"]
        m = {way: statistics.median(values) for way, values in means.items()}
        p99 = {way: percentile(values, 0.99) for way, values in gaps.items()}
        print(
            f"{TOGETHER} of {length} tokens at once: mean time to first token computed {m['computed']:.2f} s, loaded "
            f"{m['loaded']:.2f} s, both {m['both']:.2f} s = {m['both'] / min(m['computed'], m['loaded']):.3f} of the better; "
            f"with two decoding, p99 between tokens: computed {p99['computed']:.3f} s, loaded {p99['loaded']:.3f} s, both "
            f"{p99['both']:.3f} s = {p99['both'] / p99['computed']:.3f} of computing; {others} other answers (bf16 in other batches)",
            flush=True,
        )  # fmt: skip

    def by_layer(self):
        """Answers must be equal to those that were computed in the same chunks, from vLLM's own cache."""
        suffix = 7 * BLOCK - 10
        prefix = self.arguments.tokens[0] // BLOCK * BLOCK
        prompt, step = self.ids[1_000 : 1_000 + prefix + suffix], {"max_num_batched_tokens": 8 * BLOCK}
        with self.vllm(False, enable_prefix_caching=True, **step) as plain:
            times = []
            for _ in range(self.arguments.rounds + 1):
                assert plain.reset(connector=False)
                plain.generate([{"tokens": prompt[: prefix + 1], "n": 1}])
                answer = plain.generate([{"tokens": prompt, "n": 8}])[0]
                assert answer["cached"] == prefix, answer
                times.append(answer["first_s"])
        suffix_s, right = statistics.median(times[1:]), answer["tokens"]
        with self.vllm(True, **step) as stores:
            before = self.count(stores, "blocks_stored")
            self.first(stores, prompt[: prefix + 1], None)
            self.stored(stores, before, prefix // BLOCK)
            block_bytes = self.count(stores, "bytes_stored") / self.count(stores, "blocks_stored")
        rate = prefix // BLOCK * block_bytes / suffix_s
        connector = {"emulated_link_mb_per_s": rate / 1e6, "store": False, "load_timeout_ms": 60_000, "patience_ms": 5_000}
        with self.vllm(connector, env=IN_PROCESS, **step) as vllm:
            ways = {False: [], True: []}  # the first loads tell how fast the link is
            for round_ in range(-1, self.arguments.rounds):
                for by_layer in ways:
                    vllm.load_by_layer(by_layer)
                    answer = vllm.generate([{"tokens": prompt, "n": 8}])[0]
                    if answer["tokens"] != right or answer["cached"] != prefix:
                        sys.exit(f"by layer {by_layer}: {answer}, not {right}")
                    if round_ >= 0:
                        ways[by_layer].append(answer["first_s"])
            time.sleep(1.1)  # counters come once a second
            vllm.generate([{"tokens": prompt[:20], "n": 1}])
            if (loads := self.count(vllm, "loads_by_layer")) != self.arguments.rounds + 1:
                sys.exit(f"{loads} of {self.arguments.rounds + 1} loads went by layer")
        layers, loaded = statistics.median(ways[True]), statistics.median(ways[False])
        print(
            f"{prefix} tokens loaded at {rate / 1e6:.1f} MB/s before {suffix} are computed, which takes {suffix_s:.2f} s: first "
            f"loaded, then computed {loaded:.2f} s, layer by layer {layers:.2f} s = {layers / loaded:.3f} of that", flush=True,
        )  # fmt: skip

    def nothing_stored(self):
        rolls, ratios, slower = random.Random(1), [], []
        stock, ours = self.vllm({"store": False}, max_num_seqs=8), self.vllm({"store": False}, max_num_seqs=8, scheduler_cls=SCHEDULER)
        with stock, ours:
            for round_ in range(-1, self.arguments.rounds):
                prompts = []
                for _ in range(16):
                    at = rolls.randrange(len(self.ids) - 400)
                    prompts.append({"tokens": self.ids[at : at + 300], "n": 32})
                found = {}
                for vllm in (stock, ours) if round_ % 2 else (ours, stock):
                    result = vllm.serve(prompts, clients=8)
                    found[vllm] = result["seconds"], percentile(sum(result["gaps_s"].values(), []), 0.99)
                if round_ >= 0:
                    ratios.append(found[stock][0] / found[ours][0])
                    slower.append(found[ours][1] / found[stock][1])
        print(
            f"nothing stored, {len(ratios)} rounds: throughput {statistics.median(ratios):.3f} and p99 between tokens "
            f"{statistics.median(slower):.3f} of those with vLLM's own scheduler", flush=True,
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larderd")
    parser.add_argument("python")
    parser.add_argument("models")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000, 4_000])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.4, 0.6, 0.8, 1.0, 1.4, 2.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tier", choices=("pool", "disk"), default="pool")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        for name in PARTS:
            if arguments.only in (None, name):
                getattr(bench, name)()
    finally:
        bench.daemon.end()


if __name__ == "__main__":
    main()
