"""Do no harm: outputs, gradients, state, random numbers, settings and messages of five model families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FAMILIES = ("gpt2", "bert", "convnet", "mutating", "branching")
SLOW = ("gpt2", "bert", "convnet", "mutating")


def check(plain: Any, watched: dict[str, Any], backends: tuple[str, ...]) -> None:
    assert plain.code == 0, plain.err
    assert "the program's own warning" in plain.err
    for backend in backends:
        assert f"\n{backend} 0 grad " in plain.out
    for way, (said, run) in watched.items():
        assert said.out == plain.out, way
        assert said.err == plain.err, way
        assert said.code == plain.code, way
        assert run.manifest.state == "finished", way
        assert run.manifest.missing == [], way
        assert run.verify() == [], way
        assert {model.compile["backend"] for model in run.models()} == set(backends), way


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.heavy if f in SLOW else ()) for f in FAMILIES])
def test_bit_for_bit(family: str, watched_and_not: Callable[..., Any]) -> None:
    ways = ("everything",) if family in SLOW else ("default", "everything")
    plain, watched = watched_and_not("families.py", family, ways=ways)
    check(plain, watched, ("inductor", "aot_eager", "eager"))
    inductor = [m for m in watched["everything"][1].models() if m.compile["backend"] == "inductor"]
    names = {event.name for model in inductor for event in model.events}
    assert {"output_code", "captured_ops", "inputs.safetensors", "outputs.safetensors"} <= names


@pytest.mark.heavy
@pytest.mark.parametrize("family", SLOW)
def test_bit_for_bit_by_default(family: str, watched_and_not: Callable[..., Any]) -> None:
    plain, watched = watched_and_not("families.py", family, ways=("default",))
    check(plain, watched, ("inductor", "aot_eager", "eager"))


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager_decomp_partition"])
def test_bit_for_bit_with_more_backends(family: str, backend: str, watched_and_not: Callable[..., Any]) -> None:
    plain, watched = watched_and_not("families.py", family, backend, ways=("pbtxt",))
    check(plain, watched, (backend,))


def test_the_evidence_can_differ(run_python: Callable[..., Any]) -> None:
    """One bit of one gradient, one number drawn, one setting changed: each shows in the evidence."""
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import evidence, torch, numpy as np, random
x = torch.ones(3); y = x.clone(); y.view(torch.int32)[1] ^= 1
assert evidence.bits(x) != evidence.bits(y)
assert evidence.bits(x) != evidence.bits(x.double())
torch.manual_seed(0); evidence.generators(); torch.rand(1); evidence.generators()
np.random.rand(); evidence.generators(); random.random(); evidence.generators()
torch._inductor.config.fx_graph_cache = not torch._inductor.config.fx_graph_cache
evidence.settings()
"""
    done = run_python("-c", code, str(__file__).replace("test_families.py", "programs"))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] != lines[3]
    assert lines[4] != lines[7]
    assert lines[8] != lines[11]
    assert "fx_graph_cache" in lines[-1]
