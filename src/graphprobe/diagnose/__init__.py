"""Finds which stage, pass and op make a compiled program differ from the same program uncompiled, and proves it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`graphprobe.diagnose` is the function of this name, until something imports a part of this package by its path:
    Python then puts the package in its place. It can be called, too.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from graphprobe.diagnose.api import diagnose

        return diagnose(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
