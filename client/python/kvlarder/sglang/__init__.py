"""Larder as a storage backend of SGLang's HiCache.

    python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache --hicache-mem-layout page_first
        --page-size 64 --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "larder",
        "module_path": "kvlarder.sglang", "class_name": "LarderStorage", "interface_v1": 1}'

Importing this package imports neither SGLang nor torch, and connects to nothing.  docs/engines/sglang.md has the options.
"""


def __getattr__(name):
    if name == "LarderStorage":
        from kvlarder.sglang.storage import LarderStorage

        return LarderStorage
    raise AttributeError(f"module 'kvlarder.sglang' has no attribute '{name}'")
