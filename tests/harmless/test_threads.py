"""Do no harm where several threads or processes call compiled code at once: the same outputs, no crash, no hang."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.store import open_api_dump
from harmless.conftest import PROGRAMS, without_time_and_process

PROGRAM = str(PROGRAMS / "threads.py")
MODES: dict[str, tuple[str, ...]] = {
    "run": ("run", "-q", "--save-inputs"),
    "calls": ("run", "-q", "--dump", "stats"),
    "mix": ("run", "-q", "--dump", "tensor", "--level", "mix"),
    "graphs": ("run", "-q", "--dump-graph", "stats"),
    "profile": ("profile",),
    "recompiles": ("recompiles",),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["pool", "to_thread", "server", "asgi", "fastapi", "loader", "daemon"])
def test_threads_at_once(which: str, run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    for module in {"asgi": ["uvicorn"], "fastapi": ["uvicorn", "fastapi"]}.get(which, []):
        pytest.importorskip(module)
    env = {"OMP_NUM_THREADS": "1"}
    plain = run_warm(PROGRAM, which, cwd=tmp_path, env=env)
    assert plain.code == 0 and plain.out.startswith(f"{which} ["), plain.err
    for mode, command in MODES.items():
        (tmp_path / mode).mkdir()
        done = run_warm("-m", "graphprobe", *command, PROGRAM, which, cwd=tmp_path / mode, env=env)
        if mode in ("profile", "recompiles"):
            assert done.out.startswith(plain.out), (mode, done.out, done.err)
            continue
        assert (done.code, done.out) == (0, plain.out), (mode, done.err)
        said = "".join(line for line in done.err.splitlines(keepends=True) if not line.startswith("dump: "))
        assert without_time_and_process(said) == without_time_and_process(plain.err), mode
        for folder in (tmp_path / mode).rglob("rank0"):
            assert open_api_dump(folder.parent).problems() == (), mode
