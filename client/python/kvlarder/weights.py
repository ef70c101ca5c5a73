"""What tells the weights of one model apart from those of another.

Engines that have equal weights must name them equally, and others otherwise, whichever process and machine they are in.
Thread-safety: any thread may call the functions.
"""

import hashlib
import json
import os
import pathlib

STRIPE_BYTES, STRIPES = 64 << 10, 256
SAMPLED_NUMBERS = 4096  # of each tensor
WEIGHT_FILES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
# Of a model's config.json, what says nothing about its KV.
CONFIG_IGNORED = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")

# What beside the weights a model's folder says of how KV is computed: the model's configuration, and those of quantization.
CONFIG_FILES = (
    "config.json",
    "hf_quant_config.json",
    "params.json",
    "quant_config.json",
    "quantization_config.json",
    "quantize_config.json",
)


def tagged_hash(*parts):
    """Returns 32 hex digits over (tag, value) pairs, of which no two lists have the same bytes."""
    hasher = hashlib.sha256()
    for tag, value in parts:
        for text in (tag, str(value)):
            data = text.encode()
            hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()[:32]


def file_hash(path, full=True):
    """Returns a hash of a file: of all its bytes, or of its size and 256 stripes of 64 KiB, evenly spread."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if full or size <= STRIPES * STRIPE_BYTES:
            hasher = hashlib.sha256()
            while part := file.read(1 << 20):
                hasher.update(part)
            return f"{size}:{hasher.hexdigest()}"
        hasher = hashlib.sha256()
        for stripe in range(STRIPES):
            file.seek(stripe * (size - STRIPE_BYTES) // (STRIPES - 1))
            hasher.update(file.read(STRIPE_BYTES))
        return f"{size}:sampled:{hasher.hexdigest()}"


def cache_folder():
    """Returns the folder of what this user's processes remember."""
    return os.environ.get("LARDER_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "larder"
    )


def _remembered(path, full):
    """As file_hash, but a file that has not changed since is not read again (~/.cache/larder/weights.json)."""
    stat = os.stat(path)
    key = f"{os.path.realpath(path)}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{full}"
    file = pathlib.Path(cache_folder(), "weights.json")
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if key not in known:
        known[key] = file_hash(path, full)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(known), encoding="utf-8")
            os.replace(unfinished, file)
        except OSError:
            pass  # the next start reads the weights again
    return known[key]


def weights_of(path, full=True):
    """Returns what tells the weights in a file or folder apart from others.  Raises ValueError if it has none."""
    path = pathlib.Path(path)
    if path.is_file():
        return tagged_hash(("", _remembered(path, full)))
    files = sorted(f for f in path.iterdir() if f.suffix in WEIGHT_FILES) if path.is_dir() else ()
    if not files:
        raise ValueError(f"{path} is no folder with weights ({', '.join(WEIGHT_FILES)})")
    return tagged_hash(*((file.name, _remembered(file, full)) for file in files))


def config_identity(folder):
    """Returns a hash of what a model's folder says, beside its weights, of how KV is computed: of the CONFIG_FILES and the
    model's own code (*.py), as far as there are any.  It does not depend on what the files are besides, nor on their order."""
    folder = pathlib.Path(folder)
    files = [*(folder / name for name in CONFIG_FILES), *sorted(folder.glob("*.py"))]
    return tagged_hash(*((file.name, file_hash(file)) for file in files if file.is_file()))


def commit_of(model, revision=None):
    """Returns the commit of a model of the Hugging Face hub, as the local cache knows it, or None."""
    if resolved := getattr(revision, "resolved", None):  # huggingface_hub's ResolvedRevision
        return resolved
    if os.path.exists(model):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except (ImportError, ValueError):
        return None
    parts = pathlib.Path(found).parts if isinstance(found, str) else ()
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None


def identity_of(model, revision=None, full=True):
    """Returns what tells apart the weights of a model, given as vLLM and transformers do: a hub's id, or a path.
    Raises ValueError, which says why they are not known."""
    if not model:
        raise ValueError("the model has neither a name nor a path")
    if commit := commit_of(model, revision):
        return f"commit:{commit}"
    if not os.path.exists(model):
        raise ValueError(f"{model} is neither a path nor a model whose commit the hub's cache knows")
    return weights_of(model, full)


def loaded_hash(parameters):
    """Returns a hash of a sample of weights in memory, (name, tensor of torch) pairs: of up to 4,096 numbers of each.
    Raises ValueError if their values are not in memory."""
    import torch

    hasher = hashlib.sha256()
    for name, tensor in parameters:
        if tensor.is_meta:
            raise ValueError(f"{name} is not loaded")
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED_NUMBERS)][:SAMPLED_NUMBERS].contiguous().cpu()
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        hasher.update(sample.view(torch.uint8).numpy())
    return hasher.hexdigest()[:32]


def config_hash(config):
    """Returns a hash of a configuration of transformers, without what says nothing about KV."""
    values = {name: value for name, value in config.to_dict().items() if name not in CONFIG_IGNORED}
    return tagged_hash(("config", json.dumps(values, sort_keys=True, default=str)))


def model_name(model):
    """Returns a hub's id as it is, and of a path the last part, because two checkouts of one model should share."""
    return pathlib.Path(os.path.realpath(model)).name if os.path.exists(model) else model
