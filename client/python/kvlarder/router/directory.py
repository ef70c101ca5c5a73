"""What the daemon knows: which contents the engines of the servers have, and how much of a prompt each can load.

Without a daemon, or with one that is slow, hits() says None and requests are routed by queue alone.  A task looks at the
daemon every few seconds, learns the engines, and says in the log when the daemon stops or begins to be asked.
Invariants: a request waits at most twice the timeout of a lookup; after FAILURES_MOST failures in a row no request waits
at all until the task has seen the daemon answer in time.
Thread-safety: one event loop uses a Directory.
"""

import array
import asyncio
import contextlib
import dataclasses
import logging
import time

import kvlarder
import kvlarder.aio
from kvlarder import weights
from kvlarder.router import prices
from kvlarder.vllm import names

LOG = logging.getLogger("larder.router")
FAILURES_MOST = 3  # lookups in a row, then the daemon is left alone
REFRESH_S, PAUSE_MOST_S = 2.0, 60.0
STEADY_S = 60.0  # a daemon that answered so long is looked at soon when it fails again
CONNECT_S, INSTANCES_DEADLINE_S = 0.5, 2.0
CONTENTS_MOST = 4  # lookups of one request, if its servers have different weights
TOKENS_LEAST = 16  # no block is shorter
ERRORS = (OSError, RuntimeError, ValueError, LookupError)  # of kvlarder; TimeoutError is an OSError


@dataclasses.dataclass(frozen=True)
class Engine:
    """What the daemon knows of one engine."""

    contents: tuple  # of the base model
    adapters: tuple  # of (what the name of an adapter begins with, ContentSpec)


def base_of(revision):
    """Returns (the revision without its generation, the number of the generation) (kvlarder.vllm.names)."""
    base, colon, generation = revision.rpartition(":")
    number = generation.partition("-")[0]
    return (base, int(number)) if colon and "-" in generation and number.isdigit() else (revision, 0)


def newest(contents):
    """Returns those contents whose model and weights have no newer generation: after a reset of its cache, an engine finds
    nothing that was stored before."""
    last = {}
    for content in contents:
        base, number = base_of(content.revision)
        if number >= last.get((content.model, base), (0, None))[0]:
            last[content.model, base] = number, content.revision
    return [one for one in contents if last[one.model, base_of(one.revision)[0]][1] == one.revision]


def engine_of(info):
    """Returns the Engine of an InstanceInfo."""
    contents = newest(info.contents)
    plain = dict.fromkeys(kvlarder.ContentSpec(one.model, one.revision) for one in contents)
    return Engine(
        contents=tuple(plain),
        adapters=tuple((one.lora.partition(":")[0], one) for one in contents if one.lora),
    )


class Directory:
    def __init__(self, options, metrics, clock=time.monotonic):
        self._options, self._metrics, self._clock = options, metrics, clock
        self._engine_ids = {server.engine_id for server in options.servers}
        self._client, self._engines = None, {}
        self._why_not = "it was not asked yet"  # '' while the daemon is asked
        self._failures, self._pause_s, self._up_since = 0, REFRESH_S, 0.0
        self._said = None  # the last state in the log
        self._unknown = set()  # engine ids that the log names

    @property
    def why_not(self):
        """'' while the daemon is asked, otherwise why it is not."""
        return self._why_not

    async def run(self):
        """Looks at the daemon until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(self._pause_s if self._why_not else REFRESH_S)
                try:
                    await self.refresh()
                except Exception:  # whatever it is, the next look may be right
                    LOG.exception("looking at larderd failed")
        finally:
            self._drop_client()

    async def refresh(self):
        """Looks at the daemon once."""
        try:
            if self._client is None:
                self._client = await kvlarder.aio.connect(
                    self._options.socket_dir, self._options.tenant, connect_deadline_s=CONNECT_S
                )
            infos = await self._client.instances(deadline_s=INSTANCES_DEADLINE_S)
            if self._why_not:  # it must answer in time, too
                await self._client.lookup(
                    kvlarder.ContentSpec("router", ""),
                    tokens=array.array("I", bytes(4 * TOKENS_LEAST)),
                    deadline_s=self._options.lookup_timeout,
                )
        except ERRORS as error:
            self._drop_client()
            self._fails(error)
            return
        self._engines = {info.engine_id: engine_of(info) for info in infos if info.engine_id in self._engine_ids}
        self._serves()

    async def hits(self, engine_ids, model, is_adapter, salt, tokens):
        """Returns {engine id: Coverage of the prompt} of those engines that have something; None if it is not known.

        tokens: the first ids of the prompt, an array; is_adapter: whether the model is an adapter's name.
        """
        client = self._client
        if self._why_not or client is None:
            self._metrics.lookup("no_daemon")
            return None
        if len(tokens) < TOKENS_LEAST:
            return {}
        contents = self._contents(engine_ids, model if is_adapter else "", salt)
        if not contents:
            self._metrics.lookup("no_content")
            return None
        began = self._clock()
        try:
            async with asyncio.timeout(self._options.lookup_timeout):  # a call waits for a thread, too
                replies = [await self._look_up(client, content, tokens) for content in contents]
        except ERRORS as error:
            self._metrics.lookup("late" if isinstance(error, TimeoutError) else "failed", self._clock() - began)
            self._failures += 1
            if self._failures >= FAILURES_MOST and not self._why_not:
                self._fails(error)
            return None
        self._failures = 0
        self._metrics.lookup("answered", self._clock() - began)
        return self._coverages(contents, replies, len(tokens))

    async def _look_up(self, client, content, tokens):
        reply = await client.lookup(content, tokens=tokens, deadline_s=self._options.lookup_timeout)
        return {hit.engine_id: hit for hit in reply.instances if hit.attached}

    def _contents(self, engine_ids, adapter, salt):
        """Returns {ContentSpec: ids of the engines that have it} for a request."""
        tag = weights.tagged_hash(("name", adapter))[:16] if adapter else ""
        salted, found = names.salt(salt), {}
        for engine_id in engine_ids:
            if (engine := self._engines.get(engine_id)) is None:
                continue
            own = [one for name, one in engine.adapters if name == tag] if adapter else engine.contents
            for one in own:
                content = kvlarder.ContentSpec(one.model, one.revision, salt=salted, lora=one.lora)
                if content in found or len(found) < CONTENTS_MOST:
                    found.setdefault(content, set()).add(engine_id)
        return found

    @staticmethod
    def _coverages(contents, replies, tokens):
        coverages = {}
        for owners, hits in zip(contents.values(), replies, strict=True):
            for engine_id in owners & hits.keys():
                coverage = prices.coverage_of(hits[engine_id].tiers, tokens)
                if coverage.tokens > coverages.get(engine_id, prices.NOTHING).tokens:
                    coverages[engine_id] = coverage
        return coverages

    def _fails(self, error):
        if not self._why_not and self._clock() - self._up_since < STEADY_S:
            self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
        self._why_not = str(error) or "it does not answer in time"
        self._metrics.daemon_up(False)
        if self._said is not False:
            self._said = False
            LOG.warning("Larder is not asked now, requests are routed by queue alone: %s", self._why_not)

    def _serves(self):
        if self._why_not:
            self._up_since = self._clock()
        elif self._clock() - self._up_since >= STEADY_S:
            self._pause_s = REFRESH_S
        self._why_not, self._failures = "", 0
        self._metrics.daemon_up(True)
        if self._said is not True:
            self._said = True
            LOG.info("Larder is asked about each request")
        unknown = self._engine_ids - self._engines.keys()
        for engine_id in sorted(unknown - self._unknown):
            LOG.warning("larderd knows no engine '%s' yet: what its server can load is not known", engine_id)
        self._unknown = unknown

    def _drop_client(self):
        if self._client is not None:
            with contextlib.suppress(*ERRORS):
                self._client.close()
        self._client = None
