"""Calls a recorded operation again in float64 on its recorded inputs, and judges whether its result is right."""

from __future__ import annotations

import ast
import functools
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import get_overridable_functions

from graphprobe.compare.result import LocalTruth
from graphprobe.diagnose.local import NEAR_ONE, base_name, comparable, local_error
from graphprobe.engine.reference import is_noisy
from graphprobe.errors import GraphprobeError
from graphprobe.internals.operators.operators import Overload
from graphprobe.internals.tensors import tree_leaves, tree_map
from graphprobe.numerics.dtypes import limit_named
from graphprobe.store.calls import Call, CallDump, CallSlot, Scalar

REFUSED = frozenset(
    "backward register_hook register_post_accumulate_grad_hook share_memory_ numpy tolist storage untyped_storage "
    "requires_grad_ __reduce_ex__ __reduce__ __setstate__ __deepcopy__ data_ptr __dlpack__ module_load pin_memory "
    "set_ cuda cpu from_file __setitem__ resize_ resize_as_".split()
)
"""Methods that compute nothing, or do something besides."""

PLAIN_TYPES = frozenset(
    "Tensor int float bool number Scalar SymInt ScalarType Layout Device MemoryFormat complex".split()
)
"""Types of arguments, in an operator's schema, by which it can only compute; optional ones and lists of them, too."""

TEXTS = frozenset(
    "approximate driver ord UPLO reduce rounding_mode mode side indexing equation norm padding_mode padding".split()
)
"""Arguments that are texts and say how to compute. What else is a text may name a file, a group or a device."""

_PARSING = threading.Lock()
"""Python 3.11 fails where two threads parse at once."""

_SIZE = re.compile(r"^torch\.Size\((.*)\)$")
_DTYPE = re.compile(r"^torch\.(\w+)$")
_DEVICE = re.compile(r"^(torch\.)?device\(|^'(cpu|cuda|npu|xpu|mps|hpu|mlu|musa)(:\d+)?'$")

CHANGED = ("output.input.", "output.kwarg.")
"""How the slots of inputs begin that a call changed in place."""

MOST_ELEMENTS = 1 << 26
"""Elements of one value beyond which a call is not repeated: float64 runs take many times its memory."""

HUGE = 1e30
"""Stands for an infinite z: results are written as JSON, which has no infinity."""

ELEMENTWISE = NEAR_ONE | frozenset(
    "exp exp2 log log2 log10 sqrt rsqrt reciprocal square relu relu6 leaky_relu hardswish hardsigmoid hardtanh "
    "sigmoid tanh cosh tan asin acos acosh add sub mul div pow neg abs".split()
)
"""Functions of one element of each input, rounded once."""

OTHERWISE = 0.02
CLEANER = 8.0
FEWEST = 256
"""See `rounding_truth`."""

CONVERSIONS = frozenset("to type type_as half bfloat16 copy_".split())


class NotReplayableError(Exception):
    """The call cannot be made again; the text says why."""


@functools.cache
def _allowed() -> frozenset[Callable[..., Any]]:
    """What torch itself calls an operation on tensors. Nothing else that a dump may name is ever called."""
    return frozenset(f for functions in get_overridable_functions().values() for f in functions)


@functools.lru_cache(maxsize=1024)
def function_of(api: str) -> Callable[..., Any]:
    """The function that `torch.nn.functional.linear`, `torch.Tensor.add_`, `aten.mm.default` name.

    Raises:
        NotReplayableError: there is none, or it is no operation on tensors.
    """
    parts = api.removeprefix("torch.ops.").split(".")
    if parts[-1] in REFUSED:
        raise NotReplayableError(f"{api} is not an operation that can be repeated")
    if parts[0] in ("aten", "prims"):
        return _overload(api, parts)
    if parts[0] != "torch":
        raise NotReplayableError(f"{api} is no function of torch")
    value: Any = torch
    for part in parts[1:]:
        value = getattr(value, part, None)
        if value is None:
            raise NotReplayableError(f"this torch has no {api}")
    try:
        known = value in _allowed()
    except TypeError:
        known = False
    if not known:
        raise NotReplayableError(f"{api} is not one of torch's operations on tensors")
    found: Callable[..., Any] = value
    return found


def _overload(api: str, parts: list[str]) -> Callable[..., Any]:
    space = getattr(torch.ops, parts[0])
    packet = getattr(space, parts[1], None)
    overload = getattr(packet, parts[2] if len(parts) > 2 else "default", None)
    if not isinstance(overload, Overload):
        raise NotReplayableError(f"this torch has no {api}")
    inner = parts[1].strip("_")
    if parts[1] in REFUSED or inner in REFUSED or not _only_computes(overload):
        raise NotReplayableError(f"{api} is not an operation that only computes with tensors")
    found: Callable[..., Any] = overload
    return found


def _only_computes(overload: Overload) -> bool:
    """By its schema: it gives tensors, and all it takes are tensors, numbers, and texts that say how to compute."""
    schema = overload._schema
    if not schema.returns or not all(_plain(str(each.type)) for each in schema.returns):
        return False
    given = [(each.name, str(each.type)) for each in schema.arguments]
    if not any("Tensor" in kind for _, kind in given):
        return False
    return all(_plain(kind) or ("str" in kind and name in TEXTS) for name, kind in given)


def _plain(kind: str) -> bool:
    """`Tensor`, `Optional[List[int]]` and their like."""
    return all(word in PLAIN_TYPES for word in re.findall(r"[A-Za-z]+", kind) if word not in ("Optional", "List"))


def is_own(scalar: Scalar) -> bool:
    """Whether an argument belongs to the run it was recorded in: a dtype, a limit of a dtype, or a device."""
    dtype = _DTYPE.match(scalar.text)
    if scalar.type == "float" and limit_named(float(scalar.text)):
        return True
    known = dtype is not None and isinstance(getattr(torch, dtype.group(1), None), torch.dtype)
    return known or _DEVICE.match(scalar.text) is not None


def value_of(scalar: Scalar) -> Any:
    """What a recorded `repr` stands for.

    Raises:
        NotReplayableError: it is an object of which there is no more than the `repr`.
    """
    text = scalar.text
    if _DEVICE.match(text):
        return torch.device("cpu")
    size = _SIZE.match(text)
    if size:
        text = size.group(1)
    if text in ("nan", "inf", "-inf"):
        return float(text)
    try:
        with _PARSING:
            tree = ast.parse(text.strip(), mode="eval")
        value = _built(tree.body)
    except (ValueError, SyntaxError, TypeError) as error:
        raise NotReplayableError(f"an argument of type {scalar.type} is known as {text[:60]!r} only") from error
    return torch.Size(value) if size else value


def _built(node: ast.expr) -> Any:
    """A literal, in which there may be slices, an ellipsis, and what torch names."""
    if isinstance(node, ast.Tuple):
        return tuple(_built(item) for item in node.elts)
    if isinstance(node, ast.List):
        return [_built(item) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in ("Ellipsis", "nan", "inf"):
        return ... if node.id == "Ellipsis" else float(node.id)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "slice" and not node.keywords:
        return slice(*(_built(item) for item in node.args))
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
        value = getattr(torch, node.attr, None)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return value
    return ast.literal_eval(node)


def arguments_from(values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """`(args, kwargs)` from values by slot: `input.0`, `input.2.1` (second of the list in third place), `kwarg.bias`.

    Raises:
        NotReplayableError: a place in between is missing.
    """
    args: dict[int, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if head == "input":
            first, _, inner = rest.partition(".")
            _put(args, int(first), inner, value)
        elif head == "kwarg":
            first, _, inner = rest.partition(".")
            _put(kwargs, first, inner, value)
    if sorted(args) != list(range(len(args))):
        raise NotReplayableError(f"of the positional arguments only {sorted(args)} were recorded")
    return [_settled(args[i]) for i in range(len(args))], {k: _settled(v) for k, v in kwargs.items()}


def _put(into: dict[Any, Any], key: Any, inner: str, value: Any) -> None:
    if not inner:
        into[key] = value
        return
    nested = into.setdefault(key, {})
    if not isinstance(nested, dict):
        raise NotReplayableError(f"argument {key} is recorded both whole and in parts")
    first, _, rest = inner.partition(".")
    _put(nested, int(first) if first.isdecimal() else first, rest, value)


def _settled(value: Any) -> Any:
    """Nested places as a list, nested names as a dict."""
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, int) for key in value):
        if sorted(value) != list(range(len(value))):
            raise NotReplayableError(f"of a list only the places {sorted(value)} were recorded")
        return [_settled(value[i]) for i in range(len(value))]
    return {key: _settled(item) for key, item in value.items()}


class TorchReplayer:
    """A `compare.judge.Replayer`. Keeps nothing between calls, so that threads may share it."""

    def truth(self, dump: CallDump, call: Call, forward: Call | None, arguments: Call) -> LocalTruth:
        """See `Replayer.truth`; whatever goes wrong is an answer `skipped` with its reason."""
        try:
            with torch.random.fork_rng(devices=[]):
                return _truth(dump, call, forward, arguments)
        except NotReplayableError as error:
            return LocalTruth("skipped", str(error))
        except (GraphprobeError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            return LocalTruth("skipped", f"it does not run by itself: {type(error).__name__}: {str(error)[:160]}")


def _truth(dump: CallDump, call: Call, forward: Call | None, arguments: Call) -> LocalTruth:
    if call.kind not in ("api", "node", "value"):
        raise NotReplayableError(f"a call of kind {call.kind} cannot be made again from a dump")
    if not comparable(call.api):
        raise NotReplayableError("it draws random numbers, or gives undefined ones")
    function = function_of(call.api)
    of = call if call.direction == "forward" else forward
    if of is not None and _widened_by_autocast(of):
        function = _widening(function)
    if call.direction == "forward":
        named = _as_autocast(call, _values(dump, call, arguments))
        args, kwargs = _called(call.api, named)
        outputs = _results(call, "output")
        got = [_tensor(dump, call, slot) for slot in outputs]
        changed = tuple(s.name.removeprefix("output.") for s in outputs if s.name.startswith(CHANGED))
        run: Callable[..., Any] = functools.partial(_tensors_of, function, changed)
        truth = _judged(call.api, run, args, kwargs, outputs, got)
        other = rounding_truth(call.api, run, args, kwargs, got, outputs[0].name) if truth.answer == "ok" else None
        return other or truth
    return _backward(dump, call, forward, arguments, function)


def _called(api: str, named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments; what stands between brackets is a tuple, which a dump tells as a list."""
    args, kwargs = arguments_from(named)
    if api.endswith("__getitem__") and len(args) > 1 and isinstance(args[1], list):
        args[1] = tuple(args[1])
    return args, kwargs


def _tensors_of(
    function: Callable[..., Any], changed: Sequence[str], /, *args: Any, **kwargs: Any
) -> list[torch.Tensor]:
    """The tensors of the result, then the inputs by the names `changed`, as they are after the call."""
    found = [value for value in tree_leaves(function(*args, **kwargs)) if isinstance(value, torch.Tensor)]
    return found + [_argument(name, args, kwargs) for name in changed]


def _argument(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    head, *path = name.split(".")
    value: Any = args if head == "input" else kwargs
    for part in path:
        value = value[int(part)] if part.isdecimal() else value[part]
    if not isinstance(value, torch.Tensor):
        raise NotReplayableError(f"{name}, which the call changed, is no tensor")
    return value


def _results(call: Call, role: str) -> list[CallSlot]:
    found = [s for s in call.slots if s.role == role and s.meta is not None]
    if not found:
        raise NotReplayableError(f"it has no recorded {role}")
    return found


def _values(dump: CallDump, call: Call, arguments: Call) -> dict[str, Any]:
    """Arguments by slot: tensors are the call's own, the rest the other side's, dtypes and devices excepted."""
    same = call.api == arguments.api
    others = {s.name: s for s in arguments.slots if s.role == "input"} if same else {}
    found: dict[str, Any] = {}
    for slot in call.slots:
        if slot.role != "input":
            continue
        if slot.meta is not None:
            found[slot.name] = _tensor(dump, call, slot)
        elif slot.scalar is not None:
            other = others.get(slot.name, None if same else slot)
            if other is None:
                continue
            foreign = other.scalar if other.scalar is not None and not is_own(slot.scalar) else slot.scalar
            found[slot.name] = value_of(foreign)
        else:
            raise NotReplayableError(f"{slot.name} is missing: {slot.missing or 'nothing was recorded of it'}")
    for name, slot in others.items():
        if name not in found and slot.scalar is not None and not any(s.name == name for s in call.slots):
            found[name] = value_of(slot.scalar)
    return found


def _tensor(dump: CallDump, call: Call, slot: CallSlot) -> torch.Tensor:
    assert slot.meta is not None
    empty = math.prod(slot.meta.shape) == 0
    if (slot.sampled or not slot.value) and not empty:
        raise NotReplayableError(f"{slot.name}: {slot.missing or 'only some of its values were recorded'}")
    if math.prod(slot.meta.shape) > MOST_ELEMENTS:
        raise NotReplayableError(f"{slot.name} has {math.prod(slot.meta.shape)} elements, more than {MOST_ELEMENTS}")
    dtype = getattr(torch, slot.meta.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise NotReplayableError(f"this torch has no dtype {slot.meta.dtype}")
    if empty:
        return torch.empty(slot.meta.shape, dtype=dtype)
    array = np.array(dump.values(call, slot))  # a copy: what is mapped cannot be written to
    if array.dtype.itemsize == dtype.itemsize:
        return (
            torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            .view(dtype)
            .reshape(slot.meta.shape)
        )
    return torch.from_numpy(array).to(dtype).reshape(slot.meta.shape)


def _backward(
    dump: CallDump, call: Call, forward: Call | None, arguments: Call, function: Callable[..., Any]
) -> LocalTruth:
    if forward is None:
        raise NotReplayableError("its forward call is not in the dump")
    named = _as_autocast(forward, _values(dump, forward, arguments))
    outputs = [s for s in forward.slots if s.role == "output" and s.meta is not None and not s.name.startswith(CHANGED)]
    places = {s.name: i for i, s in enumerate(outputs)}
    given = [s for s in call.slots if s.role == "grad_output" and s.meta is not None]
    wanted = [s for s in call.slots if s.role == "grad_input" and s.meta is not None]
    if not given or not wanted:
        raise NotReplayableError("it has no recorded gradients of both sides")
    seeds = {places.get(s.name.removeprefix("grad_"), -1): _tensor(dump, call, s) for s in given}
    if -1 in seeds:
        raise NotReplayableError("a gradient belongs to no recorded output")
    sources = [s.name.removeprefix("grad_") for s in wanted]
    strange = [n for n in sources if not isinstance(named.get(n), torch.Tensor)]
    if strange:
        raise NotReplayableError(f"the gradient of {strange[0]} belongs to no recorded input")
    names = list(named)
    tensors = [n for n in names if isinstance(named[n], torch.Tensor)]

    def gradients(inputs: list[torch.Tensor], roots: list[torch.Tensor]) -> list[torch.Tensor]:
        fresh = dict(zip(tensors, inputs, strict=True))
        asked = {n: fresh[n].detach().requires_grad_() for n in sources}
        args, kwargs = _called(call.api, {n: asked.get(n, fresh.get(n, named[n])) for n in names})
        with torch.enable_grad():
            # A copy, because an in-place operation may not change a leaf.
            args, kwargs = tree_map(_unleafed, (args, kwargs))
            results = _tensors_of(function, (), *args, **kwargs)
            chosen = [results[i] for i in seeds]
            found = torch.autograd.grad(chosen, [asked[n] for n in sources], roots, allow_unused=True)
        gradients_or_none: tuple[torch.Tensor | None, ...] = tuple(found)
        zero = [torch.zeros_like(asked[n]) for n in sources]
        return [z if g is None else g.detach() for g, z in zip(gradients_or_none, zero, strict=True)]

    got = [_tensor(dump, call, s) for s in wanted]
    narrow = _autocast_dtype(forward)
    if narrow is not None:
        got = [_shortest(value, narrow) for value in got]
    roots = list(seeds.values())
    return _judged(f"{call.api}_backward", gradients, [[named[n] for n in tensors], roots], {}, wanted, got)


def _autocast_dtype(forward: Call) -> torch.dtype | None:
    """The dtype to which autocast rounded what a call got: that of its results, where it got a wider one; else None.

    No operation gives a narrower dtype than it gets by itself, but for conversions, which are told which.
    """
    got, given = _dtypes(forward)
    return getattr(torch, given.pop()) if given in ({"bfloat16"}, {"float16"}) and "float32" in got else None


def _widened_by_autocast(forward: Call) -> bool:
    """Whether autocast widened what a call got, as it does for losses: it gives float32, and got narrower floats."""
    got, given = _dtypes(forward)
    floats = {name for name in got if "float" in name}
    return given == {"float32"} and bool(floats) and floats <= {"bfloat16", "float16"}


def _dtypes(forward: Call) -> tuple[set[str], set[str]]:
    """Of what a call got and gave; both empty for a conversion, which is told what to give."""
    if base_name(forward.api) in CONVERSIONS or any(s.scalar is not None and "dtype" in s.name for s in forward.slots):
        return set(), set()
    tensors = [(s.role, s.meta.dtype) for s in forward.slots if s.meta is not None]
    return {d for role, d in tensors if role == "input"}, {d for role, d in tensors if role == "output"}


def _widening(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of its arguments in float32; what is wider stays as it is."""

    def widen(value: Any) -> Any:
        narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
        return value.to(torch.float32) if narrow else value

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(widen, (args, kwargs))
        return function(*args, **kwargs)

    return run


def _as_autocast(forward: Call, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the kernel got them."""
    narrow = _autocast_dtype(forward)
    if narrow is None:
        return named
    return {
        name: value.to(narrow) if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value
        for name, value in named.items()
    }


def _shortest(value: torch.Tensor, narrow: torch.dtype) -> torch.Tensor:
    """The same numbers in the narrow dtype, if it has all of them: a gradient that was computed in it and widened."""
    short = value.to(narrow)
    return short if value.dtype is torch.float32 and torch.equal(short.to(value.dtype), value) else value


def _unleafed(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.view_as(value) if not value.requires_grad else value * 1


def _judged(
    op: str,
    run: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    slots: Sequence[CallSlot],
    got: Sequence[torch.Tensor],
) -> LocalTruth:
    """All results, and which are worse: judged together first, one by one if that finds something."""
    found = local_error(op, run, args, kwargs, list(got))
    worse: tuple[str, ...] = ()

    def is_worse(i: int) -> bool:
        alone = local_error(op, lambda *a, **k: [run(*a, **k)[i]], args, kwargs, [got[i]])
        return alone.answer == "worse"

    if found.answer == "worse" and len(slots) > 1:
        worse = tuple(s.name for i, s in enumerate(slots) if is_worse(i))
    elif found.answer == "worse":
        worse = (slots[0].name,)
    answer = "ok" if found.answer == "better" else found.answer
    z, excess = (min(v, HUGE) if not math.isnan(v) else HUGE for v in (found.z, found.excess))
    return LocalTruth(answer, found.reason, z, excess, worse)  # type: ignore[arg-type]


def rounding_truth(
    op: str,
    run: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    got: Sequence[torch.Tensor],
    name: str,
) -> LocalTruth | None:
    """Finds another formula behind a narrow dtype: `worse`, or None where there is nothing to say.

    A function of one element is computed in float32 everywhere and rounded once, so that a result in bfloat16 or
    float16 is the rounded exact one but for one element in thousands. Where more than `OTHERWISE` of the elements are
    not, and torch's own result is `CLEANER` times better, something else was computed: the tanh form of gelu for the
    exact one stays far below the noise of its input, and shows here.
    """
    narrow = len(got) == 1 and got[0].dtype in (torch.bfloat16, torch.float16) and got[0].numel() >= FEWEST
    if base_name(op) not in ELEMENTWISE or not narrow:
        return None
    with torch.no_grad():
        wide = [value.to(torch.float64) if is_noisy(value) else value for value in args]
        if any(is_noisy(value) for value in kwargs.values()) or any(isinstance(value, torch.dtype) for value in args):
            return None
        exact, eager = run(*wide, **kwargs)[0], run(*args, **kwargs)[0]
    if exact.shape != got[0].shape or eager.dtype != got[0].dtype:
        return None
    right = exact.to(got[0].dtype)
    mine, torchs = _share(right, got[0]), _share(right, eager)
    if mine <= OTHERWISE or mine <= CLEANER * torchs:
        return None
    shares = f"{mine:.1%} of the elements are not the exact result rounded, of torch's own {torchs:.1%}"
    return LocalTruth("worse", f"{shares}: another formula", 1.0, mine / OTHERWISE, (name,))


def _share(right: torch.Tensor, found: torch.Tensor) -> float:
    same = (right == found) | (right.isnan() & found.isnan())
    return 1.0 - float(same.to(torch.float64).mean())
