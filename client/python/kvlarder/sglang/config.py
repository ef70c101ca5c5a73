"""The options of the storage: `"larder": {...}` in SGLang's --hicache-storage-backend-extra-config.

Thread-safety: a Config is a value that never changes.
"""

import dataclasses

from kvlarder import options
from kvlarder.options import option


@dataclasses.dataclass(frozen=True)
class Config:
    socket_dir: str = option("", doc="folder of the daemon's sockets; empty: as kvlarder.connect")
    tenant: str = option("", doc="tenant to store for; empty: this user's own")
    engine_id: str = option("", doc="name of this engine; empty: derived from model, page size and ranks")
    model: str = option("", doc="name of the model in Larder; empty: the one that SGLang serves it as")
    revision: str = option("", doc="which weights these are; empty: found out from the files or the hub's commit")
    weights_hash: str = option(
        "full", one_of=("full", "sampled"), doc="how weights in files are told apart: by all bytes, or by 16 MiB of each file"
    )
    chained: bool = option(
        False, doc="names of pages are a chain; needs `hicache_storage_pass_prefix_keys`, and all engines that share must agree"
    )
    exists_timeout_ms: int = option(1_000, least=10, most=60_000, doc="how long a question for stored pages may take")
    get_timeout_ms: int = option(5_000, least=50, most=600_000, doc="how long loading up to 128 pages may take")
    set_timeout_ms: int = option(5_000, least=50, most=600_000, doc="how long storing up to 128 pages may take")
    promise_life_s: int = option(30, least=1, most=600, doc="how long the daemon keeps what it said is stored, at most")
    promises_max: int = option(64, least=1, most=4_096, doc="answers whose pages are kept at a time; older ones are let go")
    copy_threads: int = option(1, least=1, most=16, doc="threads that copy one large batch")
    log_interval_s: int = option(60, least=1, most=86_400, doc="between two log lines with counters, while they change")

    @staticmethod
    def of(extra):
        """Returns the options in SGLang's extra config.  Raises ValueError, which names the key and what would be right."""
        inner = (extra or {}).get("larder")
        if inner is not None and not isinstance(inner, dict):
            raise ValueError(f"hicache-storage-backend-extra-config: larder must be an object with options, not {inner!r}")
        return options.read(Config, inner, "hicache-storage-backend-extra-config larder")
