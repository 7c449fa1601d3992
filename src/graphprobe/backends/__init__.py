"""What `torch.compile(backend=…)` takes: wrapped and configured backends, and debug backends by name.

`graphprobe.backends.get("aot_eager")` gives a debug backend, `names()` and `describe(name)` say what there is, `LADDER`
is the order to try them in. Nothing is imported before its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe.backends.explain import ExplainWithBackend
    from graphprobe.backends.table import LADDER, Backend, between, describe, get, names

_PUBLIC = {
    "LADDER": "graphprobe.backends.table",
    "Backend": "graphprobe.backends.table",
    "ExplainWithBackend": "graphprobe.backends.explain",
    "between": "graphprobe.backends.table",
    "describe": "graphprobe.backends.table",
    "get": "graphprobe.backends.table",
    "names": "graphprobe.backends.table",
}

__all__ = ["LADDER", "Backend", "ExplainWithBackend", "between", "describe", "get", "names"]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'graphprobe.backends' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
