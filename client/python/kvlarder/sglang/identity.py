"""What of an SGLang engine decides the bytes of its pages, and so their names in Larder.

Two engines share pages if and only if these names are equal, so everything that changes a byte of the KV is in them.
Names contain no process ids, hash seeds or environment variables.  Salts and adapters are in SGLang's keys.
Thread-safety: values and pure functions.
"""

import dataclasses
import os
import pathlib

import kvlarder
from kvlarder import hash_keys, weights
from kvlarder.sglang.refusal import refuse

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "f16", "torch.float32": "f32"}
FP8 = ("fp8_e4m3", "fp8_e5m2")
# Load formats that read the weights from the files of --model-path.
FROM_MODEL_FILES = ("auto", "safetensors", "instanttensor", "pt", "npcache", "gguf", "mistral")
MODEL_NAME_BYTES_MAX = 256  # of a ContentSpec
# Arguments with which weights or configuration may come from elsewhere than --model-path, and their values without that.
FROM_ELSEWHERE = {
    "weight_cache_mode": "off",  # replaces the loader, whatever --load-format says
    "checkpoint_engine_wait_weights_before_ready": False,
    "modelopt_checkpoint_restore_path": None,
    "decrypted_config_file": None,
    "kt_weight_path": None,  # experts that the CPU computes
}
# What SGLang alone reads in a model's folder, beside the files of weights.config_identity.
CONFIG_FILES = ("quant_model_description.json", "sparse_attention_config.json", "adapter_config.json")
# Arguments of SGLang, beside the weights, that change what is computed.  Others change how it is rounded at most.
MEANING = (
    # the model
    "json_model_override_args", "context_length", "model_impl", "model_config_parser", "trust_remote_code", "is_embedding",
    "weight_version",
    # the numbers that it is computed with
    "dtype", "kv_cache_dtype", "quantization", "modelopt_quant", "quantize_and_serve", "enable_tf32_matmul",
    "enable_quant_communications", "fp4_gemm_runner_backend", "fp8_gemm_runner_backend", "moe_runner_backend",
    "moe_a2a_backend", "deepep_dispatcher_output_dtype", "flashinfer_a2a_dispatch_type", "flashinfer_mxfp4_moe_precision",
    "enable_w4a4_mxfp4_megamoe", "enforce_shared_experts_fusion",
    # what an operator wants to be equal in each run, or to a trainer
    "enable_deterministic_inference", "rl_on_policy_target",
    # images
    "mm_process_config", "enable_precise_embedding_interpolation",
    # code of the operator in the model
    "forward_hooks",
)  # fmt: skip


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

    pages: HostPages; config: Config; args: api.ServerArguments, or None; version: of SGLang.
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
        layout=f"sglang/{release}/{pages.layout}" + (f"/{_scaled_by(args)}" if dtype in FP8 else ""),
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


def _scaled_by(args):
    """Returns the attention kernels of prefill and decode: some divide by the model's scales before they store fp8, and some
    do not."""
    return "+".join(
        str(getattr(args, f"{phase}_attention_backend", None) or getattr(args, "attention_backend", None))
        for phase in ("prefill", "decode")
    )


def _check_sources(args, helps):
    """Raises Refused if weights or configuration may come from elsewhere than the files of --model-path."""
    load_format = str(getattr(args.load_format, "value", args.load_format))
    if load_format not in FROM_MODEL_FILES:
        refuse(f"--load-format {load_format} may take weights from elsewhere than the files of --model-path", helps)
    for name, usual in FROM_ELSEWHERE.items():
        if (value := getattr(args, name, usual)) != usual:
            option = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            refuse(f"{option} may take what it computes with from elsewhere than the files of --model-path", helps)
    if args.download_dir and not os.path.exists(args.model_path):
        refuse(f"--download-dir {args.download_dir} may have another commit than the hub's cache", helps)


def _config_identity(model_path):
    """Returns what the configuration in a folder, or beside a file of weights, is told apart by; None of a hub's model, whose
    commit says it."""
    if not os.path.exists(model_path):
        return None
    path = pathlib.Path(model_path)
    folder = path if path.is_dir() else path.parent
    more = [(name, weights.file_hash(folder / name)) for name in CONFIG_FILES if (folder / name).is_file()]
    return weights.tagged_hash(("config", weights.config_identity(folder)), *more)


def _revision(args, config):
    """Returns the revision of the content; reads the weights, which takes a while the first time.  Raises Refused."""
    helps = "set the option 'revision' to a name for its weights"
    if args is None:
        refuse("this process does not know which weights it has", helps)
    _check_sources(args, helps)
    scales = args.quantization_param_path  # a file with the scales of fp8 KV
    try:
        found = weights.identity_of(args.model_path, args.revision, config.weights_hash == "full")
        files = ("config", _config_identity(args.model_path)), ("scales", weights.file_hash(scales) if scales else None)
    except (OSError, ValueError) as error:
        refuse(f"it is not known which weights it has ({error})", helps)
    return "s2:" + weights.tagged_hash(("weights", found), *files, *((name, getattr(args, name, None)) for name in MEANING))
