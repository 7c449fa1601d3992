"""The wheel of `make wheel`: what is in it, and that it starts in an empty environment, with and without a compiler."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from conftest import ROOT

PACKAGES = ("graphprobe", "graphprobe_pytest")
CORE = "graphprobe/numerics/_native.abi3.so"
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Path:
    """A wheel; `--no-build-isolation` goes without a network, and finds CMake only where it is installed."""
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
    run(*pip, *options, ROOT, env={**os.environ, **(env or {})})
    (wheel,) = folder.glob("*.whl")
    return wheel


def sources() -> set[str]:
    """Every file of the packages that git knows, as a path in the wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *(f"src/{name}" for name in PACKAGES)], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    return {name.removeprefix("src/") for name in names}


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}


def installed(wheel: Path, folder: Path) -> Path:
    """The programs of an environment that has the wheel, what it depends on from here, no pip and no compiler."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--quiet", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Not as site-packages: an editable graphprobe in there would be found, too.
    (packages / "dependencies.pth").write_text("\n".join(dict.fromkeys(dependencies())) + "\n")
    return folder / "bin"


def dependencies() -> list[str]:
    here = sysconfig.get_paths()["purelib"]
    return [here, *(path for path in sys.path if path.endswith("site-packages"))]


def starts(programs: Path, folder: Path) -> str:
    """What a cold start says, away from the sources and with nothing else on the path."""
    env = {"PATH": str(programs), "HOME": str(folder)}
    where = "import graphprobe; print(graphprobe.__file__); from graphprobe.numerics import native"
    said = run(programs / "python", "-c", f"{where}; print(native.description())", env=env, cwd=folder)
    assert str(programs.parent) in said.splitlines()[0]
    assert "diagnose" in run(programs / "graphprobe", "--help", env=env, cwd=folder)
    assert run(programs / "graphprobe", "--version", env=env, cwd=folder).startswith("graphprobe ")
    return said


@pytest.mark.slow
def test_a_wheel_without_the_core_is_whole_and_starts(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    wheel = build(
        tmp_path / "dist",
        "--no-build-isolation",
        *(f"--config-settings=wheel.{one}" for one in ("cmake=false", "py-api=", "exclude=**.so")),
    )
    assert contents(wheel) == sources()
    said = starts(installed(wheel, tmp_path / "env"), tmp_path)
    assert "not built" in said


@pytest.mark.heavy
@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "none"])
def test_a_wheel_as_it_is_released(tmp_path: Path, compiler: bool) -> None:
    wheel = build(tmp_path / "dist", env={} if compiler else NO_COMPILER)
    assert contents(wheel) == sources() | ({CORE} if compiler else set())
    said = starts(installed(wheel, tmp_path / "env"), tmp_path)
    assert ("instruction set" in said) == compiler
