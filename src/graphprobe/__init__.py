"""graphprobe: find where a PyTorch program goes wrong when it is compiled, and prove it.

`__all__` is the public API, see docs/stability.md; the modules behind it are private. Importing this package imports
neither torch nor any other part of graphprobe: every name is loaded on first use. With `TORCH_COMPILE_DEBUG=1` in the
environment, importing it begins to collect, as soon as the program loads torch's compiler.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from graphprobe.faces import loaded_on_use

if TYPE_CHECKING:
    from graphprobe import backends as backends
    from graphprobe import compat as compat
    from graphprobe import ops as ops
    from graphprobe import scope as scope
    from graphprobe.api import compare, enable, open_run, reduce, report, trace
    from graphprobe.backends.eager import GraphRaisedError, OperatorSchemaError
    from graphprobe.backends.explain import CompileProfiler, Explanation, explain
    from graphprobe.backends.faulty import Faulty, PlantedFault, faulty
    from graphprobe.backends.torchscript import ScriptingError
    from graphprobe.backends.wrap import Wrapped, get_backend, wrap
    from graphprobe.compare.open import open_dump
    from graphprobe.compare.run import Comparison
    from graphprobe.compiler_config import CompilerConfig
    from graphprobe.diagnose.api import diagnose
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction
    from graphprobe.diagnose.reduction.watched import GraphDiedError
    from graphprobe.diagnose.ways.pass_list import diagnose_passes
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
    from graphprobe.probe.active import disable, observe_pass
    from graphprobe.probe.api.dump import ApiDumper, dump
    from graphprobe.probe.api.overflow import OverflowFoundError
    from graphprobe.probe.profile import profile
    from graphprobe.probe.recompile_watch import Recompiles, recompiles
    from graphprobe.report.notebook import html_of as _html_of  # noqa: F401  # for rooms before its own, see `faces`
    from graphprobe.report.notebook import text_of as _text_of  # noqa: F401
    from graphprobe.report.notebook import verdict_line as _verdict_of  # noqa: F401
    from graphprobe.store.calls import Call, CallDump, CallSlot
    from graphprobe.store.dump_reader import GraphCalls
    from graphprobe.store.reader import Run
    from graphprobe.store.watch_file import Drift
    from graphprobe.testing.assertion import CompiledDiffers, assert_compiles_like_eager
    from graphprobe.watch.drift import drift
    from graphprobe.watch.watcher import Watching, step, watch

__version__ = "0.2.0"

_CALLABLE_PACKAGES = ("compare", "diagnose", "export", "reduce", "report", "watch")
"""Functions whose names are those of packages, see `faces`."""

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
    "Drift",
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
    "Watching",
    "Wrapped",
    "__version__",
    "assert_compiles_like_eager",
    "backends",
    "compare",
    "compat",
    "diagnose",
    "diagnose_passes",
    "disable",
    "drift",
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
    "step",
    "trace",
    "watch",
    "wrap",
]

_load = loaded_on_use(__name__)


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"graphprobe.{name}") if name in _CALLABLE_PACKAGES else _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "TORCH_COMPILE_DEBUG" in os.environ:
    # The value decides; the check itself stays out of the way of everybody who has not set it.
    from graphprobe.api import obey_environment as _obey_environment

    _obey_environment(os.environ)
