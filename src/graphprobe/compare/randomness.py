"""Operations whose results need not agree in two runs: those that draw random numbers, or give memory as it was."""

from __future__ import annotations

import functools

from graphprobe.compare.naming import canonical
from graphprobe.store.calls import Call

DRAWING = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli bernoulli_ multinomial normal normal_ "
    "uniform_ dropout dropout_ alpha_dropout alpha_dropout_ feature_alpha_dropout feature_dropout dropout1d dropout2d "
    "dropout3d rrelu rrelu_ rrelu_with_noise exponential exponential_ random_ poisson geometric_ cauchy_ log_normal_ "
    "gumbel_softmax fractional_max_pool2d fractional_max_pool3d trunc_normal_ xavier_uniform_ xavier_normal_ "
    "kaiming_uniform_ kaiming_normal_ orthogonal_".split()
)
MODULES = frozenset("Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout RReLU DropPath".split())
UNDEFINED = frozenset("empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split())
"""What they return holds nothing that anybody wrote."""
OVERWRITING = frozenset(
    "copy_ fill_ zero_ set_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ "
    "fill_diagonal_ zeros_ ones_ constant_ eye_ dirac_ sparse_ index_copy_ scatter_ masked_fill_ __setitem__".split()
)
"""What they got in the tensor that they write to has no say in what they give, where they write."""
INITIALIZERS = "torch.nn.init."
RECEIVING = frozenset(
    "all_gather_single all_gather_into_tensor _all_gather_base all_gather reduce_scatter_single reduce_scatter_tensor "
    "_reduce_scatter_base reduce_scatter all_to_all_single all_to_all scatter recv irecv".split()
)
"""Collectives that write to the whole of their first argument, and do not read it."""
ALIASES = frozenset("view as_strided detach alias".split())
"""Operations that give the very memory that they got: what is written to it later, they have given, too."""


def draws(call: Call) -> bool:
    """Whether what the call gives depends on a random generator."""
    if call.compiled is not None:
        return call.compiled.draws
    if call.kind == "module":
        return call.api.rpartition(".")[2] in MODULES
    name = canonical(call.api)
    if "dropout" in name and name in DRAWING:
        return not _switched_off(call)
    if name in DRAWING:
        return True
    if name == "scaled_dot_product_attention":
        for slot in call.slots:
            if slot.scalar is not None and slot.name in ("kwarg.dropout_p", "input.4"):
                return slot.scalar.text not in ("0.0", "0", "None")
    return False


def is_undefined(call: Call) -> bool:
    """Whether what the call gives is memory that nobody has written to yet."""
    return call.kind != "module" and canonical(call.api) in UNDEFINED


def overwrites(call: Call) -> bool:
    """Whether the call writes to a tensor without reading it first."""
    return call.api.startswith(INITIALIZERS) or canonical(call.api) in OVERWRITING or call.api.endswith(".__setitem__")


@functools.lru_cache(maxsize=4096)
def is_overwritten(api: str, name: str) -> bool:
    """Whether a call writes to the whole of an argument, and does not read it: `out`, what a collective receives."""
    if name == "kwarg.out" or name.startswith("kwarg.out.") or (name == "input.1" and is_half_written(api, "output.1")):
        return True
    first = name == "input.0" or name.startswith("input.0.") or name in ("kwarg.output", "kwarg.output_tensor")
    return first and is_collective(api) and canonical(api) in RECEIVING


@functools.lru_cache(maxsize=4096)
def is_half_written(api: str, name: str) -> bool:
    """Whether a result is FSDP's buffer of a collective: the rank's own part, `output.0`, and memory as it was."""
    return name == "output.1" and canonical(api) == "all_gather_copy_in"


def is_collective(api: str) -> bool:
    """Whether what a call gives comes from other ranks as well."""
    return "distributed" in api or "c10d" in api


def gives_alias(call: Call) -> bool:
    """Whether the call gives the memory that it got, under another shape."""
    return call.direction == "forward" and canonical(call.api) in ALIASES


def _switched_off(call: Call) -> bool:
    """A dropout of probability 0, or outside of training, gives back its input."""
    texts = {slot.name: slot.scalar.text for slot in call.slots if slot.scalar is not None}
    chance = texts.get("input.1", texts.get("kwarg.p", ""))
    training = texts.get("input.2", texts.get("kwarg.training", texts.get("kwarg.train", "")))
    return chance in ("0", "0.0") or training == "False"
