#!/usr/bin/env python3
"""Reports what ptxas printed about each kernel: registers, spills, and how many warps a multiprocessor can hold.

    kernel_report.py FATBIN.log THREADS_PER_BLOCK ARCH...

Exits with 1 if a kernel spills, uses a stack, does not fit at all, or is missing for one of ARCH (sm_80, ...).
Occupancy follows the CUDA C++ Programming Guide, "Compute Capabilities": registers are allocated per warp, in units of
256, from the 65,536 of a multiprocessor; shared memory is not used.
"""
import re
import sys

REGISTERS, REGISTER_UNIT, WARP = 65536, 256, 32
# Maximum warps and blocks of a multiprocessor.
LIMITS = {"sm_80": (64, 32), "sm_90": (64, 32)}


def kernels(log):
    """Yields (name, arch, registers, stack bytes, spilled bytes)."""
    name = arch = None
    stack = spilled = 0
    for line in log:
        if found := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            name, arch = found.groups()
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spilled = int(found[1]), int(found[2]) + int(found[3])
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            yield name, arch, int(found[1]), stack, spilled
            name = None


def occupancy(registers, threads, arch):
    """Returns the share of a multiprocessor's warps that can be resident, and the number of its blocks."""
    warps_max, blocks_max = LIMITS[arch]
    warps = -(-threads // WARP)
    per_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    blocks = min(REGISTERS // per_warp // warps, warps_max // warps, blocks_max)
    return blocks * warps / warps_max, blocks


def main():
    path, threads, wanted = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with open(path, encoding="utf-8") as log:
        found = sorted(kernels(log), key=lambda kernel: (kernel[1], kernel[0]))
    names = {kernel[0] for kernel in found}
    wrong = [f"{name}: not compiled for {arch}" for arch in wanted for name in sorted(names)
             if (name, arch) not in {kernel[:2] for kernel in found}]
    wrong += [] if names else [f"{path}: contains no kernel"]
    wrong += [f"{arch}: the limits of its multiprocessors are not known; add them to LIMITS" for arch in wanted if arch not in LIMITS]
    found = [kernel for kernel in found if kernel[1] in LIMITS]
    print(f"blocks of {threads} threads\n{'kernel':24} {'arch':6} {'registers':>9} {'spills':>6} {'stack':>5} "
          f"{'occupancy':>9} {'blocks':>6}")
    for name, arch, registers, stack, spilled in found:
        share, blocks = occupancy(registers, threads, arch)
        print(f"{name:24} {arch:6} {registers:9} {spilled:6} {stack:5} {share:9.0%} {blocks:6}")
        if spilled or stack:
            wrong.append(f"{name} for {arch}: {spilled} bytes spilled, {stack} bytes of stack")
        if blocks == 0:
            wrong.append(f"{name} for {arch}: a block does not fit")
    for line in wrong:
        print(f"kernel_report: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
