"""LarderConnector, which vLLM constructs: in its scheduler, in each worker, and as a class in the API server.

It decides nothing itself: calls go to SchedulerSide or WorkerSide.
"""

import dataclasses
import time

from kvlarder.vllm import api, engine_facts, metadata, names, pages, scheduler, stats, worker
from kvlarder.vllm.config import Config

api.check()


class LarderStats(api.KVConnectorStats):
    def reset(self):
        self.data = {}

    def aggregate(self, other):
        self.data = stats.joined(self.data, other.data)
        return self

    def reduce(self):
        return stats.summary(self.data)

    def is_empty(self):
        return not self.data


class LarderProm(api.KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {}
        for name, text in stats.COUNTERS.items():
            metric = self._counter_cls(name=stats.metric_name(name), documentation=text, labelnames=labelnames)
            self._metrics[name] = self._per_engine(metric)
        for name, text in stats.TIMES.items():
            metric = self._histogram_cls(
                name=stats.metric_name(name), documentation=text, labelnames=labelnames, buckets=stats.TIME_BUCKETS
            )
            self._metrics[name] = self._per_engine(metric)

    def _per_engine(self, metric):
        return {engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, value in transfer_stats_data.items():
            metric = self._metrics[name][engine_idx]
            if name in stats.COUNTERS:
                metric.inc(value)
            else:
                for seconds in value:
                    metric.observe(seconds)


class Step(metadata.Step, api.KVConnectorMetadata):
    pass


class Report(metadata.Report, api.KVConnectorWorkerMetadata):
    pass


class Hello(metadata.Hello, api.KVConnectorHandshakeMetadata):
    pass


class LarderConnector(api.KVConnectorBase_V1):
    requires_kv_delivery = property(lambda self: False)  # a store that is lost is a miss later, and no more

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._config = Config.of(transfer.kv_connector_extra_config)
        self._loads = self._config.load and transfer.is_kv_consumer
        self._stores = self._config.store and transfer.is_kv_producer
        self._facts = engine_facts.facts_of(vllm_config, kv_cache_config, self._config)
        self._collector = stats.Collector(self._config.stats_interval_s, time.monotonic)
        self._scheduler = self._worker = self._pool = None
        self._manager = None  # vLLM's KVCacheManager
        self._was_emptied = False  # vLLM's own cache, by the last reset
        if role == api.KVConnectorRole.SCHEDULER and self._loads and transfer.kv_load_failure_policy != "recompute":
            api.logger.warning(
                "kv_load_failure_policy is '%s': a request fails whenever one of its blocks cannot be loaded, although "
                "it could be computed. Set it to 'recompute' in --kv-transfer-config.",
                transfer.kv_load_failure_policy,
            )
        if role == api.KVConnectorRole.SCHEDULER and getattr(vllm_config, "weight_transfer_config", None) is not None:
            api.logger.warning(
                "Weights of this engine can be replaced. After each change reset the prefix cache with reset_connector=True "
                "(/reset_prefix_cache?reset_external=true): otherwise KV of the old weights is loaded."
            )

    # ---- scheduler

    def set_xfer_handshake_metadata(self, metadata):
        hellos = [metadata[rank] for rank in sorted(metadata)]
        config = self._config.with_roles(self._loads, self._stores)
        contents = names.ContentNames(self._facts.model, engine_facts.revision_of(self._vllm_config, config))
        self._scheduler = scheduler.SchedulerSide(config, self._facts, contents, hellos, self._collector, api.logger)
        self._scheduler.bind_block_pool(self._pool)
        if config.load and config.layer_by_layer:
            self._enable_layers(config)
        if self._scheduler.device is not None:
            self._scheduler.device.guard(self._manager)

    def _enable_layers(self, config):
        lazy = "blocks are stored late" if config.store and config.store_policy == "lazy" else ""
        if why := lazy or api.why_not_by_layer(self._vllm_config):
            api.logger.info("Prefixes are not loaded layer by layer: %s", why)
            return
        vllm = self._vllm_config.scheduler_config
        limit = vllm.long_prefill_token_threshold
        self._scheduler.enable_layers(min(vllm.max_num_batched_tokens, limit) if limit > 0 else vllm.max_num_batched_tokens)

    def bind_kv_cache_manager(self, kv_cache_manager):
        super().bind_kv_cache_manager(kv_cache_manager)
        self._manager = kv_cache_manager
        reset = kv_cache_manager.reset_prefix_cache

        def reset_after_stores():
            self._was_emptied = reset() if self._scheduler is None else self._scheduler.empty(reset)
            return self._was_emptied

        kv_cache_manager.reset_prefix_cache = reset_after_stores

    def bind_gpu_block_pool(self, gpu_block_pool):
        self._pool = gpu_block_pool

    def on_new_request(self, request):
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        ids = blocks.get_block_ids()[0] if num_external_tokens else ()
        self._scheduler.allocated(request, ids, num_external_tokens)

    def get_external_cache_hit_sources(self, request, num_external_tokens):
        host, disk = self._scheduler.hit_sources(request)
        return {s: n for s, n in ((api.CacheHitSource.HOST, host), (api.CacheHitSource.DISK, disk)) if n}

    def build_connector_meta(self, scheduler_output):
        cached = scheduler_output.scheduled_cached_reqs
        done = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        done.update(zip(cached.req_ids, cached.num_computed_tokens))
        scheduled = {request: (done[request], n) for request, n in scheduler_output.num_scheduled_tokens.items()}
        blocks = scheduler_output.kv_connector_block_state
        step = self._scheduler.build_step(scheduled, cached.resumed_req_ids, lambda one: blocks.get_block_ids(one)[0])
        return Step(step.loads, step.stores, step.cancels)

    def update_connector_output(self, connector_output):
        self._scheduler.step_computed()
        if connector_output.kv_connector_worker_meta is not None:
            self._scheduler.on_report(connector_output.kv_connector_worker_meta)

    def has_pending_block_frees(self):
        return self._scheduler.frees_blocks_soon

    def has_pending_push_work(self):
        return self._scheduler.has_work

    def request_finished(self, request, block_ids):
        self._scheduler.finished(request)
        return False, None

    def reset_cache(self):
        self._scheduler.reset(clean=self._was_emptied)
        return True

    @property
    def scheduler_side(self):
        """None until the workers have told where their KV lies."""
        return self._scheduler

    # ---- workers

    def register_kv_caches(self, kv_caches):
        described = pages.describe(kv_caches, self._facts, *api.packing_of(self._vllm_config, kv_caches))
        rank = self._vllm_config.parallel_config.rank
        self._tensors = kv_caches  # their memory must live as long as the worker
        restores = self._loads and api.restores(self._vllm_config)
        self._worker = worker.WorkerSide(self._config, self._facts, rank, described, self._collector, api.logger, restores)

    def get_handshake_metadata(self):
        hello = self._worker.hello()
        return Hello(*dataclasses.astuple(hello))

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context, **kwargs):
        pass  # begun in bind_connector_metadata, which comes before the forward

    def wait_for_layer_load(self, layer_name):
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        self._worker.end_forward()

    def get_transfer_results(self, finished_req_ids):
        return api.KVConnectorTransferResults(finished_recving=self._worker.take_loaded())

    def get_block_ids_with_load_errors(self):
        return self._worker.take_bad_pages()

    def build_connector_worker_meta(self):
        report = self._worker.take_report()
        return None if report is None else Report(report.ended)

    # ---- both

    def get_kv_connector_stats(self):
        side = self._scheduler or self._worker
        counts = None if side is None else side.take_counts()
        return None if counts is None else LarderStats(counts)

    def shutdown(self):
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return LarderStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return LarderProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)
