"""How the program is compiled, and the settings of torch that a repro must repeat."""

from __future__ import annotations

import contextlib
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.own_backend import STAND_IN
from graphprobe.internals.require import require

OURS = frozenset({"compile_threads", "worker_start_method", "force_disable_caches", "fx_graph_cache"})
"""Changed by this package in its child processes, or without influence on results."""


@dataclass(frozen=True)
class Compilation:
    """How `diagnose` compiles.

    Attributes:
        backend: name or function, as `torch.compile` takes it.
        dynamic: as `torch.compile` takes it.
        align_random: compiled random ops draw what eager draws (Inductor's `fallback_random`).
        folder: where dossiers go.
        timeout_s: for one compilation with its runs.
        fullgraph: as `torch.compile` takes it.
        inductor_settings: what the mode and the options of `torch.compile` set for Inductor, by name.
    """

    backend: str | Callable[..., Any]
    dynamic: bool | None
    folder: Path
    align_random: bool = False
    timeout_s: float = 600.0
    fullgraph: bool = False
    inductor_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_inductor(self) -> bool:
        """Whether the backend is Inductor itself, whose stages are known."""
        return self.backend == "inductor"

    @property
    def backend_name(self) -> str:
        """A name that stock torch knows; `eager` stands in for functions, see `Case.own_backend`."""
        return self.backend if isinstance(self.backend, str) else STAND_IN

    @property
    def maker(self) -> Callable[[], Any] | None:
        """What makes a backend that is a function, for judges of a case; None where the case's name says all."""
        return None if isinstance(self.backend, str) else lambda: self.backend

    @contextlib.contextmanager
    def configured(self) -> Iterator[None]:
        """torch as it must be for every compilation of this diagnosis."""
        changes = dict(self.inductor_settings) | ({"fallback_random": True} if self.align_random else {})
        with contextlib.ExitStack() as stack:
            if changes:
                config = require("torch._inductor", "config", purpose="Inductor's settings")
                stack.enter_context(config.patch(changes))
            yield

    def with_setting(self, name: str, value: Any) -> Compilation:
        """The same with one setting of Inductor's in another state."""
        return replace(self, inductor_settings={**self.inductor_settings, name: value})


@dataclass(frozen=True)
class Changed:
    """Settings other than the defaults, by dotted name; those that JSON can hold."""

    inductor: dict[str, Any] = field(default_factory=dict)
    functorch: dict[str, Any] = field(default_factory=dict)
    dynamo: dict[str, Any] = field(default_factory=dict)
    unsaved: list[str] = field(default_factory=list)


def changed_settings() -> Changed:
    """What the program has changed in torch's compiler settings."""
    found = Changed()
    for package, values in (
        ("torch._inductor", found.inductor),
        ("torch._functorch", found.functorch),
        ("torch._dynamo", found.dynamo),
    ):
        config = require(package, "config", purpose="reading settings")
        entries = getattr(config, "_config", {})
        for name, entry in entries.items():
            if name in OURS or name.startswith("_") or "cache" in name:
                continue
            try:
                with warnings.catch_warnings(action="ignore"):  # some are deprecated, and say so when read
                    value = getattr(config, name)
                # A setting that was changed and changed back does not count as untouched.
                untouched = hasattr(config, "_is_default") and config._is_default(name)
                default = untouched or bool(value == entry.default)
            except Exception:  # an alias to another module's setting
                continue
            if default:
                continue
            if _plain(value):
                values[name] = value
            else:
                found.unsaved.append(f"{package}.config.{name} = {value!r:.80}")
    return found


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def versions() -> dict[str, str]:
    """What a maintainer asks for first."""
    found = {
        "torch": torch.__version__,
        "git": str(torch.version.git_version),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")(),
    }
    if torch.cuda.is_available():
        found["cuda"] = f"{torch.version.cuda}, {torch.cuda.get_device_name()}"
    return found
