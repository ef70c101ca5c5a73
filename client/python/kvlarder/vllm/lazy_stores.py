"""Blocks that vLLM alone has (the option store_policy "lazy"), and which of them are stored next: those that it reuses soon.

vLLM takes free blocks from the head of a queue.  Of the blocks in a window at its head, those are stored that are not
stored yet.  The window has as many blocks as vLLM takes in one step at most, and in addition what it takes while stores are
under way, whose blocks are pinned and so not in the queue (lmcache, section 4.3, "Dynamic Offloading": the start pointer is
the head, the end pointer the end of the window, and the current pointer the first block that is not stored).  vLLM need not
wait for a store: a block that it takes earlier is lost, and counted, and stores leave it free blocks for its next step.

Invariant: a block that is kept here holds the KV of its entry, because it is dropped when vLLM hands it out again.
Thread-safety: none; vLLM's scheduler calls it from one thread.
"""

import collections
import math
import typing

LEAST = 8  # blocks of a window
SPARE = 2.0  # of what is taken while stores are under way
FADES = 0.995  # in each step, of the greatest that was measured
WEIGHT = 0.02  # of one step, in means


class Entry(typing.NamedTuple):
    content: typing.Any
    parent: bytes
    digest: bytes
    tokens: bytes


class Run(typing.NamedTuple):
    """Consecutive blocks of one chain."""

    content: typing.Any
    parent: bytes
    digests: bytes
    tokens: bytes
    pages: list


def fits(pool):
    """Returns whether a BlockPool has what LazyStores uses."""
    queue = getattr(pool, "free_block_queue", None)
    return hasattr(pool, "get_new_blocks") and all(hasattr(queue, name) for name in ("fake_free_list_head", "remove", "prepend_n"))


class LazyStores:
    def __init__(self, pool, collector):
        """pool: vLLM's BlockPool, which fits."""
        self._pool, self._collector = pool, collector
        self._entries = {}  # by page
        self._pinned, self._used = set(), set()  # pages of stores under way; those of them that a request has used meanwhile
        self._taken = self._most = 0  # blocks that vLLM took since the last step, and in one step at most, which fades
        self._expected = 0  # blocks that vLLM may take at once in its next step, for a load
        self._mean, self._store_steps = 0.0, 1.0  # blocks taken in a step; steps that a store takes
        self._steps = 0
        take = pool.get_new_blocks

        def get_new_blocks(count):
            blocks = take(count)
            self._taken += len(blocks)
            lost = sum(self._entries.pop(block.block_id, None) is not None for block in blocks)
            if lost:
                self._collector.add("blocks_reused_unstored", lost)
            return blocks

        pool.get_new_blocks = get_new_blocks

    def keep(self, page, entry):
        """A block that a request has computed, or computes in this step."""
        self._entries[page] = entry

    def expect(self, blocks):
        """vLLM may take so many blocks for a load in its next step."""
        self._expected = max(self._expected, blocks)

    def begin_step(self):
        """After vLLM has scheduled a step."""
        self._most = max(self._taken, FADES * self._most)
        self._mean += WEIGHT * (self._taken - self._mean)
        self._taken = 0
        self._steps += 1
        self._used.update(page for page in self._pinned if self._pool.blocks[page].ref_cnt > 1)

    @property
    def step(self):
        """The number of this step, for `ended`."""
        return self._steps

    def ended(self, step):
        """A store that was ordered in this step has ended."""
        self._store_steps += WEIGHT * (self._steps - step - self._store_steps)

    @property
    def window(self):
        return max(LEAST, math.ceil(max(self._most, self._expected) + SPARE * self._mean * self._store_steps))

    def due(self, most):
        """Returns the Runs of what is stored now, at most so many blocks, and so few that vLLM has free ones for its next
        step.  They are not kept here any more."""
        most = min(most, self._pool.get_num_free_blocks() - math.ceil(self._most))
        found, block = {}, self._pool.free_block_queue.fake_free_list_head
        for _ in range(self.window):
            block = block.next_free_block
            if block is None or len(found) >= most:
                break
            if (entry := self._entries.pop(block.block_id, None)) is not None:
                found[block.block_id] = entry
        self._expected = 0
        due = runs(found)
        self._pinned.update(page for run in due for page in run.pages)
        return due

    def release(self, pages):
        """Stores have read blocks, which were pinned.  Those that no request has used meanwhile are reused next, as before;
        the others lie where vLLM puts what was used last."""
        blocks = [self._pool.blocks[page] for page in pages]
        self._pool.free_blocks(blocks)
        unused = [block for block in blocks if block.ref_cnt == 0 and block.block_id not in self._used]
        self._pinned.difference_update(pages)
        self._used.difference_update(pages)
        for block in unused:
            self._pool.free_block_queue.remove(block)
        self._pool.free_block_queue.prepend_n(unused)

    def forget(self):
        self._entries.clear()

    def __len__(self):
        return len(self._entries)


def runs(entries):
    """Returns entries by page as Runs, each as long as possible, without blocks that are there twice."""
    blocks = {}
    for page, entry in entries.items():
        blocks.setdefault((entry.content, entry.digest), (page, entry))
    children = collections.defaultdict(list)
    for page, entry in blocks.values():
        children[entry.content, entry.parent].append((page, entry))
    begins = [one for one in blocks.values() if (one[1].content, one[1].parent) not in blocks]
    found = []
    while begins:
        chain = [begins.pop()]
        while following := children.get((chain[-1][1].content, chain[-1][1].digest)):
            chain.append(following[0])
            begins += following[1:]
        first = chain[0][1]
        found.append(
            Run(
                first.content,
                first.parent,
                b"".join(entry.digest for _, entry in chain),
                b"".join(entry.tokens for _, entry in chain),
                [page for page, _ in chain],
            )
        )
    return found
