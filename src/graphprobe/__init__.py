"""graphprobe: find where a PyTorch program goes wrong when it is compiled, and prove it.

Importing this package imports neither torch nor any other part of graphprobe: every name is loaded on first use. With
`TORCH_COMPILE_DEBUG=1` in the environment, importing it begins to collect, see `graphprobe.probe.active`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe import ops as ops
    from graphprobe import scope as scope
    from graphprobe.backends.configured import get_backend
    from graphprobe.backends.explain import explain
    from graphprobe.backends.recompiles import CompileProfiler
    from graphprobe.backends.wrap import wrap
    from graphprobe.compiler_config import CompilerConfig
    from graphprobe.diagnose.api import diagnose
    from graphprobe.errors import GraphprobeError, GraphprobeWarning, UsageError
    from graphprobe.probe.active import disable, enable, trace
    from graphprobe.probe.api.dump import dump
    from graphprobe.probe.passes import observe_pass
    from graphprobe.probe.profile import profile
    from graphprobe.probe.recompiles import recompiles
    from graphprobe.store.reader import Run
    from graphprobe.testing.assertion import assert_compiles_like_eager

__version__ = "0.1.0"

_PUBLIC = {
    "CompileProfiler": "graphprobe.backends.recompiles",
    "CompilerConfig": "graphprobe.compiler_config",
    "GraphprobeError": "graphprobe.errors",
    "GraphprobeWarning": "graphprobe.errors",
    "Run": "graphprobe.store.reader",
    "UsageError": "graphprobe.errors",
    "assert_compiles_like_eager": "graphprobe.testing.assertion",
    "diagnose": "graphprobe.diagnose.api",
    "disable": "graphprobe.probe.active",
    "dump": "graphprobe.probe.api.dump",
    "enable": "graphprobe.probe.active",
    "explain": "graphprobe.backends.explain",
    "get_backend": "graphprobe.backends.configured",
    "observe_pass": "graphprobe.probe.passes",
    "profile": "graphprobe.probe.profile",
    "recompiles": "graphprobe.probe.recompiles",
    "trace": "graphprobe.probe.active",
    "wrap": "graphprobe.backends.wrap",
}

_MODULES = ("ops", "scope")

__all__ = [
    "CompileProfiler",
    "CompilerConfig",
    "GraphprobeError",
    "GraphprobeWarning",
    "Run",
    "UsageError",
    "__version__",
    "assert_compiles_like_eager",
    "diagnose",
    "disable",
    "dump",
    "enable",
    "explain",
    "get_backend",
    "observe_pass",
    "ops",
    "profile",
    "recompiles",
    "scope",
    "trace",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"graphprobe.{name}")
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'graphprobe' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})


if "TORCH_COMPILE_DEBUG" in os.environ:
    # The value decides; the check itself stays out of the way of everybody who has not set it.
    from graphprobe.probe.switch import obey_environment as _obey_environment

    _obey_environment(os.environ)
