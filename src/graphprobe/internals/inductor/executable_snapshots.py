"""Executable copies of a graph after each of Inductor's passes, or after each function of a backend that changes it."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import msgspec
from torch.fx import Graph, GraphModule, Node

from graphprobe.internals.bus import Advice, Patch, Subscription, advised
from graphprobe.internals.dynamo.compile_facts import frames_from
from graphprobe.internals.inductor.inductor_taps import PASSES, pass_patches
from graphprobe.internals.inductor.stages import copy_graph
from graphprobe.internals.names import require

COMPILE_FX, MATCHER = "torch._inductor.compile_fx", "torch._inductor.pattern_matcher"
TAP = "snapshots"
PHASES = {"pre_grad_passes": "pre_grad", "joint_graph_passes": "joint", "post_grad_passes": "post_grad"}


PATTERN_ENTRIES = ("GraphPatternEntry", "LoweringPatternEntry", "ReplacementPatternEntry")
"""Classes of the pattern matcher, each of which replaces what a pattern has matched."""

MOST_CALLS = 64
"""Calls of one function after which it is taken for a part of what calls it."""


class ExecutableSnapshot(msgspec.Struct):
    """A graph at one moment.

    Attributes:
        name: of the pass that made it what it is; empty for the graph before the first pass.
        graph: an independent copy that can be run.
    """

    name: str
    graph: GraphModule


class PassLog(msgspec.Struct):
    """What one group of passes did to one graph.

    Attributes:
        phase: `pre_grad`, `joint` or `post_grad`; `backend` of a backend other than Inductor.
        snapshots: the graph before the first pass, and after each pass that changed it.
        failed: name of the pass that raised, if any.
        unseen: why a pass's graph could not be copied.
    """

    phase: str
    snapshots: list[ExecutableSnapshot] = []
    failed: str | None = None
    unseen: list[str] = []
    _latest: str = ""

    def take(self, gm: GraphModule, name: str) -> None:
        """Note the graph as what `name` has made of it, if it has changed."""
        signature = graph_signature(gm)
        if self.snapshots and signature == self._latest:
            return
        try:
            self.snapshots.append(ExecutableSnapshot(name, copy_graph(gm)))
        except Exception as error:  # a graph that a pass has left half edited
            self.unseen.append(f"{name}: {type(error).__name__}: {error}")
            return
        self._latest = signature


class Snapshots:
    """Collects a PassLog for each group of passes that runs while it is active, and leaves out the passes `skip`."""

    def __init__(self, skip: Collection[tuple[str, str]] = ()) -> None:
        """`skip` has phases and names of passes, as PassLog and ExecutableSnapshot name them."""
        self.skip = frozenset(skip)
        self.logs: list[PassLog] = []
        self.missing: list[str] = []
        self._open: list[tuple[PassLog, int]] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace what announces passes, and put it back on exit."""
        require("torch._inductor", "compile_fx", purpose="snapshots of passes")  # imports the other two
        wanted = [advised(TAP, COMPILE_FX, name, self._phase(name)) for name in PHASES]
        wanted += pass_patches(TAP, self._begins, self._ends)
        wanted += [Patch(TAP, MATCHER, f"{name}.apply", self._pattern) for name in PATTERN_ENTRIES]
        if self.skip:
            for name in ("apply_gm_pass", "apply_graph_pass"):
                wanted.append(Patch(TAP, PASSES, f"GraphTransformObserver.{name}", self._apply))
        taps = Subscription(wanted)
        with taps.installed():
            self.missing = taps.missing
            yield

    def _phase(self, name: str) -> Callable[..., Advice]:
        def run(gm: Any, *args: Any, **kwargs: Any) -> Advice:
            log = PassLog(PHASES[name])
            self.logs.append(log)
            log.take(gm, "")
            self._open.append((log, id(gm)))
            result, error = yield
            self._open.pop()
            if error is None:
                after = result if isinstance(result, GraphModule) else gm
                log.take(after, f"{PHASES[name]} (no single pass announced it)")

        return run

    def _apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(observer: Any, *args: Any, **kwargs: Any) -> Any:
            phase = self._open[-1][0].phase if self._open else ""
            return None if (phase, observer.passname) in self.skip else original(observer, *args, **kwargs)

        return apply

    def _pattern(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(entry: Any, match: Any, graph: Any, node: Any) -> Any:
            name = f"pattern {_pattern_name(entry)}"
            if self._open and (self._open[-1][0].phase, name) in self.skip:
                return None
            result = original(entry, match, graph, node)
            gm = getattr(graph, "owning_module", None)
            if self._open and gm is not None and id(gm) == self._open[-1][1]:
                self._open[-1][0].take(gm, name)
            return result

        return apply

    def _begins(self, seen: Any) -> PassLog | None:
        if not self._open or id(seen.gm) != self._open[-1][1]:
            return None
        self._open[-1][0].take(seen.gm, f"before {seen.passname}")
        return self._open[-1][0]

    def _ends(self, seen: Any, log: PassLog, error: BaseException | None) -> None:
        if error is None:
            log.take(seen.gm, seen.passname)
        else:
            log.failed = log.failed or seen.passname


@dataclass(frozen=True)
class Applied:
    """A call of a function of the program's that was given a graph.

    Attributes:
        code, namespace: of the function.
        arguments: by name, as they were when it began.
        graph: the argument that is, or holds, the graph.
    """

    code: CodeType
    namespace: dict[str, Any]
    arguments: dict[str, Any]
    graph: GraphModule


class OwnPasses:
    """Collects what the functions of a program make of graphs, while a backend of the program runs.

    The innermost function that was given the graph has made a change; one that was given a node, too, is a part of the
    pass that called it. Blocks of `observe_pass` and of `GraphTransformObserver` count as functions.
    """

    def __init__(self, name_of: Callable[[FrameType], str | None], block: Callable[..., Any] | None) -> None:
        """`name_of`: `name (file:line)` of a function of the program; None of others.

        `block`: `observe_pass`; None: its blocks do not count.
        """
        observer = require("torch.fx.passes", "graph_transform_observer", purpose="snapshots of passes")
        self._name_of, self._block = name_of, None if block is None else inspect.unwrap(block).__code__
        self._enter, self._exit = (
            getattr(observer.GraphTransformObserver, name).__code__ for name in ("__enter__", "__exit__")
        )
        self.logs: list[tuple[Any, PassLog]] = []
        self.raised_in: str | None = None
        self.calls_inductor = False
        self._owner: Any = None
        self._chains: dict[int, _Chain] = {}
        self._stack: list[tuple[FrameType, str, list[GraphModule], Applied]] = []
        self._blocks: set[FrameType] = set()
        self._calls: Counter[CodeType] = Counter()

    @contextmanager
    def watched(self, owner: Any) -> Iterator[None]:
        """Collect what this thread does in the block. `owner` comes back with each log."""
        before, profile = self._owner, sys.getprofile()
        self._owner = owner
        sys.setprofile(self.on_event)
        try:
            yield
        except Exception as error:
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if self._is_pass(frame)]
            self.raised_in = self.raised_in or (self._name_of(frames[-1]) if frames else None)
            raise
        finally:
            sys.setprofile(profile if callable(profile) else None)
            self._owner = before

    @property
    def is_at_work(self) -> bool:
        """Whether a function of the program's that was given a graph is running."""
        return bool(self._stack)

    def _is_pass(self, frame: FrameType) -> bool:
        graphs, of_node, _ = _given(frame)
        return bool(graphs) and not of_node and self._name_of(frame) is not None

    def on_event(self, frame: FrameType, event: str, value: Any) -> None:
        """What Python's profiler calls."""
        if event == "call":
            self._on_call(frame, frame.f_code)
        elif event == "return" and self._stack and self._stack[-1][0] is frame:
            _, name, graphs, applied = self._stack.pop()
            made = getattr(value, "graph_module", None) if isinstance(value, tuple) else value  # of a PassResult
            if isinstance(made, GraphModule):
                self._goes_on(graphs[0], made)
                graphs = [made]
            for gm in graphs:
                self._take(gm, name, applied)

    def _goes_on(self, before: GraphModule, after: GraphModule) -> None:
        """A function was given the first graph, and has returned the other."""
        chain = self._chains[id(before)]
        if self._chains.setdefault(id(after), chain) is chain:
            chain.graphs.append(after)

    def _on_call(self, frame: FrameType, code: CodeType) -> None:
        around = self._stack[-1][1] if self._stack else ""
        if code in (self._block, self._enter, self._exit):
            caller = next((outer for outer in frames_from(frame.f_back) if self._name_of(outer) is not None), None)
            given: Any = frame.f_locals if code is self._block else vars(frame.f_locals["self"])
            ends = code is self._exit or frame in self._blocks
            self._blocks.add(frame)
            file = (self._name_of(caller) or "").partition(" (")[2].rpartition(":")[0] if caller is not None else ""
            name = given.get("name") or given.get("passname")
            line = f" ({file}:{caller.f_lineno})" if caller is not None and file else ""
            self._take(given["gm"], f"{name}{line}" if ends else around)
            return
        self.calls_inductor |= code.co_name == "compile_fx" and frame.f_globals.get("__name__") == COMPILE_FX
        own = self._name_of(frame)
        if own is None:
            return
        graphs, of_node, arguments = _given(frame)
        self._calls[code] += bool(graphs)
        if not graphs or self._calls[code] > MOST_CALLS:
            return
        for gm in graphs:
            self._take(gm, around)
        applied = self._stack[-1][3] if of_node and around else Applied(code, frame.f_globals, arguments, graphs[0])
        self._stack.append((frame, around if of_node and around else own, graphs, applied))

    def _take(self, gm: GraphModule, name: str, applied: Applied | None = None) -> None:
        """Note the graph as what `name` has made of it, if it has changed; where its inputs have, as another graph."""
        chain, inputs = self._chains.get(id(gm)), sum(n.op == "placeholder" for n in gm.graph.nodes)
        if chain is None or chain.inputs != inputs:
            chain = self._chains[id(gm)] = _Chain([gm], inputs)
            self.logs.append((self._owner, chain.log))
        chain.log.take(gm, name)


@dataclass
class _Chain:
    """What becomes of one graph. Its modules are kept, so that no other one takes the place of their memory."""

    graphs: list[GraphModule]
    inputs: int
    log: PassLog = field(default_factory=lambda: PassLog("backend"))


def _given(frame: FrameType) -> tuple[list[GraphModule], bool, dict[str, Any]]:
    """The graphs that a function was given, also as attributes of what it is a method of, whether a node was, and all
    arguments."""
    code, found, of_node = frame.f_code, list[GraphModule](), False
    flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in flags)
    given = {name: frame.f_locals.get(name) for name in code.co_varnames[:count]}
    for name, value in given.items():
        values = [value, *(value if isinstance(value, (list, tuple)) else ())]
        of_node = of_node or any(isinstance(one, Node) for one in values)
        if name == "self" and not isinstance(value, GraphModule):
            values += getattr(value, "__dict__", {}).values()
        for one in values:
            gm = one.owning_module if isinstance(one, Graph) else one
            gm = vars(one).get("_graph_module") if type(one).__name__ == "ExportedProgram" else gm
            if isinstance(gm, GraphModule) and not any(gm is other for other in found):
                found.append(gm)
    return found, of_node, given


def _pattern_name(entry: Any) -> str:
    """The function that replaces a match, is searched for, or checks a match."""
    check = getattr(entry, "extra_check", None)
    names = check.__code__.co_freevars if inspect.isfunction(check) else ()
    searched = check.__closure__[names.index("search_fn")].cell_contents if check and "search_fn" in names else None
    for function in (searched, getattr(entry, "handler", None), check):
        found = getattr(function, "__name__", None)
        if found and "lambda" not in found and found != "_return_true":
            return str(found)
    return type(entry).__name__


def graph_signature(gm: GraphModule) -> str:
    """Changes when a node, its order, target or arguments do."""
    lines = [f"{n.name} {n.op} {n.target} {n.args} {n.kwargs}" for n in gm.graph.nodes]
    lines += [graph_signature(child) for _, child in gm.named_children() if isinstance(child, GraphModule)]
    return "\n".join(lines)
