"""An API dump changes nothing: outputs, gradients, random numbers, exceptions, warnings and hooks are bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.store.api_reader import open_api_dump

PROGRAM = Path(__file__).parent / "programs" / "eager.py"
ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def plain(run_warm: Callable[..., Any]) -> Any:
    done = run_warm(str(PROGRAM), env=ENV)
    assert done.code == 0, done.err
    assert done.out.count("\n") > 100 and "raised RuntimeError" in done.out
    return done


@pytest.mark.parametrize(("level", "data"), [("mix", "tensor"), ("api", "stats"), ("module", "stats")])
def test_eager_programs(run_warm: Callable[..., Any], plain: Any, tmp_path: Path, level: str, data: str) -> None:
    done = run_warm(str(PROGRAM), "dump", str(tmp_path / "d"), level, data, env=ENV)
    assert done.code == 0, done.err[-3000:]
    assert done.out.splitlines() == plain.out.splitlines()
    assert without_addresses(done.err) == without_addresses(plain.err)
    dump = open_api_dump(tmp_path / "d")
    assert not [text for text in dump.problems() if "observer" in text]
    assert sum(1 for step in dump.steps(0) for _ in dump.calls(0, step)) > 50


def without_addresses(text: str) -> list[str]:
    """Warnings name the line that warned; a mode stands between the program and it."""
    return [line for line in text.splitlines() if line and not line.startswith("  ")]
