"""Which call of a small failing piece is to blame: the one that has to be compiled, not the one that shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, symbolic_trace

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import CaseResult, check
from graphprobe.diagnose.culprit import ranked
from graphprobe.diagnose.references import _is_another_program
from graphprobe.engine.naming import op_of
from graphprobe.engine.values import capture
from graphprobe.judge.observation import Observation

X = torch.tensor([-0.0, 0.0, 1.0, -2.0])


def broken(target: Any, wrong: Callable[..., Any], *, together_with: Any = None) -> Callable[[], Any]:
    """What makes a backend that computes `target` wrongly, with `together_with` only where it has that in one graph."""

    def backend(gm: GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        targets = {node.target for node in gm.graph.nodes}
        for node in gm.graph.nodes:
            if node.target is target and (together_with is None or together_with in targets):
                node.target = wrong
        gm.recompile()
        return gm.forward

    return lambda: backend


def first(fn: Callable[..., Any], backend: Callable[[], Any], x: torch.Tensor = X) -> str:
    """The op that is blamed for what `backend` makes of `fn(x)`."""
    case = Case(symbolic_trace(fn), [capture([x.clone()])], "wrong_value")
    result: CaseResult = check(case, backend=backend, repeats=1)
    assert result.fails
    return op_of(ranked(case, result, "wrong_value", timeout_s=60, backend=backend)[0])


def test_the_call_that_is_wrong() -> None:
    wrong = broken(torch.sin, lambda x: torch.sin(x) + 1)
    assert first(lambda x: torch.exp(torch.sin(torch.cos(x)) * 2), wrong) == "torch.sin"


def test_a_call_whose_error_only_another_one_shows() -> None:
    lost = broken(torch.ceil, lambda x: torch.ceil(x) + 0.0)  # -0.0 becomes 0.0, which is no other number
    assert first(lambda x: torch.signbit(torch.ceil(x)), lost) == "torch.ceil"


def test_calls_that_are_wrong_only_together() -> None:
    both = broken(torch.tanh, lambda x: torch.tanh(x) * 2, together_with=torch.sin)
    assert first(lambda x: torch.tanh(torch.sin(x)) + 1, both) == "torch.tanh"


def test_a_call_whose_integers_are_not_wrapped_before_another_one_gets_them() -> None:
    lost = broken(torch.abs, lambda x: torch.abs(x.to(torch.int64)), together_with=torch.gt)
    assert (
        first(lambda x: torch.gt(torch.abs(x + 1), 0), lost, torch.tensor([126, 127, 5]).to(torch.int8)) == "torch.abs"
    )


def test_runs_that_what_watches_them_has_changed() -> None:
    def seen(value: torch.Tensor) -> list[Observation]:
        return [Observation(None, [value])]

    value = torch.linspace(1, 2, 50, dtype=torch.float64)
    noisy = [seen(value + 1e-6 * torch.randn(50)) for _ in range(3)]
    assert not _is_another_program(seen(value), noisy)
    assert _is_another_program(seen(value), [seen(value * 1.3 + 1e-6 * torch.randn(50)) for _ in range(3)])
    assert not _is_another_program(seen(value), noisy[:1]), "one run says nothing of a scatter"
