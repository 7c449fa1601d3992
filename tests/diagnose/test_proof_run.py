"""A proof under other pythons: what counts as the fault there, what is noted, and which pythons are refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import graphprobe
from graphprobe.cli.main import main
from graphprobe.diagnose.dossier import proof_run
from graphprobe.diagnose.dossier.proof_run import OtherPython, compare_pythons, other_pythons, run_proof
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis, Finding, ProofRun, finding_json, read_document
from graphprobe.settings.limits import TimeBudget

COMPILED_ONLY = "import os, sys\nprint('off by 1')\nsys.exit('TORCH_COMPILE_DISABLE' not in os.environ)\n"
"""A proof that fails where `torch.compile` compiles."""

REPORT = "# title\n\ntext\n\n<details><summary>more</summary>\n\n| a | b |\n\n</details>\n"


def made_proof(folder: Path, script: str = COMPILED_ONLY) -> Finding:
    folder.mkdir()
    finding = Finding(kind="wrong_value", stage="codegen", dossier=str(folder), proof="piece")
    (folder / "repro.py").write_text(script)
    (folder / "REPORT.md").write_text(REPORT)
    (folder / "finding.json").write_bytes(finding_json(finding))
    return finding


def made_python(path: Path, version: str, code: int | None) -> str:
    """A program that says it has this torch, and ends each script with this code; None: runs it."""
    run = f'exec {sys.executable} "$@"' if code is None else f"echo a b; exit {code}"
    return made_program(path, f'if [ "$2" = -c ]; then echo warned; echo {version}; else {run}; fi')


def made_program(path: Path, text: str, head: str = "#!/bin/sh\n") -> str:
    path.write_text(f"{head}{text}\n")
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
    said = " ".join(str(Diagnosis(verdict="fault", findings=[finding])).split())
    assert ", right with torch 2.90.0, not sure with torch 2.91.0 (a b), not sure with torch 2.92.0 (it fails" in said
    kept = read_document(json.loads((tmp_path / "proof" / "finding.json").read_bytes()), Finding)
    assert kept.proof_runs == finding.proof_runs
    report = (tmp_path / "proof" / "REPORT.md").read_text()
    head, _, tail = report.partition("<details>")
    assert f"| {torch.__version__} | **wrong** |\n| 2.90.0 | right |\n" in head
    assert tail == REPORT.partition("<details>")[2]
    run_proof(tmp_path / "proof", finding, others[:1])
    again = (tmp_path / "proof" / "REPORT.md").read_text()
    assert again.count("| torch |") == 1 and "**wrong**" not in again and "| 2.90.0 | right |" in again


@pytest.mark.parametrize(
    ("script", "limit_s", "reason"),
    [
        ("raise ImportError('no such operator')\n", 60, "it fails uncompiled, too: ImportError: no such operator"),
        ("import time\ntime.sleep(60)\n", 0.5, "it did not end within 0.5 s"),
    ],
)
def test_a_script_that_shows_no_fault(script: str, limit_s: float, reason: str, tmp_path: Path) -> None:
    finding = made_proof(tmp_path / "proof", script)
    run_proof(tmp_path / "proof", finding, [OtherPython(sys.executable, "2.99")], limit_s=limit_s)
    assert states(finding) == [("2.99", "unsure", reason)]


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
    text = tmp_path / "text"
    text.write_text("no program")
    monkeypatch.setattr(proof_run, "START_S", 0.5)
    for path, why in (
        (tmp_path / "none", "there is no such program"),
        (text, "there is no such program"),
        (tmp_path, "there is no such program"),
        (made_program(tmp_path / "silent", "exit 3"), "it cannot import torch: exit code 3, and no version"),
        (made_program(tmp_path / "broken", "no script", head=""), "it does not start: Exec format error"),
        (made_program(tmp_path / "slow", "exec sleep 60"), "it did not import torch within 0.5 s"),
    ):
        with pytest.raises(UsageError) as caught:
            graphprobe.diagnose(torch.sin, torch.ones(2), pythons=[path])
        assert str(caught.value) == f"diagnose(pythons=[{str(path)!r}]): {why}"
    for wrong in ("python", [3], None):
        with pytest.raises(UsageError, match="it takes a list of paths"):
            graphprobe.diagnose(torch.sin, torch.ones(2), pythons=wrong)


def test_the_command_runs_the_proofs_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_proof(tmp_path / "proofs").dossier = None
    shutil.move(tmp_path / "proofs", tmp_path / "moved")
    right, here = made_python(tmp_path / "right", "2.90.0", 0), made_python(tmp_path / "here", "2.89.0", None)
    monkeypatch.setattr(sys, "executable", here)
    monkeypatch.chdir(tmp_path)

    def ran(*words: str) -> Result:
        return CliRunner().invoke(main, ["diagnose", *words])

    done = ran("moved", "--python", right)
    assert done.exit_code == 1, done.output
    assert done.stdout.splitlines() == [
        "moved: wrong with torch 2.89.0, right with torch 2.90.0",
        "FAULT: moved: 1 wrong, 1 right",
        "  proof: moved",
        "  next:  graphprobe issue moved",
    ]
    (tmp_path / "moved" / "repro.py").write_text("pass\n")
    assert ran("moved").stdout.splitlines() == [
        "moved: right with torch 2.89.0",
        "HEALTHY: moved: 1 right",
        "  proof: moved",
        "  next:  python moved/repro.py",
    ]
    done = ran("--json", "-", ".")
    assert done.exit_code == 0, done.output
    diagnosis = read_document(json.loads(done.stdout), Diagnosis)
    assert diagnosis.verdict == "healthy"
    assert [run.state for run in diagnosis.findings[0].proof_runs] == ["right"]
    for words, said in (
        (("moved", "--deep"), "moved holds proofs, and got --deep too"),
        (("moved", "--python", "none"), "--python none: there is no such program"),
    ):
        done = ran(*words)
        assert done.exit_code == 2 and said in done.stderr


@pytest.mark.heavy
def test_a_diagnosis_says_with_which_versions_the_fault_is_there(tmp_path: Path) -> None:
    def relu(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)

    off = made_program(tmp_path / "off", f'TORCH_COMPILE_DISABLE=1 exec {sys.executable} "$@"')
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        made = graphprobe.diagnose(relu, torch.linspace(-1, 1, 16), out=tmp_path / "out", pythons=[sys.executable, off])
    assert made.verdict == "fault"
    assert [run.state for run in made.findings[0].proof_runs] == ["wrong", "wrong", "right"]
    assert isinstance(made.findings[0].proof_runs[0], ProofRun)
    assert re.search(r"versions: +wrong with torch", str(made))
