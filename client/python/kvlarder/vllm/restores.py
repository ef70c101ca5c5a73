"""Stored prefixes that are computed from their head and loaded from their tail at once (LarderScheduler).

kvlarder.RestoreDriver decides what is computed and what is loaded; workers load what it puts on their boards.
A restore begins with `begin`, and is under way until all of its prefix is in its pages (next_step), or it is ended.
Invariants:
  * Its pages are pinned in vLLM's BlockPool until no worker writes to them any more, which for one that was ended can be
    some milliseconds later.
  * While it is under way, vLLM computes of it what next_step granted and nothing else, and begins where the grant begins:
    all tokens before are in the pages, computed or loaded.
Thread-safety: none; vLLM's scheduler calls it from one thread.
"""

import time

import kvlarder
from kvlarder.vllm import profiles

GUESS = kvlarder.ComputeCost(0.01, 1e-4)  # until steps were measured
RATES = {"host": 2e9, "disk": 1e9}  # bytes per second, until loads were measured
TIERS = frozenset((kvlarder.Tier.HOST.value, kvlarder.Tier.DISK.value))
OBSERVED_TOKENS_MIN = 64  # shorter steps say little about prompts
REFUSALS_MAX = 16  # in a row: then vLLM computes the rest
STUCK_S = 10.0  # pages that a dead worker was writing are never free


class Restore:
    __slots__ = ("request", "blocks", "pinned", "granted", "refusals", "ended_at")

    def __init__(self, request, blocks, pinned):
        self.request, self.blocks, self.pinned = request, blocks, pinned
        self.granted = None  # (begin, end) of tokens, of the step that is being scheduled
        self.refusals = 0  # in a row
        self.ended_at = None  # None: it is under way


class Restores:
    def __init__(self, facts, hellos, boards, pool, chunk_tokens, collector, log, profile=None):
        """boards: of each rank (worker.SharedBoards.opened); chunk_tokens: that a step computes of one request at most;
        profile: by default what was learnt of this engine before, and what is learnt is kept then.
        Raises ValueError or RuntimeError if the driver cannot be made."""
        self._block, self._pool = facts.block_tokens, pool
        self._collector, self._log = collector, log
        self._chunk = max(1, chunk_tokens // self._block) * self._block
        names = [f"{tier}{rank}" for rank in range(facts.ranks) for tier in RATES]
        self._engine_id = None if profile else facts.engine_id
        self._observed = set()  # names of channels, and "compute"
        profile = profile or profiles.read(facts.engine_id, names)
        if profile is None:
            channels = [kvlarder.ChannelCost(name + profiles.GUESSED, RATES[name[:4]]) for name in names]
            profile = kvlarder.Profile(model=facts.model, layers=1, compute=GUESS, channels=channels, doubt=0.5)
        self._driver = kvlarder.RestoreDriver(
            profile=profile,
            boards=[board for memory in boards for board in memory],
            ranks=facts.ranks,
            block_tokens=self._block,
            chunk_tokens=self._chunk,
            block_bytes=hellos[0].block_bytes,
        )
        self._restores = {}  # by number: those whose pages are pinned
        self._numbers = {}  # by request: those under way
        self._last = 0
        self._done = []  # (request, blocks) that are restored and that next_step has not returned yet

    def pays(self, tiers, have_blocks):
        """Returns whether the blocks in these tiers, from have_blocks on, should be restored so."""
        return TIERS.issuperset(tiers) and self._driver.pays(tiers, have_blocks)

    def first_tokens(self, computed, tokens, blocks):
        """Returns how many of `tokens` the step computes that admits a request: whole blocks of its prefix."""
        end = min((computed + min(tokens, self._chunk)) // self._block, blocks) * self._block
        return max(end - computed, 0)

    def begin(self, request, digests, pages, tiers, have_blocks, promise):
        """Begins to restore a prefix, of which vLLM has have_blocks or computes them in this step.  Returns False if that
        is not possible; then vLLM computes all of it."""
        try:
            self._driver.begin(self._last + 1, digests, pages, tiers, have_blocks=have_blocks, promise=promise)
        except (RuntimeError, ValueError) as error:
            self._log.warning("a prefix is computed, not loaded: %s", error)
            return False
        self._last += 1
        pinned = pages[have_blocks:]
        self._pool.touch([self._pool.blocks[page] for page in pinned])
        self._restores[self._last] = Restore(request, len(pages), pinned)
        self._numbers[request] = self._last
        return True

    def end(self, request):
        """Its request is preempted or ends, or what is stored of it may not be used any more.  Returns whether its pages are
        free at once; otherwise a worker is writing one."""
        if (number := self._numbers.pop(request, None)) is not None:
            self._restores[number].ended_at = time.monotonic()
            self._driver.end(number)
        self.take_news()
        self._done = [done for done in self._done if done[0] != request]
        return not self.pins(request)

    def pins(self, request):
        return any(restore.request == request for restore in self._restores.values())

    def take_news(self):
        """Lets go of pages that no worker writes to any more."""
        restored, free = self._driver.take_news()
        for number, computed, loaded, seconds in restored:
            restore = self._restores[number]
            if self._numbers.get(restore.request) != number:
                continue  # it was ended meanwhile
            del self._numbers[restore.request]
            restore.ended_at = time.monotonic()
            self._done.append((restore.request, restore.blocks))
            self._collector.add("restores")
            self._collector.add("restored_tokens_computed", computed * self._block)
            self._collector.add("restored_tokens_loaded", loaded * self._block)
            self._collector.observe("restore_seconds", seconds)
        for number in free:
            restore = self._restores.pop(number)
            self._pool.free_blocks(self._pool.blocks[page] for page in reversed(restore.pinned))

    def next_step(self, tokens, decode_tokens):
        """Decides what the next step of at most `tokens` computes.  Returns (restored, granted): requests with the blocks of
        their whole prefix, and requests with the token at which their grant begins."""
        granted = []
        for number, begin, end in self._driver.next_step(tokens=tokens, decode_tokens=decode_tokens):
            restore = self._restores[number]
            if self._numbers.get(restore.request) == number:
                restore.granted = begin, end
                granted.append((restore.request, begin))
        self.take_news()
        restored, self._done = self._done, []
        return restored, granted

    def granted_tokens(self, request, begin, tokens):
        """Returns how many of `tokens` from `begin` on vLLM may compute of a request: all that was granted, or none."""
        number = self._numbers.get(request)
        granted = None if number is None else self._restores[number].granted
        return granted[1] - begin if granted and granted[0] == begin and granted[1] - begin <= tokens else 0

    def step_scheduled(self, scheduled):
        """scheduled: {request: tokens of this step}.  Refuses grants that the step does not have.  Returns requests of which
        so many were refused that they should be ended."""
        stuck = []
        for request, number in self._numbers.items():
            restore = self._restores[number]
            granted, restore.granted = restore.granted, None
            if granted is None:
                continue
            if scheduled.get(request, 0) == granted[1] - granted[0]:
                restore.refusals = 0
                continue
            self._driver.refuse(number)
            restore.refusals += 1
            if restore.refusals > REFUSALS_MAX:
                stuck.append(request)
        return stuck

    def observe_step(self, ranges, decode_tokens, seconds):
        """ranges: (begin, end) of the tokens of prompts that a step computed."""
        if sum(end - begin for begin, end in ranges) >= OBSERVED_TOKENS_MIN:
            self._driver.observe(ranges, decode_tokens=decode_tokens, seconds=seconds)
            self._observed.add("compute")

    def observe_load(self, rank, tier, bytes_, seconds):
        self._driver.observe_load(rank=rank, tier=tier, bytes=bytes_, seconds=seconds)
        self._observed.add(f"{tier.name.lower()}{rank}")

    def learnt(self):
        return self._driver.learnt()

    @property
    def under_way(self):
        """The requests whose restores are under way."""
        return self._numbers.keys()

    @property
    def pinned(self):
        """How many restores have pinned pages."""
        return len(self._restores)

    @property
    def ending(self):
        """Whether pages of restores that are over will be free soon."""
        now = time.monotonic()
        return any(one.ended_at is not None and now - one.ended_at < STUCK_S for one in self._restores.values())

    def close(self):
        if self._engine_id is not None and "compute" in self._observed and len(self._observed) > 1:
            profiles.write(self._engine_id, self._driver.learnt(), self._observed)
        self._engine_id = None
        self._driver.close()
