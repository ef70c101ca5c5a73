#!/usr/bin/env python3
"""Calls of the package kvlarder on a real daemon: questions about blocks, promises, events, restores, and asyncio.

calls_test.py LARDERD
"""

import array
import asyncio
import contextlib
import hashlib
import io
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import kvlarder
import kvlarder.aio
import numpy
from kvlarder import BlockSelection, BlockStatus, SelectionScope, Tier, hash_keys
from kvlarder.__main__ import Doctor
from larderd import Larderd

BLOCKS, BLOCK_TOKENS, LAYERS, SEGMENT = 32, 16, 2, 64 << 10
OK = BlockStatus.OK
LINK_BYTES_PER_S = 10e6  # the link carries all blocks in 0.4 s, in which also a busy machine runs every thread
CONTENT = kvlarder.ContentSpec("m", "1")
SPEC = kvlarder.VariantSpec(dtype="u8", layout="bytes/1/any", block_tokens=BLOCK_TOKENS, layers=LAYERS)


def tokens_of(first=0, blocks=BLOCKS):
    return list(range(first, first + blocks * BLOCK_TOKENS))


def segments_of(digest):
    return [(digest * (SEGMENT // len(digest)))[layer:] + bytes(layer) for layer in range(LAYERS)]


def blocks_of(seed, tokens):
    digests = kvlarder.chain(seed, tokens)
    return [
        kvlarder.PutBlock(digest, parent, tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS], segments_of(digest), seed)
        for i, (digest, parent) in enumerate(zip(digests, [seed, *digests]))
    ]


class OnDaemon(unittest.TestCase):
    FLAGS = ("--pool", "64MiB")
    DISK = False
    churned = 0

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        flags = self.FLAGS + (("--disk", self.folder.name, "--disk-limit", "400MiB") if self.DISK else ())
        self.daemon = Larderd(sys.argv[1], *flags)
        self.addCleanup(self.daemon.end)
        self.client = kvlarder.connect(self.daemon.socket_dir)
        self.session, self.variant = self.attach()
        self.addCleanup(lambda: self.session.close())
        self.seed = self.session.seed(CONTENT)
        self.digests = kvlarder.chain(self.seed, tokens_of())

    def attach(self, engine_id="calls_test"):
        session = self.client.attach(engine_id)
        return session, session.register([CONTENT], [SPEC])[0]

    def put(self, first=0, blocks=BLOCKS):
        status = self.session.put(self.variant, blocks_of(self.seed, tokens_of(first, blocks)))
        self.assertEqual(status, [OK] * blocks)

    def churn(self):
        """Puts three times as much as the pool holds."""
        for _ in range(12):
            self.churned += 1_000_000
            self.put(self.churned, 128)

    def right(self, session, variant, promise=0):
        """Returns how many blocks of the prefix can be read, and have the right bytes."""
        right = 0
        for digest in self.digests:
            into = [bytearray(SEGMENT) for _ in range(LAYERS)]
            if session.get(variant, [kvlarder.GetBlock(digest, into)], promise=promise) == [OK]:
                right += list(map(bytes, into)) == segments_of(digest)
        return right

    def spilled(self):
        """Waits until all blocks are also on disk, and the spiller uses none of them."""
        on_disk, in_host = ({"tiers": [tier], "dry_run": True, "pinned": True} for tier in (Tier.DISK, Tier.HOST))
        self.eventually(lambda: self.client.clear(SelectionScope.ALL, **on_disk).disk.blocks == BLOCKS)
        self.eventually(lambda: self.client.clear(SelectionScope.ALL, **in_host).kept_in_use == 0)

    def eventually(self, true, seconds=20):
        until = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), until, "it does not happen")
            time.sleep(0.01)


class Questions(OnDaemon):
    DISK = True

    def test_lookup(self):
        self.assertEqual(self.client.lookup(CONTENT, tokens=tokens_of()).instances, [])
        self.put()
        for question in ({"tokens": tokens_of()}, {"steps": self.digests}, {"steps": b"".join(self.digests)}):
            found = self.client.lookup(CONTENT, **question)
            self.assertEqual([hit.engine_id for hit in found.instances], ["calls_test"])
            host = found.instances[0].tiers[0]
            self.assertEqual((host.tier, host.contiguous), (Tier.HOST, BLOCKS * BLOCK_TOKENS))
            self.assertGreaterEqual(host.bytes, BLOCKS * LAYERS * SEGMENT)
            self.assertEqual((host.ranges[0].begin, host.ranges[0].end), (0, BLOCKS * BLOCK_TOKENS))
        self.assertEqual(self.client.lookup(CONTENT, tokens=tokens_of(), engine_id="other").instances, [])
        with self.assertRaises(ValueError) as refused:
            self.client.lookup(CONTENT)
        self.assertEqual(refused.exception.code, "INVALID_ARGUMENT")
        engine, = self.client.instances()
        self.assertEqual((engine.engine_id, engine.attached, engine.blocks), ("calls_test", True, BLOCKS))
        self.assertEqual((len(engine.sessions), engine.contents[0].model), (1, "m"))

    def test_an_engine_that_has_stored_nothing_yet(self):
        """It is found by the contents that it was made with."""
        self.put()
        for engine_id, contents in (("silent", []), ("told", [CONTENT])):
            cache = kvlarder.EngineCache(
                engine_id=engine_id, variants=[SPEC], socket_dir=self.daemon.socket_dir, loaders=0, storers=0, contents=contents
            )
            self.addCleanup(cache.close)
            self.eventually(lambda cache=cache: cache.state == "")
        hits = self.client.lookup(CONTENT, tokens=tokens_of()).instances
        self.assertEqual(sorted(hit.engine_id for hit in hits), ["calls_test", "told"])

    def test_pins_keep_and_end(self):
        self.put()
        named = BlockSelection(digests=self.digests[:4])
        pinned = self.client.pin(named, "operator", ttl_s=60)
        self.assertEqual(pinned.blocks, [(digest, OK) for digest in self.digests[:4]])
        self.assertTrue(pinned.durable)
        self.assertAlmostEqual(pinned.ends_unix_s, time.time() + 60, delta=30)
        self.spilled()
        cleared = self.client.clear(SelectionScope.CONTENT, BlockSelection(content=CONTENT), tiers=[Tier.HOST])
        self.assertEqual((cleared.host.blocks, cleared.kept_pinned), (BLOCKS - 4, 4))
        self.assertEqual(self.client.unpin("operator", named).unpinned, 4)
        self.client.pin(named, "operator")
        self.assertEqual(self.client.unpin("operator").unpinned, 4)
        self.assertEqual(self.client.clear(SelectionScope.ALL, dry_run=True, tiers=[Tier.HOST]).host.blocks, 4)
        self.client.clear(SelectionScope.BLOCKS, named)
        found = self.session.get(self.variant, [kvlarder.GetBlock(self.digests[0], [bytearray(SEGMENT)] * 2)])
        self.assertEqual(found, [BlockStatus.MISSING])

    def test_prefetch_brings_blocks_from_disk(self):
        self.put()
        self.spilled()
        self.client.clear(SelectionScope.ALL, tiers=[Tier.HOST])
        answers = self.client.prefetch(BlockSelection(content=CONTENT, tokens=tokens_of()))
        self.assertEqual([digest for digest, _ in answers], self.digests)
        self.assertLessEqual({status for _, status in answers}, {OK, BlockStatus.PENDING})
        in_host = {"tiers": [Tier.HOST], "dry_run": True, "pinned": True}
        self.eventually(lambda: self.client.clear(SelectionScope.ALL, **in_host).host.blocks == BLOCKS)

    def test_promises_tell_when_blocks_were_read_from_disk(self):
        self.put()
        self.spilled()
        self.client.clear(SelectionScope.ALL, tiers=[Tier.HOST])
        with self.session.promise([self.variant], self.digests) as promise:
            self.assertEqual(promise.blocks[0].tiers, bytes([Tier.DISK.value]) * BLOCKS)
            self.eventually(lambda: promise.pending == 0)
            self.assertEqual(promise.blocks[0].status, bytes([OK.value]) * BLOCKS)


class Promises(OnDaemon):
    def test_keeps_blocks_for_another_session_while_the_pool_overflows(self):
        self.assertIsNone(self.session.promise([self.variant], self.digests))
        self.put()
        promise = self.session.promise([self.variant], b"".join(self.digests))
        self.assertEqual((promise.tokens, promise.pending, promise.valid), (BLOCKS * BLOCK_TOKENS, 0, True))
        self.assertEqual(promise.blocks[0].status, bytes([OK.value]) * BLOCKS)
        number = promise.id
        worker, variant = self.attach()
        with worker, worker.hold_promise(number) as held:
            promise.release()
            self.churn()
            self.assertEqual(self.right(worker, variant, number), BLOCKS)
            self.assertTrue(held.valid)
        self.churn()
        self.assertLess(self.right(self.session, self.variant), BLOCKS)
        self.assertIsNone(self.session.hold_promise(number))

    def test_ends_with_its_life_and_its_session(self):
        self.put()
        brief = self.session.promise([self.variant], self.digests, life_s=0.1)
        self.eventually(lambda: not brief.valid)
        kept = self.session.promise([self.variant], self.digests)
        self.session.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.session.promise([self.variant], self.digests)
        self.assertTrue(kept.valid)  # it keeps its session
        self.daemon.kill()
        self.eventually(lambda: not kept.valid)
        kept.release()


class Events(OnDaemon):
    def test_a_snapshot_and_what_follows(self):
        self.put()
        seen = set()
        with self.client.watch_events(snapshot=True, with_tokens=True) as stream:
            complete = False
            while not complete or len(seen) < 2 * BLOCKS:
                reply = stream.next(20)
                self.assertIsNotNone(reply, "no event")
                for event in reply.events:
                    self.assertTrue(event.stored)
                    self.assertEqual((event.variant, event.tier), (self.variant.id, Tier.HOST))
                    self.assertEqual(len(event.tokens), BLOCK_TOKENS * len(event.digests))
                    seen.update(event.digests)
                if reply.snapshot_end:
                    complete = True
                    self.assertEqual(seen, set(self.digests))
                    self.put(5_000)
            self.client.clear(SelectionScope.BLOCKS, BlockSelection(digests=self.digests))
            while seen & set(self.digests):
                for event in stream.next(20).events:
                    self.assertFalse(event.stored)
                    seen.difference_update(event.digests)
            self.assertGreater(reply.sequence, 0)
            self.assertIsNone(stream.next(0.05))
            threading.Timer(0.2, stream.close).start()
            self.assertEqual(list(stream), [])

    def test_says_why_it_ended(self):
        stream = self.client.watch_events()
        self.daemon.kill()
        with self.assertRaises(ConnectionError) as ended:
            next(stream)
        self.assertEqual(ended.exception.code, "UNAVAILABLE")
        with self.assertRaises(RuntimeError) as never:  # of a daemon that has ended
            self.daemon.start()
            next(kvlarder.connect(self.daemon.socket_dir).watch_events(boot_id="another", after=1))
        self.assertEqual(never.exception.code, "OUT_OF_RANGE")


class Restores(OnDaemon):
    def restorer(self, compute_s, **more):
        profile = kvlarder.Profile(
            model="m", layers=LAYERS, compute=kvlarder.ComputeCost(0, compute_s), channels=[kvlarder.ChannelCost("pool", LINK_BYTES_PER_S)]
        )
        return kvlarder.Restorer(self.session, self.variant, profile, link_bytes_per_s=LINK_BYTES_PER_S, **more)

    def run_restore(self, restorer, pages, compute, place):
        layout = kvlarder.PageLayout.opaque(
            [page.buffer_info()[0] for page in pages], page_bytes=SEGMENT, page_stride=SEGMENT, pages=BLOCKS,
            page_tokens=BLOCK_TOKENS,
        )  # fmt: skip
        return restorer.restore(
            pages=layout, digests=self.digests, page_numbers=range(BLOCKS), channels=[1] * BLOCKS, compute=compute,
            place=place, chunk_tokens=4 * BLOCK_TOKENS,
        )  # fmt: skip

    def test_computes_the_head_while_the_tail_is_loaded(self):
        self.put()
        pages = [array.array("B", bytes(BLOCKS * SEGMENT)) for _ in range(LAYERS)]
        ends = [0]
        token_s = BLOCKS * LAYERS * SEGMENT / LINK_BYTES_PER_S / (BLOCKS * BLOCK_TOKENS)

        def compute(begin, end):
            self.assertEqual(begin, ends[-1])
            time.sleep((end - begin) * token_s)
            for block in range(begin // BLOCK_TOKENS, end // BLOCK_TOKENS):
                for page, segment in zip(pages, segments_of(self.digests[block])):
                    page[block * SEGMENT : (block + 1) * SEGMENT] = array.array("B", segment)
            ends.append(end)

        def place(begin, end):
            self.assertEqual(begin, ends[-1])
            ends.append(end)

        restorer = self.restorer(token_s)
        restored = self.run_restore(restorer, pages, compute, place)
        self.assertEqual(ends[-1], BLOCKS * BLOCK_TOKENS)
        for block, digest in enumerate(self.digests):
            for page, segment in zip(pages, segments_of(digest)):
                self.assertEqual(page[block * SEGMENT : (block + 1) * SEGMENT].tobytes(), segment)
        self.assertGreater(restored.computed_tokens, 0)
        self.assertGreater(restored.loaded_tokens, 0)
        self.assertEqual(restored.computed_tokens + restored.loaded_tokens, BLOCKS * BLOCK_TOKENS)
        self.assertEqual(restorer.learnt().channels[0].name, "pool")

    def test_an_exception_of_the_engine_ends_it(self):
        self.put()
        pages = [array.array("B", bytes(BLOCKS * SEGMENT)) for _ in range(LAYERS)]

        def broken(_begin, _end):
            raise KeyError("the engine")

        with self.assertRaisesRegex(KeyError, "the engine"):
            self.run_restore(self.restorer(1e-6), pages, broken, broken)
        restorer = self.restorer(1e-6)
        with self.assertRaisesRegex(RuntimeError, "under way"):
            self.run_restore(restorer, pages, lambda *_: self.run_restore(restorer, pages, broken, broken), broken)
        with self.assertRaisesRegex(ValueError, "layers"):
            profile = kvlarder.Profile(layers=7, compute=kvlarder.ComputeCost(), channels=[])
            kvlarder.Restorer(self.session, self.variant, profile)


class Asyncio(OnDaemon):
    def test_awaits_what_waits(self):
        asyncio.run(self.use())

    async def use(self):
        async with await kvlarder.aio.connect(self.daemon.socket_dir) as client:
            async with await client.attach("aio") as session:
                variant, = await session.register([CONTENT], [SPEC])
                seed = session.seed(CONTENT)
                self.assertEqual(await session.put(variant, blocks_of(seed, tokens_of())), [OK] * BLOCKS)
                await self.events(client)
                into = [[bytearray(SEGMENT) for _ in range(LAYERS)] for _ in self.digests]
                gets = [kvlarder.GetBlock(*pair) for pair in zip(self.digests, into)]
                both = await asyncio.gather(session.get(variant, gets), client.lookup(CONTENT, steps=self.digests))
                self.assertEqual(both[0], [OK] * BLOCKS)
                self.assertEqual(both[1].instances[0].engine_id, "aio")
                await self.stopped(client, session, variant)

    async def events(self, client):
        async with asyncio.timeout(30), client.watch_events(snapshot=True) as stream:
            seen = set()
            async for reply in stream:
                seen.update(digest for event in reply.events for digest in event.digests)
                if reply.snapshot_end:
                    break
            self.assertEqual(seen, set(self.digests))
            self.assertIsNone(await stream.next(0.05))
            waiting = asyncio.ensure_future(stream.next(1.0))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await stream.aclose()
        with self.assertRaises(StopAsyncIteration):
            await stream.next(1)

    async def stopped(self, client, session, variant):
        one = await kvlarder.aio.connect(self.daemon.socket_dir, threads=1)
        self.daemon.stop()
        try:
            await self.wait_for_nobody(client, session, variant, one)
        finally:
            self.daemon.go_on()

    async def wait_for_nobody(self, client, session, variant, one):
        """A loop goes on while calls wait; a cancelled one ends when the call does."""
        get = asyncio.ensure_future(
            session.get(variant, [kvlarder.GetBlock(bytes(16), [bytearray(1)] * 2)], deadline_s=0.5)
        )
        begun = time.monotonic()
        lookup = asyncio.ensure_future(client.lookup(CONTENT, steps=self.digests, deadline_s=0.5))
        await asyncio.sleep(0.05)
        lookup.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await lookup
        self.assertGreater(time.monotonic() - begun, 0.4)
        with self.assertRaises(TimeoutError):
            await get
        first = asyncio.ensure_future(one.lookup(CONTENT, steps=self.digests, deadline_s=5))
        queued = asyncio.ensure_future(one.lookup(CONTENT, steps=self.digests, deadline_s=600))
        await asyncio.sleep(0.05)
        queued.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await queued
        self.assertFalse(first.done())
        with self.assertRaises(TimeoutError):
            await first
        one.close()


class Forks(OnDaemon):
    def test_a_child_that_ends_takes_nothing_from_its_parent(self):
        self.put()
        promise = self.session.promise([self.variant], self.digests)
        profile = kvlarder.Profile(layers=LAYERS, compute=kvlarder.ComputeCost(), channels=[kvlarder.ChannelCost("pool", 1e9)])
        restorer = kvlarder.Restorer(self.session, self.variant, profile)
        cache = kvlarder.EngineCache(
            engine_id="cache", variants=[SPEC], socket_dir=self.daemon.socket_dir, page_fence=bytearray(64)
        )
        stream = self.client.watch_events()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(20)  # ends a child that hangs
                for _ in range(100):
                    promise.pending  # noqa: B018
                with self.assertRaisesRegex(RuntimeError, "forked child"):
                    cache.poll()
                cache.close()
                del restorer, stream, promise, cache
                code = 0
            finally:
                os._exit(code)
        ended = 0
        while not ended:
            self.assertEqual(self.right(self.session, self.variant, promise.id), BLOCKS)
            ended, code = os.waitpid(child, os.WNOHANG)
        self.assertEqual(code, 0, "the child has hung, or crashed")
        self.assertTrue(promise.valid)
        self.assertIsNone(stream.next(0.05))
        stream.close()
        self.assertEqual(cache.poll(), [])
        cache.close()


class Doctors(OnDaemon):
    def ask(self, folder, user=None):
        """Returns whether an engine of the user would work, and what the doctor printed."""
        with tempfile.TemporaryFile("w+") as file:
            child = os.fork()
            if child == 0:
                code = 2
                try:
                    if user is not None:
                        os.setuid(user)
                    text = io.StringIO()
                    with contextlib.redirect_stdout(text):
                        code = Doctor(folder, "").run()
                    file.write(text.getvalue())
                    file.flush()
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            file.seek(0)
            code = os.waitstatus_to_exitcode(status)
            self.assertIn(code, (0, 1), file.read())
            file.seek(0)
            return code == 0, file.read()

    def test_what_works_and_what_does_not(self):
        healthy, text = self.ask(self.daemon.socket_dir)
        self.assertTrue(healthy, text)
        self.assertIn("a block came back as it was stored", text)
        with tempfile.TemporaryDirectory() as folder:
            healthy, text = self.ask(os.path.join(folder, "none"))
            self.assertFalse(healthy)
            self.assertIn("there is no folder", text)
            healthy, text = self.ask(folder)
            self.assertFalse(healthy)
            self.assertIn("data.sock", text)
            os.chmod(folder, 0o700 if os.getuid() == 0 else 0)
            healthy, text = self.ask(folder, user=65534 if os.getuid() == 0 else None)
            os.chmod(folder, 0o700)
            self.assertFalse(healthy)
            self.assertRegex(text, "may not look into .*Permission denied")


class Pages(OnDaemon):
    """Blocks that are moved between the pool and an engine's pages."""

    # Four threads lease 16 MiB at once, and what is kept beside these blocks.  That is more than the share of one process, a
    # quarter of the pool, beyond which a read is answered FULL.
    FLAGS = ("--pool", "64MiB", "--lease-share", "0.5")

    def setUp(self):
        super().setUp()
        self.memory = numpy.zeros((LAYERS, BLOCKS, SEGMENT), numpy.uint8)
        self.pages = kvlarder.PageLayout.opaque(
            [layer.ctypes.data for layer in self.memory],
            page_bytes=SEGMENT, page_stride=SEGMENT, pages=BLOCKS, page_tokens=BLOCK_TOKENS,
        )  # fmt: skip
        self.all_ok = bytes([OK.value]) * BLOCKS

    def fill(self, seed=7):
        self.memory[:] = numpy.random.default_rng(seed).integers(0, 256, self.memory.shape, numpy.uint8)
        return self.memory.copy()

    def test_stored_and_read_into_other_pages(self):
        right, tokens = self.fill(), tokens_of()
        stored = self.session.put_pages(
            self.variant, self.pages, parent=self.seed, digests=self.digests, tokens=tokens, page_numbers=range(BLOCKS)
        )
        self.assertEqual(stored, self.all_ok)
        self.memory[:] = 0
        turned = list(reversed(range(BLOCKS)))
        self.assertEqual(self.session.get_pages(self.variant, self.pages, self.digests, turned), self.all_ok)
        self.assertTrue((self.memory == right[:, ::-1]).all())
        absent = [bytes(16), *self.digests[1:]]
        status = self.session.get_pages(self.variant, self.pages, absent, range(BLOCKS))
        self.assertEqual(status, bytes([BlockStatus.MISSING.value]) + self.all_ok[1:])
        with self.assertRaises(ValueError):
            self.session.get_pages(self.variant, self.pages, self.digests, range(1, BLOCKS + 1))

    def test_a_session_closed_beside_calls(self):
        """Calls under way end as they would have; later ones raise."""
        self.put()
        for _ in range(20):
            session, variant = self.attach("closes")
            begun, ends, failures, reads_made = threading.Barrier(5), [], [], [0]

            def reads(session=session, variant=variant, begun=begun, ends=ends, failures=failures, made=reads_made):
                memory = numpy.zeros((LAYERS, BLOCKS, SEGMENT), numpy.uint8)
                pages = kvlarder.PageLayout.opaque(
                    [layer.ctypes.data for layer in memory],
                    page_bytes=SEGMENT, page_stride=SEGMENT, pages=BLOCKS, page_tokens=BLOCK_TOKENS,
                )  # fmt: skip
                begun.wait()
                try:
                    while True:
                        if (status := session.get_pages(variant, pages, self.digests, range(BLOCKS))) != self.all_ok:
                            failures.append(status)
                        for block, digest in enumerate(self.digests):
                            if [bytes(layer[block]) for layer in memory] != segments_of(digest):
                                failures.append("other bytes")
                        made[0] += 1
                except ValueError as error:
                    ends.append(str(error))

            threads = [threading.Thread(target=reads) for _ in range(4)]
            for thread in threads:
                thread.start()
            begun.wait()
            self.eventually(lambda made=reads_made: made[0] > 0)
            session.close()
            for thread in threads:
                thread.join(20)
            self.assertEqual(failures, [])
            self.assertEqual(ends, ["the session is closed"] * 4)


class HashKeys(OnDaemon):
    """Blocks that are named by keys instead of tokens."""

    def test_stored_and_found_by_keys(self):
        content, spec = hash_keys.content_of("m", lora="l"), kvlarder.VariantSpec(dtype="u8", layout="k/1", block_tokens=32, layers=1)
        (variant,) = self.session.register([content], [spec])
        names = hash_keys.HashKeys(self.session.seed(content), block_tokens=32)
        chained = names.chain([bytes([number]) * 32 for number in range(3)])
        alone = [names.name(key) for key in (b"k", b"k\0", b"k\0\0\0", bytes(60))]
        self.assertEqual(chained[0], names.name(bytes(32)))
        self.assertNotEqual(chained[1][0], names.name(b"\1" * 32)[0])  # it has a parent
        self.assertEqual(len({digest for digest, _, _ in chained + alone}), 7)
        blocks = [kvlarder.PutBlock(*name, [name[0] * 256], content=self.session.seed(content)) for name in chained + alone]
        self.assertEqual(self.session.put(variant, blocks), [OK] * 7)
        for name in chained + alone:
            found = bytearray(4096)
            self.assertEqual(self.session.get(variant, [kvlarder.GetBlock(name[0], [found])]), [OK])
            self.assertEqual(found, name[0] * 256)

    def test_the_name_that_the_docs_give(self):
        """docs/format.md, "Hash keys", by hand."""
        seed, key = bytes(range(16)), bytes(range(1, 7))
        numbers = struct.pack("<16I", 6, 0x04030201, 0x0605, *[0] * 13)
        self.assertEqual(
            hash_keys.HashKeys(seed, 16).name(key),
            (hashlib.sha256(b"larder/chain/v1\0" + seed + numbers).digest()[:16], seed, list(struct.unpack("<16I", numbers))),
        )

    def test_what_is_no_key(self):
        for key in (b"", bytes(61)):
            with self.assertRaisesRegex(ValueError, "1 to 60"):
                hash_keys.HashKeys(bytes(16), 16).name(key)
        for tokens in (0, -16, 24):
            with self.assertRaisesRegex(ValueError, "multiple of 16"):
                hash_keys.HashKeys(bytes(16), tokens)


class InPlace(OnDaemon):
    def reserve(self, **more):
        return self.session.reserve(
            self.variant, parent=self.seed, digests=self.digests, tokens=tokens_of(), segment_bytes=[SEGMENT] * LAYERS, **more
        )  # fmt: skip

    def fill(self, reserved, blocks):
        for block in blocks:
            for view, segment in zip(reserved.segments(block), segments_of(self.digests[block])):
                with view:
                    view[:] = segment

    def test_written_and_read_where_it_lies(self):
        self.assertEqual(self.session.write_mode, "mapped")
        with self.reserve() as reserved:
            self.assertEqual([reserved.taken(i) for i in range(BLOCKS)], [False] * BLOCKS)
            self.fill(reserved, range(BLOCKS))
            self.assertEqual(reserved.publish(range(4)), bytes([OK.value]) * 4)
            again = bytes([BlockStatus.NOT_HELD.value])
            self.assertEqual(reserved.publish(range(3, BLOCKS)), again + bytes([OK.value]) * (BLOCKS - 4))
            with self.assertRaisesRegex(ValueError, "taken or published"):
                reserved.segments(0)
        self.assertEqual(self.right(self.session, self.variant), BLOCKS)
        with self.session.acquire(self.variant, [bytes(16), *self.digests]) as lease:
            self.assertEqual(lease.status, bytes([BlockStatus.MISSING.value]) + bytes([OK.value]) * BLOCKS)
            for block, digest in enumerate(self.digests, 1):
                self.assertEqual([bytes(view) for view in lease.segments(block)], segments_of(digest))
            self.assertTrue(lease.valid)
            for wrong, error in ((0, ValueError), (BLOCKS + 1, IndexError)):
                with self.assertRaises(error):
                    lease.segments(wrong)
        self.assertFalse(lease.valid)
        with self.assertRaises(ValueError):
            lease.segments(1)

    def test_memory_in_use_is_not_given_back(self):
        self.put(blocks=2)
        lease = self.session.acquire(self.variant, self.digests[:2])
        view = lease.segments(0)[1]
        self.assertTrue(view.readonly)
        array = numpy.frombuffer(view, numpy.uint8)
        with self.assertRaisesRegex(BufferError, "block 0"):
            lease.release()
        del view, lease  # the array keeps all of it
        self.session.close()
        self.assertEqual(array.tobytes(), segments_of(self.digests[0])[1])

    def test_a_view_made_from_an_old_one(self):
        """memoryview.obj is what a view was made from."""
        reserved = self.reserve()
        self.fill(reserved, range(BLOCKS))
        view = reserved.segments(0)[0]
        made_from = view.obj
        view.release()
        with memoryview(made_from):
            pass
        reserved.publish(range(4))
        with self.assertRaisesRegex(BufferError, "published"):
            memoryview(made_from)
        view = reserved.segments(4)[0]
        made_from = view.obj
        view.release()
        reserved.release()
        with self.assertRaisesRegex(BufferError, "given back"):
            memoryview(made_from)
        with self.session.acquire(self.variant, self.digests[:1]) as lease:
            view = lease.segments(0)[0]
            made_from = view.obj
            view.release()
        with self.assertRaisesRegex(BufferError, "given back"):
            memoryview(made_from)
        with self.assertRaises(BufferError):
            memoryview(type(made_from).__new__(type(made_from)))

    def test_an_exception_goes_on(self):
        self.put(blocks=1)
        with self.assertRaises(KeyError), self.session.acquire(self.variant, self.digests[:1]) as lease:
            arrays = [numpy.frombuffer(view, numpy.uint8) for view in lease.segments(0)]
            raise KeyError
        self.assertEqual(arrays[0].tobytes(), segments_of(self.digests[0])[0])
        with self.assertRaises(KeyError), self.reserve() as reserved:
            views = reserved.segments(1)
            raise KeyError
        self.assertFalse(views[0].readonly)

    def test_a_block_in_use_is_not_published(self):
        reserved = self.reserve()
        self.fill(reserved, range(BLOCKS))
        views = reserved.segments(5)
        self.assertEqual(reserved.publish(range(5)), bytes([OK.value]) * 5)
        with self.assertRaisesRegex(BufferError, "block 5"):
            reserved.publish(range(5, BLOCKS))
        with self.assertRaisesRegex(BufferError, "block 5"):
            reserved.release()
        del views
        self.assertEqual(reserved.publish(range(5, BLOCKS)), bytes([OK.value]) * (BLOCKS - 5))
        again = self.reserve()
        self.assertTrue(all(again.taken(i) for i in range(BLOCKS)))
        self.assertEqual(again.publish(), bytes([BlockStatus.DUPLICATE.value]) * BLOCKS)
        again.release()
        again.release()
        with self.assertRaisesRegex(ValueError, "released"):
            again.publish()

    def test_what_is_not_published_is_given_back(self):
        for _ in range(20):  # twice 4 MiB each: 160 MiB through a pool of 64
            self.reserve().release()
            self.reserve()  # gone at once
        self.put()

    def test_what_does_not_fit_is_refused(self):
        with self.assertRaisesRegex(ValueError, "tokens"):
            self.session.reserve(
                self.variant, parent=self.seed, digests=self.digests, tokens=tokens_of(blocks=1), segment_bytes=[1, 1]
            )
        with self.assertRaises(ValueError):
            self.session.reserve(
                self.variant, parent=self.seed, digests=self.digests, tokens=tokens_of(), segment_bytes=[SEGMENT]
            )
        with self.assertRaisesRegex(ValueError, "512"):
            self.session.acquire(self.variant, bytes(16 * 513))
        streamed = self.client.attach("streams", write_mode="stream")
        self.assertEqual(streamed.write_mode, "stream")
        with self.assertRaisesRegex(PermissionError, "write_mode"):
            streamed.reserve(
                streamed.register([CONTENT], [SPEC])[0], parent=self.seed, digests=self.digests, tokens=tokens_of(),
                segment_bytes=[SEGMENT] * LAYERS,
            )  # fmt: skip
        with self.assertRaises(ValueError):
            self.client.attach("x", write_mode="mmap")
        with self.assertRaises(ValueError):
            self.client.attach("x", role="driver")


class Directives(OnDaemon):
    def attach(self, engine_id="calls_test"):
        session = self.client.attach(engine_id, directives=True)
        return session, session.register([CONTENT], [SPEC])[0]

    def asked(self, call, answer):
        """Returns what a call returned that the engine has answered, and the directive."""
        result = []
        thread = threading.Thread(target=lambda: result.append(call()))
        thread.start()
        directive = self.session.take_directive(timeout_s=20)
        answered = answer(directive)
        thread.join(20)
        return result[0], directive, answered

    def test_an_engine_does_what_the_daemon_asks(self):
        self.assertIsNone(self.session.take_directive())
        self.session.report_device(self.variant, stored=self.digests, parent=self.seed, tokens=tokens_of())
        named = BlockSelection(digests=self.digests[:3])
        self.eventually(lambda: self.client.lookup(CONTENT, steps=self.digests).instances)
        def drop(directive):
            self.session.report_device(self.variant, removed=directive.digests[::2])
            return directive.done([OK, BlockStatus.KEPT, OK])

        cleared, directive, answered = self.asked(
            lambda: self.client.clear(SelectionScope.BLOCKS, named, tiers=[Tier.DEVICE], pinned=True), drop
        )
        self.assertTrue(answered)
        self.assertEqual(cleared.device.blocks, 2)
        self.assertEqual((directive.kind, directive.variant), (kvlarder.DirectiveKind.DROP, self.variant.index))
        self.assertEqual((directive.digests, directive.pinned, directive.codec), (self.digests[:3], True, None))
        self.assertFalse(directive.done([OK] * 3), "the daemon does not wait any more")
        with self.assertRaisesRegex(ValueError, "for each"):
            directive.done([])

    def cleared(self, digests, ends):
        """Returns a thread that asks to clear these blocks in DEVICE, and adds to `ends` how many were."""

        def clear():
            named = BlockSelection(digests=digests)
            ends.append(self.client.clear(SelectionScope.BLOCKS, named, tiers=[Tier.DEVICE], deadline_s=20).device.blocks)

        thread = threading.Thread(target=clear)
        thread.start()
        self.addCleanup(thread.join)
        return thread

    def report(self, blocks):
        self.session.report_device(self.variant, stored=self.digests[:blocks])
        self.eventually(lambda: self.client.lookup(CONTENT, steps=self.digests).instances)

    def test_nobody_answers(self):
        self.report(2)
        ends = []
        threads = [self.cleared(self.digests[:1], ends), self.cleared(self.digests[1:2], ends)]
        first = self.session.take_directive(timeout_s=20)
        second = self.session.take_directive(timeout_s=20)
        self.assertNotEqual(first.digests, second.digests)
        self.assertFalse(first.done([OK]), "it is late")
        for thread in threads:
            thread.join(20)
        self.assertEqual(ends, [0, 0])
        self.assertFalse(second.done([OK]), "it waited behind the first one, and is late, too")

    def test_one_that_is_dropped_can_be_taken_again(self):
        self.report(1)
        ends = []
        thread = self.cleared(self.digests[:1], ends)
        self.assertEqual(self.session.take_directive(timeout_s=20).digests, self.digests[:1])
        self.assertTrue(self.session.take_directive(timeout_s=20).done([OK]))
        thread.join(20)
        self.assertEqual(ends, [1])

    def test_one_without_digests(self):
        """All pins of an owner."""
        self.report(1)
        command = [os.path.join(os.path.dirname(sys.argv[1]), "..", "client", "cli", "larderctl"), "unpin", "--owner", "me",
                   "--all", "--socket-dir", self.daemon.socket_dir]  # fmt: skip
        for answer in ([], [BlockStatus.UNSUPPORTED]):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            directive = self.session.take_directive(timeout_s=20)
            self.assertEqual((directive.kind, directive.digests), (kvlarder.DirectiveKind.UNPIN, []))
            with self.assertRaises(ValueError):
                directive.done([OK])
            self.assertTrue(directive.done(answer))
            self.assertEqual(process.wait(20), 0)

    def test_closed(self):
        self.report(1)
        ends, taken = [], []
        thread = self.cleared(self.digests[:1], ends)
        directive = self.session.take_directive(timeout_s=20)
        waiter = threading.Thread(target=lambda session=self.session: taken.append(session.take_directive(timeout_s=600)))
        waiter.start()
        lease = self.session.acquire(self.variant, self.digests[:1])  # keeps the session
        self.session.close()
        waiter.join(20)
        thread.join(20)
        self.assertEqual((taken, ends), ([None], [0]))
        self.assertFalse(directive.done([OK]))
        del lease
        other = self.client.attach("other")
        with self.assertRaisesRegex(ValueError, "directives=True"):
            other.take_directive()

    def test_a_lost_session_says_so(self):
        self.daemon.kill()
        with self.assertRaises(ConnectionError):
            self.session.take_directive(timeout_s=20)
        self.daemon.start()

    def test_a_thread_that_waits_when_the_interpreter_ends(self):
        program = """if True:
            import sys, threading, time, kvlarder
            session = kvlarder.connect(sys.argv[1]).attach("ends", directives=True)
            def poll():
                while True:
                    session.take_directive(timeout_s=0.0005)
            for _ in range(4):
                threading.Thread(target=poll, daemon=True).start()
            time.sleep(0.2)
        """
        for _ in range(5):
            ended = subprocess.run([sys.executable, "-c", program, self.daemon.socket_dir], capture_output=True, timeout=60)
            self.assertEqual((ended.returncode, ended.stderr), (0, b""))


class Loopback(unittest.TestCase):
    def test_a_cache_without_a_daemon(self):
        memory = numpy.random.default_rng(3).integers(0, 256, (2, 8, 4096), numpy.uint8)
        right = memory.copy()
        blocks = kvlarder.LoopbackBlocks()
        pages = kvlarder.PageLayout.opaque(
            [layer.ctypes.data for layer in memory], page_bytes=4096, page_stride=4096, pages=8, page_tokens=16
        )
        cache = kvlarder.EngineCache(engine_id="test", variants=[SPEC], pages=pages, loopback=blocks)
        self.assertEqual(cache.state, "")
        chain = kvlarder.TokenChain(cache.seed(CONTENT), block_tokens=16)
        chain.extend(0, range(64))

        def ended(job):
            until = time.monotonic() + 20
            while time.monotonic() < until:
                for result in cache.poll():
                    self.assertEqual(result.job, job)
                    return list(result.status)
                time.sleep(0.001)
            self.fail("the job does not end")

        store = cache.begin_store(
            content=CONTENT, parent=cache.seed(CONTENT), digests=chain.digests(0, 4), tokens=range(64), pages=range(4)
        )
        self.assertEqual(ended(store), [OK.value] * 4)
        self.assertEqual(len(blocks), 4)
        self.assertEqual(cache.poll_lookup(cache.begin_lookup(chain)).tokens, 64)
        load = cache.begin_load(chain.digests(0, 4), range(4, 8))
        self.assertEqual(ended(load), [OK.value] * 4)
        self.assertTrue((memory[:, 4:] == right[:, :4]).all())
        self.assertTrue(blocks.drop(chain.digests(0, 1)))
        self.assertEqual(cache.poll_lookup(cache.begin_lookup(chain)).tokens, 0)
        blocks.weather(serves=False)
        self.assertNotEqual(cache.state, "")
        self.assertEqual(cache.stats()["sessions"], 0)
        with self.assertRaisesRegex(ValueError, "pages"):
            kvlarder.EngineCache(engine_id="test", variants=[SPEC], loopback=blocks)
        other = kvlarder.VariantSpec(dtype="u8", layout="bytes/1/any", block_tokens=64, layers=7)
        with self.assertRaisesRegex(ValueError, "than the variant has"):
            kvlarder.EngineCache(engine_id="test", variants=[other], pages=pages, loopback=blocks)


class Arguments(unittest.TestCase):
    SEED = bytes(16)

    def test_tokens_of_every_kind(self):
        right = kvlarder.chain(self.SEED, list(range(32)))
        self.assertEqual(len(right), 2)
        for kind in "BbHhIiLlQq":
            self.assertEqual(kvlarder.chain(self.SEED, array.array(kind, range(32))), right, kind)
        for dtype in (numpy.int64, numpy.uint32, numpy.int32, numpy.int16, ">u4", ">i8"):
            self.assertEqual(kvlarder.chain(self.SEED, numpy.arange(32, dtype=dtype)), right, dtype)
        self.assertEqual(kvlarder.chain(self.SEED, array.array("I", range(32)).tobytes()), right)
        self.assertEqual(kvlarder.chain(self.SEED, range(32)), right)

    def test_what_is_no_token_or_digest(self):
        for wrong in ([-1] * 16, numpy.full(16, -1, numpy.int32), 5, [1 << 32], numpy.zeros(16, numpy.float32), ["a"]):
            with self.assertRaisesRegex(ValueError, "token ids"):
                kvlarder.chain(self.SEED, wrong)
        for wrong in ([b"x" * 15], 5, ["x"]):
            with self.assertRaisesRegex(ValueError, "digests"):
                BlockSelection(digests=wrong)


class Reports(OnDaemon):
    def test_blocks_of_the_device(self):
        self.session.report_device(self.variant, stored=self.digests, parent=self.seed, tokens=tokens_of())
        device = {"tier": Tier.DEVICE, "contiguous": BLOCKS * BLOCK_TOKENS}

        def found():
            hits = self.client.lookup(CONTENT, steps=self.digests).instances
            return [{"tier": tier.tier, "contiguous": tier.contiguous} for hit in hits for tier in hit.tiers]

        self.eventually(lambda: found() == [device])
        self.session.report_device(self.variant, cleared=True)
        self.eventually(lambda: found() == [])


if __name__ == "__main__":
    os.environ.pop("LARDER_SOCKET_DIR", None)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
