#!/usr/bin/env python3
"""LarderTier under vLLM's own tiering manager (tier_driver.py), with a real daemon: no wrong byte, each job answered once, no
call that waits, and each hint's outcome what the daemon did.  Latencies are printed.

tier_test.py LARDERD PYTHON [MODELS]   PYTHON: of deploy/fetch-vllm.sh; the test goes on in it
"""

import os
import sys

if len(sys.argv) > 2 and os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(sys.argv[2]))):
    os.execv(sys.argv[2], [sys.argv[2], "-B", *sys.argv])

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "client", "python"))

import collections  # noqa: E402
import contextlib  # noqa: E402
import glob  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402
import unittest  # noqa: E402
import unittest.mock  # noqa: E402

import kvlarder.vllm  # noqa: E402
from kvlarder import BlockStatus, SelectionScope, Tier, interfaces  # noqa: E402
from kvlarder.vllm_tier import api as tier_api, hints, names  # noqa: E402
from kvlarder.vllm_tier.config import TierOptions  # noqa: E402
from kvlarder.vllm_tier.lookups import MISSING_S, TierLookups, Verdict  # noqa: E402
from larderd import Larderd  # noqa: E402
from tier_driver import ROW, Request, TierEngine, WrongBytes, bytes_of, hints_of, key_of  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult, ReqContext  # noqa: E402
from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402

SCALE = float(os.environ.get("LARDER_TEST_SCALE", "0.1"))
SEED = int(os.environ.get("LARDER_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
LARDERD = sys.argv[1] if len(sys.argv) > 1 else ""


def scaled(count):
    return max(1, int(count * SCALE))


class World(unittest.TestCase):
    flags = ("--pool", "64MiB")
    disk = True

    def setUp(self):
        print(f"LARDER_TEST_SEED={SEED}", flush=True)
        self.rolls = random.Random(SEED)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        disk = ("--disk", self.folder.name, "--disk-limit", "512MiB") if self.disk else ()
        self.daemon = Larderd(LARDERD, *self.flags, *disk)
        self.addCleanup(lambda: self.daemon.end())

    def engine(self, serves=True, **more):
        """The engine takes an answer that is late for a miss, so by default it waits for 5 s here, for a busy machine."""
        engine = TierEngine(self.daemon.socket_dir, **{"patience_ms": 5_000, **more})
        self.addCleanup(engine.close)
        if serves:
            self.await_(lambda: not engine.tier._cache.state, "the daemon is never used")
            engine.step()  # the tier looks at it once a step
        return engine

    def await_(self, condition, what, within=30.0):
        until = time.monotonic() + within
        while not condition():
            self.assertLess(time.monotonic(), until, what)
            time.sleep(0.001)

    def serve(self, engine, *requests):
        for request in requests:
            engine.add(request)
        engine.settle()

    def client(self):
        return kvlarder.connect(self.daemon.socket_dir)

    def started_again(self):
        """Starts the daemon, and waits until it knows what its disk has."""
        def knows():
            with contextlib.suppress(ConnectionError):
                return self.client().clear(SelectionScope.ALL, dry_run=True)

        self.daemon.start()
        self.daemon.await_pool()
        self.await_(knows, "the daemon never recovers")

    def digests(self, engine, keys):
        return [digest for digest, _, _ in engine.tier._jobs._names.of(keys)]

    def selection(self, engine, keys):
        return kvlarder.BlockSelection(engine_id=self.engine_id(), digests=self.digests(engine, keys))

    def engine_id(self):
        return self.client().instances()[0].engine_id

    def lose(self, engine, keys, tiers=()):
        return self.client().clear(SelectionScope.BLOCKS, self.selection(engine, keys), tiers=list(tiers), pinned=True)

    def await_disk(self, engine, keys):
        """Waits until these blocks are on disk."""
        def there():
            with contextlib.suppress(ConnectionError):
                return all(disk for _, disk in engine.tier._link.copies(keys, 1.0))

        self.await_(there, "blocks never come to the disk")

    def each_answered_once(self, engine):
        self.assertEqual(set(engine.tier.answered), set(engine.tier.submitted))
        self.assertEqual(set(engine.tier.answered.values()) - {1}, set())
        self.assertEqual((engine.tier._jobs.under_way, len(engine.tier._jobs._storing)), (0, 0))
        self.assertEqual((engine.tier._lookups._keys, engine.tier._lookups._of_request), ({}, {}))


class Blocks(World):
    """Both groups, where blocks are found, and what becomes of lost and damaged ones."""

    def test_another_engine_gets_what_one_stored(self):
        first, chunks = self.engine(stats_interval_s=0.1), list(range(12))
        self.serve(first, Request("a", chunks))
        counted = "vllm:larder_tier_blocks_stored"
        self.await_(lambda: first.step() or first.counters[counted] == 24, "vLLM never sees the counters")
        second = self.engine()
        again = Request("b", chunks)
        self.serve(second, again)
        self.assertEqual((second.restored, again.sources), (14, {"host": 14}))  # 12 of full attention, 2 of the window
        self.each_answered_once(second)

    def test_a_lost_block_is_a_hole_for_its_key_alone(self):
        engine, chunks = self.engine(), list(range(10))
        self.serve(engine, Request("a", chunks))
        self.lose(engine, [key_of(0, chunks[:6])])
        other = self.engine()
        self.serve(other, Request("b", chunks))
        self.assertEqual(other.restored, 7)  # 5 chunks before the hole, and the window of the last two of them
        third = self.engine()
        self.serve(third, Request("c", chunks))
        self.assertEqual(third.restored, 12)  # the second one has stored it again

    def test_blocks_that_are_lost_after_they_were_found_are_computed(self):
        chunks = list(range(8))
        self.serve(self.engine(), Request("a", chunks))
        engine = self.engine()
        submit_load, lost = engine.tier.submit_load, []

        def lose_and_load(job):
            if not lost:
                lost.extend(job.keys[:3])
                self.lose(engine, lost)
            submit_load(job)

        engine.tier.submit_load = lose_and_load
        request = Request("b", chunks)
        self.serve(engine, request)
        self.assertEqual(len(lost), 3)
        self.assertEqual(engine.tier.totals()["blocks_load_failed", ()], 3)
        self.assertEqual(engine.tier.checked, 7)  # the others of 8 and 2
        self.assertEqual(engine.restored, 0)  # a prefix has no hole

    def test_after_kill_hits_come_from_the_disk(self):
        engine, chunks = self.engine(), list(range(12))
        self.serve(engine, Request("a", chunks))
        keys = [key_of(group, chunks[: end + 1]) for group in (0, 1) for end in range(12)]
        self.await_disk(engine, keys)
        self.daemon.kill()
        self.started_again()
        self.await_(lambda: engine.tier._cache.stats()["sessions"] == 2, "the daemon is never used again")
        self.assertEqual(set(engine.tier._link.copies(keys, 5.0)), {(False, True)})  # the first answer of the new daemon
        second = self.engine()
        again = Request("b", chunks)
        self.serve(second, again)
        self.assertEqual((second.restored, again.sources), (14, {"disk": 14}))
        self.assertGreaterEqual(second.tier.totals()["keys_found_disk", ()], 14)

    def test_damaged_blocks_fail_alone(self):
        engine, chunks = self.engine(kept=200), list(range(60))
        self.serve(engine, Request("a", chunks))
        keys = [key_of(0, chunks[: end + 1]) for end in range(60)]
        self.await_disk(engine, keys)
        self.daemon.kill()
        harmed = self.harm(engine)
        self.started_again()
        second = self.engine(kept=200)
        tier, done = second.tier, []
        second.rows[:] = 77
        tier._jobs.submit(0, keys, list(range(60)), loads=True)
        self.await_(lambda: done.extend(tier._jobs.finished()) or done, "the load never ends")
        whole = [key for row, key in enumerate(keys) if (second.rows[row] == engine.rows[self.row(engine, key)]).all()]
        self.assertEqual(done[0].moved, whole)
        self.assertEqual(len(done[0].moved) + len(done[0].failed), 60)
        self.assertGreater(len(done[0].failed), 0)
        self.assertGreater(len(done[0].moved), 0)
        print(f"{harmed} pages of the disk were harmed, and {len(done[0].failed)} of 60 blocks failed")

    def row(self, engine, key):
        return engine.manager.primary_tier._policy.get(key).chunk_id

    def harm(self, engine):
        """Flips a bit in some rows that lie on the disk.  Returns in how many."""
        wanted = {bytes(engine.rows[row]): row for row in range(0, 60, 7)}
        harmed = 0
        for path in glob.glob(f"{self.folder.name}/**", recursive=True):
            if not os.path.isfile(path):
                continue
            with open(path, "r+b") as file:
                data = file.read()
                for row in wanted:
                    at = data.find(row)
                    if at >= 0:
                        file.seek(at + self.rolls.randrange(ROW))
                        byte = file.read(1)
                        file.seek(-1, os.SEEK_CUR)
                        file.write(bytes([byte[0] ^ 1]))
                        harmed += 1
        self.assertGreater(harmed, 0, "no row was found on the disk")
        return harmed

    def test_a_reset_ends_jobs_and_keeps_the_store(self):
        engine, chunks = self.engine(), list(range(8))
        self.serve(engine, Request("stored", chunks))
        engine.add(Request("a", list(range(100, 108))))
        while not engine.manager._jobs:
            engine.step()
        engine.manager.reset_cache()
        self.assertEqual(engine.manager._jobs, {})
        engine.requests.clear()
        engine.manager._req_state.clear()
        self.serve(engine, Request("b", chunks))
        self.assertEqual(engine.restored, 10)  # from the daemon: 8 of full attention, 2 of the window


    def test_engines_of_two_revisions_have_hits_beside_each_other(self):
        chunks, found = list(range(8)), {}
        first = [self.engine(revision=revision) for revision in ("1", "2")]
        for number, engine in enumerate(first):
            self.serve(engine, Request(f"a{number}", chunks))
        self.assertEqual(len({info.engine_id for info in self.client().instances()}), 2)
        for revision in ("1", "2"):
            engine = self.engine(revision=revision)
            self.serve(engine, Request(f"b{revision}", chunks))
            found[revision] = engine.restored
        self.assertEqual(found, {"1": 10, "2": 10})  # 8 of full attention, 2 of the window

    def test_what_was_missing_is_found_once_it_is_stored(self):
        engine, chunks = self.engine(), list(range(4))
        held, key = ReqContext(req_id="held"), key_of(0, chunks)

        def looked_up():
            engine.step()
            result = engine.tier.lookup(key, held)
            return None if result is LookupResult.RETRY else result

        self.await_(lambda: looked_up() is LookupResult.MISS, "the daemon never answers")
        self.serve(engine, Request("a", chunks))
        self.assertIs(engine.tier.lookup(key, held), LookupResult.HIT)
        engine.tier.on_request_finished(held)
        self.each_answered_once(engine)

    def test_a_refused_call_keeps_the_link(self):
        link = self.engine().tier._link
        client, selection = link._connected()[0], link.selection(link.digests([key_of(0, [1])]))
        with self.assertRaises(PermissionError):
            link.call("pin", selection, "o", tier=Tier.DEVICE)
        self.assertIs(link._client, client)


class Absent(World):
    """A daemon that is not there, hangs, or comes late."""

    disk = False

    def test_without_a_daemon_all_is_computed(self):
        self.daemon.kill()
        engine = self.engine(serves=False)
        self.serve(engine, *(Request(f"r{number}", list(range(number, number + 9))) for number in range(6)))
        self.assertEqual((engine.restored, engine.tier.totals()["blocks_stored", ()]), (0, 0))
        self.assertGreater(engine.tier.totals()["keys_refused", ()], 0)
        self.assertGreater(engine.tier.totals()["blocks_store_failed", ()], 0)
        self.each_answered_once(engine)
        self.daemon.start()
        self.daemon.await_pool()
        self.await_(lambda: not engine.tier._cache.state, "the daemon is never used")
        self.serve(engine, Request("late", list(range(100, 108))))
        self.assertGreater(engine.tier.totals()["blocks_stored", ()], 0)

    def test_a_daemon_that_hangs_costs_a_bounded_time(self):
        engine = self.engine(load_timeout_ms=300, store_timeout_ms=500, patience_ms=50)
        self.serve(engine, Request("a", list(range(8))))
        fresh = self.engine(load_timeout_ms=300, store_timeout_ms=500, patience_ms=50)
        keys = [key_of(0, range(end + 1)) for end in range(8)]
        self.daemon.stop()
        began = time.monotonic()
        self.addCleanup(self.daemon.go_on)
        engine.tier._jobs.submit(-1, keys, list(range(8)), loads=True)  # as if they had been found before
        self.serve(fresh, Request("b", list(range(8))), Request("c", list(range(50, 58))))
        done = []
        self.await_(lambda: done.extend(engine.tier._jobs.finished()) or done, "the load never ends")
        self.assertEqual(done[0].moved, [])
        seconds = time.monotonic() - began
        self.assertLess(seconds, 10.0)
        self.assertGreater(fresh.tier.totals()["keys_impatient", ()], 0)
        print(f"a stopped daemon: requests and jobs ended within {seconds:.2f} s")

    def test_a_full_queue_drops(self):
        engine = self.engine(store_queue_blocks=4)
        self.serve(engine, Request("a", list(range(30))))
        self.assertGreater(engine.tier.totals()["blocks_dropped", ()], 0)
        self.each_answered_once(engine)

    def test_jobs_of_a_tier_that_is_shut_down_are_answered(self):
        engine = self.engine()
        self.daemon.stop()
        self.addCleanup(self.daemon.go_on)
        keys = [key_of(0, range(end + 1)) for end in range(8)]
        for job in range(4):
            engine.tier._jobs.submit(job, keys, list(range(8)), loads=job % 2 == 0)
        engine.tier.shutdown()
        engine.tier._jobs.submit(4, keys, list(range(8)), loads=True)
        done = engine.tier._jobs.finished()
        self.assertEqual(sorted(one.job for one in done), [0, 1, 2, 3, 4])
        self.assertEqual({len(one.failed) for one in done}, {8})
        self.assertEqual(engine.tier._jobs.under_way, 0)

    def test_a_drain_waits_for_no_daemon(self):
        engine = self.engine(load_timeout_ms=30_000, store_timeout_ms=30_000)
        keys = [key_of(0, range(end + 1)) for end in range(8)]
        engine.rows[:8] = [bytes_of(key) for key in keys]
        jobs = engine.tier._jobs
        self.daemon.stop()
        self.addCleanup(self.daemon.go_on)
        for job in range(40):
            jobs.submit(job, keys, list(range(8)), loads=job % 4 == 0)
        self.await_(lambda: len(jobs._parts) == 10 + 30, "jobs never begin")
        began = time.monotonic()
        jobs.drain()
        seconds = time.monotonic() - began
        done = jobs.finished()
        self.assertEqual(sorted(one.job for one in done), list(range(40)))
        self.assertEqual({(len(one.moved), len(one.failed)) for one in done}, {(0, 8)})
        self.assertLess(seconds, 10.0)
        print(f"a stopped daemon: a drain of 40 jobs ended within {seconds:.2f} s")
        self.daemon.go_on()
        self.await_(lambda: not engine.tier._cache.state, "the daemon is never used again")
        jobs.submit(40, keys, list(range(8)), loads=False)  # as if the rows were in use again
        self.await_(lambda: done.extend(jobs.finished()) or len(done) == 41, "jobs do not go on after a drain")
        self.assertEqual(done[-1].failed, [])

    def test_a_chunk_that_no_slab_holds_is_told(self):
        engine = self.engine()
        with self.assertLogs("vllm.larder", "ERROR") as logs:
            engine.tier._check_slab(types.SimpleNamespace(slab_bytes=ROW - 1))
        self.assertIn("--slab", logs.output[0])


class Pressure(World):
    disk = False

    def test_back_pressure_is_vllms_detectors(self):
        detector = {"backpressure_cls": "EMABackpressureDetector", "high_water_s": 1e-6, "low_water_s": 5e-7}
        detector |= {"warmup_completions": 2, "policy_cls": "DropStorePolicy", "decay_half_life_s": 0.01}
        engine = self.engine(kept=200, backpressure=detector)
        for number in range(12):  # each store takes longer for a MiB than a microsecond
            self.serve(engine, Request(f"r{number}", [number, *range(20)]))
        dropped = sum(count for name, count in engine.counters.items() if "backpressure_blocks_dropped" in name)
        self.assertGreater(dropped, 0)
        self.assertGreater(engine.tier.totals()["blocks_stored", ()], 0)


class Storm(World):
    """Random requests, losses, and a daemon that is killed and stopped."""

    flags = ("--pool", "16MiB")

    def test_storm(self):
        engine = self.engine(kept=64, patience_ms=200, load_timeout_ms=1_000, store_timeout_ms=2_000, stats_interval_s=0.1)
        documents = [[self.rolls.randrange(10_000) for _ in range(24)] for _ in range(120)]
        moves, began, requests, weather = scaled(24_000), time.monotonic(), 0, collections.Counter()
        helper, hinted = None, 0
        while True:
            totals = engine.tier.totals()
            moved = totals["blocks_loaded", ()] + totals["blocks_stored", ()]
            if moved >= moves and not engine.requests:
                break
            if moved < moves and len(engine.requests) < 6:
                document = self.rolls.choice(documents)
                hint = self.some_hint(f"r{requests}", document) if self.rolls.random() < 0.1 else None
                hinted += hint is not None
                engine.add(Request(f"r{requests}", document[: self.rolls.randrange(1, 24)], hint))
                requests += 1
            roll = self.rolls.random()
            if helper is not None and not helper.is_alive():
                helper = None
            if helper is None and roll < 0.01:
                helper = self.storms(engine, documents, weather)
            engine.step()
            time.sleep(0.0005)
            self.assertLess(time.monotonic() - began, 600 * SCALE + 120, f"too slow: {moved} of {moves}")
        if helper is not None:
            helper.join()
        engine.settle()
        self.each_answered_once(engine)
        finals = self.finals(engine, hinted)
        totals = engine.tier.totals()
        print(
            f"storm: {requests} requests, {engine.steps} steps, {totals['blocks_stored', ()]} blocks stored, "
            f"{totals['blocks_loaded', ()]} loaded, {totals['blocks_load_failed', ()]} failed to load, "
            f"{totals['blocks_store_failed', ()]} to be stored; {dict(weather)}; {len(engine.tier.answered)} jobs, "
            f"{engine.checked + engine.tier.checked} rows checked, wrong bytes 0, jobs never answered 0; {hinted} hints, "
            f"{dict(finals)}; {time.monotonic() - began:.1f} s; load of the machine {os.getloadavg()[0]:.1f}"
        )
        print("\n".join(engine.report()), flush=True)

    def some_hint(self, name, document):
        keys = [key_of(0, document[: end + 1]) for end in self.rolls.sample(range(24), 5)]
        named = {"block_hashes": [key[:-4].hex() for key in keys]} if self.rolls.random() < 0.7 else {}
        kind = self.rolls.choice(("Share", "Prefetch", "Retain", "Pin", "Demote"))
        return hints_of(name, (kind, named if kind in ("Share", "Demote") else {**named, "ttl_s": 1}))

    def finals(self, engine, hinted):
        """Waits until each hint has its final outcome, and one of them.  Returns how many have which."""
        until = time.monotonic() + 30
        while sum(outcome.final for outcome in engine.outcomes) < hinted:
            engine.step()
            time.sleep(0.001)
            self.assertLess(time.monotonic(), until, "a hint without a final outcome")
        finals = [outcome for outcome in engine.outcomes if outcome.final]
        self.assertEqual(len({outcome.action_id for outcome in finals}), hinted)
        return collections.Counter(outcome.outcome for outcome in finals)

    def storms(self, engine, documents, weather):
        """Begins one thing that goes wrong, in a thread, so that the engine goes on.  Returns the thread."""
        kind = self.rolls.choice(("lose", "lose", "lose", "kill", "stop"))
        weather[kind] += 1
        document = self.rolls.choice(documents)
        keys = [key_of(group, document[: end + 1]) for group in (0, 1) for end in range(0, 24, self.rolls.randrange(1, 4))]
        pause = self.rolls.uniform(0.01, 0.4)

        def lose():
            with contextlib.suppress(ConnectionError, TimeoutError, IndexError):
                weather["blocks lost"] += sum(status == BlockStatus.OK for _, status in self.lose(engine, keys).blocks)

        def kill():
            self.daemon.kill()
            time.sleep(pause)
            self.daemon.start()

        def stop():
            self.daemon.stop()
            time.sleep(pause)
            self.daemon.go_on()

        thread = threading.Thread(target={"lose": lose, "kill": kill, "stop": stop}[kind])
        thread.start()
        return thread

    def test_a_storm_notices_wrong_bytes(self):
        engine, chunks = self.engine(), list(range(6))
        self.serve(engine, Request("a", chunks))
        other = self.engine()
        begin_load = other.tier._cache.begin_load

        class Swapped:
            """An EngineCache that loads the first two blocks in each other's rows."""

            def __getattr__(self, name):
                return getattr(engine_cache, name)

            def begin_load(self, digests, rows, **more):
                return begin_load(digests, [rows[1], rows[0], *rows[2:]], **more)

        engine_cache = other.tier._jobs._cache
        other.tier._jobs._cache = Swapped()
        with self.assertRaises(WrongBytes):
            self.serve(other, Request("b", chunks))
        other.requests.clear()
        other.tier._jobs._cache = engine_cache


class Hints(World):
    """Each outcome is compared with what the daemon did, as another client sees it."""

    def setUp(self):
        super().setUp()
        self.one = self.engine(kept=300, hint_patience_s=3.0)
        self.chunks = list(range(40))
        self.serve(self.one, Request("a", self.chunks))
        self.keys = [key_of(0, self.chunks[: end + 1]) for end in range(40)]
        self.absent = [key_of(0, [999, end]) for end in range(20)]
        self.number = 0

    def waits_long(self):
        """From now on the tier keeps hints for so long that a busy machine can start a daemon in that time."""
        self.one.tier._hints._patience_s = 25.0

    def hint(self, kind, payload=None, request_chunks=(7,), version="1"):
        """Returns the outcomes of a hint, the final one last."""
        self.number += 1
        name = f"h{self.number}"
        envelope = hints_of(name, (kind, payload or {}))
        if version != "1":
            envelope = type(envelope)("1", name, [type(envelope.actions[0])(f"{name}/0", kind, version, payload or {})])
        self.one.outcomes.clear()
        self.one.add(Request(name, list(request_chunks), hints=envelope))
        self.await_final(1)
        self.one.settle()
        self.assertEqual({outcome.action_id for outcome in self.one.outcomes}, {f"{name}/0"})
        self.assertEqual([outcome.final for outcome in self.one.outcomes].count(True), 1)
        return list(self.one.outcomes)

    def await_final(self, count, within=30.0):
        until = time.monotonic() + within
        while sum(outcome.final for outcome in self.one.outcomes) < count:
            self.one.step()
            time.sleep(0.001)
            self.assertLess(time.monotonic(), until, f"no final outcome: {self.one.outcomes}")

    def named(self, keys):
        return {"block_hashes": [key[:-4].hex() for key in keys], "groups": [0]}

    def copies(self, keys):
        """Returns the sets of keys in HOST and on DISK, by another connection."""
        digests = self.digests(self.one, keys)
        answer = self.client().lookup(self.one.tier._jobs._names.content, steps=digests, engine_id=self.engine_id())
        found = {Tier.HOST: set(), Tier.DISK: set()}
        for instance in answer.instances:
            for hit in instance.tiers:
                for part in hit.ranges:
                    found[hit.tier] |= {keys[step] for step in range(part.begin // 16, part.end // 16)}
        return found

    def pinned(self, owner, keys):
        """Returns how many of these blocks an owner pins, and ends it."""
        return self.client().unpin(owner, self.selection(self.one, keys)).unpinned

    def sample(self):
        """Returns keys, some of which are stored."""
        some = self.rolls.sample(self.keys, self.rolls.randrange(1, 20))
        return some + self.rolls.sample(self.absent, self.rolls.choice((0, 0, 3)))

    def expected(self, done, total, pending=0):
        return "deferred" if pending else "accepted" if done == total else "clipped" if done else "missing"

    def test_share_says_what_is_stored(self):
        for _ in range(scaled(100)):
            keys = self.sample()
            self.lose(self.one, self.rolls.sample(self.keys, 1))
            last = self.hint("Share", self.named(keys))[-1]
            stored = len(set().union(*self.copies(keys).values()))
            self.assertEqual((last.outcome, last.done), (self.expected(stored, len(keys)), stored))

    def test_pin_counts_what_is_pinned(self):
        for number in range(scaled(100)):
            keys, ttl_s = self.sample(), self.rolls.choice((60, 60, 3e6))
            last = self.hint("Pin", {**self.named(keys), "owner": f"o{number}", "ttl_s": ttl_s})[-1]
            pinned = self.pinned(f"o{number}", keys)
            self.assertEqual(last.done, pinned)
            expected = self.expected(pinned, len(keys))
            self.assertEqual(last.outcome, "clipped" if ttl_s > 60 and expected == "accepted" else expected)

    def test_pin_of_no_time_ends_it(self):
        keys = self.keys[:5]
        self.hint("Pin", {**self.named(keys), "owner": "o"})
        self.assertEqual(self.hint("Pin", {**self.named(keys), "owner": "o", "ttl_s": 0})[-1].outcome, "accepted")
        self.assertEqual(self.pinned("o", keys), 0)

    def test_demote_and_prefetch_move(self):
        self.await_disk(self.one, self.keys)
        for _ in range(scaled(60)):
            keys = self.sample()
            have = [key for key in keys if key in self.keys]
            last = self.hint("Demote", self.named(keys))[-1]
            found = self.copies(keys)
            demoted = len(found[Tier.DISK] - found[Tier.HOST])
            self.assertEqual((last.outcome, last.done), (self.expected(demoted, len(keys)), demoted), last)
            self.assertEqual(demoted, len(have))
            kind = self.rolls.choice(("Prefetch", "Retain"))
            outcomes = self.hint(kind, {**self.named(keys), "ttl_s": 1})
            there = len(self.copies(keys)[Tier.HOST])
            self.assertEqual((outcomes[-1].outcome, outcomes[-1].done), (self.expected(there, len(keys)), there), outcomes)
            self.lose_holds(keys)

    def lose_holds(self, keys):
        """Ends what a prefetch keeps, so that the next hint can demote it."""
        self.client().clear(SelectionScope.BLOCKS, self.selection(self.one, keys), tiers=[Tier.HOST], pinned=True)

    def test_demote_of_what_is_pinned_is_rejected(self):
        keys = self.keys[:4]
        self.await_disk(self.one, keys)
        self.hint("Pin", {**self.named(keys), "owner": "o"})
        last = self.hint("Demote", self.named(keys))[-1]
        self.assertEqual((last.outcome, last.refused), ("rejected", 4))
        self.assertEqual(len(self.copies(keys)[Tier.HOST]), 4)

    def test_retain_is_clipped_to_what_the_daemon_keeps(self):
        last = self.hint("Retain", {**self.named(self.keys[:3]), "ttl_s": 3600})[-1]
        self.assertEqual((last.outcome, last.done, last.reason), ("clipped", 3, "ttl_s is at most 600"))

    def test_own_blocks_wait_for_the_end_of_the_request(self):
        chunks = list(range(5000, 5010))
        outcomes = self.hint("Pin", {"owner": "mine"}, request_chunks=chunks)
        self.assertEqual((outcomes[0].outcome, outcomes[0].final), ("deferred", False))
        keys = [key_of(group, chunks[: end + 1]) for group in (0, 1) for end in range(10)]
        self.assertEqual((outcomes[-1].outcome, outcomes[-1].reason), ("clipped", hints.OWN_BLOCKS), outcomes)
        self.assertEqual(self.pinned("mine", keys), outcomes[-1].done)
        self.assertEqual(outcomes[-1].done, 20)

    def test_own_blocks_that_vllm_has_itself_are_not_known(self):
        last = self.hint("Pin", {"owner": "mine"}, request_chunks=self.chunks)[-1]  # all are in the primary tier
        self.assertEqual((last.outcome, last.done, last.reason), ("missing", 0, hints.NO_OWN_BLOCKS))

    def test_own_blocks_are_those_that_exist(self):
        request = Request("probes", [6_000], hints=hints_of("probes", ("Pin", {"owner": "mine"})))
        self.one.outcomes.clear()
        self.one.add(request)
        self.one.tier.lookup(self.absent[0], request.context)  # as of a window that nobody has stored
        self.await_final(1)
        last = self.one.outcomes[-1]
        self.assertEqual((last.outcome, last.done, last.missing), ("clipped", 2, 0))  # one chunk in two groups

    def test_a_hash_in_several_groups_is_one_block(self):
        self.lose(self.one, [key_of(1, self.chunks[: end + 1]) for end in range(3)])  # as a window has not every block
        payload = self.named(self.keys[:6])
        del payload["groups"]
        last = self.hint("Share", payload)[-1]
        self.assertEqual((last.outcome, last.done), ("accepted", 6))

    def test_a_hint_of_many_blocks_takes_several_calls(self):
        absent = [key_of(0, [998, end]) for end in range(3_000)]
        payload = {**self.named(self.keys + absent), "owner": "many"}
        del payload["groups"]
        last = self.hint("Pin", payload)[-1]
        self.assertEqual((last.outcome, last.done, last.missing), ("clipped", 40, 3_000))
        windows = [key_of(1, self.chunks[: end + 1]) for end in range(40)]
        self.assertEqual(self.pinned("many", self.keys + windows), 80)
        del self.one.outcomes[:]
        payload = self.named(self.absent * 250)
        self.assertEqual(self.hint("Share", payload)[-1].reason, "a hint may name 4096 blocks")
        last = self.hint("Share", {**payload, "block_hashes": payload["block_hashes"][:4096] + ["never read"]})[-1]
        self.assertEqual((last.missing, last.reason), (4096, "a hint may name 4096 blocks"))

    def test_both_reasons_to_clip_are_told(self):
        last = self.hint("Pin", {"owner": "o", "ttl_s": 3e6}, request_chunks=[7_000])[-1]
        self.assertEqual(last.reason, f"ttl_s is at most 2592000; {hints.OWN_BLOCKS}")

    def test_only_a_pin_needs_an_owner(self):
        self.assertEqual(self.hint("Share", {**self.named(self.keys[:1]), "owner": 7})[-1].outcome, "accepted")

    def test_a_group_that_is_named_often_is_named_once(self):
        payload = {**self.named(self.keys[:3]), "groups": [0] * 10_000}
        self.assertEqual(self.hint("Share", payload)[-1].done, 3)
        parsed = hints.parse("m", hints_of("m", ("Share", payload)).actions[0], (0, 1), 4_096)
        self.assertEqual({len(block) for block in parsed.blocks}, {1})

    def test_what_is_not_understood_is_rejected(self):
        named = self.named(self.keys[:1])
        cases = (
            ("Explode", named, "1"),
            ("Pin", named, "2"),
            ("Pin", {**named, "ttl_s": -1}, "1"),
            ("Pin", {**named, "ttl_s": "1"}, "1"),
            ("Share", {**named, "ttl_s": 1}, "1"),
            ("Pin", {**named, "owner": ""}, "1"),
            ("Pin", {**named, "owner": "o" * 201}, "1"),
            ("Pin", {**named, "owner": "\ud800"}, "1"),
            ("Pin", {**named, "owner": 7}, "1"),
            ("Pin", {**named, "groups": [7]}, "1"),
            ("Pin", {**named, "groups": [True]}, "1"),
            ("Pin", {"block_hashes": []}, "1"),
            ("Pin", {"block_hashes": ["xyz"]}, "1"),
            ("Pin", {"block_hashes": ["00" * 57]}, "1"),
            ("Pin", {"block_hashes": [[]]}, "1"),
            ("Pin", {"blocks": ["00"]}, "1"),
            ("Pin", ["block_hashes"], "1"),
            (None, named, "1"),
        )
        for kind, payload, version in cases:
            with self.subTest(kind=kind, payload=payload, version=version):
                outcomes = self.hint(kind, payload, version=version)
                self.assertEqual([outcome.outcome for outcome in outcomes], ["rejected"])
                self.assertTrue(outcomes[0].reason)

    def test_without_a_daemon_a_hint_is_deferred_and_then_rejected(self):
        self.daemon.kill()
        outcomes = self.hint("Pin", self.named(self.keys[:2]))
        self.assertEqual([outcome.outcome for outcome in outcomes], ["deferred", "rejected"])

    def test_a_daemon_that_comes_back_carries_hints_out(self):
        self.await_disk(self.one, self.keys[:2])
        self.waits_long()
        self.daemon.kill()
        self.one.outcomes.clear()
        self.one.add(Request("waits", [7], hints=hints_of("waits", ("Pin", {**self.named(self.keys[:2]), "owner": "o"}))))

        def told():
            self.one.step()
            return [outcome.outcome for outcome in self.one.outcomes]

        self.await_(told, "no outcome while there is no daemon")
        self.assertEqual(told(), ["deferred"])
        self.daemon.start()
        self.await_final(1)
        outcomes = list(self.one.outcomes)
        self.assertEqual(outcomes[-1].outcome, "accepted", outcomes)
        self.assertEqual(self.pinned("o", self.keys[:2]), 2)

    def test_a_daemon_that_has_come_back_meanwhile_carries_hints_out(self):
        """It may still be reading which blocks its disk has, and need not know the engine yet."""
        self.waits_long()
        for number in range(5):
            self.await_disk(self.one, self.keys[:2])
            self.daemon.kill()
            self.daemon.start()
            outcomes = self.hint("Pin", {**self.named(self.keys[:2]), "owner": f"o{number}"})
            self.assertEqual(outcomes[-1].outcome, "accepted", outcomes)

    def test_the_end_does_not_wait_for_all_hints(self):
        self.daemon.stop()
        self.addCleanup(self.daemon.go_on)
        for number in range(30):
            self.one.add(Request(f"q{number}", [7], hints=hints_of(f"q{number}", ("Share", self.named(self.keys[:1])))))
        began = time.monotonic()
        self.one.tier.shutdown()
        seconds = time.monotonic() - began
        self.assertLess(seconds, 30.0)  # a call to a daemon that hangs takes 2 s
        print(f"a stopped daemon: a tier with 30 hints ended within {seconds:.2f} s")

    def test_each_final_outcome_is_counted(self):
        self.hint("Share", self.named(self.keys[:2]))
        self.hint("Share", self.named(self.absent[:2]))
        totals = self.one.tier.totals()
        self.assertEqual((totals["hints", ("share", "accepted")], totals["hints", ("share", "missing")]), (1, 1))


class FakeLink:
    """Answers `copies` for a HintDesk or TierLookups.  `asks` is called with the keys, and returns the answer or raises."""

    may_recover = False

    def __init__(self, asks):
        self.asks = asks

    def copies(self, keys, deadline_s):
        return self.asks(keys)


class Desk(unittest.TestCase):
    """The order of hints, with a daemon that answers when the test says so and a clock that it moves."""

    def setUp(self):
        self.seconds, self.asked, self.asks = 0.0, [], lambda key: None
        self.entered, self.leave = threading.Event(), threading.Event()
        self.stored = set()
        self.desk = hints.HintDesk(
            FakeLink(self.answer), groups=[0], storing=self.stored.__contains__, patience_s=1.0, clock=lambda: self.seconds
        )
        self.addCleanup(self.desk.close)
        self.addCleanup(self.leave.set)

    def answer(self, keys):
        self.asked += keys
        self.asks(keys[0])
        return [(False, False)] * len(keys)

    def hang(self, key):
        self.entered.set()
        self.leave.wait()

    def key(self, number):
        return number.to_bytes(4, "big") + bytes(4)

    def share(self, *numbers):
        blocks = [self.key(number)[:-4].hex() for number in numbers]
        self.desk.begin("r", hints_of(f"h{numbers[0]}", ("Share", {"block_hashes": blocks})))

    def outcomes_until(self, final):
        """Returns the outcomes until this action has its final one."""
        told, until = [], time.monotonic() + 30
        while not any(one.final and one.action_id == final for one in told):
            told += self.desk.outcomes()
            self.assertLess(time.monotonic(), until, told)
        return told

    def test_close_waits_for_one_call_alone(self):
        self.asks = self.hang
        for number in range(5):
            self.share(number)
        self.entered.wait()
        closer = threading.Thread(target=self.desk.close)
        closer.start()
        while not self.desk._closing:
            time.sleep(0)
        self.leave.set()
        closer.join()
        self.assertEqual(self.asked, [self.key(0)])

    def test_close_ends_a_hint_between_its_calls(self):
        self.asks = self.hang
        self.share(*range(hints.DIGESTS_MAX + 1))
        self.entered.wait()
        closer = threading.Thread(target=self.desk.close)
        closer.start()
        while not self.desk._closing:
            time.sleep(0)
        self.leave.set()
        closer.join()
        self.assertEqual(len(self.asked), hints.DIGESTS_MAX)

    def test_new_hints_do_not_keep_a_deferred_one_waiting(self):
        self.stored.add(self.key(0))  # it waits for the end of a store
        hints_left = iter(range(1, 200))

        def more(key):
            self.seconds += 0.01
            if key != self.key(0) and (number := next(hints_left, None)):
                self.share(number)  # whenever one is done, there is another one

        self.asks = more
        self.share(0)
        self.share(1_000)
        order = [(one.action_id, one.outcome) for one in self.outcomes_until("h0/0")]
        self.assertEqual(order[0], ("h0/0", "deferred"))
        self.assertLess(order.index(("h0/0", "missing")), 120)  # its patience is over after 100 calls

    def test_deferred_hints_do_not_keep_a_new_one_waiting(self):
        self.stored |= {self.key(number) for number in range(50)}
        self.asks = self.hang
        self.share(0)
        self.entered.wait()
        for number in range(1, 51):
            self.share(number)
        self.asks = lambda key: setattr(self, "seconds", self.seconds + 0.01)  # there is always one to be tried again
        self.leave.set()
        self.outcomes_until("h50/0")
        self.assertLess(self.asked.index(self.key(50)), 2 * 51)

    def test_patience_begins_with_the_arrival(self):
        self.asks = self.hang
        self.stored.add(self.key(1))
        self.share(0)
        self.entered.wait()
        self.share(1)
        self.seconds += 2.0
        self.leave.set()
        told = [one for one in self.outcomes_until("h1/0") if one.action_id == "h1/0"]
        self.assertEqual([(one.outcome, one.final) for one in told], [("missing", True)])


class Lookups(unittest.TestCase):
    """Verdicts, with a daemon and a clock of the test."""

    def setUp(self):
        self.seconds, self.asks = 0.0, lambda keys: [(True, False)] * len(keys)
        self.lookups = TierLookups(FakeLink(lambda keys: self.asks(keys)), lambda: True, 0.2, clock=lambda: self.seconds)
        self.addCleanup(self.lookups.close)

    def verdict(self, request):
        """Returns the verdict of the daemon, once it is there."""
        until = time.monotonic() + 30
        while (found := self.lookups.look(b"k", request)) is Verdict.PENDING:
            self.lookups.flush()
            self.assertLess(time.monotonic(), until)
        return found

    def later_requests_ask_again(self):
        self.assertIs(self.verdict("too early"), Verdict.MISSING)
        self.seconds += MISSING_S + 0.1
        self.assertIs(self.verdict("too early"), Verdict.MISSING)  # a request asks once
        self.assertIs(self.verdict("later"), Verdict.HOST)
        self.assertIs(self.verdict("first"), Verdict.HOST)

    def test_a_miss_of_impatience_does_not_last(self):
        self.assertIs(self.lookups.look(b"k", "first"), Verdict.PENDING)
        self.seconds += 0.3
        self.assertIs(self.lookups.look(b"k", "first"), Verdict.MISSING)
        self.later_requests_ask_again()

    def test_a_miss_of_an_error_does_not_last(self):
        asks = self.asks

        def fail(keys):
            raise ConnectionError

        self.asks = fail
        self.assertIs(self.verdict("first"), Verdict.MISSING)
        self.asks = asks
        self.later_requests_ask_again()

    def test_a_failed_load_is_no_hit_of_requests_that_know_it(self):
        self.assertIs(self.verdict("first"), Verdict.HOST)
        self.lookups.mark_missing([b"k"])
        self.seconds += MISSING_S + 0.1
        self.assertIs(self.verdict("first"), Verdict.MISSING)

    def test_what_is_stored_is_a_hit(self):
        self.asks = lambda keys: [(False, False)] * len(keys)
        self.assertIs(self.verdict("first"), Verdict.MISSING)
        self.lookups.mark_stored([b"k", b"another"])
        self.assertIs(self.verdict("first"), Verdict.HOST)
        self.assertEqual(len(self.lookups._keys), 1)


class Plain(unittest.TestCase):
    """What needs no daemon."""

    def test_importing_the_package_imports_no_vllm(self):
        code = "import sys, kvlarder.vllm; sys.exit(any(m in sys.modules for m in ('vllm', 'torch', 'kvlarder.vllm_tier.tier')))"
        self.assertEqual(subprocess.run([sys.executable, "-c", code], check=False).returncode, 0)

    def test_the_command_of_the_documentation_fits(self):
        page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "engines" / "vllm-tier.md"
        flag = json.loads(re.search(r"--kv-transfer-config '(.*?)'", page.read_text(encoding="utf-8"), re.DOTALL)[1])
        extra = flag["kv_connector_extra_config"]
        (entry,) = extra["secondary_tiers"]
        self.assertIs(SecondaryTierFactory.get_tier_class(entry), kvlarder.vllm.LarderTier)
        TierOptions.of({name: value for name, value in entry.items() if name not in ("type", "module_path", "backpressure")})
        self.assertIn("vllm:larder_tier_hints", OffloadingSpecFactory.get_spec_cls(extra).build_metric_definitions(extra))

    def test_options_are_checked(self):
        for wrong in ({"patience": 1}, {"patience_ms": -1}, {"loaders": "2"}, {"locality": "nearby"}):
            with self.subTest(wrong), tempfile.TemporaryDirectory() as folder, self.assertRaises(ValueError):
                TierEngine(folder, **wrong).close()

    def test_unknown_weights_are_refused(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(ValueError, "Set the option 'revision'"):
            TierEngine(folder, revision="").close()

    def revision(self, model, **options):
        return names.revision_of(TierOptions.of(options), types.SimpleNamespace(model=types.SimpleNamespace(name=model)))

    def test_files_are_hashed_if_that_is_asked(self):
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            (here / "model.safetensors").write_bytes(b"weights")
            (here / "config.json").write_text('{"rope_theta": 1}', encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "--quantization and --hf-overrides. Set the option 'revision'"):
                self.revision(folder)
            seen = {self.revision(folder, revision="files")}
            for name, text in (
                ("config.json", '{"rope_theta": 2}'),
                ("quantize_config.json", '{"bits": 4}'),
                ("hf_quant_config.json", '{"bits": 4}'),
                ("modeling_own.py", "scale = 2"),
                ("model.safetensors", "other weights"),
            ):
                (here / name).write_text(text, encoding="utf-8")
                self.assertNotIn(found := self.revision(folder, revision="files"), seen)
                self.assertEqual(found, self.revision(folder, revision="files"))
                seen.add(found)
            (here / "generation_config.json").write_text("{}", encoding="utf-8")
            self.assertIn(self.revision(folder, revision="files"), seen)  # it changes no KV

    def test_files_of_a_hub_model_are_refused(self):
        with self.assertRaisesRegex(ValueError, "a/model is no local folder"):
            self.revision("a/model", revision="files")

    def test_all_that_tells_engines_apart_is_in_their_names(self):
        def of(model="m", revision="1", dtype="bf16", layout="l", tenant=""):
            config = types.SimpleNamespace(model=types.SimpleNamespace(dtype=dtype))
            return names.engine_id_of(kvlarder.ContentSpec(model, revision), config, layout, tenant)

        self.assertEqual(of(), of())
        others = {of(model="n"), of(revision="2"), of(dtype="f16"), of(layout="k"), of(tenant="t"), of()}
        with unittest.mock.patch("os.getuid", return_value=12345):
            others.add(of())
        self.assertEqual(len(others), 7)

    def test_the_tested_vllm_fits(self):
        self.assertEqual(list(interfaces.problems(tier_api.SecondaryTierManager, tier_api.EXPECTED)), [])

    def test_another_interface_is_named(self):
        class Other(tier_api.SecondaryTierManager):
            def lookup(self, keys):
                """Another vLLM's."""

        self.assertIn("lookup takes (keys), not (key, req_context)", list(interfaces.problems(Other, tier_api.EXPECTED)))
        with self.assertRaisesRegex(ImportError, "lookup takes"):
            tier_api.check(Other)

    def test_outcomes_of_statuses(self):
        ok, pending, missing, full = BlockStatus.OK, BlockStatus.PENDING, BlockStatus.MISSING, BlockStatus.FULL
        for statuses, clipped, outcome in (
            ([ok, ok], "", "accepted"),
            ([ok, ok], "less", "clipped"),
            ([ok, missing], "", "clipped"),
            ([ok, full], "", "clipped"),
            ([ok, pending], "", "deferred"),
            ([missing, missing], "", "missing"),
            ([missing, full], "", "rejected"),
            ([], "", "missing"),
        ):
            self.assertEqual(hints.outcome_of(statuses, clipped)[0], outcome)
        self.assertEqual(hints.status_of([missing, ok]), ok)
        self.assertEqual(hints.status_of([full, ok]), full)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
