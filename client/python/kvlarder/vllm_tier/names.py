"""How the rows of vLLM's primary tier are named in Larder.

vLLM's offloading knows a chunk by a key, the hash of its tokens and all before them followed by the number of its KV group,
and keeps it in a row of the primary tier, which holds the bytes of all workers.  A row becomes one block whose name is made
from the key (kvlarder/hash_keys.py).  Chunks of all groups have rows of one size, and so one variant.
A block is one step of 16 tokens in Larder, however many tokens the chunk has: then one Lookup answers for many keys.
Thread-safety: Names from any thread; the rest are pure functions.
"""

import dataclasses
import hashlib
import json
import os
import time

import kvlarder
from kvlarder import hash_keys, weights

FILES = "files"  # as the option `revision`: a hash of a local folder's files
BLOCK_TOKENS = hash_keys.STEP
ROW_BYTES_MAX = (1 << 30) - 1  # of a segment
KEYS_AT_ONCE = 16  # that a thread handles before it lets the scheduler's thread have the GIL
BREATH_S = 0.0001  # for so long; a shorter sleep is over before the other thread is awake


def revision_of(options, config):
    """Returns what tells the weights of an engine apart, and the options of vLLM that change the model.

    config: vLLM's OffloadingConfig, which says neither the revision of a hub's model nor --quantization and --hf-overrides.
    That is why the operator must say it.  Raises ValueError if the option is empty, or FILES for what is no folder.
    """
    model = config.model.name
    if not options.revision:
        raise ValueError(
            f"Larder does not know what KV {model} has: vLLM tells a tier neither the revision of the weights nor options "
            "such as --quantization and --hf-overrides. Set the option 'revision' to a name for all of these, for example the "
            f"commit; or to '{FILES}', if the model is a local folder and vLLM is started without options that change it"
        )
    if options.revision != FILES:
        return options.revision
    if not os.path.isdir(model):
        raise ValueError(
            f"{model} is no local folder, so that Larder cannot hash its files; set the option 'revision' to a name for the "
            f"weights, for example the commit, instead of '{FILES}'"
        )
    found = weights.weights_of(model, options.weights_hash == "full")
    return "files:" + weights.tagged_hash(("weights", found), ("config", weights.config_identity(model)))


def content_of(options, config):
    """Returns the ContentSpec of an engine.  Adapters, salts and images are in vLLM's hashes.  Raises ValueError."""
    name = options.model or weights.model_name(config.model.name)
    return hash_keys.content_of(name, revision=revision_of(options, config))


def layout_of(options, config, row_bytes, version):
    """Returns the layout of rows.  Everything that changes where a byte of a row lies is in it.  version: of vLLM."""
    parallel = config.parallel
    facts = {
        "row": row_bytes,
        "groups": [(group.tokens_per_block, list(group.layer_names)) for group in config.groups],
        "cache": dataclasses.astuple(config.cache),
        "sizes": (parallel.world_size, parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size),
        "layout": (config.kv_cache_layout, config.replicated_layout, config.canonical_layout, options.layout),
    }
    text = json.dumps(facts, sort_keys=True)
    return f"vllm-tier/{'.'.join(version.split('.')[:2])}/{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def variant_of(config, row_bytes, layout):
    """Returns the VariantSpec of rows.  Raises ValueError if they are too large."""
    if not 0 < row_bytes <= ROW_BYTES_MAX:
        raise ValueError(
            f"a chunk of {row_bytes} bytes is no block of Larder, which has less than 1 GiB; set a smaller block_size"
        )
    return kvlarder.VariantSpec(dtype=_dtype(config), layout=layout, block_tokens=BLOCK_TOKENS, layers=1)


def _dtype(config):
    return str(config.model.dtype).removeprefix("torch.")[:32]


def engine_id_of(content, config, layout, tenant):
    """Returns the name of an engine.  Two engines with one name share a registration, and so must have equal blocks: all that
    tells their contents and variants apart is in it, and whose they are."""
    facts = {"model": content.model, "revision": content.revision, "dtype": _dtype(config), "layout": layout}
    return f"vllm-tier-{weights.tagged_hash(*facts.items(), ('tenant', tenant), ('uid', os.getuid()))[:16]}"


class Names:
    """Names the keys of one engine."""

    def __init__(self, seed_of, content):
        """seed_of: returns the seed of a content, or None until a daemon has said which tenant this user is."""
        self.content = content
        self._seed_of = seed_of
        self._keys = None

    def of(self, keys):
        """Returns (digest, parent, tokens) of each key, or None if there are no names yet.  Raises ValueError for a key that is
        longer than a name can hold."""
        if self._keys is None:
            seed = self._seed_of(self.content)
            if seed is None:
                return None
            self._keys = hash_keys.HashKeys(seed, BLOCK_TOKENS)
        names = []
        for key in breathing(keys):
            names.append(self._keys.name(bytes(key)))
        return names


def breathing(items):
    """Yields the items, and sleeps now and then: the scheduler's thread must not wait for the GIL until all are done."""
    for number, item in enumerate(items, 1):
        yield item
        if number % KEYS_AT_ONCE == 0:
            time.sleep(BREATH_S)
