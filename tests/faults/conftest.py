"""The training step, run as it is and under graphprobe."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from faults.programs import write_step


@pytest.fixture
def step(run_warm: Callable[..., Finished], tmp_path: Path) -> Callable[..., Finished]:
    """Runs the step in the folder of the test: under `graphprobe run WORDS`, or as it is where `words` is None."""

    def run(words: tuple[str, ...] | None = (), **where: str) -> Finished:
        watched = () if words is None else ("-m", "graphprobe", "run", *words)
        return run_warm(*watched, str(write_step(tmp_path / "step.py", **where)), cwd=tmp_path)

    return run


@pytest.fixture(scope="session")
def plain(run_warm: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("plain")
    done = run_warm(str(write_step(folder / "step.py")), cwd=folder)
    assert done.code == 0, done.err
    assert done.out.count("\n") == 3
    return done
