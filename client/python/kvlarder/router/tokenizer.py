"""Turns prompts into token ids, by asking a server, which has the tokenizer: POST /tokenize of vLLM.

Answers are kept, of CACHED_TOKENS tokens together, because the same prompt often comes again at once.
Invariant: a server that does not answer costs few requests the time that it has.  One that has no /tokenize is not asked
for ABSENT_S.  One that failed FAILURES_MOST times in a row is left alone, each time for twice as long, and then one request
finds out whether it answers again.
Thread-safety: one event loop uses a Tokenizer.
"""

import collections
import dataclasses
import hashlib
import json
import time

import aiohttp
from kvlarder.router import bodies, prompt

CACHED_TOKENS, CACHED_ENTRIES = 4 << 20, 16_384  # 16 MiB of ids
REPLY_BYTES_MAX = 64 << 20
ABSENT_S = 60.0
FAILURES_MOST = 3
PAUSE_S, PAUSE_MOST_S = 2.0, 60.0


@dataclasses.dataclass
class Failures:
    """Of one server, since it last answered."""

    count: int = 0
    pause_s: float = PAUSE_S  # the next one
    until: float = 0.0  # when it may be asked again

    def pause(self, now):
        self.until = now + self.pause_s
        self.pause_s = min(2 * self.pause_s, PAUSE_MOST_S)


class Tokenizer:
    def __init__(self, options, metrics, session, clock=time.monotonic):
        self._options, self._metrics, self._session, self._clock = options, metrics, session, clock
        self._cache, self._cached = collections.OrderedDict(), 0  # digest of the question: (ids, count)
        self._failures = {}  # {server: Failures}; none: it answered last

    async def tokens_of(self, asked, servers, headers):
        """Returns the Prompt with its tokens; without them if it has none, or no server tells them in time.

        servers: those that may take the request; headers: of the client, which the server may want to know.
        """
        if asked.tokens is not None:
            self._metrics.tokenized("given")
            return asked
        if asked.question is None:
            self._metrics.tokenized("none")
            return asked
        key = hashlib.blake2b(asked.question, digest_size=16).digest()
        if (found := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            self._metrics.tokenized("cached")
            return prompt.with_ids(asked, *found)
        server = min(filter(self._may_be_asked, servers), key=lambda one: one.tokens, default=None)
        asked = asked if server is None else await self._ask(server, asked, headers)
        if asked.tokens is None:
            self._metrics.tokenized("failed")
            return asked
        self._metrics.tokenized("asked")
        self._keep(key, asked)
        return asked

    def _may_be_asked(self, server):
        failures = self._failures.get(server)
        return failures is None or failures.until <= self._clock()

    async def _ask(self, server, asked, headers):
        failures = self._failures.get(server)
        if failures is not None and failures.count >= FAILURES_MOST:
            failures.pause(self._clock())  # others do not wait with this request, which finds out
        question = self._session.post(
            f"{server.url}/tokenize",
            data=asked.question,
            headers={**headers, "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self._options.tokenize_timeout),
        )
        try:
            async with question as reply:
                if reply.status in (404, 405, 501):
                    self._failures[server] = Failures(until=self._clock() + ABSENT_S)
                    return asked
                if reply.status >= 500:
                    return self._failed(server, asked)
                if reply.status == 200:  # otherwise the question is to blame
                    ids = json.loads(await bodies.read(reply.content, REPLY_BYTES_MAX))["tokens"]
                    asked = prompt.with_tokens(asked, ids) if isinstance(ids, list) else asked
            self._failures.pop(server, None)
            return asked
        except (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError, RecursionError, bodies.TooLarge):
            return self._failed(server, asked)

    def _failed(self, server, asked):
        failures = self._failures.setdefault(server, Failures())
        failures.count += 1
        if failures.count == FAILURES_MOST:
            failures.pause(self._clock())
        return asked

    def _keep(self, key, asked):
        if key in self._cache:  # another request has asked meanwhile
            return
        self._cache[key] = asked.tokens, asked.count
        self._cached += len(asked.tokens)
        while self._cached > CACHED_TOKENS or len(self._cache) > CACHED_ENTRIES:
            _, (tokens, _) = self._cache.popitem(last=False)
            self._cached -= len(tokens)
