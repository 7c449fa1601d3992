import json
import os
from pathlib import Path

import pytest

from cli.calling import call, with_variables
from conftest import ROOT, Finished

MAKE = """
import sys
sys.path.insert(0, {diagnose!r})
from pathlib import Path
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from reduction.reduction_cases import case_of, mlp
fn, args = mlp(depth=2, at=1)
case = case_of(fn, args, backend="eager")
write_dossier(Path("case"), case, finding_of(case, ""))
"""
HAS_RELU = "grep -q relu graph.txt && exit 3 || exit 0"


@pytest.fixture(scope="module")
def dossier(tmp_path_factory, run_warm):
    folder = tmp_path_factory.mktemp("reduce")
    done = run_warm("-c", MAKE.format(diagnose=str(ROOT / "tests" / "diagnose")), cwd=folder)
    assert done.code == 0, done.err
    return folder / "case"


@pytest.mark.slow
def test_a_dossier_is_reduced(dossier: Path, tmp_path: Path) -> None:
    out, document = tmp_path / "out", tmp_path / "result.json"
    done = call("reduce", dossier, "-o", out, "--check", HAS_RELU, "--json", document, code=1)
    assert "4 calls -> 1" in done.output
    assert "torch.nn.functional.relu" in done.output
    assert (out / "repro" / "repro.py").is_file()
    plain = json.loads(document.read_text())
    assert (plain["failed"], plain["minimal"], plain["before"], plain["after"]) == (True, True, 4, 1)
    again = call("reduce", dossier, "-o", out, "--check", HAS_RELU, "--resume", code=1)
    assert "(0 candidates" in again.output
    here = call("reduce", out, "--check", HAS_RELU, "--resume", code=1)
    assert "(0 candidates" in here.output


@pytest.mark.parametrize(
    ("code", "said"), [(0, "does not fail"), (125, "UNDECIDED: whether the case fails could not be told")]
)
def test_a_case_that_does_not_fail_or_cannot_be_judged(code: int, said: str, dossier: Path, tmp_path: Path) -> None:
    done = call("reduce", dossier, "-o", tmp_path / "out", "--check", f"exit {code}", code=code)
    assert said in " ".join(done.stdout.splitlines()[-2:])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--after", "aot", "{case}"], "are for a script"),
        (["{case}", "extra"], "are for a script"),
        (["{case}", "-o", "{full}", "--check", "exit 0"], "holds something"),
        (["{case}", "-o", "{full}", "--resume", "--check", "exit 0"], "holds no reduction to go on with"),
        (["{case}", "-o", "{new}", "--hint", "nothing", "--check", "exit 0"], "no call named nothing"),
    ],
)
def test_wrong_use(args: list[str], words: str, dossier: Path, tmp_path: Path) -> None:
    """Of a case; the rest is in tests/test_wrong_use.py."""
    (tmp_path / "file").write_text("here")
    done = call("reduce", *(arg.format(case=dossier, full=tmp_path, new=tmp_path / "new") for arg in args), code=2)
    assert words in done.output


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
        done: Finished = run_warm(*with_variables(env or {}, command, *args), cwd=tmp_path)
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
