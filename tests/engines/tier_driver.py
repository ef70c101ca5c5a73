"""Drives LarderTier under vLLM's own tiering manager, without a GPU: this plays the scheduler and the workers.

vLLM's TieringOffloadingSpec constructs the manager, the primary tier in /dev/shm and, by type and module_path, the tier.  A
request is a list of chunks, which have keys in two KV groups: full attention, of which a request needs all chunks, and a
sliding window, of which it needs the last ones.  The bytes of a chunk are a function of its key, so that each row that vLLM
would load to a GPU can be checked.
"""

import collections
import dataclasses
import hashlib
import itertools
import time

import numpy
from kvlarder.vllm_tier.tier import LarderTier
from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

ROW = 8192  # bytes of a chunk of all workers
WINDOW = 2  # chunks that the sliding-window group needs
TOKENS = (16, 16)  # of a block, by group
engines = itertools.count()


def key_of(group, chunks):
    """Returns the key of the last of these chunks, which vLLM makes of all of them."""
    return make_offload_key(hashlib.sha256(repr(tuple(chunks)).encode()).digest(), group)


def bytes_of(key):
    """Returns the bytes of a row."""
    return numpy.frombuffer(hashlib.sha256(key).digest() * (ROW // 32), numpy.int8)


def hints_of(message, *actions):
    """Returns an envelope of (type, payload) pairs.  The id of an action is that of the message and its number."""
    return KvHintsEnvelope(
        protocol_version="1",
        message_id=message,
        actions=[
            KvHintAction(action_id=f"{message}/{number}", action_type=kind, action_version="1", payload=payload)
            for number, (kind, payload) in enumerate(actions)
        ],
    )


class WrongBytes(AssertionError):
    pass


class TimedTier(LarderTier):
    """Counts how long each call of the manager takes and the answers of each job, and checks each row that was loaded."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds, self.cpu_seconds = collections.defaultdict(list), []
        self.submitted, self.answered = {}, collections.Counter()  # jobs, by their ids
        self.checked = 0

    def _timed(self, name, call):
        cpu, began = time.thread_time(), time.perf_counter()
        result = call()
        self.seconds[name].append(time.perf_counter() - began)
        self.cpu_seconds.append(time.thread_time() - cpu)
        return result

    def lookup(self, key, req_context):
        return self._timed("lookup", lambda: super(TimedTier, self).lookup(key, req_context))

    def submit_store(self, job_metadata):
        self.submitted[job_metadata.job_id] = job_metadata
        return self._timed("submit_store", lambda: super(TimedTier, self).submit_store(job_metadata))

    def submit_load(self, job_metadata):
        self.submitted[job_metadata.job_id] = job_metadata
        return self._timed("submit_load", lambda: super(TimedTier, self).submit_load(job_metadata))

    def get_finished_jobs(self):
        for result in self._timed("get_finished_jobs", lambda: list(super(TimedTier, self).get_finished_jobs())):
            self.answered[result.job_id] += 1
            self._check(self.submitted[result.job_id], result)
            yield result

    def _check(self, job, result):
        if not job.is_promotion:
            return
        rows = numpy.asarray(self._primary_kv_view)
        good = job.keys if result.success else result.successful_keys
        for key, row in zip(job.keys, job.chunk_ids, strict=True):
            if key in good:
                self.checked += 1
                if not numpy.array_equal(rows[row], bytes_of(key)):
                    raise WrongBytes(f"job {result.job_id}: the row of {key.hex()}")

    def on_new_request(self, req_context):
        return self._timed("on_new_request", lambda: super(TimedTier, self).on_new_request(req_context))

    def on_request_finished(self, req_context):
        return self._timed("on_request_finished", lambda: super(TimedTier, self).on_request_finished(req_context))

    def on_schedule_end(self, context):
        return self._timed("on_schedule_end", lambda: super(TimedTier, self).on_schedule_end(context))

    def get_stats(self):
        return self._timed("get_stats", super().get_stats)


@dataclasses.dataclass
class Request:
    name: str
    chunks: list
    hints: KvHintsEnvelope | None = None
    context: ReqContext | None = None
    hits: int | None = None  # chunks that were restored; None while it is looked up
    sources: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # of its hits
    ends: list = dataclasses.field(default_factory=list)  # calls of the next step

    def keys(self, group):
        return [key_of(group, self.chunks[: end + 1]) for end in range(len(self.chunks))]


class TierEngine:
    """vLLM's scheduler, as its offloading sees it.  kept: the chunks of the primary tier."""

    def __init__(self, socket_dir, kept=48, name="", more=None, **options):
        tier = {"type": "TimedTier", "module_path": "tier_driver", "socket_dir": socket_dir, "revision": "1", **options}
        config = OffloadingConfig(
            groups=tuple(OffloadingGroupConfig(tokens, (f"layer.{group}",), group) for group, tokens in enumerate(TOKENS)),
            worker_kv_bytes_per_block=ROW,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": kept * ROW, "secondary_tiers": [tier], **(more or {})},
            engine_id=f"tier-test-{name or next(engines)}-{time.monotonic_ns()}",
            model=OffloadingModelConfig("a-model", "bfloat16"),
            cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        )
        self.manager = TieringOffloadingSpec(config).get_manager()
        self.tier = self.manager.secondary_tiers[0]
        self.rows = numpy.asarray(self.manager.primary_tier.get_kv_memoryview())
        self.requests, self._new = {}, []
        self.steps = self.checked = self.restored = self.not_stored = self.deferred = 0
        self.outcomes, self.counters = [], collections.Counter()

    # ---- requests

    def add(self, request):
        request.context = ReqContext(req_id=request.name, kv_hints=request.hints)
        self.manager.on_new_request(request.context)
        self.requests[request.name] = request
        self._new.append(request.name)

    @property
    def busy(self):
        return bool(self.requests) or self.manager.has_pending_work()

    def step(self):
        for request in list(self.requests.values()):
            self._advance(request)
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=self._new, preempted_req_ids=()))
        self._new = []
        self.outcomes += self.tier.take_hint_outcomes()
        if (stats := self.manager.get_stats()) is not None:
            self.counters.update(stats.reduce())
        self.steps += 1

    def _advance(self, request):
        if request.ends:  # the worker has copied
            for end in request.ends:
                end()
            request.ends = []
        if request.hits is None:
            self._look_up(request)
        elif not request.ends and request.hits < len(request.chunks):
            self._compute(request)
        elif not request.ends:
            del self.requests[request.name]
            self.manager.on_request_finished(request.context)

    def _look_up(self, request):
        """Full attention: the longest prefix; window: the last chunks of it."""
        full, window = request.keys(0), request.keys(1)
        hits, deferred = 0, False
        for key in full:
            result = self.manager.lookup(key, request.context)
            if result is LookupResult.MISS:
                break
            deferred |= result is not LookupResult.HIT
            hits += 1
        needed = window[max(0, hits - WINDOW) : hits]
        results = [self.manager.lookup(key, request.context) for key in needed]
        deferred |= any(result in (LookupResult.RETRY, LookupResult.HIT_PENDING) for result in results)
        if deferred:
            self.deferred += 1
            return
        request.hits = hits if LookupResult.MISS not in results else 0
        if request.hits:
            self._load(request, full[:hits] + needed)

    def _load(self, request, keys):
        for key in keys:
            request.sources[self.manager.get_load_source(key, request.context).value] += 1
        spec = self.manager.prepare_load(keys, request.context)
        for key, row in zip(keys, spec.chunk_ids, strict=True):
            if not numpy.array_equal(self.rows[row], bytes_of(key)):
                raise WrongBytes(f"{request.name}: the row of {key.hex()}")
            self.checked += 1
        self.restored += len(keys)
        request.ends.append(lambda: self.manager.complete_load(keys, request.context))

    def _compute(self, request, at_once=8):
        first, request.hits = request.hits, min(len(request.chunks), request.hits + at_once)
        for group in range(len(TOKENS)):
            keys = request.keys(group)[first : request.hits]
            stored = self.manager.prepare_store(keys, request.context)
            if stored is None:
                self.not_stored += len(keys)
            elif stored.keys_to_store:
                for key, row in zip(stored.keys_to_store, stored.store_spec.chunk_ids, strict=True):
                    self.rows[row] = bytes_of(key)
                request.ends.append(
                    lambda keys=stored.keys_to_store: self.manager.complete_store(keys, request.context, success=True)
                )

    def settle(self, within=30.0):
        """Steps until nothing is under way."""
        until = time.monotonic() + within
        while self.busy:
            self.step()
            time.sleep(0.0005)
            if time.monotonic() > until:
                raise AssertionError(f"never ends: {list(self.requests)}, jobs {list(self.manager._jobs)}")

    def close(self):
        self.rows = None
        self.manager.shutdown()

    def report(self):
        """Returns lines about the latencies of the calls."""
        tier = self.tier
        lines = []
        for name, seconds in sorted(tier.seconds.items()):
            seconds = sorted(seconds)
            p50, p99 = (seconds[min(len(seconds) - 1, int(len(seconds) * part))] for part in (0.5, 0.99))
            over = sum(one > 0.001 for one in seconds)
            lines.append(
                f"  {name:20} {len(seconds):7} calls, p50 {p50 * 1e6:6.1f} us, p99 {p99 * 1e6:7.1f} us, "
                f"max {seconds[-1] * 1e3:6.2f} ms, over 1 ms {over}"
            )
        busy = sum(one > 0.001 for one in tier.cpu_seconds)
        return [*lines, f"  calls that computed for more than 1 ms themselves: {busy}"]
