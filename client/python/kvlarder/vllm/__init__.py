"""Larder as a KV connector of vLLM.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "LarderConnector",
        "kv_connector_module_path": "kvlarder.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

Importing this package imports neither vLLM nor torch, and connects to nothing.  docs/engines/vllm.md has the options.
"""


def __getattr__(name):
    if name == "LarderConnector":
        from kvlarder.vllm.connector import LarderConnector

        return LarderConnector
    if name == "LarderScheduler":
        from kvlarder.vllm.scheduler_class import LarderScheduler

        return LarderScheduler
    raise AttributeError(f"module 'kvlarder.vllm' has no attribute '{name}'")
