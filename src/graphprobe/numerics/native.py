"""Whether the C++ core is there: the one place that imports it."""

from __future__ import annotations

from types import ModuleType

VERSION = 7
"""What this Python side expects; `native/CMakeLists.txt` has the same number."""

missing: str | None = None
"""Why the core is not used; None when it is. Statistics are the same without it, and much slower."""

core: ModuleType | None = None

try:
    from graphprobe.numerics import _native
except ImportError as error:
    missing = f"not built ({error})"
else:
    if _native.VERSION == VERSION:
        core = _native
    else:
        missing = f"built from other sources (version {_native.VERSION}, expected {VERSION}); install again"


def description() -> str:
    """One line for people: which loops are in use, or why none are."""
    if core is None:
        return f"{missing}: statistics of tensors come from numpy, slower"
    return f"version {VERSION}, instruction set {core.instruction_set()}"
