"""`--only-function` of `graphprobe diagnose` and `reduce`: what is left out is not blamed, nor called right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphprobe.cli.main import main

BACKEND = "relu_accuracy_error_TESTING_ONLY"
"""Adds one to every relu: `bad` is wrong when it is compiled, `good` never is."""

PROGRAM = f"""\
import torch


def good(x):
    return x.sin()


def bad(x):
    return torch.relu(x)


def whole(x):
    return good(x) + bad(x)


def make():
    return whole, (torch.linspace(-1, 1, 8),)


if __name__ == "__main__":
    fn, args = make()
    print("sum", torch.compile(fn, backend={BACKEND!r})(*args).sum().item())
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command beside `program.py`, in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*args: str) -> Result:
        for name in ("argv", "path"):
            monkeypatch.setattr(sys, name, list(getattr(sys, name)))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.delitem(sys.modules, "program", raising=False)
        done = CliRunner().invoke(main, args)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    return run


DIAGNOSE = ("diagnose", "--backend", BACKEND, "--no-grad", "--json", "result.json")

FILTERS = [
    ("bad", 1, "FAULT", "compiled: 1 function: bad (program.py:8)"),
    ("good", 0, "HEALTHY", "bad (program.py:8)"),
    ("nobody", 2, "UNDECIDED", "'nobody' matched no function"),
]


@pytest.mark.parametrize(("name", "code", "verdict", "said"), FILTERS)
def test_diagnose(call, name: str, code: int, verdict: str, said: str) -> None:
    done = call(*DIAGNOSE, "--only-function", name, "program.py:make")
    assert done.exit_code == code, done.output
    assert any(line.startswith(f"{verdict}: program.py:make") for line in done.stdout.splitlines()[-5:]), done.stdout
    assert said in done.stderr
    findings = json.loads(Path("result.json").read_text())["findings"]
    assert [finding["source"].rpartition("/")[2] for finding in findings] == ["program.py:9"] * (name == "bad")


@pytest.mark.heavy
def test_without_it_the_whole_is_diagnosed(call) -> None:
    """The control: with nothing left out the fault is there, in the graph of the outer function."""
    done = call(*DIAGNOSE, "program.py:make")
    assert done.exit_code == 1
    assert "only_function" not in done.stderr


def test_diagnose_of_a_script_by_the_environment(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHPROBE_ONLY_FUNCTION", "good")
    done = call("diagnose", "program.py")
    assert (done.exit_code, "HEALTHY: program.py: 1 healthy" in done.stdout) == (0, True), done.output
    assert "bad (program.py:8)" in done.stderr.partition("left uncompiled")[2]


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        pytest.param("bad", 1, "REDUCED: 1 call -> 1", marks=pytest.mark.heavy),
        ("good", 0, "NOT REDUCED: program.py: nothing fails: 1 graphs"),
    ],
)
def test_reduce(call, name: str, code: int, said: str) -> None:
    done = call("reduce", "-o", "small", "--only-function", name, "program.py")
    assert done.exit_code == code, done.output
    assert any(line.startswith(said) for line in done.stdout.splitlines()[-5:]), done.stdout
    assert Path("small/repro/repro.py").is_file() == (name == "bad")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("diagnose", "--only-function", "", "program.py:make"), "empty pattern"),
        (("diagnose", "--only-function", "bad", "--only-function", " ", "program.py"), "empty pattern"),
        (("reduce", "--only-function", "", "program.py"), "empty pattern"),
        (("reduce", "--only-function", "bad", "dossier"), "for a script"),
        (("reduce", "--only-function", "nobody", "program.py"), "compiled nothing"),
    ],
)
def test_wrong_use(call, args: tuple[str, ...], words: str) -> None:
    Path("dossier").mkdir()
    done = call(*args)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
