"""Reads the settings of torch's compilers by name, all or those that were changed; plants the fault that torch has."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

from graphprobe.internals.names import require

MODULES = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")

RELU_FAULT = "inject_relu_bug_TESTING_ONLY"
"""A known fault of Inductor, made by torch for its own tests: something to find."""


def compiler_settings(*, changed_only: bool = False) -> dict[str, str]:
    """The settings in force in this thread, each value as text. Nothing is set, copied or imported by reading them.

    Those of a module that is not loaded are left out.

    Args:
        changed_only: leave out those that have their default.
    """
    found: dict[str, str] = {}
    for address in MODULES:
        module = sys.modules.get(address)
        for name, entry in dict(getattr(module, "_config", {})).items():
            # Reading an alias reads another module's setting; a deprecated one warns.
            if any(getattr(entry, mark, None) for mark in ("alias", "hide", "deprecated")):
                continue
            try:
                # A default is not read through the module, which would copy it into a setting of the program's own.
                default = bool(module._is_default(name))  # type: ignore[union-attr]
                if not (default and changed_only):
                    found[f"{address}.{name}"] = _text(entry.default if default else getattr(module, name))
            except Exception:
                continue
    return found


def changed_values(address: str) -> Iterator[tuple[str, Any]]:
    """Name and value of each setting of a module that has another value than its default; none if it is not loaded."""
    module: Any = sys.modules.get(address)
    for name, entry in dict(getattr(module, "_config", {})).items():
        try:
            with warnings.catch_warnings(action="ignore"):  # some are deprecated, and say so when read
                value = getattr(module, name)
            # A setting that was changed and changed back does not count as untouched.
            untouched = hasattr(module, "_is_default") and module._is_default(name)
            default = untouched or bool(value == entry.default)
        except Exception:  # an alias to another module's setting
            continue
        if not default:
            yield name, value


def own_passes() -> dict[str, str]:
    """The settings of Inductor that name a pass of the program's: its name and `file:line`."""
    found = {}
    for name, value in changed_values("torch._inductor.config"):
        if "custom" in name and name.endswith("_pass") and callable(value):
            named = value if hasattr(value, "__code__") else type(value)
            code = getattr(named if hasattr(named, "__code__") else named.__call__, "__code__", None)
            at = "" if code is None else f", {code.co_filename}:{code.co_firstlineno}"
            found[name] = f"{named.__qualname__}{at}"
    return found


def plant_relu_fault() -> None:
    """From here on the C++ that Inductor generates for ReLU adds 1 to what it should compute, in this whole process.

    Raises:
        UnsupportedTorchError: this torch has no such fault.
    """
    require("torch._inductor.config", f"cpp.{RELU_FAULT}", purpose="the planted fault")
    setattr(require("torch._inductor.config", "cpp", purpose="the planted fault"), RELU_FAULT, "accuracy")


def _text(value: Any) -> str:
    """As Python writes it; a function by its name, an object by its class, without its address in memory."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, (list, tuple)):
        ends = "[]" if isinstance(value, list) else "()"
        return ends[0] + ", ".join(map(_text, value)) + ends[1]
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
