"""Backends and hooks that a program defines itself, as Python text or as an import: a repro can then hold them."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

from graphprobe.diagnose.dossier.own_text import folder_of, global_names, own_text, with_imports
from graphprobe.diagnose.program_text.plain_values import Unwritable
from graphprobe.internals.dynamo.torch_backends import aot_arguments, registered, unwrapped

STAND_IN = "eager"
"""What `Case.backend` says where the backend has no name."""

LONGEST = 60
"""Lines of text beyond which a module that can be imported is imported."""


@dataclass(frozen=True)
class OwnBackend:
    """A backend of the program, or what it has put into a setting of torch.

    Attributes:
        name: expression that gives it once `text` has run; mostly a name.
        text: Python that defines it, with what it imports and calls, to be put at the top level of a file.
        shown: what the program calls it, for messages.
        folder: that the text puts on Python's path, for a module that is not installed; empty: none.
        live: the program's own object, where this process has it.
    """

    name: str
    text: str
    shown: str = ""
    folder: str = ""
    live: Any = field(default=None, compare=False, repr=False)

    def make(self, *, file: str = __file__) -> Any:
        """It, anew from its text; `file`: what the text takes for its own file."""
        defined: dict[str, Any] = {"__name__": "__main__", "__file__": file}
        exec(compile(self.text, f"<{self.shown or self.name}>", "exec"), defined)
        made = eval(self.name, defined)
        if not isinstance(made, FunctionType | type):  # so that torch's messages call it so
            with contextlib.suppress(AttributeError, TypeError):
                made.__name__ = self.name
        return made

    def value(self) -> Any:
        """It, as the program has it, or else anew."""
        return self.make() if self.live is None else self.live


def own_backend(backend: str | Callable[..., Any]) -> OwnBackend | None:
    """The text of a backend of the program.

    It may use whatever stands at the top level of its module, modules of torch, of the standard library, of installed
    packages, and values that a text can give. A name is looked up where the program has registered it.

    Returns:
        None for a name that stock torch knows, and where `why_no_text` says why.
    """
    try:
        return _told_backend(backend)
    except Unwritable:
        return None


def why_no_text(backend: str | Callable[..., Any]) -> str:
    """Why `own_backend` gives None for this one: a sentence without its dot; empty where it needs none, or has one."""
    try:
        _told_backend(backend)
    except Unwritable as error:
        return f"the backend {shown_name(backend)} cannot be saved: {error}"
    return ""


def own_hook(value: Any) -> OwnBackend:
    """What the program has put into a setting of torch.

    Raises:
        Unwritable: no text gives it.
    """
    return _told(value, shown_name(value), "hook")


def shown_name(backend: Any) -> str:
    """What the program calls a backend or a hook, without addresses."""
    if isinstance(backend, str):
        return f'"{backend}"'
    inner, _ = unwrapped(backend)
    found = next(global_names(inner), None)
    if found is not None:
        module = str(found[0].get("__name__", ""))
        return found[1] if module == "__main__" else f"{found[1]} of {module}"
    if isinstance(inner, FunctionType | type):
        return inner.__qualname__.replace("<locals>.", "")
    if isinstance(inner, MethodType):
        return f"{shown_name(inner.__self__)}.{inner.__name__}"
    if isinstance(inner, functools.partial):
        return f"functools.partial({shown_name(inner.func)}, ...)"
    arguments = aot_arguments(inner)
    if arguments is not None:
        return f"aot_autograd(fw_compiler={shown_name(arguments['fw_compiler'])})"
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(inner).split()))[:80]


def merged_text(owns: Iterable[OwnBackend]) -> str | None:
    """The texts of several as one, each statement once; None where a name means different things in them."""
    imports: dict[str, ast.stmt] = {}
    others: dict[str, ast.stmt] = {}
    meanings: dict[str, str] = {}
    for own in owns:
        for text, node in _statements(own.text):
            for name, meaning in _meanings(node):
                if meanings.setdefault(name, meaning) != meaning:
                    return None
            (imports if isinstance(node, ast.Import | ast.ImportFrom) else others)[text] = node
    if any(own.folder for own in owns):  # what is imported may need the path before
        lines = dict.fromkeys(text for own in owns for text, _ in _statements(own.text))
        return "\n".join(lines) + "\n"
    return "\n\n\n".join(filter(None, ["\n".join(imports), *others])) + "\n"


def _meanings(node: ast.stmt) -> list[tuple[str, str]]:
    """Names that a statement binds at the top level, with what they then mean."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [(node.name, ast.dump(node))]
    if isinstance(node, ast.ImportFrom):
        return [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    if isinstance(node, ast.Import):
        tops = [alias.name.partition(".")[0] for alias in node.names]
        return [(a.asname or top, a.name if a.asname else top) for a, top in zip(node.names, tops, strict=True)]
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [(name, ast.dump(node)) for name in names]


def _statements(text: str) -> list[tuple[str, ast.stmt]]:
    """The statements of a text, each with the comments above it."""
    lines, end, found = text.splitlines(), 0, []
    for node in ast.parse(text).body:
        last = node.end_lineno or node.lineno
        found.append(("\n".join(lines[end:last]).strip("\n"), node))
        end = last
    return found


def _told_backend(backend: str | Callable[..., Any]) -> OwnBackend | None:
    value = registered(backend) if isinstance(backend, str) else backend
    if value is None:
        return None
    inner, given = unwrapped(value)
    shown = shown_name(backend)
    return _told(functools.partial(inner, **given) if given else inner, shown, "backend")


def _told(value: Any, shown: str, name: str) -> OwnBackend:
    """The text; an import, where the module can be found by its name and the text would be long, or there is none."""
    imported = _imported(value, shown)
    try:
        found, text, folders = own_text(value, name)
    except Unwritable:
        if imported is None:
            raise
        return imported
    told = OwnBackend(found, text, shown, ", ".join(dict.fromkeys(folders.values())), value)
    return told if imported is None or told.text.count("\n") <= LONGEST else imported


def _imported(value: Any, shown: str) -> OwnBackend | None:
    """It as an import of its module, where that can be found by its name."""
    for namespace, name in global_names(value):
        module = str(namespace.get("__name__", ""))
        folder = folder_of(module)
        if folder is not None:
            text = with_imports([f"from {module} import {name}"], {module: folder}, "")
            return OwnBackend(name, text, shown, folder, value)
    return None
