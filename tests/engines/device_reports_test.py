#!/usr/bin/env python3
"""What vLLM itself has, as the daemon's Lookup says, and directives for it: a simulated vLLM, a real daemon and larderctl.

device_reports_test.py LARDERD LARDERCTL   at LARDER_TEST_SCALE 1 it churns for ten minutes; LARDER_TEST_SEED repeats a run
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import kvlarder  # noqa: E402
from kvlarder.vllm.config import Config  # noqa: E402
from larderd import Larderd  # noqa: E402
from simulated_vllm import BLOCK, LONGEST, Engine, Request  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
SEED = int(os.environ.get("LARDER_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
LARDERD, LARDERCTL = (*sys.argv[1:3], "", "")[:2]
ANSWER_MOST_S = 5.0
REST_S = 1.0  # in which all is reported
# A short run shares its machine, which may take longer.
PINS_END_S, REPORTED_S = (2.0, REST_S) if SCALE >= 1 else (30.0, 30.0)
SALTS = (None, None, "a")


class Texts:
    """Prompts with common beginnings, and the texts that an engine has made of them."""

    def __init__(self, rolls):
        self.rolls = rolls
        self.stems = [[rolls.randrange(900) for _ in range(20 * BLOCK)] for _ in range(6)]
        self.known = {}  # keys: (salt, tokens of a request at some step), the newest last

    def prompt(self):
        return self.rolls.choice(self.stems)[: self.rolls.randrange(BLOCK, 20 * BLOCK)] + [self.rolls.randrange(900)]

    def learn(self, requests):
        """Takes in what requests have by now."""
        for request in requests:
            self.known[request.cache_salt, tuple(request.all_token_ids)] = None


class DeviceTest(unittest.TestCase):
    def setUp(self):
        print(f"LARDER_TEST_SEED={SEED}", flush=True)
        self.rolls = random.Random(SEED)
        self.texts = Texts(self.rolls)
        self.daemon = Larderd(LARDERD, "--pool", "64MiB")
        self.addCleanup(lambda: self.daemon.end())
        self.client = kvlarder.connect(self.daemon.socket_dir)

    def engine(self, extra=None, **more):
        engine = Engine(Config.of({"socket_dir": self.daemon.socket_dir, **(extra or {})}), seed=SEED, **more)
        self.addCleanup(engine.close)
        return engine

    def serving(self, engine):
        self.eventually(lambda: engine.serves, "the daemon is never used")

    def eventually(self, true, what, within=30):
        until = time.monotonic() + within
        while not true():
            self.assertLess(time.monotonic(), until, what)
            time.sleep(0.01)

    def computes(self, engine, tokens, salt=None, answer=1):
        request = engine.add(Request(f"r{engine.steps}", tokens, answer, salt))
        while engine.busy:
            engine.step()
            time.sleep(0.0005)
        return request

    def had(self, engine, salt, tokens):
        """Returns the numbers of the blocks of a text that the engine has, by its own tables."""
        blocks = range(len(tokens) // BLOCK)
        return {block for block in blocks if (salt, engine.weights, *tokens[: (block + 1) * BLOCK]) in engine.pool.cached}

    def found(self, engine, salt, tokens):
        """The same, as Lookup says."""
        content = engine.contents.of(salt)
        for instance in self.client.lookup(content, tokens=list(tokens)).instances:
            if instance.engine_id == engine.facts.engine_id:
                ranges = [one for tier in instance.tiers if tier.tier == kvlarder.Tier.DEVICE for one in tier.ranges]
                return {block for one in ranges for block in range(one.begin // BLOCK, one.end // BLOCK)}
        return set()

    def differences(self, engine):
        """Returns blocks of known texts of which Lookup says something else than the engine's tables, and how many it has."""
        wrong, here = [], 0
        for salt, tokens in self.texts.known:
            had, found = self.had(engine, salt, tokens), self.found(engine, salt, tokens)
            here += len(had)
            wrong += [(salt, block) for block in had ^ found]
        return wrong, here

    def digests(self, engine, tokens, salt=None):
        chain = kvlarder.TokenChain(engine.side._cache.seed(engine.contents.of(salt)), block_tokens=BLOCK)
        chain.extend(0, list(tokens))
        return [chain.digests(block, block + 1).hex() for block in range(chain.blocks)]

    def ctl(self, verb, *arguments):
        """Returns (what larderctl says about each block, seconds)."""
        begun = time.monotonic()
        done = subprocess.run(
            [LARDERCTL, verb, "--socket-dir", self.daemon.socket_dir, "--tier", "device", "-o", "json", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - begun
        self.assertTrue(done.stdout, done.stderr)
        said = json.loads(done.stdout)
        return [one["status"] for one in said.get("blocks" if verb != "compress" else "answers") or []], seconds


class Directives(DeviceTest):
    """The engine takes no steps while it is asked."""

    def setUp(self):
        super().setUp()
        self.idle = self.engine({"device_pin_fraction": 0.1}, blocks=64)
        self.serving(self.idle)
        self.text = list(range(10 * BLOCK + 3))
        self.computes(self.idle, self.text)
        self.names = self.digests(self.idle, self.text)
        self.eventually(lambda: len(self.found(self.idle, None, self.text)) == 10, "the blocks are never reported")

    def fill(self):
        """Uses all blocks for other texts."""
        for number in range(8):
            self.computes(self.idle, [1_000 + number, *range(12 * BLOCK)])

    def test_pins_keep_blocks(self):
        self.assertEqual(self.ctl("pin", *self.names[:3], "00" * 16)[0], ["ok", "ok", "ok", "missing"])
        self.fill()
        self.assertEqual(self.had(self.idle, None, self.text), {0, 1, 2})
        self.assertEqual(self.ctl("unpin", *self.names[:2])[0], ["ok", "ok"])
        self.fill()
        self.assertEqual(self.had(self.idle, None, self.text), {2})
        self.assertEqual(self.ctl("unpin", "--all")[0], [])
        self.fill()
        self.assertEqual(self.had(self.idle, None, self.text), set())

    def test_pins_end(self):
        self.ctl("pin", "--ttl", "1s", *self.names[:2])
        self.ctl("pin", "--owner", "other", *self.names[:1])
        self.eventually(lambda: len(self.idle.side.device.pinned) == 1, "a pin never ends", PINS_END_S)
        self.fill()
        self.assertEqual(self.had(self.idle, None, self.text), {0})
        self.ctl("pin", "--owner", "other", "--ttl", "1s", self.names[0])  # the new deadline holds
        self.eventually(lambda: not self.idle.side.device.pinned, "a pin never ends", PINS_END_S)
        self.fill()
        self.assertEqual(self.had(self.idle, None, self.text), set())

    def test_no_more_than_a_part_can_be_pinned(self):
        self.assertEqual(self.ctl("pin", *self.names)[0], ["ok"] * 6 + ["full"] * 4)
        self.assertEqual(self.ctl("pin", "--owner", "other", *self.names[:6])[0], ["ok"] * 6)

    def test_drops(self):
        self.ctl("pin", self.names[0])
        running = self.idle.add(Request("running", self.text[: 2 * BLOCK + 1], 50))
        while not running.blocks:
            self.idle.step()
        status, _ = self.ctl("clear", "--yes", *self.names[:4])
        self.assertEqual(status, ["kept", "kept", "ok", "ok"])
        self.assertEqual(self.found(self.idle, None, self.text), {0, 1, *range(4, 10)})  # said before the answer
        self.assertEqual(self.had(self.idle, None, self.text), {0, 1, *range(4, 10)})
        self.idle.abort("running")
        self.assertEqual(self.ctl("clear", "--yes", "--pinned", *self.names[:2])[0], ["ok", "ok"])
        self.assertEqual(self.had(self.idle, None, self.text), set(range(4, 10)))
        self.assertEqual(self.ctl("clear", "--yes", *self.names[:1])[0], ["missing"])
        self.assertEqual(len(self.idle.pool.free), 63)

    def test_what_it_cannot_do(self):
        self.assertEqual(self.ctl("compress", self.names[0])[0], ["unsupported"])

    def test_one_request_of_the_greatest_length_always_fits(self):
        """Whatever the options allow to pin."""
        greedy = self.engine({"device_pin_fraction": 0.9, "store_pin_fraction": 0.3}, blocks=40, engine_id="greedy")
        self.serving(greedy)
        texts = [[2_000 + number, *range(10 * BLOCK)] for number in range(3)]
        for text in texts:
            self.computes(greedy, text)
        self.eventually(lambda: len(self.found(greedy, None, texts[-1])) == 10, "the blocks are never reported")
        status, _ = self.ctl("pin", *(name for text in texts for name in self.digests(greedy, text)))
        self.assertEqual((status.count("ok"), status.count("full")), (6, 24))
        self.computes(greedy, [3_000, *range(LONGEST - 2)])
        self.ctl("unpin", "--all")

    def test_a_directive_that_waited_too_long_is_not_carried_out(self):
        with self.idle.side.device.lock:  # vLLM is in the middle of something
            status, seconds = self.ctl("pin", *self.names[:2])
        self.assertEqual(status, ["pending", "pending"])
        self.assertLess(seconds, 2 * ANSWER_MOST_S)
        self.ctl("unpin", "--owner", "other", *self.names[:1])  # is answered after it
        self.assertEqual(self.idle.side.device.pinned, [])
        self.assertEqual(self.ctl("pin", *self.names[:2])[0], ["ok", "ok"])

    def test_an_error_of_ours_does_not_reach_vllm(self):
        device = self.idle.side.device
        self.ctl("pin", *self.names[:3])
        device._names = None
        self.computes(self.idle, [5_000, *range(5 * BLOCK)])
        self.assertIn("not told any more", self.idle.log.lines[-1])
        self.assertEqual(len(self.idle.pool.free), 63)
        self.eventually(lambda: not self.found(self.idle, None, self.text), "Lookup says what is not known any more")
        self.assertEqual(self.ctl("pin", self.names[0])[0], ["missing"])

    def test_a_reset_that_cannot_be_keeps_pins(self):
        self.ctl("pin", *self.names[:3])
        running = self.idle.add(Request("running", list(range(9_000, 9_000 + BLOCK + 1)), 50))
        while not running.blocks:
            self.idle.step()
        self.assertFalse(self.idle.reset_prefix_cache(running=False))
        self.assertEqual(len(self.idle.side.device.pinned), 3)

    def test_a_reset_ends_pins(self):
        self.ctl("pin", *self.names[:3])
        self.assertTrue(self.idle.reset_prefix_cache())
        self.assertEqual(len(self.idle.pool.free), 63)
        self.eventually(lambda: not self.found(self.idle, None, self.text), "Lookup says what is gone")


class Reports(DeviceTest):
    def test_an_engine_that_began_without_a_daemon(self):
        self.daemon.kill()
        engine = self.engine()
        text = list(range(5 * BLOCK))
        self.computes(engine, text)
        self.assertEqual(self.had(engine, None, text), set(range(5)))
        self.daemon.start()
        self.serving(engine)
        engine.step()
        self.eventually(lambda: self.found(engine, None, text) == set(range(5)), "what was computed before is never reported")

    def test_no_reports(self):
        for engine in (self.engine({"report_device": False}), self.engine(engine_id="uncached", local=False)):
            self.serving(engine)
            text = list(range(5 * BLOCK))
            self.computes(engine, text)
            self.assertIsNone(engine.side.device)
            self.assertEqual(self.found(engine, None, text), set())

    def test_two_blocks_that_hold_the_same(self):
        engine = self.engine(extra={"load": False})  # an answer that is late would let one go first
        self.serving(engine)
        text = list(range(3 * BLOCK + 1))
        for name in ("one", "two"):
            engine.add(Request(name, text, 2))
        while engine.busy:
            engine.step()
        pages = [blocks for prefix, blocks in engine.pool.cached.items() if len(prefix) == 2 + BLOCK]
        self.assertEqual([len(blocks) for blocks in pages], [2])
        self.eventually(lambda: self.found(engine, None, text) == {0, 1, 2}, "never all are reported")
        engine.pool.evict_blocks([pages[0][0].block_id])
        time.sleep(REST_S)
        self.assertEqual(self.found(engine, None, text), {0, 1, 2})
        engine.pool.evict_blocks([pages[0][0].block_id])
        self.eventually(lambda: self.found(engine, None, text) == {1, 2}, "what is gone is never reported", REPORTED_S)


class Churn(DeviceTest):
    """Requests, resets, directives and restarts of the daemon; whenever all rests, Lookup says what the engine has."""

    def test_lookup_is_right_after_a_moment(self):
        engine = self.engine(blocks=96, ranks=2, shards=2, running_max=6)
        self.serving(engine)
        until, rounds, compared, restarts, asked, slowest, late = time.monotonic() + 600 * SCALE, 0, 0, 0, 0, 0.0, 0
        self.resets = 0
        kept = {}  # {digest: (salt, tokens of its prefix)} that must stay
        while time.monotonic() < until:
            if self.rolls.random() < 0.3:
                self.restarts_meanwhile(engine, kept)
                restarts += 1
            else:
                self.churns(engine, 2.0, kept)
            for _ in range(3):
                seconds = self.asks(engine, kept)
                asked, slowest = asked + 1, max(slowest, seconds)
            self.churns(engine, 0.5, kept)
            late += sum((salt, engine.weights, *prefix) not in engine.pool.cached for salt, prefix in kept.values())
            time.sleep(REST_S)
            engine.step()
            engine.side.check_invariants()
            if SCALE < 1:  # beside other tests a moment may be longer
                self.eventually(lambda: not self.differences(engine)[0], "Lookup stays wrong")
            wrong, here = self.differences(engine)
            self.assertEqual(wrong, [], f"round {rounds}, {here} blocks")
            compared, rounds = compared + here, rounds + 1
        print(f"{rounds} rounds, {engine.steps} steps, {self.resets} resets, {restarts} restarts of the daemon; {compared} blocks compared, 0 differences; "
              f"{asked} directives, the slowest after {slowest:.3f} s; {late} pinned blocks were lost", flush=True)  # fmt: skip
        self.assertEqual(late, 0)
        self.assertLess(slowest, ANSWER_MOST_S)
        self.assertGreater(compared, 0)
        self.ctl("unpin", "--all")
        while engine.busy:
            engine.step()
        self.eventually(lambda: len(engine.pool.free) == len(engine.pool.blocks) - 1, "blocks that are never freed")

    def churns(self, engine, seconds, kept):
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until or engine.busy:
            if time.monotonic() < until and len(engine.requests) < 8 and self.rolls.random() < 0.5:
                salt = self.rolls.choice(SALTS)
                request = Request(f"c{engine.steps}-{number}", self.texts.prompt(), self.rolls.randrange(1, 40), salt)
                engine.add(request)
                number += 1
            if engine.requests and self.rolls.random() < 0.02:
                engine.abort(self.rolls.choice(list(engine.requests)))
            if self.rolls.random() < 0.001 and engine.reset_prefix_cache(running=True, connector=False):
                kept.clear()
                self.resets += 1
            before = list(engine.requests.values())
            engine.step()
            self.texts.learn(before)
            time.sleep(0.0005)
        for old in list(self.texts.known)[:-150]:  # which are not looked up any more
            del self.texts.known[old]

    def restarts_meanwhile(self, engine, kept):
        def restart():
            time.sleep(self.rolls.uniform(0, 0.5))
            self.daemon.kill()
            time.sleep(self.rolls.uniform(0, 0.5))
            self.daemon.start()

        thread = threading.Thread(target=restart)
        thread.start()
        self.churns(engine, 2.0, kept)
        thread.join()
        self.serving(engine)
        self.client = kvlarder.connect(self.daemon.socket_dir)

    def asks(self, engine, kept):
        """Pins, unpins or drops some blocks, and looks whether the engine did.  Returns the seconds until the answer."""
        salt, tokens = self.rolls.choice(list(self.texts.known))
        names = self.digests(engine, tokens, salt)
        had = sorted(self.had(engine, salt, tokens))
        # The daemon asks for blocks that it knows of, and after a restart it is told of them a moment later.
        self.eventually(lambda: set(had) <= self.found(engine, salt, tokens), "never reported")
        some = self.rolls.sample(had, min(len(had), 3))
        prefix = {names[block]: (salt, tokens[: (block + 1) * BLOCK]) for block in range(len(names))}
        what = self.rolls.choice(("pin", "unpin", "clear")) if some else "unpin"
        if what == "unpin":
            status, seconds = self.ctl("unpin", "--all")
            kept.clear()
            return seconds
        chosen = [names[block] for block in some]
        status, seconds = self.ctl(what, *(["--yes"] if what == "clear" else []), *chosen)
        for name, said in zip(chosen, status, strict=True):
            there = (salt, engine.weights, *prefix[name][1]) in engine.pool.cached
            if what == "pin":
                self.assertIn(said, ("ok", "full"))
                self.assertTrue(there)
                if said == "ok":
                    kept[name] = prefix[name]
            else:
                self.assertEqual(said, "kept" if name in kept else "ok")
                self.assertEqual(there, name in kept)
        return seconds


class Pressure(DeviceTest):
    def test_directives_while_blocks_are_scarce(self):
        """Pins and drops in another thread, as fast as they go, while allocations take the last free blocks."""
        engine = self.engine({"device_pin_fraction": 0.5, "store_policy": self.rolls.choice(("eager", "lazy"))}, blocks=40, running_max=6)
        self.serving(engine)
        ended, asked, failures, count = threading.Event(), [], [], engine.pool.get_num_free_blocks

        def free_blocks():
            """Lets the other thread run between the count of free blocks and what is made of it."""
            free = count()
            time.sleep(1e-5)
            return free

        engine.pool.get_num_free_blocks = free_blocks

        class Asked:
            """What take_directive returns."""

            waits = True

            def __init__(self, kind, digests):
                self.kind, self.digests, self.owner, self.variant, self.pinned = kind, digests, "o", 0, True
                self.ends_unix_s = time.time() + 0.05

        def press():
            device, rolls = engine.side.device, random.Random(SEED)
            try:
                while not ended.is_set():
                    with device.lock:
                        here = list(device._pages)
                    some = rolls.sample(here, min(len(here), 5))
                    kind = rolls.choice((kvlarder.DirectiveKind.PIN, kvlarder.DirectiveKind.UNPIN, kvlarder.DirectiveKind.DROP))
                    with device.lock:
                        device._end_late_pins()
                    asked.append(device._obey(Asked(kind, some)))
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=press)
        thread.start()
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            begun, wanted = 0, max(60, int(600 * SCALE))
            while begun < wanted or engine.busy:
                if begun < wanted and len(engine.requests) < 10:
                    engine.add(Request(f"p{begun}", self.texts.prompt(), self.rolls.randrange(1, 60)))
                    begun += 1
                engine.step()
        finally:
            sys.setswitchinterval(switch)
            ended.set()
            thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(len(asked), 100)
        engine.side.device.end_pins()
        engine.side.check_invariants()
        self.assertEqual(len(engine.pool.free), len(engine.pool.blocks) - 1)
        print(f"{begun} requests, {engine.steps} steps, {engine.preempted} preempted, {len(asked)} directives", flush=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
