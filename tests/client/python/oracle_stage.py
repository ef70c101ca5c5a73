"""One pipeline stage of the oracle's engine: the KV of its layers, which steps compute and loads fill.

The result of a step becomes visible at commit().  A row that was neither computed nor loaded is NaN, so every result
that used it differs.
"""

import kvlarder
import numpy
from oracle_reference import SUFFIX, Store, stage_layers


class Stage:
    """Ids of steps and loads are the scheduler's.  Layers are counted within the stage."""

    def __init__(self, store, references):
        self.store, self.references, self.model = store, references, store.model

    def begin(self, chunk, block, prefix, stages, stage):
        self.chunk, self.block, self.prefix = chunk, block, prefix
        self.layers = stage_layers(self.model.layers, stages, stage)
        self.variant = self.store.variant(block, stages, stage)
        self.boundary = self.store.variant(block, stages, stage, boundary=True) if stage > 0 else None
        shape = self.layers[1] - self.layers[0], prefix + SUFFIX, *self.model.row_shape
        self.rows = numpy.full(shape, numpy.nan, numpy.float32)
        self.steps, self.loads = {}, {}
        self.hidden = {}  # by first token of a step: number of layers done, activations
        if stage == 0:
            self._embed()

    def _embed(self):
        reference = self.references[self.chunk]
        for first in range(0, self.prefix, self.chunk):
            self.hidden[first] = 0, self.model.embed(reference.ids[first:first + self.chunk])
        self.hidden[self.prefix] = 0, self.model.embed(reference.suffix_ids())

    # ---- computing

    def compute(self, step, first, layer, last):
        """Computes layers [layer, last) of the tokens that begin at `first`."""
        depth, hidden = self.hidden[first]
        assert depth == layer, f"step from layer {layer}, activations are in front of layer {depth}"
        brought = []
        for at in range(layer, last):
            hidden, rows = self.model.layer(self.layers[0] + at, hidden, first, self.rows[at, :first])
            brought.append(rows)
        self.steps[step] = first, layer, last, hidden, brought

    def commit(self, step):
        """Makes the step's result visible.  Returns activations for the next stage if the step has done all layers."""
        first, layer, last, hidden, brought = self.steps.pop(step)
        for at, rows in zip(range(layer, last), brought):
            self.rows[at, first:first + len(rows)] = rows
        self.hidden[first] = last, hidden
        return hidden if last == len(self.rows) else None

    def abandon(self, step):
        del self.steps[step]

    def hand_over(self, first, hidden):
        self.hidden.setdefault(first, (0, hidden))  # the activations may have been loaded meanwhile and be in use

    # ---- loading

    def fetch(self, load, index, layer, last):
        """Reads layers of a block into separate memory.  Returns the status."""
        rows = numpy.full((last - layer, self.block, *self.model.row_shape), numpy.nan, numpy.float32)
        self.loads[load] = index * self.block, layer, rows
        return self.store.get(self.variant, self.chunk, self.block, index, list(rows), layer).name

    def fetch_boundary(self, load, index, blocks):
        hidden = numpy.full((blocks, self.block, self.model.width), numpy.nan, numpy.float32)
        self.loads[load] = index * self.block, None, hidden
        statuses = [self.store.get(self.boundary, self.chunk, self.block, index + i, [hidden[i]])
                    for i in range(blocks)]
        return max(statuses, key=lambda status: status.value).name

    def fetch_absent(self):
        """Gets a block that was never stored.  Returns the status."""
        digest = bytes(16)
        rows = numpy.empty((len(self.rows), self.block, *self.model.row_shape), numpy.float32)
        return self.store.session.get(self.variant, [kvlarder.GetBlock(digest, list(rows))])[0].name

    def place(self, load, flip=False, layers_up=0):
        """Places a load.  `flip` and `layers_up` place it wrongly, and the oracle must notice."""
        first, layer, bytes_ = self.loads.pop(load)
        if flip:
            bytes_.reshape(-1).view(numpy.uint8)[len(bytes_.reshape(-1)) // 2] ^= 1
        if layer is not None:
            layer = (layer + layers_up) % len(self.rows)
            self.rows[layer:layer + len(bytes_), first:first + self.block] = bytes_[:len(self.rows) - layer]
            return
        hidden = bytes_.reshape(-1, self.model.width)
        for at in range(0, len(hidden), self.chunk):
            self.hidden[first + at] = 0, hidden[at:at + self.chunk].copy()

    def drop(self, load):
        self.loads.pop(load, None)

    # ---- after the restore

    def suffix(self, hidden):
        """Computes the whole suffix.  Returns its activations behind this stage."""
        if hidden is not None:
            self.hand_over(self.prefix, hidden)
        self.compute("suffix", self.prefix, 0, len(self.rows))
        return self.commit("suffix")

    def compute_all(self, inputs):
        """Computes each chunk through all layers, as after a lost restore.

        `inputs` has activations by first token, or is None for the first stage.
        """
        outputs, self.hidden = {}, {first: (0, hidden) for first, hidden in (inputs or {}).items()}
        if inputs is None:
            self._embed()
        for first in range(0, self.prefix, self.chunk):
            self.compute("all", first, 0, len(self.rows))
            outputs[first] = self.commit("all")
        return outputs

    def differences(self):
        """Returns the places where the KV differs, in any bit, from computing everything."""
        begin, end = self.layers
        reference = self.references[self.chunk]
        wanted = numpy.concatenate(
            [reference.rows[begin:end, :self.prefix], reference.suffix(self.prefix)[0][begin:end]], axis=1)
        unequal = (wanted.view(numpy.uint32) != self.rows.view(numpy.uint32)).any(axis=(2, 3, 4))
        return [f"layer {begin + layer} token {token}" for layer, token in zip(*unequal.nonzero())]


class StageProcess:
    """The same calls in another process, which has its own session."""

    def __init__(self, context, socket_dir, model, references):
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=self._serve, args=(other, socket_dir, model, references), daemon=True)
        self.process.start()
        other.close()

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.pipe.send((name, arguments, options))
            answer, error = self.pipe.recv()
            if error is not None:
                raise RuntimeError(f"stage process: {error}")
            return answer
        return call

    def end(self):
        self.pipe.send(None)  # closing the pipe would not end it: processes forked later hold it too
        self.process.join()

    def _serve(self, pipe, socket_dir, model, references):
        self.pipe.close()
        stage = Stage(Store(socket_dir, model, references), references)
        while (call := pipe.recv()) is not None:
            name, arguments, options = call
            try:
                pipe.send((getattr(stage, name)(*arguments, **options), None))
            except Exception as error:  # pylint: disable=broad-except  # the caller reports it
                pipe.send((None, f"{type(error).__name__}: {error}"))
