"""How vLLM's models, adapters, requests and pages are named in Larder.

Two engines share blocks if and only if these names are equal, so everything that changes a byte of the KV is in them.
Names contain no process ids, hash seeds or environment variables.
Thread-safety: ContentNames is for one thread; the rest are pure functions.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib

import kvlarder
from kvlarder.weights import config_hash, file_hash, tagged_hash

ADAPTER_FILES = (".safetensors", ".bin", ".pt", ".json")


def revision(weights, model_config):
    """Returns the revision that content names carry, without a generation."""
    config = config_hash(model_config.hf_config)
    # Dynamic scaling of positions depends on the longest context that the engine was started with.
    dynamic = any(word in str(model_config.hf_config.to_dict()).lower() for word in ("dynamic", "longrope"))
    more = [(option, getattr(model_config, option, None)) for option in ("quantization_config", "model_class_overrides")]
    return "r2:" + tagged_hash(
        ("weights", weights),
        ("config", config),
        ("quantization", model_config.quantization or ""),
        ("dtype", model_config.dtype),
        ("length", model_config.max_model_len if dynamic else 0),
        *((option, _canonical(value)) for option, value in more if value),
    )


def _canonical(value):
    """Returns a text of an option, which is equal in every process.  What has none makes names that only this one has."""
    plain = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value
    return json.dumps(plain, sort_keys=True, default=str)


def salt(cache_salt):
    """Returns the salt of a request in at most 64 bytes, of which no two salts have the same."""
    if cache_salt is None:
        return b""
    data = cache_salt.encode()
    return b"\0" + data if len(data) < 64 else b"\1" + hashlib.sha256(data).digest()


def layout(backend, version, isa, shape, strides):
    """Returns the layout of a variant.

    version: of vLLM, major.minor, because a release may pack KV of an equal shape otherwise; isa: of the attention
    kernels; shape: of one block in one layer, e.g. (3, 128, 128); strides: in elements, of the whole tensor.
    """
    text = f"vllm/{backend}/{version}/{isa}/{'x'.join(map(str, shape))}/{'.'.join(map(str, strides))}"
    return text if len(text) <= 128 else text[:111] + "#" + hashlib.sha256(text.encode()).hexdigest()[:16]


class _Adapters:
    """Names LoRA adapters by their weights.

    vLLM loads an adapter once for an id, and keeps it when its files change.  So an adapter whose files have changed
    since its id was first seen has no name, nor has one that is loaded in place of another.
    vLLM's own cache knows an adapter by its name and path: what it computed with the first weights of a name and path it
    also uses for later ones.  So later ones have no name until that cache was emptied (forget_replaced).
    """

    def __init__(self):
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="larder-lora")
        self._known = {}  # (id, name, path): (stamps of the files, name or None)
        self._first = {}  # (name, path): the first name that it had, or None

    def name(self, request):
        """Returns a future of the adapter's name, or of None if it has none."""
        return self._thread.submit(self._name, request)

    def _name(self, request):
        place = (request.lora_name, str(request.lora_path))
        key = (request.lora_int_id, *place)
        if request.load_inplace:
            self._known[key] = (None, None)
            self._first[place] = None
            return None
        stamps = self._stamps(request.lora_path)
        if key not in self._known:
            self._known[key] = (stamps, self._hash(request, stamps))
        name = self._known[key][1] if self._known[key][0] == stamps else None
        return name if self._first.setdefault(place, name) == name else None

    def forget_replaced(self):
        """vLLM's own cache was emptied."""
        self._thread.submit(self._first.clear)

    @staticmethod
    def _files(path):
        return sorted(f for f in pathlib.Path(path).iterdir() if f.suffix in ADAPTER_FILES)

    def _stamps(self, path):
        try:
            return tuple((f.name, s.st_size, s.st_mtime_ns, s.st_ino) for f in self._files(path) for s in (f.stat(),)) or None
        except OSError:
            return None

    def _hash(self, request, stamps):
        if stamps is None:
            return None
        try:
            found = tagged_hash(*((file.name, file_hash(file)) for file in self._files(request.lora_path)))
        except OSError:
            return None
        return f"{tagged_hash(('name', request.lora_name))[:16]}:{found}" if self._stamps(request.lora_path) == stamps else None

    def close(self):
        self._thread.shutdown(wait=False, cancel_futures=True)


class ContentNames:
    """Names the contents of requests.  Adapters are read on a thread of its own."""

    def __init__(self, model, base_revision):
        self._model, self._revision = model, base_revision
        self._generation, self._resets = "", 0
        self._contents = {}
        self._adapters = None

    def reset(self):
        """Begins a new generation: what was stored before is not found any more.  Other engines with the same name may
        have other weights by now, hence the random part."""
        self._resets += 1
        self._generation = f":{self._resets}-{os.urandom(8).hex()}"
        self._contents.clear()

    def emptied(self):
        """vLLM's own cache was emptied."""
        if self._adapters is not None:
            self._adapters.forget_replaced()

    def name_adapter(self, lora_request):
        """Returns a future of the name of a request's adapter, or of None if it has none."""
        if self._adapters is None:
            self._adapters = _Adapters()
        return self._adapters.name(lora_request)

    def of(self, cache_salt, lora=""):
        """Returns the ContentSpec of a request.  lora: the name of its adapter."""
        key = (cache_salt, lora)
        if key not in self._contents:
            if len(self._contents) >= 65_536:
                self._contents.clear()
            self._contents[key] = kvlarder.ContentSpec(
                self._model, self._revision + self._generation, salt=salt(cache_salt), lora=lora
            )
        return self._contents[key]

    def close(self):
        if self._adapters is not None:
            self._adapters.close()
