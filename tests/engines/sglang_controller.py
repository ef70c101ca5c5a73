"""SGLang's own cache controller with its storage threads, without a GPU, a model and a scheduler.

The test is the scheduler: it orders backups and prefetches, gives prefetches memory, and waits for their ends.
"""

import array
import contextlib
import threading
from unittest import mock

import sglang_parts as sglang
import sglang_pools as pools
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import get_parallel

WAIT_S = 30
PARALLEL = {"attn_dcp_size": 1, "attn_dcp_rank": 0, "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}


class Controller:
    """A HiCacheController, attached to the storage `dynamic` with this extra config."""

    def __init__(self, pool, extra):
        self.pool = pool
        made = self._made = object.__new__(cache_controller.HiCacheController)
        made.page_size, made.host_memory_mode, made.enable_storage_metrics = pool.page_size, "retain", False
        made.mem_pool_host = made.storage_host_pool = pool
        made.mem_pool_device = None
        made.enable_storage, made.storage_backend, made.storage_backend_type = False, None, None
        made.attn_cp_group = made.attn_tp_group = made.pp_group = made.tp_group = None
        made.prefetch_hits_sync_groups, made.prefetch_completion_sync_groups = [], []
        made.storage_stop_event = threading.Event()
        with get_parallel().override(**PARALLEL), contextlib.ExitStack() as one_rank:
            one_rank.enter_context(mock.patch.object(cache_controller, "is_dp_attention_enabled", lambda: False))
            one_rank.enter_context(mock.patch.object(made, "get_attn_cp_rank_and_size", lambda: (0, 1)))
            made.attach_storage_backend("dynamic", pool.page_size, "tests/model", extra)

    @property
    def storage(self):
        return self._made.storage_backend

    def backup(self, key, prefix_keys=None):
        """Stores the pages of a RadixKey, whose bytes are those of its hash keys.  Returns how many SGLang counts as stored."""
        hashes = sglang.get_storage_hash_str(key, None, page_size=self.pool.page_size)
        slots = self.pool.alloc(len(hashes) * self.pool.page_size)
        for page, one in enumerate(hashes):
            pools.fill(self.pool, int(slots[page * self.pool.page_size]), one)
        self._made.write_storage(slots, key, hashes, prefix_keys)
        done = self._made.ack_backup_queue.get(timeout=WAIT_S)
        self.pool.free(slots)
        return done.completed_tokens // self.pool.page_size

    def prefetch(self, key, prefix_keys=None):
        """Returns how many pages of a RadixKey SGLang has found, and how many it has loaded.  Raises AssertionError if one
        that was loaded has wrong bytes."""
        self._made.prefetch("request", key, None, prefix_keys)
        found = self._made.prefetch_hit_queue.get(timeout=WAIT_S)
        if not found.hash_value:
            return 0, 0
        found.host_indices = self.pool.alloc(found.storage_hit_count)
        firsts = found.host_indices[:: self.pool.page_size].tolist()
        for first in firsts:
            pools.fill(self.pool, first, "nothing")
        self._made.prefetch_buffer.put(found)
        loaded = 0
        while not (ack := self._made.ack_prefetch_queue.get(timeout=WAIT_S)).completed_req:
            loaded = ack.completed_tokens // self.pool.page_size
        for first, one in list(zip(firsts, found.hash_value))[:loaded]:
            if not pools.holds(self.pool, first, one):
                raise AssertionError(f"wrong bytes of {one}")
        self.pool.free(found.host_indices)
        return len(found.hash_value), loaded

    def detach(self):
        self._made.detach_storage_backend()


def key_of(tokens, lora=None, salt=None):
    return RadixKey(array.array("q", tokens), extra_key=lora, cache_salt=salt)
