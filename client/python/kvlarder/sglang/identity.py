"""What of an SGLang engine decides the bytes of its pages, and so their names in Larder.

Two engines share pages if and only if these names are equal, so everything that changes a byte of the KV is in them.
Names contain no process ids, hash seeds or environment variables.  Salts and adapters are in SGLang's keys.
Thread-safety: values and pure functions.
"""

import dataclasses

import kvlarder
from kvlarder import hash_keys, weights
from kvlarder.sglang.refusal import refuse

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "f16", "torch.float32": "f32"}
FP8 = ("fp8_e4m3", "fp8_e5m2")
# Load formats that read the weights from the files of --model-path.
FROM_MODEL_FILES = ("auto", "safetensors", "instanttensor", "pt", "npcache", "gguf", "mistral")
MODEL_NAME_BYTES_MAX = 256  # of a ContentSpec
# Arguments of SGLang, beside the weights, that change what is computed.
MEANING = ("quantization", "dtype", "kv_cache_dtype", "json_model_override_args", "context_length", "model_impl")


@dataclasses.dataclass(frozen=True)
class Identity:
    engine_id: str
    rank: int  # of this process's session
    content: kvlarder.ContentSpec
    variant: kvlarder.VariantSpec


def check(storage_config):
    """Raises Refused if the pages of this process are parts of pages that Larder has no name for.

    storage_config: SGLang's HiCacheStorageConfig.
    """
    if not (storage_config.extra_config or {}).get("interface_v1"):
        refuse("it would copy pages in Python", 'add "interface_v1": 1 to --hicache-storage-backend-extra-config')
    if storage_config.attn_cp_size > 1 or storage_config.dcp_size > 1:
        refuse("its ranks share pages by context parallelism", "start SGLang without it, or without this storage")
    if storage_config.should_split_heads:
        refuse("its pages are split by heads", "remove tp_lcm_size from --hicache-storage-backend-extra-config")


def identity_of(storage_config, pages, config, args, version):
    """Returns the Identity of one process.  Raises Refused.

    pages: HostPages; config: Config; args: SGLang's server arguments, or None; version: of SGLang.
    """
    model = config.model or weights.model_name(storage_config.model_name or "")
    if not 0 < len(model.encode()) <= MODEL_NAME_BYTES_MAX:
        refuse(f"its model has a name of {len(model.encode())} bytes", "set the option 'model' to a shorter one, but one")
    if storage_config.is_mla_model != (pages.family == "mla"):
        refuse(f"its ranks do not share KV as pages of {pages.family} do", "start SGLang without this storage")
    # All ranks of a model with MLA have the same bytes, and one of them writes.
    rank, ranks = (0, 1) if storage_config.is_mla_model else (storage_config.tp_rank, storage_config.tp_size)
    dtype = _dtype(pages.element_type, args)
    release = ".".join(version.split(".")[:2])
    variant = kvlarder.VariantSpec(
        dtype=dtype,
        layout=f"sglang/{release}/{pages.layout}",
        block_tokens=pages.tokens,
        layers=len(pages.piece_bytes),  # a piece is one segment, whatever number of the model's layers is in it
        first_layer=pages.first_layer,
        rank=rank,
        ranks=ranks,
    )
    derived = weights.tagged_hash(
        ("model", model), ("dtype", dtype), ("page", pages.tokens), ("ranks", storage_config.tp_size),
        ("stages", storage_config.pp_size), ("dp", storage_config.dp_rank),
    )  # fmt: skip
    return Identity(
        engine_id=config.engine_id or f"sglang-{derived[:16]}",
        rank=storage_config.pp_rank * storage_config.tp_size + storage_config.tp_rank,
        content=hash_keys.content_of(model, revision=config.revision or _revision(args, config)),
        variant=variant,
    )


def _dtype(element_type, args):
    """Returns the dtype of a variant.  SGLang keeps both kinds of fp8 as bytes, so that only its argument tells which."""
    if element_type in DTYPES:
        return DTYPES[element_type]
    kind = getattr(args, "kv_cache_dtype", None)
    if element_type == "torch.uint8" and kind in FP8:
        return kind
    return refuse(f"its KV is {kind} ({element_type})", f"--kv-cache-dtype {', '.join(FP8)}, or a KV cache of the model's type")


def _revision(args, config):
    """Returns the revision of the content; reads the weights, which takes a while the first time.  Raises Refused."""
    helps = "set the option 'revision' to a name for its weights"
    if args is None:
        refuse("this process does not know which weights it has", helps)
    load_format = str(getattr(args.load_format, "value", args.load_format))
    if load_format not in FROM_MODEL_FILES:
        refuse(f"--load-format {load_format} may take weights from elsewhere than the files of --model-path", helps)
    try:
        found = weights.identity_of(args.model_path, args.revision, config.weights_hash == "full")
    except (OSError, ValueError) as error:
        refuse(f"it is not known which weights it has ({error})", helps)
    return "s1:" + weights.tagged_hash(("weights", found), *((name, getattr(args, name, None)) for name in MEANING))
