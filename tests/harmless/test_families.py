"""Do no harm: outputs, gradients, state, random numbers, settings and messages of five model families."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config

from conftest import module_at

FAMILIES = ("gpt2", "bert", "convnet", "mutating", "branching")


def check(plain: Any, runs: dict[str, Any], backends: tuple[str, ...]) -> None:
    assert plain.code == 0, plain.err
    assert "the program's own warning" in plain.err
    assert all(f"\n{backend} 0 grad " in plain.out for backend in backends)
    for run in runs.values():
        assert {model.compile["backend"] for model in run.models()} == set(backends)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.heavy if name != "branching" else ()) for name in FAMILIES]
)
def test_bit_for_bit(family: str, watched_and_not: Callable[..., Any]) -> None:
    plain, runs = watched_and_not("families.py", family)
    check(plain, runs, ("inductor", "aot_eager", "eager"))
    inductor = [m for m in runs["everything"].models() if m.compile["backend"] == "inductor"]
    names = {event.name for model in inductor for event in model.events}
    assert {"output_code", "captured_ops", "inputs.safetensors", "outputs.safetensors"} <= names


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager_decomp_partition"])
def test_bit_for_bit_with_more_backends(family: str, backend: str, watched_and_not: Callable[..., Any]) -> None:
    check(*watched_and_not("families.py", family, backend, ways=("pbtxt",)), (backend,))


def test_the_evidence_can_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """One bit of one gradient, one number drawn, one setting changed: each shows in the evidence."""
    evidence = module_at("tests", "harmless", "programs", "evidence.py")
    x = torch.ones(3)
    y = x.clone()
    y.view(torch.int32)[1] ^= 1
    assert len({evidence.bits(value) for value in (x, y, x.double())}) == 3
    states = []
    for draw in (lambda: torch.rand(1), np.random.rand, random.random):
        evidence.generators()
        before = capsys.readouterr().out.splitlines()
        draw()
        evidence.generators()
        states.append([a != b for a, b in zip(before, capsys.readouterr().out.splitlines(), strict=True)])
    assert states == [[True, False, False], [False, True, False], [False, False, True]]
    with torch._inductor.config.patch(fx_graph_cache=not torch._inductor.config.fx_graph_cache):
        evidence.settings()
    assert "fx_graph_cache" in capsys.readouterr().out
