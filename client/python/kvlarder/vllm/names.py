"""How vLLM's models, adapters, requests and pages are named in Larder.

Two engines share blocks if and only if these names are equal, so everything that changes a byte of the KV is in them.
Names contain no process ids, hash seeds or environment variables.
Thread-safety: ContentNames is for one thread; the rest are pure functions.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib

import kvlarder
from kvlarder.weights import file_hash, tagged_hash

def revision(weights, model_config):
    """Returns the revision that content names carry, without a generation."""
    hf = getattr(model_config, "hf_text_config", None) or getattr(model_config, "hf_config", None)
    rope = {
        name: value
        for name in ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
        if (value := getattr(hf, name, None)) is not None
    }
    text = json.dumps(rope, sort_keys=True, default=str)
    # Dynamic scaling depends on the longest context that the engine was started with.
    length = model_config.max_model_len if "dynamic" in text or "longrope" in text else 0
    return "r1:" + tagged_hash(
        ("weights", weights),
        ("quantization", model_config.quantization or ""),
        ("dtype", model_config.dtype),
        ("overrides", json.dumps(getattr(model_config, "hf_overrides", None) or {}, sort_keys=True, default=str)),
        ("rope", text),
        ("length", length),
    )


def salt(cache_salt):
    """Returns the salt of a request in at most 64 bytes, of which no two salts have the same."""
    if cache_salt is None:
        return b""
    data = cache_salt.encode()
    return b"\0" + data if len(data) < 64 else b"\1" + hashlib.sha256(data).digest()


def layout(backend, isa, shape, strides):
    """Returns the layout of a variant.  The 1 is the version of this text: a release of vLLM that packs KV of an equal
    shape otherwise needs a new one.

    shape: of one block in one layer, e.g. (3, 128, 128); strides: in elements, of the whole tensor.
    """
    text = f"vllm/{backend}/1/{isa}/{'x'.join(map(str, shape))}/{'.'.join(map(str, strides))}"
    return text if len(text) <= 128 else text[:111] + "#" + hashlib.sha256(text.encode()).hexdigest()[:16]


class ContentNames:
    """Names the contents of requests.  Adapters are hashed on a thread, because they may be large."""

    def __init__(self, model, base_revision):
        self._model, self._revision = model, base_revision
        self._generation, self._resets = "", 0
        self._contents = {}
        self._adapters = {}  # (path, times and sizes of its files): a future of its name
        self._thread = None

    def reset(self):
        """Begins a new generation: what was stored before is not found any more.  Other engines with the same name may
        have other weights by now, hence the random part."""
        self._resets += 1
        self._generation = f":{self._resets}-{os.urandom(8).hex()}"
        self._contents.clear()

    def of(self, cache_salt, lora_request):
        """Returns the ContentSpec of a request, or None as long as its adapter's weights are not known."""
        lora = "" if lora_request is None else self._adapter(lora_request)
        if lora is None:
            return None
        key = (cache_salt, lora)
        if key not in self._contents:
            if len(self._contents) >= 65_536:
                self._contents.clear()
            self._contents[key] = kvlarder.ContentSpec(
                self._model, self._revision + self._generation, salt=salt(cache_salt), lora=lora
            )
        return self._contents[key]

    def _adapter(self, request):
        path = pathlib.Path(request.lora_path)
        try:
            files = sorted(f for f in path.iterdir() if f.suffix in (".safetensors", ".bin", ".json"))
            stamps = tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files)
        except OSError:
            return None
        if not files:
            return None
        key = (str(path), stamps)
        if key not in self._adapters:
            if self._thread is None:
                self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="larder-lora")
            self._adapters[key] = self._thread.submit(
                lambda: tagged_hash(*((file.name, file_hash(file, full=True)) for file in files))
            )
        future = self._adapters[key]
        if not future.done():
            return None
        if future.exception() is not None:
            del self._adapters[key]
            return None
        return f"{tagged_hash(('name', request.lora_name))[:16]}:{future.result()}"

    def close(self):
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
