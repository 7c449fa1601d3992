"""A call of a script as the script makes it, with what was compiled for other calls."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphprobe.diagnose.script_calls import FIRST, CallsSoFar
from graphprobe.diagnose.searches.in_place import differences_in_place, is_compiled, is_looked_at
from graphprobe.settings.limits import TimeBudget

X = torch.linspace(0.5, 1, 4)
SCALE = 2.0


def scaled(x: torch.Tensor, counter: SimpleNamespace) -> torch.Tensor:
    counter.value += 1
    return torch.sin(x) * SCALE


@pytest.mark.parametrize("guards", [True, False])
def test_code_of_another_call_is_seen_and_nothing_is_changed(guards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options, counter = {"guard_filter_fn": lambda found: [guards for _ in found]}, SimpleNamespace(value=0)
    called = torch.compile(scaled, backend="eager", options=options)
    assert not is_compiled(scaled)
    called(X, counter)
    assert is_compiled(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    before, value = torch.get_rng_state(), counter.value
    found = differences_in_place(scaled, called, ((X, counter), {}), TimeBudget(60))
    assert found is not None
    outputs = [(d.kind, d.where) for d in found if d.where.startswith("outputs")]
    assert outputs == ([] if guards else [("wrong_value", "outputs[0]")]) and bool(found) is not guards
    assert counter.value == value and torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_told_is_not_told() -> None:
    for fn, called, found in (
        (lambda x: x * 2, lambda x: x * 5, []),  # it is the same compiled afresh, and so is judged there
        (lambda x: x * torch.rand(1), lambda x: x * 5 * torch.rand(1), None),
        (lambda x: x * int.from_bytes(os.urandom(4)), lambda x: x * 1000, None),
        (lambda x: x * 2, lambda x: x * 2.0001, []),  # too little to be anything else than rounding
    ):
        assert differences_in_place(fn, called, ((X,), {}), TimeBudget(60)) == found


def test_which_calls_are_looked_at_and_kept() -> None:
    assert [n for n in range(1, 70) if is_looked_at(n)] == [1, 2, 3, 4, 8, 16, 32, 64]
    so_far, counter, x = CallsSoFar(), SimpleNamespace(value=0), X.clone()
    for number in range(3):
        so_far.add(torch.sin, ((x, counter), {"more": [number]}))
        counter.value += 10
        x.add_(1)
    assert so_far.calls is not None
    kept = [args[1] for args, _ in so_far.calls]
    assert kept[0] is kept[1] is kept[2] is not counter
    assert kept[0].value == 0 and [kwargs["more"] for _, kwargs in so_far.calls] == [[0], [1], [2]]
    assert [torch.equal(args[0], X + number) for number, (args, _) in enumerate(so_far.calls)] == [True] * 3

    class Whole:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise RuntimeError("not in two")

    for arguments in ([Whole()], [X] * (FIRST + 1)):
        so_far = CallsSoFar()
        for argument in arguments:
            so_far.add(torch.sin, ((argument,), {}))
        assert so_far.calls is None


SCRIPT = """
import torch

scale = 2.0

def is_kept(guards):
    return [False for _ in guards]

@torch.compile(backend="eager", options={"guard_filter_fn": is_kept})
def scaled(x):
    return torch.sin(x) * scale

x = torch.linspace(0.5, 1, 4)
scaled(x)
scale = 3.0
print("sum", scaled(x).sum().item())
"""


@pytest.mark.heavy
def test_a_script_that_runs_code_of_another_call(diagnosed: Any, run_warm: Any, tmp_path: Path) -> None:
    done, document = diagnosed("--out", str(tmp_path / "proofs"), "program.py", text=SCRIPT, code=1)
    first, second = document["diagnoses"]
    assert first["verdict"] == "healthy"
    (finding,) = second["findings"]
    assert (finding["kind"], finding["stage"], finding["proof"]) == ("wrong_value", "dynamo", "program")
    assert finding["source"] == "program.py:9" and "compiled for another call" in finding["reason"]
    folder = Path(finding["dossier"])
    assert f"next:  graphprobe issue {folder.relative_to(tmp_path)}" in done.out.replace(f"{sys.prefix}/bin/", "")
    report = (folder / "REPORT.md").read_text()
    assert "def scaled(x):" in report and str(tmp_path) not in report
    (tmp_path / "program.py").unlink()  # the proof has its own
    right = folder / "script.py"
    for code, word in ((1, "expected"), (0, "agree")):
        proof = run_warm(str(folder / "repro.py"), cwd=Path("/"))
        assert proof.code == code and word in proof.out, proof.out + proof.err
        right.write_text(right.read_text().replace("False for", "True for"))
