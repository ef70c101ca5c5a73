"""The calls of kvlarder that wait, for asyncio: `await` them, and the event loop goes on.

    client = await kvlarder.aio.connect()
    async with await client.attach("my-engine") as session:
        await session.put(variant, blocks)
    async with client.watch_events(snapshot=True) as stream:
        async for reply in stream: ...

Each call runs on a thread of the client's own, without the GIL while it waits; arguments, results and exceptions are
those of the method of the same name.
Cancelling: a call that has not begun, because all threads were busy, is not made.  One that has begun uses the caller's
buffers, so that its await ends when the call has ended, at the latest at its deadline_s.
take_directive ends at its timeout_s; a directive that it took then can be taken again.
What does not wait is used as it is: Promise, Lease, TokenChain, EngineCache.  What waits and is no method of Client or
Session goes to a thread by asyncio.to_thread: Reservation.publish, and Restorer.restore, which calls its functions there.
Thread-safety: one event loop uses a Client, its sessions and its streams.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools

import kvlarder

THREADS = 8  # calls of one client that wait at the same time; more wait for these


async def _run(threads, call, *args, **kwargs):
    job = threads.submit(functools.partial(call, *args, **kwargs))
    future = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not job.cancel():  # it has begun, and uses the caller's memory until it ends
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    pass
            if not future.cancelled() and future.exception() is None:
                with contextlib.suppress(RuntimeError):  # the client was closed meanwhile
                    threads.submit(_drop, future.result())  # a session, for example, ends there and not on the event loop
                del future, job
        raise


def _drop(_):
    pass


def _awaited(cls, name):
    """Returns a coroutine method that makes the call of `cls` of this name on a thread."""

    async def method(self, *args, **kwargs):
        return await _run(self._threads, getattr(self._sync, name), *args, **kwargs)

    method.__name__, method.__doc__ = name, getattr(cls, name).__doc__
    return method


async def connect(*args, threads=THREADS, **kwargs):
    """Returns a Client.  The arguments are those of kvlarder.connect."""
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="kvlarder")
    try:
        return Client(await _run(pool, kvlarder.connect, *args, **kwargs), pool)
    except BaseException:
        pool.shutdown(wait=False)
        raise


class Client:
    """kvlarder.Client.  close() ends its threads once their calls have ended; sessions must not be used after it."""

    def __init__(self, client, threads):
        self._sync, self._threads = client, threads

    async def attach(self, *args, **kwargs):
        """Returns a Session.  The arguments are those of kvlarder.Client.attach."""
        return Session(await _run(self._threads, self._sync.attach, *args, **kwargs), self._threads)

    def watch_events(self, **kwargs):
        """Returns an EventStream, which begins now.  The arguments are those of kvlarder.Client.watch_events."""
        return EventStream(self._sync.watch_events(**kwargs))

    lookup = _awaited(kvlarder.Client, "lookup")
    prefetch = _awaited(kvlarder.Client, "prefetch")
    pin = _awaited(kvlarder.Client, "pin")
    unpin = _awaited(kvlarder.Client, "unpin")
    clear = _awaited(kvlarder.Client, "clear")
    instances = _awaited(kvlarder.Client, "instances")

    def close(self):
        self._threads.shutdown(wait=False)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()


class Session:
    """kvlarder.Session.  Attributes that do not wait, such as write_mode, are those of `sync`."""

    def __init__(self, session, threads):
        self._sync, self._threads = session, threads

    @property
    def sync(self):
        """The session itself, for what does not wait."""
        return self._sync

    def seed(self, content):
        return self._sync.seed(content)

    register = _awaited(kvlarder.Session, "register")
    put = _awaited(kvlarder.Session, "put")
    get = _awaited(kvlarder.Session, "get")
    get_pages = _awaited(kvlarder.Session, "get_pages")
    put_pages = _awaited(kvlarder.Session, "put_pages")
    promise = _awaited(kvlarder.Session, "promise")
    hold_promise = _awaited(kvlarder.Session, "hold_promise")
    report_device = _awaited(kvlarder.Session, "report_device")
    acquire = _awaited(kvlarder.Session, "acquire")
    reserve = _awaited(kvlarder.Session, "reserve")
    take_directive = _awaited(kvlarder.Session, "take_directive")
    close = _awaited(kvlarder.Session, "close")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()


class EventStream:
    """kvlarder.EventStream: `async for`, or next(timeout_s).  It has a thread of its own; close it, or use `async with`."""

    def __init__(self, stream):
        self._sync, self._replies, self._closed = stream, collections.deque(), False
        self._threads = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="kvlarder-events")

    async def next(self, timeout_s):
        """Waits for a WatchReply.  Returns None after timeout_s.  Raises StopAsyncIteration after aclose, or why it ended.
        One task at a time calls it.

        A reply that comes while the await is cancelled is kept for the next call.
        """
        if not self._replies and self._closed:
            raise StopAsyncIteration
        if not self._replies:
            await asyncio.wrap_future(self._threads.submit(self._fetch, timeout_s))
        return self._replies.popleft() if self._replies else None

    def _fetch(self, timeout_s):
        try:
            reply = self._sync.next(timeout_s)
        except StopIteration:  # must not leave a coroutine
            raise StopAsyncIteration from None
        if reply is not None:
            self._replies.append(reply)

    def __aiter__(self):
        return self

    async def __anext__(self):
        while True:
            if (reply := await self.next(1.0)) is not None:
                return reply

    async def aclose(self):
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.shield(asyncio.to_thread(self._sync.close))
        finally:
            self._threads.shutdown(wait=False)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.aclose()
