"""A call of a script as the script makes it, with what was compiled for other calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Finished
from graphprobe.diagnose.searches.in_place import FIRST, CallsSoFar, differences_in_place, is_compiled, is_looked_at

X = torch.linspace(0.5, 1, 4)
SCALE = 2.0


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.value, self.log = 0, [0]


def scaled(x: torch.Tensor, counter: Counter) -> torch.Tensor:
    counter.value += 1
    return torch.sin(x) * SCALE


def unguarded(guards: Any) -> list[bool]:
    return [False for _ in guards]


def compiled(options: dict[str, Any] | None) -> Callable[..., Any]:
    return torch.compile(scaled, backend="eager", options=options)


def test_code_of_another_call_is_seen_and_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    stale, counter = compiled({"guard_filter_fn": unguarded}), Counter()
    assert not is_compiled(scaled)
    stale(X, counter)
    assert is_compiled(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    before, value = torch.get_rng_state(), counter.value
    found = differences_in_place(scaled, stale, ((X, counter), {}), 60)
    assert [(d.kind, d.where) for d in found if d.where.startswith("outputs")] == [("wrong_value", "outputs[0]")]
    assert counter.value == value and torch.equal(before, torch.get_rng_state())


def test_a_guarded_function_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded, counter = compiled(None), Counter()
    guarded(X, counter)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert differences_in_place(scaled, guarded, ((X, counter), {}), 60) == []


@pytest.mark.parametrize(
    ("fn", "called"),
    [
        (lambda x: x * 2, lambda x: x * 5),  # it is the same compiled afresh, and so is judged there
        (lambda x: x * torch.rand(1), lambda x: x * 5 * torch.rand(1)),
        (lambda x: x * os.urandom(1)[0], lambda x: x * 1000),
        (lambda x: x * 2, lambda x: x * 2.0001),  # too little to be anything else than rounding
    ],
)
def test_what_cannot_be_told_is_not_told(fn: Callable[..., Any], called: Callable[..., Any]) -> None:
    assert differences_in_place(fn, called, ((X,), {}), 60) == []


def test_the_first_calls_are_looked_at_and_then_ever_fewer() -> None:
    assert [n for n in range(1, 70) if is_looked_at(n)] == [1, 2, 3, 4, 8, 16, 32, 64]


def test_calls_are_kept_with_their_objects_as_they_were_at_the_first() -> None:
    so_far, counter, x = CallsSoFar(), Counter(), X.clone()
    for number in range(3):
        so_far.add(((x, counter), {"more": [number]}), ((x.clone(), counter), {"more": [number]}))
        counter.value += 10
        x.add_(1)
    assert so_far.calls is not None
    kept = [args[1] for args, _ in so_far.calls]
    assert kept[0] is kept[1] is kept[2] is not counter
    assert kept[0].value == 0 and [kwargs["more"] for _, kwargs in so_far.calls] == [[0], [1], [2]]
    assert [torch.equal(args[0], X + number) for number, (args, _) in enumerate(so_far.calls)] == [True] * 3


def test_calls_with_what_cannot_be_copied_and_too_many_are_given_up() -> None:
    class Whole:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise RuntimeError("not in two")

    so_far, call = CallsSoFar(), ((Whole(),), {})
    so_far.add(call, call)
    assert so_far.calls is None
    so_far = CallsSoFar()
    for _ in range(FIRST + 1):
        so_far.add(((X,), {}), ((X,), {}))
    assert so_far.calls is None


SCRIPT = """
import sys
import torch

scale = 2.0

def filter_of(guards):
    return [sys.argv[1] == "guarded" for _ in guards]

@torch.compile(backend="eager", options={"guard_filter_fn": filter_of})
def scaled(x):
    return torch.sin(x) * scale

x = torch.linspace(0.5, 1, 4)
scaled(x)
scale = 3.0
print("sum", scaled(x).sum().item())
"""


@pytest.mark.parametrize("guards", ["guarded", pytest.param("unguarded", marks=pytest.mark.heavy)])
def test_a_script_that_runs_code_of_another_call(
    run_warm: Callable[..., Finished], tmp_path: Path, guards: str
) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    out, result = tmp_path / "proofs", tmp_path / "result.json"
    command = ["-m", "graphprobe", "diagnose", "--json", str(result), "--out", str(out), "program.py", guards]
    done = run_warm(*command, cwd=tmp_path)
    diagnoses = [json.loads(result.read_text())["diagnoses"][i] for i in range(1 if guards == "guarded" else 2)]
    assert diagnoses[0]["verdict"] == "healthy"
    if guards == "guarded":
        assert done.code == 0, done.out + done.err
        return
    assert done.code == 1, done.out + done.err
    (finding,) = diagnoses[1]["findings"]
    assert (finding["kind"], finding["stage"], finding["proof"]) == ("wrong_value", "dynamo", "program")
    assert finding["source"] == "program.py:10" and "compiled for another call" in finding["reason"]
    folder = Path(finding["dossier"])
    assert f"next:  graphprobe issue {folder.relative_to(tmp_path)}" in done.out.replace(f"{sys.prefix}/bin/", "")
    (tmp_path / "program.py").unlink()  # the proof has its own
    proof = subprocess.run([sys.executable, "-I", str(folder / "repro.py")], cwd="/", capture_output=True, text=True)
    assert proof.returncode == 1 and "expected" in proof.stdout, proof.stdout + proof.stderr
    right = folder / "script.py"
    right.write_text(right.read_text().replace('sys.argv[1] == "guarded"', "True"))
    proof = subprocess.run([sys.executable, "-I", str(folder / "repro.py")], cwd="/", capture_output=True, text=True)
    assert proof.returncode == 0 and "agree" in proof.stdout, proof.stdout + proof.stderr
    report = (folder / "REPORT.md").read_text()
    assert "def scaled(x):" in report and str(tmp_path) not in report
