"""Which names of an API mean the same operation: the one table by which calls of different spelling may be paired."""

from __future__ import annotations

import functools

VENDORS = ("npu_", "cuda_", "cudnn_", "miopen_", "mkldnn_", "mps_", "xpu_", "mlu_", "hpu_", "musa_")
"""Prefixes that say for which device an operation is, and not what it computes."""

SAME = """
    mul multiply; div divide true_divide truediv; sub subtract; abs absolute; neg negative; bitwise_not invert;
    clamp clip; gt greater; ge greater_equal; lt less; le less_equal; ne not_equal; cat concat concatenate;
    transpose swapaxes swapdims; movedim moveaxis; atan arctan; asin arcsin; acos arccos; trunc fix;
    floor_divide floordiv; bitwise_and and; bitwise_or or; bitwise_xor xor; bitwise_left_shift lshift;
    bitwise_right_shift rshift; remainder mod; softmax _softmax; log_softmax _log_softmax;
    layer_norm native_layer_norm; group_norm native_group_norm; batch_norm native_batch_norm; dropout native_dropout;
    conv convolution _convolution conv1d conv2d conv3d; layernorm fusedlayernorm mixedfusedlayernorm;
    rmsnorm fusedrmsnorm;
    scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math
"""
"""Rows of names with one meaning, of which the first is the name of all."""

SYNONYMS = {name: row.split()[0] for row in SAME.split(";") for name in row.split()[1:]}
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
