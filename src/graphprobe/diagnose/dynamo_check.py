"""Which op Dynamo got wrong: the calls the program makes uncompiled against those of the graphs that ran instead."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode

from graphprobe.diagnose.passes import different
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.interpret import Recorder, copied
from graphprobe.engine.isolate import isolated
from graphprobe.engine.naming import module_of, op_of, source_of
from graphprobe.engine.subgraph import CALLS
from graphprobe.engine.values import capture, from_bytes, to_bytes


class Made(msgspec.Struct):
    """One call of torch that the uncompiled program made: its name, and its result if that is a tensor."""

    name: str
    value: tuple[bytes, bytes] | None = None


class Accused(msgspec.Struct):
    """The op that Dynamo got wrong, where it comes from, and what is wrong."""

    op: str
    node: str | None
    source: str | None
    module: str | None
    reason: str


class _Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if isinstance(result, torch.Tensor) and name not in ("__get__", "__set__"):
            self.made.append(Made(name, to_bytes(capture([copied(result)], rng=False))))
        return result


@dataclass
class _Ran:
    """One node of a graph of Dynamo's that ran in place of the program's call."""

    node: Node
    value: Any


def uncompiled_calls(program: Program) -> list[list[Made]]:
    """The calls of torch in each call of the program; run it in a child."""
    found: list[list[Made]] = []

    def make(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _Calls() as mode:
                found.append(mode.made)
                return fn(*args, **kwargs)

        return call

    program.run(make)
    return found


def accused(program: Program, compilation: Compilation) -> Accused | None:
    """The first op whose result in Dynamo's graphs is not the uncompiled program's; None when none can be told."""
    outcome = isolated(lambda: uncompiled_calls(program), timeout_s=compilation.timeout_s)
    if outcome.value is None:
        return None
    expected = msgspec.convert(outcome.value, list[list[Made]])
    ran: list[list[_Ran]] = []

    def backend(gm: GraphModule, _: Sequence[Any], **__: Any) -> Any:
        def run(*args: Any) -> Any:
            recorder = Recorder(gm)
            call: Any = recorder.run
            result = call(*args)
            nodes = [n for n in gm.graph.nodes if n.op in CALLS]
            ran[-1] += [_Ran(n, recorder.values[n.name]) for n in nodes if n.name in recorder.values]
            return result

        return run

    torch.compiler.reset()

    def make(fn: Any) -> Any:
        compiled: Any = torch.compile(fn, backend=backend, dynamic=compilation.dynamic)

        def call(*args: Any, **kwargs: Any) -> Any:
            ran.append([])
            return compiled(*args, **kwargs)

        return call

    with compilation.configured():
        program.run(make)
    pairs = [(w, [r for r in g if isinstance(r.value, torch.Tensor)]) for w, g in zip(expected, ran, strict=False)]
    found = (look(wanted, got) for look in (_other_value, _other_call) for wanted, got in pairs)
    return next((one for one in found if one is not None), None)


SAME = {
    "div": "truediv",
    "true_divide": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "add": "add",
    "iadd": "add",
    "imul": "mul",
    "isub": "sub",
    "itruediv": "truediv",
    "radd": "add",
    "rmul": "mul",
    "rsub": "sub",
    "rtruediv": "truediv",
    "rdiv": "truediv",
    "subtract": "sub",
    "multiply": "mul",
    "negative": "neg",
}
"""Names under which one operation of tensors goes, in Python, in torch and in Dynamo's graphs."""


def _plain(name: str) -> str:
    short = name.rpartition(".")[2].strip("_")
    return SAME.get(short, short)


def _aligned(wanted: list[Made], got: list[_Ran]) -> tuple[list[str], list[str], list[Any]]:
    left, right = [_plain(m.name) for m in wanted], [_plain(op_of(r.node)) for r in got]
    return left, right, difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()


def _other_value(wanted: list[Made], got: list[_Ran]) -> Accused | None:
    """The first of the calls that both made whose results differ."""
    for tag, i, i2, j, j2 in _aligned(wanted, got)[2]:
        if tag != "equal":
            continue
        for made, run in zip(wanted[i:i2], got[j:j2], strict=True):
            assert made.value is not None
            if different(from_bytes(*made.value).restore()[0], run.value):
                return accuse(run.node, "its result in Dynamo's graph is not that of the same call uncompiled")
    return None


def _other_call(wanted: list[Made], got: list[_Ran]) -> Accused | None:
    """The first call that only one of the two made."""
    left, _, steps = _aligned(wanted, got)
    for tag, i, i2, j, j2 in steps:
        if tag in ("replace", "insert") and j < j2:
            return accuse(got[j].node, f"uncompiled the program calls {', '.join(left[i:i2]) or 'nothing'} here")
        if tag == "delete":
            return Accused(f"torch.{left[i]}", None, None, None, "Dynamo's graph does not call it")
    return None


def accuse(node: Node, reason: str) -> Accused:
    """A node as the one that is to blame."""
    return Accused(op_of(node), node.name, source_of(node), module_of(node), reason)
