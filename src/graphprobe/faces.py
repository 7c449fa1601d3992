"""What packages and results show to others: names that load on first use, a call, the text of the terminal."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect


def loaded_on_use(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that writes the imports of its names below `if TYPE_CHECKING:`.

    These lines are the only table: a type checker reads them as they are, and the first name that is asked for has them
    parsed.
    """
    homes: dict[str, tuple[str, str]] = {}

    def load(name: str) -> Any:
        module = sys.modules[package]
        if not homes and not name.startswith("__"):
            homes.update(imported_for_types(module))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, own_name = homes[name]
        if home == package:
            return importlib.import_module(f"{package}.{own_name}")
        value = getattr(importlib.import_module(home), own_name)
        vars(module)[name] = value
        return value

    return load


def imported_for_types(package: ModuleType) -> dict[str, tuple[str, str]]:
    """Each name that `package` imports below `if TYPE_CHECKING:`: its module, and its name there."""
    import ast
    import inspect

    blocks = (node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If))
    lines = [line for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for line in block.body]
    return {
        alias.asname or alias.name: (str(line.module), alias.name)
        for line in lines
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }


class CallablePackage(ModuleType):
    """A package that is called, shown and described as the function of its name.

    Importing `graphprobe.compare.run` binds `graphprobe.compare` to a package, which would hide a function there. The
    package itself is called, so that `graphprobe.compare(...)` is right whatever has been imported.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return function_of(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(function_of(self))

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # read when it is asked for
        import inspect

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


class ShowsItself:
    """Mixin of a result: `print` shows the text of the terminal, a notebook a card with the verdict first.

    Both are made in a room behind that of the results, and the package hands them over.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return str(sys.modules["graphprobe"]._text_of(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {sys.modules['graphprobe']._verdict_of(self)}; print() shows it>"

    def _repr_html_(self) -> str:
        return str(sys.modules["graphprobe"]._html_of(self))
