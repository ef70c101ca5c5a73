"""How the keys of SGLang's pages are named in Larder (docs/format.md, "Hash keys").

A key is the SHA-256, in hex, of a page's tokens and of all that comes before them, seeded by the request's salt and
adapter.  It stands for the tokens, so that equal keys of one model have equal names in every process.
Invariant: a chained name of a key is a function of the key, because the key decides all keys before it.
Thread-safety: any thread.
"""

import collections
import threading
import typing

from kvlarder.hash_keys import STEP, HashKeys

REMEMBERED_MAX = 65_536


class Name(typing.NamedTuple):
    digest: bytes
    parent: bytes
    tokens: list


class PageNames:
    def __init__(self, seed, page_tokens, chained):
        """seed: of the content.  chained: the parent of a page is the page before it; otherwise it is the seed."""
        self.seed = seed
        self._keys, self._chained = HashKeys(seed, page_tokens), chained
        self._steps = page_tokens // STEP
        self._lock = threading.Lock()
        self._digests = collections.OrderedDict()  # of keys, chained; used last at the end

    def of(self, keys, prefix=None):
        """Returns a Name for each key, or None for one that is no hex text of 1 to 60 bytes; in a chain also for all
        behind it.  prefix: the keys before, from the first page of the sequence; unused unless chained."""
        if not self._chained:
            return [self._named(key, None) for key in keys]
        broken, parent = False, None
        if prefix:
            parent = self._digest_of_last(prefix)
            broken = parent is None
        names = []
        for key in keys:
            name = None if broken else self._named(key, parent)
            broken = name is None
            parent = None if broken else name.digest
            names.append(name)
            if not broken:
                self._remember(key, name.digest)
        return names

    def steps(self, names):
        """Returns what Session.promise takes.  The daemon looks at the last step of each page alone; the others repeat it."""
        return b"".join(name.digest * self._steps for name in names)

    def _named(self, key, parent):
        try:
            return Name(*self._keys.name(bytes.fromhex(key), parent))
        except (ValueError, TypeError):
            return None

    def _digest_of_last(self, prefix):
        """Returns the digest of the last key of a prefix, or None if one of its keys is no key."""
        first, parent = len(prefix), None
        with self._lock:
            while first > 0 and parent is None:
                first -= 1
                parent = self._digests.get(prefix[first]) if isinstance(prefix[first], str) else None
        for key in prefix[first + 1 :] if parent else prefix:
            name = self._named(key, parent)
            if name is None:
                return None
            parent = name.digest
            self._remember(key, parent)
        return parent

    def _remember(self, key, digest):
        with self._lock:
            self._digests[key] = digest
            self._digests.move_to_end(key)
            while len(self._digests) > REMEMBERED_MAX:
                self._digests.popitem(last=False)
