"""How the program is compiled, how far its diagnosis goes, and the settings and versions that a repro must repeat."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import graphprobe
from graphprobe.diagnose.dossier.own_backend import STAND_IN, OwnBackend, own_hook, place_of_backend, shown_name
from graphprobe.engine.naming import is_library
from graphprobe.findings import Finding
from graphprobe.internals.aot_backends import registered
from graphprobe.internals.compiler_settings import changed_values
from graphprobe.internals.dynamo.compile_facts import calling_line
from graphprobe.internals.names import require
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.settings.limits import STEP_LIMIT_S, TimeBudget
from graphprobe.store.schema import is_plain_data

OURS = frozenset({"compile_threads", "worker_start_method", "force_disable_caches", "fx_graph_cache"})
"""Changed by this package in its child processes, or without influence on results."""

OURS_AT = os.path.join(os.path.dirname(graphprobe.__file__), "")
PACKAGES = ("inductor", "functorch", "dynamo")

LIBRARIES = ("numpy", "torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "intel-openmp", "mkl", "onnx")
"""Those that bear on what torch compiles; collect_env lists them too."""


def line_of_caller() -> str | None:
    """`file:line` of the innermost frame that is the program's."""
    line = calling_line(sys._getframe(1))
    own = (
        line is not None and line.file.endswith(".py") and not (is_library(line.file) or line.file.startswith(OURS_AT))
    )
    return f"{line.file}:{line.line}" if line is not None and own else None


@dataclass(frozen=True)
class Limits:
    """How far a diagnosis goes.

    Attributes:
        budget: what is left of the time for all steps.
        deep: look into a program that is right, too.
        first: stop at the first rung that is wrong, and at the first fault on it.
        exact: a difference that rounding explains is a fault, too.
        workaround: try changes of a program that is wrong, until one is seen to work.
    """

    budget: TimeBudget = field(default_factory=lambda: TimeBudget(None))
    deep: bool = False
    first: bool = False
    exact: bool = False
    workaround: bool = False


@dataclass(frozen=True)
class Compilation:
    """How `diagnose` compiles.

    Attributes:
        backend: name or function, as `torch.compile` takes it.
        dynamic: as `torch.compile` takes it.
        align_random: compiled random ops draw what eager draws (Inductor's `fallback_random`).
        folder: where dossiers go.
        timeout_s: for one compilation with its runs.
        first: one fault is enough.
        fullgraph: as `torch.compile` takes it.
        inductor_settings: what the mode and the options of `torch.compile` set for Inductor, by name.
        guard_filter: says which guards are kept, as the option `guard_filter_fn` of `torch.compile`; None: all are.
        entries: folders in torch's caches with which alone the program goes wrong.
        called_from: `file:line` of the program that calls what is compiled; None where no line of it does.
    """

    backend: str | Callable[..., Any]
    dynamic: bool | None
    folder: Path
    align_random: bool = False
    timeout_s: float = STEP_LIMIT_S
    fullgraph: bool = False
    first: bool = False
    inductor_settings: Mapping[str, Any] = field(default_factory=dict)
    guard_filter: Callable[..., Any] | None = None
    entries: Sequence[str] = ()
    called_from: str | None = field(default_factory=line_of_caller, compare=False)

    def compiled(self, fn: Callable[..., Any], backend: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
        """`fn` as the program compiles it, or with another backend."""
        backend = self.backend if backend is None else backend
        options = None if self.guard_filter is None else {"guard_filter_fn": self.guard_filter}
        how: dict[str, Any] = {"dynamic": self.dynamic, "fullgraph": self.fullgraph, "options": options}
        return torch.compile(fn, backend=backend, **how)

    @property
    def is_inductor(self) -> bool:
        """Whether the backend is Inductor itself, whose stages are known."""
        return self.backend == "inductor"

    @property
    def is_aot_eager(self) -> bool:
        """Whether the backend runs AOTAutograd's graphs as they are, so that these are what it can get wrong."""
        return self.maker is None and self.backend in ("aot_eager", "aot_eager_default_partitioner")

    @property
    def backend_name(self) -> str:
        """A name that stock torch knows; `eager` stands in for functions, see `Case.own_backend`."""
        return self.backend if isinstance(self.backend, str) and self.maker is None else STAND_IN

    def complete(self, finding: Finding) -> None:
        """Add what a finding has of the compilation: the backend's name, and the line of the program that calls it."""
        finding.backend = self.told_backend if finding.stage == "backend" else None
        finding.pass_ = finding.pass_ if finding.pass_ != finding.backend else None
        of_library = finding.op is not None if finding.source is None else is_library(finding.source)
        if finding.called_from is None and of_library:
            finding.called_from = self.called_from

    @property
    def told_backend(self) -> str:
        """Its name, and where the program defines it: `name (file:line)`."""
        place = place_of_backend(self.backend) if self.maker is not None else None
        name = shown_name(self.backend).strip('"')
        return name if place is None else f"{name.partition(' of ')[0]} ({place})"

    @property
    def maker(self) -> Callable[[], Any] | None:
        """What makes a backend of the program, for judges of a case; None where the case's name says all."""
        stock = isinstance(self.backend, str) and registered(self.backend) is None
        return None if stock else lambda: self.backend

    @contextlib.contextmanager
    def configured(self) -> Iterator[None]:
        """torch as it must be for every compilation of this diagnosis."""
        changes = dict(self.inductor_settings) | ({"fallback_random": True} if self.align_random else {})
        with contextlib.ExitStack() as stack:
            if changes:
                config = require("torch._inductor", "config", purpose="Inductor's settings")
                stack.enter_context(config.patch(changes))
            yield

    def changed(self) -> Changed:
        """The settings of torch other than the defaults, as they are for each compilation."""
        with self.configured():
            return changed_settings()

    def with_setting(self, name: str, value: Any) -> Compilation:
        """The same with one setting of Inductor's in another state."""
        return replace(self, inductor_settings={**self.inductor_settings, name: value})


@dataclass(frozen=True)
class Changed:
    """Settings other than the defaults, by dotted name.

    Attributes:
        configs: those that JSON can hold, by package.
        hooks: functions and objects, see `Case.hooks`.
        unsaved: those that no text gives, with the reason.
    """

    configs: dict[str, dict[str, Any]] = field(default_factory=lambda: {package: {} for package in PACKAGES})
    hooks: dict[str, OwnBackend] = field(default_factory=dict)
    unsaved: list[str] = field(default_factory=list)

    def of_case(self) -> dict[str, Any]:
        """The fields of a `Case` that say the same."""
        return {"configs": self.configs, "hooks": self.hooks, "unsaved_settings": tuple(self.unsaved)}

    def with_inductor(self, settings: Mapping[str, Any]) -> Changed:
        """The same with more settings of Inductor's, as mode and options of `torch.compile` ask for them."""
        configs = self.configs | {"inductor": dict(self.configs["inductor"])}
        made = Changed(configs, dict(self.hooks), list(self.unsaved))
        for name, value in settings.items():
            made.add("inductor", name, value)
        return made

    def add(self, package: str, name: str, value: Any) -> None:
        """Take in one setting."""
        values = self.configs[package]
        values.pop(name, None)
        if is_plain_data(value):
            values[name] = value
            return
        try:
            self.hooks[f"{package}.{name}"] = own_hook(value)
        except Unwritable as error:
            self.unsaved.append(f"torch._{package}.config.{name} = {shown_name(value)}: {error}")


def changed_settings() -> Changed:
    """What the program has changed in torch's compiler settings."""
    found = Changed()
    for package in PACKAGES:
        require(f"torch._{package}", "config", purpose="reading settings")
        for name, value in changed_values(f"torch._{package}.config"):
            ours = name in OURS or "cache" in name
            if not ours and not (name.startswith("_") and is_plain_data(value)):
                found.add(package, name, value)
    return found


def versions() -> dict[str, str]:
    """Name and version of torch, the system, the compiler, the processor and the packages; in some milliseconds.

    The names are those of collect_env. No path, host or user is in it.
    """
    cuda = torch.cuda.is_available()
    found = {
        "PyTorch version": torch.__version__,
        "PyTorch commit": str(torch.version.git_version),
        "Is debug build": str(torch.version.debug),
        "CUDA used to build PyTorch": torch.version.cuda or "None",
        "OS": f"{_system()} ({platform.machine()})",
        "GCC version": _compiler(),
        "Libc version": "-".join(filter(None, platform.libc_ver())) or "N/A",
        "Python version": f"{' '.join(sys.version.split())} ({sys.maxsize.bit_length() + 1}-bit runtime)",
        "Python platform": platform.platform(),
        "Is CUDA available": str(cuda),
    }
    if cuda:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["GPU models and configuration"] = ", ".join(f"GPU {i}: {name}" for i, name in enumerate(names))
        found["cuDNN version"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    found["CPU"] = f"{_processor()}, {os.cpu_count()} CPUs, {torch.backends.cpu.get_cpu_capability()}"
    found["Versions of relevant libraries"] = "\n".join(f"[pip3] {name}=={version}" for name, version in _packages())
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _compiler() -> str:
    """First line of what the C++ compiler that Inductor takes says of itself."""
    command = [*shlex.split(os.environ.get("CXX") or "g++"), "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        said = ""
    return said.splitlines()[0] if said.strip() else "Could not collect"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def _packages() -> list[tuple[str, str]]:
    found = []
    for name in LIBRARIES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found
