#!/usr/bin/env python3
"""Tests of the package kvlarder: results, errors, and that it neither copies buffers nor holds the GIL.

binding_test.py LARDERD
"""

import os
import subprocess
import sys
import tempfile
import threading
import unittest

import kvlarder
from larderd import Larderd


def costs(layers=8):
    return kvlarder.CostModel(kvlarder.Profile(
        model="m", layers=layers, compute=kvlarder.ComputeCost(0.001, 1e-4, 1e-8),
        channels=[kvlarder.ChannelCost("pool", 1e9)]))


def spec(request=1, blocks=8, **more):
    stage = kvlarder.StageSpec(kvlarder.StageLayers(0, 8), [kvlarder.Copy([1] * blocks, 1e6)])
    return kvlarder.RequestSpec(id=request, tokens=blocks * 64, block_tokens=64, chunk_tokens=64, stages=[stage], **more)


class Planner(unittest.TestCase):
    def test_meets_in_the_middle(self):
        plan_input = kvlarder.make_plan_input(costs(), 512, 64, 64, [1] * 8, 6.4e6)
        plan_input.layers = 8
        plan = kvlarder.make_plan(plan_input)
        self.assertEqual(plan.mode, kvlarder.PlanMode.BOTH)
        self.assertEqual(plan.depths, sorted(plan.depths, reverse=True))
        self.assertAlmostEqual(kvlarder.cost_of(plan_input, plan.depths).seconds, plan.restore_s)
        self.assertLessEqual(kvlarder.lower_bound(plan_input), plan.restore_s)
        best = kvlarder.cost_of(plan_input, kvlarder.best_staircase_depths(plan_input)).seconds
        self.assertLessEqual(best, plan.restore_s)
        self.assertLess(plan.restore_s, min(plan.compute_only_s, plan.load_only_s))

    def test_refuses_depths_that_do_not_fit(self):
        plan_input = kvlarder.make_plan_input(costs(), 512, 64, 64, [1] * 8, 6.4e6)
        for depths in ([1], [9] * 8):
            with self.assertRaisesRegex(ValueError, "a depth per chunk"):
                kvlarder.cost_of(plan_input, depths)

    def test_profiles_are_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.toml")
            with self.assertRaises(LookupError):
                kvlarder.read_profile(path)
            kvlarder.write_profile(costs().learnt(), path)
            self.assertEqual(kvlarder.read_profile(path).channels[0].name, "pool")
            with open(path, "a", encoding="utf-8") as file:
                file.write("nonsense = 1\n")
            with self.assertRaisesRegex(ValueError, "profile.toml:[0-9]+"):
                kvlarder.read_profile(path)


class Scheduler(unittest.TestCase):
    def test_runs_to_an_outcome(self):
        options = kvlarder.SchedulerOptions(engine=kvlarder.EngineTraits(splits_layers=True), trace_capacity=100)
        scheduler = kvlarder.Scheduler(options, costs())
        scheduler.add(spec(), 0)
        now_s = 0
        while not (outcomes := scheduler.take_outcomes()):
            now_s += 1e-3
            step = scheduler.next_compute(0, 1 << 20, now_s)
            for load in scheduler.next_loads(1, 1, now_s):
                self.assertEqual(scheduler.on_loaded(load.id, now_s), kvlarder.Landing.PLACE)
            if step is not None:
                scheduler.on_computed(step.id, now_s)
        depths, = outcomes[0].stages
        self.assertEqual((outcomes[0].request, len(depths)), (1, 8))
        self.assertGreater(outcomes[0].bytes_loaded, 0)
        self.assertIn("load", {decision.kind for decision in scheduler.trace()})

    def test_says_what_is_wrong(self):
        scheduler = kvlarder.Scheduler(kvlarder.SchedulerOptions(), costs())
        with self.assertRaisesRegex(ValueError, "no such policy"):
            kvlarder.Scheduler(kvlarder.SchedulerOptions(), costs(), "best")
        with self.assertRaisesRegex(ValueError, "a prefix is whole blocks"):
            scheduler.add(kvlarder.RequestSpec(id=1, tokens=65, block_tokens=64, chunk_tokens=64, stages=[]), 0)
        scheduler.add(spec(), 0)
        with self.assertRaisesRegex(RuntimeError, "under way"):
            scheduler.add(spec(), 0)
        scheduler.cancel(1, 0)
        self.assertTrue(scheduler.take_outcomes()[0].cancelled)


class Session(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Larderd(sys.argv[1], "--pool", "64MiB")
        cls.addClassCleanup(cls.daemon.end)
        cls.content = kvlarder.ContentSpec("m", "1")
        cls.tokens = list(range(32))

    def attach(self):
        session = kvlarder.connect(self.daemon.socket_dir).attach("binding_test")
        variant, = session.register([self.content], [kvlarder.VariantSpec(
            dtype="u8", layout="bytes/1/any", block_tokens=16, layers=2)])
        return session, variant

    def test_puts_and_gets_any_buffer(self):
        session, variant = self.attach()
        with session:
            seed = session.seed(self.content)
            first, second = kvlarder.chain(seed, self.tokens)
            segments = b"a" * 100, memoryview(bytearray(b"b" * 200))
            ok = [kvlarder.BlockStatus.OK]
            self.assertEqual(session.put(variant, [kvlarder.PutBlock(first, seed, self.tokens[:16], segments)]), ok)
            into = bytearray(100), bytearray(200)
            self.assertEqual(session.get(variant, [kvlarder.GetBlock(first, into)]), ok)
            self.assertEqual(into, (b"a" * 100, b"b" * 200))
            upper = bytearray(200)
            self.assertEqual(session.get(variant, [kvlarder.GetBlock(first, [upper], 1)]), ok)
            self.assertEqual(upper, b"b" * 200)
            self.assertEqual(session.get(variant, [kvlarder.GetBlock(second, into)]), [kvlarder.BlockStatus.MISSING])

    def test_refuses_what_it_cannot_fill(self):
        session, variant = self.attach()
        with session:
            for buffer in (b"read only", memoryview(bytearray(20))[::2], 7):
                with self.assertRaises((BufferError, TypeError)):
                    session.get(variant, [kvlarder.GetBlock(bytes(16), [buffer])])
            with self.assertRaises(ValueError):
                session.get(variant, [], deadline_s=0)
            with self.assertRaises(TypeError):
                kvlarder.GetBlock(b"short", [])
        with self.assertRaisesRegex(ValueError, "closed"):
            session.get(variant, [])

    def test_a_daemon_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(ConnectionError, "no larderd answers"):
                kvlarder.connect(folder, connect_deadline_s=0.1)

    def test_waits_without_the_gil(self):
        """While the daemon is stopped and a call waits for it, another thread continues."""
        session, variant = self.attach()
        with session:
            self.daemon.stop()
            failures = []

            def get():
                try:
                    session.get(variant, [kvlarder.GetBlock(bytes(16), [bytearray(1), bytearray(1)])], deadline_s=10)
                except TimeoutError as error:
                    failures.append(error)
            waiting = threading.Thread(target=get)
            waiting.start()
            self.daemon.go_on()  # reached only if the call has released the GIL
            waiting.join()
            self.assertEqual(failures, [])


class Package(unittest.TestCase):
    def test_has_types(self):
        folder = os.path.dirname(kvlarder.__file__)
        self.assertTrue(os.path.exists(os.path.join(folder, "py.typed")))
        with open(os.path.join(folder, "_core.pyi"), encoding="utf-8") as stub:
            self.assertIn("def put(self, variant: VariantHandle", stub.read())

    def test_leaks_nothing(self):
        """nanobind reports objects that are left when the interpreter ends."""
        script = "import kvlarder; kvlarder.Profile(layers=1, compute=kvlarder.ComputeCost(), channels=[])"
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(ended.stderr, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
