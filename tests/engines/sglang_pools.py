"""SGLang's own host pools, without a GPU, and pages whose bytes are known.

A page's bytes are a function of its key, so that every page that is loaded can be checked, whoever stored it.
"""

import array
import hashlib

import sglang_parts  # first: it makes SGLang importable
import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

MEMORY_MAX = 1 << 30


def _options(layout, page, pages, first_layer, layers):
    return {
        "host_to_device_ratio": 1.0, "host_size": 0, "page_size": page, "layout": layout, "pin_memory": False,
        "device_capacity_tokens": (pages - 1) * page, "start_layer": first_layer, "end_layer": first_layer + layers,
    }  # fmt: skip


def mha_pool(layout="page_first", *, page=16, pages=64, layers=2, heads=2, dim=8, v_dim=None, dtype=torch.bfloat16,
             first_layer=0, drafts=0):  # fmt: skip
    """Returns SGLang's host pool of K and V, of a device pool of one page."""

    def buffers(count):
        k, v = ([torch.zeros(page, heads, d, dtype=dtype) for _ in range(count)] for d in (dim, v_dim or dim))
        tables = [torch.tensor([one.data_ptr() for one in some], dtype=torch.uint64) for some in (k, v)]
        return MHABufferInfo(
            buffers=KVBuffers(k=tuple(k), v=tuple(v), k_data_ptrs=tables[0], v_data_ptrs=tables[1], layout=KVBufferLayout.NHD),
            page_size=page, head_num=heads, head_dim=dim, v_head_dim=v_dim or dim, dtype=dtype, device=torch.device("cpu"),
        )  # fmt: skip

    kind = MHATokenToKVPoolHost if v_dim in (None, dim) else AsymmetricMHATokenToKVPoolHost
    with host_memory_budget_scope(MEMORY_MAX):
        return kind(
            buffers(layers),
            draft_buffer_infos=[buffers(1) for _ in range(drafts)],
            **_options(layout, page, pages, first_layer, layers),
        )


def mla_pool(layout="page_first", *, page=16, pages=64, layers=2, rank=24, rope=8, dtype=torch.bfloat16):
    """Returns SGLang's host pool of latent KV, which all ranks have."""
    buffers = tuple(torch.zeros(page, 1, rank + rope, dtype=dtype) for _ in range(layers))
    info = MLABufferInfo(
        buffers=buffers, data_ptrs=torch.tensor([one.data_ptr() for one in buffers], dtype=torch.uint64),
        layer_indices=tuple(range(layers)), device_layer_num=layers, page_size=page, kv_lora_rank=rank,
        qk_rope_head_dim=rope, kv_cache_dim=rank + rope, dtype=dtype, device=torch.device("cpu"),
    )  # fmt: skip
    with host_memory_budget_scope(MEMORY_MAX):
        return MLATokenToKVPoolHost(info, target_layer_num=layers, **_options(layout, page, pages, 0, layers))


def parts_of(pool, first):
    """Returns the tensors of the page that begins at slot `first`, without the pool's own way to find it."""
    buffers = [pool.kv_buffer] if isinstance(pool, MLATokenToKVPoolHost) else [pool.k_buffer, pool.v_buffer]
    if pool.layout == "page_first_direct":
        return [buffer[first // pool.page_size] for buffer in buffers]
    return [buffer[first : first + pool.page_size] for buffer in buffers]


def bytes_of(pool, first):
    return b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts_of(pool, first))


def expected(key, size, rank=0):
    """Returns the bytes of the page with this key on this rank."""
    return hashlib.shake_128(f"{rank} {key}".encode()).digest(size)


def fill(pool, first, key, rank=0):
    """Writes the page with this key."""
    at, data = 0, expected(key, sum(part.nbytes for part in parts_of(pool, first)), rank)
    for part in parts_of(pool, first):
        values = torch.frombuffer(bytearray(data[at : at + part.nbytes]), dtype=part.dtype)
        part.copy_(values.view(part.shape))
        at += part.nbytes


def holds(pool, first, key, rank=0):
    data = bytes_of(pool, first)
    return data == expected(key, len(data), rank)


def slots(pool, pages):
    """Returns the slots of pages of these numbers, as SGLang passes them."""
    firsts = torch.tensor(list(pages), dtype=torch.int64) * pool.page_size
    return (firsts[:, None] + torch.arange(pool.page_size)).flatten()


def chain_of_keys(seed, pages):
    """Returns the keys that SGLang makes of pages of tokens: each a SHA-256 of the one before and of its page.

    seed: what SGLang's storage_namespace_seed returned.
    """
    return sglang_parts.get_hash_str(array.array("q", [token for page in pages for token in page]), seed, len(pages[0]))
