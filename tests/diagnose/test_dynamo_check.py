"""Which op Dynamo got wrong: the program's own calls against those of the graphs that ran instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.fx import GraphModule

from graphprobe.diagnose import dynamo_check
from graphprobe.diagnose.dynamo_check import Made, accused, uncompiled_calls
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.isolate import isolated
from graphprobe.engine.values import from_bytes

COMPILATION = Compilation("inductor", None, Path("unused"))


X = torch.ones(1)


def fn(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) + 1
    return torch.sin(y) * 2


def test_the_calls_of_the_program_with_their_results() -> None:
    x = torch.tensor([-1.0, 2.0])
    outcome = isolated(lambda: uncompiled_calls(Program(fn, [((x,), {}), ((x * 2,), {})])))
    first, second = msgspec.convert(outcome.value, list[list[Made]])
    assert [made.name.strip("_") for made in first] == ["relu", "add", "sin", "mul"]
    assert len(second) == 4
    assert first[1].value is not None and second[1].value is not None
    assert from_bytes(*first[1].value).restore()[0].tolist() == [1.0, 3.0]
    assert from_bytes(*second[1].value).restore()[0].tolist() == [1.0, 5.0]


def test_a_right_graph_accuses_nothing() -> None:
    program = Program(fn, [((torch.linspace(-1, 1, 5),), {})])
    found = isolated(lambda: accused(program, COMPILATION) is None)
    assert found.value is True, found


def test_the_first_wrong_result_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = dynamo_check.Recorder

    class Recorder(original):  # type: ignore[misc,valid-type]
        def run_node(self, n: Any) -> Any:
            result = super().run_node(n)
            if n.target is torch.sin:
                self.values[n.name] = result + 0.5
            return result

    monkeypatch.setattr(dynamo_check, "Recorder", Recorder)
    found = isolated(lambda: accused(Program(fn, [((torch.linspace(-1, 1, 5),), {})]), COMPILATION))
    assert found.raised is None, found
    assert found.value["op"] == "torch.sin"
    assert found.value["source"] == f"{__file__}:{fn.__code__.co_firstlineno + 2}"
    assert "is not that of the same call" in found.value["reason"]


def test_a_call_that_is_another_one_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = dynamo_check.Recorder

    class Recorder(original):  # type: ignore[misc,valid-type]
        def __init__(self, gm: GraphModule, **how: Any) -> None:
            for node in gm.graph.nodes:
                if node.target is torch.sin:
                    node.target = torch.cos
            super().__init__(gm, **how)

    monkeypatch.setattr(dynamo_check, "Recorder", Recorder)
    calls = [((torch.linspace(-1, 1, 5),), {})]
    found = isolated(lambda: accused(Program(lambda x: torch.sin(torch.relu(x) + 1), calls), COMPILATION))
    assert found.value["op"] == "torch.cos"
    assert found.value["reason"] == "uncompiled the program calls sin here"


def test_a_program_that_does_not_run_accuses_nothing() -> None:
    def died() -> bool:
        return accused(Program(lambda x: torch._C._nothing(x), [((torch.ones(1),), {})]), COMPILATION) is None

    assert isolated(died).value is True
