"""Where an exception of a compilation comes from: the stage by the frames it passed, the node by what they held."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Self

import msgspec
from torch.fx import Node

from graphprobe.engine.naming import module_in_words, module_of, op_of, program_line_of, source_of
from graphprobe.engine.subgraph import CALLS, is_view, producer
from graphprobe.errors import Raised
from graphprobe.findings import Finding, Stage
from graphprobe.internals.names import require
from graphprobe.internals.operators.operators import Overload
from graphprobe.judge.refusals import refusal_of, user_line

utils: Any = require("torch._dynamo", "utils", purpose="naming functions of numpy's")

WRAPPED = "wrapped_"

OPERATORS = {
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "neg": "negative",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
"""Functions of numpy's that go under other names as operators."""

FUNCTIONS: tuple[tuple[Stage, str, frozenset[str]], ...] = (
    ("codegen", "_inductor/graph.py", frozenset({"codegen", "compile_to_module", "_compile_to_module"})),
    ("lowering", "_inductor/graph.py", frozenset({"run", "run_node", "call_function", "placeholder", "output"})),
    ("post_grad", "_inductor/fx_passes/post_grad.py", frozenset({"post_grad_passes"})),
    ("joint", "_inductor/fx_passes/joint_graph.py", frozenset({"joint_graph_passes"})),
    ("pre_grad", "_inductor/fx_passes/pre_grad.py", frozenset({"pre_grad_passes"})),
    ("decomposition", "_decomp/decompositions.py", frozenset()),
    ("decomposition", "_inductor/decomposition.py", frozenset()),
    ("decomposition", "torch/_refs/", frozenset()),
    ("aot", "torch/_functorch/", frozenset()),
    ("dynamo", "torch/_dynamo/", frozenset()),
)
"""Stage, file and functions of it (none: any) that show that the stage was at work; the first that fits counts."""

PASSES: frozenset[Stage] = frozenset({"post_grad", "joint", "pre_grad"})
CALLED_ONCE = PASSES | {"lowering", "codegen"}
"""Stages of which the outermost frame is the work's beginning."""

MATCHER = "torch._inductor.pattern_matcher"
UNHASHED = (
    "Inductor takes what this makes as a constant, and its cache of code cannot hash it. With "
    "torch._inductor.config.fx_graph_cache = False nothing is hashed."
)


class Culprit(msgspec.Struct, kw_only=True, frozen=True):
    """What a search found. Attributes: as in a finding; empty: not certain."""

    pass_: str | None = None
    node: str | None = None
    op: str | None = None
    source: str | None = None
    module: str | None = None
    called_from: str | None = None
    within: str | None = None
    also: list[str] = []
    reason: str = ""

    @classmethod
    def at(cls, node: Node, **more: Any) -> Self:
        """A node as the culprit; `more`: what else is known, or is known better."""
        place = {"node": node.name, "op": op_of(node), "source": source_of(node), "module": module_of(node)}
        return cls(**place | {"called_from": program_line_of(node), "within": module_in_words(node)} | more)

    def told_in(self, finding: Finding) -> Finding:
        """The finding with all of this in the place of its own."""
        certain = {name: value for name in Culprit.__struct_fields__ if (value := getattr(self, name))}
        return msgspec.structs.replace(finding, **certain)


NOBODY = Culprit()


class Origin(Culprit, kw_only=True, frozen=True):
    """Stage and node of an exception.

    Attributes:
        stage: the latest stage among the frames.
        pass_: the pass that ran.
        node, op, source, module, called_from, within: of the FX node that was being worked on; None when no frame held
            one. Of the nodes of a pattern, the last one that computes.
        pattern: the function that says what is to be replaced, e.g. `_sfdp_pattern_1`, where one was being matched.
        also: ops of the pattern's other nodes that compute, the last one first.
    """

    stage: Stage
    pattern: str | None = None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those it came from, the original last."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__ or getattr(current, "inner_exception", None)


def origin_of(error: BaseException) -> Origin:
    """Where the exception comes from."""
    return _origin([[frame for frame, _ in traceback.walk_tb(link.__traceback__)] for link in chain(error)][::-1])


def origin_of_stack(frame: FrameType) -> Origin:
    """What is being worked on where this frame stands."""
    return _origin([[f for f, _ in traceback.walk_stack(frame)][::-1]])


def _origin(links: list[list[FrameType]]) -> Origin:
    """Of the frames of each exception of a chain, the original first, each from its outermost frame on."""
    passed = [frame for link in links for frame in reversed(link)]
    stage: Stage = next((name for name, *_ in FUNCTIONS if any(_is_of(name, frame) for frame in passed)), "runtime")
    named = next((_pass_name(f) for f in passed if _pass_name(f)), None)
    pattern = next((name for f in passed if (name := _pattern_name(f))), None)
    matched = _matched(passed) if stage in PASSES else []
    node = matched[-1] if matched else _node(passed, _inside(links, stage), stage)
    if node is None:
        made = _hashed(passed)
        return (
            Origin.at(made, stage=stage, reason=UNHASHED) if made else Origin(stage=stage, pass_=named, pattern=pattern)
        )
    if isinstance((made_by := producer(node)).target, Overload):  # of a tensor in Dynamo's graph, indexing computes
        node = made_by
    also = [op for op in dict.fromkeys(map(op_of, reversed(matched))) if op != op_of(node)]
    op = numpy_name(node) or op_of(node)
    return Origin.at(node, stage=stage, pass_=named, op=op, pattern=pattern, also=also)


def _is_of(stage: Stage, frame: FrameType) -> bool:
    """Whether a frame shows that the stage was at work."""
    code = frame.f_code
    return any(
        path in code.co_filename and (not functions or code.co_name in functions)
        for name, path, functions in FUNCTIONS
        if name == stage
    )


def _inside(links: list[list[FrameType]], stage: Stage) -> list[FrameType]:
    """The frames, the innermost first, without those that called what works at the stage, or the pass.

    What such a frame still holds of a loop that has ended was not being worked on.
    """

    def begins(frame: FrameType) -> bool:
        return _is_of(stage, frame) or _pass_name(frame) is not None

    found: list[FrameType] = []
    for link in links:
        starts = [i for i, frame in enumerate(link) if begins(frame)] if stage in CALLED_ONCE else []
        passes = [i for i in starts if _pass_name(link[i]) is not None]
        if starts or stage not in CALLED_ONCE or not any(map(begins, found)):
            found += reversed(link[(passes[-1:] or starts[:1] or [0])[0] :])
    return found


def _pass_name(frame: FrameType) -> str | None:
    if "graph_transform_observer" not in frame.f_code.co_filename:
        return None
    return getattr(frame.f_locals.get("self"), "passname", None)


def _pattern_name(frame: FrameType) -> str | None:
    """What the matcher's check of a match calls its pattern."""
    if frame.f_globals.get("__name__") != MATCHER:
        return None
    name = getattr(frame.f_locals.get("search_fn"), "__name__", None)
    return str(name) if name else None


def _matched(passed: list[FrameType]) -> list[Node]:
    """The nodes of the match that was being handled which compute something, in the order of the graph."""
    for frame in passed:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "Match" and type(value).__module__ == MATCHER:
                nodes = {n for n in getattr(value, "nodes", ()) if isinstance(n, Node) and n.op == "call_function"}
                graph = next((n.graph for n in nodes), None)
                found = [n for n in graph.nodes if n in nodes and not is_view(n)] if graph is not None else []
                if found:
                    return found
    return []


def _node(passed: list[FrameType], inside: list[FrameType], stage: Stage) -> Node | None:
    written = ""  # what Inductor was writing of the body of a loop, e.g. `cos`
    for frame in passed:
        # What interprets a graph knows its node; deeper frames hold those of the node's inputs as well.
        current = frame.f_locals.get("n") if frame.f_code.co_name == "run_node" else None
        if not isinstance(current, Node) or current.op in ("placeholder", "output", "get_attr"):
            continue
        if not _of_a_loop(current):
            return current
        written = written or (str(current.target) if current.op == "call_method" else "")
    for frame in inside:
        if "torch/fx/" in frame.f_code.co_filename and stage in PASSES:
            continue
        for value in list(frame.f_locals.values()):
            node = value if isinstance(value, Node) else _origin_node(value, written)
            if node is not None and node.op not in ("placeholder", "output", "get_attr") and not _of_a_loop(node):
                return node
    return None


def _hashed(passed: list[FrameType]) -> Node | None:
    """The call of Dynamo's graph that makes a constant, where this was being hashed."""
    value = next((f.f_locals.get("t") for f in passed if f.f_code.co_name == "_reduce_tensor"), None)
    nodes = [v for f in passed for v in list(f.f_locals.values()) if isinstance(v, Node)]
    calls = [n for n in nodes[-1].graph.nodes if n.op in CALLS and not n.all_input_nodes] if nodes else []

    def look(tensor: Any) -> tuple[Any, ...]:
        return tuple(getattr(tensor, name, None) for name in ("shape", "dtype", "device"))

    return next((n for n in calls if value is not None and look(n.meta.get("example_value")) == look(value)), None)


def _of_a_loop(node: Node) -> bool:
    """Whether it is of the body of one of Inductor's loops, whose only input is what its calls are methods of."""
    inputs = [n.target for n in node.graph.nodes if n.op == "placeholder"]
    return inputs == ["ops"]


def _origin_node(value: Any, written: str) -> Node | None:
    """The FX node behind a node of Inductor's scheduler or IR, of several the only one called as what was `written`."""
    module = type(value).__module__
    if not module.startswith(("torch._inductor.scheduler", "torch._inductor.ir")):
        return None
    inner = getattr(value, "node", None) or value
    origins = [n for n in getattr(inner, "origins", None) or () if isinstance(n, Node)]
    if written:
        same = [n for n in origins if op_of(n).split(".")[1:2] == [written]]
        return same[0] if len(same) == 1 else None
    try:
        found = inner.get_origin_node()
    except Exception:  # many IR classes have none, or refuse
        found = None
    if isinstance(found, Node):
        return found
    return origins[0] if origins else None


def numpy_name(node: Node) -> str | None:
    """`numpy.cumsum` of a node that calls this function, the method or operator; None for other nodes."""
    target: Any = node.target
    if isinstance(target, utils.numpy_to_tensor_wrapper):
        module = str(getattr(target.f, "__module__", "")).replace("torch._numpy", "numpy")
        name = str(getattr(target.f, "__name__", ""))
        inner = module.partition("numpy.")[2]
        return f"numpy.{inner}.{name}" if inner and not inner.startswith("_") else f"numpy.{name}"
    if isinstance(target, (utils.numpy_method_wrapper, utils.numpy_operator_wrapper)):
        method = str(target.__name__).removeprefix(WRAPPED)
        name = method.strip("_")
        if method.startswith("__") and hasattr(builtins, name):
            return name  # what the program calls: `round(array)`
        return f"numpy.{OPERATORS.get(name, name)}"
    if target is utils.numpy_attr_wrapper:
        return f"numpy.ndarray.{node.args[1]}"
    return None


def refused(raised: Sequence[Raised | None], origin: Origin | None) -> Finding | None:
    """A refusal of torch's, in its words and with the remedy; None unless that is all that was raised."""
    told = [found for error in raised if error is not None and (found := refusal_of(error)) is not None]
    if not told or len(told) < len(raised):
        return None
    first = next(error for error in raised if error is not None)
    fault = Finding(kind="unsupported", stage="unknown", source=user_line(first.message), reason=told[0])
    return msgspec.structs.replace(origin or NOBODY, pass_=None, also=[], reason="").told_in(fault)
