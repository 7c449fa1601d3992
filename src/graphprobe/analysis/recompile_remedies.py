"""What to do about each kind of recompilation, in words that name the program's own variables."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

_OWN_FUNCTION = (
    "compile a function of its own for each, written out one by one: `def run_a(*args, **kwargs): return "
    "a(*args, **kwargs)`, then torch.compile(run_a)"
)


class RemedyCase(msgspec.Struct, frozen=True):
    """A group of recompilations as a remedy needs it.

    Attributes:
        name: what changed, as the program writes it, e.g. `x` or `self.scale`.
        dim: dimension of the tensor.
        values: those seen, as text, the first ones first.
        where: the program's line, as text; `''` when none is known.
        function: what was recompiled.
        count: guard failures of the group.
        dynamic, automatic_dynamic: as in `Recompile`.
        specialized: torch had made the value dynamic, and the code pinned it down again.
        parameter, static_module_int: as in `Check`.
        limit: the limit's name, for `limit-reached`.
    """

    name: str
    function: str
    count: int
    dynamic: bool | None
    automatic_dynamic: bool
    dim: int | None = None
    values: tuple[str, ...] = ()
    where: str = ""
    specialized: bool = False
    parameter: bool = False
    static_module_int: bool = False
    limit: str | None = None


Remedy = Callable[[RemedyCase], list[str]]


def remedies(kind: str, case: RemedyCase) -> list[str]:
    """What to do, the best first."""
    return REMEDIES[kind](case)


def _size(case: RemedyCase) -> list[str]:
    if case.parameter:
        return [
            "torch._dynamo.config.force_parameter_static_shapes = False lets sizes of parameters be dynamic",
            f"or one compiled function for each size of {case.name}: make the module, then compile it, once a size",
        ]
    mark = f"torch._dynamo.mark_dynamic({case.name}, {case.dim}) before the first call"
    if case.specialized:
        return [
            "torch made the size dynamic after its first change, and the function needs it as a number all the same: "
            f"{mark} raises an error that names the line; take what needs the number (a loop over it, a parameter of "
            "that size, mark_static) out of the function",
            f"or pad dim {case.dim} of {case.name} to a few sizes, with torch._dynamo.config.recompile_limit above "
            "their number",
        ]
    whole = "torch.compile(..., dynamic=True)" if case.dynamic is not False else "leave dynamic=False out"
    return [mark, f"or {whole}"]


def _zero_one(case: RemedyCase) -> list[str]:
    return [
        f"torch compiles sizes 0 and 1 alone: if dim {case.dim} of {case.name} is 1 by design (a decode step), "
        "compile prefill and decode as two functions, or accept this version with --allow 1",
        f"or keep dim {case.dim} of {case.name} at 2 or more (pad, or drop the last short batch)",
        f"or torch._dynamo.decorators.mark_unbacked({case.name}, {case.dim}) before each call, which takes 0 and 1 in",
    ]


def _size_condition(case: RemedyCase) -> list[str]:
    at = case.where or case.function
    return [
        f"the condition on the size at {at} splits the sizes in two, one version each: decide it outside, and compile "
        "each side as a function of its own",
        f"or pad dim {case.dim} of {case.name} so that the condition always comes out the same",
    ]


def _sizes_equal(case: RemedyCase) -> list[str]:
    return [
        "sizes that are equal at the first call are taken to be equal always: make the first call with different sizes",
        "or torch.fx.experimental._config.use_duck_shape = False before it",
    ]


def _value_condition(case: RemedyCase) -> list[str]:
    at = case.where or case.function
    return [
        f"the condition on {case.name} at {at} gets one version for each outcome: decide it outside, and compile each "
        "side as a function of its own",
        f"or compute with torch.where on a tensor instead of {case.name}",
    ]


def _number(case: RemedyCase) -> list[str]:
    tensor = f"pass {case.name} as a tensor, torch.tensor({case.values[0] if case.values else case.name})"
    if case.specialized:
        return [
            f"{case.where or case.function} needs {case.name} as a number (a loop, an index, a shape): hoist that out "
            f"of the compiled function, or keep {case.name} the same",
            f"or {_raise_limit(case)}",
        ]
    if case.dynamic is False:
        return [tensor, "or leave dynamic=False out"]
    return [tensor, "or torch.compile(..., dynamic=True)", f"or {_raise_limit(case)}"]


def _raise_limit(case: RemedyCase) -> str:
    return (
        "where the values are few: torch._dynamo.config.recompile_limit above their number (seen: "
        f"{len(case.values)}), one version each"
    )


def _branch(case: RemedyCase) -> list[str]:
    return [
        f"each value of {case.name} is a program of its own: choose outside, between functions that are compiled by "
        "themselves",
        f"or {_raise_limit(case)}",
    ]


def _none(case: RemedyCase) -> list[str]:
    return [
        f"pass {case.name} always, with a neutral tensor (zeros, ones) in the place of None",
        "or choose outside, between two functions that are compiled by themselves",
    ]


def _type(case: RemedyCase) -> list[str]:
    return [
        f"pass {case.name} with one type; convert it before the call",
        "or compile one function for each type",
    ]


def _dtype(case: RemedyCase) -> list[str]:
    dtype = case.values[0] if case.values else "float32"
    return [
        f"cast {case.name} to one dtype before the call: {case.name}.to(torch.{dtype})",
        "or, where both are wanted, one version each is the price, paid once: allow it with --allow 1",
    ]


def _attribute(case: RemedyCase) -> list[str]:
    owner, _, attribute = case.name.rpartition(".")
    told = [f"set {case.name} once, before the first call"]
    if case.static_module_int:
        told = [
            f'keep it in a tensor: {owner or "self"}.register_buffer("{attribute}", torch.tensor(...)), changed in '
            "place",
            "or torch._dynamo.config.allow_unspec_int_on_nn_module = True, with torch.compile(..., dynamic=True)",
        ]
    elif "absent" not in case.values:
        told.append(f"or keep a tensor in {case.name}, and change it in place")
    return told


def _is_number(value: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", value) is not None


def _instance(case: RemedyCase) -> list[str]:
    told = f"the instances share one compiled function and differ in {case.name}: "
    if not all(map(_is_number, case.values)):
        return [f"{told}make it the same in all of them, or {_OWN_FUNCTION}"]
    return [
        f"{told}keep what differs in a tensor (register_buffer), or out of the compiled method",
        "or, for integers: torch._dynamo.config.allow_unspec_int_on_nn_module = True with "
        "torch.compile(..., dynamic=True)",
        f"or torch._dynamo.config.recompile_limit above the number of instances (seen: {len(case.values)}), one "
        "version each",
    ]


def _shared(case: RemedyCase) -> list[str]:
    return [
        _OWN_FUNCTION,
        "or give each torch.compile(..., isolate_recompiles=True), where this torch has it: the limit then counts for "
        "each by itself",
    ]


def _training(case: RemedyCase) -> list[str]:
    owner = case.name.rpartition(".")[0] or "model"
    return [
        f"call train() or eval() once, before the first call of the compiled function ({owner})",
        "where both modes are wanted, one version each is the price, paid once: allow it with --allow 1",
    ]


def _global(case: RemedyCase) -> list[str]:
    return [
        f"pass {case.name} as an argument, in a tensor, instead of reading a global that changes",
        f"or set {case.name} before the first call and leave it",
    ]


def _closure(case: RemedyCase) -> list[str]:
    numbers = bool(case.values) and all(map(_is_number, case.values))
    instead = f"pass {case.name} as an argument, in a tensor, or " if numbers else ""
    return [
        f"all functions made here share one code object and differ in {case.name}: {instead}make the function once, "
        "and compile that",
        f"or {_raise_limit(case)}",
    ]


def _length(case: RemedyCase) -> list[str]:
    return [
        f"give {case.name} one length: if it is a cache that grows, make its size fixed (StaticCache, or index_copy_ "
        "into a tensor that is made once); pad a list, or stack it into one tensor (torch.stack) with a dynamic dim 0",
        f"or {_raise_limit(case)}",
    ]


def _alias(case: RemedyCase) -> list[str]:
    return [
        f"do not pass one tensor as {case.name}: x.clone() for one of them, in every call",
        "or compile one function for each case",
    ]


def _backend(case: RemedyCase) -> list[str]:
    return [
        "make the backend once and give the same object to every torch.compile of the function",
        "or wrap it in one functools.partial that is kept",
    ]


def _limit(case: RemedyCase) -> list[str]:
    return [
        f"remove the causes listed for {case.function}: from the limit on, calls that no version fits run uncompiled",
        f"or, where the variants are few: torch._dynamo.config.{case.limit} at their number ({case.count} were not "
        "enough)",
    ]


def _said(*texts: str) -> Remedy:
    return lambda case: [text.format(name=case.name, dim=case.dim, function=case.function) for text in texts]


REMEDIES: dict[str, Remedy] = {
    "size-changed": _size,
    "size-zero-one": _zero_one,
    "size-condition": _size_condition,
    "sizes-equal": _sizes_equal,
    "stride-changed": _said(
        "{name} = {name}.contiguous() before the call, so that its layout is the same in every call",
        "or make {name} with the same layout everywhere (no transposed views, one memory format)",
    ),
    "dtype-changed": _dtype,
    "rank-changed": _said(
        "torch has no dynamic rank: bring {name} to one number of dimensions before the call (unsqueeze, flatten)",
        "or compile one function for each rank",
    ),
    "requires-grad-changed": _said(
        "set requires_grad of {name} once, before the first call; for inputs that need no gradient pass {name}.detach()"
    ),
    "device-changed": _said("move {name} to one device before the call: {name}.to(device)"),
    "tensor-state-changed": _said(
        "make {name} in the same mode for every call: not under torch.inference_mode() once and outside of it another "
        "time; resolve_conj() or clone() gives an ordinary tensor"
    ),
    "tensor-class-changed": _said(
        "pass {name} as one class: a parameter or subclass in every call, or plain tensors, e.g. {name}.detach()"
    ),
    "dynamic-mark-changed": _said("mark {name} (mark_dynamic, mark_static, ...) before the very first call, not later"),
    "alias-changed": _alias,
    "int-changed": _number,
    "float-changed": _number,
    "value-condition": _value_condition,
    "bool-changed": _branch,
    "string-changed": _branch,
    "constant-changed": _branch,
    "none-changed": _none,
    "type-changed": _type,
    "function-changed": _said(
        "define the function {name} once, outside of the loop, and pass the same object each time",
        "or compile one function for each {name}",
    ),
    "object-changed": _said(
        "{name} is compared by identity: pass the same object each time, or only what the function needs of it",
        "or compile one function for each object, while they are few",
    ),
    "object-freed": _said(
        "{name} was freed, and what was compiled for it went with it: make it once and keep it, instead of anew for "
        "each call"
    ),
    "attribute-changed": _attribute,
    "instance-changed": _instance,
    "shared-code": _shared,
    "training-mode-changed": _training,
    "global-changed": _global,
    "closure-changed": _closure,
    "length-changed": _length,
    "keys-changed": _said(
        "give {name} the same keys, in the same order, in every call; pass what is optional as an argument of its own"
    ),
    "grad-mode-changed": _said(
        "call {function} in one mode: always inside torch.no_grad() (or inference_mode), or never",
        "where training and validation share it, one version each is the price, paid once: allow it with --allow 1",
    ),
    "autocast-changed": _said("call {function} always inside of the same torch.autocast, or never"),
    "global-state-changed": _said("set it once, before the first call of {function}"),
    "function-mode-changed": _said(
        "call {function} always under the same modes: `with torch.device(...)` and torch function modes are such"
    ),
    "backend-changed": _backend,
    "limit-reached": _limit,
    "unexplained": _said("torch cannot say why: report it to PyTorch with the program"),
    "other": _said("read what torch says above; keep what it names the same in every call"),
}
