#!/usr/bin/env python3
"""Blocks that are moved between the pool and pages of a GPU, here of a driver without one (tests/cuda/fake_libcuda.cc).

gpu_pages_test.py LARDERD   with LD_LIBRARY_PATH so that libcuda.so.1 is that driver
"""

import ctypes
import os
import sys
import unittest

import kvlarder
import numpy
from kvlarder import BlockStatus
from larderd import Larderd

BLOCKS, BLOCK_TOKENS, LAYERS, HEADS, ROW = 24, 64, 3, 2, 256
CAPACITY = (BLOCKS + 2) * BLOCK_TOKENS  # tokens of a head, as in a static cache
SPEC = kvlarder.VariantSpec(dtype="bf16", layout="test/1/heads", block_tokens=BLOCK_TOKENS, layers=LAYERS)
TOKENS = range(BLOCKS * BLOCK_TOKENS)


class DeviceMemory:
    """An allocation of the driver, seen as an array: the memory of this driver is memory of the process."""

    def __init__(self, shape):
        self.driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
        size = int(numpy.prod(shape))
        if self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != 0:
            raise MemoryError("cuMemAlloc_v2 failed")
        self.address = address.value
        self.bytes = numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address)).reshape(shape)

    def free(self):
        del self.bytes
        self.driver.cuMemFree_v2(ctypes.c_uint64(self.address))


class GpuPages(unittest.TestCase):
    def setUp(self):
        path = os.environ.pop("LD_LIBRARY_PATH")
        self.daemon = Larderd(sys.argv[1], "--pool", "64MiB")
        os.environ["LD_LIBRARY_PATH"] = path
        self.addCleanup(self.daemon.end)
        self.client = kvlarder.connect(self.daemon.socket_dir)
        self.memory = DeviceMemory((LAYERS, 2, HEADS, CAPACITY, ROW))
        self.addCleanup(self.memory.free)
        plane, head = HEADS * CAPACITY * ROW, CAPACITY * ROW
        self.pages = kvlarder.PageLayout(
            bases=[self.memory.address + i * plane for i in range(LAYERS * 2)], layers=LAYERS, planes=2, heads=HEADS,
            row_bytes=ROW, page_tokens=BLOCK_TOKENS, pages=BLOCKS, page_stride=BLOCK_TOKENS * ROW, token_stride=ROW,
            head_stride=head, block_tokens=BLOCK_TOKENS, order="head_token",
        )  # fmt: skip

    def attach(self, device, salt=b"", **options):
        content = kvlarder.ContentSpec("m", "1", salt=salt)
        session = self.client.attach("gpu_pages_test", device=device, **options)
        self.addCleanup(session.close)
        variant = session.register([content], [SPEC])[0]
        self.seed = session.seed(content)
        chain = kvlarder.TokenChain(self.seed, block_tokens=BLOCK_TOKENS)
        chain.extend(0, TOKENS)
        return session, variant, chain

    def put(self, session, variant, chain):
        self.memory.bytes[:] = numpy.random.default_rng(5).integers(0, 256, self.memory.bytes.shape, numpy.uint8)
        status = session.put_pages(
            variant, self.pages, parent=chain.parent(0), digests=chain.digests(0, BLOCKS), tokens=chain.tokens(0, BLOCKS),
            page_numbers=range(BLOCKS), content=self.seed,
        )  # fmt: skip
        self.assertEqual(status, bytes([BlockStatus.OK.value]) * BLOCKS)
        return self.memory.bytes[:, :, :, : BLOCKS * BLOCK_TOKENS].copy()

    def test_stored_and_read_back(self):
        for mode in ("mapped", "staged", "stream"):
            session, variant, chain = self.attach("cuda", salt=mode.encode(), write_mode=mode)
            self.assertEqual((session.device, session.device_reason), ("cuda", ""))
            right = self.put(session, variant, chain)
            for _ in range(2):  # the second time with the cache of the first
                self.memory.bytes[:] = 0
                status = session.get_pages(variant, self.pages, chain.digests(0, BLOCKS), range(BLOCKS))
                self.assertEqual(status, bytes([BlockStatus.OK.value]) * BLOCKS)
                self.assertTrue((self.memory.bytes[:, :, :, : BLOCKS * BLOCK_TOKENS] == right).all())
                self.assertFalse(self.memory.bytes[:, :, :, BLOCKS * BLOCK_TOKENS :].any())
            session.close()

    def test_restored_while_the_head_is_computed(self):
        session, variant, chain = self.attach("cuda")
        self.assertEqual(session.device, "cuda")
        right = self.put(session, variant, chain)
        now, placed = self.memory.bytes, []

        def compute(begin, end):
            now[:, :, :, begin:end] = right[:, :, :, begin:end]

        profile = kvlarder.Profile(
            model="m", layers=LAYERS, compute=kvlarder.ComputeCost(0.001, 1e-6), channels=[kvlarder.ChannelCost("pool", 1e9)]
        )
        for computes in (True, False):
            now[:], placed[:] = 0, []
            restorer = kvlarder.Restorer(session, variant, profile, computes=computes)
            restored = restorer.restore(
                pages=self.pages, digests=chain.digests(0, BLOCKS), page_numbers=range(BLOCKS), channels=[1] * BLOCKS,
                compute=compute, place=lambda begin, end: placed.append(end - begin), chunk_tokens=BLOCK_TOKENS,
            )  # fmt: skip
            self.assertEqual(restored.computed_tokens + restored.loaded_tokens, len(TOKENS))
            self.assertEqual(sum(placed), restored.loaded_tokens)
            self.assertTrue((now[:, :, :, : len(TOKENS)] == right).all())
        self.assertEqual(restored.computed_tokens, 0)

    def test_the_host_when_there_is_no_such_gpu(self):
        with self.assertRaises(ConnectionError):
            self.client.attach("gpu_pages_test", device="cuda", device_number=7)
        with self.assertRaises(ValueError):
            self.client.attach("gpu_pages_test", device="gpu")
        session, variant, chain = self.attach("auto", device_number=7)
        self.assertEqual(session.device, "host")
        self.assertTrue(session.device_reason)
        self.put(session, variant, chain)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
