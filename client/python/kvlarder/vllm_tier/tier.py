"""LarderTier: the daemon as a tier of vLLM's own offloading (TieringOffloadingSpec, "secondary_tiers").

vLLM's tiering manager calls it in the scheduler's process and from the scheduler's thread; no call waits for the daemon.  The
bytes of chunks are copied between the rows of the primary tier and the daemon's pool by threads of C++ (jobs.py).
docs/engines/vllm-tier.md is for operators.
Thread-safety: one thread, as vLLM's manager has it.
"""

import ctypes
import time

import kvlarder
from kvlarder.vllm_tier import api
from kvlarder.vllm_tier.api import (
    CacheHitSource,
    JobResult,
    Locality,
    LookupResult,
    OffloadingConnectorStats,
    OffloadingCounterMetadata,
    RequestOffloadingContext,
    SecondaryTierManager,
    logger,
)
from kvlarder.vllm_tier.config import TierOptions
from kvlarder.vllm_tier.hints import HintDesk
from kvlarder.vllm_tier.jobs import TierJobs
from kvlarder.vllm_tier.link import TierLink
from kvlarder.vllm_tier.lookups import TierLookups, Verdict
from kvlarder.vllm_tier.names import BLOCK_TOKENS, Names, content_of, engine_id_of, layout_of, variant_of
from kvlarder.vllm_tier.stats import COUNTERS, Growth, metric_name

api.check()

RESULTS = {
    Verdict.PENDING: LookupResult.RETRY,
    Verdict.HOST: LookupResult.HIT,
    Verdict.DISK: LookupResult.HIT,
    Verdict.MISSING: LookupResult.MISS,
}
SOURCES = {Verdict.HOST: CacheHitSource.HOST, Verdict.DISK: CacheHitSource.DISK}


def _address_of(view):
    """Returns where the memory of a writable view begins, and keeps no hold of it: vLLM releases the view at its end."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _log(text, error):
    logger.error("Larder: %s", text, exc_info=error)


class LarderTier(SecondaryTierManager):
    """Options: TierOptions.  Raises ValueError for options, and for engines whose chunks have no name."""

    medium = None  # a block is in host memory or on disk, or both

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, locality=None, **given):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        options, config = TierOptions.of(given), offloading_spec.config
        self.locality = Locality.LOCAL if locality is None else Locality(locality.upper())
        self._source = CacheHitSource.EXTERNAL_UNSPECIFIED
        self._state = None
        layout = layout_of(options, config, self.block_size_bytes, api.vllm.__version__)
        variant = variant_of(config, self.block_size_bytes, layout)
        content = content_of(options, config)
        engine_id = options.engine_id or engine_id_of(content, config, layout, options.tenant)
        self._cache = self._attached(options, engine_id, variant, primary_kv_view)
        names = Names(self._cache.seed, content)
        self._link = TierLink(
            names,
            variant,
            engine_id=engine_id,
            socket_dir=options.socket_dir,
            tenant=options.tenant,
            on_session=self._check_slab,
        )
        self._jobs = TierJobs(
            self._cache,
            names,
            load_timeout_s=options.load_timeout_ms / 1e3,
            store_timeout_s=options.store_timeout_ms / 1e3,
            load_blocks_max=options.load_queue_blocks,
            store_blocks_max=options.store_queue_blocks,
            log=_log,
        )
        self._lookups = TierLookups(self._link, self._serves, options.patience_ms / 1e3, _log)
        self._hints = None
        if options.hints:
            self._hints = HintDesk(
                self._link,
                groups=[group.group_id for group in config.groups],
                storing=self._jobs.storing,
                blocks_max=options.hint_blocks_max,
                patience_s=options.hint_patience_s,
                log=_log,
            )
        self._growth, self._reported, self._interval_s = Growth(), 0.0, options.stats_interval_s
        self._open, self._last_totals = True, {}
        logger.info("Larder is a tier; engine %s, blocks of %d bytes", engine_id, self.block_size_bytes)

    def _attached(self, options, engine_id, variant, view):
        pages = kvlarder.PageLayout.opaque(
            [_address_of(view)],
            page_bytes=self.block_size_bytes,
            page_stride=self.block_size_bytes,
            pages=len(view),
            page_tokens=BLOCK_TOKENS,
        )
        return kvlarder.EngineCache(
            engine_id=engine_id,
            variants=[variant],
            socket_dir=options.socket_dir,
            tenant=options.tenant,
            pages=pages,
            loaders=options.loaders,
            storers=options.storers,
            load_blocks=options.load_queue_blocks,
            store_blocks=options.store_queue_blocks,
            copy_threads=options.copy_threads,
        )

    def _check_slab(self, session):
        if session.slab_bytes < self.block_size_bytes:
            logger.error(
                "Larder stores nothing of this engine: a chunk has %d bytes and the daemon takes blocks of %d; "
                "start larderd with a larger --slab, or vLLM with fewer blocks_per_chunk",
                self.block_size_bytes,
                session.slab_bytes,
            )

    def _serves(self):
        state = self._cache.state
        if state != self._state:
            self._state = state
            logger.info("Larder is used" if not state else "Larder is not used: %s", *([state] if state else []))
        return not state

    # ---- lookups

    @property
    def cache_hit_source(self):
        """Where the block of the last hit is: the manager reads it right after each hit."""
        return self._source

    def lookup(self, key, req_context):
        request = req_context.req_id
        verdict = self._lookups.look(key, request)
        if verdict in SOURCES:
            self._source = SOURCES[verdict]
            if self._hints is not None:
                self._hints.note(request, (key,))
        return RESULTS[verdict]

    def on_new_request(self, req_context):
        if self._hints is not None and req_context.kv_hints is not None:
            self._hints.begin(req_context.req_id, req_context.kv_hints)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context):
        self._lookups.forget(req_context.req_id)
        if self._hints is not None:
            self._hints.finish(req_context.req_id)

    def on_schedule_end(self, context):
        self._lookups.flush()
        if self._hints is not None:
            self._hints.take()

    # ---- jobs

    def submit_store(self, job_metadata):
        if self._hints is not None:
            self._hints.note(job_metadata.req_context.req_id, job_metadata.keys)
        self._submit(job_metadata, loads=False)

    def submit_load(self, job_metadata):
        self._submit(job_metadata, loads=True)

    def _submit(self, job, loads):
        self._jobs.submit(job.job_id, job.keys, job.chunk_ids.tolist(), loads)

    def get_finished_jobs(self):
        """A generator: the manager forgets the hits of a job's failed keys by cache_hit_source, before it goes on."""
        for done in self._jobs.finished():
            if done.loads and done.failed:
                self._source = SOURCES.get(self._lookups.verdict(done.failed[0]), self._source)
                self._lookups.mark_missing(done.failed)
            elif not done.loads:
                self._lookups.mark_stored(done.moved)
            yield JobResult(
                job_id=done.job,
                success=not done.failed,
                successful_keys=done.moved if done.loads and done.failed else None,
                transfer_time=done.seconds,
                transfer_bytes=len(done.moved) * self.block_size_bytes,
            )

    def drain_jobs(self):
        self._jobs.drain()

    # ---- hints

    def take_hint_outcomes(self):
        """Returns the HintOutcomes since the last call; of more than hints.ACTIONS_MAX, the last."""
        return [] if self._hints is None else self._hints.outcomes()

    # ---- counters, and the end

    @classmethod
    def build_metric_definitions(cls, extra_config):
        return {
            metric_name(name): OffloadingCounterMetadata(documentation=text, labelnames=labels)
            for name, (text, labels) in COUNTERS.items()
        }

    def totals(self):
        """Returns {(counter, labels): count since the beginning}."""
        if self._open:
            cache, asked = self._cache.stats(), self._lookups
            counts = {name: cache[name] for name in COUNTERS if name in cache}
            counts["blocks_dropped"] += self._jobs.dropped
            counts |= {"blocks_load_failed": self._jobs.failed[True], "blocks_store_failed": self._jobs.failed[False]}
            counts |= {"keys_asked": asked.asked, "keys_found_host": asked.hits_host, "keys_found_disk": asked.hits_disk}
            counts |= {"keys_impatient": asked.impatient, "keys_refused": asked.refused, "keys_unanswered": asked.unanswered}
            self._last_totals = {(name, ()): count for name, count in counts.items()}
        if self._hints is not None:
            self._hints.take()
            self._last_totals |= {("hints", labels): count for labels, count in self._hints.counts.items()}
        return self._last_totals

    def get_stats(self):
        now = time.monotonic()
        if now - self._reported < self._interval_s:
            return None
        self._reported = now
        stats = OffloadingConnectorStats()
        for (name, labels), grown in self._growth.of(self.totals()).items():
            stats.increase_counter(metric_name(name), grown, labels)
        return stats

    def shutdown(self):
        """Ends all jobs; get_finished_jobs returns them.  Nothing touches the primary tier afterwards."""
        if not self._open:
            return
        self.totals()
        self._open = False
        self._jobs.close()
        self._lookups.close()
        if self._hints is not None:
            self._hints.close()
        self._link.close()
