"""The matrix of versions: what was not run is never told as run, and what was stopped goes on."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, module_at


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return module_at("scripts", "matrix.py")


def outcome(matrix: Any, *, done: bool = True, **checks: str) -> Any:
    return matrix.Outcome(
        "2.15.0+cu132", "abc", {name: matrix.Check(*why.split("|")) for name, why in checks.items()}, done
    )


def test_what_was_not_run_is_told(matrix: Any, tmp_path: Path) -> None:
    outcome(matrix, a="passed", b="failed|no `name`", c="skipped|no GPU").write(tmp_path / "2.15.0" / "ir.json")
    outcome(matrix, done=False, a="passed").write(tmp_path / "2.15.0" / "engine.json")
    shown = matrix.read_all(tmp_path)
    lines = {line.split(" | ")[0]: line.split(" | ")[1:] for line in matrix.page(shown).splitlines()}
    before = ["not run"] * (len(matrix.VERSIONS) - 1)
    assert lines["| evaluation of Inductor's IR"] == [
        *["not run"] * (len(matrix.VERSIONS) - 1),
        "1 passed, 1 skipped, 1 failed |",
    ]
    assert lines["| `tests/engine`"] == [*before, "1 passed, the rest not run |"]
    assert lines["| build of torch"] == [*before, "2.15.0+cu132 |"]
    assert "- ir, failed: `b`: `no 'name'`" in lines and "- ir, skipped, 1: `no GPU`" in lines
    rows = matrix.summary(shown).splitlines()
    assert rows[2] == "| 2.11.0 | not run | not run | not run | not run |"
    assert rows[-1] == "| 2.15.0 | not run | 1 passed, 1 skipped, 1 failed | not run | 1 passed, the rest not run |"


def test_a_stage_that_is_done_is_not_run_again(matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def stage(place: Any) -> tuple[Any, bool]:
        runs.append("run")
        return {"a": matrix.Check("passed")}, len(runs) > 1

    monkeypatch.setitem(matrix.STAGES, "ir", stage)
    monkeypatch.setattr(matrix.Place, "run", lambda *_: subprocess.CompletedProcess("", 0, "2.15.0\n"))
    place = matrix.Place(Path(sys.executable), tmp_path, 60)
    for again, count in ((False, 1), (False, 2), (False, 2), (True, 3)):
        assert matrix.run_stage("ir", "2.15.0", place, again=again).torch == "2.15.0"
        assert len(runs) == count


@pytest.mark.slow
def test_what_failed_is_run_again(matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "import pathlib\n"
        "LOG = pathlib.Path(__file__).with_name('log')\n"
        "def test_a():\n    with LOG.open('a') as f: f.write('a')\n"
        "def test_b():\n    with LOG.open('a') as f: f.write('b')\n    assert LOG.read_text().count('b') == 2\n"
    )
    monkeypatch.setitem(matrix.STAGES, "ir", matrix.tests("ir", str(file)))
    commits = iter(["1234567", "89abcde", "89abcde"])
    monkeypatch.setattr(matrix, "commit", lambda: next(commits))
    place = matrix.Place(Path(sys.executable), tmp_path, 60)
    assert len(matrix.run_stage("ir", "2.15.0", place, again=False).having("failed")) == 1
    for _ in range(2):  # the second time nothing is left to repeat
        outcome = matrix.run_stage("ir", "2.15.0", place, again=False, failed=True)
        assert len(outcome.having("passed")) == 2 and outcome.commit == "1234567, 89abcde"
    assert (tmp_path / "log").read_text() == "abb"


@pytest.mark.heavy
def test_tests_that_were_stopped_go_on(matrix: Any, tmp_path: Path) -> None:
    """One ends its process, one takes too long the first time; all outcomes are there in the end, each run once."""
    file = tmp_path / "test_some.py"
    file.write_text(
        "import os, pathlib, time, pytest\n"
        "LOG = pathlib.Path(__file__).with_name('log')\n"
        "@pytest.fixture(autouse=True)\n"
        "def log(request):\n    with LOG.open('a') as f: f.write(request.node.name[-1])\n"
        "def test_a(): pass\n"
        "def test_b(): os._exit(3)\n"
        "def test_c():\n    if LOG.read_text().count('c') == 1: time.sleep(60)\n"
        "def test_d(): assert 1 == 2\n"
        "def test_e(): pytest.skip('not here')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n heavy\n cuda\n")
    stage = matrix.tests("some", str(file), f"--rootdir={tmp_path}", "-c", str(tmp_path / "pytest.ini"))
    checks, done = stage(matrix.Place(Path(sys.executable), tmp_path, 12))
    assert not done and {name[-1]: check.outcome for name, check in checks.items()} == {"a": "passed", "b": "failed"}
    checks, done = stage(matrix.Place(Path(sys.executable), tmp_path, 120))
    assert done and {name[-1]: (check.outcome, check.why) for name, check in checks.items()} == {
        "a": ("passed", ""),
        "b": ("failed", "the process ended with code 3"),
        "c": ("passed", ""),
        "d": ("failed", "assert 1 == 2"),
        "e": ("skipped", "Skipped: not here"),
    }
    assert (tmp_path / "log").read_text() == "abccde"


def test_a_command_is_judged_by_its_code_and_by_what_it_says(matrix: Any) -> None:
    done = subprocess.CompletedProcess("", 1, "a\nthe reason\n")
    assert matrix.judged(done, 1, "a").outcome == "passed"
    assert matrix.judged(done, 1, "b").why == "it does not say 'b'"
    assert matrix.judged(done, 0, "a").why == "exit code 1, not 0: the reason"


def test_versions_and_stages(matrix: Any) -> None:
    given = matrix.parsed(["2.11", "2.15.0", "2.13", "2.13-py3.13", "--stages", "ir,names"])
    assert given.versions == ["2.11.0", "2.15.0", "2.13.0", "2.13.0-py3.13"] and given.stages == ["ir", "names"]
    assert matrix.in_title("2.13.0-py3.13") == "2.13.0, Python 3.13"
    assert matrix.parsed([]).versions == list(matrix.VERSIONS)
    for wrong in (["2.9"], ["2.13-py3.9"], ["--stages", "no"]):
        with pytest.raises(SystemExit):
            matrix.parsed(wrong)


def test_the_pages_have_the_marks(matrix: Any) -> None:
    for file in (matrix.PAGE, matrix.README):
        assert "PART" in matrix.replaced(file.read_text("utf-8"), "PART")
    assert matrix.replaced(f"a {matrix.BEGIN} old {matrix.END} b", "new") == f"a {matrix.BEGIN}\nnew\n{matrix.END} b"
    with pytest.raises(ValueError, match="not both there"):
        matrix.replaced("no marks", "new")


def test_only_the_runtime_is_asked_for(matrix: Any) -> None:
    for requirement, asked in (
        ('cuda-toolkit[cublas,cudart,nvtx]==13.0.2; platform_system == "Linux"', "cuda-toolkit[cudart]==13.0.2"),
        ("nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'", "nvidia-cuda-runtime-cu12==12.8.90"),
        ("numpy>=2", None),
    ):
        metadata = f"Metadata-Version: 2.1\nName: torch\nRequires-Dist: filelock\nRequires-Dist: {requirement}\n"
        assert matrix.matrix_env.runtime_requirement(metadata) == asked


def test_what_serves_a_gpu_alone_is_not_required(matrix: Any) -> None:
    kept = "Metadata-Version: 2.1\nRequires-Dist: sympy>=1.13\n"
    gone = "Requires-Dist: nvidia-nccl-cu13\nRequires-Dist: cuda-toolkit[cublas]==13\nRequires-Dist: triton==3.7\n"
    assert matrix.matrix_env.without_devices(kept + gone) == kept


def test_a_python_is_found_by_its_version(matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pyenv puts on the path for a version that is not chosen only complains."""
    shim, own = tmp_path / "python3.99", tmp_path / "versions" / "3.99.1" / "bin" / "python3.99"
    own.parent.mkdir(parents=True)
    for file, does in ((shim, "exit 127"), (own, "echo Python 3.99.1")):
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert matrix.matrix_env.interpreter("3.99") == own
    with pytest.raises(FileNotFoundError, match=r"there is no Python 3\.98"):
        matrix.matrix_env.interpreter("3.98")


def test_a_library_with_stubs_loads(matrix: Any, tmp_path: Path) -> None:
    """A library that needs another, with symbols that have a version and without: with a stub it loads."""
    env, lib = matrix.matrix_env, tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    gone = tmp_path / "libgone.so.1"
    env.write_stub(gone, {"GONE_1": {"versioned"}, "": {"plain"}})
    source = tmp_path / "user.c"
    source.write_text("int versioned(void); int plain(void);\nint both(void) { return versioned() + plain(); }\n")
    user = lib / "libuser.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-o", user, source, gone], check=True)
    gone.unlink()
    load = f"import ctypes, os; print(ctypes.CDLL({str(user)!r}, os.RTLD_NOW).both())"
    assert subprocess.run([sys.executable, "-c", load], capture_output=True, check=False).returncode == 1
    assert env.make_stubs(tmp_path) == ["libgone.so.1"]
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=False)
    assert done.stdout == f"{2 * env.NO_DEVICE}\n", done.stderr


def test_this_environment_serves_for_its_own_torch(matrix: Any, tmp_path: Path) -> None:
    own = matrix.matrix_env.importlib.metadata.version("torch").partition("+")[0]
    assert matrix.matrix_env.environment(tmp_path / "env", own) == Path(sys.executable)
    assert not (tmp_path / "env").exists()
