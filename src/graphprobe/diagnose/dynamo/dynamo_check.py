"""Finds what Dynamo got wrong, an op or Python code: the calls of the uncompiled program against its graphs."""

from __future__ import annotations

import contextlib
import difflib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode

from graphprobe.diagnose.dynamo.accusation import Accused, accuse, from_states, of_operator, of_python, other_path
from graphprobe.diagnose.dynamo.frame_places import (
    FramePlace,
    is_hidden,
    node_places,
    places_of,
    places_raised,
    places_read,
    users_source,
)
from graphprobe.diagnose.dynamo.numpy_nodes import aten_of, computed_by_numpy, numpy_name
from graphprobe.diagnose.dynamo.python_culprit import (
    TorchCall,
    applied_in,
    argument_names,
    branch_names,
    function_class,
    other_function,
    read_names,
    returned_names,
)
from graphprobe.diagnose.dynamo.python_source import CALL, READ
from graphprobe.diagnose.local import UNDEFINED, base_name
from graphprobe.diagnose.passes import different
from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.interpret import Recorder, copied, copy_tensor
from graphprobe.engine.naming import aten_namesakes, is_library, op_of
from graphprobe.engine.replay import Undecided
from graphprobe.engine.subgraph import CALLS
from graphprobe.engine.values import capture, from_bytes, to_bytes
from graphprobe.internals.aot_backends import is_higher_order
from graphprobe.internals.tensors import physical, without_transforms

Plain = tuple[str, str]
"""A number, text or truth value among arguments or results: the path to it, and its value as text."""

HIDDEN = ("__get__", "__set__", "requires_grad_", "grad")
"""Calls that a graph need not have."""

SAME = {
    "div": "truediv",
    "true_divide": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "subtract": "sub",
    "multiply": "mul",
    "negative": "neg",
    "rdiv": "truediv",
    "bitwise_not": "invert",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}
"""Names under which one operation of tensors goes, in Python, in torch and in Dynamo's graphs."""

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
SAME |= {letter + name: name for name in BINARY for letter in "ir"}

INNER = ("torch._functorch.", "torch._C._functorch.")
OWN_FUNCTION = "custom_function_call"
"""How a class derived from `torch.autograd.Function` is seen under a transform of `torch.func`."""

UNLIKE = "its result in Dynamo's graph is not that of the same call uncompiled"


class Made(msgspec.Struct):
    """One call of torch that the uncompiled program made.

    Attributes:
        name: of the function.
        value: its result: a tensor, or several.
        plain: numbers, texts and truth values among its arguments.
        frames: the user's frames that led to it, the innermost first.
        hidden: it is made by code of torch's that is no layer, and the user's line does not name it.
        feeds: which calls before it made its tensors.
    """

    name: str
    value: tuple[bytes, bytes] | None = None
    plain: list[Plain] = []
    frames: list[FramePlace] = []
    hidden: bool = False
    feeds: list[int] = []


class Uncompiled(msgspec.Struct):
    """One call of the program, uncompiled: its calls of torch, and what it returned that is no tensor.

    `raised`: the user's frames that an exception has ended, the innermost first; empty where none did.
    """

    made: list[Made] = []
    returned: list[Plain] = []
    raised: list[FramePlace] = []


class _Calls(TorchFunctionMode):
    def __init__(self, until: CodeType) -> None:
        super().__init__()
        self.made: list[Made] = []
        self._until = until
        self._makers: dict[int, tuple[Any, int]] = {}  # by the tensor's id; the tensor is kept, and so its id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frames = places_of(sys._getframe(1), self._until)
        plain = plain_leaves((*args, kwargs or {}))
        feeds = {self._makers[id(t)][1] for t in tensors_of((args, kwargs)) if id(t) in self._makers}
        result = func(*args, **(kwargs or {}))
        tensors = _results(result)
        if tensors and getattr(func, "__name__", "") not in HIDDEN:
            for tensor in tensors:
                self._makers[id(tensor)] = (tensor, len(self.made))
            name = getattr(func, "__name__", "")
            hidden = is_hidden(name, sys._getframe(1), frames)
            self.made.append(Made(name, _recorded(tensors), plain, frames, hidden, sorted(feeds)))
        return result


def _recorded(tensors: list[torch.Tensor]) -> tuple[bytes, bytes] | None:
    """What tensors hold, outside of torch.func's transforms; None where that cannot be read."""
    with contextlib.suppress(Exception), without_transforms():
        return to_bytes(capture([copy_tensor(physical(tensor)[0]) for tensor in tensors], rng=False))
    return None


def _results(value: Any) -> list[torch.Tensor]:
    """The tensor that a call gave, or those of a list or tuple."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def plain_leaves(value: Any, path: str = "") -> list[Plain]:
    """The numbers, texts and truth values of nested lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        parts = [(str(i), v) for i, v in enumerate(value)]
        parts = parts[:-1] if not path and parts and isinstance(parts[-1][1], dict) else parts
        rest = plain_leaves(value[-1], path) if len(parts) < len(value) else []
        return [leaf for name, v in parts for leaf in plain_leaves(v, f"{path}.{name}" if path else name)] + rest
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in plain_leaves(v, f"{path}.{k}" if path else str(k))]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        return [(path, repr(value))]
    if isinstance(value, (bool, int, float)):
        return [(path, repr(float(value)) if abs(value) < 2**53 or value != value else repr(value))]
    return [(path, repr(value))] if isinstance(value, complex) else []


@dataclass
class _Ran:
    """One node of a graph of Dynamo's that ran in place of the program's call.

    Attributes:
        plain: as in `Made`.
        args: what a function of numpy's was called with.
        within: the higher-order operator in whose body the node is.
    """

    node: Node
    value: Any
    plain: list[Plain] = field(default_factory=list)
    args: tuple[Any, Any] | None = None
    within: Node | None = None


def uncompiled_calls(program: Program) -> list[Uncompiled]:
    """The calls of torch in each call of the program; run it in a child."""
    found: list[Uncompiled] = []

    def make(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _Calls(call.__code__) as mode:
                found.append(Uncompiled(mode.made))
                try:
                    result = fn(*args, **kwargs)
                except Exception as error:
                    found[-1].raised = places_raised(error)
                    raise
            found[-1].returned = plain_leaves([result])
            return result

        return call

    program.run(make)
    return found


@dataclass
class _Compiled:
    """One call of the compiled program; `stopped`: the user's frames that Dynamo was reading when it failed."""

    ran: list[_Ran] = field(default_factory=list)
    returned: list[Plain] | None = None
    stopped: list[FramePlace] = field(default_factory=list)

    @property
    def unread(self) -> bool:
        """Whether it failed before there was a graph, in which nothing is missing then."""
        return self.returned is None and not self.ran


def accused(program: Program, compilation: Compilation) -> Accused | None:
    """What first went otherwise in Dynamo's graphs than uncompiled; None when nothing can be told."""
    states = random.getstate(), np.random.get_state()
    outcome = isolated(lambda: from_states(states, lambda: uncompiled_calls(program)), timeout_s=compilation.timeout_s)
    if outcome.value is None:
        return None
    if (path := other_path(program, states, compilation.timeout_s)) is not None:
        return path.raised
    expected = msgspec.convert(outcome.value, list[Uncompiled])
    found: list[_Compiled] = []

    def backend(gm: GraphModule, _: Sequence[Any], **__: Any) -> Any:
        def run(*args: Any) -> Any:
            result, ran = _run(gm, args)
            found[-1].ran += ran
            return result

        return run

    torch.compiler.reset()

    def make(fn: Any) -> Any:
        compiled: Any = torch.compile(fn, backend=backend, dynamic=compilation.dynamic, fullgraph=compilation.fullgraph)

        def call(*args: Any, **kwargs: Any) -> Any:
            found.append(_Compiled())
            try:
                result = compiled(*args, **kwargs)
            except Exception as error:
                found[-1].stopped = places_read(error)
                raise
            found[-1].returned = plain_leaves([result])
            return result

        return call

    with compilation.configured():
        from_states(states, lambda: program.run(make))
    return _look(program, [*zip(expected, found, strict=False)])


def _look(program: Program, calls: list[tuple[Uncompiled, _Compiled]]) -> Accused | None:
    """The first answer of the ways to look, each at all calls of the program."""
    aligned = [_Aligned(e.made, [r for r in c.ran if _counts(r, e.made)]) for e, c in calls]
    ways: list[Callable[[], Iterator[Accused | None]]] = [
        lambda: (_read_last(c.stopped) for _, c in calls),
        lambda: (_numpy(c.ran) for _, c in calls),
        lambda: (_not_raised(e, c) for e, c in calls),
        lambda: (a.other_value() for a in aligned),
        lambda: (a.other_call() for a in aligned),
        lambda: (_other_return(program, e, c) for e, c in calls),
        lambda: (a.inlined_function() for a in aligned),
        lambda: (of_operator(n) for _, c in calls for r in c.ran if is_higher_order((n := r.within or r.node).target)),
    ]
    if any(c.unread and (c.stopped or any(made.hidden for made in e.made)) for e, c in calls):
        ways = ways[:3]
    return next((one for way in ways for one in way() if one is not None), None)


def _read_last(places: list[FramePlace]) -> Accused | None:
    """What Dynamo read when it raised."""
    found = of_python(read_names(places), [], "Dynamo fails where it reads this", None)
    if found is not None and is_library(found.source or ""):
        found.called_from = next((place.source for place in places if not is_library(place.source)), None)
    return found


def _plain(name: str) -> str:
    short = name.rpartition(".")[2].strip("_")
    return SAME.get(short, short)


def _counts(ran: _Ran, made: list[Made]) -> bool:
    """Whether a node stands for a call of torch that is seen uncompiled; functorch's own are seen in part."""
    op = op_of(ran.node)
    if numpy_name(ran.node) is not None or not _results(ran.value) or _is_of_drawn_numbers(ran.node):
        return False
    if op == "builtins.getattr" or (op.startswith(INNER) and _plain(op) not in {_plain(m.name) for m in made}):
        return False
    source = ran.node.args[0] if ran.node.args else None
    taken = isinstance(source, Node) and isinstance(source.meta.get("example_value"), (tuple, list))
    return not (op.endswith("operator.getitem") and taken)


def _is_of_drawn_numbers(node: Node) -> bool:
    """Whether a node computes with what Python's `random` drew alone: tensors in the graph, numbers uncompiled."""
    if node.op == "placeholder":
        return node.name.startswith("random_value")
    return bool(node.all_input_nodes) and all(map(_is_of_drawn_numbers, node.all_input_nodes))


def _run(gm: GraphModule, args: Sequence[Any], within: Node | None = None) -> tuple[Any, list[_Ran]]:
    """Run a graph of Dynamo's, and the bodies of its higher-order operators once more, on their own."""
    given: dict[Node, tuple[list[Plain], Any]] = {}
    bodies: dict[Node, list[_Ran]] = {}

    def watch(node: Node, its: Any, kwargs: Any) -> None:
        own: Any = (copied(its), dict(kwargs)) if numpy_name(node) is not None else None
        given[node] = (plain_leaves((*its, kwargs)), own)
        if is_higher_order(node.target):
            bodies[node] = _body(node, its, within or node)

    recorder = Recorder(gm, watch=watch)
    result = recorder.run(*args)
    ran: list[_Ran] = []
    for node in gm.graph.nodes:
        if node.op in CALLS and node.name in recorder.values:
            plain, its = given.get(node) or ([], None)
            ran += bodies.get(node) or [_Ran(node, recorder.values[node.name], plain, its, within)]
    return result, ran


def _body(node: Node, args: Sequence[Any], within: Node) -> list[_Ran]:
    """The calls in the graph that a higher-order operator runs; none where that cannot be run by itself."""
    graphs = [a for a in args if isinstance(a, GraphModule)]
    name = str(node.target)
    if not graphs or name.startswith("flex_attention"):
        return []
    graph = graphs[0]
    inputs = [copied(a) for a in args if not isinstance(a, (GraphModule, str))]  # a text is the name of a region
    if name == "cond":
        graph, inputs = graphs[0 if bool(args[0]) else 1], copied(list(args[3]))
    devices = sorted({t.get_device() for t in tensors_of(inputs) if t.is_cuda})
    with contextlib.suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices):
        return _run(graph, inputs, within)[1]
    return []


class _Gap(NamedTuple):
    """Calls that only one side made: where they are in the calls of both."""

    i: int
    i2: int
    j: int
    j2: int


class _Aligned:
    """The torch calls of one call of the program, uncompiled and compiled, those that are the same side by side."""

    def __init__(self, wanted: list[Made], got: list[_Ran]) -> None:
        self.wanted, self.got = wanted, got
        self.pairs: list[tuple[int, int]] = []
        self.elsewhere: set[tuple[int, int]] = set()  # those of the pairs that are not on the same line
        self.gaps: list[_Gap] = []
        left = [(_plain(m.name), m.frames[0].source if m.frames else None) for m in wanted]
        right = [(_plain(op_of(r.node)), users_source(r.node)) for r in got]
        self._align(left, right, 0, 0, [(name,) for name, _ in left], [(name,) for name, _ in right])

    def _align(self, left: Any, right: Any, i0: int, j0: int, names: Any, others: Any) -> None:
        """By name and line; what is left of that, by name."""
        for tag, i, i2, j, j2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if tag == "equal":
                pairs = [(i0 + a, j0 + b) for a, b in zip(range(i, i2), range(j, j2), strict=True)]
                self.pairs += pairs
                self.elsewhere.update(pairs if names is None else ())
            elif names is not None and i < i2 and j < j2:
                self._align(names[i:i2], others[j:j2], i0 + i, j0 + j, None, None)
            else:
                self.gaps.append(_Gap(i0 + i, i0 + i2, j0 + j, j0 + j2))

    def other_value(self) -> Accused | None:
        """The first of the calls that both made whose results differ, or gave it a zero of the other sign."""
        for i, j in self.pairs:
            if base_name(op_of(self.got[j].node)) in UNDEFINED or not _differ(self.wanted[i], self.got[j].value):
                continue
            i, j = self._other_zero(i) or (i, j)
            made, run = self.wanted[i], self.got[j]
            if (i, j) in self.elsewhere and (branch := self._branch(made, run)) is not None:
                return branch
            transformed = any(op_of(source).startswith(INNER) for source in _sources(run.node))
            own = self.inlined_function() if transformed else None
            return self._argument(made, run) or self._fed(i, j) or own or accuse(run.node, UNLIKE, within=run.within)
        return None

    def _other_zero(self, i: int) -> tuple[int, int] | None:
        """The first pair behind a call whose results are zeros of other signs, which a division shows later on."""
        behind = set(self.wanted[i].feeds)
        for k in reversed(range(i)):
            behind.update(self.wanted[k].feeds if k in behind else ())
        pairs = ((k, j) for k, j in self.pairs if k in behind)
        return next(((k, j) for k, j in pairs if _other_zeros(self.wanted[k], self.got[j].value)), None)

    def other_call(self) -> Accused | None:
        """The first call that only one of the two made."""
        return next((one for gap in self.gaps if (one := self._of(gap)) is not None), None)

    def _argument(self, made: Made, run: _Ran) -> Accused | None:
        """The Python code that computed an argument, if that is not the same."""
        path = _other_path(made.plain, run.plain)
        names = argument_names(made.frames, made.name, path) if path is not None else []
        if len(made.plain) != len(run.plain):  # a number that the graph is given as a tensor
            names = [named for named in names if named.weight == CALL]
        op = op_of(run.node)
        other = dict(run.plain).get(path or "")
        mine = dict(made.plain).get(path or "")
        known = f"is {mine} uncompiled, and {other or 'something else'}" if mine is not None else "is something else"
        reason = f"what it gives to {op} {known} in Dynamo's graph"
        if any(named.name.startswith("numpy.random.") for named in names):
            reason += "; torch._dynamo.config.use_numpy_random_stream = True lets it draw from NumPy's generator"
        operator = [str(run.within.target).rpartition(".")[2]] if run.within is not None else []
        return of_python(names, [op, *operator], reason, run.node)

    def _fed(self, i: int, j: int) -> Accused | None:
        """The gap that the arguments of two calls come from, if they do."""
        sources = set(self.wanted[i].feeds)
        nodes = set(_sources(self.got[j].node))
        for gap in self.gaps:
            there = any(self.got[k].node in nodes for k in range(gap.j, gap.j2))
            if there or not sources.isdisjoint(range(gap.i, gap.i2)):
                found = self._operator(gap, wrong=True) or self._of(gap)
                if found is not None:
                    return found
        return None

    def _operator(self, gap: _Gap, *, wrong: bool = False) -> Accused | None:
        """A higher-order operator of a gap, unless its result is right; `wrong` says that it is not."""
        wanted, got = self.wanted[gap.i : gap.i2], self.got[gap.j : gap.j2]
        for run in (r for r in got if is_higher_order(r.node.target)):
            if wrong or not _all_in(_results(run.value), [t for made in wanted for t in _restored(made)]):
                return of_operator(run.node, "its result in Dynamo's graph is of no call uncompiled")
        reason = "what it gives uncompiled is no result in Dynamo's graph"
        for made in (m for m in wanted if m.name == OWN_FUNCTION and m.frames):
            if wrong or not _all_in(_restored(made), [t for run in got for t in _results(run.value)]):
                return _own_function(made, got, reason)
        return None

    def inlined_function(self) -> Accused | None:
        """The first `Function` under a transform of `torch.func` whose forward alone is in Dynamo's graph."""
        for gap in self.gaps:
            got = self.got[gap.j : gap.j2]
            if not any(is_higher_order(run.node.target) for run in got):
                for made in (m for m in self.wanted[gap.i : gap.i2] if m.name == OWN_FUNCTION and m.frames):
                    return _own_function(made, got, "Dynamo's graph has its forward, and not the derivative it defines")
        return None

    def _of(self, gap: _Gap) -> Accused | None:
        wanted, got = self.wanted[gap.i : gap.i2], self.got[gap.j : gap.j2]
        found = self._operator(gap)
        operators = any(is_higher_order(r.node.target) for r in got) or any(m.name == OWN_FUNCTION for m in wanted)
        if found is not None or operators:
            return found
        calls = ", ".join(_plain(m.name) for m in wanted) or "nothing"
        if got and got[0].within is not None:
            return accuse(got[0].node, f"uncompiled the program calls {calls} here", within=got[0].within)
        chosen = self._branch(wanted[0] if wanted else None, got[0] if got else None, calls)
        if chosen is not None:
            return chosen
        if got:
            also = [named.name for named in read_names(node_places(got[0].node))]
            return accuse(got[0].node, f"uncompiled the program calls {calls} here", also=also)
        return _not_called(wanted[0])

    def _branch(self, made: Made | None, run: _Ran | None, calls: str = "") -> Accused | None:
        """What chose between a call that only the uncompiled program makes and a node that only the graph has."""
        one = TorchCall(made.frames, made.name) if made is not None else None
        node = run.node if run is not None else None
        other = TorchCall(node_places(node), op_of(node).rpartition(".")[2]) if node is not None else None
        same = [self.wanted[i].frames for i, j in self.pairs if (i, j) not in self.elsewhere]
        names = branch_names(one, other, same) if self.got else []
        taken = "another branch is taken" if names else "another function is called"
        first = [op_of(node)] if node is not None else [made.name] if made is not None else []
        calls = calls or (_plain(made.name) if made is not None else "nothing")
        reason = f"{taken}: uncompiled the program calls {calls} here"
        return of_python(names or other_function(one, other), first, reason, node)


def _own_function(made: Made, got: list[_Ran], reason: str) -> Accused:
    """A `Function` of the program's, called under a transform of `torch.func`; `got`: the nodes in its place."""
    also = [*filter(None, [applied_in(made.frames[0])]), *dict.fromkeys(op_of(run.node) for run in got)]
    return Accused("autograd_function_apply", None, made.frames[0].source, None, reason, also)


def _not_called(made: Made) -> Accused:
    """A call of the program's that Dynamo's graph does not make; one of a `Function`'s methods is that operator's."""
    reason = "Dynamo's graph does not call it"
    source = made.frames[0].source if made.frames else None
    name = _plain(made.name) if made.name.startswith("__") else made.name
    if made.hidden and (called := applied_in(made.frames[0])) is not None:
        return Accused(called, None, source, None, f"Dynamo's graph does not have the {name} in it", [name])
    owner = function_class(made.frames[0]) if made.frames else None
    if owner is not None:
        reason = f"Dynamo's graph does not call {name} of {made.frames[0].function}"
        return Accused("autograd_function_apply", None, source, None, reason, [f"{owner}.apply", name])
    return Accused(name, None, source, None, reason, aten_namesakes(name))


def _all_in(values: list[torch.Tensor], among: list[torch.Tensor]) -> bool:
    """Whether each of some tensors is the same as one of others."""
    held = [physical(other)[0] for other in among]
    return all(any(not different(physical(value)[0], other) for other in held) for value in values)


def _restored(made: Made) -> list[torch.Tensor]:
    with contextlib.suppress(Undecided):
        return list(from_bytes(*made.value).restore()) if made.value is not None else []
    return []


def _differ(made: Made, value: Any) -> bool:
    mine, other = _restored(made), [physical(t)[0] for t in _results(value)]
    return bool(mine) and (len(mine) != len(other) or any(different(a, b) for a, b in zip(mine, other, strict=True)))


def _other_zeros(made: Made, value: Any) -> bool:
    pairs = zip(_restored(made), [physical(t)[0] for t in _results(value)], strict=False)
    alike = ((a, b) for a, b in pairs if a.is_floating_point() and b.is_floating_point() and a.shape == b.shape)
    return any(bool(((a == 0) & (b == 0) & (a.signbit() != b.signbit())).any()) for a, b in alike)


def _other_path(mine: list[Plain], other: list[Plain]) -> str | None:
    """The path of the first plain argument that is another one, or that the other side alone lacks; else None.

    Names of arguments that one side gives and the other does not are no difference.
    """
    values = [value for _, value in other]
    if (longer := _longer(mine, other)) is not None:
        return longer
    if len(mine) > len(other):
        return next((path for path, value in mine if value not in values), None)
    same = len(mine) < len(other) or sorted(value for _, value in mine) == sorted(values)
    return None if same else _first_other(mine, other)


def _longer(mine: list[Plain], other: list[Plain]) -> str | None:
    """The path of a list or dict that has more plain values on the other side."""
    for path, _ in mine:
        within = path.rpartition(".")[0]
        count, theirs = (sum(p.startswith(f"{within}.") for p, _ in side) for side in (mine, other))
        if within and theirs > count:
            return within
    return None


def _first_other(mine: list[Plain], other: list[Plain]) -> str | None:
    return next((path for (path, a), (_, b) in zip(mine, other, strict=False) if a != b), None)


def _sources(node: Node) -> Iterator[Node]:
    """The nodes that a node's arguments come from, through those that only take parts."""
    for given in node.all_input_nodes:
        yield given
        if op_of(given).endswith("operator.getitem"):
            yield from _sources(given)


def _not_raised(expected: Uncompiled, found: _Compiled) -> Accused | None:
    """What raises uncompiled, and not compiled, where no node of the graph stands for it."""
    lines = {users_source(run.node) for run in found.ran}
    if not expected.raised or found.returned is None or expected.raised[0].source in lines:
        return None
    return of_python(read_names(expected.raised), [], "this is what raises uncompiled", None)


def _numpy(ran: list[_Ran]) -> Accused | None:
    """The first function of numpy's that numpy itself computes otherwise."""
    for run in ran:
        name = numpy_name(run.node)
        if name is not None and run.args is not None:
            right = computed_by_numpy(run.node, *run.args)
            if right is not None and different(right, run.value):
                return accuse(run.node, "numpy gives another result", op=name, also=aten_of(run.node, *run.args))
    return None


def _other_return(program: Program, expected: Uncompiled, found: _Compiled) -> Accused | None:
    """What computed a number or text that is returned, and is not the same."""
    path = _first_other(expected.returned, found.returned) if found.returned is not None else None
    if path is None:
        return None
    fn: Any = type(program.fn).forward if isinstance(program.fn, torch.nn.Module) else program.fn
    names = [n for n in returned_names(getattr(fn, "__func__", fn), path.partition(".")[2]) if n.weight <= READ]
    value = dict(expected.returned)[path]
    return of_python(names, [], f"uncompiled it gives {value}, and something else compiled", None)
