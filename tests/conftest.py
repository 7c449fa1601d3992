"""What every test shares: a clean environment, fresh processes, and torch seeded before and reset after each test."""

import dataclasses
import gc
import importlib.abc
import importlib.metadata
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from durations import Recorder
from warm.client import counts
from warm.pool import Warm

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = ["made_once"]

CHANGES_WHAT_IS_COLLECTED = ("TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE", "TORCHINDUCTOR_FORCE_DISABLE_CACHES")
"""Variables of the caller that would make a test see another run than the one it asked for."""

REPEATABLE, RANDOM = "repeatable", "random"
"""Profiles of Hypothesis: the same examples each time, which is what is taken unless the command line says otherwise,
or other examples each time. Neither fails where the machine is slow."""

settings.register_profile(
    RANDOM, derandomize=False, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(REPEATABLE, settings.get_profile(RANDOM), derandomize=True, database=None, print_blob=False)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that ended: its exit code, what it said, and the CPU time (user and system) it took, in seconds."""

    code: int
    out: str
    err: str
    cpu_s: float


def module_at(*parts: str) -> Any:
    """The module in a file that is no part of the package, such as `module_at("scripts", "sizes.py")`; loaded once."""
    path = ROOT.joinpath(*parts)
    name = f"{path.parent.name}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class WithoutTorch(importlib.abc.MetaPathFinder):
    """Skips whatever imports torch: a file as it is collected, a test as it runs."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            pytest.skip("needs torch", allow_module_level=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-torch", action="store_true", help="skip what imports torch here, and what runs in a warm process"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config), "durations")
    if config.getoption("--without-torch"):
        sys.meta_path.insert(0, WithoutTorch())
    chosen = config.getoption("--hypothesis-profile") or REPEATABLE
    settings.load_profile(chosen)
    if chosen == REPEATABLE:
        # Some examples are made of the constants in the modules that the process has imported, so that they would
        # change with the tests that ran before, and with any edit of the sources.
        providers._get_local_constants = lambda: providers.Constants()
    for name in list(os.environ):
        if name in CHANGES_WHAT_IS_COLLECTED or name.startswith("GRAPHPROBE_"):
            del os.environ[name]
    os.environ["GRAPHPROBE_WORKAROUND"] = "0"  # a minute of tries behind each fault; the tests of these ask for them
    if not (config.getoption("--without-torch") or hasattr(config, "workerinput") or ALL_USABLE in os.environ):
        os.environ |= _usable_instructions(getattr(config, "cache", None))  # it can be switched off
    # A shell that runs the tests in the background has SIGINT ignored, and so would every process started from here.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


ALL_USABLE = "TORCHINDUCTOR_VEC_ISA_OK"
TRY_INSTRUCTIONS = """
from torch._inductor.cpu_vec_isa import valid_vec_isa_list
from graphprobe.internals.after_fork import instructions_known
valid_vec_isa_list()
print(" ".join(instructions_known()))
"""


def _usable_instructions(cache: pytest.Cache | None) -> dict[str, str]:
    """What spares each process of the tests torch's test programs for vector instructions: 2 seconds, or 15 with an
    empty cache. They are run once here, and again where torch, the compiler or the processor is another.
    """
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None or not Path("/proc/cpuinfo").exists():
        return {}
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    flags = next((line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if "flags" in line), "")
    here = [importlib.metadata.version("torch"), version, flags]
    known = cache.get("graphprobe/instructions", None) if cache else None
    if known is None or known["of"] != here:
        done = _runner(sys.executable)("-c", TRY_INSTRUCTIONS)
        known = {"of": here, "usable": done.code == 0 and done.out.split() == [ALL_USABLE]}
        if cache:
            cache.set("graphprobe/instructions", known)
    return {ALL_USABLE: "1"} if known["usable"] else {}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


def damaged(run: Any) -> list[str]:
    """The files of a run that are gone, or are not what their events say."""
    told = {event.path: event.digest for event in run.artifacts().values() if event.digest is not None}
    there = {path: run.tool_dir / path for path in told if (run.tool_dir / path).is_file()}
    found = {path: blake2b(file.read_bytes(), digest_size=16).hexdigest() for path, file in there.items()}
    return sorted(path for path, digest in told.items() if found.get(path) != digest)


def _runner(executable: str) -> Callable[..., Finished]:
    def run(*args: str, cwd: Path = ROOT, timeout_s: float = 300, env: dict[str, str] | None = None) -> Finished:
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [executable, *args],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
        return Finished(done.returncode, done.stdout, done.stderr, cpu_s)

    return run


@pytest.fixture(scope="session")
def run_python() -> Callable[..., Finished]:
    """Runs `python ARGS` in a fresh process that finds the sources of this repository; never raises on a bad exit."""
    return _runner(sys.executable)


@pytest.fixture(scope="session")
def run_warm(warm: Warm) -> Callable[..., Finished]:
    """The same, with torch and its compiler loaded already where that makes no difference; its `cpu_s` is nothing."""
    return _runner(warm.executable)


@pytest.fixture(scope="session")
def warm(request: pytest.FixtureRequest) -> Iterator[Warm]:
    """Starts Python at once, with torch and its compiler loaded: for what does not depend on how that comes about."""
    if request.config.getoption("--without-torch"):
        pytest.skip("needs torch")
    started = Warm()
    yield started
    started.close()


def own_bytes() -> int:
    """Resident memory of this process: with it begins what is forked from here, and it grows from test to test."""
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def reset_torch() -> Iterator[None]:
    """Each test draws the same numbers whichever ran before it in its process, and meets nothing that they compiled."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        if torch.cuda.device_count() == 0:  # before a trace makes devices up: autograd's threads would forbid forks
            torch.ones((), device="cpu", requires_grad=True).backward()
    yield
    torch = sys.modules.get("torch")
    if torch is not None and "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.fixture(autouse=True)
def keep_environment(request: pytest.FixtureRequest) -> Iterator[None]:
    """What torch or Python read while they are loaded is for each test what it was: warm processes compare it."""
    before = {name: value for name, value in os.environ.items() if counts(name)}
    yield
    after = {name: value for name, value in os.environ.items() if counts(name)}
    if changed := {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}:
        warnings.warn(f"{request.node.nodeid} has left {sorted(changed)} changed; put back", stacklevel=1)
        for name in changed:
            os.environ.pop(name, None)
        os.environ |= before


@pytest.fixture(autouse=True, scope="module")
def keep_what_stays() -> Iterator[None]:
    """What a file of tests has imported is looked through by no collection of garbage in the files after it."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """As `keep_what_stays`, of what was imported for the tests to be found."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `cuda` where there is no device; torch is imported only if such a test was collected."""
    cuda_items = [item for item in items if item.get_closest_marker("cuda")]
    if not cuda_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in cuda_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
