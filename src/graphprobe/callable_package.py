"""Packages that are the function of their name, too: `graphprobe.compare(...)` is right whatever has been imported."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is called, shown and described as the function of its name.

    Importing `graphprobe.compare.run` binds `graphprobe.compare` to a package, which would hide a function there. The
    package itself is called, so that the name means the same at any time.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return function_of(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(function_of(self))

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # read when it is asked for
        return inspect.getdoc(function_of(self))


def make_callable(package: str, home: str) -> None:
    """Make the package of this name, which is being imported, call the function of its name in the module `home`."""
    module = sys.modules[package]
    vars(module)["_function_home"] = home
    module.__class__ = CallablePackage


def function_of(package: CallablePackage) -> Any:
    """The function, whose module is imported for it."""
    home = importlib.import_module(vars(package)["_function_home"])
    return getattr(home, package.__name__.rpartition(".")[2])
