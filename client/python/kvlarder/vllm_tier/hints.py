"""What requests ask to be done with KV (vLLM's kv_hints) becomes verbs of the daemon, and each hint has an outcome.

An envelope has actions, each with a type, a version and a payload.  vLLM does not define payloads; this is version "1":

    {"block_hashes": ["9f86d0...", ...],   hex, vLLM's hashes of blocks; without it, those blocks of the request itself that
                                           the tier found or was given to store, once the request has ended
     "groups": [0],                        KV groups; by default all that have the block
     "ttl_s": 300,                         for Prefetch, Pin and Retain
     "owner": "agent-7"}                   for Pin; by default the action's id

    type      verb of the daemon                                           ttl_s: default, most
    Share     Lookup: what is stored, all engines of the node can load
    Prefetch  Prefetch: to HOST, and kept there                            60, 600
    Retain    the same, for longer: kept without an owner                  600, 600
    Pin       Pin in HOST, for an owner; ttl_s 0 ends it (Unpin)           3600, 2592000
    Demote    Clear of HOST, of what has a copy on disk                    -

Outcome      The daemon ...
accepted     did it, for all blocks and as long as was asked
clipped      did it, for some of the blocks or for less time
deferred     has yet to do it; another outcome follows unless this one is final
rejected     did not do it: it refused, has no room, is not there, or the hint is not understood
missing      has none of these blocks

vLLM asks the tier neither for what is in its own caches nor for what it does not want to load, so that a request's own blocks
are never known to be all of them: such a hint is clipped at best.

Invariants: each action has exactly one final outcome, unless the desk is closed before.  The scheduler's thread never waits,
except in close, for the one call to the daemon that is under way.  Whatever a hint contains, begin raises nothing.
Thread-safety: begin, note, finish, outcomes and close from one thread, which is vLLM's scheduler's.
"""

import collections
import contextlib
import dataclasses
import heapq
import itertools
import queue
import threading
import time

import kvlarder
from kvlarder import BlockStatus
from kvlarder.vllm_tier.link import DIGESTS_MAX

VERSION = "1"
TTL_S = {"prefetch": (60.0, 600.0), "retain": (600.0, 600.0), "pin": (3600.0, 2_592_000.0)}  # default, most
ACTIONS = ("share", "prefetch", "demote", "pin", "retain")
RETRY_S = 0.1  # between two looks at what the daemon has yet to do
ACTIONS_MAX = 1_024  # that wait, and outcomes that are kept
REQUESTS_MAX = 1_024  # whose own blocks are collected
DEADLINE_S = 2.0  # of one call
HASH_BYTES_MAX, OWNER_BYTES_MAX = 56, 200
OWN_BLOCKS = "only blocks that vLLM asked this tier for"
NO_OWN_BLOCKS = "vLLM found no block of the request in this tier, and stored none"
DONE, PENDING, MISSING = BlockStatus.OK, BlockStatus.PENDING, BlockStatus.MISSING


@dataclasses.dataclass(frozen=True)
class HintOutcome:
    message_id: str
    action_id: str
    action: str  # as the hint named it
    outcome: str  # accepted, clipped, deferred, rejected or missing
    final: bool
    done: int = 0  # blocks of which each is one of the four
    pending: int = 0
    missing: int = 0
    refused: int = 0
    reason: str = ""  # why not all was done


class NotUnderstood(ValueError):
    """A hint that is rejected; the text says why."""


class _Closing(Exception):
    """The desk is being closed."""


@dataclasses.dataclass
class Hint:
    """One action.  keys: what it names, vLLM's keys, by block: a tuple of alternatives in several groups."""

    message_id: str
    action_id: str
    action: str
    verb: str
    ttl_s: float
    owner: str
    blocks: list | None  # None: the request's own
    clipped: str = ""  # why less is done than was asked
    until_s: float = 0.0  # then what is pending is no longer waited for
    told: bool = False  # that it is deferred


def parse(message_id, action, groups, blocks_max):
    """Returns the Hint of an action.  groups: numbers of the engine's KV groups.  Raises NotUnderstood."""
    verb = action.action_type.lower()
    if verb not in ACTIONS:
        raise NotUnderstood(f"there is no action {action.action_type!r}")
    if action.action_version != VERSION:
        raise NotUnderstood(f"{action.action_type} has version {VERSION}, not {action.action_version!r}")
    known = {"block_hashes", "groups", "ttl_s", "owner"}
    if unknown := set(action.payload) - known:
        raise NotUnderstood(f"its payload has no {sorted(unknown)[0]!r}")
    ttl_s, clipped = _ttl(verb, action.payload.get("ttl_s"))
    blocks, fewer = _blocks(action.payload, groups, blocks_max)
    owner = _owner(action) if verb == "pin" else ""
    return Hint(message_id, action.action_id, action.action_type, verb, ttl_s, owner, blocks, _joined(clipped, fewer))


def _ttl(verb, asked):
    """Returns (seconds, why they are fewer than was asked)."""
    default, most = TTL_S.get(verb, (0.0, 0.0))
    if asked is None:
        return default, ""
    least_ok = asked == 0 and verb == "pin"
    if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not (asked > 0 or least_ok):
        raise NotUnderstood("its ttl_s must be a number above 0")
    if verb not in TTL_S:
        raise NotUnderstood(f"{verb} has no ttl_s")
    return (float(asked), "") if asked <= most else (most, f"ttl_s is at most {most:.0f}")


def _owner(action):
    owner = action.payload.get("owner", action.action_id)
    try:
        size = len(owner.encode())
    except (AttributeError, UnicodeEncodeError):  # no text, or one with half a character
        size = 0
    if not 1 <= size <= OWNER_BYTES_MAX:
        raise NotUnderstood(f"its owner must be a text of 1 to {OWNER_BYTES_MAX} bytes")
    return owner


def _blocks(payload, groups, blocks_max):
    """Returns (the keys of each block, or None for the request's own blocks; why they are fewer than was asked)."""
    chosen = payload.get("groups", groups)
    if not isinstance(chosen, (list, tuple)) or not chosen or not all(type(one) is int and one in groups for one in chosen):
        raise NotUnderstood(f"its groups must be some of {sorted(groups)}")
    if "block_hashes" not in payload:
        return None, ""
    hashes = payload["block_hashes"]
    if not isinstance(hashes, (list, tuple)) or not hashes:
        raise NotUnderstood("its block_hashes must be a list that is not empty")
    try:
        data = [bytes.fromhex(text) for text in hashes[:blocks_max]]
    except (TypeError, ValueError):
        raise NotUnderstood("its block_hashes must be hex") from None
    if not all(1 <= len(one) <= HASH_BYTES_MAX for one in data):
        raise NotUnderstood(f"a block hash has 1 to {HASH_BYTES_MAX} bytes")
    ends = [group.to_bytes(4, "big") for group in dict.fromkeys(chosen)]
    return [tuple(one + end for end in ends) for one in data], _too_many(len(hashes), blocks_max)


def _too_many(blocks, blocks_max):
    return f"a hint may name {blocks_max} blocks" if blocks > blocks_max else ""


def _joined(*reasons):
    return "; ".join(reason for reason in reasons if reason)


def status_of(statuses):
    """Returns the status of a block that was named in several groups: not every group has every block."""
    present = [status for status in statuses if status != MISSING]
    if not present:
        return MISSING
    return next((status for status in present if status not in (DONE, PENDING)), PENDING if PENDING in present else DONE)


def outcome_of(statuses, clipped=""):
    """Returns (outcome, counts of done, pending, missing and refused) of a hint's blocks."""
    count = collections.Counter(status if status in (DONE, PENDING, MISSING) else None for status in statuses)
    done, pending, missing, refused = count[DONE], count[PENDING], count[MISSING], count[None]
    if pending:
        outcome = "deferred"
    elif done:
        outcome = "accepted" if done == len(statuses) and not clipped else "clipped"
    else:
        outcome = "rejected" if refused else "missing"
    return outcome, (done, pending, missing, refused)


class HintDesk:
    def __init__(self, link, *, groups, storing, blocks_max=4_096, patience_s=10.0, log=None, clock=time.monotonic):
        """link: a TierLink.  storing: returns whether a key is being stored; from any thread.
        patience_s: how long a hint waits for what the daemon does later.  log: called with a text and an exception."""
        self._link, self._groups, self._storing = link, tuple(groups), storing
        self._blocks_max, self._patience_s = blocks_max, patience_s
        self._log, self._clock = log or (lambda text, error: None), clock
        self._own = {}  # by request: (hints that wait for its end, its keys in order)
        self._inbox, self._outbox = queue.SimpleQueue(), queue.SimpleQueue()
        self._waiting = 0  # actions without a final outcome
        self._closing = False
        self._kept = collections.deque(maxlen=ACTIONS_MAX)
        self.counts = collections.Counter()  # (verb, outcome) of final outcomes
        self._thread = threading.Thread(target=self._run, name="larder-tier-hints", daemon=True)
        self._thread.start()

    # ---- vLLM's scheduler

    def begin(self, request, envelope):
        """A request has come with hints."""
        for action in envelope.actions:
            self._waiting += 1
            try:
                if self._waiting > ACTIONS_MAX:
                    raise NotUnderstood(f"{ACTIONS_MAX} hints are waiting")
                hint = parse(envelope.message_id, action, self._groups, self._blocks_max)
                if hint.blocks is None:
                    self._collect(request, hint)
                else:
                    self._hand_over(hint)
            except NotUnderstood as error:
                self._reject(envelope, action, str(error))
            except Exception as error:  # a type that no hint should have; the scheduler goes on
                self._reject(envelope, action, f"it is malformed ({error!r})")

    def _reject(self, envelope, action, why):
        kind = str(action.action_type)
        self._outbox.put(HintOutcome(envelope.message_id, action.action_id, kind, "rejected", True, reason=why))

    def _hand_over(self, hint):
        hint.until_s = self._clock() + self._patience_s
        self._inbox.put(hint)

    def _collect(self, request, hint):
        if request not in self._own:
            if len(self._own) >= REQUESTS_MAX:
                raise NotUnderstood(f"the blocks of {REQUESTS_MAX} requests are being collected")
            self._own[request] = [], {}
        self._own[request][0].append(hint)
        self._outbox.put(_outcome(hint, "deferred", False, reason="until the request has ended"))

    def note(self, request, keys):
        """These keys of a request were found, or are being stored."""
        if (own := self._own.get(request)) is not None and len(own[1]) <= self._blocks_max:
            own[1].update(dict.fromkeys(keys))

    def finish(self, request):
        """A request has ended: what it asked for its own blocks is done now."""
        hints, keys = self._own.pop(request, ((), ()))
        for hint in hints:
            hint.blocks = [(key,) for key in itertools.islice(keys, self._blocks_max)]
            fewer = (_too_many(len(keys), self._blocks_max) or OWN_BLOCKS) if keys else NO_OWN_BLOCKS
            hint.clipped = _joined(hint.clipped, fewer)
            self._hand_over(hint)

    def outcomes(self):
        """Returns the HintOutcomes since the last call; of more than ACTIONS_MAX, the last."""
        self.take()
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def take(self):
        """Counts the outcomes that have come."""
        while not self._outbox.empty():
            told = self._outbox.get()
            self._kept.append(told)
            if told.final:
                self._waiting -= 1
                verb = told.action.lower()
                self.counts[verb if verb in ACTIONS else "unknown", told.outcome] += 1

    def close(self):
        """Gives up all hints.  Waits for the call to the daemon that is under way, if there is one."""
        self._closing = True
        self._inbox.put(None)
        self._thread.join()

    # ---- the thread that asks the daemon

    def _run(self):
        due, order = [], itertools.count()  # what is tried again: (when, order, hint)
        with contextlib.suppress(_Closing):
            while True:
                for take in (self._overdue, self._arrived):  # by turns, so that neither waits for all of the other
                    if (hint := take(due)) is not None and self._carry_out(hint):
                        heapq.heappush(due, (self._clock() + RETRY_S, next(order), hint))
                self._check_open()

    def _overdue(self, due):
        """Returns the hint that should have been tried again first, or None if there is none yet."""
        return heapq.heappop(due)[2] if due and due[0][0] <= self._clock() else None

    def _arrived(self, due):
        """Waits for a hint that is new until one is to be tried again.  Returns None then, and when the desk is closed."""
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=max(0.0, due[0][0] - self._clock()) if due else None)

    def _check_open(self):
        if self._closing:
            raise _Closing

    def _carry_out(self, hint):
        """Tells the outcome.  Returns whether the hint is to be tried again."""
        self._check_open()
        last = self._clock() >= hint.until_s
        statuses, reason = self._try(hint, last)
        outcome, counts = outcome_of(statuses, hint.clipped)
        final = outcome != "deferred" or last
        if final or not hint.told:
            hint.told = True
            self._outbox.put(_outcome(hint, outcome, final, *counts, reason=reason or hint.clipped))
        return not final

    def _try(self, hint, last):
        """Returns (a BlockStatus for each block, why not all was done)."""
        try:
            return self._statuses(hint, last), ""
        except _Closing:
            raise
        except (ConnectionError, TimeoutError) as error:  # until the patience is over, the daemon may come back
            return [BlockStatus.CANCELLED if last else PENDING] * max(1, len(hint.blocks)), str(error)
        except Exception as error:  # whatever it is, the hint has an outcome and the thread goes on
            if not isinstance(error, (PermissionError, RuntimeError, ValueError)):
                self._log(f"a hint to {hint.verb} failed", error)
            return [BlockStatus.CANCELLED] * max(1, len(hint.blocks)), str(error)

    def _statuses(self, hint, last):
        keys = [key for block in hint.blocks for key in block]
        if not keys:
            return []  # the request had no blocks here
        storing = set() if last else {key for key in keys if self._storing(key)}  # a store may end during the call
        found = dict(zip(keys, getattr(self, f"_{hint.verb}")(keys, hint, last), strict=True))
        found |= {key: PENDING for key in storing if found[key] == MISSING}
        if self._link.may_recover and not last:
            found = {key: PENDING if status == MISSING else status for key, status in found.items()}
        return [status_of([found[key] for key in block]) for block in hint.blocks]

    # Each verb returns a BlockStatus for each key.

    def _share(self, keys, hint, last):
        return [DONE if host or disk else MISSING for host, disk in self._copies(keys)]

    def _prefetch(self, keys, hint, last):
        return self._asked(keys, lambda some: self._call("prefetch", some, ttl_s=hint.ttl_s))

    _retain = _prefetch

    def _pin(self, keys, hint, last):
        if hint.ttl_s == 0:
            return self._asked(keys, lambda some: self._call("unpin", hint.owner, some).blocks)
        return self._asked(keys, lambda some: self._call("pin", some, hint.owner, ttl_s=hint.ttl_s).blocks)

    def _demote(self, keys, hint, last):
        """What has no copy on disk yet waits for the daemon to write it there, and is kept if it does not."""
        copies = dict(zip(keys, self._copies(keys), strict=True))
        both = [key for key in keys if copies[key] == (True, True)]
        cleared = dict(zip(both, self._asked(both, self._clear_host), strict=True))
        others = {(True, False): BlockStatus.KEPT if last else PENDING, (False, True): DONE, (False, False): MISSING}
        # MISSING of `cleared`: it has left HOST by itself meanwhile
        return [DONE if cleared.get(key) == MISSING else cleared.get(key) or others[copies[key]] for key in keys]

    def _clear_host(self, some):
        return self._call("clear", kvlarder.SelectionScope.BLOCKS, some, tiers=[kvlarder.Tier.HOST]).blocks

    def _call(self, verb, *args, **kwargs):
        return self._link.call(verb, *args, deadline_s=DEADLINE_S, **kwargs)

    def _copies(self, keys):
        return [found for some in self._parts(keys) for found in self._link.copies(some, DEADLINE_S)]

    def _asked(self, keys, ask):
        """Returns the status of each key.  ask: returns (digest, status) pairs of a selection; called with as many blocks at once
        as one call takes."""
        digests, found = self._link.digests(keys), {}
        for some in self._parts(digests):
            found.update(ask(self._link.selection(some)))
        return [found[digest] for digest in digests]

    def _parts(self, items):
        """Yields as many items as one call takes.  Raises _Closing between two calls."""
        for first in range(0, len(items), DIGESTS_MAX):
            self._check_open()
            yield items[first : first + DIGESTS_MAX]


def _outcome(hint, outcome, final, *counts, reason=""):
    return HintOutcome(hint.message_id, hint.action_id, hint.action, outcome, final, *counts, reason=reason)
