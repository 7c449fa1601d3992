"""graphprobe: find where a PyTorch program goes wrong when it is compiled, and prove it.

`__all__` is the public API, see docs/stability.md; the modules behind it are private. Importing this package imports
neither torch nor any other part of graphprobe: every name is loaded on first use. With `TORCH_COMPILE_DEBUG=1` in the
environment, importing it begins to collect, as soon as the program loads torch's compiler.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe import backends as backends
    from graphprobe import compat as compat
    from graphprobe import ops as ops
    from graphprobe import scope as scope
    from graphprobe.api import compare, enable, open_run, reduce, report, trace
    from graphprobe.backends.compile_profiler import CompileProfiler
    from graphprobe.backends.eager import GraphRaisedError, OperatorSchemaError
    from graphprobe.backends.explain import explain
    from graphprobe.backends.explanation import Explanation
    from graphprobe.backends.faulty import Faulty, PlantedFault, faulty
    from graphprobe.backends.torchscript import ScriptingError
    from graphprobe.backends.wrap import Wrapped, get_backend, wrap
    from graphprobe.compare.open import open_dump
    from graphprobe.compare.run import Comparison
    from graphprobe.compiler_config import CompilerConfig
    from graphprobe.diagnose.api import diagnose
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction
    from graphprobe.diagnose.reduction.watch_script import GraphDiedError
    from graphprobe.errors import (
        ArtifactNotFoundError,
        DumpConfigError,
        GraphprobeError,
        GraphprobeWarning,
        NotComparableError,
        RunNotFoundError,
        SchemaError,
        SettingError,
        UnsupportedTorchError,
        UsageError,
    )
    from graphprobe.export.forms import Exported, export
    from graphprobe.findings import Diagnosis, Finding
    from graphprobe.probe.active import disable
    from graphprobe.probe.api.dump import ApiDumper, dump
    from graphprobe.probe.api.overflow import OverflowFoundError
    from graphprobe.probe.observe_pass import observe_pass
    from graphprobe.probe.profile import profile
    from graphprobe.probe.recompile_watch import Recompiles, recompiles
    from graphprobe.store.calls import Call, CallDump, CallSlot
    from graphprobe.store.graph_calls import GraphCalls
    from graphprobe.store.reader import Run
    from graphprobe.testing.assertion import CompiledDiffers, assert_compiles_like_eager

__version__ = "0.2.0"

_PUBLIC = {
    "ApiDumper": "graphprobe.probe.api.dump",
    "ArtifactNotFoundError": "graphprobe.errors",
    "Call": "graphprobe.store.calls",
    "CallDump": "graphprobe.store.calls",
    "CallSlot": "graphprobe.store.calls",
    "CaseReduction": "graphprobe.diagnose.reduction.reduce_case",
    "Comparison": "graphprobe.compare.run",
    "CompileProfiler": "graphprobe.backends.compile_profiler",
    "CompiledDiffers": "graphprobe.testing.assertion",
    "CompilerConfig": "graphprobe.compiler_config",
    "Diagnosis": "graphprobe.findings",
    "DumpConfigError": "graphprobe.errors",
    "Explanation": "graphprobe.backends.explanation",
    "Exported": "graphprobe.export.forms",
    "Faulty": "graphprobe.backends.faulty",
    "Finding": "graphprobe.findings",
    "GraphCalls": "graphprobe.store.graph_calls",
    "GraphDiedError": "graphprobe.diagnose.reduction.watch_script",
    "GraphRaisedError": "graphprobe.backends.eager",
    "GraphprobeError": "graphprobe.errors",
    "GraphprobeWarning": "graphprobe.errors",
    "NotComparableError": "graphprobe.errors",
    "OperatorSchemaError": "graphprobe.backends.eager",
    "OverflowFoundError": "graphprobe.probe.api.overflow",
    "PlantedFault": "graphprobe.backends.faulty",
    "Recompiles": "graphprobe.probe.recompile_watch",
    "Run": "graphprobe.store.reader",
    "RunNotFoundError": "graphprobe.errors",
    "SchemaError": "graphprobe.errors",
    "ScriptingError": "graphprobe.backends.torchscript",
    "SettingError": "graphprobe.errors",
    "UnsupportedTorchError": "graphprobe.errors",
    "UsageError": "graphprobe.errors",
    "Wrapped": "graphprobe.backends.wrap",
    "assert_compiles_like_eager": "graphprobe.testing.assertion",
    "disable": "graphprobe.probe.active",
    "dump": "graphprobe.probe.api.dump",
    "enable": "graphprobe.api",
    "explain": "graphprobe.backends.explain",
    "faulty": "graphprobe.backends.faulty",
    "get_backend": "graphprobe.backends.wrap",
    "observe_pass": "graphprobe.probe.observe_pass",
    "open_dump": "graphprobe.compare.open",
    "open_run": "graphprobe.api",
    "profile": "graphprobe.probe.profile",
    "recompiles": "graphprobe.probe.recompile_watch",
    "trace": "graphprobe.api",
    "wrap": "graphprobe.backends.wrap",
}

_HANDED = {"_html_of": "graphprobe.report.notebook", "_text_of": "graphprobe.report.notebook"}
"""Functions, with an underscore in front, that the package hands to rooms before their own, see `shown`."""

_MODULES = ("backends", "compat", "ops", "scope")

_CALLABLE_PACKAGES = ("compare", "diagnose", "export", "reduce", "report")
"""Functions whose names are those of packages, see `callable_package`."""

__all__ = [
    "ApiDumper",
    "ArtifactNotFoundError",
    "Call",
    "CallDump",
    "CallSlot",
    "CaseReduction",
    "Comparison",
    "CompileProfiler",
    "CompiledDiffers",
    "CompilerConfig",
    "Diagnosis",
    "DumpConfigError",
    "Explanation",
    "Exported",
    "Faulty",
    "Finding",
    "GraphCalls",
    "GraphDiedError",
    "GraphRaisedError",
    "GraphprobeError",
    "GraphprobeWarning",
    "NotComparableError",
    "OperatorSchemaError",
    "OverflowFoundError",
    "PlantedFault",
    "Recompiles",
    "Run",
    "RunNotFoundError",
    "SchemaError",
    "ScriptingError",
    "SettingError",
    "UnsupportedTorchError",
    "UsageError",
    "Wrapped",
    "__version__",
    "assert_compiles_like_eager",
    "backends",
    "compare",
    "compat",
    "diagnose",
    "disable",
    "dump",
    "enable",
    "explain",
    "export",
    "faulty",
    "get_backend",
    "observe_pass",
    "open_dump",
    "open_run",
    "ops",
    "profile",
    "recompiles",
    "reduce",
    "report",
    "scope",
    "trace",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _CALLABLE_PACKAGES:
        return importlib.import_module(f"graphprobe.{name}")
    module = _PUBLIC.get(name) or _HANDED.get(name)
    if module is None:
        raise AttributeError(f"module 'graphprobe' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name.removeprefix("_"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "TORCH_COMPILE_DEBUG" in os.environ:
    # The value decides; the check itself stays out of the way of everybody who has not set it.
    from graphprobe.api import obey_environment as _obey_environment

    _obey_environment(os.environ)
