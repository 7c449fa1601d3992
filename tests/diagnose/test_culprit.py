"""Which call of a small failing piece is to blame: the one that has to be compiled, not the one that shows it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import check
from graphprobe.diagnose.culprit import ranked
from graphprobe.diagnose.prove import Prover
from graphprobe.diagnose.references import _is_another_program
from graphprobe.diagnose.rungs import DynamoGraph
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.naming import op_of
from graphprobe.engine.values import capture
from graphprobe.findings import Finding
from graphprobe.judge import Observation


def broken(target: Any, wrong: Callable[..., Any], together_with: Any) -> Callable[[], Any]:
    """What makes a backend that computes `target` wrongly, with `together_with` only where it has that in one graph."""

    def backend(gm: GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        targets = {node.target for node in gm.graph.nodes}
        for node in gm.graph.nodes:
            if node.target is target and (together_with is None or together_with in targets):
                node.target = wrong
        gm.recompile()
        return gm.forward

    return lambda: backend


BLAMED: dict[str, tuple[Callable[..., Any], tuple[Callable[..., Any], Any]]] = {
    "sin": (lambda x: torch.exp(torch.sin(torch.cos(x)) * 2), (lambda x: torch.sin(x) + 1, None)),
    # -0.0 becomes 0.0, which is no other number: only another call shows it.
    "ceil": (lambda x: torch.signbit(torch.ceil(x)), (lambda x: torch.ceil(x) + 0.0, None)),
    # It is wrong only together with a sine.
    "tanh": (lambda x: torch.tanh(torch.sin(x)) + 1, (lambda x: torch.tanh(x) * 2, torch.sin)),
    # Integers are not wrapped before another call gets them.
    "abs": (lambda x: torch.gt(torch.abs(x + 1), 0), (lambda x: torch.abs(x.to(torch.int64)), torch.gt)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLAMED)
def test_the_call_that_is_to_blame(name: str) -> None:
    fn, fault = BLAMED[name]
    backend = broken(getattr(torch, name), *fault)
    x = torch.tensor([126, 127, 5], dtype=torch.int8) if name == "abs" else torch.tensor([-0.0, 0.0, 1.0, -2.0])
    case = Case(symbolic_trace(fn), [capture([x])], "wrong_value")
    result = check(case, backend=backend, repeats=1)
    assert result.fails
    assert op_of(ranked(case, result, "wrong_value", timeout_s=60, backend=backend)[0]) == f"torch.{name}"


def test_runs_that_what_watches_them_has_changed() -> None:
    def seen(value: torch.Tensor) -> list[Observation]:
        return [Observation(None, [value])]

    value = torch.linspace(1, 2, 50, dtype=torch.float64)
    noisy = [seen(value + 1e-6 * torch.randn(50)) for _ in range(3)]
    assert not _is_another_program(seen(value), noisy)
    assert _is_another_program(seen(value), [seen(value * 1.3 + 1e-6 * torch.randn(50)) for _ in range(3)])
    assert not _is_another_program(seen(value), noisy[:1]), "one run says nothing of a scatter"


def filled(x: torch.Tensor) -> torch.Tensor:
    x.diagonal().fill_(2)
    y = x.sin().contiguous()
    y[0] = 1
    return y


def test_an_op_that_torch_writes_for_a_call_of_the_programs_is_told_by_that(tmp_path: Path) -> None:
    graphs: list[DynamoGraph] = []

    def backend(gm: GraphModule, _: Sequence[Any]) -> Any:
        graphs.append(DynamoGraph(gm))
        return gm.forward

    torch.compile(filled, backend=backend)(torch.ones(3, 3))
    prover = Prover(Compilation("inductor", None, tmp_path), graphs, False)
    first = filled.__code__.co_firstlineno
    for op, line, told in (
        ("aten.index_put.default", 1, ["torch.Tensor.fill_", "aten.index_put.default", "aten.diagonal", "aten.fill_"]),
        ("aten.copy_.default", 3, ["operator.setitem", "aten.copy_.default"]),
        ("aten.copy_.default", None, [None]),
        ("aten.sin.default", 2, ["aten.sin.default"]),
        ("aten.clone.default", 2, ["aten.clone.default"]),
    ):
        source = None if line is None else f"{__file__}:{first + line}"
        made = prover.called(Finding(kind="wrong_value", stage="lowering", op=op, source=source))
        assert [made.op, *made.also] == told
