"""What vLLM servers have counted, from their /metrics.

Thread-safety: pure functions.
"""

import collections

from processes import Failed
from prometheus_client.parser import text_string_to_metric_families

# Names of this program: (of vLLM's counter, its labels).
COUNTERS = {
    "device": ("vllm:prompt_tokens_cached_by_source_total", {"source": "device"}),
    "host": ("vllm:prompt_tokens_cached_by_source_total", {"source": "host"}),
    "disk": ("vllm:prompt_tokens_cached_by_source_total", {"source": "disk"}),
    "computed": ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}),
    "bytes_loaded": ("vllm:larder_bytes_loaded_total", {}),
    "blocks_failed": ("vllm:larder_blocks_load_failed_total", {}),
    "restores": ("vllm:larder_restores_total", {}),
    "by_layer": ("vllm:larder_loads_by_layer_total", {}),
    "preempted": ("vllm:num_preemptions_total", {}),
}


def counts_of(page):
    """Returns a Counter by the names in COUNTERS of one page of metrics.  A counter that is not there is 0."""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return collections.Counter(
        {
            name: sum(one.value for one in samples if one.name == metric and labels.items() <= one.labels.items())
            for name, (metric, labels) in COUNTERS.items()
        }
    )


async def counts(http, servers):
    """Returns the sum of what the servers have counted since they began.  Raises Failed."""
    total = collections.Counter()
    for server in servers:
        async with http.get(f"{server.url}/metrics") as reply:
            if reply.status != 200:
                raise Failed(f"{server.name} answered to /metrics with status {reply.status}")
            total.update(counts_of(await reply.text()))
    return total
