"""Keeps the KV caches of Hugging Face transformers in Larder, so that a prompt need not be computed again.

    store = kvlarder.hf.PrefixStore(model)
    cache, known = store.restore(ids)              # of ids, the first `known` are in the cache
    out = model.generate(ids, past_key_values=cache)
    store.save(cache, out[0])

Or, where loading is slow, store.prefill(ids) in place of restore: it computes the head of the prompt while the tail is
loaded.  Whole blocks are kept, and any prefix of what was saved can be restored, by any process of this user with a model of
equal weights and dtype.  Caches must be DynamicCache or StaticCache with full attention, and hold one sequence.  The
blocks of a cache on a GPU are moved between the pool and the GPU's memory directly.
Thread-safety: a PrefixStore is for one thread at a time.
"""

import logging

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, StaticLayer

import kvlarder
from kvlarder import weights

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
LOG = logging.getLogger("kvlarder")
BLOCKS_OF_A_SAVE = 64  # that share a deadline
LAYERS_OF_A_RESTORE = 128  # models of more layers are not loaded while they are computed
# What devices compute at most, about, in operations per second: a guess, which the first steps of a restore correct.
FLOPS = {("cuda", 2): 5e14, ("cuda", 4): 1e14, ("cpu", 2): 1e12, ("cpu", 4): 5e11}  # (device, bytes of a number)
FIXED_S = 0.005  # of a step, however few tokens it has
STEPS_OF_A_PROMISE = 8192 * 16  # bytes of the digests that one promise takes: 131,072 tokens
CHANNELS = {kvlarder.Tier.HOST.value: 1, kvlarder.Tier.DISK.value: 2}
OK, DUPLICATE = kvlarder.BlockStatus.OK.value, kvlarder.BlockStatus.DUPLICATE.value


class PrefixStore:
    """The blocks of one model in one daemon.

    name, revision: how the model is called in Larder; by default its own name, and its hub commit or a hash of its files.
    Weights that were changed in memory need a revision of their own.
    salt: keeps users apart that must not share blocks.  block_tokens: a multiple of 16; smaller blocks restore more of a
    prompt, larger ones are quicker.  link_bytes_per_s, if not 0, emulates a slow link for prefill.
    Raises ConnectionError if no daemon answers, ValueError if the model is not served; the text says what to do.
    """

    def __init__(
        self, model, *, name="", revision="", salt=b"", block_tokens=64, engine_id="", socket_dir="", tenant="",
        link_bytes_per_s=0.0,
    ):  # fmt: skip
        config = model.config.get_text_config()
        self._model = model
        self._dtype, self._block = model.dtype, block_tokens
        if self._dtype not in DTYPES:
            raise ValueError(f"a model of {self._dtype} is not served: load it in bfloat16, float16 or float32")
        self._layers = config.num_hidden_layers
        self._heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        devices = {parameter.device for parameter in model.parameters()}
        if len(devices) != 1 or next(iter(devices)).type == "meta":
            raise ValueError(f"a model whose weights are on {sorted(map(str, devices))} is not served: load it on one device")
        self._device = next(iter(devices))
        name = name or weights.model_name(model.config._name_or_path) or "unnamed"
        self._content = kvlarder.ContentSpec(name, revision or _revision(model), salt=salt)
        layout = f"hf/1/{self._heads}x{self._head_dim}"
        self._spec = kvlarder.VariantSpec(
            dtype=DTYPES[self._dtype], layout=layout, block_tokens=block_tokens, layers=self._layers
        )
        self._engine_id = engine_id or f"hf-{weights.tagged_hash(('c', name), ('l', layout), ('b', block_tokens))[:16]}"
        self._socket_dir, self._tenant, self._link_bytes_per_s = socket_dir, tenant, link_bytes_per_s
        numbers = sum(parameter.numel() for parameter in model.parameters())
        flops = FLOPS.get((self._device.type, self._dtype.itemsize), 5e11)
        guess = kvlarder.ComputeCost(FIXED_S, 2 * numbers / flops)
        # Mixtures of experts compute a part of their weights for a token.
        self._least = kvlarder.ComputeCost(FIXED_S, guess.linear_s / 32)
        self._profile = kvlarder.Profile(
            model=name, layers=self._layers, compute=guess, doubt=0.3,
            channels=[kvlarder.ChannelCost("pool", link_bytes_per_s or 2e9), kvlarder.ChannelCost("disk", link_bytes_per_s or 1e9)],
        )  # fmt: skip
        self._wish = "auto" if self._device.type == "cuda" else "host"
        self._direct = self._device.type == "cpu"  # the session's device reads and writes the memory of the caches itself
        if self._device.type not in ("cpu", "cuda"):
            LOG.warning("caches on %s are copied through host memory", self._device)
        self._attach(5.0)

    def _attach(self, connect_deadline_s):
        client = kvlarder.connect(self._socket_dir, tenant=self._tenant, connect_deadline_s=connect_deadline_s)
        session = client.attach(self._engine_id, device=self._wish, device_number=self._device.index or 0)
        if self._wish == "auto":  # later sessions have the same device, because pages of one mean nothing to the other
            self._wish = session.device
            self._direct = session.device == "cuda"
            if not self._direct:
                LOG.warning("caches on %s are copied through host memory: %s", self._device, session.device_reason)
        variant = session.register([self._content], [self._spec])[0]
        self._session, self._variant, self._restorer = session, variant, None
        self._make_restorer()
        self._seed = session.seed(self._content)

    def _make_restorer(self):
        if self._layers <= LAYERS_OF_A_RESTORE:
            self._restorer = kvlarder.Restorer(
                self._session, self._variant, self._profile, link_bytes_per_s=self._link_bytes_per_s
            )

    def _learn(self, computed_tokens):
        """Keeps what a restore has measured."""
        self._profile = learnt = self._restorer.learnt()
        if computed_tokens > 0:
            return
        # A cost that was measured too high, as in the first step on a cold GPU, would never be measured again.
        cost, least = learnt.compute, self._least
        if cost.fixed_s <= least.fixed_s and cost.linear_s <= least.linear_s:
            return
        self._profile = kvlarder.Profile(
            model=learnt.model, layers=learnt.layers, channels=learnt.channels, doubt=0.3,
            compute=kvlarder.ComputeCost(
                max(least.fixed_s, cost.fixed_s / 2), max(least.linear_s, cost.linear_s / 2), cost.quadratic_s / 2
            ),
        )  # fmt: skip
        self._make_restorer()

    def save(self, cache, token_ids):
        """Stores the whole blocks of a cache.  Returns how many tokens, from the beginning, are stored now: fewer than
        the cache has if the daemon has no room, or is too slow.

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
        keys, values = [layer.keys for layer in layers], [layer.values for layer in layers]
        if not self._direct:
            keys, values = [tensor.cpu() for tensor in keys], [tensor.cpu() for tensor in values]
        chain = self._chain(tokens[: blocks * self._block])
        pages = self._pages(keys, values)
        self._synchronize()
        return self._block * self._served(lambda: self._put(pages, chain, blocks))

    def _put(self, pages, chain, blocks):
        """Returns how many blocks, from the beginning, are stored now."""
        for first in range(0, blocks, BLOCKS_OF_A_SAVE):
            last = min(first + BLOCKS_OF_A_SAVE, blocks)
            try:
                status = self._session.put_pages(
                    self._variant,
                    pages,
                    parent=chain.parent(first),
                    digests=chain.digests(first, last),
                    tokens=chain.tokens(first, last),
                    page_numbers=range(first, last),
                    content=self._seed,
                    deadline_s=60.0,
                )
            except (TimeoutError, RuntimeError) as error:
                LOG.warning("a cache is stored in part: %s", error)
                return first
            if (stored := first + _leading(status, (OK, DUPLICATE))) < last:
                return stored
        return blocks

    def restore(self, token_ids, cache=None):
        """Returns (cache, tokens): a cache with the longest stored prefix, and its length.

        At most len(token_ids) - 1 tokens are restored, because a model computes at least one.  cache: an empty one to
        fill; by default a new DynamicCache.
        """
        tokens = _tokens(token_ids)
        cache, layers, static, blocks = self._empty(cache, tokens)
        if blocks <= 0:
            return cache, 0
        keys, values = zip(*(self._memory(layers[i] if static else None, blocks) for i in range(self._layers)))
        chain = self._chain(tokens[: blocks * self._block])
        pages = self._pages(keys, values)
        self._synchronize()
        try:
            status = self._served(lambda: self._with_room(
                lambda: self._session.get_pages(self._variant, pages, chain.digests(0, blocks), range(blocks), deadline_s=60.0)
            ))  # fmt: skip
        except (TimeoutError, RuntimeError) as error:
            LOG.warning("a cache is not restored: %s", error)
            status = b""
        known = self._block * _leading(status, (OK,))
        for i, (k, v) in enumerate(zip(keys, values)):
            if static:
                self._fill_static(layers[i], k, v, known)
            elif known:
                k, v = (tensor[:, :, :known].contiguous().to(self._device) for tensor in (k, v))
                cache.update(k, v, i)
        return cache, known

    def prefill(self, token_ids, cache=None, *, chunk_tokens=256):
        """Returns (cache, what): a cache with all whole blocks of a prompt, but the last token, and a kvlarder.Restored.

        The model computes the prompt from its head, in steps of chunk_tokens (whole blocks), while stored blocks are
        loaded from the tail, until both meet.  What cannot be loaded, also because no daemon answers, is computed.  The
        cache is empty, or None for a new DynamicCache.  what is None if everything was computed because nothing is
        stored, there is no room to hold it, or no daemon answers.
        """
        tokens = _tokens(token_ids)
        cache, layers, static, blocks = self._empty(cache, tokens)
        if chunk_tokens <= 0 or chunk_tokens % self._block:
            raise ValueError(f"chunk_tokens must be a multiple of {self._block}, the tokens of a block")
        if blocks <= 0:
            return cache, None
        ids = torch.tensor([tokens], device=self._device)

        def compute(begin, end):
            with torch.no_grad():
                self._model(ids[:, begin:end], past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._synchronize()

        chain = self._chain(tokens[: blocks * self._block])
        promise = self._promised(chain)
        if promise is None:
            for begin in range(0, blocks * self._block, chunk_tokens):
                compute(begin, min(begin + chunk_tokens, blocks * self._block))
            return cache, None
        keys = values = ()

        def place(begin, end):
            for i, (k, v) in enumerate(zip(keys, values)):
                k, v = (tensor[:, :, begin:end].contiguous().to(self._device) for tensor in (k, v))
                if static:
                    self._initialize(layers[i])
                    layers[i].keys[:, :, begin:end].copy_(k)
                    layers[i].values[:, :, begin:end].copy_(v)
                    layers[i].cumulative_length.add_(end - begin)
                else:
                    cache.update(k, v, i)

        with promise:
            # Blocks land beside the cache: the bytes of one that is damaged must not meet an attention that goes on.
            keys, values = zip(*(self._memory(None, blocks) for _ in range(self._layers)))
            self._synchronize()
            found = promise.blocks[0]
            channels = [CHANNELS.get(tier, 0) for tier in found.tiers] if found.first_block == 0 else []
            what = self._restorer.restore(
                pages=self._pages(keys, values),
                digests=chain.digests(0, blocks),
                page_numbers=range(blocks),
                channels=(channels + [0] * blocks)[:blocks],
                compute=compute,
                place=place,
                chunk_tokens=chunk_tokens,
                promise=promise.id,
            )
        self._learn(what.computed_tokens)
        return cache, what

    def close(self):
        self._restorer = None
        self._session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _empty(self, cache, tokens):
        """Returns (cache, its layers, whether it is static, how many blocks of `tokens` it is to hold)."""
        cache = DynamicCache() if cache is None else cache
        if int(cache.get_seq_length()):
            raise ValueError("only an empty cache can be filled")
        layers = self._checked(cache, self._layers)
        room = getattr(layers[0], "max_cache_len", None) if layers else None
        fit = len(tokens) - 1 if room is None else min(len(tokens) - 1, room)
        return cache, layers, room is not None, fit // self._block

    def _promised(self, chain):
        """Returns a promise of what is stored of a prompt, or None."""
        if self._restorer is None:
            return None
        steps = chain.steps[:STEPS_OF_A_PROMISE]
        try:
            return self._served(lambda: self._session.promise([self._variant], steps, life_s=600.0, deadline_s=1.0), 1.0)
        except (ConnectionError, PermissionError, TimeoutError, RuntimeError) as error:
            LOG.warning("a prompt is computed without Larder: %s", error)
            return None

    def _served(self, call, connect_deadline_s=5.0):
        """Makes a call, and once more on a new session if the daemon was restarted."""
        try:
            return call()
        except ConnectionError:
            self._attach(connect_deadline_s)
            return call()

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
        """Returns where keys and values of a layer are loaded to: a static layer itself, if the session writes there."""
        if layer is not None:
            self._initialize(layer)
            if self._direct:
                return layer.keys, layer.values
        shape = (1, self._heads, blocks * self._block, self._head_dim)
        device = self._device if self._direct else "cpu"
        return tuple(torch.empty(shape, dtype=self._dtype, device=device) for _ in range(2))

    def _synchronize(self):
        """Waits until torch has done what it queued.  The session knows nothing of torch's streams, and torch may give
        new tensors memory that queued work still uses."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _with_room(self, call):
        """Makes a call, and once more if the GPU had no memory for it that torch does not use."""
        try:
            return call()
        except RuntimeError as error:
            if self._device.type != "cuda" or getattr(error, "code", "") != "RESOURCE_EXHAUSTED":
                raise
            torch.cuda.empty_cache()
            return call()

    def _initialize(self, layer):
        if not layer.is_initialized:
            empty = torch.empty((1, self._heads, 0, self._head_dim), dtype=self._dtype, device=self._device)
            layer.lazy_initialization(empty, empty)

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
            if self._direct and tensor.device != self._device:
                raise ValueError(f"the cache has a layer on {tensor.device}, and the model is on {self._device}")
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
        # from_pretrained may have taken another revision, subfolder or file than the name alone says.
        loaded = weights.loaded_hash(model.named_parameters())
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"it is not known which weights the model has ({error}): set `revision` to a name for them") from error
    return "h3:" + weights.tagged_hash(
        ("weights", found), ("loaded", loaded), ("config", weights.config_hash(model.config))
    )


def _tokens(token_ids):
    if isinstance(token_ids, torch.Tensor):
        if token_ids.dim() > 1 and token_ids.shape[0] != 1:
            raise ValueError("one sequence at a time")
        return token_ids.flatten().tolist()
    return list(token_ids)


def _leading(status, good):
    return next((i for i, one in enumerate(status) if one not in good), len(status))
