"""Packages that only some users need: imported when they are asked for, with an error that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from graphprobe.errors import UsageError


def extra_module(name: str, *, extra: str, purpose: str) -> Any:
    """The module `name` of an optional dependency.

    Raises:
        UsageError: it is not installed; the hint names the extra of graphprobe that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs the package {name.partition('.')[0]}, which is not installed ({error})",
            hint=f"pip install 'graphprobe[{extra}]'",
        ) from error
