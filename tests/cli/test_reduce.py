from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conftest import ROOT
from graphprobe.cli.main import main

MAKE = """
import sys
sys.path.insert(0, {diagnose!r})
from pathlib import Path
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from reduction.reduction_cases import case_of, mlp
fn, args = mlp(depth=4, at=2)
case = case_of(fn, args, backend="eager")
write_dossier(Path("case"), case, finding_of(case, ""), versions={{}})
"""
HAS_RELU = "grep -q relu graph.txt && exit 3 || exit 0"


@pytest.fixture(scope="module")
def dossier(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("reduce")
    done = run_python("-c", MAKE.format(diagnose=str(ROOT / "tests" / "diagnose")), cwd=folder)
    assert done.code == 0, done.err
    return folder / "case"


def call(*args: str) -> Result:
    result = CliRunner().invoke(main, ["reduce", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_dossier_is_reduced(dossier: Path, tmp_path: Path) -> None:
    out, document = tmp_path / "out", tmp_path / "result.json"
    done = call(str(dossier), "-o", str(out), "--check", HAS_RELU, "--json", str(document))
    assert done.exit_code == 1, done.output
    assert "8 calls -> 1" in done.output
    assert "torch.nn.functional.relu" in done.output
    assert (out / "repro" / "repro.py").is_file()
    plain = json.loads(document.read_text())
    assert (plain["failed"], plain["minimal"], plain["before"], plain["after"]) == (True, True, 8, 1)
    again = call(str(dossier), "-o", str(out), "--check", HAS_RELU, "--resume")
    assert again.exit_code == 1
    assert "(0 candidates" in again.output
    here = call(str(out), "--check", HAS_RELU, "--resume")
    assert here.exit_code == 1
    assert "(0 candidates" in here.output


def test_a_case_that_does_not_fail(dossier: Path, tmp_path: Path) -> None:
    done = call(str(dossier), "-o", str(tmp_path / "out"), "--check", "exit 0")
    assert done.exit_code == 0
    assert "does not fail" in done.output


def test_a_case_that_cannot_be_judged(dossier: Path, tmp_path: Path) -> None:
    done = call(str(dossier), "-o", str(tmp_path / "out"), "--check", "exit 125")
    assert done.exit_code == 125


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["missing"], "there is no"),
        (["{empty}"], "holds no repro.py"),
        (["{script}"], "is a script"),
        (["{text}"], "is no case"),
        (["{case}", "--timeout", "0"], "--timeout 0"),
        (["{case}", "--fail-regex", "("], "no regular expression"),
        (["{case}", "--json", "nowhere/file.json"], "there is no folder"),
        (["{case}", "--import", "no_such_module_here"], "--import no_such_module_here"),
        (["{case}", "-o", "{full}", "--check", "exit 0"], "holds something"),
        (["{case}", "-o", "{empty}", "--resume", "--check", "exit 0"], "cannot be read"),
        (["{case}", "-o", "{new}", "--hint", "nothing", "--check", "exit 0"], "no call named nothing"),
    ],
)
def test_wrong_use(args: list[str], words: str, dossier: Path, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("empty", "full", "new")}
    places |= {"script": tmp_path / "script.py", "text": tmp_path / "notes.txt", "case": dossier}
    places["empty"].mkdir()
    places["full"].mkdir()
    for file in (places["full"] / "file", places["text"]):
        file.write_text("here")
    places["script"].write_text("import torch\n")
    done = call(*(arg.format(**places) for arg in args))
    assert done.exit_code == 2, done.output
    assert words in done.output
    assert os.listdir(places["empty"]) == []
