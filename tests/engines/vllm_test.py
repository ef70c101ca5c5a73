#!/usr/bin/env python3
"""The connector in a real vLLM on a real model: the same answers as without Larder, whatever happens to the daemon.

vllm_test.py LARDERD PYTHON MODELS   PYTHON: of deploy/fetch-vllm.sh; MODELS: folder that hf_model.py wrote
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import kvlarder  # noqa: E402
from kvlarder.vllm import stats, versions  # noqa: E402
from kvlarder.vllm.config import Config  # noqa: E402
from larderd import Larderd, damage  # noqa: E402
from vllm_child import CHUNK, VllmChild  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
SEED = int(os.environ.get("LARDER_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = 128
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # it starts sooner, and its scheduler is at hand
USUAL = {"patience_ms": Config().patience_ms, "load_timeout_ms": Config().load_timeout_ms}
TOO_LATE = ("lookups_impatient", "loads_late", "blocks_store_failed", "blocks_dropped")  # counters
# Processors without instructions for bf16 compute 35 tokens of SmolLM2 per second in it, and 200 in float32.  Only the full
# run waits for that.
HAS_BF16 = "bf16" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
DTYPE = "bfloat16" if HAS_BF16 or SCALE >= 1 else "float32"
LARDERD, PYTHON, MODELS = (*sys.argv[1:4], "", "", "")[:3]
LARDERCTL = pathlib.Path(LARDERD).parents[1] / "client" / "cli" / "larderctl" if LARDERD else None


def scaled(count, least=1):
    return max(least, int(count * SCALE))


def corpus():
    """English and code: the project's own."""
    parts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    parts += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "storage" / "disk").glob("*.cc"))]
    return "\n".join(parts)


def right_length(tokens):
    """Shortens a length so that a restored prompt computes its rest in the same chunk as a cold one: bf16 depends on
    where chunks end."""
    return tokens - (0 if (tokens - 1) % CHUNK < BLOCK else BLOCK)


class VllmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"LARDER_TEST_SEED={SEED}, {DTYPE} where a test names no other", flush=True)
        cls.folder = tempfile.TemporaryDirectory()
        cls.disk = os.path.join(cls.folder.name, "disk")
        os.mkdir(cls.disk)
        cls.daemon = Larderd(LARDERD, "--pool", "2GiB", "--disk", cls.disk)
        cls.addClassCleanup(lambda: cls.daemon.end())
        cls.rolls = random.Random(SEED)

    def vllm(self, larder=True, model="smol", extra=None, **engine):
        if model == "tiny":
            engine["skip_tokenizer_init"] = True
        engine.setdefault("dtype", DTYPE)
        # On a busy machine the daemon may answer after patience_ms, and the connector takes that for a miss.  These
        # tests are about bytes, so the connector waits for longer here than by default.
        patient = {"patience_ms": 5_000, "load_timeout_ms": 60_000, "store_timeout_ms": 60_000}
        connector = {"socket_dir": self.daemon.socket_dir, **patient, **(extra or {})} if larder else None
        log = os.path.join(self.folder.name, f"vllm-{time.monotonic_ns()}.log")
        child = VllmChild(PYTHON, os.path.join(MODELS, model), connector, log, **engine)
        self.addCleanup(child.kill)  # a test that is about the end of vLLM closes it
        return child

    def attached(self, vllm, sessions):
        """Waits until so many processes of vLLM have a session.  Without one, vLLM computes a request without asking the
        daemon, may not store it, and counts nothing."""
        until = time.monotonic() + 60
        while vllm.metrics().get("vllm:larder_sessions{}", 0) < sessions:
            self.assertLess(time.monotonic(), until, f"vLLM has fewer than {sessions} sessions")
            vllm.generate([{"tokens": [1, 2, 3], "n": 1}])  # counters come with steps, once a second
            time.sleep(0.5)

    def settled(self, vllm):
        """Waits until what was stored can be found: stores end behind the answers."""
        last = None
        while True:
            vllm.generate([{"tokens": [1, 2, 3], "n": 1}])  # counters come with steps, once a second
            now = vllm.metrics().get("vllm:larder_blocks_stored{}", 0)
            if now == last:
                return
            last = now
            time.sleep(1.5)

    def larder_counters(self, vllm):
        return {name: value for name, value in vllm.metrics().items() if "larder" in name and value}

    def nothing_held(self, vllm):
        self.settled(vllm)
        self.assertTrue(vllm.reset(running=False, connector=False), "blocks of vLLM are still held")

    def equal(self, what, answers, expected, cached=None):
        for number, (answer, right) in enumerate(zip(answers, expected, strict=True)):
            self.assertEqual(answer["tokens"], right["tokens"], f"{what}: prompt {number}")
            self.assertEqual(answer["first_logprob"], right["first_logprob"], f"{what}: prompt {number}")
            if cached is not None:
                self.assertEqual(answer["cached"], cached[number], f"{what}: prompt {number}")


class Answers(VllmTest):
    def test_equal_whatever_was_restored(self):
        plain = self.vllm(larder=False, ahead=True, env=ONE_PROCESS)
        local = self.vllm(larder=False, ahead=True, env=ONE_PROCESS, enable_prefix_caching=True)
        ids = plain.tokens_of(corpus())
        prompts, hits, longest = [], [], 4_000 if SCALE >= 1 else 1_600
        for number in range(scaled(30, least=4)):
            length = right_length(self.rolls.randrange(200, longest) if number else longest)
            at = self.rolls.randrange(len(ids) - longest)
            prompts.append({"tokens": ids[at : at + length], "n": 24})
            hits.append((length - 1) // BLOCK * BLOCK)
        expected = plain.generate(prompts)
        chats = [{"tokens": p["tokens"] + e["tokens"], "n": 140} for p, e in zip(prompts[:3], expected)]
        plain.kill()
        first, second = self.vllm(ahead=True), self.vllm(ahead=True)
        # vLLM's own cache goes on after the same blocks, some of which were computed token by token.
        self.equal("vLLM's own cache", local.generate(prompts[:3]), expected[:3])
        talked = local.generate(chats)
        again = [{"tokens": c["tokens"] + t["tokens"], "n": 8} for c, t in zip(chats, talked)]
        talked_again = local.generate(again)
        local.kill()

        self.equal("cold", first.generate(prompts), expected, cached=[0] * len(prompts))
        self.settled(first)
        warm = first.generate(prompts)
        self.equal("warm", warm, expected, cached=hits)
        print("from the pool / cold:", [round(w["first_s"] / c["first_s"], 3) for w, c in zip(warm, expected)])
        self.equal("a second engine", second.generate(prompts), expected, cached=hits)
        second.close()
        self.equal("decoded blocks, first turn", first.generate(chats), talked)
        self.settled(first)
        restored = first.generate(again)
        self.equal("decoded blocks", restored, talked_again)
        for answer, prompt in zip(restored, again):
            self.assertEqual(answer["cached"], (len(prompt["tokens"]) - 1) // BLOCK * BLOCK)
        first.kill()

        self.daemon.kill()
        self.daemon.start()
        mixed = self.vllm(enable_prefix_caching=True)
        begun = mixed.generate([{"tokens": p["tokens"][: len(p["tokens"]) // 2], "n": 1} for p in prompts[:2]])
        self.assertGreater(sum(answer["cached"] for answer in begun), 0)
        from_disk = mixed.generate(prompts)
        self.equal("after kill -9 of engine and daemon, with local hits", from_disk, expected, cached=hits)
        print("from disk / cold:", [round(w["first_s"] / c["first_s"], 3) for w, c in zip(from_disk[2:], expected[2:])])
        metrics = mixed.metrics()
        hits = metrics["vllm:external_prefix_cache_hits{}"]
        tiers = [metrics.get(f"vllm:larder_hit_tokens_{tier}{{}}", 0) for tier in ("host", "disk")]
        print(f"hits of vLLM's own counter {hits}, by tier {tiers}, blocks loaded {metrics['vllm:larder_blocks_loaded{}']}")
        self.assertGreater(hits, 0)
        self.assertEqual(hits, sum(tiers))
        self.assertEqual(hits, metrics["vllm:larder_blocks_loaded{}"] * BLOCK)
        self.assertIn(mixed.version(), [version for _, version, _, _ in versions.TESTED])
        for name in (*stats.COUNTERS, *stats.TIMES):
            self.assertIn(f"{stats.metric_name(name)}{{}}", metrics)

    def test_ranks(self):
        prompts = [{"tokens": [(n * 7 + i * i) % 500 for i in range(right_length(900))], "n": 16} for n in range(3)]
        vllm = self.vllm(model="tiny", tensor_parallel_size=2)
        self.attached(vllm, 3)  # the scheduler and two workers
        cold = vllm.generate(prompts)
        hits = [(len(p["tokens"]) - 1) // BLOCK * BLOCK for p in prompts]
        # vLLM's ranks wait for one another by spinning.  Where they have all cores, other processes, the daemon among
        # them, stand still for seconds at times, longer than a request may wait: such a prompt is computed once more.
        late = 0
        for _ in range(5):
            self.settled(vllm)
            warm = vllm.generate(prompts)
            self.equal("two ranks", warm, cold)
            if [answer["cached"] for answer in warm] == hits:
                return
            self.settled(vllm)
            metrics, before = vllm.metrics(), late
            late = sum(metrics.get(f"vllm:larder_{name}{{}}", 0) for name in TOO_LATE)
            print({name: value for name, value in metrics.items() if "larder" in name and value})
            self.assertGreater(late, before, f"cached: {[answer['cached'] for answer in warm]}, although nothing was late")
        self.fail("all five times something was late")


class RestoringTest(VllmTest):
    """LarderScheduler: prefixes are computed from the head and loaded from the tail at once, over an emulated link."""

    def restoring(self, link_mb_per_s, **engine):
        extra = {"emulated_link_mb_per_s": link_mb_per_s, **engine.pop("extra", {})}
        env = {"LARDER_CACHE": self.folder.name, **engine.pop("env", {})}
        return self.vllm(scheduler_cls="kvlarder.vllm.LarderScheduler", extra=extra, env=env, **engine)

    def counts(self, vllm):
        time.sleep(1.1)  # counters come once a second
        vllm.generate([{"tokens": [1, 2, 3], "n": 1}])
        return {name.removeprefix("vllm:larder_")[:-2]: value for name, value in vllm.metrics().items() if "larder" in name}


class Restores(RestoringTest):
    def test_both_ends_meet(self):
        """Float32, because results in bf16 depend on where steps end."""
        first = self.vllm(dtype="float32", env=ONE_PROCESS)
        ids = first.tokens_of(corpus())
        parts = ((500, 1_500), (3_000, 1_100), (9_000, 700)) if SCALE >= 1 else ((500, 1_100),)
        prompts = [{"tokens": ids[at : at + length], "n": 16} for at, length in parts]
        cold = first.generate(prompts)
        self.settled(first)
        counts = self.counts(first)
        block_bytes = counts["bytes_stored"] / counts["blocks_stored"]
        first.kill()
        blocks, seconds = len(prompts[0]["tokens"]) // BLOCK, cold[0]["first_s"]
        for ratio in (0.5, 1.0, 2.0) if SCALE >= 1 else (1.0,):  # of loading to computing
            vllm = self.restoring(blocks * block_bytes / (seconds * ratio) / 1e6, dtype="float32")
            for _ in range(4):  # the first ones teach it what computing and loading cost
                for answer, right in zip(vllm.generate(prompts), cold):
                    self.assertEqual(answer["tokens"], right["tokens"])
                    self.assertAlmostEqual(answer["first_logprob"], right["first_logprob"], delta=1e-3)
            counts = self.counts(vllm)
            print(f"loading / computing {ratio}:", {name: value for name, value in counts.items() if "restore" in name and value})
            self.assertGreater(counts["restored_tokens_computed"], 0)
            self.assertGreater(counts["restored_tokens_loaded"], 0)
            vllm.close()

    def test_ranks(self):
        """The link of one rank is half as fast as that of the other, and about as fast as computing."""
        prompts = [{"tokens": [(n * 7 + i * i) % 500 for i in range(3_000)], "n": 16} for n in range(2)]
        first = self.vllm(model="tiny", dtype="float32", tensor_parallel_size=2)
        cold = first.generate(prompts)
        self.settled(first)
        counts = self.counts(first)
        first.kill()
        seconds = min(answer["first_s"] for answer in cold)  # the first answer also warms the engine up
        rate = counts["bytes_stored"] / counts["blocks_stored"] * (len(prompts[0]["tokens"]) // BLOCK) / seconds / 1e6
        vllm = self.restoring([2 * rate, rate], model="tiny", dtype="float32", tensor_parallel_size=2)
        for _ in range(4):
            for answer, right in zip(vllm.generate(prompts), cold):
                self.assertEqual(answer["tokens"], right["tokens"])
                self.assertAlmostEqual(answer["first_logprob"], right["first_logprob"], delta=1e-3)
        counts = self.counts(vllm)
        print(f"{seconds:.1f} s to compute, links of 1 and 1/2:",
              {name: value for name, value in counts.items() if "restore" in name and value})  # fmt: skip
        self.assertGreater(counts["restored_tokens_computed"], 0)
        self.assertGreater(counts["restored_tokens_loaded"], 0)


class Layers(VllmTest):
    """Prefixes that are loaded layer by layer, in the step that computes what follows them."""

    def counts(self, vllm):
        self.settled(vllm)
        return {name: vllm.metrics().get(f"vllm:larder_{name}{{}}", 0) for name in ("loads_by_layer", "blocks_load_failed")}

    def test_layers(self):
        # Every way computes the prefix in one chunk and the rest in the next one, because bf16 depends on where chunks end.
        prefix, rest, step = 4 * BLOCK, 100, {"max_num_batched_tokens": 4 * BLOCK}
        plain = self.vllm(larder=False, ahead=True, env=ONE_PROCESS, **step)
        vllm = self.vllm(ahead=True, env=ONE_PROCESS, extra={"emulated_link_mb_per_s": 200.0}, **step)
        ids = plain.tokens_of(corpus())
        prompts = [{"tokens": ids[at : at + prefix + rest], "n": 16} for at in range(0, 6_000, 1_000 if SCALE >= 1 else 2_000)]
        right = plain.generate(prompts)
        plain.kill()
        self.equal("computed", vllm.generate(prompts), right, [0] * len(prompts))
        self.settled(vllm)
        vllm.load_by_layer(False)
        self.equal("loaded", vllm.generate(prompts), right, [prefix] * len(prompts))  # how fast that is decides about deadlines
        vllm.load_by_layer(True)
        self.equal("layer by layer", vllm.generate(prompts), right, [prefix] * len(prompts))
        self.assertEqual(self.counts(vllm), {"loads_by_layer": len(prompts), "blocks_load_failed": 0})
        for lost in (0, 1, 15, 29) if SCALE >= 1 else (self.rolls.randrange(29), 29):  # of 30 layers
            vllm.lose_layers(lost)
            self.equal(f"layer {lost} is lost", vllm.generate(prompts), right)
            self.assertEqual(self.counts(vllm)["loads_by_layer"], len(prompts), "loads that failed are not counted")
        vllm.lose_layers(None)
        self.equal("layer by layer again", vllm.generate(prompts), right, [prefix] * len(prompts))
        self.nothing_held(vllm)

    def test_loads_that_fail_beside_others(self):
        """Requests share prefixes that others load, in steps in which the load fails, and are aborted.  In float32, so that an
        answer does not depend on which requests are computed together."""
        texts = [[self.rolls.randrange(500) for _ in range(6 * BLOCK)] for _ in range(6)]
        # A prompt and another one that goes on from its beginning come at once, so that both wait for the same load.
        prompts = []
        for number in range(scaled(1_000, least=120)):
            text = self.rolls.choice(texts)[: self.rolls.randrange(2 * BLOCK, 6 * BLOCK)]
            prompts += [{"tokens": [*text, number % 500, other], "n": self.rolls.randrange(1, 12)} for other in range(2)]
        plain = self.vllm(larder=False, model="tiny", ahead=True, env=ONE_PROCESS, max_model_len=1024, max_num_seqs=8)
        small = {"model": "tiny", "max_num_seqs": 8, "max_model_len": 1024, "num_gpu_blocks_override": 30, "enable_prefix_caching": True}
        vllm, reader = self.vllm(ahead=True, env=ONE_PROCESS, **small), self.vllm(ahead=True, env=ONE_PROCESS, **small)
        right = plain.serve(prompts, clients=8)["answers"]
        plain.kill()
        vllm.load_by_layer(False)
        vllm.generate([{"tokens": text, "n": 1} for text in texts])
        self.settled(vllm)
        self.assertTrue(vllm.reset(connector=False))
        vllm.generate([{"tokens": text, "n": 1} for text in texts])  # how fast loads are decides about deadlines
        vllm.load_by_layer(True)
        half = len(prompts) // 2
        for lost, abort, some in ((None, 0.0, prompts[:half]), (1, 0.2, prompts[half:])):
            vllm.lose_layers(lost)
            result = vllm.serve(some, clients=8, abort=abort, seed=SEED)
            self.assertEqual((result["errors"], result["bad_resets"]), ([], []))
            first = 0 if lost is None else half
            for number, answer in result["answers"].items():
                self.assertEqual(answer, right[str(int(number) + first)], f"request {number}, lost from layer {lost}")
            print(f"lost from layer {lost}: {len(some)} requests, {result['aborted']} aborted, {self.counts(vllm)}", flush=True)
        self.assertGreater(self.counts(vllm)["loads_by_layer"], 0)
        failed = sum(vllm.metrics().get(f"vllm:larder_loads_{how}{{}}", 0) for how in ("cancelled", "failed_otherwise"))
        self.assertGreater(failed, 0)
        print(f"{failed} loads have failed", flush=True)
        self.nothing_held(vllm)
        found = reader.serve(prompts, clients=8)["answers"]
        self.assertEqual(found, right, "what was stored")


class RestoreStorms(RestoringTest):
    """What disturbs restores at random moments.  In float32 an answer does not depend on how its prefix was restored."""

    SHORTEST, LONGEST = 140, 1_900
    TEXTS = 6

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client, cls.prompts = kvlarder.connect(cls.daemon.socket_dir), None

    def setUp(self):
        """Stores some texts once, and makes prompts that begin like them."""
        cls = type(self)
        if cls.prompts is not None:
            return
        texts = [[self.rolls.randrange(500) for _ in range(self.LONGEST)] for _ in range(self.TEXTS)]
        writer = self.vllm(model="tiny", dtype="float32", env=ONE_PROCESS)
        cold = writer.generate([{"tokens": text, "n": 1} for text in texts])
        self.settled(writer)
        counts = self.counts(writer)
        writer.kill()
        seconds = statistics.median(one["first_s"] for one in cold)
        cls.computed_bytes_per_s = counts["bytes_stored"] / counts["blocks_stored"] * self.LONGEST / BLOCK / seconds
        cls.prompts = [
            {"tokens": text[: self.rolls.randrange(self.SHORTEST, self.LONGEST)] + [number], "n": 4}
            for number, text in enumerate(texts * 4)
        ]

    def stormy(self, prompts, slower=1.0, **engine):
        """An engine whose link takes `slower` times as long for a prefix as computing it, and whose pages are watched.
        Returns (engine, what it computes of the prompts)."""
        vllm = self.restoring(
            self.computed_bytes_per_s / slower / 1e6, model="tiny", dtype="float32", max_model_len=2_048, **{"num_gpu_blocks_override": 40, **engine},
            env=ONE_PROCESS,
        )  # fmt: skip
        vllm.generate([{"tokens": [1, 2, 3], "n": 1}])
        vllm.watch_free_pages()
        vllm.restore_by("computed")
        right = vllm.serve(prompts, clients=1)
        vllm.restore_by("both")
        return vllm, right

    def check(self, prompts, result, right):
        self.assertEqual((result["errors"], result["written"], result["bad_resets"]), ([], 0, []))
        self.assertEqual(len(result["answers"]) + result["aborted"], len(prompts))
        for number, answer in result["answers"].items():
            self.assertEqual(answer, right["answers"][number])
            self.assertAlmostEqual(result["first_logprob"][number], right["first_logprob"][number], delta=2e-5)

    def test_preemption_and_aborts(self):
        """The device has room for 2 of 8 requests.  Answers may need more blocks, and resets preempt all requests."""
        ended = {"aborted_restores": 0, "preempted_restores": 0}
        talks = [{"tokens": [self.rolls.randrange(500) for _ in range(self.rolls.randrange(100, 127))], "n": 40} for _ in self.prompts]
        prompts = [prompt for pair in zip(talks, self.prompts) for prompt in pair]
        vllm, right = self.stormy(prompts, max_num_seqs=8, num_gpu_blocks_override=22)
        rounds = 0
        while sum(ended.values()) < scaled(300) or 0 in ended.values():
            result = vllm.serve(prompts, clients=8, abort=0.1, reset=0.1, seed=SEED + rounds)
            self.check(prompts, result, right)
            ended = {name: count + result[name] for name, count in ended.items()}
            rounds += 1
            self.assertLess(rounds, 400, f"too few: {ended}")
        print(f"{rounds} rounds of {len(prompts)} requests, {ended}, {self.counts(vllm)['restores']:.0f} restores", flush=True)
        self.nothing_held(vllm)

    def test_a_daemon_that_comes_and_goes(self):
        vllm, right = self.stormy(self.prompts, extra=USUAL)
        events, changed, ended = [], 0, threading.Event()  # events: times of stops, kills and damages

        def weather():
            nonlocal changed
            while not ended.wait(self.rolls.uniform(0.05, 1.0)):
                what = self.rolls.choice(("stop", "kill", "damage"))
                events.append(time.time())
                if what == "stop":
                    self.daemon.stop()
                    ended.wait(self.rolls.uniform(0.01, 1.5))
                    self.daemon.go_on()
                elif what == "kill":
                    self.daemon.kill()
                    ended.wait(self.rolls.uniform(0, 0.3))
                    self.daemon.start()
                else:
                    changed += damage(self.disk, self.rolls, reach=64 << 20)
                    try:
                        self.client.clear(kvlarder.SelectionScope.ALL, tiers=[kvlarder.Tier.HOST])
                    except (ConnectionError, TimeoutError):
                        pass  # the daemon was killed just before

        thread = threading.Thread(target=weather)
        thread.start()
        late, restoring, rounds = [], [], 0
        try:
            while len(events) < scaled(200, least=15):
                result = vllm.serve(self.prompts, clients=1)
                self.check(self.prompts, result, right)
                late += [first - 1.1 * right["first_s"][number] for number, first in result["first_s"].items()]
                restoring += result["restoring"]
                rounds += 1
        finally:
            ended.set()
            thread.join()
        self.await_restore(vllm)
        during = sum(max((when, count) for when, count in restoring if when <= at)[1] > 0 for at in events if at > restoring[0][0])
        print(f"{len(events)} stops, kills and damages ({changed} bytes), {during} of them during a restore; {rounds} rounds of "
              f"{len(self.prompts)} requests, {self.counts(vllm)['restores']:.0f} restores; first tokens later than 1.1 x computing "
              f"+ 1 s: {sum(wait > 1 for wait in late)}, the latest + {max(late):.2f} s", flush=True)  # fmt: skip
        self.assertGreater(during, 0)
        self.nothing_held(vllm)

    def await_restore(self, vllm):
        """The weather is over: prefixes are restored again, once the engine has stored what was lost."""
        before, until = self.counts(vllm)["restores"], time.monotonic() + 60
        while self.counts(vllm)["restores"] == before:
            self.assertLess(time.monotonic(), until, "no restore after the last restart")
            vllm.serve(self.prompts, clients=1)

    def test_a_link_that_stalls(self):
        """Nothing arrives in time, and requests end meanwhile."""
        vllm, right = self.stormy(self.prompts, slower=1_000, extra=USUAL)
        late, aborted = [], 0
        for number in range(scaled(20, least=2)):
            result = vllm.serve(self.prompts, clients=1, abort=0.1, seed=SEED + number)
            self.check(self.prompts, result, right)
            aborted += result["aborted_restores"]
            late += [first - 1.1 * right["first_s"][number] for number, first in result["first_s"].items()]
        print(f"a link that stalls: {aborted} restores aborted; first tokens later than 1.1 x computing + 1 s: "
              f"{sum(wait > 1 for wait in late)}, the latest + {max(late):.2f} s", flush=True)  # fmt: skip
        self.assertGreater(aborted, 0)
        self.nothing_held(vllm)


class Storms(VllmTest):
    def prompts(self, count, vocabulary=500, longest=700):
        texts = [[self.rolls.randrange(vocabulary) for _ in range(longest)] for _ in range(8)]
        return [
            {"tokens": self.rolls.choice(texts)[: self.rolls.randrange(5, longest)] + [number % vocabulary], "n":
             self.rolls.randrange(1, 20)} for number in range(count)
        ]  # fmt: skip

    def test_preemption_aborts_and_resets(self):
        """The device has room for 2 of 8 requests."""
        vllm = self.vllm(model="tiny", max_num_seqs=8, num_gpu_blocks_override=14, max_model_len=1024)
        for what, more in (("preemption", {}), ("aborts", {"abort": 0.2}), ("resets", {"reset": 0.05, "abort": 0.02})):
            prompts = self.prompts(scaled(2_000, least=100))
            result = vllm.serve(prompts, clients=8, seed=SEED, **more)
            self.assertEqual(result["errors"], [])
            self.assertEqual(len(result["answers"]) + result["aborted"], len(prompts), what)
            self.assertEqual(result["bad_resets"], [])
            metrics = vllm.metrics()
            print(what, round(result["seconds"], 1), "s,", result["aborted"], "aborted,", result["resets"], "reset,",
                  {n: v for n, v in metrics.items() if "preempt" in n or "larder" in n and v}, flush=True)  # fmt: skip
        self.nothing_held(vllm)

    def test_a_daemon_that_is_absent_and_comes_and_goes(self):
        prompts = self.prompts(60)
        self.daemon.kill()
        # In float32 an answer does not depend on which requests share a step.
        vllm = self.vllm(model="tiny", extra=USUAL, max_num_seqs=8, max_model_len=1024, dtype="float32")
        right = vllm.serve(prompts, clients=8)["answers"]
        self.daemon.start()
        self.daemon.await_pool()
        self.restarted_under_load(vllm, prompts, right)
        self.stopped_and_killed(vllm, prompts, right)
        self.nothing_held(vllm)

    def restarted_under_load(self, vllm, prompts, right):
        """Hits return soon after the daemon answers."""
        waits = []

        def served():
            result = vllm.serve(prompts, clients=8)
            self.assertEqual((result["errors"], result["answers"]), ([], right))
            return result["firsts"]

        until = time.monotonic() + 30
        while not any(cached for _, cached in served()):
            self.assertLess(time.monotonic(), until, "no hits")
        for _ in range(scaled(20, least=3)):
            self.settled(vllm)
            time.sleep(2)  # the spiller writes blocks to the disk behind their stores
            ended, answers = [], []

            def again(ended=ended, answers=answers):
                time.sleep(self.rolls.uniform(0.05, 0.5))
                self.daemon.kill()
                ended.append(time.monotonic())
                time.sleep(self.rolls.uniform(0, 0.5))
                self.daemon.start()
                answers.append(time.time())

            thread = threading.Thread(target=again)
            thread.start()
            before, hits = self.larder_counters(vllm), []
            while not hits:
                firsts = served()
                hits = [at - answers[0] for at, cached in firsts if answers and cached and at > answers[0]]
                self.assertTrue(answers or thread.is_alive(), "the daemon does not start")
                # The kernel ends a killed process once its fsync is done: 11 s after the kill on a busy disk.
                if ended and time.monotonic() > ended[0] + 30:
                    self.fail(f"hits do not return; the daemon answered: {bool(answers)}; counters before {before}, and now "
                              f"{self.larder_counters(vllm)}")  # fmt: skip
            thread.join()
            waits.append(min(hits))
        print(f"{len(waits)} restarts under load: hits returned after {[round(wait, 2) for wait in waits]} s", flush=True)

    def stopped_and_killed(self, vllm, prompts, right):
        one_by_one = [{**prompt, "salt": "alone"} for prompt in prompts[:20]]
        cold = vllm.serve(one_by_one, clients=1)  # nothing but the daemon delays these
        ended, lives = threading.Event(), [0, 0]

        def weather():
            while not ended.wait(self.rolls.uniform(0.05, 1.0)):
                if self.rolls.random() < 0.5:
                    self.daemon.stop()
                    ended.wait(self.rolls.uniform(0.01, 1.5))
                    self.daemon.go_on()
                    lives[0] += 1
                else:
                    self.daemon.kill()
                    ended.wait(self.rolls.uniform(0, 0.5))
                    self.daemon.start()
                    lives[1] += 1

        thread = threading.Thread(target=weather)
        thread.start()
        try:
            wrong = rounds = 0
            waits = []  # beyond 1.5 times that of the cold request, in seconds
            while sum(lives) < scaled(300, least=10):
                result = vllm.serve(prompts, clients=8, seed=rounds)
                alone = vllm.serve(one_by_one, clients=1)
                rounds += 1
                self.assertEqual((result["errors"], alone["errors"]), ([], []))
                wrong += sum(result["answers"][number] != right[number] for number in right)
                wrong += sum(alone["answers"][number] != cold["answers"][number] for number in cold["answers"])
                waits += [first - 1.5 * cold["first_s"][number] for number, first in alone["first_s"].items()]
        finally:
            ended.set()
            thread.join()
        print(f"{rounds} rounds of {len(prompts)} requests and {len(one_by_one)} one by one, stopped {lives[0]} times, killed "
              f"{lives[1]} times, {wrong} other answers; one by one, first tokens later than 1.5 x cold + 1 s: "
              f"{sum(wait > 1 for wait in waits)}, the latest + {max(waits):.2f} s", flush=True)  # fmt: skip
        self.assertEqual(wrong, 0)
        until = time.monotonic() + 30
        while True:
            vllm.generate(prompts[:2])
            time.sleep(0.5)
            if all(answer["cached"] for answer, p in zip(vllm.generate(prompts[:2]), prompts) if len(p["tokens"]) > BLOCK):
                break
            self.assertLess(time.monotonic(), until, "hits do not return")


class Talk:
    """Conversations of three turns that one engine has with 8 clients, over and over: until a moment, and until enough rounds
    have ended after `warm` to see growth."""

    def __init__(self, vllm, conversations, known, warm, until):
        self.vllm, self.conversations, self.known, self.warm, self.until = vllm, conversations, known, warm, until
        self.requests, self.errors, self.wrong, self.memory, self.failure = 0, [], 0, [], None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            number = 0
            while time.monotonic() < self.until or len(self.sizes()) < 4:
                self.round(f"round {number // 2}")  # each salt twice, so that half of the rounds find everything
                self.memory.append((time.monotonic(), self.vllm.memory()))
                number += 1
        except Exception as error:  # told by `ended`
            self.failure = error

    def round(self, salt):
        texts = {number: [] for number in range(len(self.conversations))}
        for turn in range(3):
            for number, users in enumerate(self.conversations):
                texts[number] = texts[number] + users[turn]
            prompts = [{"tokens": text, "n": 12, "salt": salt} for text in texts.values()]
            result = self.vllm.serve(prompts, clients=8, seed=turn)
            self.requests += len(prompts)
            self.errors += result["errors"]
            for name, answer in result["answers"].items():
                key = int(name), turn
                self.wrong += self.known.setdefault(key, answer) != answer
                texts[key[0]] = texts[key[0]] + answer

    def ended(self):
        self.thread.join()
        if self.failure is not None:
            raise self.failure
        return self

    def sizes(self):
        """Bytes of memory after each round that ended after `warm`."""
        return [size for at, size in self.memory if at >= self.warm]

    def growth(self):
        """Of memory, from the first round that ended after `warm` to the last one, in bytes and as a part."""
        sizes = self.sizes()
        return sizes[-1] - sizes[0], (sizes[-1] - sizes[0]) / sizes[0]

    def curve(self):
        return [size >> 20 for _, size in self.memory[:: max(1, len(self.memory) // 12)]]


# PyTorch on CPU keeps up to 1,024 prepared computations, one for each shape that a step had, about 10 KiB each.  Loads
# make more shapes, because they end at any moment; without this a soak would see that cache grow for half an hour.
FEW_PREPARED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4", "LRU_CACHE_CAPACITY": "4"}


class LazyStores(VllmTest):
    def test_what_leaves_the_device_is_found(self):
        """The device has room for 2 of 6 texts.  In float32 an answer does not depend on what of it was found where."""
        prompts = [{"tokens": [self.rolls.randrange(500) for _ in range(1_800)], "n": 8} for _ in range(6)]
        vllm = self.vllm(
            model="tiny", extra={"store_policy": "lazy", "store_pin_fraction": 0.5}, dtype="float32", enable_prefix_caching=True, num_gpu_blocks_override=36,
            max_model_len=2_048, env=ONE_PROCESS,
        )  # fmt: skip
        vllm.long_steps()  # so that what is stored in time does not depend on how busy the machine is
        cold = vllm.generate(prompts)
        self.settled(vllm)
        blocks, stored = 6 * (1_800 // BLOCK), vllm.metrics()["vllm:larder_blocks_stored{}"]
        for _ in range(2):
            again = vllm.generate(prompts)
            for answer, right in zip(again, cold):
                self.assertEqual(answer["tokens"], right["tokens"])
                self.assertAlmostEqual(answer["first_logprob"], right["first_logprob"], delta=2e-5)
        self.settled(vllm)
        metrics = vllm.metrics()
        lost = metrics.get("vllm:larder_blocks_reused_unstored{}", 0)
        print(f"stored {stored} of {blocks} blocks when all were computed; found {[answer['cached'] for answer in again]} tokens; "
              f"{lost} lost", flush=True)  # fmt: skip
        self.assertLess(stored, blocks - 10)
        self.assertGreaterEqual(sum(answer["cached"] for answer in again), 0.9 * 6 * 1_792, self.larder_counters(vllm))
        self.assertGreater(metrics["vllm:larder_hit_tokens_host{}"], 0)
        self.assertTrue(vllm.reset(running=False, connector=False), "blocks of vLLM are still held")


class DeviceBlocks(VllmTest):
    def test_lookup_says_what_vllm_has(self):
        """Requests, aborts, resets and restarts of the daemon.  vLLM takes no steps while it is asked to pin and to drop."""
        texts = [[self.rolls.randrange(500) for _ in range(900)] for _ in range(6)]
        vllm = self.vllm(
            model="tiny", dtype="float32", enable_prefix_caching=True, num_gpu_blocks_override=30, max_num_seqs=4,
            max_model_len=1_024, env=ONE_PROCESS,
        )  # fmt: skip
        known, rounds, compared, slowest, until = {}, 0, 0, 0.0, time.monotonic() + 600 * SCALE
        while time.monotonic() < until or rounds < 4:
            salt = self.rolls.choice(("", "a"))
            prompts = [
                {"tokens": self.rolls.choice(texts)[: self.rolls.randrange(100, 880)] + [number], "n": 40, "salt": salt}
                for number in range(12)
            ]
            if rounds % 3 == 1:
                self.daemon.kill()
                self.daemon.start()
            result = vllm.serve(prompts, clients=4, abort=0.02, reset=0.01, seed=SEED + rounds)
            self.assertEqual(result["errors"], [])
            for number, prompt in enumerate(prompts):
                known[tuple(prompt["tokens"] + result["answers"].get(str(number), [])), salt] = None
            for old in list(known)[:-40]:
                del known[old]
            time.sleep(1)
            compared += self.compare(vllm, known)
            slowest = max(slowest, self.pins_and_drops(vllm, known))
            rounds += 1
        self.assertTrue(vllm.reset(running=False, connector=False), "blocks of vLLM are still held")
        print(f"{rounds} rounds; {compared} blocks compared, 0 differences; the slowest directive took {slowest:.3f} s", flush=True)
        self.assertGreater(compared, 50)
        self.assertLess(slowest, 5)

    def compare(self, vllm, known):
        """Returns how many blocks vLLM has of known texts, of which Lookup says the same."""
        asked = [{"tokens": list(tokens), "salt": salt} for tokens, salt in known]
        client, compared = kvlarder.connect(self.daemon.socket_dir), 0
        for text, has in zip(asked, vllm.in_its_cache(asked)):
            model, revision, salt, lora = has["content"]
            content = kvlarder.ContentSpec(model=model, revision=revision, salt=bytes.fromhex(salt), lora=lora)
            until = time.monotonic() + (0 if SCALE >= 1 else 30)  # a short run shares its machine
            while self.on_device(client, content, text) != has["blocks"] and time.monotonic() < until:
                time.sleep(0.1)
            self.assertEqual(self.on_device(client, content, text), has["blocks"])
            compared += len(has["blocks"])
        return compared

    @staticmethod
    def on_device(client, content, text):
        """Returns the blocks of a text that vLLM has, as Lookup says."""
        return [
            block for instance in client.lookup(content, tokens=text["tokens"]).instances for tier in instance.tiers
            if tier.tier == kvlarder.Tier.DEVICE for one in tier.ranges for block in range(one.begin // BLOCK, one.end // BLOCK)
        ]  # fmt: skip

    def pins_and_drops(self, vllm, known):
        """Returns the seconds of the slowest answer."""
        tokens, salt = self.rolls.choice(list(known))
        text = {"tokens": list(tokens), "salt": salt}
        has = vllm.in_its_cache([text])[0]
        model, revision, salt, _ = has["content"]
        slowest = 0.0

        def ctl(*arguments):
            nonlocal slowest
            begun = time.monotonic()
            done = subprocess.run(
                [LARDERCTL, *arguments, "--socket-dir", self.daemon.socket_dir, "--tier", "device", "-o", "json", "--model", model,
                 "--revision", revision, "--salt", f"hex:{salt}", "--tokens", ",".join(map(str, tokens))],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            slowest = max(slowest, time.monotonic() - begun)
            self.assertTrue(done.stdout, done.stderr)
            return [one["status"] for one in json.loads(done.stdout)["blocks"]]

        there = [block in has["blocks"] for block in range(len(tokens) // BLOCK)]
        pinned = ctl("pin", "--ttl", "1h")
        self.assertEqual([status in ("ok", "full") for status in pinned], there, pinned)
        vllm.generate([{"tokens": [self.rolls.randrange(500) for _ in range(900)], "n": 1, "salt": "other"} for _ in range(5)])
        left = vllm.in_its_cache([text])[0]["blocks"]
        self.assertLessEqual({block for block, status in enumerate(pinned) if status == "ok"}, set(left))
        self.assertEqual(ctl("clear", "--yes", "--pinned"), ["ok" if block in left else "missing" for block in range(len(there))])
        self.assertEqual(vllm.in_its_cache([text])[0]["blocks"], [])
        return slowest


class Soak(VllmTest):
    def test_two_engines_talk_for_long(self):
        """Two engines x 8 clients.  In float32 an answer does not depend on which requests share a step."""
        seconds, known, growths = 600 * SCALE if SCALE >= 1 else 30, {}, {}
        texts = [[[self.rolls.randrange(500) for _ in range(self.rolls.randrange(100, 300))] for _ in range(3)] for _ in range(12)]
        for larder in (False, True) if SCALE >= 1 else (True,):  # the shorter test sees only a growth that is larger
            engines = [
                # Few blocks, so that all of them were used before memory is measured.
                self.vllm(larder, model="tiny", max_num_seqs=8, max_model_len=2048, dtype="float32",
                          num_gpu_blocks_override=100, env=FEW_PREPARED)  # fmt: skip
                for _ in range(2)
            ]
            begun = time.monotonic()
            talks = [Talk(vllm, texts, known, begun + seconds / 4, begun + seconds) for vllm in engines]
            time.sleep(seconds / 4)
            daemon = self.resident_of_daemon()
            for talk in [talk.thread.join() or talk for talk in talks]:
                talk.ended()
                self.assertEqual((talk.errors, talk.wrong), ([], 0))
            growths[larder] = [talk.growth() for talk in talks]
            print(f"{'with' if larder else 'without'} Larder: {sum(talk.requests for talk in talks)} requests in {time.monotonic() - begun:.0f} s, "
                  f"growth after warm-up {[f'{size >> 10} KiB = {part:.4f}' for size, part in growths[larder]]}; "
                  f"MiB over time {[talk.curve() for talk in talks]}", flush=True)  # fmt: skip
            if larder:
                grown = self.resident_of_daemon() - daemon
                print(f"the daemon grew by {grown >> 10} KiB = {grown / daemon:.4f}; "
                      f"{[vllm.metrics()['vllm:larder_blocks_loaded{}'] for vllm in engines]} blocks loaded", flush=True)  # fmt: skip
                self.assertLessEqual(grown / daemon, 0.02)
                for vllm in engines:
                    self.assertGreater(vllm.metrics()["vllm:larder_blocks_loaded{}"], 0)
                    self.settled(vllm)
            for vllm in engines:
                vllm.kill()
        for without, beside in zip(growths.get(False, [(0, 0)] * 2), growths[True]):
            self.assertLessEqual(beside[1] - without[1], 0.02 if SCALE >= 1 else 0.05)
        client = kvlarder.connect(self.daemon.socket_dir)
        left = client.clear(kvlarder.SelectionScope.ALL, dry_run=True)
        self.assertEqual((left.leased, left.kept_pinned, left.kept_in_use), (0, 0, 0))
        self.assertGreater(left.host.blocks, 0)

    def resident_of_daemon(self):
        with open(f"/proc/{self.daemon.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
