from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conftest import ROOT, Finished
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
def dossier(tmp_path_factory, run_warm):
    folder = tmp_path_factory.mktemp("reduce")
    done = run_warm("-c", MAKE.format(diagnose=str(ROOT / "tests" / "diagnose")), cwd=folder)
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
    assert done.stdout.splitlines()[-2].startswith("UNDECIDED: whether the case fails could not be told")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["missing"], "no script and no case at 'missing'"),
        (["{empty}"], "holds no repro.py"),
        (["-o", "{full}", "{script}"], "holds something"),
        (["--after", "aot", "{case}"], "are for a script"),
        (["{case}", "extra"], "are for a script"),
        (["--level", "7", "{script}"], "'7' is not one of"),
        (["{text}"], "is no case"),
        (["{case}", "--timeout", "0"], "--timeout 0"),
        (["{case}", "--fail-regex", "("], "no regular expression"),
        (["{case}", "--json", "nowhere/file.json"], "there is no folder"),
        (["{case}", "--import", "no_such_module_here"], "--import no_such_module_here"),
        (["{case}", "-o", "{full}", "--check", "exit 0"], "holds something"),
        (["{case}", "-o", "{full}", "--resume", "--check", "exit 0"], "holds no reduction to go on with"),
        (["-o", "{full}", "--resume", "{script}"], "holds no reduction to go on with"),
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


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TORCHDYNAMO_REPRO_AFTER", "foo", "TORCHDYNAMO_REPRO_AFTER='foo': it takes dynamo or aot"),
        ("TORCHDYNAMO_REPRO_LEVEL", "3", "says nothing without TORCHDYNAMO_REPRO_AFTER"),
    ],
)
@pytest.mark.parametrize("command", ["reduce", "run"])
def test_wrong_variables(
    command: str, name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    (tmp_path / "script.py").write_text("open('ran', 'w')\n")
    done = CliRunner().invoke(main, [command, "script.py"])
    assert done.exit_code == 2
    assert words in done.output
    assert os.listdir(tmp_path) == ["script.py"]


SCRIPT = """
import sys
import torch

class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), Relu(), torch.nn.Linear(4, 4))
if "nothing" not in sys.argv:
    try:
        torch.compile(net, backend=sys.argv[1])(torch.ones(2, 4)).sum().backward()
    finally:
        print("tidied up")
print("the end of", *sys.argv[1:])
if "raise" in sys.argv:
    raise ValueError("the script's own")
"""


@pytest.fixture
def reduce_script(run_warm, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*args: str, command: str = "reduce", env: dict[str, str] | None = None) -> Finished:
        done: Finished = run_warm("-m", "graphprobe", command, *args, cwd=tmp_path, env=env)
        return done

    return run


@pytest.mark.heavy
def test_a_script_is_reduced(reduce_script, tmp_path: Path) -> None:
    backend = "relu_accuracy_error_TESTING_ONLY"
    done = reduce_script("-o", "small", "--json", "result.json", "script.py", backend, "--level", "9")
    assert done.code == 1, done.err
    assert "tidied up" in done.out
    assert "the end of" not in done.out + done.err  # no hours of training behind it
    assert "4 calls -> 1" in done.out
    assert json.loads((tmp_path / "result.json").read_text())["signature"] == "wrong_value"
    repro = (tmp_path / "small" / "repro" / "repro.py").read_text()
    assert backend in repro
    assert "torch.relu" in repro


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["eager"], 0, "nothing fails: 1 graphs"),
        (["eager", "raise"], 125, "the script ended with exit code 1"),
        (["nothing"], 2, "compiled nothing"),
    ],
)
def test_a_script_in_which_nothing_fails(words: list[str], code: int, said: str, reduce_script, tmp_path: Path) -> None:
    done = reduce_script("script.py", *words)
    assert done.code == code, done.err
    assert said in done.out + done.err
    assert ("nothing" in words) or f"the end of {' '.join(words)}" in done.out
    assert os.listdir(tmp_path) == ["script.py"]


@pytest.mark.heavy
def test_variables_in_a_run(reduce_script, tmp_path: Path) -> None:
    variables = {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCHDYNAMO_REPRO_LEVEL": "2"}
    done = reduce_script("--out", "runs", "script.py", "relu_compile_error_TESTING_ONLY", command="run", env=variables)
    assert done.code == 1
    assert "ReluCompileError" in done.err
    assert "graphprobe: REDUCED: 4 calls -> 1" in done.err
    assert done.out == "tidied up\n"
    (reduction,) = (tmp_path / "graphprobe-reduced").iterdir()
    assert (reduction / "repro" / "repro.py").is_file()
    assert sorted(os.listdir(tmp_path)) == ["graphprobe-reduced", "runs", "script.py"]
    assert len(os.listdir(tmp_path / "runs")) == 1  # the candidates were not observed
