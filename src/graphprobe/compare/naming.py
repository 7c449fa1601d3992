"""Which names of an API mean the same operation: the one table by which calls of different spelling may be paired."""

from __future__ import annotations

import functools

VENDORS = ("npu_", "cuda_", "cudnn_", "miopen_", "mkldnn_", "mps_", "xpu_", "mlu_", "hpu_", "musa_")
"""Prefixes that say for which device an operation is, and not what it computes."""

SYNONYMS: dict[str, str] = {
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "truediv": "div",
    "subtract": "sub",
    "absolute": "abs",
    "negative": "neg",
    "invert": "bitwise_not",
    "clip": "clamp",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "moveaxis": "movedim",
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    "fix": "trunc",
    "floordiv": "floor_divide",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "mod": "remainder",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "native_dropout": "dropout",
    "convolution": "conv",
    "_convolution": "conv",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "fusedlayernorm": "layernorm",
    "mixedfusedlayernorm": "layernorm",
    "fusedrmsnorm": "rmsnorm",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math": "scaled_dot_product_attention",
}
"""Last part of a name, and the name that stands for both. A pair of such calls still needs shapes that agree."""

IN_PLACE_DUNDERS = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul ilshift irshift".split()
)


@functools.lru_cache(maxsize=4096)
def canonical(api: str) -> str:
    """What an API does, whatever it is called: `mul` of `torch.Tensor.__mul__`, `torch.multiply` and `aten.mul.Tensor`.

    A function and the method of the same name are one (`torch.relu`, `torch.Tensor.relu`), also of the functional
    module; an operator is its function; the overload of an aten operator and a vendor's prefix are dropped; then
    `SYNONYMS`. `add_` stays apart from `add`, because the one changes its input.
    """
    parts = api.split(".")
    for namespace in ("aten", "prims", "npu"):
        if namespace in parts[:-1]:
            parts = parts[: parts.index(namespace) + 2]
            break
    name = parts[-1]
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        name = name.strip("_")
        if name in IN_PLACE_DUNDERS:
            inner = name[1:]
            return SYNONYMS.get(inner, inner) + "_"
        if name.startswith("r") and name[1:] in ("add", "sub", "mul", "truediv", "pow", "matmul", "div", "floordiv"):
            name = name[1:]
    for vendor in VENDORS:
        if name.startswith(vendor) and len(name) > len(vendor):
            name = name[len(vendor) :]
            break
    return SYNONYMS.get(name, SYNONYMS.get(name.lower(), name))
