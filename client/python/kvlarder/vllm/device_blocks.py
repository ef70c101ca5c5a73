"""Which blocks vLLM has in its own memory, and what the daemon asks to do with them.

The blocks of vLLM's prefix cache are told to the daemon, for Lookup, routers and WatchEvents.  Directives of the daemon pin
them, a touch with a deadline, end pins, or drop blocks; a thread carries them out at once, also while vLLM has no requests
and takes no steps.

vLLM's own KV events do not say what is in the prefix cache: a hit tells of a block once more, and a block of which there are
two copies is told to be removed with the first of them.  So BlockPool is asked for its pages.
Invariants (check_invariants):
  * A page is named here while its block has a hash in vLLM's BlockPool and its request can be named.
  * A block is pinned in the BlockPool once, however many owners pin it.
Thread-safety: vLLM's scheduler calls from one thread; directives run on another.  `lock` is held while vLLM looks at its
blocks in order to take them, while it changes them (guard), and while a part of a directive is carried out.  Between a hit
and the allocation that uses it a directive may drop the block: the request has its KV, and others do not find it any more.
"""

import collections
import contextlib
import threading
import time

import kvlarder

OK, MISSING, KEPT, FULL, CANCELLED, UNSUPPORTED = (
    kvlarder.BlockStatus[name] for name in ("OK", "MISSING", "KEPT", "FULL", "CANCELLED", "UNSUPPORTED")
)
POOL_METHODS = ("cache_full_blocks", "evict_blocks", "free_blocks", "get_new_blocks", "reset_prefix_cache", "touch")
MANAGER_METHODS = (
    "allocate_slots", "cache_blocks", "evict_blocks", "free", "get_computed_blocks", "get_computed_blocks_for_connector", "take_events",
)  # fmt: skip
LOOK_EVERY_S = 0.5  # how often the thread looks for pins whose time is over
FLUSH_S = 1.0  # one try, of the 4 s that a directive has for its answer
AT_ONCE = 256  # blocks of a directive, and blocks that are named late in one step, before vLLM goes on
REQUESTS_AT_ONCE = 32  # requests without names that one step asks for again
OWNERS_MAX = 64  # of pins of one block


def fits(pool):
    """Returns whether a BlockPool has what DeviceBlocks uses."""
    return all(hasattr(pool, name) for name in POOL_METHODS)


def guard(what, names, lock):
    """From now on these methods of an object hold the lock."""

    def guarded(method):
        def call(*args, **named):
            with lock:
                return method(*args, **named)

        return call

    for name in names:
        if hasattr(what, name):
            setattr(what, name, guarded(getattr(what, name)))


class Pin:
    """What owners have pinned of one block, which keeps one of its pages.  ends: {(owner, variant): Unix time when the owner's pin ends}."""

    __slots__ = ("page", "ends")

    def __init__(self, page):
        self.page, self.ends = page, {}


class DeviceBlocks:
    def __init__(self, pool, cache, names, pins_max, log, clock=time.time):
        """pool: vLLM's BlockPool, which fits; names: has request_of(request of vLLM), which returns the connector's request, or
        None if its blocks have no names, and chain_of(that, blocks), which returns the TokenChain with the first blocks, None
        if it is not known yet, or False if it has none; pins_max: blocks; clock: of Unix time."""
        self.lock = threading.RLock()
        self._pool, self._cache, self._names = pool, cache, names
        self._pins_max, self._log, self._clock = pins_max, log, clock
        self._directives = 0  # carried out, and not counted yet
        self._digests = {}  # by page
        self._unnamed = {}  # {request: {number of its block: page}}
        self._waiting = {}  # by page: its request in _unnamed, and its number there
        self._pages = collections.defaultdict(list)  # by digest
        self._pins, self._next_end = {}, None  # by digest; when the first one ends, or None
        self._resetting = self._broken = False
        self._hook(pool)
        guard(pool, POOL_METHODS, self.lock)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="larder-directives", daemon=True)
        self._thread.start()

    def close(self):
        self._ended.set()
        self._thread.join()

    # ---- what vLLM does, in its scheduler's thread

    def guard(self, kv_cache_manager):
        """Directives are carried out between two calls of these methods, which look at blocks before they take them."""
        guard(kv_cache_manager, MANAGER_METHODS, self.lock)

    def begin_step(self):
        """Names blocks whose names were not known when they were computed."""
        if not self._unnamed:
            return
        with self.lock, self._barrier():
            named = 0
            for request in list(self._unnamed)[:REQUESTS_AT_ONCE]:
                if named >= AT_ONCE:
                    break
                if self._names.chain_of(request, 0) is None:
                    continue
                pages = self._unnamed.pop(request)
                named += len(pages)
                for page in pages.values():
                    del self._waiting[page]
                self._name(request, pages)

    def take_count(self):
        """Returns how many directives were carried out since the last call."""
        with self.lock:
            count, self._directives = self._directives, 0
        return count

    @property
    def pinned(self):
        """The pages that directives have pinned."""
        with self.lock:
            return [pin.page for pin in self._pins.values()]

    @contextlib.contextmanager
    def resetting(self):
        """While vLLM's prefix cache is being emptied, nothing is pinned."""
        self._resetting = True
        try:
            yield
        finally:
            self._resetting = False

    def end_pins(self):
        with self.lock:
            for digest in list(self._pins):
                self._let_go(digest)

    def forget_unnamed(self):
        """What these blocks mean will not be known: KV of earlier weights may be among them."""
        with self.lock:
            self._unnamed.clear()
            self._waiting.clear()

    def __len__(self):
        return len(self._digests)

    def check_invariants(self):
        """For tests."""
        with self.lock:
            hashed = {block.block_id for block in self._pool.blocks if block.block_hash is not None}
            assert self._digests.keys() <= hashed and self._waiting.keys() <= hashed
            assert sorted(self._waiting) == sorted(page for pages in self._unnamed.values() for page in pages.values())
            assert sorted(page for pages in self._pages.values() for page in pages) == sorted(self._digests)
            assert all(pin.ends and self._digests[pin.page] == digest for digest, pin in self._pins.items())

    def _hook(self, pool):
        cache, take, evict, reset = pool.cache_full_blocks, pool.get_new_blocks, pool.evict_blocks, pool.reset_prefix_cache

        def cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *more, **named):
            cache(request, blocks, num_cached_blocks, num_full_blocks, *more, **named)
            with self._barrier():
                if (ours := self._names.request_of(request)) is not None:
                    self._name(ours, {number: blocks[number].block_id for number in range(num_cached_blocks, num_full_blocks)})

        def get_new_blocks(*args, **named):
            blocks = take(*args, **named)
            with self._barrier():
                self._gone([block.block_id for block in blocks])
            return blocks

        def evict_blocks(block_ids):
            evict(block_ids)
            with self._barrier():
                self._gone(block_ids)

        def reset_prefix_cache():
            if not reset():
                return False
            with self._barrier():
                self._clear()
            return True

        pool.cache_full_blocks, pool.get_new_blocks = cache_full_blocks, get_new_blocks
        pool.evict_blocks, pool.reset_prefix_cache = evict_blocks, reset_prefix_cache

    @contextlib.contextmanager
    def _barrier(self):
        """No error of this class reaches vLLM: after one, the daemon is not told any more what vLLM has.  The caller holds the
        lock."""
        try:
            yield
        except Exception as error:
            if not self._broken:
                self._log.warning(
                    "the daemon is not told any more which blocks vLLM itself has: %s: %s", type(error).__name__, error
                )
            self._broken = True
            self._clear()
            with contextlib.suppress(Exception):
                self.end_pins()

    def _clear(self):
        for what in (self._digests, self._unnamed, self._waiting, self._pages):
            what.clear()
        with contextlib.suppress(ValueError):  # it is closed
            self._cache.clear_device_blocks()

    def _name(self, request, pages):
        """pages: {number of a block of a request: page}."""
        pages = {number: page for number, page in pages.items() if self._is_new(page)}
        if not pages or (chain := self._names.chain_of(request, max(pages) + 1)) is False:
            return
        if chain is None:
            self._unnamed.setdefault(request, {}).update(pages)
            self._waiting.update((page, (request, number)) for number, page in pages.items())
            return
        for first, last in _ranges(pages):
            digests = chain.digests(first, last)
            for number in range(first, last):
                digest = digests[16 * (number - first) :][:16]
                self._digests[pages[number]] = digest
                self._pages[digest].append(pages[number])
            self._cache.add_device_blocks(chain.parent(first), digests, chain.tokens(first, last))

    def _is_new(self, page):
        known = page in self._digests or page in self._waiting
        return not self._broken and not known and self._pool.blocks[page].block_hash is not None

    def _gone(self, pages):
        gone = []
        for page in pages:
            if (waiting := self._waiting.pop(page, None)) is not None:
                request, number = waiting
                del self._unnamed[request][number]
                if not self._unnamed[request]:
                    del self._unnamed[request]
            if (digest := self._digests.pop(page, None)) is None:
                continue
            gone.append(digest)
            self._pages[digest].remove(page)
            if not self._pages[digest]:
                del self._pages[digest]
            if digest in self._pins and self._pins[digest].page == page:
                self._let_go(digest)
        if gone:
            self._cache.remove_device_blocks(b"".join(gone))

    # ---- directives, in their thread

    def _serve(self):
        while not self._ended.is_set():
            try:
                self._serve_once()
            except Exception as error:
                if self._ended.is_set():
                    return
                self._log.warning("a directive for blocks of vLLM was not carried out: %s: %s", type(error).__name__, error)
                self._ended.wait(LOOK_EVERY_S)

    def _serve_once(self):
        directive = self._cache.take_directive(timeout_s=LOOK_EVERY_S)
        with self.lock:
            self._end_late_pins()
        if directive is None:
            return
        status = self._obey(directive)
        if directive.kind == kvlarder.DirectiveKind.DROP:  # what was dropped is reported before the answer
            while directive.waits and not self._cache.flush_device_blocks(timeout_s=FLUSH_S):
                pass
        if not directive.done(status) and directive.kind == kvlarder.DirectiveKind.PIN:
            self._take_back(directive, status)

    def _obey(self, directive):
        """Returns the status of each block; [] for all pins of an owner."""
        digests = [bytes(digest) for digest in directive.digests]
        status = []
        for first in range(0, max(1, len(digests)), AT_ONCE):
            with self.lock:
                if not directive.waits:  # the daemon has given it up
                    return status + [CANCELLED] * (max(1, len(digests)) - len(status))
                status += self._obey_some(directive, digests[first : first + AT_ONCE], not digests)
        with self.lock:
            self._directives += 1
        return status

    def _obey_some(self, directive, digests, all_of_owner):
        pinner = directive.owner, directive.variant
        if directive.kind == kvlarder.DirectiveKind.PIN:
            return [self._pin(digest, pinner, directive.ends_unix_s) for digest in digests]
        if directive.kind == kvlarder.DirectiveKind.UNPIN and all_of_owner:
            return self._unpin_all(directive.owner)
        if directive.kind == kvlarder.DirectiveKind.UNPIN:
            return [self._unpin(digest, pinner) for digest in digests]
        if directive.kind == kvlarder.DirectiveKind.DROP:
            return [self._drop(digest, directive.pinned) for digest in digests]
        return [UNSUPPORTED] * max(1, len(digests))

    def _take_back(self, directive, status):
        """The daemon has said that these blocks are not pinned, because the answer came too late."""
        with self.lock:
            for digest, said in zip(directive.digests, status):
                if said == OK and bytes(digest) in self._pages:
                    self._unpin(bytes(digest), (directive.owner, directive.variant))

    def _pin(self, digest, pinner, ends):
        if digest not in self._pages:
            return MISSING
        pin = self._pins.get(digest)
        if self._resetting or (pin is None and len(self._pins) >= self._pins_max):
            return FULL
        if pin is None:
            page = self._pages[digest][0]
            self._pool.touch([self._pool.blocks[page]])
            pin = self._pins[digest] = Pin(page)
        if pinner not in pin.ends and len(pin.ends) >= OWNERS_MAX:
            return FULL
        pin.ends[pinner] = ends  # the new one holds, also if it is earlier
        self._next_end = ends if self._next_end is None else min(ends, self._next_end)
        return OK

    def _unpin(self, digest, pinner):
        if digest not in self._pages:
            return MISSING
        if digest in self._pins:
            self._pins[digest].ends.pop(pinner, None)
            self._let_go_unless_pinned(digest)
        return OK

    def _unpin_all(self, owner):
        for digest, pin in list(self._pins.items()):
            pin.ends = {pinner: ends for pinner, ends in pin.ends.items() if pinner[0] != owner}
            self._let_go_unless_pinned(digest)
        return []

    def _drop(self, digest, pinned_too):
        if digest not in self._pages:
            return MISSING
        pages, pin = self._pages[digest], self._pins.get(digest)
        if pin is not None and not pinned_too:
            return KEPT
        if any(self._pool.blocks[page].ref_cnt > (pin is not None and page == pin.page) for page in pages):
            return KEPT
        if pin is not None:
            self._let_go(digest)
        self._pool.evict_blocks(set(pages))
        return OK

    def _end_late_pins(self):
        now = self._clock()
        if self._next_end is None or now < self._next_end:
            return
        for digest, pin in list(self._pins.items()):
            pin.ends = {pinner: ends for pinner, ends in pin.ends.items() if ends > now}
            self._let_go_unless_pinned(digest)
        self._next_end = min((ends for pin in self._pins.values() for ends in pin.ends.values()), default=None)

    def _let_go_unless_pinned(self, digest):
        if not self._pins[digest].ends:
            self._let_go(digest)

    def _let_go(self, digest):
        self._pool.free_blocks([self._pool.blocks[self._pins.pop(digest).page]])


def _ranges(numbers):
    """Yields (first, last) of consecutive numbers."""
    first = last = None
    for number in sorted(numbers):
        if number != last:
            if first is not None:
                yield first, last
            first = number
        last = number + 1
    if first is not None:
        yield first, last
