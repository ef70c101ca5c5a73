"""Where the pages of one of SGLang's host pools lie in memory.

A page is one piece of memory (MLA), or two (K and V).  SGLang says where they are (`get_page_buffer_meta`); nothing is
copied in Python.
Thread-safety: any thread, as long as the pool is not destroyed.
"""

import ctypes

from kvlarder.sglang.refusal import refuse

# Pools whose whole page is what get_page_buffer_meta returns, and the family of their layout.
FAMILIES = {
    "MHATokenToKVPoolHost": "mha",
    "AsymmetricMHATokenToKVPoolHost": "mha",
    "MLATokenToKVPoolHost": "mla",
}
LAYOUTS = ("page_first", "page_first_direct")
STEP, PAGE_TOKENS_MAX = 16, 4_096


class HostPages:
    def __init__(self, pool):
        """pool: a HostKVCache.  Raises Refused."""
        self._pool, self.family = pool, FAMILIES.get(type(pool).__name__)
        if self.family is None:
            refuse(
                f"its KV lies in a {type(pool).__name__}",
                f"Larder keeps the pages of {', '.join(FAMILIES)}; start SGLang without this storage",
            )
        if pool.layout not in LAYOUTS:
            refuse(f"its host memory has the layout {pool.layout}", f"--hicache-mem-layout {' or '.join(LAYOUTS)}")
        self.tokens = pool.page_size
        if self.tokens % STEP or not STEP <= self.tokens <= PAGE_TOKENS_MAX:
            refuse(
                f"its pages have {self.tokens} tokens",
                f"--page-size 64, or another multiple of {STEP} up to {PAGE_TOKENS_MAX}",
            )
        if pool.kv_buffer is None:
            refuse("its host pool has no memory of its own", "start SGLang without this storage")
        if pool.layer_num != pool.target_layer_num:
            refuse("its pages also hold KV of a draft model", "start SGLang without speculation that has KV of its own")
        self.piece_bytes = self._measured()
        self._pieces = [ctypes.c_ubyte * size for size in self.piece_bytes]

    @property
    def bytes(self):
        """Of one page."""
        return sum(self.piece_bytes)

    @property
    def first_layer(self):
        return self._pool.start_layer

    @property
    def element_type(self):
        """The pool's dtype: "torch.bfloat16"."""
        return str(self._pool.dtype)

    @property
    def layout(self):
        """Names the order of the bytes in a page: "mha/page_first/nhd/L32/8x128+128"."""
        pool = self._pool
        if self.family == "mla":
            shape = f"{pool.kv_cache_dim}={pool.kv_lora_rank}+{pool.qk_rope_head_dim}" + (
                "/packed" if pool.dsa_kv_cache_store_fp8 else ""
            )
            return f"mla/{pool.layout}/L{pool.layer_num}/{shape}"
        order = pool._buffer_infos[0].buffers.layout.value
        return f"mha/{pool.layout}/{order}/L{pool.layer_num}/{pool.head_num}x{pool.head_dim}+{pool.v_head_dim}"

    def is_of(self, pool):
        return pool is self._pool

    def pieces(self, indices, pages):
        """Returns a list of writable buffers for each page.  indices: a tensor of the token slots of so many pages.
        Raises ValueError if these are not whole pages of this pool."""
        if indices is None or len(indices) != pages * self.tokens:
            raise ValueError(f"{0 if indices is None else len(indices)} slots are not {pages} pages of {self.tokens} tokens")
        firsts, lasts = indices[:: self.tokens].tolist(), indices[self.tokens - 1 :: self.tokens].tolist()
        for first, last in zip(firsts, lasts):
            if first % self.tokens or last - first != self.tokens - 1 or not 0 <= first <= self._pool.size - self.tokens:
                raise ValueError(f"slots {first} to {last} are no page of a pool of {self._pool.size} slots")
        addresses, sizes = self._pool.get_page_buffer_meta(indices)
        each = len(self._pieces)
        if list(sizes) != list(self.piece_bytes) * pages or len(addresses) != pages * each:
            raise ValueError(f"the pool says that its pages have {sizes[:each]} bytes, and said {self.piece_bytes} before")
        return [
            [piece.from_address(address) for piece, address in zip(self._pieces, addresses[at : at + each])]
            for at in range(0, pages * each, each)
        ]

    def _measured(self):
        """Returns the bytes of each piece of a page, as the pool describes its first one."""
        import torch

        sizes = self._pool.get_page_buffer_meta(torch.arange(self.tokens))[1]
        expected = 2 if self.family == "mha" else 1
        if len(sizes) != expected:
            refuse(f"a page of its {type(self._pool).__name__} has {len(sizes)} pieces, not {expected}", "report it, please")
        return tuple(int(size) for size in sizes)
