#!/usr/bin/env python3
"""Models with several kinds of layers: full attention, a sliding window and a recurrent state, in numpy.

Blocks of single kinds are missing at random.  The daemon must answer the longest prefix that all kinds can serve, and
what is restored from it must give, bit for bit, the logits of computing everything.

groups_oracle.py LARDERD   at LARDER_TEST_SCALE 1 it draws 100,000 cases; LARDER_TEST_SEED repeats a run
"""

import os
import random
import sys
import time

import kvlarder
import numpy
from larderd import Larderd

BLOCK, DIM, VOCABULARY = 16, 8, 50
CASES, CASES_A_DAEMON = 100_000, 4_000
FULL, WINDOW, STATE = 0, 1, 2
TOKENS_MAX = 12 * BLOCK + 9


class Model:
    """One layer of each kind.  Tokens are computed one by one, so that chunks do not change a bit."""

    def __init__(self, window):
        draw = numpy.random.default_rng(7)
        self.window = window
        self.embedding = draw.standard_normal((VOCABULARY, DIM)).astype(numpy.float32)
        self.weights = draw.standard_normal((3, 3, DIM, DIM)).astype(numpy.float32) * 0.3

    def empty(self):
        """Keys and values of the attention layers, by token, and the state of the recurrent one."""
        shape = (2, 2, TOKENS_MAX, DIM)
        return numpy.zeros(shape, numpy.float32), numpy.zeros((DIM, DIM), numpy.float32)

    def compute(self, tokens, first, kv, state, borders=None):
        """Computes tokens from `first` on.  Returns the logits of the last one; borders collects states after blocks."""
        logits = None
        for at in range(first, len(tokens)):
            x = self.embedding[tokens[at]]
            for layer, begin in ((FULL, 0), (WINDOW, max(0, at + 1 - self.window))):
                query, key, value = (x @ self.weights[layer, part] for part in range(3))
                kv[layer, 0, at], kv[layer, 1, at] = key, value
                scores = numpy.exp(kv[layer, 0, begin : at + 1] @ query / 4)
                x = x + scores @ kv[layer, 1, begin : at + 1] / scores.sum()
            query, key, value = (x @ self.weights[STATE, part] for part in range(3))
            state *= numpy.float32(0.9)
            state += numpy.outer(key, value)
            x = x + query @ state
            if borders is not None and (at + 1) % BLOCK == 0:
                borders.append(state.copy())
            logits = self.embedding @ x
        return logits


def longest(blocks, present, window):
    """Returns the most whole blocks that all kinds can serve.  present: a set of block numbers for each kind."""
    for end in range(blocks, 0, -1):
        tokens = end * BLOCK
        needs = (range(end), range(max(0, tokens - window) // BLOCK, end), range(end - 1, end))
        if all(set(need) <= have for need, have in zip(needs, present)):
            return end
    return 0


class World:
    """A daemon, and an engine of three variants."""

    def __init__(self, path, window):
        self.daemon = Larderd(path, "--pool", "1GiB")
        self.content = kvlarder.ContentSpec("groups", "1")
        kinds = (
            {"kind": kvlarder.GroupKind.FULL},
            {"kind": kvlarder.GroupKind.WINDOW, "window_tokens": window},
            {"kind": kvlarder.GroupKind.STATE},
        )
        specs = [
            kvlarder.VariantSpec(dtype="f32", layout="oracle/1/any", block_tokens=BLOCK, layers=1, group=name, **kind)
            for name, kind in zip(("full", "window", "state"), kinds)
        ]
        self.cache = kvlarder.EngineCache(
            engine_id="oracle", variants=specs, socket_dir=self.daemon.socket_dir, loaders=0, storers=0,
            lookup_patience_s=60.0,
        )  # fmt: skip
        while self.cache.state:
            time.sleep(0.001)
        self.session = kvlarder.connect(self.daemon.socket_dir).attach("oracle")
        self.variants = self.session.register([self.content], specs)
        self.seed = self.session.seed(self.content)

    def found(self, chain):
        lookup = self.cache.begin_lookup(chain)
        while (found := self.cache.poll_lookup(lookup)) is None:
            time.sleep(0)
        return lookup, found.tokens

    def close(self):
        self.session.close()
        self.cache.close()
        self.daemon.end()


def case(world, model, rolls, number):
    """Stores what a request computed, without some blocks, restores it, and compares.  Returns (found, blocks)."""
    tokens = [rolls.randrange(VOCABULARY) for _ in range(rolls.randrange(BLOCK + 1, TOKENS_MAX))]
    tokens[0] = number % VOCABULARY
    blocks = (len(tokens) - 1) // BLOCK
    kv, state = model.empty()
    borders = []
    expected = model.compute(tokens, 0, kv, state, borders)
    chain = kvlarder.TokenChain(world.seed, block_tokens=BLOCK)
    chain.extend(0, tokens)
    digests = [chain.digests(block, block + 1) for block in range(blocks)]
    lost = rolls.choice((0.0, 0.05, 0.3))
    present = [{block for block in range(blocks) if rolls.random() >= lost} for _ in range(3)]
    if rolls.random() < 0.3:  # as an engine that keeps few states
        present[STATE] = {block for block in present[STATE] if block % 4 == 3 or block == blocks - 1}
    for kind, have in enumerate(present):
        puts = []
        for block in sorted(have):
            part = kv[kind, :, block * BLOCK : (block + 1) * BLOCK] if kind != STATE else borders[block]
            puts.append(kvlarder.PutBlock(
                digests[block], digests[block - 1] if block else world.seed,
                tokens[block * BLOCK : (block + 1) * BLOCK], [numpy.ascontiguousarray(part)],
            ))  # fmt: skip
        if puts:
            stored = world.session.put(world.variants[kind], puts)
            assert set(stored) <= {kvlarder.BlockStatus.OK, kvlarder.BlockStatus.DUPLICATE}, stored
    lookup, found = world.found(chain)
    best = longest(len(tokens) // BLOCK if len(tokens) % BLOCK else blocks, present, model.window)
    assert found == best * BLOCK, f"answered {found} tokens, {best * BLOCK} were possible: {present}"
    kv, state = model.empty()
    needs = (range(best), range(max(0, found - model.window) // BLOCK, best), range(max(0, best - 1), best))
    for kind, need in enumerate(needs):
        buffers = [numpy.empty((2, BLOCK, DIM) if kind != STATE else (DIM, DIM), numpy.float32) for _ in need]
        if not buffers:
            continue
        wanted = [kvlarder.GetBlock(digests[block], [buffer]) for block, buffer in zip(need, buffers)]
        status = world.session.get(world.variants[kind], wanted)
        assert set(status) == {kvlarder.BlockStatus.OK}, status
        for block, buffer in zip(need, buffers):
            if kind == STATE:
                state[:] = buffer
            else:
                kv[kind, :, block * BLOCK : (block + 1) * BLOCK] = buffer
    world.cache.end_lookup(lookup)
    logits = model.compute(tokens, found, kv, state)
    assert logits.tobytes() == expected.tobytes(), "other bits"
    return best, blocks


def main():
    seed = int(os.environ.get("LARDER_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    cases = max(200, int(CASES * float(os.environ.get("LARDER_TEST_SCALE", "0.1"))))
    print(f"LARDER_TEST_SEED={seed}", flush=True)
    rolls, model, world = random.Random(seed), None, None
    found = blocks = 0
    for number in range(cases):
        if number % CASES_A_DAEMON == 0:
            if world is not None:
                world.close()
            window = rolls.choice((1, 15, 16, 17, 40, 64, 1_000))
            model, world = Model(window), World(sys.argv[1], window)
        one = case(world, model, rolls, number)
        found, blocks = found + one[0], blocks + one[1]
    world.close()
    print(f"{cases} cases: every answer was the longest possible, every logit the same; {found} of {blocks} blocks restored")


if __name__ == "__main__":
    main()
