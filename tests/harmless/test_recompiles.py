"""Counting recompilations changes no output, no compile, no exception, and nothing of what torch logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphprobe
from graphprobe.internals.names import NAMES
from harmless.conftest import without_time_and_process

PROGRAM = Path(__file__).parent / "programs" / "recompiling.py"


def test_the_same_with_and_without(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "recompiles"}
    plain = run_warm(str(PROGRAM), cwd=tmp_path, env=env)
    watched = run_warm("-m", "graphprobe", "recompiles", str(PROGRAM), cwd=tmp_path, env=env)
    assert plain.code == 0, plain.err
    assert watched.code == 1, watched.err
    assert "Recompiling function forward" in plain.err and "hit config.recompile_limit (4)" in plain.err
    assert without_time_and_process(watched.err) == without_time_and_process(plain.err)
    program, _, report = watched.out.partition("\n\n")
    assert program.startswith(plain.out.rstrip("\n")), (plain.out, watched.out)
    assert "recompile_limit is 4" in report
    assert not list(tmp_path.iterdir())  # and nothing is left behind


def test_everything_is_put_back() -> None:
    import torch
    import torch._dynamo.convert_frame as inside

    names = [name.attribute for name in NAMES if name.module == inside.__name__ and "recompiles" in name.needed_for]
    assert len(names) == 3
    before = {name: getattr(inside, name) for name in names}
    first, second = graphprobe.recompiles(), graphprobe.recompiles()
    f = torch.compile(lambda x: x + 1, backend="eager")
    with first, second:
        f(torch.ones(3)), f(torch.ones(4))
        assert all(getattr(inside, name) is not before[name] for name in names)
    assert {name: getattr(inside, name) for name in names} == before
    f(torch.ones(3, 3))
    assert len(first.facts) == len(second.facts) == 1
