"""Which pass broke a graph, and which of its nodes: on graphs that are edited by hand."""

from __future__ import annotations

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


X, Y = torch.linspace(-2, 3, 30), torch.linspace(1, 2, 30)


def test_right_passes_are_silent() -> None:
    step = step_of(program, [X, Y], ("add", replacing("sub", ATEN.add.Tensor, "relu", "y_1")))
    assert len(step.suspects) == 1, "this one is wrong, and seen"
    right = [
        ("clamp", replacing("relu", ATEN.clamp_min.default, "x_1", 0.0)),
        ("rsub", replacing("sub", ATEN.rsub.Tensor, "y_1", "clamp_min_default")),
    ]
    step = step_of(program, [X, Y], *right)
    assert step.suspects == []
    assert step.passes == ["clamp", "rsub"]
    assert step.last is not None
    assert torch.equal(step.last.outputs, (X.relu() - Y).sin())


def test_swapped_operands_blame_the_op_itself() -> None:
    step = step_of(program, [X, Y], ("swap", arguments("sub", "y_1", "relu")))
    suspect = only(step)
    assert (suspect.pass_, suspect.stage, suspect.direction) == ("swap", "post_grad", "forward")
    assert (suspect.op, suspect.node.name, suspect.kind) == ("aten.sub.Tensor", "sub", "wrong_value")
    assert suspect.graph.graph.find_nodes(op="call_function", target=ATEN.sub.Tensor)[0].args[0].name == "relu"
    assert suspect.error.answer == "worse" and suspect.error.z > 100
    assert torch.equal(suspect.values["sub"], X.relu() - Y), "values of the graph that is right"
    assert suspect.inputs[0] is X
    assert step.passes == []


def test_a_replaced_op_is_blamed() -> None:
    suspect = only(step_of(program, [X, Y], ("abs", replacing("relu", ATEN.abs.default, "x_1"))))
    assert suspect.op == "aten.relu.default"
    assert suspect.also == ["aten.abs.default", "aten.sub.Tensor"]
    assert [n.name for n in suspect.others] == ["sub"]


def test_a_replaced_constant_blames_the_removed_node() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ATEN.mul.Tensor(x, ATEN.full.default([30], 2.0))

    suspect = only(step_of(fn, [X], ("fold", replacing("full", ATEN.full.default, [30], 2.5))))
    assert (suspect.op, suspect.node.name) == ("aten.full.default", "full")
    assert suspect.also == ["aten.full.default", "aten.mul.Tensor"]
    assert [n.name for n in suspect.others] == ["mul"]


def test_a_replaced_result_blames_the_removed_node() -> None:
    suspect = only(step_of(program, [X, Y], ("cos", replacing("sin", ATEN.cos.default, "sub"))))
    assert (suspect.op, suspect.also) == ("aten.sin.default", ["aten.cos.default"])


def test_a_dropped_cast_is_blamed() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        wide = ATEN._to_copy.default(x, dtype=torch.int32)
        return ATEN.sum.default(ATEN.mul.Tensor(wide, 100))

    def drop(graph: Graph) -> None:
        cast = node_of(graph, "_to_copy")
        cast.replace_all_uses_with(node_of(graph, "x_1"))
        graph.erase_node(cast)

    x = torch.arange(-20, 40, dtype=torch.int8)
    suspect = only(step_of(fn, [x], ("drop", drop)))
    assert (suspect.op, suspect.node.name) == ("aten._to_copy.default", "_to_copy")
    assert "aten.mul.Tensor" in suspect.also


def test_a_changed_number_blames_the_op() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ATEN.exp.default(ATEN.add.Tensor(x, 1.0))

    suspect = only(step_of(fn, [X], ("eps", arguments("add", "x_1", 1.001))))
    assert (suspect.op, suspect.node.name) == ("aten.add.Tensor", "add")
    assert step_of(fn, [X], ("eps", arguments("add", "x_1", 1.0 + 2**-52))).suspects == []


def writes(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    first, second = ATEN.mul.Tensor(x, 2.0), ATEN.mul.Tensor(x, 3.0)
    ATEN.copy_.default(state, first)
    ATEN.copy_.default(state, second)
    return ATEN.sin.default(x)


def test_copies_in_another_order() -> None:
    def swap(graph: Graph) -> None:
        arguments("copy__1", "state_1", "mul_1")(graph)
        node_of(graph, "copy__1").append(node_of(graph, "copy_"))

    suspect = only(step_of(writes, [X, Y], ("reorder", swap)))
    assert suspect.op == "aten.copy_.default"
    assert suspect.node.name in ("copy_", "copy__1")


def test_a_dropped_copy() -> None:
    def drop(graph: Graph) -> None:
        graph.erase_node(node_of(graph, "copy__1"))

    suspect = only(step_of(writes, [X, Y], ("drop", drop)))
    assert (suspect.op, suspect.node.name) == ("aten.copy_.default", "copy__1")


def test_a_copy_that_is_overwritten_may_be_dropped() -> None:
    def drop(graph: Graph) -> None:
        arguments("copy__1", "state_1", "mul_1")(graph)
        graph.erase_node(node_of(graph, "copy_"))

    assert step_of(writes, [X, Y], ("drop", drop)).suspects == []


def test_a_copy_moved_before_a_read() -> None:
    def fn(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        read = ATEN.add.Tensor(state, 1.0)
        ATEN.copy_.default(state, x)
        return read

    def move(graph: Graph) -> None:
        node_of(graph, "add").prepend(node_of(graph, "copy_"))

    suspect = only(step_of(fn, [X, Y], ("move", move)))
    assert suspect.op in ("aten.add.Tensor", "aten.copy_.default")
    assert suspect.pass_ == "move"


def removing(name: str) -> Edit:
    """A pass that puts the first argument of a node in its place."""

    def edit(graph: Graph) -> None:
        node = node_of(graph, name)
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.erase_node(node)

    return edit


def test_a_result_that_has_become_an_input() -> None:
    step = step_of(lambda x: [ATEN.add.Tensor(x, 0), ATEN.sin.default(x)], [X], ("fold", removing("add")))
    suspect = only(step)
    assert (suspect.kind, suspect.op, suspect.pass_) == ("aliasing", "aten.add.Tensor", "fold")
    assert suspect.error.reason == "output 0 shares the memory of input 0, and did not before"


def test_two_results_that_have_become_one() -> None:
    def twice(x: torch.Tensor) -> list[torch.Tensor]:
        sin = ATEN.sin.default(x)
        return [sin, ATEN.mul.Tensor(sin, 1)]

    suspect = only(step_of(twice, [X], ("fold", removing("mul"))))
    assert (suspect.kind, suspect.op) == ("aliasing", "aten.mul.Tensor")
    assert suspect.error.reason == "output 0 shares the memory of output 1, and did not before"


def test_a_result_that_shares_memory_before_and_after() -> None:
    def view(x: torch.Tensor) -> list[torch.Tensor]:
        return [ATEN.view.default(ATEN.view.default(x, [5, 6]), [5, 6]), ATEN.neg.default(ATEN.add.Tensor(x, 0))]

    assert step_of(view, [X], ("views", removing("view_1")), ("inside", removing("add"))).suspects == []


def test_a_result_that_shows_what_is_copied_later() -> None:
    def late(x: torch.Tensor) -> torch.Tensor:
        before = ATEN.add.Tensor(ATEN.select.int(x, 0, 0), ATEN.full.default([6], 0.0))
        ATEN.copy_.default(x, ATEN.add.Tensor(x, 1))
        return before

    suspect = only(step_of(late, [X.reshape(5, 6)], ("fold", removing("add"))))
    assert (suspect.kind, suspect.op) == ("wrong_value", "aten.add.Tensor")


def test_the_inputs_of_the_caller_are_not_changed() -> None:
    state = Y.clone()
    step = step_of(writes, [X, state], ("none", lambda graph: None))
    assert torch.equal(state, Y)
    assert step.last is not None
    assert torch.equal(step.last.inputs[1], X * 3)


def test_two_wrong_passes_are_both_named() -> None:
    step = step_of(
        program,
        [X, Y],
        ("swap", arguments("sub", "y_1", "relu")),
        ("fine", replacing("sin", ATEN.sin.default, "sub")),
        ("abs", replacing("relu", ATEN.abs.default, "x_1")),
    )
    assert [(s.pass_, s.op) for s in step.suspects] == [("swap", "aten.sub.Tensor"), ("abs", "aten.relu.default")]
    assert step.passes == ["fine"], "held against what the wrong pass has left"


def test_an_error_that_a_later_pass_takes_back_is_none() -> None:
    step = step_of(
        program,
        [X, Y],
        ("there", arguments("sub", "y_1", "relu")),
        ("back", arguments("sub", "relu", "y_1")),
    )
    assert step.suspects == []


def test_a_pass_after_which_the_graph_raises() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ATEN.mm.default(ATEN.relu.default(x), x)

    x = torch.linspace(-1, 1, 9).reshape(3, 3)
    step = step_of(fn, [x], ("reshape", replacing("relu", ATEN.view.default, "x_1", [9])))
    suspect = only(step)
    assert (suspect.kind, suspect.pass_) == ("crash_runtime", "reshape")
    assert suspect.op == "aten.relu.default"
    assert "mm raises RuntimeError" in suspect.error.reason
    assert step.last is None


def test_what_runs_before_a_pass_is_named_as_it_is() -> None:
    suspect = only(step_of(program, [X, Y], ("before joint_pass", arguments("sub", "y_1", "relu"))))
    assert suspect.pass_ == "before joint_pass"


def test_nothing_to_look_at() -> None:
    assert analyse(PassLog("joint"), [X], "backward").suspects == []
    gm = make_fx(lambda x: ATEN.mm.default(x, x))(torch.ones(3, 3))
    step = analyse(PassLog("joint", [ExecutableSnapshot("", gm)]), [torch.ones(2, 3)], "forward")
    assert (step.suspects, step.last, step.passes) == ([], None, []), "it does not run, whatever the passes did"


def test_direction_and_stage_are_passed_on() -> None:
    log = log_of(program, [X, Y], ("swap", arguments("sub", "y_1", "relu")), phase="joint")
    (suspect,) = analyse(log, [X, Y], "backward").suspects
    assert (suspect.stage, suspect.direction) == ("joint", "backward")


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
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
    ],
)
def test_different(a: Any, b: Any, answer: bool) -> None:
    assert different(a, b) is answer
    assert different(b, a) is answer


def test_a_graph_that_the_passes_did_not_change() -> None:
    gm: GraphModule = make_fx(program)(X, Y)
    step = analyse(PassLog("post_grad", [ExecutableSnapshot("", gm)]), [X, Y], "forward")
    assert (step.suspects, step.passes) == ([], [])
    assert step.last is not None and torch.equal(step.last.outputs, program(X, Y))
