"""What a restore must equal, the same chunks computed in full, and its bytes stored in a daemon."""

import kvlarder
import numpy

SUFFIX = 24  # tokens after the prefix
STAGES = (1, 2, 4)


def stage_layers(layers, stages, stage):
    """Returns the layers [begin, end) of a pipeline stage."""
    return layers * stage // stages, layers * (stage + 1) // stages


class Reference:
    """The rows and activations of one prompt, computed chunk by chunk."""

    def __init__(self, model, ids, chunk):
        self.model, self.ids, self.chunk = model, ids, chunk
        tokens = len(ids) - SUFFIX
        self.rows = numpy.empty((model.layers, tokens, *model.row_shape), numpy.float32)
        self.hidden = numpy.empty((model.layers, tokens, model.width), numpy.float32)  # in front of each layer
        for begin in range(0, tokens, chunk):
            self._compute(begin)
        self.suffixes = {}  # by length of the prefix

    def _compute(self, begin):
        end = begin + self.chunk
        hidden = self.model.embed(self.ids[begin:end])
        for layer in range(self.model.layers):
            self.hidden[layer, begin:end] = hidden
            hidden, rows = self.model.layer(layer, hidden, begin, self.rows[layer, :begin])
            self.rows[layer, begin:end] = rows

    def suffix_ids(self):
        return self.ids[-SUFFIX:]

    def suffix(self, prefix):
        """Returns the rows of all layers of the suffix after `prefix` tokens, and the logits of the next token."""
        if prefix not in self.suffixes:
            hidden, all_rows = self.model.embed(self.suffix_ids()), []
            for layer in range(self.model.layers):
                hidden, rows = self.model.layer(layer, hidden, prefix, self.rows[layer, :prefix])
                all_rows.append(rows)
            self.suffixes[prefix] = numpy.stack(all_rows), self.model.logits(hidden)
        return self.suffixes[prefix]


class Store:
    """A process's session and the names of the stored blocks: KV of each stage, and activations in front of each."""

    def __init__(self, socket_dir, model, references):
        self.model, self.references = model, references
        self.session = kvlarder.connect(socket_dir).attach("oracle")
        self.contents = {chunk: kvlarder.ContentSpec("SmolLM2-135M", f"float32, chunks of {chunk}")
                         for chunk in references}
        self.handles, self.digests = {}, {}

    def variant(self, block, stages, stage, boundary=False):
        key = block, stages, stage, boundary
        if key not in self.handles:
            begin, end = stage_layers(self.model.layers, stages, stage)
            spec = kvlarder.VariantSpec(
                dtype="f32", layout="numpy-oracle/1/any", block_tokens=block, layers=1 if boundary else end - begin,
                first_layer=begin, group="boundary" if boundary else "")
            self.handles[key] = self.session.register(list(self.contents.values()), [spec])[0]
        return self.handles[key]

    def chain(self, chunk):
        """Returns the seed, followed by one digest for each 16 tokens."""
        if chunk not in self.digests:
            seed = self.session.seed(self.contents[chunk])
            self.digests[chunk] = [seed, *kvlarder.chain(seed, self.references[chunk].ids[:-SUFFIX])]
        return self.digests[chunk]

    def get(self, variant, chunk, block, index, buffers, first_layer=0):
        """Fills one buffer per layer of the block.  Returns its status."""
        digest = self.chain(chunk)[(index + 1) * block // 16]
        return self.session.get(variant, [kvlarder.GetBlock(digest, buffers, first_layer)])[0]

    def put_all(self, chunk, block):
        """Puts all blocks.  Returns how many were not there before."""
        stored = 0
        for stages in STAGES:
            for stage in range(stages):
                begin, end = stage_layers(self.model.layers, stages, stage)
                rows = self.references[chunk].rows[begin:end]
                stored += self._put(self.variant(block, stages, stage), chunk, block, rows)
                if stage > 0:
                    hidden = self.references[chunk].hidden[begin:begin + 1]
                    stored += self._put(self.variant(block, stages, stage, boundary=True), chunk, block, hidden)
        return stored

    def _put(self, variant, chunk, block, layers):
        chain, blocks = self.chain(chunk), []
        for begin in range(0, layers.shape[1], block):
            end = begin + block
            blocks.append(kvlarder.PutBlock(
                chain[end // 16], chain[begin // 16], self.references[chunk].ids[begin:end],
                [layer[begin:end] for layer in layers], chain[0]))
        stored = 0
        while blocks:  # FULL while the daemon, which has just started, populates its pool
            statuses = self.session.put(variant, blocks)
            # Two stages and four stages have boundaries at the same layer, with the same activations.
            assert {status.name for status in statuses} <= {"OK", "DUPLICATE", "FULL"}, statuses
            stored += sum(status.name == "OK" for status in statuses)
            blocks = [block for block, status in zip(blocks, statuses) if status.name == "FULL"]
        return stored
