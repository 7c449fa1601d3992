"""A proof under other pythons: what counts as the fault there, what is noted, and which pythons are refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import graphprobe
from conftest import Finished
from graphprobe.diagnose.dossier import proof_run
from graphprobe.diagnose.dossier.proof_run import OtherPython, compare_pythons, other_pythons, run_proof
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis, Finding, ProofRun, finding_json, read_document
from graphprobe.report.diagnosis import versions_in_words
from graphprobe.settings.limits import TimeBudget

COMPILED_ONLY = "import os, sys\nprint('off by 1')\nsys.exit('TORCH_COMPILE_DISABLE' not in os.environ)\n"
"""A proof that fails where `torch.compile` compiles."""

ANYWHERE = "raise ImportError('no such operator')\n"

REPORT = "# title\n\ntext\n\n<details><summary>more</summary>\n\n| a | b |\n\n</details>\n"


def made_proof(folder: Path, script: str = COMPILED_ONLY) -> Finding:
    folder.mkdir()
    finding = Finding(kind="wrong_value", stage="codegen", dossier=str(folder), proof="piece")
    (folder / "repro.py").write_text(script)
    (folder / "REPORT.md").write_text(REPORT)
    (folder / "finding.json").write_bytes(finding_json(finding))
    return finding


def made_python(path: Path, version: str, code: int) -> str:
    """A program that says it has this torch, and ends each script with this code."""
    path.write_text(f'#!/bin/sh\nif [ "$2" = -c ]; then echo warned; echo {version}; else echo a b; exit {code}; fi\n')
    path.chmod(0o755)
    return str(path)


def states(finding: Finding) -> list[tuple[str, str, str]]:
    return [(run.torch, run.state, run.reason) for run in finding.proof_runs]


def test_wrong_right_and_neither(tmp_path: Path) -> None:
    finding = made_proof(tmp_path / "proof")
    right = made_python(tmp_path / "right", "2.90.0", 0)
    neither = made_python(tmp_path / "neither", "2.91.0", 125)
    anywhere = made_python(tmp_path / "anywhere", "2.92.0", 1)
    here = OtherPython(sys.executable, str(torch.__version__))
    others = other_pythons([right, neither, Path(anywhere), right], called="--python {}")
    run_proof(tmp_path / "proof", finding, [here, *others])
    assert states(finding) == [
        (torch.__version__, "wrong", ""),
        ("2.90.0", "right", ""),
        ("2.91.0", "unsure", "a b"),
        ("2.92.0", "unsure", "it fails uncompiled, too: a b"),
    ]
    assert versions_in_words(finding.proof_runs).endswith(
        ", right with torch 2.90.0, not sure with torch 2.91.0 (a b), "
        "not sure with torch 2.92.0 (it fails uncompiled, too: a b)"
    )
    kept = read_document(json.loads((tmp_path / "proof" / "finding.json").read_bytes()), Finding)
    assert kept.proof_runs == finding.proof_runs
    report = (tmp_path / "proof" / "REPORT.md").read_text()
    head, _, tail = report.partition("<details>")
    assert f"| {torch.__version__} | **wrong** |\n| 2.90.0 | right |\n" in head
    assert tail == REPORT.partition("<details>")[2]
    run_proof(tmp_path / "proof", finding, others[:1])
    again = (tmp_path / "proof" / "REPORT.md").read_text()
    assert again.count("| torch |") == 1 and "**wrong**" not in again and "| 2.90.0 | right |" in again


def test_a_script_that_fails_uncompiled_too_shows_no_fault(tmp_path: Path) -> None:
    finding = made_proof(tmp_path / "proof", ANYWHERE)
    run_proof(tmp_path / "proof", finding, [OtherPython(sys.executable, "2.99")])
    assert states(finding) == [
        ("2.99", "unsure", "it fails uncompiled, too: ImportError: no such operator"),
    ]


def test_a_proof_that_does_not_end_is_undecided(tmp_path: Path) -> None:
    finding = made_proof(tmp_path / "proof", "import time\ntime.sleep(60)\n")
    run_proof(tmp_path / "proof", finding, [OtherPython(sys.executable, "2.99")], limit_s=0.5)
    assert states(finding) == [("2.99", "unsure", "it did not end within 0.5 s")]


def test_only_proofs_are_run_and_only_in_time(tmp_path: Path) -> None:
    other = OtherPython(made_python(tmp_path / "right", "2.90.0", 0), "2.90.0")
    proven, bare = made_proof(tmp_path / "proof"), Finding(kind="wrong_value", stage="unknown")
    compare_pythons(Diagnosis(verdict="fault", findings=[proven, bare]), [other], TimeBudget(None))
    assert states(proven) == [(torch.__version__, "wrong", ""), ("2.90.0", "right", "")]
    assert bare.proof_runs == []
    late = Diagnosis(verdict="fault", findings=[made_proof(tmp_path / "late")])
    compare_pythons(late, [other], TimeBudget(0.0))
    assert late.findings[0].proof_runs == []
    assert late.notes == ["no time was left to run the proofs under other pythons"]
    compare_pythons(late, [], TimeBudget(None))
    assert late.findings[0].proof_runs == []


def test_an_environment_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    made_python(tmp_path / "env" / "bin" / "python", "2.90.0", 0)
    assert other_pythons([tmp_path / "env"], called="{}") == [
        OtherPython(str(tmp_path / "env" / "bin" / "python"), "2.90.0")
    ]


def test_what_has_no_torch_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    text = tmp_path / "text"
    text.write_text("no program")
    broken = tmp_path / "broken"
    broken.write_text("neither script nor program")
    broken.chmod(0o755)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(proof_run, "START_S", 0.5)
    for path, why in (
        (tmp_path / "none", "there is no such program"),
        (text, "there is no such program"),
        (tmp_path, "there is no such program"),
        (silent, "it cannot import torch: exit code 3, and no version"),
        (broken, "it does not start: Exec format error"),
        (slow, "it did not import torch within 0.5 s"),
    ):
        with pytest.raises(UsageError) as caught:
            graphprobe.diagnose(torch.sin, torch.ones(2), pythons=[path])
        assert str(caught.value) == f"diagnose(pythons=[{str(path)!r}]): {why}"
    for wrong in ("python", [3], None):
        with pytest.raises(UsageError, match="it takes a list of paths"):
            graphprobe.diagnose(torch.sin, torch.ones(2), pythons=wrong)


def test_the_command_runs_the_proofs_of_a_folder(tmp_path: Path, run_python: Callable[..., Finished]) -> None:
    made_proof(tmp_path / "proofs").dossier = None
    shutil.move(tmp_path / "proofs", tmp_path / "moved")
    right = made_python(tmp_path / "right", "2.90.0", 0)

    def ran(*words: str) -> Finished:
        return run_python("-m", "graphprobe", "diagnose", *words, cwd=tmp_path)

    done = ran("moved", "--python", right)
    assert done.code == 1, done.err
    assert done.out.splitlines() == [
        f"moved: wrong with torch {torch.__version__}, right with torch 2.90.0",
        "FAULT: moved: 1 wrong, 1 right",
        "  proof: moved",
        "  next:  graphprobe issue moved",
    ]
    (tmp_path / "moved" / "repro.py").write_text("pass\n")
    assert ran("moved").out.splitlines() == [
        f"moved: right with torch {torch.__version__}",
        "HEALTHY: moved: 1 right",
        "  proof: moved",
        "  next:  python moved/repro.py",
    ]
    done = ran("--json", "-", ".")
    assert done.code == 0, done.err
    diagnosis = read_document(json.loads(done.out), Diagnosis)
    assert diagnosis.verdict == "healthy"
    assert [run.state for run in diagnosis.findings[0].proof_runs] == ["right"]
    done = ran("moved", "--deep")
    assert done.code == 2
    assert "moved holds proofs, and got --deep too" in done.err
    done = ran("moved", "--python", "none")
    assert done.code == 2
    assert "--python none: there is no such program" in done.err


@pytest.mark.heavy
def test_a_diagnosis_says_with_which_versions_the_fault_is_there(tmp_path: Path) -> None:
    def relu(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)

    off = tmp_path / "off"
    off.write_text(f'#!/bin/sh\nTORCH_COMPILE_DISABLE=1 exec {sys.executable} "$@"\n')
    off.chmod(0o755)
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        made = graphprobe.diagnose(relu, torch.linspace(-1, 1, 16), out=tmp_path / "out", pythons=[sys.executable, off])
    assert made.verdict == "fault"
    assert [run.state for run in made.findings[0].proof_runs] == ["wrong", "wrong", "right"]
    assert isinstance(made.findings[0].proof_runs[0], ProofRun)
    assert re.search(r"versions: +wrong with torch", str(made))
