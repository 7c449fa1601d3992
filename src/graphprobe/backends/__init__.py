"""What `torch.compile(backend=…)` takes: wrapped and configured backends, and debug backends by name.

`graphprobe.backends.get("aot_eager")` gives a debug backend, `names()` and `describe(name)` say what there is, `LADDER`
is the order to try them in. Nothing is imported before its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe.backends.explain import ExplainWithBackend
    from graphprobe.backends.ladder import LADDER, between
    from graphprobe.backends.registry import describe, get, names
    from graphprobe.backends.table import DebugBackend

_PUBLIC = {
    "LADDER": "graphprobe.backends.ladder",
    "DebugBackend": "graphprobe.backends.table",
    "ExplainWithBackend": "graphprobe.backends.explain",
    "between": "graphprobe.backends.ladder",
    "describe": "graphprobe.backends.registry",
    "get": "graphprobe.backends.registry",
    "names": "graphprobe.backends.registry",
}

__all__ = ["LADDER", "DebugBackend", "ExplainWithBackend", "between", "describe", "get", "names"]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'graphprobe.backends' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
