"""The names that TORCH_LOGS knows, read from torch's own list without importing torch."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.internals.require import require

REGISTRATIONS = "_logging/_registrations.py"
REGISTRY = ("torch._logging._internal", "log_registry")

OWN = {"aot": ("torch._functorch",), "fx": ("torch.fx",)}
"""Loggers that a component has here beyond torch's list: the partitioner logs outside `aot_autograd`, and FX has no
name."""


class LogNames(msgspec.Struct, frozen=True):
    """What can be asked for.

    Attributes:
        components: name -> the loggers it stands for, e.g. `dynamo` -> `("torch._dynamo", ...)`.
        artifacts: name -> whether a component at DEBUG brings it along (torch calls the others "off by default").
    """

    components: dict[str, tuple[str, ...]]
    artifacts: dict[str, bool]

    def all(self) -> list[str]:
        """Every name, components first."""
        return [*self.components, *self.artifacts]


def known_names() -> LogNames:
    """The names of the installed torch.

    They are read from torch's source: a program may set torch's environment before it imports torch, and that must
    still work. Where the source does not say, torch is imported and asked.

    Raises:
        UnsupportedTorchError: this torch has no such list.
    """
    found = None if REGISTRY[0] in sys.modules else _from_source()
    found = found if found is not None else _from_torch()
    components = dict(found.components)
    for name, loggers in OWN.items():
        components[name] = (*components.get(name, ()), *loggers)
    return LogNames(components, found.artifacts)


def torch_folder() -> Path | None:
    """Where torch lies, without importing it; None when it is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def is_torch_module(name: str) -> bool:
    """Whether `torch.a.b` is a module of the installed torch; nothing is imported."""
    folder = torch_folder()
    first, *rest = name.split(".")
    if folder is None or first != "torch" or not all(part.isidentifier() for part in rest):
        return False
    path = folder.joinpath(*rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _from_source() -> LogNames | None:
    """None when the file is not there, or says it in another way than by literals."""
    folder = torch_folder()
    if folder is None:
        return None
    try:
        tree = ast.parse((folder / REGISTRATIONS).read_text("utf-8"))
        return _read(tree)
    except (OSError, SyntaxError, ValueError, KeyError):
        return None


def _read(tree: ast.Module) -> LogNames | None:
    constants: dict[str, Any] = {}
    components: dict[str, tuple[str, ...]] = {}
    artifacts: dict[str, bool] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            constants[statement.targets[0].id] = _value(statement.value, constants)
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        arguments = [_value(argument, constants) for argument in call.args]
        options = {keyword.arg: _value(keyword.value, constants) for keyword in call.keywords}
        if call.func.id == "register_log":
            loggers = arguments[1]
            components[arguments[0]] = (loggers,) if isinstance(loggers, str) else tuple(loggers)
        elif call.func.id == "register_artifact":
            artifacts[arguments[0]] = not options.get("off_by_default", False)
    return LogNames(components, artifacts) if components and artifacts else None


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    """A literal, with names of constants and `*names` in it."""
    if isinstance(node, ast.Name):
        return constants[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        found: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                found.extend(_value(item.value, constants))
            else:
                found.append(_value(item, constants))
        return found
    return ast.literal_eval(node)


def _from_torch() -> LogNames:
    registry = require(*REGISTRY, purpose="--logs")
    off = registry.off_by_default_artifact_names
    return LogNames(
        {name: tuple(loggers) for name, loggers in registry.log_alias_to_log_qnames.items()},
        {name: name not in off for name in sorted(registry.artifact_names)},
    )
