"""The storage backend that SGLang constructs in the process of each rank.

SGLang calls it from its threads for prefetch and backup, and from its scheduler.
Invariants: a call ends within its timeout, whether or not there is a daemon.  No exception leaves a call that SGLang's
threads make; what cannot be answered is not stored (0, False).  A page is True only if all its bytes are where they
belong.  Only attaching (register_mem_pool_host, on_host_pools_registered) and `clear` raise, and SGLang shows why.
"""

import itertools
import time

import kvlarder
from kvlarder.sglang import api, identity
from kvlarder.sglang.config import Config
from kvlarder.sglang.host_pages import HostPages
from kvlarder.sglang.page_names import PageNames
from kvlarder.sglang.promises import Promises
from kvlarder.sglang.refusal import Refused, refuse
from kvlarder.sglang.session_keeper import CONNECT_DEADLINE_S, REGISTER_DEADLINE_S, Live, SessionKeeper
from kvlarder.sglang.stats import Counters

FULL = object()
OK, DUPLICATE = kvlarder.BlockStatus.OK, kvlarder.BlockStatus.DUPLICATE
CLEAR_DEADLINE_S = 10.0


class LarderStorage(api.HiCacheStorage):
    def __init__(self, storage_config, kwargs=None):
        """storage_config: HiCacheStorageConfig; kwargs: what SGLang's factory passes on, unused.  Does not connect.  Raises
        Refused or ValueError, which say what to change."""
        api.check()
        identity.check(storage_config)
        self._storage_config, self._config = storage_config, Config.of(storage_config.extra_config)
        self._counters = Counters(self._config.log_interval_s, time.monotonic)
        self._promises = Promises(self._config.promises_max)
        self._pages = self._identity = self._keeper = self._names = None
        self._sidecars = []  # names of pools that Larder does not keep
        self._complaints = set()  # kinds of complaints that were logged
        self._refusal = ""  # why all calls are answered with nothing

    # ---- attaching

    def register_mem_pool_host(self, mem_pool_host):
        """Takes the pool whose pages are kept; again the same one changes nothing.  Raises Refused."""
        if self._pages is not None:
            if not self._pages.is_of(mem_pool_host):
                refuse("it has registered two host pools", "attach the storage anew")
            return
        super().register_mem_pool_host(mem_pool_host)
        pages = HostPages(mem_pool_host)
        self._identity = identity.identity_of(self._storage_config, pages, self._config, api.server_args(), api.VERSION)
        self._pages = pages

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        """Takes the KV pool once more, which changes nothing.  Any other pool is refused when all are registered, or, if it
        comes later, makes the storage answer all calls with nothing."""
        name = str(host_pool_name)
        if name == str(api.PoolName.KV) and (self._pages is None or self._pages.is_of(host_pool)):
            return
        if name not in self._sidecars:
            self._sidecars.append(name)
        if self._keeper is not None:
            self._refusal = self._sidecars_text()
            self._complain(f"Larder is not used any more, because {self._refusal}")

    def on_host_pools_registered(self):
        """Begins to connect.  Raises Refused if there are pools that Larder does not keep."""
        if self._pages is None:
            refuse("it has registered no host pool", "call register_mem_pool_host first")
        if self._sidecars:
            refuse(self._sidecars_text(), "start SGLang without this storage, or without what needs these pools")
        if self._keeper is None:
            name = self._identity.engine_id
            self._keeper = SessionKeeper(name, self._attach, self._lose, api.logger, self._counters)

    def close(self):
        """Ends the session, in any state, also after a failed attach.  Later calls are answered with nothing."""
        if self._keeper is not None:
            self._keeper.close()

    # ---- pages

    def batch_exists(self, keys, extra_info=None):
        """Returns how many of the keys, from the first one on, are stored.  The daemon keeps their pages for promise_life_s,
        or until they were read."""
        self._counters.add("lookups")
        return self._serve("batch_exists", 0, lambda live: self._find(live, keys, extra_info))

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        """Returns for each key whether its page lies now in these slots of the host pool."""
        return self._serve("batch_get_v1", [False] * len(keys), lambda live: self._load(live, keys, host_indices, extra_info))

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        """Returns for each key whether the page in these slots is stored."""
        if not self._storage_config.is_storage_writer:
            return [True] * len(keys)  # another rank has the same bytes, and stores them
        return self._serve("batch_set_v1", [False] * len(keys), lambda live: self._store(live, keys, host_indices, extra_info))

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def clear(self):
        """Removes all pages of this model from the daemon, those of other ranks and engines, too.  Raises RuntimeError if
        they may still be there, which SGLang logs."""
        self._promises.let_all_go()
        if self._identity is None:
            raise RuntimeError(f"Larder was not cleared: {self.state}")
        try:
            client = kvlarder.connect(self._config.socket_dir, self._config.tenant, CONNECT_DEADLINE_S)
            cleared = client.clear(
                kvlarder.SelectionScope.CONTENT,
                kvlarder.BlockSelection(content=self._identity.content),
                deadline_s=CLEAR_DEADLINE_S,
            )
        except Exception as error:
            raise RuntimeError(f"Larder was not cleared: {error}") from error
        if cleared.kept_pinned:
            raise RuntimeError(f"Larder was not cleared: {cleared.kept_pinned} pages are pinned; larderctl unpin")

    # ---- what SGLang calls without interface_v1, or for pools that are not kept

    def get(self, key, target_location=None, target_sizes=None):
        return None

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        return [None] * len(keys)

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return False

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        return False

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        if pool_transfers:
            self._complain_of_pools(pool_transfers)
            return api.PoolTransferResult.empty()
        return api.PoolTransferResult(self.batch_exists(keys, extra_info), {})

    def batch_get_v2(self, transfers, extra_info=None):
        return self._no_pools(transfers)

    def batch_set_v2(self, transfers, extra_info=None):
        return self._no_pools(transfers)

    # ---- what it has done

    def get_stats(self):
        """Returns SGLang's StorageMetrics of the calls since the last time."""
        return api.storage_metrics(*self._counters.take_moves()) if self._storage_config.enable_storage_metrics else None

    def counts(self):
        """Returns counts since the beginning, by the names in stats.COUNTERS."""
        return self._counters.counts()

    @property
    def state(self):
        """'' while a daemon serves, otherwise why not."""
        if self._refusal:
            return self._refusal
        return self._keeper.state if self._keeper is not None else "it is not attached"

    # ---- the calls, with a session

    def _serve(self, call, nothing, work):
        """Returns work(live), or `nothing` if there is no session, or it did not answer.  call: its name, for the log."""
        live = self._keeper.get() if self._keeper is not None and not self._refusal else None
        if live is None:
            self._counters.add("calls_unserved")
            return nothing
        try:
            return work(live)
        except (TimeoutError, ConnectionError) as error:
            self._counters.add("calls_late" if isinstance(error, TimeoutError) else "calls_lost")
            self._keeper.note(live, error)
        except Exception as error:  # of whatever kind: SGLang's thread must go on
            self._counters.add("calls_failed")
            self._complain(
                f"Larder answered {call} with nothing, because it failed: {type(error).__name__}: {error}; further such "
                "failures are counted (calls_failed), not logged",
                kind=(call, type(error)),  # texts of one kind differ, for example in numbers
            )
        finally:
            self._log_counts()
        return nothing

    def _find(self, live, keys, extra_info):
        names = list(itertools.takewhile(lambda name: name is not None, self._named(live, keys, extra_info)))
        most = kvlarder.LOOKUP_TOKENS_MAX // self._pages.tokens
        until = time.monotonic() + self._config.exists_timeout_ms / 1e3
        found = 0
        for first in range(0, len(names), most):
            some = names[first : first + most]
            stored = self._promised(live, some, until)
            found += stored
            if stored < len(some):
                break
        self._counters.add("pages_found", found)
        return found

    def _promised(self, live, names, until):
        """Returns how many of these, from the first one on, the daemon has and promises to keep."""
        distinct = list({name.digest: name for name in names}.values())
        steps = live.names.steps(distinct)
        promise = self._ask(live, steps, until)
        if promise is FULL:
            self._promises.let_all_go()  # what is asked for now is read sooner than what was asked for before
            promise = self._ask(live, steps, until)
        if promise is FULL:
            self._counters.add("promises_refused")
        if promise is FULL or promise is None:
            return 0
        stored = {name.digest for name in distinct[: promise.tokens // self._pages.tokens]}
        self._promises.keep(promise, stored)
        return len(list(itertools.takewhile(lambda name: name.digest in stored, names)))

    def _ask(self, live, steps, until):
        """Returns a Promise, None if nothing is stored, or FULL if the daemon has no room for one."""
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for the question is over")
        try:
            return live.session.promise([live.variant], steps, life_s=self._config.promise_life_s, deadline_s=left)
        except RuntimeError as error:
            if getattr(error, "code", "") != "RESOURCE_EXHAUSTED":
                raise
            return FULL

    def _load(self, live, keys, host_indices, extra_info):
        names = self._named(live, keys, extra_info)
        pieces = self._pages.pieces(host_indices, len(keys))
        wanted = [(at, kvlarder.GetBlock(name.digest, pieces[at])) for at, name in enumerate(names) if name is not None]
        digests = [name.digest for name in names if name is not None]
        promise = self._promises.of(digests[0]) if digests else 0
        begun = time.monotonic()
        status = live.session.get(
            live.variant,
            [block for _, block in wanted],
            promise=promise,
            deadline_s=self._config.get_timeout_ms / 1e3,
        )
        self._promises.read(digests)
        return self._moved("load", keys, wanted, status, (OK,), time.monotonic() - begun)

    def _store(self, live, keys, host_indices, extra_info):
        names = self._named(live, keys, extra_info)
        pieces = self._pages.pieces(host_indices, len(keys))
        wanted = [
            (at, kvlarder.PutBlock(name.digest, name.parent, name.tokens, pieces[at], live.names.seed))
            for at, name in enumerate(names)
            if name is not None
        ]
        begun = time.monotonic()
        status = live.session.put(
            live.variant, [block for _, block in wanted], deadline_s=self._config.set_timeout_ms / 1e3
        )
        self._counters.add("pages_duplicate", status.count(DUPLICATE))
        return self._moved("store", keys, wanted, status, (OK, DUPLICATE), time.monotonic() - begun)

    def _moved(self, kind, keys, wanted, status, good, seconds):
        """Counts a call that moved pages, and returns its answer."""
        answer = [False] * len(keys)
        for (at, _), one in zip(wanted, status):
            answer[at] = one in good
        moved = status.count(OK)
        done, failed, size = {"load": ("pages_loaded", "pages_load_failed", "bytes_loaded"),
                              "store": ("pages_stored", "pages_store_failed", "bytes_stored")}[kind]  # fmt: skip
        self._counters.add(done, moved)
        self._counters.add(failed, answer.count(False))
        self._counters.add(size, moved * self._pages.bytes)
        self._counters.moved(kind, moved, moved * self._pages.bytes, seconds)
        return answer

    def _named(self, live, keys, extra_info):
        prefix = extra_info.prefix_keys if extra_info is not None else None
        if prefix and not self._config.chained:
            self._complain("SGLang passes prefix keys, which are not used unless the option 'chained' is set")
        names = live.names.of(keys, prefix)
        self._counters.add("keys_refused", names.count(None))
        return names

    # ---- the session

    def _attach(self):
        """Returns a new Live.  On the keeper's thread."""
        who = self._identity
        client = kvlarder.connect(self._config.socket_dir, self._config.tenant, CONNECT_DEADLINE_S)
        session = client.attach(who.engine_id, who.rank, self._config.copy_threads)
        try:
            if self._pages.bytes > session.slab_bytes:
                raise Refused(
                    f"a page has {self._pages.bytes} bytes, and the daemon takes {session.slab_bytes} at most: start larderd "
                    "with a larger --slab, or SGLang with a smaller --page-size"
                )
            variant = session.register([who.content], [who.variant], REGISTER_DEADLINE_S)[0]
            seed = session.seed(who.content)
        except BaseException:
            session.close()
            raise
        if self._names is None or self._names.seed != seed:  # another daemon may know this user as another tenant
            self._names = PageNames(seed, self._pages.tokens, self._config.chained)
        return Live(session, variant, self._names)

    def _lose(self, live):
        self._promises.let_all_go()  # a promise would keep its session alive

    # ---- saying what is wrong

    def _sidecars_text(self):
        return f"it needs the pools {', '.join(self._sidecars)}, and Larder keeps {api.PoolName.KV} alone"

    def _complain_of_pools(self, transfers):
        names = sorted({str(transfer.name) for transfer in transfers})
        self._complain(f"SGLang asks for the pools {', '.join(names)}, which Larder does not keep: it finds nothing")

    def _no_pools(self, transfers):
        self._complain_of_pools(transfers)
        return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}

    def _complain(self, text, kind=None):
        """Logs a text once, or once for each kind.  There must be few kinds, or texts without one: all are remembered."""
        kind = kind or text
        if kind not in self._complaints:
            self._complaints.add(kind)
            api.logger.warning("%s", text)

    def _log_counts(self):
        if line := self._counters.take_line():
            api.logger.info("Larder: %s", line)
