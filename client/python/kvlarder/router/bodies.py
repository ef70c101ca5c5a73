"""Reading bodies in bounded memory: of one request at most max_body, of all together at most max_bodies.

Thread-safety: one event loop uses a Budget.
"""

import contextlib


class TooLarge(Exception):
    """A body has more bytes than it may have."""


class NoMemory(Exception):
    """All bodies together have more bytes than they may have."""


class Budget:
    """Bytes that all bodies together may take."""

    def __init__(self, most):
        self._most, self.held = most, 0

    @contextlib.contextmanager
    def share(self):
        """Yields a Share, of which nothing is held afterwards."""
        share = Share(self)
        try:
            yield share
        finally:
            share.drop()

    def add(self, count):
        if self.held + count > self._most:
            raise NoMemory("the requests under way take all memory that they may take")
        self.held += count

    def give_back(self, count):
        self.held -= count


class Share:
    """What one body takes of the budget."""

    def __init__(self, budget):
        self._budget, self._count = budget, 0

    def add(self, count):
        """Raises NoMemory."""
        self._budget.add(count)
        self._count += count

    def drop(self):
        """The body is not needed any more."""
        self._budget.give_back(self._count)
        self._count = 0


async def read(stream, most, share=None):
    """Returns the bytes of an aiohttp.StreamReader.  Raises TooLarge, and NoMemory if a Share is given."""
    parts, count = [], 0
    async for part in stream.iter_any():
        count += len(part)
        if count > most:
            raise TooLarge(f"the body has more than {most} bytes")
        if share is not None:
            share.add(len(part))
        parts.append(part)
    return b"".join(parts)
