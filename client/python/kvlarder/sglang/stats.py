"""Counters of the storage, and what SGLang's own metrics take of it.

Thread-safety: any thread.
"""

import threading

COUNTERS = {
    "lookups": "Times that SGLang asked how many pages are stored",
    "pages_found": "Pages that were said to be stored",
    "pages_loaded": "Pages loaded",
    "pages_load_failed": "Pages that could not be loaded",
    "pages_stored": "Pages stored",
    "pages_duplicate": "Pages that were stored already",
    "pages_store_failed": "Pages that could not be stored",
    "bytes_loaded": "Bytes loaded",
    "bytes_stored": "Bytes stored",
    "keys_refused": "Keys that are no hex text, or follow one in a chain",
    "calls_unserved": "Calls that were answered at once because no daemon served",
    "calls_late": "Calls that ended at their deadline",
    "calls_lost": "Calls that ended because the daemon went away",
    "calls_failed": "Calls that ended for another reason, which is logged",
    "promises_refused": "Lookups that found less because the daemon has no room for another promise",
    "sessions": "Sessions with a daemon",
    "attach_failures": "Tries to reach a daemon that failed",
}
MOVES_MAX = 10_000  # calls in one report to SGLang


class Counters:
    def __init__(self, interval_s, clock):
        """interval_s: between two log lines; clock: returns seconds."""
        self._interval_s, self._clock, self._lock = interval_s, clock, threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._logged, self._next = dict(self._counts), clock() + interval_s
        self._moves = {"load": [], "store": []}  # (pages, GB/s)

    def add(self, name, count=1):
        with self._lock:
            self._counts[name] += count

    def moved(self, kind, pages, size, seconds):
        """kind: 'load' or 'store'; size: bytes."""
        with self._lock:
            if pages and len(self._moves[kind]) < MOVES_MAX:
                self._moves[kind].append((pages, size / max(seconds, 1e-9) / 1e9))

    def counts(self):
        with self._lock:
            return dict(self._counts)

    def take_moves(self):
        """Returns (pages loaded, pages stored, GB/s of loads, GB/s of stores) of the calls since it was called last."""
        with self._lock:
            moves, self._moves = self._moves, {"load": [], "store": []}
        columns = [[move[column] for move in moves[kind]] for column in (0, 1) for kind in ("load", "store")]
        return tuple(columns)

    def take_line(self):
        """Returns what has grown since the last line, or None if it is too early or nothing has."""
        with self._lock:
            if self._clock() < self._next:
                return None
            self._next = self._clock() + self._interval_s
            grown = {name: count - self._logged[name] for name, count in self._counts.items() if count > self._logged[name]}
            self._logged = dict(self._counts)
        return ", ".join(f"{name} {count}" for name, count in grown.items()) or None
