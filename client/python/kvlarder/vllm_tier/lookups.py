"""Which keys are stored: vLLM's scheduler asks for one after the other, and never waits.

A key that is asked for the first time is PENDING.  At the end of a step all new keys go to a thread, which asks the daemon for
them at once; the scheduler asks again in a later step.  A hit holds for as long as a request lives that asked for the key.
A MISSING holds for MISSING_S: for a request that comes later the daemon is asked again, because it may only have been slow or
absent, and another engine may have stored the block meanwhile.

Invariants: a key is PENDING at most for the patience; then it is MISSING, as it is at once while no daemon serves.  A key
whose load failed is MISSING, and each request has a key asked for at most once, so that none waits for it for ever.
Thread-safety: one thread, which is vLLM's scheduler's.  Another one asks the daemon.
"""

import dataclasses
import enum
import queue
import threading
import time


class Verdict(enum.Enum):
    PENDING = 0
    HOST = 1
    DISK = 2
    MISSING = 3


KEYS_MAX = 1 << 20  # that have a verdict; more are MISSING
MISSING_S = 1.0  # how long a MISSING holds for requests that have yet to ask


@dataclasses.dataclass(slots=True)
class _Key:
    asked_s: float = 0.0
    verdict: Verdict = Verdict.PENDING
    missing_s: float = 0.0  # since when, if it is MISSING
    requests: set = dataclasses.field(default_factory=set)  # that asked for it and have not ended


class TierLookups:
    def __init__(self, link, serves, patience_s, log=None, clock=time.monotonic):
        """link: a TierLink.  serves: returns whether a daemon serves; never waits.  log:
        called with a text and an unexpected exception."""
        self._link, self._serves, self._patience_s, self._clock = link, serves, patience_s, clock
        self._log = log or (lambda text, error: None)
        self._keys, self._of_request, self._new = {}, {}, []
        self._questions, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
        self._serving = serves()
        self.asked = self.hits_host = self.hits_disk = self.impatient = self.refused = self.unanswered = 0  # keys
        self._thread = threading.Thread(target=self._run, name="larder-tier-lookups", daemon=True)
        self._thread.start()

    # ---- vLLM's scheduler

    def look(self, key, request):
        """Returns the Verdict on a key.  request: the id of who asks."""
        if not self._answers.empty():
            self._take_answers()
        found = self._keys.get(key)
        if found is None:
            if not self._serving or len(self._keys) >= KEYS_MAX:
                self.refused += 1
                return Verdict.MISSING
            found = self._keys[key] = _Key()
            self._ask_for(key, found)
        if request not in found.requests:
            found.requests.add(request)
            self._of_request.setdefault(request, []).append(key)
            if found.verdict is Verdict.MISSING and self._serving and self._clock() - found.missing_s > MISSING_S:
                self._ask_for(key, found)
        if found.verdict is Verdict.PENDING and self._clock() - found.asked_s > self._patience_s:
            self._miss(found)
            self.impatient += 1
        return found.verdict

    def _ask_for(self, key, found):
        found.verdict, found.asked_s = Verdict.PENDING, self._clock()
        self._new.append((key, found.asked_s))
        self.asked += 1

    def _miss(self, found):
        found.verdict, found.missing_s = Verdict.MISSING, self._clock()

    def flush(self):
        """A step ends: its new keys are asked for."""
        self._serving = self._serves()
        self._take_answers()
        if self._new:
            self._questions.put(self._new)
            self._new = []

    def verdict(self, key):
        """Returns what is known of a key, or MISSING."""
        found = self._keys.get(key)
        return Verdict.MISSING if found is None else found.verdict

    def mark_missing(self, keys):
        """These could not be loaded."""
        for key in keys:
            if key in self._keys:
                self._miss(self._keys[key])

    def mark_stored(self, keys):
        """These are stored now, whatever was missing of them before."""
        for key in keys:
            if key in self._keys and self._keys[key].verdict is Verdict.MISSING:
                self._keys[key].verdict = Verdict.HOST

    def forget(self, request):
        """A request has ended."""
        for key in self._of_request.pop(request, ()):
            found = self._keys[key]
            found.requests.discard(request)
            if not found.requests:
                del self._keys[key]

    def close(self):
        self._questions.put(None)
        self._thread.join()

    def _take_answers(self):
        while not self._answers.empty():
            for key, verdict in self._answers.get():
                found = self._keys.get(key)
                if found is None or found.verdict is not Verdict.PENDING:
                    continue
                if verdict is Verdict.MISSING:
                    self._miss(found)
                else:
                    found.verdict = verdict
                    self.hits_host += verdict is Verdict.HOST
                    self.hits_disk += verdict is Verdict.DISK

    # ---- the thread that asks

    def _run(self):
        while (batch := self._questions.get()) is not None:
            while not self._questions.empty():
                more = self._questions.get()
                if more is None:
                    return
                batch += more
            self._answers.put(self._ask(batch))

    def _ask(self, batch):
        late = self._clock() - self._patience_s
        keys = [key for key, asked_s in batch if asked_s > late]  # of the others the scheduler has stopped to wait
        verdicts = {}
        try:
            if keys:
                verdicts = dict(zip(keys, map(_verdict, self._link.copies(keys, self._patience_s)), strict=True))
        except Exception as error:  # these are misses; the thread goes on
            self.unanswered += len(keys)
            if not isinstance(error, (ConnectionError, TimeoutError)):
                self._log("a lookup failed", error)
        return [(key, verdicts.get(key, Verdict.MISSING)) for key in keys]


def _verdict(copies):
    host, disk = copies
    return Verdict.HOST if host else Verdict.DISK if disk else Verdict.MISSING
