"""Where vLLM's KV lies in memory, from the tensors that it registers.

Works on anything with shape, stride(), data_ptr(), element_size(), is_contiguous(), dtype and device; needs no torch.
"""

import dataclasses
import re

import kvlarder
from kvlarder.vllm import names
from kvlarder.vllm.engine_facts import refuse


@dataclasses.dataclass(frozen=True)
class Pages:
    layout: kvlarder.PageLayout
    name: str  # the layout of the variant
    block_bytes: int  # of all layers
    layer_of: dict  # the number in the layout of each of vLLM's layers


def layer_order(name):
    """Sorts layers as the model has them: 'model.layers.10' comes after 'model.layers.9'."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def describe(kv_caches, facts, backend, version, isa):
    """Returns the pages of an engine.  A block of one layer is opaque: it is moved whole, because the attention kernels
    pack it in an order of their own.  Raises Refused.

    kv_caches: a tensor for each layer; backend, version, isa: as in names.layout.
    """
    tensors = {}
    for name in sorted(kv_caches, key=layer_order):
        tensor = kv_caches[name]
        if not hasattr(tensor, "data_ptr"):
            refuse(f"the KV of layer {name} is not one tensor", "only full attention is served")
        device = getattr(tensor, "device", None)
        if device is not None and getattr(device, "type", device) != "cpu":
            refuse(f"its KV is on the device {device}", "only engines on CPUs are served yet; start it without Larder")
        tensors.setdefault(tensor.data_ptr(), (name, tensor))  # layers that share KV count once
    first = next(iter(tensors.values()))[1]
    for name, tensor in tensors.values():
        if tuple(tensor.shape) != tuple(first.shape) or tuple(tensor.stride()) != tuple(first.stride()):
            refuse(f"layer {name} has KV of another shape than the first layer", "only models of equal layers are served")
        if tuple(tensor.shape)[0] != facts.blocks:
            refuse(
                f"the KV of layer {name} has shape {tuple(tensor.shape)}, which does not begin with its {facts.blocks} "
                "blocks",
                "choose an attention backend whose cache is block-first (VLLM_ATTENTION_BACKEND)",
            )
        if not tensor[0].is_contiguous():
            refuse(f"a block of layer {name} is not contiguous", "choose another attention backend or cache layout")
    size = first.element_size()
    shape, strides = tuple(first.shape)[1:], tuple(first.stride())
    page_bytes = size * _product(shape)
    try:
        layout = kvlarder.PageLayout.opaque(
            list(tensors),
            page_bytes=page_bytes,
            page_stride=strides[0] * size,
            pages=facts.blocks,
            page_tokens=facts.block_tokens,
        )
    except ValueError as error:
        refuse(f"its pages cannot be described ({error})", "please report it with the model's name")
    order = {address: number for number, address in enumerate(tensors)}
    layer_of = {name: order[tensor.data_ptr()] for name, tensor in kv_caches.items()}
    return Pages(layout, names.layout(backend, version, isa, shape, strides), layout.block_bytes, layer_of)


def _product(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product
