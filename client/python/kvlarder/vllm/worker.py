"""The part of the connector that lives in a worker of vLLM: it moves blocks between the pool and the worker's pages.

vLLM calls it from the thread that runs the model, once or more in each step; threads of C++ move the bytes meanwhile.
Invariants: a job that a step ordered ends exactly once, and is told exactly once, with the bad pages of a load in the
same step.  No exception leaves it in a step.
"""

import mmap
import os
import time

import kvlarder
from kvlarder.vllm import metadata

OK, DUPLICATE, CANCELLED = (
    kvlarder.BlockStatus[name].value for name in ("OK", "DUPLICATE", "CANCELLED")
)
LATE_S = 0.1  # that a load by layer, which ends at its deadline, may be late
CAUSES = {"DEADLINE_EXCEEDED": "loads_late", "UNAVAILABLE": "loads_unserved"}


def variants_of(facts, layout, layers):
    """Returns the VariantSpecs of all shards of an engine."""
    return [
        kvlarder.VariantSpec(
            dtype=facts.dtype,
            layout=layout,
            block_tokens=facts.block_tokens,
            layers=layers,
            rank=shard,
            ranks=facts.shards,
        )
        for shard in range(facts.shards)
    ]


class SharedMemory:
    """Memory, all 0 at first, that a worker shares with its scheduler.  It is gone with the worker, however that ends."""

    NONCE_BYTES = 16  # behind the memory: they tell it from that of a worker of equal numbers in another container

    def __init__(self, name, size):
        self._fd = os.memfd_create(f"larder-{name}", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size + self.NONCE_BYTES)
        self.memory = mmap.mmap(self._fd, size + self.NONCE_BYTES)
        self.memory[size:] = os.urandom(self.NONCE_BYTES)
        self.address = f"/proc/{os.getpid()}/fd/{self._fd}", size, self.memory[size:]

    def close(self):
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    @classmethod
    def opened(cls, address):
        """Returns the memory of another process, or None if this user may not open it, or it is not on this machine."""
        path, size, nonce = address
        try:
            with open(path, "r+b") as file:
                memory = mmap.mmap(file.fileno(), size + cls.NONCE_BYTES)
            return memory if memory[size:] == nonce else None
        except (OSError, ValueError):
            return None


class SharedFence(SharedMemory):
    """The memory of a kvlarder.PageFence."""

    def __init__(self):
        super().__init__("page-fence", mmap.PAGESIZE)

    @classmethod
    def opened(cls, address):
        memory = super().opened(address)
        return None if memory is None else kvlarder.PageFence(memory)


class SharedBoards(SharedMemory):
    """The boards of a kvlarder.RestoreDriver that one worker serves: for HOST, and for DISK."""

    BOARDS = 2

    def __init__(self):
        super().__init__("claim-boards", self.BOARDS * kvlarder.CLAIM_BOARD_BYTES)

    @classmethod
    def opened(cls, address):
        memory = super().opened(address)
        return None if memory is None else cls.boards_of(memory)

    @classmethod
    def boards_of(cls, memory):
        size = kvlarder.CLAIM_BOARD_BYTES
        return [memoryview(memory)[i * size : (i + 1) * size] for i in range(cls.BOARDS)]


class LayeredLoad:
    """A load of which the forward of its step awaits one layer after the other."""

    __slots__ = ("job", "until", "layers", "awaited", "waited_s", "failed")

    def __init__(self, job, until, layers):
        """job: of the cache; until: when to give it up; layers: of the engine."""
        self.job, self.until, self.layers = job, until, layers
        self.awaited = 0  # layers
        self.waited_s, self.failed = 0.0, False

    @property
    def good(self):
        """Whether the forward has computed with what was loaded, and with nothing else."""
        return not self.failed and self.awaited == self.layers


class WorkerSide:
    def __init__(self, config, facts, rank, pages, collector, log, restores=False):
        """pages: what pages.describe returned; log: has info() and warning(); restores: vLLM's scheduler is
        LarderScheduler."""
        self._config, self._facts, self._log = config, facts, log
        self._collector, self._pages, self._rank = collector, pages, rank
        self._fence = SharedFence()
        self._requests = {}  # load job: (request, its pages, whether the forward awaits it)
        self._jobs = {}  # job of the scheduler by job of the cache, of jobs that have not ended
        self._stores = []  # ordered by this step, not begun yet
        self._layered = None  # LayeredLoad of this step
        self._distrusted = set()  # jobs of the cache, of loads by layer without which the forward computed
        self._bad = set()
        self._ended = []
        self._state = None
        self._cache = kvlarder.EngineCache(
            engine_id=facts.engine_id,
            role="worker",
            rank=rank,
            variants=[variants_of(facts, pages.name, pages.layout.layers)[facts.shard_of(rank)]],
            pages=pages.layout,
            socket_dir=config.socket_dir,
            tenant=config.tenant,
            loaders=config.loaders,
            storers=config.storers,
            load_blocks=config.load_queue_blocks,
            store_blocks=config.store_queue_blocks,
            step_blocks=config.step_blocks,
            copy_threads=config.copy_threads,
            page_fence=self._fence.memory,
            link_bytes_per_s=config.link_bytes_per_s(rank),
        )
        self._boards = SharedBoards() if restores else None
        if restores:
            self._cache.serve_claims(SharedBoards.boards_of(self._boards.memory), threads=config.loaders)

    def hello(self):
        return metadata.Hello(
            self._rank, self._pages.name, self._pages.layout.layers, self._pages.block_bytes, self._fence.address,
            None if self._boards is None else self._boards.address,
        )  # fmt: skip

    def begin_step(self, step):
        """Before the forward: begins the loads of a step, and ends those that are not wanted any more."""
        for job in step.cancels:
            for own, known in self._jobs.items():
                if known == job:
                    self._cache.cancel(own)
        for load in step.loads:
            own = self._cache.begin_load(
                load.digests, load.pages, promise=load.promise, deadline_s=load.deadline_s, by_layer=load.by_layer
            )
            self._jobs[own] = load.job
            self._requests[own] = (load.request, memoryview(load.pages).cast("I"), load.by_layer)
            if load.by_layer:
                until = time.monotonic() + load.deadline_s + LATE_S
                self._layered = LayeredLoad(own, until, self._pages.layout.layers)
        self._stores += step.stores if self._facts.writes(self._rank) else []

    def wait_for_layer(self, name):
        """In the forward, before the attention of a layer: its load of this step, if there is one, has come or has failed."""
        layered = self._layered
        if layered is None or layered.failed:
            return
        began, layers = time.monotonic(), self._pages.layer_of.get(name, layered.layers - 1) + 1
        if self._cache.await_layers(layered.job, layers, timeout_s=max(0.0, layered.until - began)):
            layered.awaited = max(layered.awaited, layers)
        else:
            layered.failed = True
        layered.waited_s += time.monotonic() - began

    def end_forward(self):
        """After the forward: the blocks of this step are computed, so that they can be stored."""
        stores, self._stores = self._stores, []
        good = self._end_layers()
        for store in stores:
            own = self._cache.begin_store(
                content=kvlarder.ContentSpec(*store.content),
                parent=store.parent,
                digests=store.digests,
                tokens=store.tokens,
                pages=store.pages,
                deadline_s=store.deadline_s if good else 0.0,  # 0: it ends before it has read a page
                order=store.order,
            )
            self._jobs[own] = store.job

    def take_loaded(self):
        """Returns the requests whose loads have ended, except those that the forward awaited: vLLM has never marked them as
        loading.  take_bad_pages has the pages that are not loaded."""
        self.end_forward()  # stores of a step without a forward must begin, too
        loaded = set()
        for result in self._cache.poll():
            job = self._jobs.pop(result.job)
            good = result.status.count(OK) + (0 if result.load else result.status.count(DUPLICATE))
            if result.job in self._distrusted:
                self._distrusted.remove(result.job)
                good = 0
            self._ended.append(metadata.Ended(job, len(result.status), good, result.moved_s, self._rank))
            if result.load:
                request, pages, awaited = self._requests.pop(result.job)
                if not awaited:
                    loaded.add(request)
                self._bad.update(page for page, status in zip(pages, result.status) if status != OK or good == 0)
            self._measure(result, good)
        self._say_state()
        return loaded

    def _end_layers(self):
        """After this nothing writes to the pages of the step's layered load any more.  Returns False if blocks that this step has
        computed may be wrong because of it."""
        layered, self._layered = self._layered, None
        if layered is None:
            return True
        self._cache.cancel(layered.job, wait=True)
        self._collector.observe("layers_seconds", layered.waited_s)
        if layered.good:
            self._collector.add("loads_by_layer")
        else:
            self._distrusted.add(layered.job)
            if not layered.failed:
                self._log.warning("this vLLM does not await layers before it computes with them: set layer_by_layer to false")
        return layered.good

    def take_bad_pages(self):
        bad, self._bad = self._bad, set()
        return bad

    def take_report(self):
        """Returns what has ended for the scheduler, or None."""
        if not self._ended:
            return None
        ended, self._ended = self._ended, []
        return metadata.Report(ended)

    def take_counts(self):
        return self._collector.take(self._totals)

    def close(self):
        self._cache.close()
        self._fence.close()
        if self._boards is not None:
            self._boards.close()

    def _totals(self):
        totals = self._cache.stats()
        return {**totals, "bytes_loaded": totals["claims_loaded"] * self._pages.block_bytes}

    def _measure(self, result, good):
        if result.load or good:
            self._collector.observe("load_seconds" if result.load else "store_seconds", result.moved_s)
        moved = result.status.count(OK) * self._pages.block_bytes
        self._collector.add("bytes_loaded" if result.load else "bytes_stored", moved)
        if result.load and good < len(result.status):
            cancelled = not result.cause and good + result.status.count(CANCELLED) == len(result.status)
            self._collector.add("loads_cancelled" if cancelled else CAUSES.get(result.cause, "loads_failed_otherwise"))

    def _say_state(self):
        state = self._cache.state
        if state != self._state:
            self._state = state
            if state:
                self._log.warning("Larder is not used by rank %d now: %s", self._rank, state)
            else:
                self._log.info("Larder is used by rank %d", self._rank)
