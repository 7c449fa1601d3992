"""`graphprobe demo`: what it finds, what it says of what it did not find, and that it overwrites nothing."""

import json
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.calling import Python, call
from conftest import ROOT
from graphprobe.cli.commands import demo

FINDING = {"op": "aten.relu.default", "stage": "codegen", "module": "blocks.0.mlp"}
SHOWN = "print('FAULT: wrong_value'); raise SystemExit(1)"
GONE = "print('PASS')"


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The demo with results that are made up, in the place of those that it takes a minute to get."""
    monkeypatch.chdir(tmp_path)

    def run(
        *args: str, code: int | None = None, healthy: int = 0, finding: dict[str, Any] = FINDING, repro: str = SHOWN
    ) -> Result:
        def command(*words: str) -> int:
            print("$ graphprobe", *words)
            if words[0] == "report":
                Path(words[words.index("-o") + 1]).write_text("<!doctype html>")
                return 0
            if words[-1].endswith(":healthy"):
                return healthy
            proof = Path(words[words.index("--out") + 1]) / "proof"
            proof.mkdir(parents=True)
            (proof / "repro.py").write_text(repro)
            source = str(Path(words[-1].partition(":")[0]).absolute()) + ":27"
            made = {**finding, "dossier": str(proof.absolute()), "source": source}
            Path(words[words.index("--json") + 1]).write_text(json.dumps({"findings": [made]}))
            return 1

        monkeypatch.setattr(demo, "_graphprobe", command)
        return call("demo", *args, code=code)

    return run


def test_found_as_planted(quick: Callable[..., Result]) -> None:
    done = quick("--out", "there", code=0)
    assert "def faulty()" in Path("there/transformer.py").read_text()
    *_, verdict, where, proof, _, follow = done.stdout.splitlines()
    assert verdict.startswith("FOUND: the planted fault, as it was planted: aten.relu.default, codegen (")
    assert where.split(": ")[1].strip() == "there/transformer.py:27 in blocks.0.mlp"
    assert proof.endswith("python there/proofs/proof/repro.py")
    assert follow.endswith("graphprobe help diagnose")
    assert "exit code 1: the fault is there" in done.stdout and ":healthy" in done.stdout
    assert [path.name for path in Path().iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"finding": {**FINDING, "op": "aten.gelu.default"}}, "was not found"),
        ({"finding": {**FINDING, "stage": "lowering"}}, "aten.relu.default in codegen, was not found"),
        ({"healthy": 1}, "the program without the fault was not found healthy"),
        ({"healthy": 125}, "the program without the fault was not found healthy"),
        ({"repro": GONE}, "its proof does not show it"),
    ],
)
def test_anything_else_ends_with_1(quick: Callable[..., Result], made: dict[str, Any], said: str) -> None:
    done = quick(code=1, **made)
    (verdict,) = [line for line in done.stdout.splitlines()[-5:] if line.startswith("NOT FOUND AS PLANTED: ")]
    assert said in verdict


def test_the_control_can_be_left_out(quick: Callable[..., Result]) -> None:
    assert ":healthy" not in quick("--out", "b", "--no-control", healthy=1, code=0).stdout


def test_nothing_is_overwritten(quick: Callable[..., Result]) -> None:
    Path("used").mkdir()
    Path("used/mine").write_text("kept")
    Path("file").write_text("kept")
    for name in ("used", "file", "file/below"):
        assert f"--out {name}: it " in quick("--out", name, code=2).stderr
    assert sorted(map(str, Path().rglob("*"))) == ["file", "used", "used/mine"]


@pytest.mark.parametrize(
    ("terminal", "env", "args", "opened"),
    [
        (True, "DISPLAY=:0", (), True),
        (True, "BROWSER=firefox", (), True),
        (True, "", (), False),
        (True, "DISPLAY=:0 CI=true", (), False),
        (False, "DISPLAY=:0", (), False),
        (True, "DISPLAY=:0", ("--no-open",), False),
    ],
)
def test_the_report_is_opened_for_a_person_alone(
    terminal: bool, env: str, args: tuple[str, ...], opened: bool, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    given = dict(word.split("=") for word in env.split())
    for name in ("CI", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.setenv(name, given.get(name, ""))
    monkeypatch.setattr(webbrowser, "open", seen.append)
    monkeypatch.setattr(demo, "_on_terminal", lambda: terminal)
    quick(*args)
    assert seen == ([(Path("graphprobe-demo") / "report.html").absolute().as_uri()] if opened else [])


@pytest.mark.heavy
def test_the_whole_demo(run_python: Python, run_warm: Python, tmp_path: Path) -> None:
    """From caches that are empty, as on the first day; in 90 s of the processor, whatever else this machine does."""
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "CI": ""}
    began = time.monotonic()
    done = run_python("-m", "graphprobe", "demo", "--out", "demo", cwd=tmp_path, env=env, timeout_s=500)
    assert done.code == 0, done.out + done.err
    assert "HEALTHY: demo/transformer.py:healthy" in done.out.splitlines()
    assert "FAULT: demo/transformer.py:faulty" in done.out.splitlines()
    assert any(line.startswith("FOUND: the planted fault") for line in done.out.splitlines()[-5:])
    assert done.cpu_s < 90, f"{time.monotonic() - began:.0f} s, {done.cpu_s:.0f} s of the processor"
    (proof,) = (tmp_path / "demo" / "proofs").iterdir()
    again = run_warm(str(proof / "repro.py"), cwd=tmp_path, env=env)
    assert again.code == 1, again.out + again.err
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (proof / "repro.py").read_text(encoding="utf-8") in readme, "as the README shows it"
    assert (again.out + again.err).count("\n") <= 6
    report = tmp_path / "demo" / "report.html"
    assert "blocks.0.mlp" in report.read_text(encoding="utf-8")
