"""Which pass broke a graph, and which of its nodes: on graphs that are edited by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.local import Suspect
from graphprobe.diagnose.passes import Step, analyse, different
from graphprobe.internals.inductor.executable_snapshots import ExecutableSnapshot, PassLog
from graphprobe.internals.inductor.stages import copy_graph

ATEN = torch.ops.aten
Edit = Callable[[Graph], Any]


def log_of(fn: Callable[..., Any], inputs: list[Any], *passes: tuple[str, Edit], phase: str = "post_grad") -> PassLog:
    """What a group of passes did, each of them an edit of the graph that the one before has left."""
    gm = make_fx(fn)(*[i.clone() for i in inputs])
    log = PassLog(phase, [ExecutableSnapshot("", gm)])
    for name, edit in passes:
        gm = copy_graph(gm)
        edit(gm.graph)
        gm.graph.lint()
        gm.recompile()
        log.snapshots.append(ExecutableSnapshot(name, gm))
    return log


def step_of(fn: Callable[..., Any], inputs: list[Any], *passes: tuple[str, Edit]) -> Step:
    return analyse(log_of(fn, inputs, *passes), inputs, "forward")


def only(step: Step) -> Suspect:
    (suspect,) = step.suspects
    return suspect


def node_of(graph: Graph, name: str) -> Node:
    return next(n for n in graph.nodes if n.name == name)


def removing(name: str) -> Edit:
    """A pass that puts the first argument of a node in its place, and takes a copy away."""

    def edit(graph: Graph) -> None:
        node = node_of(graph, name)
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.erase_node(node)

    return edit


def reorder_copies(graph: Graph) -> None:
    arguments("copy__1", "state_1", "mul_1")(graph)
    node_of(graph, "copy__1").append(node_of(graph, "copy_"))


def copy_before_read(graph: Graph) -> None:
    node_of(graph, "add").prepend(node_of(graph, "copy_"))


def replacing(name: str, target: Any, *args: Any) -> Edit:
    """A pass that puts another call in the place of a node; text among the arguments names nodes."""

    def edit(graph: Graph) -> None:
        old = node_of(graph, name)
        with graph.inserting_before(old):
            made = [node_of(graph, a) if isinstance(a, str) else a for a in args]
            new = graph.call_function(target, tuple(made))
        old.replace_all_uses_with(new)
        graph.erase_node(old)

    return edit


def arguments(name: str, *args: Any) -> Edit:
    """A pass that gives a node other arguments."""

    def edit(graph: Graph) -> None:
        node_of(graph, name).args = tuple(node_of(graph, a) if isinstance(a, str) else a for a in args)

    return edit


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    relu = ATEN.relu.default(x)
    sub = ATEN.sub.Tensor(relu, y)
    return ATEN.sin.default(sub)


def writes(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    first, second = ATEN.mul.Tensor(x, 2.0), ATEN.mul.Tensor(x, 3.0)
    ATEN.copy_.default(state, first)
    ATEN.copy_.default(state, second)
    return ATEN.sin.default(x)


def reads(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    read = ATEN.add.Tensor(state, 1.0)
    ATEN.copy_.default(state, x)
    return read


def shifted(x: torch.Tensor) -> torch.Tensor:
    return ATEN.exp.default(ATEN.add.Tensor(x, 1.0))


def casts(x: torch.Tensor) -> torch.Tensor:
    wide = ATEN._to_copy.default(x, dtype=torch.int32)
    return ATEN.sum.default(ATEN.mul.Tensor(wide, 100))


def twice(x: torch.Tensor) -> list[torch.Tensor]:
    sin = ATEN.sin.default(x)
    return [sin, ATEN.mul.Tensor(sin, 1)]


def late(x: torch.Tensor) -> torch.Tensor:
    before = ATEN.add.Tensor(ATEN.select.int(x, 0, 0), ATEN.full.default([6], 0.0))
    ATEN.copy_.default(x, ATEN.add.Tensor(x, 1))
    return before


def views(x: torch.Tensor) -> list[torch.Tensor]:
    return [ATEN.view.default(ATEN.view.default(x, [5, 6]), [5, 6]), ATEN.neg.default(ATEN.add.Tensor(x, 0))]


X, Y = torch.linspace(-2, 3, 30), torch.linspace(1, 2, 30)


def test_right_passes_are_silent() -> None:
    right = [
        ("clamp", replacing("relu", ATEN.clamp_min.default, "x_1", 0.0)),
        ("rsub", replacing("sub", ATEN.rsub.Tensor, "y_1", "clamp_min_default")),
    ]
    step = step_of(program, [X, Y], *right)
    assert step.suspects == []
    assert step.passes == ["clamp", "rsub"]
    state = Y.clone()
    step = step_of(writes, [X, state], ("none", lambda graph: None))
    assert torch.equal(state, Y)


def test_swapped_operands_blame_the_op_itself() -> None:
    log = log_of(program, [X, Y], ("swap", arguments("sub", "y_1", "relu")), phase="joint")
    step = analyse(log, [X, Y], "backward")
    suspect = only(step)
    assert (suspect.pass_, suspect.stage, suspect.direction) == ("swap", "joint", "backward")
    assert (suspect.op, suspect.node.name, suspect.kind) == ("aten.sub.Tensor", "sub", "wrong_value")
    assert suspect.graph.graph.find_nodes(op="call_function", target=ATEN.sub.Tensor)[0].args[0].name == "relu"
    assert suspect.error.answer == "worse" and suspect.error.z > 100
    assert torch.equal(suspect.values["sub"], X.relu() - Y), "values of the graph that is right"
    assert step.passes == []


BYTES = torch.arange(-20, 40, dtype=torch.int8)
SHARES = "output 0 shares the memory of {}, and did not before"

BLAMED: list[tuple[Callable[..., Any], list[Any], Edit, dict[str, Any]]] = [
    (
        *(program, [X, Y], replacing("relu", ATEN.abs.default, "x_1")),
        {"op": "aten.relu.default", "also": ["aten.abs.default", "aten.sub.Tensor"], "others": ["sub"]},
    ),
    (
        *(lambda x: ATEN.mul.Tensor(x, ATEN.full.default([30], 2.0)), [X]),
        replacing("full", ATEN.full.default, [30], 2.5),
        {"node": "full", "also": ["aten.full.default", "aten.mul.Tensor"], "others": ["mul"]},
    ),
    (
        *(program, [X, Y], replacing("sin", ATEN.cos.default, "sub")),
        {"op": "aten.sin.default", "also": ["aten.cos.default"]},
    ),
    (casts, [BYTES], removing("_to_copy"), {"node": "_to_copy", "also": ["aten.mul.Tensor"]}),
    (shifted, [X], arguments("add", "x_1", 1.001), {"op": "aten.add.Tensor", "node": "add"}),
    (writes, [X, Y], removing("copy__1"), {"op": "aten.copy_.default", "node": "copy__1"}),
    (writes, [X, Y], reorder_copies, {"op": "aten.copy_.default"}),
    (reads, [X, Y], copy_before_read, {"op": "aten.add.Tensor"}),
    (
        *(lambda x: [ATEN.add.Tensor(x, 0), ATEN.sin.default(x)], [X], removing("add")),
        {"kind": "aliasing", "op": "aten.add.Tensor", "reason": SHARES.format("input 0")},
    ),
    (twice, [X], removing("mul"), {"kind": "aliasing", "op": "aten.mul.Tensor", "reason": SHARES.format("output 1")}),
    (late, [X.reshape(5, 6)], removing("add"), {"kind": "wrong_value", "op": "aten.add.Tensor"}),
]


@pytest.mark.parametrize(("fn", "inputs", "edit", "expected"), BLAMED)
def test_what_is_blamed(fn: Callable[..., Any], inputs: list[Any], edit: Edit, expected: dict[str, Any]) -> None:
    suspect = only(step_of(fn, inputs, ("before joint_pass", edit)))
    assert suspect.pass_ == "before joint_pass"
    told = {"kind": suspect.kind, "op": suspect.op, "node": suspect.node.name, "also": suspect.also}
    told |= {"others": [n.name for n in suspect.others], "reason": suspect.error.reason}
    assert {name: told[name] for name in expected} == expected


def test_what_breaks_nothing_is_not_blamed() -> None:
    for fn, inputs, edits in (
        (shifted, [X], [arguments("add", "x_1", 1.0 + 2**-52)]),
        (writes, [X, Y], [removing("copy_")]),  # it is overwritten
        (views, [X], [removing("view_1"), removing("add")]),  # memory was shared before
        (program, [X, Y], [arguments("sub", "y_1", "relu"), arguments("sub", "relu", "y_1")]),  # there and back
    ):
        assert step_of(fn, inputs, *(("edit", edit) for edit in edits)).suspects == []
    assert analyse(PassLog("joint"), [X], "backward").suspects == []
    gm: GraphModule = make_fx(program)(X, Y)
    step = analyse(PassLog("post_grad", [ExecutableSnapshot("", gm)]), [X, Y], "forward")
    assert (step.suspects, step.passes) == ([], [])
    gm = make_fx(lambda x: ATEN.mm.default(x, x))(torch.ones(3, 3))
    step = analyse(PassLog("joint", [ExecutableSnapshot("", gm)]), [torch.ones(2, 3)], "forward")
    assert (step.suspects, step.passes) == ([], []), "it does not run, whatever the passes did"


def test_several_wrong_passes_or_one_that_raises() -> None:
    step = step_of(
        program,
        [X, Y],
        ("swap", arguments("sub", "y_1", "relu")),
        ("fine", replacing("sin", ATEN.sin.default, "sub")),
        ("abs", replacing("relu", ATEN.abs.default, "x_1")),
    )
    assert [(s.pass_, s.op) for s in step.suspects] == [("swap", "aten.sub.Tensor"), ("abs", "aten.relu.default")]
    assert step.passes == ["fine"], "held against what the wrong pass has left"

    def fn(x: torch.Tensor) -> torch.Tensor:
        return ATEN.mm.default(ATEN.relu.default(x), x)

    x = torch.linspace(-1, 1, 9).reshape(3, 3)
    step = step_of(fn, [x], ("reshape", replacing("relu", ATEN.view.default, "x_1", [9])))
    suspect = only(step)
    assert (suspect.kind, suspect.pass_) == ("crash_runtime", "reshape")
    assert suspect.op == "aten.relu.default"
    assert "mm raises RuntimeError" in suspect.error.reason


def test_different() -> None:
    for a, b, answer in (
        (X, X.clone(), False),
        (X, X * (1 + 2**-22), False),
        (X, X * 1.001, True),
        (X, X.double(), True),
        (X, X[:-1], True),
        (X.bfloat16(), X.bfloat16() * 1.01, False),
        (X.bfloat16(), -X.bfloat16(), True),
        (torch.arange(3), torch.arange(3) + 1, True),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]) * 1, False),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("inf")]), True),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, -float("inf")]), True),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, 2.0]), True),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), True),
        ([X, Y], [X, Y + 0], False),
        ((X, Y), (Y, X), True),
        ((X,), (X, Y), True),
        (3, 3, False),
        (3, 4, True),
        (2.5, 2.5, False),
        (3, X, True),
        (None, None, False),
    ):
        assert different(a, b) is answer
        assert different(b, a) is answer
