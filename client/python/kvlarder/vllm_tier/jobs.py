"""Moves rows of vLLM's primary tier to the daemon and back.

vLLM's scheduler hands over jobs and takes their results; both cost it microseconds, whatever the daemon does.  A thread names
the blocks of each job and gives them to an EngineCache, whose threads of C++ copy between the rows and the pool.  That the
names are made here, and not by the scheduler's thread, is why there is a thread of Python at all.

Invariants: a job that was submitted is answered exactly once, at the latest soon after its timeout, by finished() or, after
close(), by the next finished().  Nothing touches the rows of a job that was answered.
Thread-safety: submit, finished, drain and close from one thread, which is vLLM's scheduler's; storing and failed from any.
"""

import collections
import dataclasses
import queue
import threading
import time

import kvlarder

POLL_S = 0.001  # between two looks at the jobs that are being moved
CANCEL, CLOSE = object(), object()  # what the mover is told beside jobs
STORED = frozenset(kvlarder.BlockStatus[name].value for name in ("OK", "DUPLICATE"))
OK = kvlarder.BlockStatus.OK.value


@dataclasses.dataclass(frozen=True)
class Done:
    """A job that has ended.  moved, failed: its keys; the rows of failed loads have undefined content."""

    job: int
    loads: bool
    moved: list
    failed: list
    seconds: float


@dataclasses.dataclass
class _Job:
    job: int
    loads: bool
    keys: list
    rows: list
    begun: float
    parts: int = 0  # jobs of the EngineCache that have not ended
    moved: list = dataclasses.field(default_factory=list)
    failed: list = dataclasses.field(default_factory=list)

    def done(self):
        return Done(self.job, self.loads, self.moved, self.failed, time.monotonic() - self.begun)

    def fail(self):
        """Returns the result of a job of which nothing was moved, or is known to have been."""
        known = set(self.moved)
        self.failed = [key for key in self.keys if key not in known]
        return self.done()


class TierJobs:
    def __init__(self, cache, names, *, load_timeout_s, store_timeout_s, load_blocks_max, store_blocks_max, log=None):
        """cache: an EngineCache of the primary tier's rows, which the jobs own from now on.  log: called with a text and an
        unexpected exception."""
        self._cache, self._names, self._log = cache, names, log or (lambda text, error: None)
        self._timeouts = {True: load_timeout_s, False: store_timeout_s}  # by `loads`
        self._room = {True: load_blocks_max, False: store_blocks_max}
        self._jobs, self._storing = 0, collections.Counter()  # submitted and not yet answered
        self._inbox, self._outbox = queue.SimpleQueue(), queue.SimpleQueue()
        self._closed = self._draining = False
        self.dropped = 0  # blocks that did not fit into a queue
        self.failed = {True: 0, False: 0}  # by `loads`: blocks that were not moved for another reason
        self._parts = {}  # of the mover alone: (job, its keys) of each job of the EngineCache
        self._mover = threading.Thread(target=self._run, name="larder-tier-jobs", daemon=True)
        self._mover.start()

    # ---- vLLM's scheduler

    def submit(self, job, keys, rows, loads):
        """Begins to move blocks: from Larder into rows if it loads, otherwise from rows, which are the job's until it ends."""
        keys = list(keys)
        one = _Job(job, loads, keys, rows, time.monotonic())
        self._jobs += 1
        self._room[loads] -= len(keys)
        if not loads:
            self._storing.update(keys)
        if self._closed or self._room[loads] < 0:
            self.dropped += len(keys)
            self._outbox.put(one.fail())
        else:
            self._inbox.put(one)

    def finished(self):
        """Returns the Done of each job that has ended and that no earlier call returned."""
        ended = []
        while not self._outbox.empty():
            done = self._outbox.get()
            ended.append(done)
            self._jobs -= 1
            self._room[done.loads] += len(done.moved) + len(done.failed)
            if not done.loads:
                self._forget(done.moved)
                self._forget(done.failed)
        return ended

    def _forget(self, keys):
        for key in keys:
            self._storing[key] -= 1
            if not self._storing[key]:
                del self._storing[key]

    def storing(self, key):
        """Returns whether a store of this key has not been answered yet."""
        return key in self._storing

    @property
    def under_way(self):
        """How many jobs have not been answered; for tests."""
        return self._jobs

    def drain(self):
        """Ends every job soon, whatever the daemon does; finished() returns them then.  Waits for blocks that are being copied.

        What was not moved has failed.  That harms nothing: a store is committed as a whole or not at all, and vLLM does not read the
        rows of failed loads.
        """
        self._draining = True
        self._inbox.put(CANCEL)
        while self._outbox.qsize() < self._jobs:
            time.sleep(POLL_S)
        self._draining = False

    def close(self):
        """Ends all jobs.  When it returns, nothing touches rows any more."""
        if not self._closed:
            self._closed = True
            self._inbox.put(CLOSE)
            self._mover.join()

    # ---- the mover's thread

    def _run(self):
        going = True
        while going:
            try:
                going = self._turn()
            except Exception as error:  # the jobs that are under way are answered by a later turn
                self._log("jobs could not be collected", error)
        self._cache.close()  # waits until nothing touches rows any more
        for job in {id(job): job for job, _ in self._parts.values()}.values():
            self._answer(job.fail())
        while not self._inbox.empty():
            if isinstance(job := self._inbox.get(), _Job):
                self._answer(job.fail())

    def _turn(self):
        """Returns whether there will be more."""
        try:
            job = self._inbox.get(timeout=POLL_S if self._parts else None)
        except queue.Empty:
            self._collect()
            return True
        if job is CLOSE:
            return False
        if job is CANCEL:
            self._cancel_all()
        elif self._draining:
            self._answer(job.fail())
        else:
            self._try(job)
        if self._parts:
            self._collect()
        return True

    def _try(self, job):
        try:
            self._begin(job)
        except Exception as error:  # a job is answered whatever happens
            self._log("a job could not begin", error)
            self._give_up(job)

    def _begin(self, job):
        names = self._names.of(job.keys)
        if names is None or not names:  # no daemon has ever answered, or there is nothing to do
            self._answer(job.fail())
            return
        timeout_s = self._timeouts[job.loads]
        if job.loads:
            digests = b"".join(digest for digest, _, _ in names)
            self._add(job, job.keys, self._cache.begin_load(digests, job.rows, deadline_s=timeout_s))
            return
        part = self._cache.begin_store(
            content=self._names.content,
            parent=names[0][1],
            digests=b"".join(digest for digest, _, _ in names),
            tokens=[token for _, _, tokens in names for token in tokens],
            pages=job.rows,
            deadline_s=timeout_s,
            chained=False,
        )
        self._add(job, job.keys, part)

    def _add(self, job, keys, part):
        job.parts += 1
        self._parts[part] = job, keys

    def _give_up(self, job):
        """Answers a job that has begun in part, once nothing touches its rows any more."""
        for part in [part for part, (other, _) in self._parts.items() if other is job]:
            self._cache.cancel(part, wait=True)
            del self._parts[part]  # its result is passed over
        self._answer(job.fail())

    def _cancel_all(self):
        """_collect returns them soon.  There is nothing to do if drain() has ended before."""
        if self._draining:
            for part in self._parts:
                self._cache.cancel(part)

    def _answer(self, done):
        self.failed[done.loads] += len(done.failed)
        self._outbox.put(done)

    def _collect(self):
        for result in self._cache.poll():
            job, keys = self._parts.pop(result.job, (None, ()))
            if job is None:
                continue
            good = (OK,) if job.loads else STORED
            for key, status in zip(keys, result.status, strict=True):
                (job.moved if status in good else job.failed).append(key)
            job.parts -= 1
            if job.parts == 0:
                self._answer(job.done())
