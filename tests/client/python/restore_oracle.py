#!/usr/bin/env python3
"""Checks on a real model that KV and logits equal those of computing everything, whatever the scheduler chooses.

restore_oracle.py LARDERD MODEL [--cases N] [--case I]     MODEL: a GGUF file, or a script that prints its path

Costs, depths, block sizes, stages (each in its own process), failures and late loads are random.  The comparison is bit
for bit, and all bytes pass through a running daemon.  LARDER_TEST_SEED repeats the draws, --case runs one case of them,
and LARDER_TEST_SCALE scales the number of cases.  Exits with 77 if something that the test needs is missing.
"""

import argparse
import collections
import itertools
import multiprocessing
import os
import random
import subprocess
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # set before importing numpy; as many processes as cores compute
try:
    import gguf  # noqa: F401
    import kvlarder
    import numpy
except ImportError as missing:
    print(f"skipped restore_oracle: {missing}; deploy/install-deps.sh installs it")
    sys.exit(77)
from larderd import Larderd
from llama_model import LlamaModel
from oracle_driver import Restore
from oracle_reference import STAGES, SUFFIX, Reference, Store, stage_layers
from oracle_stage import Stage, StageProcess

CASES = 500
TOKENS = 256  # the longest prefix
GRIDS = ((32, 16), (32, 64), (64, 16), (64, 64))  # tokens of a chunk, of a block
WANTED = ("both resources", "staircases", "failures", "late loads", "1 stage", "2 stages", "4 stages",
          "suffix overlapped", "given depths", "handed over", "holes")


def fetched(model):
    """Returns the path of the model.  Skips the test if the model is not available."""
    if not model.endswith(".sh"):
        return model
    script = subprocess.run([model], stdout=subprocess.PIPE, text=True, check=False)
    if script.returncode != 0:
        print(f"skipped restore_oracle: {model} did not provide the model; its output is above")
        sys.exit(77)
    return script.stdout.strip()


class Case:
    """What is restored, and how the engine and the channels behave."""

    def __init__(self, model, draw):
        self.draw = draw
        self.stages = draw.choice((1, 1, 2, 4))
        self.chunk, self.block = draw.choice(GRIDS)
        step = max(self.chunk, self.block)
        self.prefix = step * draw.randint(2 if step == 64 else 4, TOKENS // step)
        self.layers, self.channels, self.in_flight = model.layers, draw.randint(1, 2), draw.randint(1, 3)
        disturbed = draw.random() < 0.5
        self.fails, self.gone, self.stalls = (0.1, 0.03, 0.1) if disturbed else (0, 0, 0)
        self.engine_factor, self.link_factor = draw.uniform(0.6, 1.6), draw.uniform(0.6, 1.6)
        self.hands_over = draw.random() < 0.5
        self.overlaps = self.stages == 1 and draw.random() < 0.4
        self.holes = 0.1 if draw.random() < 0.2 else 0
        self._price(model)
        self._specify(model)

    def _price(self, model):
        """Loading everything takes between a fifth and five times as long as computing everything."""
        self.row_bytes = 4 * 2 * model.kv_heads * model.head
        self.boundary_bytes = 4 * model.width * self.block
        compute_s = 0.01 * self.prefix / self.chunk
        self.rate = self.prefix * self.row_bytes * model.layers / compute_s * 5 ** self.draw.uniform(-1, 1)
        compute = kvlarder.ComputeCost(0.001, 0.009 / self.chunk, self.draw.choice((0, 1e-7)))
        self.costs = kvlarder.CostModel(kvlarder.Profile(
            model="oracle", layers=model.layers, compute=compute,
            channels=[kvlarder.ChannelCost(f"channel {i}", self.rate) for i in range(self.channels)]))
        self.options = kvlarder.SchedulerOptions(
            engine=kvlarder.EngineTraits(splits_layers=self.overlaps or self.draw.random() < 0.8,
                                         abandons_steps=self.draw.random() < 0.5, hands_over=self.hands_over,
                                         overlaps_suffix=self.overlaps),
            patience_s_min=0.002, finest=self.draw.choice((1 / 4, 1 / 16)))

    def _copy(self, block_bytes, holes):
        channels = [0 if self.draw.random() < holes else self.draw.randint(1, self.channels)
                    for _ in range(self.prefix // self.block)]
        self.has_holes = getattr(self, "has_holes", False) or 0 in channels
        return kvlarder.Copy(channels, block_bytes)

    def _specify(self, model):
        stages = []
        for stage in range(self.stages):
            begin, end = stage_layers(model.layers, self.stages, stage)
            kv = self._copy(self.row_bytes * (end - begin) * self.block, self.holes)
            boundary = self._copy(self.boundary_bytes, 0) if stage > 0 else None
            stages.append(kvlarder.StageSpec(kvlarder.StageLayers(begin, end), [kv], boundary))
        self.depths = []
        if self.stages == 1 and not self.overlaps and self.draw.random() < 0.4:
            chunks = -(-self.prefix // max(self.chunk, self.block))
            self.depths = sorted((self.draw.randint(0, model.layers) for _ in range(chunks)), reverse=True)
        self.suffix = self.overlaps or (self.stages == 1 and self.draw.random() < 0.5)
        self.spec = kvlarder.RequestSpec(
            id=1, tokens=self.prefix, block_tokens=self.block, chunk_tokens=self.chunk, stages=stages,
            suffix_tokens=SUFFIX if self.suffix else 0, depths=self.depths)

    def __str__(self):
        return (f"{self.prefix} tokens, chunks of {self.chunk}, blocks of {self.block}, {self.stages} stages, "
                f"{self.channels} channels" + ", overlapped suffix" * self.overlaps + ", given depths" * bool(self.depths))


class Engine:
    """Stages for any case: one in this process, and four other processes."""

    def __init__(self, context, socket_dir, model, references):
        self.model, self.references = model, references
        self.processes = [StageProcess(context, socket_dir, model, references) for _ in range(max(STAGES))]
        self.local = Stage(Store(socket_dir, model, references), references)

    def end(self):
        for process in self.processes:
            process.end()

    def run(self, case, harm=lambda load: {}):
        """Returns the differences from the reference, the outcome, and the driver with its counts."""
        stages = [self.local] if case.stages == 1 else self.processes[:case.stages]
        for index, stage in enumerate(stages):
            stage.begin(case.chunk, case.block, case.prefix, case.stages, index)
        restore = Restore(case, stages, case.draw, harm)
        outcome = restore.run()
        outputs = None
        for stage in stages if outcome.lost else ():
            outputs = stage.compute_all(outputs)
        if case.suffix and not outcome.lost:
            hidden = stages[0].hidden[case.prefix][1]  # computed by the scheduler's steps
        else:
            hidden = None
            for stage in stages:
                hidden = stage.suffix(hidden)
        differences = [place for stage in stages for place in stage.differences()]
        wanted = self.references[case.chunk].suffix(case.prefix)[1]
        if not numpy.array_equal(self.model.logits(hidden).view(numpy.uint32), wanted.view(numpy.uint32)):
            differences.append("logits")
        return differences, outcome, restore


def count(case, outcome, restore):
    """Returns the categories to which the case belongs."""
    depths = [depth for stage in outcome.stages for depth in stage]
    useful = outcome.bytes_loaded - outcome.bytes_dropped
    falls = all(stage == sorted(stage, reverse=True) for stage in outcome.stages)
    staircase = falls and any(len(set(stage)) > 1 for stage in outcome.stages) and any(
        0 < depth < end - begin for stage, (begin, end) in
        ((stage, stage_layers(case.layers, case.stages, i)) for i, stage in enumerate(outcome.stages)) for depth in stage)
    return collections.Counter({
        "cases": 1, "both resources": any(depths) and useful > 0, "staircases": staircase,
        "failures": restore.failed > 0, "late loads": restore.late > 0,
        f"{case.stages} stage" + "s" * (case.stages > 1): 1, "suffix overlapped": restore.overlapped > 0,
        "given depths": bool(case.depths), "handed over": case.stages > 1 and case.hands_over, "holes": case.has_holes,
        "hedged": restore.hedges > 0, "lost": outcome.lost,
        "computed alone": useful == 0, "loaded alone": not any(depths)})


def draw_case(model, seed, index):
    return Case(model, random.Random(f"{seed} {index}"))


def work(pipe, context, socket_dir, model, references, seed, indices):
    """Runs the cases of one process, and sends the counts and the differences."""
    engine, counts, broken = Engine(context, socket_dir, model, references), collections.Counter(), []
    for index in indices:
        case = draw_case(model, seed, index)
        try:
            differences, outcome, restore = engine.run(case)
            counts += count(case, outcome, restore)
        except (AssertionError, RuntimeError, KeyError) as error:
            differences = [f"{type(error).__name__}: {error}"]
        if differences:
            broken.append(f"case {index} ({case}): {len(differences)} differences, {differences[0]}")
    engine.end()
    pipe.send((counts, broken))


HARMS = {  # one load is placed wrongly: stages, whether it has activations, options of Stage.place
    "a flipped bit of KV": (1, False, {"flip": True}),
    "KV a layer too high": (1, False, {"layers_up": 1}),
    "a flipped bit of KV in a stage process": (2, False, {"flip": True}),
    "a flipped bit of activations": (2, True, {"flip": True}),
}


def harmed(engine, case, boundary, options):
    """Returns the differences of a case in which one load is placed wrongly, or None if it has no such load."""
    done = []

    def harm(load):
        if done or load.boundary != boundary:
            return {}
        done.append(load)
        return options
    differences = engine.run(case, harm)[0]
    return differences if done else None


def notices(pipe, context, socket_dir, model, references, seed):
    """Sends the kinds of harm that go unnoticed.

    A cell that is placed wrongly may be computed as well, so it is enough that one of several cases notices.
    """
    engine, unnoticed = Engine(context, socket_dir, model, references), []
    for name, (stages, boundary, options) in HARMS.items():
        cases = (draw_case(model, f"{seed} {name}", index) for index in range(1000))
        quick = (case for case in cases if case.stages == stages and case.prefix <= 128)
        tried = (harmed(engine, case, boundary, options) for case in itertools.islice(quick, 8))
        if not any(tried):
            unnoticed.append(name)
    engine.end()
    pipe.send(unnoticed)


def put_all(pipe, socket_dir, model, references):
    store = Store(socket_dir, model, references)
    # All blocks fit into the pool, but not while the daemon, which has just started, still populates it.  Until then
    # some blocks are evicted for others, and are put again.
    while sum(store.put_all(chunk, block) for chunk, block in GRIDS) > 0:
        pass
    pipe.send(True)


def apart(context, target, *arguments):
    """Runs `target` in a process, because a process that has connected to the daemon must not fork."""
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other, *arguments))
    process.start()
    other.close()
    return pipe, process


def answer(pipe, process):
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        sys.exit(f"a process of the test ended with {process.exitcode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("larderd")
    parser.add_argument("model")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    scale = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
    seed = int(os.environ.get("LARDER_TEST_SEED", random.SystemRandom().getrandbits(32)))
    print(f"LARDER_TEST_SEED={seed}", flush=True)
    cases = options.cases or max(1, round(CASES * scale))
    indices = range(cases) if options.case is None else [options.case]
    numpy.seterr(invalid="ignore")  # rows that were never computed or loaded are NaN

    began_s = time.monotonic()
    model = LlamaModel(fetched(options.model), TOKENS + SUFFIX)
    ids = numpy.random.default_rng(7).integers(0, len(model.embedding), TOKENS + SUFFIX).tolist()
    references = {chunk: Reference(model, ids, chunk) for chunk in sorted({chunk for chunk, _ in GRIDS})}
    context = multiprocessing.get_context("fork")  # shares the weights
    with Larderd(options.larderd, "--pool", "512MiB") as socket_dir:
        shared = socket_dir, model, references
        assert answer(*apart(context, put_all, *shared))
        ready_s = time.monotonic()
        workers = min(os.cpu_count(), 4, len(indices))
        running = [apart(context, work, context, *shared, seed, indices[i::workers]) for i in range(workers)]
        results = [answer(*each) for each in running]
        worked_s = time.monotonic()
        unnoticed = [] if options.case is not None else answer(*apart(context, notices, context, *shared, seed))

    counts = sum((each[0] for each in results), collections.Counter())
    broken = [line for each in results for line in each[1]]
    print(", ".join(f"{name} {counts[name]}" for name in ("cases", *WANTED, "hedged", "lost", "computed alone",
                                                          "loaded alone")))
    print(f"{ready_s - began_s:.1f} s to load, compute and store the reference, {worked_s - ready_s:.1f} s for the "
          f"cases, in {workers} processes")
    for line in broken:
        print(f"DIFFERS {line}; again: LARDER_TEST_SEED={seed} restore_oracle.py ... --case I")
    for line in unnoticed:
        print(f"UNNOTICED {line}")
    never = [name for name in WANTED if counts[name] == 0] if cases >= CASES and options.case is None else []
    if never:
        print(f"NEVER {never}")
    return 1 if broken or unnoticed or never else 0


if __name__ == "__main__":
    sys.exit(main())
