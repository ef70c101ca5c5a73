"""Keeps the KV caches of Hugging Face transformers in Larder, so that a prompt need not be computed again.

    store = kvlarder.hf.PrefixStore(model)
    cache, known = store.restore(ids)              # of ids, the first `known` are in the cache
    out = model.generate(ids, past_key_values=cache)
    store.save(cache, out[0])

Whole blocks are kept, and any prefix of what was saved can be restored, by any process of this user with a model of
equal weights and dtype.  Caches must be DynamicCache or StaticCache with full attention, and hold one sequence.
Thread-safety: a PrefixStore is for one thread at a time.
"""

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, StaticLayer

import kvlarder
from kvlarder import weights

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
OK, DUPLICATE = kvlarder.BlockStatus.OK.value, kvlarder.BlockStatus.DUPLICATE.value


class PrefixStore:
    """The blocks of one model in one daemon.

    name, revision: how the model is called in Larder; by default its own name, and its hub commit or a hash of its files.
    Weights that were changed in memory need a revision of their own.
    salt: keeps users apart that must not share blocks.  block_tokens: a multiple of 16; smaller blocks restore more of a
    prompt, larger ones are quicker.
    Raises ConnectionError if no daemon answers, ValueError if the model is not served; the text says what to do.
    """

    def __init__(self, model, *, name="", revision="", salt=b"", block_tokens=64, engine_id="", socket_dir="", tenant=""):
        config = model.config.get_text_config()
        self._dtype, self._block = model.dtype, block_tokens
        if self._dtype not in DTYPES:
            raise ValueError(f"a model of {self._dtype} is not served: load it in bfloat16, float16 or float32")
        self._layers = config.num_hidden_layers
        self._heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._device = model.device
        name = name or weights.model_name(model.config._name_or_path) or "unnamed"
        content = kvlarder.ContentSpec(name, revision or _revision(model), salt=salt)
        layout = f"hf/1/{self._heads}x{self._head_dim}"
        variant = kvlarder.VariantSpec(
            dtype=DTYPES[self._dtype], layout=layout, block_tokens=block_tokens, layers=self._layers
        )
        engine_id = engine_id or f"hf-{weights.tagged_hash(('c', name), ('l', layout), ('b', block_tokens))[:16]}"
        self._session = kvlarder.connect(socket_dir, tenant=tenant).attach(engine_id)
        self._variant = self._session.register([content], [variant])[0]
        self._seed = self._session.seed(content)

    def save(self, cache, token_ids):
        """Stores the whole blocks of a cache.  Returns how many tokens, from the beginning, are stored now: fewer than
        the cache has if the daemon has no room.

        token_ids: what the cache was computed from, and possibly more; a sequence of ints or a tensor of one row.
        """
        tokens = _tokens(token_ids)
        layers = self._checked(cache)
        length = int(layers[0].get_seq_length()) if layers else 0
        if length > len(tokens):
            raise ValueError(f"the cache has {length} tokens, and only {len(tokens)} token ids were given")
        blocks = length // self._block
        if blocks == 0:
            return 0
        keys, values = [layer.keys.cpu() for layer in layers], [layer.values.cpu() for layer in layers]
        chain = self._chain(tokens[: blocks * self._block])
        status = self._session.put_pages(
            self._variant,
            self._pages(keys, values),
            parent=self._seed,
            digests=chain.digests(0, blocks),
            tokens=chain.tokens(0, blocks),
            page_numbers=range(blocks),
            content=self._seed,
            deadline_s=60.0,
        )
        return self._block * _leading(status, (OK, DUPLICATE))

    def restore(self, token_ids, cache=None):
        """Returns (cache, tokens): a cache with the longest stored prefix, and its length.

        At most len(token_ids) - 1 tokens are restored, because a model computes at least one.  cache: an empty one to
        fill; by default a new DynamicCache.
        """
        tokens = _tokens(token_ids)
        cache = DynamicCache() if cache is None else cache
        if int(cache.get_seq_length()):
            raise ValueError("only an empty cache can be filled")
        layers = self._checked(cache, self._layers)
        room = getattr(layers[0], "max_cache_len", None) if layers else None
        blocks = (len(tokens) - 1 if room is None else min(len(tokens) - 1, room)) // self._block
        if blocks <= 0:
            return cache, 0
        static = room is not None
        keys, values = zip(*(self._memory(layers[i] if static else None, blocks) for i in range(self._layers)))
        chain = self._chain(tokens[: blocks * self._block])
        status = self._session.get_pages(
            self._variant, self._pages(keys, values), chain.digests(0, blocks), range(blocks), deadline_s=60.0
        )
        known = self._block * _leading(status, (OK,))
        for i, (k, v) in enumerate(zip(keys, values)):
            if static:
                self._fill_static(layers[i], k, v, known)
            elif known:
                k, v = (tensor[:, :, :known].contiguous().to(self._device) for tensor in (k, v))
                cache.update(k, v, i)
        return cache, known

    def close(self):
        self._session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _checked(self, cache, layers=None):
        """Returns the layers of a cache that is served.  Raises ValueError, which names what is not."""
        if getattr(cache, "offloading", False):
            raise ValueError(f"{type(cache).__name__} with offloading is not served: its layers move between devices")
        for layer in cache.layers:
            if type(layer) not in (DynamicLayer, StaticLayer):
                raise ValueError(f"{type(layer).__name__} is not served: only DynamicLayer and StaticLayer, which keep all tokens")
            if layer.is_initialized and layer.keys.dim() == 4:
                shape = (1, self._heads, layer.keys.shape[2], self._head_dim)
                if tuple(layer.keys.shape) != shape or tuple(layer.values.shape) != shape:
                    raise ValueError(
                        f"a cache of shape {tuple(layer.keys.shape)} is not served: it must hold one sequence of this model"
                    )
        if layers is not None and any(type(layer) is StaticLayer for layer in cache.layers) and len(cache.layers) != layers:
            raise ValueError(f"the cache has {len(cache.layers)} layers, and the model {layers}")
        return cache.layers

    def _memory(self, layer, blocks):
        """Returns where keys and values of a layer are loaded to, in host memory."""
        if layer is not None:
            if not layer.is_initialized:
                empty = torch.empty((1, self._heads, 0, self._head_dim), dtype=self._dtype, device=self._device)
                layer.lazy_initialization(empty, empty)
            if layer.keys.device.type == "cpu":
                return layer.keys, layer.values
        shape = (1, self._heads, blocks * self._block, self._head_dim)
        return torch.empty(shape, dtype=self._dtype), torch.empty(shape, dtype=self._dtype)

    @staticmethod
    def _fill_static(layer, keys, values, known):
        for mine, loaded in ((layer.keys, keys), (layer.values, values)):
            if mine is not loaded:
                mine[:, :, :known].copy_(loaded[:, :, :known])
            mine[:, :, known:].zero_()  # blocks that could not be loaded leave anything there
        layer.cumulative_length.add_(known)

    def _pages(self, keys, values):
        """A page is a block of tokens: tokens are rows of head_dim values, head after head."""
        first, size = keys[0], keys[0].element_size()
        for tensor in (*keys, *values):
            if tensor.stride() != first.stride() or tensor.stride(3) != 1 or tensor.dtype != self._dtype:
                raise ValueError(f"the layers lie in memory differently: {tensor.stride()} and {first.stride()}, {tensor.dtype}")
        return kvlarder.PageLayout(
            bases=[tensor.data_ptr() for pair in zip(keys, values) for tensor in pair],
            layers=self._layers,
            planes=2,
            heads=self._heads,
            row_bytes=self._head_dim * size,
            page_tokens=self._block,
            pages=first.shape[2] // self._block,
            page_stride=self._block * first.stride(2) * size,
            token_stride=first.stride(2) * size,
            head_stride=first.stride(1) * size,
            block_tokens=self._block,
            order="head_token",
        )

    def _chain(self, tokens):
        chain = kvlarder.TokenChain(self._seed, block_tokens=self._block)
        chain.extend(0, tokens)
        return chain


def _revision(model):
    if getattr(model, "peft_config", None) or getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError("a model with adapters needs `revision`, a name for its weights as they are now")
    try:
        found = weights.identity_of(model.config._name_or_path)
    except (OSError, ValueError) as error:
        raise ValueError(f"it is not known which weights the model has ({error}): set `revision` to a name for them") from error
    return "h2:" + weights.tagged_hash(("weights", found), ("config", weights.config_hash(model.config)))


def _tokens(token_ids):
    if isinstance(token_ids, torch.Tensor):
        if token_ids.dim() > 1 and token_ids.shape[0] != 1:
            raise ValueError("one sequence at a time")
        return token_ids.flatten().tolist()
    return list(token_ids)


def _leading(status, good):
    return next((i for i, one in enumerate(status) if one not in good), len(status))
