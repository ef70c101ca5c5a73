"""The options of LarderTier: the keys of its entry in `secondary_tiers`, an option of vLLM's TieringOffloadingSpec, other
than those that vLLM reads itself (type, module_path, backpressure).

Thread-safety: a TierOptions is a value that never changes.
"""

import dataclasses

from kvlarder import options
from kvlarder.options import option


@dataclasses.dataclass(frozen=True)
class TierOptions:
    socket_dir: str = option("", doc="folder of the daemon's sockets; empty: as kvlarder.connect")
    tenant: str = option("", doc="tenant to store for; empty: this user's own")
    engine_id: str = option("", doc="name of this engine; empty: derived from what its blocks are named by")
    model: str = option("", doc="name of the model in Larder; empty: vLLM's, without the folder it lies in")
    revision: str = option(
        "",
        doc="must be given: which weights and options of the model these are, for example the commit; or `files`: a hash of "
        "the files of a local folder, if vLLM is started without options that change the model",
    )
    weights_hash: str = option(
        "full", one_of=("full", "sampled"), doc="how `files` tells weights apart: by all bytes, or by 16 MiB of each file"
    )
    layout: str = option("", doc="tells engines apart whose KV lies otherwise, for example by attention backend")
    patience_ms: int = option(200, least=1, most=5_000, doc="how long a lookup may take before it is a miss")
    load_timeout_ms: int = option(2_000, least=50, most=60_000, doc="then the blocks of a load that have not come have failed")
    store_timeout_ms: int = option(10_000, least=100, most=60_000, doc="then a store is given up")
    load_queue_blocks: int = option(
        65_536, least=1, most=1_000_000, doc="blocks of loads that have not ended; what is beyond fails"
    )
    store_queue_blocks: int = option(
        8_192, least=1, most=1_000_000, doc="blocks of stores that have not ended; what is beyond is not stored"
    )
    loaders: int = option(1, least=1, most=16, doc="threads that load")
    storers: int = option(1, least=1, most=16, doc="threads that store")
    copy_threads: int = option(1, least=1, most=16, doc="threads that copy one large batch")
    hints: bool = option(True, doc="carries out the hints of requests (kv_hints)")
    hint_blocks_max: int = option(4_096, least=1, most=8_192, doc="blocks that one hint may name; what is beyond is clipped")
    hint_patience_s: float = option(10.0, least=0.1, most=600.0, doc="how long a hint waits for what the daemon does later")
    stats_interval_s: float = option(1.0, least=0.1, most=60.0, doc="between two reports of counters")

    @staticmethod
    def of(given):
        """Returns the options of a mapping.  Raises ValueError, which names the key and what would be right."""
        return options.read(TierOptions, given, "the LarderTier in secondary_tiers")
