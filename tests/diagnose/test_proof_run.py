"""A proof under other pythons: what counts as the fault there, and which pythons are refused."""

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphprobe.cli.main import main
from graphprobe.diagnose.dossier import proof_run
from graphprobe.diagnose.dossier.proof_run import proof_under, torch_of
from graphprobe.errors import UsageError
from graphprobe.findings import Finding, finding_json

COMPILED_ONLY = "import os, sys\nprint('off by 1')\nsys.exit('TORCH_COMPILE_DISABLE' not in os.environ)\n"
"""A proof that fails where `torch.compile` compiles."""


def made_proof(folder: Path, script: str = COMPILED_ONLY) -> Finding:
    folder.mkdir()
    finding = Finding(kind="wrong_value", stage="codegen", dossier=str(folder), proof="piece")
    (folder / "repro.py").write_text(script)
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


def test_wrong_right_and_neither(tmp_path: Path) -> None:
    repro = tmp_path / "proof" / "repro.py"
    made_proof(repro.parent)
    for version, code, expected in (
        ("2.90.0", 0, ("right", "")),
        ("2.91.0", 125, ("unsure", "a b")),
        ("2.92.0", 1, ("unsure", "it fails uncompiled, too: a b")),
        ("2.93.0", None, ("wrong", "")),
    ):
        python = made_python(tmp_path / version, version, code)
        assert (torch_of(python), proof_under(python, repro, "codegen")) == (version, expected)


@pytest.mark.parametrize(
    ("script", "limit_s", "reason"),
    [
        ("raise ImportError('no such operator')\n", 60, "it fails uncompiled, too: ImportError: no such operator"),
        ("import time\ntime.sleep(60)\n", 0.5, "it did not end within 0.5 s"),
    ],
)
def test_a_script_that_shows_no_fault(script: str, limit_s: float, reason: str, tmp_path: Path) -> None:
    made_proof(tmp_path / "proof", script)
    found = proof_under(sys.executable, tmp_path / "proof" / "repro.py", "codegen", limit_s=limit_s)
    assert found == ("unsure", reason)


def test_what_has_no_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_run, "START_S", 0.5)
    for path, why in (
        (str(tmp_path / "none"), "it does not start: "),
        (made_program(tmp_path / "silent", "exit 3"), "it cannot import torch: "),
        (made_program(tmp_path / "broken", "no script", head=""), "it does not start: "),
        (made_program(tmp_path / "slow", "exec sleep 60"), "it does not start: "),
    ):
        with pytest.raises(UsageError, match=f"--python {path}: {why}"):
            torch_of(path)


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
    (tmp_path / "env" / "bin").mkdir(parents=True)
    made_python(tmp_path / "env" / "bin" / "python", "2.91.0", 125)
    done = ran("moved", "--python", "env")
    assert done.exit_code == 125 and ", unsure with torch 2.91.0 (a b)\n" in done.stdout, done.output
    for words, said in (
        (("moved", "--deep"), "moved holds proofs, and got --deep too"),
        (("moved", "--json"), "moved holds proofs, and got --json too"),
        (("moved", "--python", "none"), "--python none: it does not start"),
        (("--python", right, "train.py"), "--python goes with a folder of proofs"),
    ):
        done = ran(*words)
        assert done.exit_code == 2 and said in done.stderr
