"""What the connector uses of vLLM, and whether the installed version has it.  Beside it only connector.py and
scheduler_class.py import vLLM."""

from kvlarder import interfaces
from kvlarder.vllm import versions

try:
    import vllm
    import vllm.envs
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: F401
        KVConnectorBase_V1,
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorTransferResults,
        KVConnectorWorkerMetadata,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (  # noqa: F401
        KVConnectorPromMetrics,
        KVConnectorStats,
    )
    from vllm.logger import init_logger
    from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: F401
except ImportError as error:
    raise ImportError(f"kvlarder.vllm needs a vLLM that it was tested with, {versions.described()} ({error})") from error

logger = init_logger("vllm.larder")

# Methods that the connector overrides, with their parameters.
EXPECTED = {
    "bind_connector_metadata": ("connector_metadata",),
    "bind_gpu_block_pool": ("gpu_block_pool",),
    "bind_kv_cache_manager": ("kv_cache_manager",),
    "build_connector_meta": ("scheduler_output",),
    "build_connector_worker_meta": (),
    "build_kv_connector_stats": ("data",),
    "build_prom_metrics": ("vllm_config", "metric_types", "labelnames", "per_engine_labelvalues"),
    "get_block_ids_with_load_errors": (),
    "get_external_cache_hit_sources": ("request", "num_external_tokens"),
    "get_handshake_metadata": (),
    "get_kv_connector_stats": (),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "get_transfer_results": ("finished_req_ids",),
    "has_pending_block_frees": (),
    "has_pending_push_work": (),
    "on_new_request": ("request",),
    "register_kv_caches": ("kv_caches",),
    "request_finished": ("request", "block_ids"),
    "reset_cache": (),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata", "kwargs"),
    "set_xfer_handshake_metadata": ("metadata",),
    "shutdown": (),
    "start_load_kv": ("forward_context", "kwargs"),
    "update_connector_output": ("connector_output",),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "wait_for_layer_load": ("layer_name",),
    "wait_for_save": (),
}


def check(base=KVConnectorBase_V1):
    """Raises ImportError if the installed vLLM is not one that the connector fits."""
    interfaces.check(base, EXPECTED, "kvlarder.vllm", f"vLLM {vllm.__version__}", versions.described())


def restores(vllm_config):
    """Returns whether vLLM was started with LarderScheduler."""
    chosen = vllm_config.scheduler_config.scheduler_cls
    if isinstance(chosen, str):
        return chosen == "kvlarder.vllm.LarderScheduler"
    return chosen is not None and chosen.__module__ == "kvlarder.vllm.scheduler_class"


def why_not_by_layer(vllm_config):
    """Returns why no step of this engine may compute with blocks that are being loaded, or ''."""
    if vllm_config.parallel_config.world_size != 1:
        return "it has several ranks"
    if vllm_config.scheduler_config.async_scheduling:
        return "it schedules a step before the last one is known"
    if vllm_config.use_v2_model_runner:
        return "its V2 model runner takes no failed loads back"
    if vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
        return "it fails requests whose load fails"
    if vllm.envs.VLLM_RAISE_ON_LOGIT_NANS:
        return "VLLM_RAISE_ON_LOGIT_NANS ends it when a step that will be taken back has computed nonsense"
    return ""


def packing_of(vllm_config, kv_caches):
    """Returns (backend, version of vLLM, instruction set), which decide how a layer's KV is packed.  Raises ValueError if unknown."""
    layers = vllm_config.compilation_config.static_forward_context
    found = set()
    for name in kv_caches:
        layer = layers[name]
        backend = layer.get_attn_backend().get_name()
        isa = getattr(layer, "isa", None) or getattr(getattr(layer, "impl", None), "isa", None)
        if backend == "CPU_ATTN" and not isa:
            raise ValueError(f"layer {name} does not say how it packs its KV; this vLLM is not known to Larder")
        found.add(("cpu" if backend == "CPU_ATTN" else backend.lower(), isa or "any"))
    if len(found) != 1:
        raise ValueError(f"the layers pack their KV differently: {sorted(found)}")
    backend, isa = found.pop()
    return backend, ".".join(vllm.__version__.split(".")[:2]), isa
