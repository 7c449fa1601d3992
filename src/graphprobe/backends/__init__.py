"""What `torch.compile(backend=…)` takes: wrapped and configured backends, and debug backends by name.

`graphprobe.backends.get("aot_eager")` gives a debug backend, `names()` and `describe(name)` say what there is, `LADDER`
is the order to try them in. Nothing is imported before its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use

if TYPE_CHECKING:
    from graphprobe.backends.explain import ExplainWithBackend
    from graphprobe.backends.table import LADDER, Backend, between, describe, get, names

__all__ = ["LADDER", "Backend", "ExplainWithBackend", "between", "describe", "get", "names"]

__getattr__ = loaded_on_use(__name__)
