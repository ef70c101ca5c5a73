"""Larder as a KV connector of vLLM, and as a tier of vLLM's own offloading.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "LarderConnector",
        "kv_connector_module_path": "kvlarder.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592,
            "secondary_tiers": [{"type": "LarderTier", "module_path": "kvlarder.vllm", "revision": "..."}]}}'

Importing this package imports neither vLLM nor torch, and connects to nothing.  docs/engines/vllm.md and vllm-tier.md have the
options.
"""


def __getattr__(name):
    if name == "LarderConnector":
        from kvlarder.vllm.connector import LarderConnector

        return LarderConnector
    if name == "LarderScheduler":
        from kvlarder.vllm.scheduler_class import LarderScheduler

        return LarderScheduler
    if name == "LarderTier":
        from kvlarder.vllm_tier.tier import LarderTier

        return LarderTier
    raise AttributeError(f"module 'kvlarder.vllm' has no attribute '{name}'")
