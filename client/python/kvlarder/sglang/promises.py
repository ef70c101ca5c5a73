"""What the daemon keeps because SGLang was told that it is stored, until SGLang has read it.

SGLang may never read what it asked for, so the daemon lets a promise go by itself after its life, and the oldest are let
go when there are too many.
Thread-safety: any thread.
"""

import collections
import threading


class Promises:
    def __init__(self, most):
        """most: how many promises are kept at a time."""
        self._most, self._lock = most, threading.Lock()
        self._kept = collections.OrderedDict()  # id: (kvlarder.Promise, digests that were not read yet); the oldest first

    def __len__(self):
        with self._lock:
            return len(self._kept)

    def keep(self, promise, digests):
        with self._lock:
            for number in [number for number, (one, _) in self._kept.items() if not one.valid]:
                self._let_go(number)
            while len(self._kept) >= self._most:
                self._let_go(next(iter(self._kept)))
            self._kept[promise.id] = promise, set(digests)

    def of(self, digest):
        """Returns the id of the newest promise that keeps this block, or 0."""
        with self._lock:
            return next((number for number, (_, unread) in reversed(self._kept.items()) if digest in unread), 0)

    def read(self, digests):
        """These blocks were read, or could not be.  Whoever asked for the same blocks, too, has yet to read them, so that
        each read counts for one promise, the newest."""
        with self._lock:
            left = set(digests)
            for number, (_, unread) in reversed(list(self._kept.items())):
                read = unread & left
                unread -= read
                left -= read
                if not unread:
                    self._let_go(number)

    def let_all_go(self):
        with self._lock:
            for number in list(self._kept):
                self._let_go(number)

    def _let_go(self, number):
        self._kept.pop(number)[0].release()
