"""Names of blocks for engines that know a block by a hash key, and not by its tokens (docs/format.md, "Hash keys").

SGLang's HiCache and the tiers of vLLM's offloading hand over keys, such as the SHA-256 of a block and all that comes before
it.  A key takes the place of the tokens from which a digest is made:

    keys = HashKeys(session.seed(content), block_tokens=64)
    digest, parent, tokens = keys.name(key)
    session.put(variant, [kvlarder.PutBlock(digest, parent, tokens, segments)])

Lookup cannot find such blocks by token ids.  It finds them by `tokens`, one block at a time, or along `chain`.
content_of marks the content, so that a key is never taken for tokens.
Thread-safety: any thread.
"""

import kvlarder

KEY_BYTES_MAX = 60
STEP = 16  # tokens of one step of a digest
MARK = b"larder/hash-keys/1"


def content_of(model, *, revision="", salt=b"", lora=""):
    """Returns the ContentSpec of a model whose blocks are named by keys."""
    return kvlarder.ContentSpec(model, revision, salt=salt, lora=lora, multimodal=MARK)


class HashKeys:
    def __init__(self, seed, block_tokens):
        """seed: of the content, 16 bytes; block_tokens: a multiple of 16.  Raises ValueError for others."""
        if block_tokens <= 0 or block_tokens % STEP:
            raise ValueError(f"blocks of {block_tokens} tokens have no names: a block has a multiple of {STEP} tokens")
        self._seed, self._block_tokens = seed, block_tokens

    def tokens(self, key):
        """Returns what takes the place of the tokens of a block: the key's length, its bytes as numbers of 32 bits, and zeros.
        Raises ValueError if the key is empty or longer than KEY_BYTES_MAX."""
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise ValueError(f"a key of {len(key)} bytes: it must have 1 to {KEY_BYTES_MAX}")
        padded = key + bytes(-len(key) % 4)
        words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4)]
        return [len(key), *words] + [0] * (self._block_tokens - 1 - len(words))

    def name(self, key, parent=None):
        """Returns (digest, parent, tokens) of a block.  parent: the digest of the block before, if its key is known; by
        default the block has none, and its parent is the seed."""
        parent, tokens = parent or self._seed, self.tokens(key)
        return kvlarder.chain(parent, tokens)[-1], parent, tokens

    def chain(self, keys):
        """Returns what `name` returns, for each of the keys of consecutive blocks: each block is the parent of the next."""
        names, parent = [], None
        for key in keys:
            names.append(self.name(key, parent))
            parent = names[-1][0]
        return names
