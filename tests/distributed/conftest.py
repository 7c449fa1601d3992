"""Programs on several ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished

PROGRAMS = Path(__file__).parent / "programs"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def run_ranks(run_warm: Callable[..., Finished]) -> Callable[..., Finished]:
    """Runs a program of this folder on so many ranks, or alone on none; `before` are words before it, with `-m`."""

    def run(ranks: int, program: str, *args: str, cwd: Path, before: tuple[str, ...] = (), code: int = 0) -> Finished:
        launcher = (str(PROGRAMS / "launch.py"), str(ranks)) if ranks else ()
        done = run_warm(*launcher, *before, str(PROGRAMS / program), *args, cwd=cwd, env=ONE_THREAD)
        assert done.code == code, done.out + done.err[-4000:]
        return done

    return run


@pytest.fixture(scope="session")
def torchrun(run_python: Callable[..., Finished]) -> Callable[..., Finished]:
    """The same on two ranks, started by torchrun itself."""

    def run(program: str, *args: str, cwd: Path, before: tuple[str, ...] = (), env: dict[str, str]) -> Finished:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        return run_python(*launcher, *before, str(PROGRAMS / program), *args, cwd=cwd, env={**ONE_THREAD, **env})

    return run
