"""What the storage uses of SGLang, and whether the installed version has it.  Beside it only storage.py imports SGLang."""

import logging

from kvlarder import interfaces
from kvlarder.sglang import versions

try:
    from sglang.srt.mem_cache.hicache_storage import (  # noqa: F401
        HiCacheStorage,
        PoolName,
        PoolTransferResult,
    )
    from sglang.version import __version__ as VERSION
except ImportError as error:
    raise ImportError(f"kvlarder.sglang needs an SGLang that it was tested with, {versions.described()} ({error})") from error

logger = logging.getLogger("sglang.larder")

# Methods that the storage overrides, with their parameters.
EXPECTED = {
    "batch_exists": ("keys", "extra_info"),
    "batch_exists_v2": ("keys", "pool_transfers", "extra_info"),
    "batch_get": ("keys", "target_locations", "target_sizes"),
    "batch_get_v1": ("keys", "host_indices", "extra_info"),
    "batch_get_v2": ("transfers", "extra_info"),
    "batch_set": ("keys", "values", "target_locations", "target_sizes"),
    "batch_set_v1": ("keys", "host_indices", "extra_info"),
    "batch_set_v2": ("transfers", "extra_info"),
    "clear": (),
    "exists": ("key",),
    "get": ("key", "target_location", "target_sizes"),
    "get_stats": (),
    "on_host_pools_registered": (),
    "register_mem_host_pool_v2": ("host_pool", "host_pool_name"),
    "register_mem_pool_host": ("mem_pool_host",),
    "set": ("key", "value", "target_location", "target_sizes"),
}


def check(base=HiCacheStorage):
    """Raises ImportError if the installed SGLang is not one that the storage fits."""
    interfaces.check(base, EXPECTED, "kvlarder.sglang", f"SGLang {VERSION}", versions.described())


class ServerArguments:
    """SGLang's server arguments in effect in this process, as attributes: what SGLang made of those that it was started
    with, and of later requests, for example to load other weights."""

    def __init__(self, context):
        """context: SGLang's RuntimeContext."""
        self._context = context

    def __getattr__(self, name):
        try:
            return self._context.config_leaf(name)
        except ValueError as error:
            raise AttributeError(f"SGLang {VERSION} has no server argument {name} ({error})") from error


def server_args():
    """Returns the ServerArguments, or None if this process has not published them."""
    from sglang.srt.runtime_context import get_context

    context = get_context()
    return ServerArguments(context) if context.is_config_namespace_published("model") else None


def storage_metrics(prefetch_pages, backup_pages, prefetch_gb_per_s, backup_gb_per_s):
    """Returns what SGLang's metrics take: four lists, with an entry for each call that moved pages."""
    from sglang.srt.observability.metrics_collector import StorageMetrics

    return StorageMetrics(prefetch_pages, backup_pages, prefetch_gb_per_s, backup_gb_per_s)
