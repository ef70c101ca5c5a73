"""Asks the daemon about blocks by their keys, and connects again by itself.

A link has a session of its own, by which the engine registers its content: Lookup answers only for contents that an engine of
a running daemon has registered, and the EngineCache that moves the blocks registers none before it stores.
Thread-safety: any thread.  Its calls wait for the daemon, at most for their deadline and the time to connect.
Locks: one, held while it connects.
"""

import contextlib
import threading
import time

import kvlarder
from kvlarder.hash_keys import STEP

CONNECT_S = 1.0
UNKNOWN_CLIENT = "UNAUTHENTICATED"  # code of the error of a daemon that was restarted; others say that the user has no right
RECOVERY_S = 3.0  # a daemon that has just started may still be reading which blocks its disk has
DIGESTS_MAX = 2_048  # of one call; the daemon takes 8,192


class NotYet(ConnectionError):
    """No daemon has answered yet, so that blocks have no names."""


class TierLink:
    def __init__(self, names, variant, *, engine_id, socket_dir="", tenant="", on_session=lambda session: None):
        """names: a Names; variant: the VariantSpec of the blocks.  on_session: called with each new Session, by any thread."""
        self.names, self._variant, self._engine_id, self._on_session = names, variant, engine_id, on_session
        self._socket_dir, self._tenant = socket_dir, tenant
        self._lock = threading.Lock()
        self._client = self._session = None
        self._boot_id = ""  # of the daemon that the client was seen to reach
        self._connects = 0
        self._connected_s = 0.0  # when it last did

    def digests(self, keys):
        """Raises NotYet."""
        names = self.names.of(keys)
        if names is None:
            raise NotYet("no daemon has answered yet")
        return [digest for digest, _, _ in names]

    @property
    def may_recover(self):
        """Whether the daemon may have blocks that it does not know of yet, because it was restarted a moment ago."""
        return self._connects > 1 and time.monotonic() - self._connected_s < RECOVERY_S

    def selection(self, digests):
        """Returns these blocks of this engine's variant."""
        return kvlarder.BlockSelection(engine_id=self._engine_id, digests=digests)

    def call(self, verb, *args, **kwargs):
        """Returns Client.`verb`(...).  Connects if need be, and once more if the daemon was restarted meanwhile.  Raises what
        the call raises."""
        client, fresh = self._connected()
        try:
            return getattr(client, verb)(*args, **kwargs)
        except (ConnectionError, PermissionError) as error:
            if isinstance(error, PermissionError) and error.code != UNKNOWN_CLIENT:
                raise  # the daemon knows this client and refuses the call: lookups go on with it
            self._drop(client)
            if fresh:
                raise
        return self.call(verb, *args, **kwargs)

    def copies(self, keys, deadline_s):
        """Returns (in HOST, on DISK), two booleans, for each key.  Raises NotYet, ConnectionError, TimeoutError."""
        digests, found = self.digests(keys), []
        for first in range(0, len(digests), DIGESTS_MAX):
            some = digests[first : first + DIGESTS_MAX]
            answer = self._lookup(some, deadline_s)
            host, disk = _steps(answer, kvlarder.Tier.HOST), _steps(answer, kvlarder.Tier.DISK)
            found += [(step in host, step in disk) for step in range(len(some))]
        return found

    def close(self):
        with self._lock:
            self._forget()

    def _lookup(self, digests, deadline_s):
        """Looks up once more if another daemon answered than the one that knows the engine's content."""
        for _ in range(2):
            client, _ = self._connected()
            answer = self.call(
                "lookup", self.names.content, steps=digests, engine_id=self._engine_id, deadline_s=deadline_s
            )
            with self._lock:
                if self._boot_id in ("", answer.boot_id):
                    self._boot_id = answer.boot_id
                    return answer
            self._drop(client)
        return answer

    def _connected(self):
        """Returns the client, and whether it was made now."""
        with self._lock:
            if self._client is not None:
                return self._client, False
            client = kvlarder.connect(self._socket_dir, self._tenant, CONNECT_S)
            session = client.attach(self._engine_id, role="scheduler", write_mode="stream")
            session.register([self.names.content], [self._variant], deadline_s=CONNECT_S)
            self._on_session(session)
            self._connects, self._connected_s = self._connects + 1, time.monotonic()
            self._client, self._session, self._boot_id = client, session, ""
            return client, True

    def _drop(self, client):
        with self._lock:
            if self._client is client:
                self._forget()

    def _forget(self):
        if self._session is not None:
            with contextlib.suppress(ConnectionError, TimeoutError, RuntimeError):
                self._session.close()
        self._client = self._session = None


def _steps(answer, tier):
    """Returns which of the steps of a Lookup of one engine are in a tier."""
    return {
        step
        for instance in answer.instances
        for hit in instance.tiers
        if hit.tier == tier
        for found in hit.ranges
        for step in range(found.begin // STEP, found.end // STEP)
    }
