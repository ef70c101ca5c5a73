"""The parts of SGLang that a storage backend meets: its interface, factory, fault injector, host pools and controller.

They run on a CPU, but importing them imports packages for GPUs and notebooks that they do not use there.  Where such a
package is not installed, a mock takes its place.
"""

import argparse
import array
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from unittest import mock

UNUSED = ("IPython", "pynvml", "sgl_kernel", "torch_memory_saver", "torchvision")


class _MockedPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return mock.MagicMock(name=spec.name, __spec__=spec, __path__=[])

    def exec_module(self, module):
        pass


def _import():
    # transformers asks whether torchvision is there, and must not find a mock.
    from transformers import AutoImageProcessor, AutoModel, AutoProcessor  # noqa: F401

    sys.meta_path.append(_MockedPackages([name for name in UNUSED if importlib.util.find_spec(name) is None]))


_import()

from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402, F401
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    HiCacheStorageFailureInjector,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402, F401
from sglang.srt.mem_cache import utils  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.srt.mem_cache.cpp_utils.native_hash import _native_hash_input  # noqa: E402
from sglang.srt.mem_cache.rust_tree_core.mem_cache import get_hash_str  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402, F401
from sglang.srt.mem_cache.utils import get_storage_hash_str, storage_namespace_seed  # noqa: E402, F401


def _hashed(token_ids, prior, page_tokens):
    tokens, _, _, bigrams = _native_hash_input(token_ids)
    return get_hash_str(array.array("q", tokens), prior.hex() if prior else None, page_tokens, bigrams)


# SGLang has its hash in C++, which it compiles when it is first used, and in Rust, which its package has compiled.
utils.get_native_hash = _hashed


def flags():
    """Returns the flag of each of SGLang's server arguments."""
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {action.dest: action.option_strings[0] for action in reversed(parser._actions)}
