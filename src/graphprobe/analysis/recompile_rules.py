"""What each kind of recompilation comes of, and what to do about it, in words that name the program's own variables."""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

_ONE_EACH = (
    "where the values are few: torch._dynamo.config.recompile_limit above their number (seen: {seen}), one version each"
)
_OWN_FUNCTION = (
    "compile a function of its own for each, written out one by one: `def run_a(*args, **kwargs): return "
    "a(*args, **kwargs)`, then torch.compile(run_a)"
)
_PRICE = "one version each is the price, paid once: allow it with --allow 1"
_TENSOR = "pass {name} as a tensor, torch.tensor({first})"
_CHANGED = "{name} changed: {values}"
_MARK = "torch._dynamo.mark_dynamic({name}, {dim}) before the first call"
_UNSPEC = "torch._dynamo.config.allow_unspec_int_on_nn_module = True"
_OUTSIDE = "decide it outside, and compile each side as a function of its own"
_DIFFER = "the instances share one compiled function and differ in {name}: "
_CODE = "all functions made here share one code object and differ in {name}: "
_ONCE = "set {name} once, before the first call"


class KindRule(msgspec.Struct, frozen=True):
    """One kind of recompilation. In braces stand names of the group, see `recompiles._names`.

    Attributes:
        cause: one sentence.
        remedies: what to do, the best first.
        other: the remedies where something is true of the group; the first counts:
            `parameter`: the tensor is one; `specialized`: torch made the value dynamic, and the code pinned it down
            again; `static`: torch.compile was told dynamic=False; `numbers`: all values are; `static int`: torch says
            that it keeps integers of modules static; `absent`: some objects have no such attribute.
    """

    cause: str
    remedies: tuple[str, ...]
    other: dict[str, tuple[str, ...]] = {}

    def told(self, names: Mapping[str, str], true: Set[str]) -> tuple[str, list[str]]:
        """The cause, and what to do."""
        remedies = next((texts for what, texts in self.other.items() if what in true), self.remedies)
        return self.cause.format(**names), [text.format(**names) for text in remedies]


# fmt: off
_NUMBER = KindRule(_CHANGED, (_TENSOR, "or torch.compile(..., dynamic=True)", f"or {_ONE_EACH}"), {
    "specialized": (
        "{where} needs {name} as a number (a loop, an index, a shape): hoist that out of the compiled function, or "
        "keep {name} the same",
        f"or {_ONE_EACH}"),
    "static": (_TENSOR, "or leave dynamic=False out")})
_CHOICE = KindRule(_CHANGED, (
    "each value of {name} is a program of its own: choose outside, between functions that are compiled by themselves",
    f"or {_ONE_EACH}"))

RULES: dict[str, KindRule] = {
    # -- tensors
    "size-changed": KindRule("the size of dim {dim} of {name} changed: {values}",
        (_MARK, "or torch.compile(..., dynamic=True)"), {
        "parameter": (
            "torch._dynamo.config.force_parameter_static_shapes = False lets sizes of parameters be dynamic",
            "or one compiled function for each size of {name}: make the module, then compile it, once a size"),
        "specialized": (
            "torch made the size dynamic after its first change, and the function needs it as a number all the same: "
            f"{_MARK} raises an error that names the line; take what needs the number (a loop over it, a parameter of "
            "that size, mark_static) out of the function",
            "or pad dim {dim} of {name} to a few sizes, with torch._dynamo.config.recompile_limit above their number"),
        "static": (_MARK, "or leave dynamic=False out")}),
    "size-zero-one": KindRule("the size of dim {dim} of {name} is {either}, which torch compiles by itself", (
        "torch compiles sizes 0 and 1 alone: if dim {dim} of {name} is 1 by design (a decode step), compile prefill "
        "and decode as two functions, or accept this version with --allow 1",
        "or keep dim {dim} of {name} at 2 or more (pad, or drop the last short batch)",
        "or torch._dynamo.decorators.mark_unbacked({name}, {dim}) before each call, which takes 0 and 1 in")),
    "size-condition": KindRule("the size of dim {dim} of {name} does not meet what the code asked of it: {condition}", (
        f"the condition on the size at {{where}} splits the sizes in two, one version each: {_OUTSIDE}",
        "or pad dim {dim} of {name} so that the condition always comes out the same")),
    "sizes-equal": KindRule("two sizes are equal no more: {condition}", (
        "sizes that are equal at the first call are taken to be equal always: make the first call with different sizes",
        "or torch.fx.experimental._config.use_duck_shape = False before it")),
    "stride-changed": KindRule("the stride of dim {dim} of {name} changed: {values}", (
        "{name} = {name}.contiguous() before the call, so that its layout is the same in every call",
        "or make {name} with the same layout everywhere (no transposed views, one memory format)")),
    "dtype-changed": KindRule("the dtype of {name} changed: {values}", (
        "cast {name} to one dtype before the call: {name}.to(torch.{first})", f"or, where both are wanted, {_PRICE}")),
    "rank-changed": KindRule("the number of dimensions of {name} changed: {values}", (
        "torch has no dynamic rank: bring {name} to one number of dimensions before the call (unsqueeze, flatten)",
        "or compile one function for each rank")),
    "requires-grad-changed": KindRule("requires_grad of {name} changed: {values}", (
        "set requires_grad of {name} once, before the first call; for inputs that need no gradient pass "
        "{name}.detach()",)),
    "device-changed": KindRule("the device of {name} changed: {values}", (
        "move {name} to one device before the call: {name}.to(device)",)),
    "tensor-state-changed": KindRule("{name} is another sort of tensor: {values}", (
        "make {name} in the same mode for every call: not under torch.inference_mode() once and outside of it another "
        "time; resolve_conj() or clone() gives an ordinary tensor",)),
    "tensor-class-changed": KindRule("the class of {name} changed: {values}", (
        "pass {name} as one class: a parameter or subclass in every call, or plain tensors, e.g. {name}.detach()",)),
    "dynamic-mark-changed": KindRule(
        "a tensor was marked (mark_dynamic or its like) after the function had been compiled", (
        "mark {name} (mark_dynamic, mark_static, ...) before the very first call, not later",)),
    "alias-changed": KindRule("whether {name} are one and the same tensor changed", (
        "do not pass one tensor as {name}: x.clone() for one of them, in every call",
        "or compile one function for each case")),
    # -- numbers and other arguments
    "int-changed": _NUMBER,
    "float-changed": _NUMBER,
    "value-condition": KindRule("{name} does not meet what the code asked of it: {condition}", (
        f"the condition on {{name}} at {{where}} gets one version for each outcome: {_OUTSIDE}",
        "or compute with torch.where on a tensor instead of {name}")),
    "bool-changed": _CHOICE,
    "string-changed": _CHOICE,
    "constant-changed": _CHOICE,
    "none-changed": KindRule("{name} is None in some calls and not in others: {values}", (
        "pass {name} always, with a neutral tensor (zeros, ones) in the place of None",
        "or choose outside, between two functions that are compiled by themselves")),
    "type-changed": KindRule("the type of {name} changed: {values}", (
        "pass {name} with one type; convert it before the call", "or compile one function for each type")),
    "length-changed": KindRule("the length of {name} changed: {values}", (
        "give {name} one length: if it is a cache that grows, make its size fixed (StaticCache, or index_copy_ into a "
        "tensor that is made once); pad a list, or stack it into one tensor (torch.stack) with a dynamic dim 0",
        f"or {_ONE_EACH}")),
    "keys-changed": KindRule("the keys of {name} changed: {values}", (
        "give {name} the same keys, in the same order, in every call; pass what is optional as an argument of its "
        "own",)),
    # -- objects, and what is read from them
    "function-changed": KindRule("{name} is another function object{which}", (
        "define the function {name} once, outside of the loop, and pass the same object each time",
        "or compile one function for each {name}")),
    "object-changed": KindRule("{name} is another object{which}", (
        "{name} is compared by identity: pass the same object each time, or only what the function needs of it",
        "or compile one function for each object, while they are few")),
    "object-freed": KindRule("{name}, for which the function was compiled, no longer exists", (
        "{name} was freed, and what was compiled for it went with it: make it once and keep it, instead of anew for "
        "each call",)),
    "attribute-changed": KindRule(_CHANGED, (_ONCE, "or keep a tensor in {name}, and change it in place"), {
        "static int": (
            'keep it in a tensor: {owner}.register_buffer("{attribute}", torch.tensor(...)), changed in place',
            f"or {_UNSPEC}, with torch.compile(..., dynamic=True)"),
        "absent": (_ONCE,)}),
    "instance-changed": KindRule("another instance, whose {name} differs: {values}", (
        f"{_DIFFER}make it the same in all of them, or {_OWN_FUNCTION}",), {
        "numbers": (
            f"{_DIFFER}keep what differs in a tensor (register_buffer), or out of the compiled method",
            f"or, for integers: {_UNSPEC} with torch.compile(..., dynamic=True)",
            "or torch._dynamo.config.recompile_limit above the number of instances (seen: {seen}), one version each")}),
    "shared-code": KindRule(
        "one piece of code is compiled for several: {classes}; each has versions of its own, and they share the "
        "limit{of_limit}", (
        _OWN_FUNCTION,
        "or give each torch.compile(..., isolate_recompiles=True), where this torch has it: the limit then counts for "
        "each by itself")),
    "training-mode-changed": KindRule(_CHANGED, (
        "call train() or eval() once, before the first call of the compiled function ({owner})",
        f"where both modes are wanted, {_PRICE}")),
    "global-changed": KindRule("the global {name} changed: {values}", (
        "pass {name} as an argument, in a tensor, instead of reading a global that changes",
        "or set {name} before the first call and leave it")),
    "closure-changed": KindRule("{name}, which the function takes from around it, changed: {values}", (
        f"{_CODE}make the function once, and compile that", f"or {_ONE_EACH}"), {
        "numbers": (
            f"{_CODE}pass {{name}} as an argument, in a tensor, or make the function once, and compile that",
            f"or {_ONE_EACH}")}),
    # -- the state of the process
    "grad-mode-changed": KindRule(
        "whether gradients are recorded changed (torch.no_grad, inference_mode, enable_grad)", (
        "call {function} in one mode: always inside torch.no_grad() (or inference_mode), or never",
        f"where training and validation share it, {_PRICE}")),
    "autocast-changed": KindRule("autocast changed: {condition}", (
        "call {function} always inside of the same torch.autocast, or never",)),
    "global-state-changed": KindRule("a setting of torch changed: {condition}", (
        "set it once, before the first call of {function}",)),
    "function-mode-changed": KindRule("the torch function modes, such as `with torch.device(...)`, changed", (
        "call {function} always under the same modes: `with torch.device(...)` and torch function modes are such",)),
    "backend-changed": KindRule("the function was given to torch.compile with another backend object", (
        "make the backend once and give the same object to every torch.compile of the function",
        "or wrap it in one functools.partial that is kept")),
    # -- what no guard tells
    "limit-reached": KindRule(
        "{function} has {versions} compiled versions, and torch._dynamo.config.{name} is {values}: calls that none of "
        "them fits run uncompiled from here on (with fullgraph=True they raise)", (
        "remove the causes listed for {function}: from the limit on, calls that no version fits run uncompiled",
        "or, where the variants are few: torch._dynamo.config.{name} at their number ({versions} were not enough)")),
    "unexplained": KindRule("torch found no guard that fails", (
        "torch cannot say why: report it to PyTorch with the program",)),
    "other": KindRule("a guard failed: {condition}", (
        "read what torch says above; keep what it names the same in every call",)),
}
# fmt: on
