"""What of a vLLM engine decides about names and pages, and which engines the connector refuses.

Thread-safety: values and pure functions.
"""

import dataclasses

from kvlarder import weights
from kvlarder.vllm import names

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "f16", "torch.float32": "f32"}
SPECULATION_WITHOUT_KV = ("ngram", "ngram_gpu", "suffix")
# Load formats that read the weights from the files of --model.
FROM_MODEL_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "mistral")
MODEL_NAME_BYTES_MAX = 256  # of a ContentSpec


class Refused(ValueError):
    """The connector does not serve this engine.  The text says why, and which flag helps."""


@dataclasses.dataclass(frozen=True)
class EngineFacts:
    block_tokens: int
    blocks: int  # of the engine's own cache
    dtype: str
    ranks: int  # worker processes
    shards: int  # distinct parts of the KV; fewer than ranks if heads are replicated
    engine_id: str
    model: str
    longest_tokens: int  # of a request with its answer
    prefix_caching: bool  # of the engine itself: blocks that no request holds can be found until they are reused

    def shard_of(self, rank):
        return rank * self.shards // self.ranks

    def writes(self, rank):
        """Returns whether this rank stores: the first of those with the same part."""
        return rank == 0 or self.shard_of(rank) != self.shard_of(rank - 1)


def refuse(why, helps):
    raise Refused(f"Larder does not serve this engine: {why}; {helps}")


def _check_groups(kv_cache_config):
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        refuse(f"its KV cache has {len(groups)} groups ({kinds})", "hybrid models are not served yet; start it without Larder")
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec":
        refuse(f"its layers are {type(spec).__name__}", "only full attention is served; start it without Larder")
    for name in ("sliding_window", "attention_chunk_size", "non_causal"):
        if getattr(spec, name, None):
            refuse(f"its attention has {name}", "only full causal attention is served; start it without Larder")
    return groups[0]


def _check_parallel(parallel):
    for name, flag in (
        ("pipeline_parallel_size", "--pipeline-parallel-size"),
        ("decode_context_parallel_size", "--decode-context-parallel-size"),
        ("prefill_context_parallel_size", "--prefill-context-parallel-size"),
    ):
        if getattr(parallel, name, 1) != 1:
            refuse(f"{name} is {getattr(parallel, name)}", f"{flag} 1 (tensor parallelism is served)")
    if getattr(parallel, "nnodes", 1) != 1:
        refuse("its ranks are on several nodes", "run it on one node")
    if getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
        refuse("each of its ranks schedules by itself", "--distributed-executor-backend mp")


def _weights(config, vllm_config):
    model = vllm_config.model_config
    if config.revision:
        return config.revision
    load_format = str(getattr(vllm_config.load_config.load_format, "value", vllm_config.load_config.load_format))
    if load_format == "dummy":
        return f"dummy:{vllm_config.instance_id}"  # vLLM starts with random weights, and its caller may replace them
    if load_format not in FROM_MODEL_FILES:
        refuse(
            f"--load-format {load_format} may take weights from elsewhere than the files of --model",
            "set the option 'revision' to a name for them",
        )
    try:
        return weights.identity_of(model.model, model.revision, config.weights_hash == "full")
    except (OSError, ValueError) as error:
        refuse(f"it is not known which weights it has ({error})", "set the option 'revision' to a name for them")


def revision_of(vllm_config, config):
    """Returns the revision of an engine's contents; reads its weights, which takes a while the first time.  Raises
    Refused."""
    return names.revision(_weights(config, vllm_config), vllm_config.model_config)


def facts_of(vllm_config, kv_cache_config, config):
    """Returns the facts of an engine.  Raises Refused."""
    group = _check_groups(kv_cache_config)
    cache, model, parallel = vllm_config.cache_config, vllm_config.model_config, vllm_config.parallel_config
    _check_parallel(parallel)
    spec = group.kv_cache_spec
    if str(cache.cache_dtype).startswith("fp8") or str(spec.dtype) not in DTYPES:
        refuse(f"its KV is {cache.cache_dtype} ({spec.dtype})", "--kv-cache-dtype auto")
    if spec.block_size != cache.block_size or cache.block_size % 16 != 0 or not 16 <= cache.block_size <= 4096:
        refuse(f"its blocks have {spec.block_size} tokens", "--block-size 128, or another multiple of 16 up to 4096")
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in SPECULATION_WITHOUT_KV:
        refuse(
            f"it speculates with {speculative.method}, which has KV of its own",
            f"--speculative-config with {' or '.join(SPECULATION_WITHOUT_KV)}, or none",
        )
    if getattr(model, "is_diffusion", False):
        refuse("it computes no token from those before alone", "start it without Larder")
    ranks = parallel.tensor_parallel_size
    shards = min(ranks, model.get_total_num_kv_heads())
    name = config.model or weights.model_name(model.model)
    if len(name.encode()) > MODEL_NAME_BYTES_MAX:
        refuse(f"its name has more than {MODEL_NAME_BYTES_MAX} bytes", "set the option 'model' to a shorter one")
    dtype = DTYPES[str(spec.dtype)]
    rank = getattr(parallel, "data_parallel_rank", 0)
    derived = weights.tagged_hash(
        *{"model": name, "dtype": dtype, "block": cache.block_size, "ranks": ranks, "dp": rank}.items()
    )
    return EngineFacts(
        block_tokens=cache.block_size,
        blocks=kv_cache_config.num_blocks,
        dtype=dtype,
        ranks=ranks,
        shards=shards,
        engine_id=config.engine_id or f"vllm-{derived[:16]}",
        model=name,
        longest_tokens=vllm_config.model_config.max_model_len,
        prefix_caching=bool(cache.enable_prefix_caching),
    )
