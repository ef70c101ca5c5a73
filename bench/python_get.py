#!/usr/bin/env python3
"""Compares gets of Python with those of C++, in turn, on one daemon.

python_get.py BUILD [--rounds N]   BUILD: build/release, with larderd, bench_paged_get and the package

python_pages_SHAPE   Session.get_pages of Python into registered pages; floor: PagedCache::Load of C++
python_get_1m        Session.get of Python into numpy arrays; floor: Session::Get of C++
paged_host_SHAPE     PagedCache::Load of C++ on the host device; floor: Session::Get into the same memory

A ratio is the median over rounds of floor / ours, in which both ran in turn; above 1 is better.
"""

import argparse
import mmap
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPES = {"96k": (16, 30, 96 << 10), "32k": (64, 32, 32 << 10), "1m": (64, 1, 1 << 20)}
WARM = 3


class Cpp:
    """bench_paged_get, which answers one request a line."""

    def __init__(self, program, socket_dir, shape, pages):
        command = [program, socket_dir, *map(str, shape), f"/proc/{os.getpid()}/fd/{pages}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{' '.join(command)} has ended")

    def __call__(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Python:
    """The same of the package, on the blocks that C++ has stored."""

    def __init__(self, socket_dir, shape, pages):
        import kvlarder
        import numpy

        blocks, layers, size = shape
        self.session = kvlarder.connect(socket_dir).attach("python")
        content = kvlarder.ContentSpec("bench")
        spec = kvlarder.VariantSpec(dtype="u8", layout="bench/opaque/1", block_tokens=16, layers=layers)
        (self.variant,) = self.session.register([content], [spec])
        digests = kvlarder.chain(self.session.seed(content), range(blocks * 16))
        self.digests, self.numbers = b"".join(digests), numpy.arange(blocks, dtype=numpy.uint32)
        shared = numpy.frombuffer(mmap.mmap(pages, layers * blocks * size), numpy.uint8)
        self.memory = list(shared.reshape(layers, blocks, size))
        self.pages = kvlarder.PageLayout.opaque(
            [layer.ctypes.data for layer in self.memory], page_bytes=size, page_stride=size, pages=blocks, page_tokens=16
        )
        self.gets = [kvlarder.GetBlock(digest, [layer[b] for layer in self.memory]) for b, digest in enumerate(digests)]
        self.ok, self.packed = [kvlarder.BlockStatus.OK] * blocks, bytes([kvlarder.BlockStatus.OK.value]) * blocks

    def __call__(self, what):
        begun = time.perf_counter()
        if what == "paged":
            right = self.session.get_pages(self.variant, self.pages, self.digests, self.numbers) == self.packed
        else:
            right = self.session.get(self.variant, self.gets) == self.ok
        taken = time.perf_counter() - begun
        if not right:
            sys.exit("a block is not there")
        return taken


def compare(rounds, ours, floor):
    pairs = [(ours(), floor()) if i % 2 else (floor(), ours())[::-1] for i in range(rounds + WARM)][WARM:]
    return statistics.median(one for one, _ in pairs), statistics.median(two / one for one, two in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=101)
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    sys.path[:0] = [os.path.join(build, "python"), os.path.join(ROOT, "tests", "client", "python")]
    from larderd import Larderd

    daemon = Larderd(os.path.join(build, "server", "larderd"), "--pool", "1GiB")
    try:
        for name, shape in SHAPES.items():
            size = shape[0] * shape[1] * shape[2]
            pages = os.memfd_create("pages")  # of both, because where memory lies changes how fast it is
            os.ftruncate(pages, size)
            cpp = Cpp(os.path.join(build, "bench", "bench_paged_get"), daemon.socket_dir, shape, pages)
            python = Python(daemon.socket_dir, shape, pages)
            figures = [
                (f"python_pages_{name}", lambda: python("paged"), lambda: cpp("paged")),
                (f"paged_host_{name}", lambda: cpp("paged"), lambda: cpp("get")),
            ]
            if name == "1m":
                figures.append(("python_get_1m", lambda: python("get"), lambda: cpp("get")))
            for figure, ours, floor in figures:
                seconds, ratio = compare(arguments.rounds, ours, floor)
                print(f"{figure:20} {size / seconds / 1e9:7.2f} GB/s  {ratio:.3f} of its floor", flush=True)
            python.session.close()
            cpp.close()
            os.close(pages)
    finally:
        daemon.end()


if __name__ == "__main__":
    main()
