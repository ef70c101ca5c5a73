#!/usr/bin/env python3
"""Storms: simulated engines (simulated_vllm.py) whose requests are preempted and aborted at any moment, while the daemon
is killed, stopped and full.  No wrong byte, no request that never ends, nothing left held.

connector_storm_test.py LARDERD
"""

import os
import random
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import kvlarder  # noqa: E402
from kvlarder.vllm import restores, scheduler  # noqa: E402
from kvlarder.vllm.config import Config  # noqa: E402
from kvlarder.vllm.scheduler import SchedulerSide  # noqa: E402
from kvlarder.vllm.worker import WorkerSide  # noqa: E402
from larderd import Larderd, damage  # noqa: E402
from simulated_vllm import BLOCK, Engine, Request, WrongBytes  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
SEED = int(os.environ.get("LARDER_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")


HANGS = {"drain_ms": 20, "store_timeout_ms": 60_000, "patience_ms": 5}  # for a daemon that hangs while stores are under way
FEW_STORES = {"store_pin_fraction": 0.05}  # a step computes more blocks than stores may pin


def scaled(count):
    return max(1, int(count * SCALE))


class Texts:
    """Prompts that share beginnings, as chats do."""

    def __init__(self, seed, documents=4):
        self.random = random.Random(seed)
        self.documents = [[self.random.randrange(1000) for _ in range(600)] for _ in range(documents)]

    def prompt(self):
        document = self.random.choice(self.documents)
        own = [self.random.randrange(1000) for _ in range(self.random.randrange(1, 40))]
        return document[: self.random.randrange(5, 300)] + own


class World(unittest.TestCase):
    def setUp(self):
        print(f"LARDER_TEST_SEED={SEED}", flush=True)
        self.daemon = Larderd(sys.argv[1], "--pool", "64MiB")
        self.addCleanup(lambda: self.daemon.end())
        self.hung_prompts = []

    def engine(self, **more):
        extra = {"socket_dir": self.daemon.socket_dir, "drain_ms": 1000, "store_pin_fraction": 0.5, **more.pop("extra", {})}
        engine = Engine(Config.of(extra), seed=SEED, **more)
        self.addCleanup(engine.close)
        self.serving(engine)
        return engine

    def serving(self, engine):
        until = time.monotonic() + 30
        while not engine.serves:
            self.assertLess(time.monotonic(), until, "the daemon is never used")
            time.sleep(0.01)

    def finish(self, engine, within=120):
        until = time.monotonic() + within
        while engine.busy:
            engine.step()
            if not engine.running:
                time.sleep(0.001)
            self.assertLess(time.monotonic(), until, f"requests that never end: {engine.side.open} {list(engine.requests)}")

    def nothing_held(self, engine):
        self.assertEqual(engine.side.open, (0, 0, 0, 0))
        self.assertEqual(engine.side.restores.pinned if engine.side.restores else 0, 0, "restores that are never over")
        self.assertEqual(len(engine.pool.free), len(engine.pool.blocks) - 1, "blocks that are never freed")

    def storm(self, engine, requests, abort=0.0, reset=0.0, hurry=0.0, texts=None):
        texts = texts or Texts(SEED)
        rolls, begun = random.Random(SEED + 1), 0
        until = time.monotonic() + 600 * SCALE + 240
        while begun < requests or engine.busy:
            if begun < requests and len(engine.requests) < 12 and rolls.random() < 0.5:
                salt = rolls.choice((None, None, None, "a"))
                engine.add(Request(f"r{begun}", texts.prompt(), rolls.randrange(1, 120), salt))
                begun += 1
            if engine.requests and rolls.random() < abort:
                engine.abort(rolls.choice(list(engine.requests)))
            if rolls.random() < reset:
                engine.reset_prefix_cache(running=rolls.random() < 0.7, connector=rolls.random() < 0.5)
            engine.step()
            if not engine.running and rolls.random() > hurry:
                time.sleep(0.0005)
            self.assertLess(time.monotonic(), until, f"requests that never end: {engine.side.open}")
        self.nothing_held(engine)
        print(f"{self.id().split('.')[-1]}: {begun} requests, {engine.steps} steps, {engine.preempted} preempted, "
              f"{engine.loaded} tokens loaded, {engine.recomputed} computed because a load failed, {engine.restored} more restored")  # fmt: skip

    def share_failed_layers(self, engine):
        """Two requests share a prefix that is loaded by layer, and the load fails; then the one that vLLM lets compute it again
        is aborted.  Returns how often that happened."""
        prompt, happened = Texts(SEED).documents[0][: 10 * BLOCK], 0
        for number in range(10):
            engine.add(Request(f"writer{number}", [*prompt, number], 1))
            self.finish(engine)
            self.assertTrue(engine.reset_prefix_cache(connector=False))
            with lost_blocks(1.0):
                first, second = (engine.add(Request(f"{name}{number}", [*prompt, 1], 3)) for name in ("first", "second"))
                before, until = engine.taken_back, time.monotonic() + 30
                while engine.taken_back == before and engine.busy and time.monotonic() < until:
                    engine.step()
            if engine.taken_back == before + 2:
                happened += 1
                engine.abort(first.request_id)
            self.finish(engine)
            self.assertEqual(second.status, "finished")
        return happened

    def reset_while_the_daemon_hangs(self, engine):
        """Returns whether stores were under way.  The requests end."""
        texts = Texts(f"{SEED}, {engine.steps}")
        for number in range(4):
            prompt = texts.prompt() + texts.prompt()
            self.hung_prompts.append(prompt)
            engine.add(Request(f"hung{engine.steps}-{number}", prompt, 20))
        until = time.monotonic() + 60
        while engine.busy and (len(engine.running) < 2 or engine.side._loading) and time.monotonic() < until:
            engine.step()
            time.sleep(0.001)
        self.daemon.stop()
        try:
            until, before = time.monotonic() + 10, engine.side._stores_ordered
            while engine.side._stores_ordered == before and engine.busy and time.monotonic() < until:
                engine.step()  # until a store begins that cannot have read its blocks yet
            hung = engine.side.open[2]
            loaded = any(request.blocks for request in engine.waiting)  # as with any connector, these are not preempted
            emptied = engine.reset_prefix_cache(running=True, connector=False)
            for kv in [kv for rank in engine.ranks for kv in rank.kv if emptied]:
                kv[:] = 77  # all pages are the engine's again, to compute other blocks on
        finally:
            self.daemon.go_on()
        self.stores_end(engine)  # they go on now, if they may, before the pages have blocks again
        self.assertTrue(emptied or loaded, f"{hung} blocks were being stored")
        self.finish(engine)
        return bool(hung and emptied)

    def stores_end(self, engine):
        fences = [kvlarder.PageFence(rank.side._fence.memory) for rank in engine.ranks if engine.facts.writes(rank.rank)]
        until = time.monotonic() + 60
        while any(fence.ended < engine.side._stores_ordered for fence in fences):
            self.assertLess(time.monotonic(), until, "stores that never end")
            time.sleep(0.001)

    def weather(self, engine, lives):
        """kill -9, SIGSTOP and restarts of the daemon, so many, in loads and in stores."""
        ended = threading.Event()
        rolls = random.Random(SEED + 2)
        stops = kills = 0

        def change():
            nonlocal stops, kills
            while not ended.wait(rolls.uniform(0.02, 0.6)):
                if rolls.random() < 0.5:
                    self.daemon.stop()
                    ended.wait(rolls.uniform(0.01, 0.8))
                    self.daemon.go_on()
                    stops += 1
                else:
                    self.daemon.kill()
                    ended.wait(rolls.uniform(0, 0.3))
                    self.daemon.start()
                    kills += 1

        thread = threading.Thread(target=change)
        thread.start()
        try:
            while stops + kills < lives:
                self.storm(engine, 60, abort=0.05)
        finally:
            ended.set()
            thread.join()
        print(f"stopped {stops} times, killed {kills} times")
        self.serving(engine)
        self.storm(engine, 60)

    def stored_is_right(self, engine, prompts=None):
        """Other requests, on another engine with the same names, load what was stored; each page is checked."""
        reader = World.engine(self, blocks=200, ranks=len(engine.ranks), shards=engine.facts.shards, local=False)
        reader.contents, reader.side._contents = engine.contents, engine.side._contents
        reader.weights = engine.weights
        texts = Texts(SEED)
        for number in range(40):
            reader.add(Request(f"reader{number}", texts.prompt(), 1, texts.random.choice((None, None, "a"))))
        for number, prompt in enumerate(prompts or ()):
            reader.add(Request(f"again{number}", prompt, 1))
        self.finish(reader)
        return reader.loaded



class Storm(World):
    def test_preemption(self):
        engine = self.engine(blocks=40, running_max=8, late_reports=0.3)
        self.storm(engine, scaled(2_000))
        self.assertGreater(engine.loaded, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_no_local_cache(self):
        engine = self.engine(blocks=60, running_max=6, local=False, late_reports=0.2)
        self.storm(engine, scaled(2_000), abort=0.05, reset=0.01)
        self.assertGreater(engine.loaded, 0)

    def test_blocks_that_cannot_be_loaded(self):
        engine = self.engine(blocks=60, running_max=6, local=False, ranks=2, shards=2, late_reports=0.2)
        with lost_blocks():
            self.storm(engine, scaled(2_000), abort=0.05)
        self.assertGreater(engine.recomputed, 0)

    def test_blocks_that_wait_to_be_stored(self):
        """Stores may pin 2 of the 4 blocks that a step computes."""
        engine = self.engine(blocks=40, running_max=8, late_reports=0.3, extra=FEW_STORES)
        self.storm(engine, scaled(2_000), abort=0.05, reset=0.01)
        self.assertTrue(engine.reset_prefix_cache())
        self.storm(engine, 50)
        self.assertGreater(engine.totals().get("blocks_dropped", 0), 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_aborts(self):
        engine = self.engine(blocks=80, late_reports=0.2)
        self.storm(engine, scaled(2_000), abort=0.15, hurry=0.9)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_resets(self):
        engine = self.engine(blocks=60, running_max=6)
        self.storm(engine, scaled(2_000), reset=0.05, abort=0.02)

    def test_resets_while_the_daemon_hangs(self):
        """Stores that cannot end do not keep vLLM from emptying its cache, and store nothing of what it computes then."""
        engine = self.engine(blocks=90, running_max=6, ranks=2, shards=2, extra=HANGS)
        hung = sum(self.reset_while_the_daemon_hangs(engine) for _ in range(scaled(100)))
        self.nothing_held(engine)
        self.assertGreater(hung, 0)
        print(f"{hung} resets while stores hung")
        self.assertGreater(self.stored_is_right(engine, self.hung_prompts), 0)

    def test_two_ranks(self):
        engine = self.engine(blocks=60, ranks=2, shards=2, running_max=6, late_reports=0.4)
        self.storm(engine, scaled(2_000), abort=0.05)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_replicated_ranks(self):
        engine = self.engine(blocks=60, ranks=4, shards=2, running_max=6, late_reports=0.4)
        self.storm(engine, scaled(1_000), abort=0.05)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_a_small_pool(self):
        self.daemon.end()
        self.daemon = Larderd(sys.argv[1], "--pool", "4MiB", "--slab", "2MiB")
        engine = self.engine(blocks=60, running_max=6)
        self.storm(engine, scaled(1_000), abort=0.05, texts=Texts(SEED, documents=200))

    def test_a_bad_disk(self):
        """After each kill -9 blocks are loaded from a disk that is slow, full, fails, or has damaged records."""
        self.daemon.end()
        disk = tempfile.TemporaryDirectory()
        self.addCleanup(disk.cleanup)
        self.daemon = Larderd(sys.argv[1], "--pool", "16MiB", "--slab", "2MiB", "--disk", disk.name)
        command = self.daemon.command
        engine = self.engine(blocks=60, running_max=6, local=False)
        rolls, damaged = random.Random(SEED + 5), 0
        for _ in range(scaled(150)):
            self.storm(engine, 20, abort=0.05, texts=Texts(SEED, documents=20))
            self.daemon.kill()
            damaged += damage(disk.name, rolls) if rolls.random() < 0.3 else 0
            self.daemon.command = [*command, "--fault-points", rolls.choice(BAD_DISKS)]
            self.daemon.start()
            self.serving(engine)
        print(f"{damaged} bytes damaged; {engine.loaded} tokens loaded, {engine.recomputed} computed because a load failed")
        self.assertGreater(engine.loaded, 0)

    def test_a_daemon_that_comes_and_goes(self):
        engine = self.engine(blocks=60, ranks=2, shards=2, running_max=6, late_reports=0.2)
        self.weather(engine, scaled(300))
        self.assertGreater(self.stored_is_right(engine), 0)


class ByLayer(World):
    """Prefixes are loaded layer by layer, in the steps that compute with them."""

    def engine(self, **more):
        return super().engine(**{"blocks": 40, "running_max": 8, "layers": True, **more})

    def setUp(self):
        super().setUp()
        loads = always_by_layer()
        loads.start()
        self.addCleanup(loads.stop)

    def storm(self, engine, requests, abort=0.0, **more):
        """Requests are also aborted while a step is under way."""
        rolls = random.Random(SEED + 6)

        def mid_step():
            if engine.requests and rolls.random() < abort:
                engine.abort(rolls.choice(list(engine.requests)))

        engine.mid_step = mid_step
        super().storm(engine, requests, abort=abort, **more)

    def has_loaded(self, engine):
        self.stores_end(engine)
        print(f"{engine.by_layer} loads by layer, {engine.taken_back} requests of steps whose load failed")
        self.assertGreater(engine.by_layer, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_preemption_aborts_and_resets(self):
        engine = self.engine()
        self.storm(engine, scaled(2_000), abort=0.05, reset=0.01)
        # The last reset may have come just now, or unclean, after which nothing is stored: a clean one ends that.
        self.assertTrue(engine.reset_prefix_cache())
        self.storm(engine, 50)
        self.has_loaded(engine)

    def test_loads_that_fail(self):
        engine = self.engine(blocks=60)
        with lost_blocks(0.05):
            self.storm(engine, scaled(2_000), abort=0.1)
        self.assertGreater(engine.taken_back, 0)
        self.has_loaded(engine)

    def test_loads_that_fail_while_blocks_wait_to_be_stored(self):
        engine = self.engine(blocks=60, extra=FEW_STORES)
        with lost_blocks(0.05):
            self.storm(engine, scaled(2_000), abort=0.1)
        self.assertGreater(engine.taken_back, 0)
        self.has_loaded(engine)

    def test_a_block_that_waited_is_stored_after_a_load_beside_it_has_failed(self):
        """Each step orders a store of blocks that a long prompt computed before; those steps whose load fails store nothing."""
        self.enterContext(unittest.mock.patch.object(scheduler, "LAYERS_PATIENCE_S", 30.0))
        engine = self.engine(blocks=80, local=False, extra={**FEW_STORES, "patience_ms": 5_000}, long_steps=True)
        short, long = (Texts(f"{SEED}, {name}").documents[0] for name in ("short", "long"))
        engine.add(Request("writer", short[: 10 * BLOCK + 1], 40))
        self.finish(engine)
        engine.add(Request("long", long[: 32 * BLOCK], 60))
        for _ in range(8):
            engine.step()
        before = engine.taken_back
        with lost_blocks(1.0):
            engine.add(Request("short", short[: 10 * BLOCK + 1], 3))
            self.finish(engine)
        self.assertGreater(engine.taken_back, before)
        self.stores_end(engine)
        engine.totals()
        engine.add(Request("again", long[: 32 * BLOCK], 1))
        self.finish(engine)
        self.assertEqual(engine.totals()["blocks_loaded"], 31)

    def test_requests_that_share_failed_layers(self):
        engine = self.engine(blocks=80)
        happened = self.share_failed_layers(engine)
        print(f"{happened} times a request was aborted that others shared failed blocks with")
        self.assertGreater(happened, 0)
        self.nothing_held(engine)

    def test_a_daemon_that_comes_and_goes(self):
        engine = self.engine(blocks=60)
        self.weather(engine, scaled(100))
        self.has_loaded(engine)


class LazyStores(World):
    """Blocks are stored when vLLM is about to reuse them."""

    def engine(self, policy="lazy", **more):
        return super().engine(extra={"store_policy": policy, **more.pop("extra", {})}, **more)

    def test_preemption_aborts_and_resets(self):
        engine = self.engine(blocks=40, running_max=8, late_reports=0.3)
        self.storm(engine, scaled(2_000), abort=0.05, reset=0.01)
        self.assertTrue(engine.reset_prefix_cache())
        self.storm(engine, 50)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_ranks_and_late_reports(self):
        engine = self.engine(blocks=60, running_max=6, ranks=2, shards=2, late_reports=0.3)
        self.storm(engine, scaled(2_000), abort=0.05)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_a_daemon_that_comes_and_goes(self):
        engine = self.engine(blocks=60, running_max=6)
        self.weather(engine, scaled(100))
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_a_request_is_not_admitted_in_the_step_that_asks(self):
        text = Texts(SEED).documents[0][: 10 * BLOCK + 1]
        writer = self.engine("eager", blocks=60)
        writer.add(Request("writer", text, 1))
        self.finish(writer)
        self.stores_end(writer)
        engine = self.engine(blocks=60, extra={"patience_ms": 5_000})
        side, request = engine.side, Request("reader", text, 1)
        side.on_new_request(request)
        ask = side._ask

        def ask_and_wait(*arguments):
            asked = ask(*arguments)
            while side._cache.poll_lookup(side.request_of(request).lookup) is None:
                time.sleep(0.001)
            return asked

        with unittest.mock.patch.object(side, "_ask", ask_and_wait):
            answers = []
            for _ in range(2):
                answers.append(side.matched_tokens(request, 0))
                side.build_step({}, [], None)
        self.assertEqual(answers, [(None, False), (10 * BLOCK, True)])
        side.finished(request)

    def test_a_working_set_of_three_times_the_device(self):
        """60 texts of 30 blocks are computed once and then asked for again, twice; the device has 600 blocks.  What is still
        on the device is not stored, and as much is found as if all had been stored at once."""
        rolls, found = random.Random(7), {}
        texts = [[rolls.randrange(1000) for _ in range(30 * BLOCK)] for _ in range(60)]
        for policy in ("eager", "lazy"):
            engine = self.engine(policy, blocks=601, running_max=2, engine_id=policy, long_steps=True, extra={"patience_ms": 5_000})
            stored, lost = [], 0
            for turn in range(3):
                for number, text in enumerate(texts):
                    engine.add(Request(f"{policy}{turn}-{number}", [*text, turn], 4, policy))
                    if number % 2:
                        self.finish(engine)
                counts = engine.totals()
                stored.append(counts.get("blocks_stored", 0) + sum(stored[-1:]))
                lost += counts.get("blocks_reused_unstored", 0)
            found[policy] = stored, engine.hits + engine.loaded
            print(f"{policy}: blocks stored after each turn {stored}, lost {lost}; hit tokens: {engine.hits} of vLLM, "
                  f"{engine.loaded} loaded; {engine.stalled} allocations failed")  # fmt: skip
            self.assertEqual(engine.stalled, 0)
            self.nothing_held(engine)
        (eager, eager_hits), (lazy, lazy_hits) = found["eager"], found["lazy"]
        self.assertLessEqual(lazy[0] / eager[0], 0.7)
        self.assertGreaterEqual(lazy_hits / eager_hits, 0.95)


class Restores(World):
    """An engine that computes and loads at once, over a link on which both take about as long."""

    STEP_S = 0.002

    def engine(self, restores=True, **more):
        if not restores:
            return super().engine(**more)
        channels = [kvlarder.ChannelCost(f"{tier}{rank}", 2e6) for rank in range(more.get("ranks", 1)) for tier in ("host", "disk")]
        profile = kvlarder.Profile(layers=1, compute=kvlarder.ComputeCost(self.STEP_S, 1e-6), channels=channels)
        more["extra"] = {"emulated_link_mb_per_s": 2.0, **more.get("extra", {})}
        return super().engine(restores=profile, step_s=self.STEP_S, **more)

    def storm(self, engine, requests, **more):
        super().storm(engine, requests, **more)
        counts = engine.totals()
        print({name: counts.get(name, 0) for name in
               ("restores", "restored_tokens_computed", "restored_tokens_loaded", "claims_failed", "claims_cancelled")})  # fmt: skip

    def test_both_ends_meet(self):
        prompt = [number % 900 for number in range(640)]
        writer = super().engine(blocks=200)  # with room to store all of it
        writer.add(Request("writer", prompt, 1))
        self.finish(writer)
        reader = self.engine(blocks=60, local=False, extra={"patience_ms": 5_000})
        with unittest.mock.patch.object(restores.Restores, "pays", lambda *_: True):  # however busy the machine is
            for number in range(5):
                reader.add(Request(f"reader{number}", prompt, 1))
                self.finish(reader)
        counts = reader.totals()
        self.assertEqual(counts["restores"], 5)
        self.assertGreater(counts["restored_tokens_loaded"], 0)
        restored = counts["restored_tokens_loaded"] + counts.get("restored_tokens_computed", 0)
        self.assertEqual(restored, 5 * ((len(prompt) - 1) // BLOCK * BLOCK - reader.chunk))
        print(f"{counts['restored_tokens_loaded']} of {restored} tokens loaded")
        self.nothing_held(reader)

    def test_preemption_aborts_and_resets(self):
        engine = self.engine(blocks=40, running_max=8, late_reports=0.3)
        self.storm(engine, scaled(2_000), abort=0.05, reset=0.01)
        self.assertGreater(engine.restored, 0)
        # The last reset may have come just now, or unclean, after which nothing is stored: a clean one ends that.
        self.assertTrue(engine.reset_prefix_cache())
        self.storm(engine, 50)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_beside_loads_by_layer(self):
        engine = self.engine(blocks=60, running_max=6, layers=True)
        with always_by_layer(), lost_blocks(0.02):
            self.storm(engine, scaled(2_000), abort=0.05)
        print(f"{engine.by_layer} loads by layer, {engine.taken_back} requests of steps whose load failed")
        self.assertGreater(engine.restored, 0)
        self.assertGreater(engine.by_layer, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_two_ranks(self):
        engine = self.engine(blocks=60, running_max=6, ranks=2, shards=2, local=False, late_reports=0.3)
        self.storm(engine, scaled(2_000), abort=0.05)
        self.assertGreater(engine.restored, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_a_daemon_that_comes_and_goes(self):
        engine = self.engine(blocks=60, running_max=6, local=False, late_reports=0.2)
        self.weather(engine, scaled(300))
        self.assertGreater(engine.restored, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_blocks_that_cannot_be_loaded(self):
        """Blocks behind one that is gone are loaded, and the engine computes on behind them."""
        rolls, begin = random.Random(SEED + 3), restores.Restores.begin

        def some_are_lost(self, request, digests, *more):
            parts = [digests[at : at + 16] for at in range(0, len(digests), 16)]
            return begin(self, request, b"".join(os.urandom(16) if rolls.random() < 0.1 else one for one in parts), *more)

        with unittest.mock.patch.object(restores.Restores, "begin", some_are_lost):
            engine = self.engine(blocks=60, running_max=6, local=False)
            self.storm(engine, scaled(2_000), abort=0.05)
        self.assertGreater(engine.restored, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_pool_and_disk(self):
        """Each tier has a tail of its own."""
        self.daemon.end()
        disk = tempfile.TemporaryDirectory()
        self.addCleanup(disk.cleanup)
        self.daemon = Larderd(sys.argv[1], "--pool", "4MiB", "--slab", "2MiB", "--disk", disk.name)
        engine = self.engine(blocks=60, running_max=6, local=False)
        texts = Texts(SEED, documents=40)
        for _ in range(scaled(60)):
            self.storm(engine, 30, abort=0.05, texts=texts)
            self.daemon.kill()
            self.daemon.start()
            self.daemon.await_pool()
            self.serving(engine)
        self.assertGreater(engine.restored, 0)
        self.assertGreater(self.stored_is_right(engine), 0)

    def test_loads_into_freed_pages_are_noticed(self):
        begin = restores.Restores.begin

        def without_pins(self, *arguments):
            pool, self._pool = self._pool, unittest.mock.MagicMock()
            try:
                return begin(self, *arguments[:-1], 0)  # without the promise, whose end would end the loads, too
            finally:
                self._pool = pool
                for restore in self._restores.values():
                    restore.pinned = []

        def goes_on(self, request):
            self._numbers.pop(request, None)

        with unittest.mock.patch.multiple(restores.Restores, begin=without_pins, end=goes_on):
            engine = self.engine(blocks=40, running_max=8, local=False)
            with self.assertRaises(AssertionError) as raised:
                for _ in range(60):
                    self.storm(engine, 200, abort=0.3)
                    self.stored_is_right(engine)
        print(f"noticed: {type(raised.exception).__name__} {str(raised.exception)[:90]}")


BAD_DISKS = (
    "data.read=error/4", "data.read=sleep:300ms/4", "data.write=full/2", "data.write=error/3,data.sync=sleep:300ms/2",
    "catalog.commit=full/2", "data.read=short/2",
)  # fmt: skip


def always_by_layer():
    """Loads go by layer however busy the machine is, also after one has failed."""
    return unittest.mock.patch.object(scheduler.LayerLoads, "pays", lambda *_: True)


def lost_blocks(lost=0.1):
    """Workers ask for some blocks by random names, which the daemon does not have."""
    rolls, begin = random.Random(SEED + 3), WorkerSide.begin_step

    def begin_step(self, step):
        loads = []
        for load in step.loads:
            digests = [load.digests[at : at + 16] for at in range(0, len(load.digests), 16)]
            digests = [os.urandom(16) if rolls.random() < lost else digest for digest in digests]
            loads.append(load._replace(digests=b"".join(digests)))
        begin(self, type(step)(loads, step.stores, step.cancels))

    return unittest.mock.patch.object(WorkerSide, "begin_step", begin_step)


class Harm(World):
    """The storms notice what must never happen."""

    def harmed(self, side, method, harm, reset=0.02, noticed=(AssertionError, KeyError), **more):
        settings = {"blocks": 40, "running_max": 8, "late_reports": 0.3, "local": False, **more}
        with unittest.mock.patch.object(side, method, harm):
            engine = self.engine(**settings)
            with self.assertRaises(noticed) as raised:
                for _ in range(20):
                    self.storm(engine, 200, abort=0.1, reset=reset)
                    self.stored_is_right(engine)
        print(f"noticed: {type(raised.exception).__name__} {str(raised.exception)[:90]}")

    def test_blocks_that_are_not_pinned(self):
        plan = SchedulerSide._plan

        def without_pins(self, job):
            pool, self._pool = self._pool, unittest.mock.MagicMock()
            try:
                return plan(self, job)
            finally:
                self._pool = pool

        def unpin(self, job):
            self._pinned -= 0 if job.load else len(job.pages)
            job.pages = []

        with unittest.mock.patch.object(SchedulerSide, "_unpin", unpin):
            self.harmed(SchedulerSide, "_plan", without_pins)

    def test_pins_that_end_with_the_first_rank(self):
        on_report = SchedulerSide.on_report

        def hasty(self, report):
            for ended in report.ended:
                if ended.job in self._jobs:
                    self._jobs[ended.job].ranks = 1
            on_report(self, report)

        self.harmed(SchedulerSide, "on_report", hasty, ranks=2, shards=2)

    def test_requests_told_twice(self):
        take, told = WorkerSide.take_loaded, []

        def again(self):
            told.append(take(self))
            return told[-1] | (told[-2] if len(told) > 1 else set())

        self.harmed(WorkerSide, "take_loaded", again)

    def test_bad_pages_a_step_late(self):
        take, kept = WorkerSide.take_bad_pages, []

        def late(self):
            kept.append(take(self))
            return kept[-2] if len(kept) > 1 else set()

        with lost_blocks():
            self.harmed(WorkerSide, "take_bad_pages", late)

    def test_a_promise_that_is_never_let_go(self):
        self.harmed(SchedulerSide, "_end_lookup", lambda self, request: setattr(request, "lookup", 0))

    def test_a_fence_that_does_not_hold(self):
        """Blocks are let go while stores go on to read them."""
        open_fence = unittest.mock.MagicMock(ended=1 << 60)
        with unittest.mock.patch("kvlarder.vllm.worker.SharedFence.opened", lambda path: open_fence):
            engine = self.engine(blocks=90, running_max=6, extra=HANGS)
            with self.assertRaises(WrongBytes):
                for _ in range(5):
                    hung = sum(self.reset_while_the_daemon_hangs(engine) for _ in range(10))
                    print(f"{hung} resets while stores hung")
                    self.stored_is_right(engine, self.hung_prompts)

    def without_layers_off(self, side, method, harm):
        with always_by_layer(), lost_blocks(0.05):
            self.harmed(side, method, harm, reset=0.0, noticed=WrongBytes, layers=True, late_reports=0, local=True)

    def test_failed_layers_that_stay_in_the_prefix_cache(self):
        with unittest.mock.patch("simulated_vllm.BlockPool.evict_blocks", lambda *_: None):
            self.without_layers_off(SchedulerSide, "_end_restore", SchedulerSide._end_restore)

    def test_blocks_computed_from_failed_layers_that_are_stored(self):
        end_layers = WorkerSide._end_layers
        self.without_layers_off(WorkerSide, "_end_layers", lambda self: end_layers(self) or True)

    def test_requests_that_share_failed_layers_and_go_on(self):
        take_back = SchedulerSide._take_back

        def only_the_first(self, job):
            job.computed = [one for one in job.computed if one[0] is job.request or not one[2]]
            take_back(self, job)

        with unittest.mock.patch.object(SchedulerSide, "_take_back", only_the_first), self.assertRaises(WrongBytes):
            with always_by_layer():
                self.share_failed_layers(self.engine(blocks=80, running_max=8, layers=True))

    def test_layers_that_are_not_awaited(self):
        def at_once(self, name):
            if self._layered is not None:
                self._layered.awaited = self._layered.layers

        self.without_layers_off(WorkerSide, "wait_for_layer", at_once)

    def test_an_old_generation(self):
        self.harmed(SchedulerSide, "reset", lambda self, clean: None)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
