"""`pytest --graphprobe` in a small project of its own, and `assert_compiles_like_eager`."""

import contextlib
import inspect
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import ROOT, Finished
from graphprobe.diagnose.ladder import Ladder, RungSeen
from graphprobe.judge import Difference
from graphprobe.testing.assertion import NEW_FOLDER, CompiledDiffers
from graphprobe.testing.failing import folder_of, without_trace

Python = Callable[..., Finished]
Quick = tuple[Path, Finished]
FAULTY = "graphprobe:relu_accuracy_error_TESTING_ONLY"

QUICK = f'''
import os

import pytest
import torch


def net(x):
    return torch.relu(x) * 2


@torch.compile(backend="eager")
def doubled(x):
    return x * 2


@pytest.fixture
def x():
    return torch.arange(-3.0, 3.0)


def test_wrong(x):
    """Its compiled code is wrong."""
    torch.testing.assert_close(torch.compile(net, backend="{FAULTY}")(x), net(x))


def test_right(x):
    torch.testing.assert_close(torch.compile(net, backend="eager")(x), net(x))


def test_compiles_nothing(x):
    assert net(x).sum() == 7


def test_wrong_itself(x):
    """It compiles, and what is wrong is the test."""
    assert doubled(x).shape == (7,)


def test_forks(x):
    """A child that it forks calls something compiled; it fails by itself."""
    child = os.fork()
    if child == 0:
        doubled(x)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 1
'''

PAGE = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")


def pytest_in(folder: Path, run_warm: Python, program: str, *options: str) -> Finished:
    (folder / "test_net.py").write_text(program)
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {"CI": "", "BUILD_NUMBER": "", "COLUMNS": "80"}  # what pytest prints depends on them
    return run_warm("-m", "pytest", "-p", "graphprobe_pytest", "-p", "no:cacheprovider", *options, cwd=folder, env=env)


def told(done: Finished) -> dict[str, str]:
    _, mark, section = done.out.rpartition("= graphprobe =")
    assert mark, done.out + done.err
    found = re.findall(r"^(FAULT|UNDECIDED|HEALTHY) test_net\.py::(\S+): (.*)$", section, re.MULTILINE)
    return {test: f"{verdict} {text}" for verdict, test, text in found}


@pytest.fixture(scope="module")
def quick(run_warm: Python, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    folder = tmp_path_factory.mktemp("quick")
    return folder, pytest_in(folder, run_warm, QUICK, "--graphprobe", "-n", "0")


@pytest.mark.slow
def test_failing_tests_are_told_apart(quick: Quick) -> None:
    folder, done = quick
    assert done.code == 1 and "4 failed, 1 passed" in done.out
    found = told(done)
    assert set(found) == {"test_wrong", "test_wrong_itself"}
    assert found["test_wrong"].startswith("FAULT net (test_net.py:8): Compiled, torch.relu gives wrong numbers at ")
    assert " at test_net.py:9. Stage: " in found["test_wrong"]
    healthy = "HEALTHY its compiled calls are healthy (doubled (test_net.py:12)): it"
    assert found["test_wrong_itself"].startswith(healthy)
    names = {f"test_net.py-{test}" for test in found}
    assert {path.name for path in (folder / ".graphprobe").iterdir()} == names
    document = json.loads((folder / ".graphprobe/test_net.py-test_wrong_itself/diagnosis.json").read_text())
    assert document["target"] == "test_net.py::test_wrong_itself"
    assert [d["verdict"] for d in document["diagnoses"]] == ["healthy"]
    assert done.out.count("diagnosing the compiled calls of") == 2


@pytest.mark.slow
def test_the_proof_fails_alone(quick: Quick, run_warm: Python, tmp_path: Path) -> None:
    folder, done = quick
    shown = done.out.rpartition("= graphprobe =")[2]
    (repro,) = re.findall(r"^  python (\S+)$", shown, re.MULTILINE)
    lines = done.out.rstrip().splitlines()
    assert repro in lines[-2], "the last line but the count of pytest"
    assert Path(repro).is_relative_to(".graphprobe/test_net.py-test_wrong")
    alone = run_warm(str(folder / repro), cwd=tmp_path)
    assert alone.code == 1 and ": expected " in alone.out, alone.err


@pytest.mark.heavy
def test_workers_hand_over_what_they_found(quick: Quick, run_warm: Python, tmp_path: Path) -> None:
    done = pytest_in(tmp_path, run_warm, QUICK, "--graphprobe", "-n", "2", "--graphprobe-out", "found")
    assert done.code == 1 and "4 failed, 1 passed" in done.out

    def verdicts(finished: Finished) -> dict[str, str]:
        return {test: text.split()[0] for test, text in told(finished).items()}

    assert verdicts(done) == verdicts(quick[1]) == {"test_wrong": "FAULT", "test_wrong_itself": "HEALTHY"}
    assert len(list((tmp_path / "found").glob("test_net.py-test_wrong/*/*/repro.py"))) == 1


@pytest.mark.heavy
def test_the_page_prints_what_it_shows(run_warm: Python, tmp_path: Path) -> None:
    """A fault of Inductor gives a dossier whose script fails alone, its healthy twin nothing."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    command, _, expected = shown.removeprefix("$ pytest ").partition("\n")
    done = pytest_in(tmp_path, run_warm, program, "-n", "0", *command.split())
    pattern = re.escape(expected.strip()).replace("…\\\n", ".*\n", 1).replace("…", r"[^\n]*")
    assert done.code == 1 and re.fullmatch(pattern, done.out.strip(), re.DOTALL), done.out
    (repro,) = (tmp_path / ".graphprobe").glob("test_net.py-test_by_hand/0-Net/*/repro.py")
    alone = run_warm(str(repro), cwd=tmp_path)
    assert alone.code == 1 and ": expected " in alone.out
    again = pytest_in(tmp_path, run_warm, program, "--graphprobe", "-n", "0", "-k", "test_compiles")
    assert again.code == 0 and "= graphprobe =" not in again.out


def test_the_page_names_every_option() -> None:
    named = set(re.findall(r"`(--graphprobe[a-z-]*)", PAGE))
    assert named == {"--graphprobe", "--graphprobe-out", "--graphprobe-budget", "--graphprobe-exact"}
    source = (ROOT / "src/graphprobe_pytest/__init__.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"(--graphprobe[a-z-]*)"', source)) == named
    arguments = inspect.signature(graphprobe.assert_compiles_like_eager).parameters.values()
    rows = "\n".join(re.findall(r"^\| `.*?\|", PAGE, re.MULTILINE))
    told = {f"{name}={value}" for name, value in re.findall(r"`(\w+)=([^`]+)`", rows)}
    assert told == {f"{a.name}={a.default!r}".replace("'", '"') for a in arguments if a.kind is a.KEYWORD_ONLY}


@pytest.mark.heavy
def test_a_diagnosis_in_the_error_is_not_made_again(run_warm: Python, tmp_path: Path) -> None:
    program = f'''
import torch
import graphprobe


def net(x):
    return torch.relu(x) * 2


def test_it():
    graphprobe.assert_compiles_like_eager(net, torch.ones(3), backend="{FAULTY}")
'''
    done = pytest_in(tmp_path, run_warm, program, "--graphprobe", "-n", "0")
    assert done.code == 1 and "diagnosing" not in done.out, done.out
    dossiers = [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob(".graphprobe/*/*")]
    assert dossiers == [".graphprobe/test_net.py-test_it/backend-torch.relu"], "those of the assertion, once"
    assert told(done)["test_it"].startswith("FAULT net (test_net.py:6): Compiled, torch.relu gives wrong numbers")
    assert "E           operation: torch.relu, node relu" in done.out
    assert "assertion.py" not in done.out, "the traceback ends in the test"


EXACT = """
import torch
import graphprobe


def net(x):
    return torch.relu(x) * 2


def off(gm, inputs):
    return lambda *args: [torch.nextafter(value, value + 1) for value in gm.forward(*args)]


def test_bits():
    graphprobe.assert_compiles_like_eager(net, torch.ones(3), backend=off)


def test_equal():
    graphprobe.assert_compiles_like_eager(net, torch.ones(3), backend="eager")
"""


INTERRUPTED = """
import torch
from pathlib import Path

def off(gm, inputs):
    return lambda *args: [out + 1 for out in gm(*args)]

def again(call):
    if Path("seen").exists():
        call()
        raise KeyboardInterrupt
    Path("seen").touch()
    assert torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2)) is None

def test_before():
    again(lambda: None)

def test_behind_a_fault():
    again(lambda: torch.compile(lambda x: x.sin(), backend=off)(torch.ones(2)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "said"), [("before", "UNDECIDED its diagnosis was interrupted"), ("behind_a_fault", "FAULT ")]
)
def test_a_diagnosis_that_is_interrupted_says_what_it_knows(
    test: str, said: str, run_warm: Python, tmp_path: Path
) -> None:
    done = pytest_in(tmp_path, run_warm, INTERRUPTED, "--graphprobe", "-n", "0", "-k", test)
    assert done.code == 2 and told(done)[f"test_{test}"].startswith(said), done.out


@pytest.mark.slow
def test_exact_is_for_every_assertion_of_the_session(run_warm: Python, tmp_path: Path) -> None:
    for options, code, said in ((), 0, "2 passed"), (["--graphprobe-exact"], 1, "1 failed, 1 passed"):
        done = pytest_in(tmp_path, run_warm, EXACT, "-n", "0", *options)
        assert done.code == code and said in done.out, done.out
        assert ("gives other last bits" in done.out) == bool(code)


@pytest.mark.slow
def test_off_it_imports_neither_torch_nor_graphprobe(run_python: Python, tmp_path: Path) -> None:
    """As it is installed, by the entry point alone; on, graphprobe is imported, and torch is not before a test does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ((name, module),) = project["project"]["entry-points"]["pytest11"].items()
    assert name == module, "so that `-p` and the entry point are one and the same plugin"
    assert f"src/{module}" in project["tool"]["scikit-build"]["wheel"]["packages"]
    installed = tmp_path / "site" / "made_up-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    assert False\n")
    program = """
import sys, pytest
code = pytest.main(["-p", "no:cacheprovider", "-n", "0", *sys.argv[1:], "test_nothing.py"])
names = {"torch", "graphprobe"} & sys.modules.keys()
print("imported:", sorted(names))
sys.exit(code)
"""
    env = {"PYTHONPATH": f"{installed.parent}{os.pathsep}{ROOT / 'src'}"}
    for options, imported in ((), "[]"), (["--graphprobe"], "['graphprobe']"):
        done = run_python("-c", program, *options, cwd=tmp_path, env=env)
        assert done.code == 1 and done.out.endswith(f"imported: {imported}\n"), done.out + done.err
        assert "= graphprobe =" not in done.out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("budget", "0", "--graphprobe-budget 0"), ("out", "test_net.py", "it is no folder")],
)
def test_wrong_options(option: str, value: str, said: str, run_warm: Python, tmp_path: Path) -> None:
    done = pytest_in(tmp_path, run_warm, "", "--graphprobe", f"--graphprobe-{option}", value)
    assert done.code == 4 and said in done.err, done.err


def test_the_trace_log_of_torch_is_out_of_the_failure_and_nothing_else_is() -> None:
    trace, own = "DEBUG    torch.__trace:utils.py:2350 \n", "WARNING  net:net.py:3 large\n"
    shown = [("Captured stdout call", trace), ("Captured log call", trace + own + trace), ("Captured log setup", trace)]
    assert without_trace(shown) == [("Captured stdout call", trace), ("Captured log call", own)]


@pytest.mark.parametrize("differs", [False, True])
def test_dossiers_of_a_session_are_in_one_folder(
    differs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Path] = []

    def diagnose(fn: Any, *, out: Path, **rest: Any) -> graphprobe.Diagnosis:
        asked.append(out)
        (out / "0-dossier" if differs else out).mkdir(parents=True)
        return graphprobe.Diagnosis(verdict="fault" if differs else "healthy")

    monkeypatch.setattr("graphprobe.diagnose.api.diagnose", diagnose)
    token = NEW_FOLDER.set(lambda: folder_of(tmp_path, "test_net.py::test_it"))
    try:
        for _ in range(2):
            with pytest.raises(CompiledDiffers) if differs else contextlib.nullcontext():
                graphprobe.assert_compiles_like_eager(torch.relu, torch.ones(3))
    finally:
        NEW_FOLDER.reset(token)
    names = ["test_net.py-test_it", "test_net.py-test_it-2" if differs else "test_net.py-test_it"]
    assert [path.name for path in asked] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == (names if differs else [])


def test_each_test_gets_a_folder_that_is_new(tmp_path: Path) -> None:
    first = folder_of(tmp_path, "tests/a b.py::Case::test_it[x/y-2.5]")
    assert first == tmp_path / "tests-a-b.py-Case-test_it[x-y-2.5]"
    first.mkdir()
    assert folder_of(tmp_path, "tests/a b.py::Case::test_it[x/y-2.5]").name == first.name + "-2"
    long = [folder_of(tmp_path, "t.py::test[" + "ü" * 200 + end) for end in "12"]
    assert long[0] != long[1] and all(len(path.name.encode()) < 140 for path in long)
    assert folder_of(tmp_path, "../..").parent == tmp_path


def relu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


Operands = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def operands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operands:
    monkeypatch.chdir(tmp_path)
    return torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)


def test_what_computes_the_same_passes_and_leaves_nothing(operands: Operands, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    assert graphprobe.assert_compiles_like_eager(relu, *operands, backend="aot_eager") is None
    compiled = torch.compile(relu, backend="eager")
    assert graphprobe.assert_compiles_like_eager(compiled, *operands, backend="eager") is None
    assert operands[1].grad is None and torch.equal(state, torch.get_rng_state())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_differs_says_where(operands: Operands, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        graphprobe.assert_compiles_like_eager(relu, *operands, backend=FAULTY, out=tmp_path / "out")
    assert isinstance(caught.value, CompiledDiffers)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"FAULT: compiled with {FAULTY}, relu (")
    assert first.endswith("does not compute what it computes uncompiled")
    text = "\n".join(rest)
    assert "torch.relu gives wrong numbers. Stage: " in text and "rms of z" not in text
    line = relu.__code__.co_firstlineno + 1
    assert re.search(rf"line: \S+test_pytest_plugin\.py:{line}$", text, re.MULTILINE)
    (finding,) = caught.value.diagnosis.findings
    assert finding.dossier is not None and Path(finding.dossier).is_relative_to(tmp_path / "out")
    assert f"proof: {finding.dossier}" in text and (Path(finding.dossier) / "repro.py").is_file()


def test_what_cannot_be_told_does_not_pass(operands: Operands) -> None:
    def wrong_arguments(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3)

    with pytest.raises(CompiledDiffers, match="UNDECIDED: whether .*wrong_arguments .*did not pass") as caught:
        graphprobe.assert_compiles_like_eager(wrong_arguments, operands[0], backend="eager")
    assert "uncompiled and compiled it raises RuntimeError: " in str(caught.value)
    assert caught.value.diagnosis.verdict == "undecided"


@pytest.mark.slow
def test_what_differed_once_is_not_called_healthy(operands: Operands, monkeypatch: pytest.MonkeyPatch) -> None:
    held, seen = Ladder.held, []

    def differs_first(self: Ladder, report: Any) -> RungSeen:
        seen.append(self)
        off = Difference("wrong_value", 0, "outputs[0]", "off by one")
        return RungSeen([off], report=report) if len(seen) == 1 else held(self, report)

    monkeypatch.setattr(Ladder, "held", differs_first)
    with pytest.raises(CompiledDiffers, match="off by one") as caught:
        graphprobe.assert_compiles_like_eager(relu, *operands, backend="eager", grad=False)
    assert caught.value.diagnosis.verdict != "healthy"
    assert all(finding.proof is None for finding in caught.value.diagnosis.findings)
