"""A Llama model from its GGUF file, in numpy and float32, for the oracle.  It computes a layer of a chunk at a time.

The exact bits depend on the shapes that BLAS is given, so a chunk has the same bits only if its tokens begin and end
at the same places.  No function writes to its arguments: the keys and values of a chunk are returned along with its
activations.
"""

import gguf
import numpy


class LlamaModel:
    """The weights, and the body of the layer loop.  KV rows are [token, 2 (key, value), head, element]."""

    def __init__(self, path, positions):
        reader = gguf.GGUFReader(path)

        def field(name):
            return reader.fields["llama." + name].contents()

        weights = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
                   for tensor in reader.tensors}
        self.layers, self.width = field("block_count"), field("embedding_length")
        self.heads, self.kv_heads = field("attention.head_count"), field("attention.head_count_kv")
        self.head = self.width // self.heads
        self.epsilon = numpy.float32(field("attention.layer_norm_rms_epsilon"))
        self.embedding = weights["token_embd.weight"]
        self.output_norm = weights["output_norm.weight"]
        self.layer_weights = [
            {name[len(f"blk.{layer}."):-len(".weight")]: numpy.ascontiguousarray(value.T)
             for name, value in weights.items() if name.startswith(f"blk.{layer}.")}
            for layer in range(self.layers)]
        frequency = field("rope.freq_base") ** (-numpy.arange(0, self.head, 2, dtype=numpy.float32) / self.head)
        angle = numpy.arange(positions, dtype=numpy.float32)[:, None] * frequency.astype(numpy.float32)
        self.cos, self.sin = numpy.cos(angle), numpy.sin(angle)

    @property
    def row_shape(self):
        return 2, self.kv_heads, self.head

    def embed(self, ids):
        return self.embedding[ids]

    def logits(self, hidden):
        return self._norm(hidden[-1:], self.output_norm) @ self.embedding.T

    def layer(self, layer, hidden, begin, past):
        """Returns the activations [tokens, width] behind this layer, and the rows of tokens [begin, begin + tokens).

        `past` has the rows of tokens [0, begin) on this layer.
        """
        weights, tokens = self.layer_weights[layer], len(hidden)
        x = self._norm(hidden, weights["attn_norm"])
        rows = numpy.empty((tokens, *self.row_shape), numpy.float32)
        rows[:, 0] = self._turn((x @ weights["attn_k"]).reshape(tokens, self.kv_heads, self.head), begin)
        rows[:, 1] = (x @ weights["attn_v"]).reshape(tokens, self.kv_heads, self.head)
        query = self._turn((x @ weights["attn_q"]).reshape(tokens, self.heads, self.head), begin)
        hidden = hidden + self._attend(query, numpy.concatenate([past, rows]), begin) @ weights["attn_output"]
        x = self._norm(hidden, weights["ffn_norm"])
        gate = x @ weights["ffn_gate"]
        return hidden + (gate / (1 + numpy.exp(-gate)) * (x @ weights["ffn_up"])) @ weights["ffn_down"], rows

    def _attend(self, query, rows, begin):
        tokens, end = len(query), len(rows)
        query = query.transpose(1, 0, 2).reshape(self.kv_heads, -1, self.head)
        score = query @ rows[:, 0].transpose(1, 2, 0) * numpy.float32(self.head ** -0.5)
        score = score.reshape(self.kv_heads, -1, tokens, end)
        hidden_from = numpy.arange(begin, end)[:, None] < numpy.arange(end)
        score[..., hidden_from] = -numpy.inf
        score = numpy.exp(score - score.max(-1, keepdims=True))
        score /= score.sum(-1, keepdims=True)
        out = score.reshape(self.kv_heads, -1, end) @ rows[:, 1].transpose(1, 0, 2)
        return out.reshape(self.heads, tokens, self.head).transpose(1, 0, 2).reshape(tokens, -1)

    def _norm(self, x, weight):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * weight

    def _turn(self, x, begin):
        """Rotary embedding.  GGUF interleaves the pairs."""
        cos, sin = (table[begin:begin + len(x), None] for table in (self.cos, self.sin))
        y = numpy.empty_like(x)
        y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        y[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return y
