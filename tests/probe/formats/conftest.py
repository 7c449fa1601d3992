"""Each program compiled once, for all tests of a file; and scripts, run without our package."""

import functools
from collections.abc import Callable

import pytest
from torch._dynamo.backends.common import aot_autograd

from conftest import Finished

from .compiled import PROGRAMS, Stages, train


@pytest.fixture
def run_script(run_warm: Callable[..., Finished]) -> Callable[..., Finished]:
    return lambda path, *args: run_warm(str(path), *args, cwd=path.parent, env={"PYTHONPATH": ""})


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Stages]:
    """The graphs of AOTAutograd and of Dynamo, as scripts. Not to be changed: others read them, too."""

    @functools.cache
    def of(name: str, dynamic: bool = False) -> Stages:
        stages = Stages(tmp_path_factory.mktemp(name))
        train(PROGRAMS[name], aot_autograd(fw_compiler=stages.aot, bw_compiler=stages.aot), dynamic=dynamic)
        train(PROGRAMS[name], stages.dynamo, dynamic=dynamic)
        return stages

    return of


@pytest.fixture(scope="session")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Stages]:
    @functools.cache
    def of(name: str, dynamic: bool = False) -> Stages:
        stages = Stages(tmp_path_factory.mktemp(name))
        with stages.tapped():
            train(PROGRAMS[name], stages.backend, dynamic=dynamic)
        return stages

    return of
