"""What LarderTier uses of vLLM's offloading, and whether the installed version has it.  Beside it only tier.py imports that."""

from kvlarder import interfaces
from kvlarder.vllm import versions

try:
    import vllm
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats  # noqa: F401
    from vllm.logger import init_logger
    from vllm.v1.kv_offload.base import (  # noqa: F401
        Locality,
        LookupResult,
        OffloadingCounterMetadata,
        RequestOffloadingContext,
    )
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager  # noqa: F401
    from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: F401
except ImportError as error:
    raise ImportError(f"LarderTier needs a vLLM that it was tested with, {versions.described()} ({error})") from error

logger = init_logger("vllm.larder")

# Methods of vLLM's SecondaryTierManager that LarderTier overrides, with the parameters that it was written for.
EXPECTED = {
    "build_metric_definitions": ("extra_config",),
    "drain_jobs": (),
    "get_finished_jobs": (),
    "get_stats": (),
    "lookup": ("key", "req_context"),
    "on_new_request": ("req_context",),
    "on_request_finished": ("req_context",),
    "on_schedule_end": ("context",),
    "shutdown": (),
    "submit_load": ("job_metadata",),
    "submit_store": ("job_metadata",),
}


def check(base=SecondaryTierManager):
    """Raises ImportError if the installed vLLM is not one that the tier fits."""
    interfaces.check(base, EXPECTED, "LarderTier", f"vLLM {vllm.__version__}", versions.described())
