"""The options of the connector: `kv_connector_extra_config` of vLLM's --kv-transfer-config.

Thread-safety: a Config is a value that never changes.
"""

import dataclasses

from kvlarder import options
from kvlarder.options import option


@dataclasses.dataclass(frozen=True)
class Config:
    socket_dir: str = option("", doc="folder of the daemon's sockets; empty: as kvlarder.connect")
    tenant: str = option("", doc="tenant to store for; empty: this user's own")
    engine_id: str = option("", doc="name of this engine; empty: derived from model, dtype, block size and ranks")
    model: str = option("", doc="name of the model in Larder; empty: vLLM's, without the folder it lies in")
    revision: str = option("", doc="which weights these are; empty: found out from the files or the hub's commit")
    weights_hash: str = option(
        "full", one_of=("full", "sampled"), doc="how weights in files are told apart: by all bytes, or by 16 MiB of each file"
    )
    load: bool = option(True, doc="loads what is stored")
    store: bool = option(True, doc="stores what was computed")
    store_decode: bool = option(True, doc="stores blocks of generated tokens, too")
    store_policy: str = option(
        "eager", one_of=("eager", "lazy"), doc="when blocks are stored: once they are computed, or before vLLM reuses them"
    )
    heal: bool = option(True, doc="with eager stores: stores blocks that vLLM still has and the daemon has not")
    patience_ms: int = option(200, least=0, most=5_000, doc="how long a request waits for an answer of the daemon")
    layer_by_layer: bool = option(
        True, doc="where that pays, a prefix in the pool is loaded layer by layer while vLLM computes what follows it"
    )
    load_timeout_ms: int = option(600, least=50, most=60_000, doc="how long a load may take at least")
    load_patience: float = option(0.5, least=0.0, most=10.0, doc="and in addition, in times of computing the same")
    store_timeout_ms: int = option(10_000, least=100, most=60_000, doc="then a store is given up")
    promise_life_s: int = option(60, least=1, most=600, doc="how long the daemon keeps what it promised")
    loads_max: int = option(16, least=1, most=1_024, doc="requests that load at once")
    prefetch_max: int = option(64, least=0, most=4_096, doc="queued requests that are looked up in advance")
    store_queue_blocks: int = option(512, least=1, most=1_000_000, doc="blocks that are stored at once at most; more wait for them")
    load_queue_blocks: int = option(65_536, least=1, most=1_000_000, doc="blocks that may wait to be loaded")
    store_pin_fraction: float = option(
        0.1, least=0.01, most=0.5, doc="part of vLLM's blocks that stores under way may keep from being reused"
    )
    report_device: bool = option(True, doc="tells the daemon which blocks vLLM itself has, and pins and drops them when asked to")
    device_pin_fraction: float = option(
        0.25, least=0.0, most=0.9, doc="part of vLLM's blocks that others may pin (Cache.Pin in DEVICE), at most"
    )
    loaders: int = option(1, least=1, most=16, doc="threads that load")
    storers: int = option(1, least=1, most=16, doc="threads that store")
    copy_threads: int = option(1, least=1, most=16, doc="threads that copy one large batch")
    step_blocks: int = option(16, least=1, most=512, doc="blocks that a thread moves before it looks around")
    emulated_link_mb_per_s: float = option(
        0.0, least=0.0, most=1e6, by_rank=True, doc="for measurements: a slow link that all loads of a worker pass; 0 is none"
    )
    drain_ms: int = option(250, least=0, most=10_000, doc="how long resetting the prefix cache waits for stores, before it gives them up")
    stats_interval_s: float = option(1.0, least=0.1, most=60.0, doc="between two reports of counters")

    @staticmethod
    def of(extra):
        """Returns the options of a mapping.  Raises ValueError, which names the key and what would be right."""
        return options.read(Config, extra, "kv_connector_extra_config")

    def link_bytes_per_s(self, rank):
        """Of the emulated link of a rank; 0 is none.  Raises ValueError if the option has no value for it."""
        links = self.emulated_link_mb_per_s
        if isinstance(links, tuple) and rank >= len(links):
            raise ValueError(f"kv_connector_extra_config: emulated_link_mb_per_s has {len(links)} values, none for rank {rank}")
        return 1e6 * (links[rank] if isinstance(links, tuple) else links)

    def with_roles(self, load, store):
        return dataclasses.replace(self, load=load, store=store)
