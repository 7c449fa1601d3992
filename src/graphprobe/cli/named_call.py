"""What a command is given as `FILE.py:CALLABLE`, and `--backend`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from graphprobe.errors import UsageError, nearest


def callable_of(target: str) -> str | None:
    """`CALLABLE` of `FILE.py:CALLABLE`; None for a script."""
    file, colon, name = target.rpartition(":")
    return name if colon and file and not os.path.exists(target) else None


def check_backend(name: str) -> None:
    """Raises `UsageError` unless torch knows a backend of that name."""
    from graphprobe.internals.compile_calls import backend_names

    known = backend_names()
    if name not in known:
        raise UsageError(f"--backend {name}: there is no such backend", hint=nearest(name, known))


def import_first(module: str) -> None:
    """What `--import` asks for, from the working directory too; raises `UsageError` where that fails."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UsageError(f"--import {module}: {type(error).__name__}: {error}") from error


def call_from_file(file: str, name: str) -> tuple[Any, Any, Any]:
    """The function, its arguments and its keywords that the callable returns, checked."""
    module = _imported(file)
    make = getattr(module, name, None)
    if make is None:
        names = ", ".join(
            n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
        )
        raise UsageError(f"{file} has no {name!r}", hint=f"it has {names}" if names else "it defines no function")
    if not callable(make):
        raise UsageError(f"{name!r} in {file} is a {type(make).__name__}, not a function")
    try:
        made = make()
    except Exception as error:
        traceback.print_exception(error)
        raise UsageError(f"{name}() in {file} raised {type(error).__name__}: {error}") from error
    shape = isinstance(made, (tuple, list)) and len(made) in (2, 3)
    fn, args, kwargs = (*made, {})[:3] if shape else (None, None, None)
    if not callable(fn) or not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        text = repr(made)
        raise UsageError(
            f"{name}() in {file} returned {text if len(text) <= 80 else text[:79] + '…'}",
            hint="it must return (fn, args) or (fn, args, kwargs): a callable, a tuple or list, and a dict",
        )
    return fn, args, kwargs


def _imported(file: str) -> Any:
    """The file as a module of its own name, with its folder in front of the path."""
    import importlib.util

    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no file at {file!r} (looked in {os.getcwd()})", hint="name it as FILE.py:CALLABLE")
    name = path.stem if path.stem not in sys.modules else f"_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo finds the globals of a function by the name of its module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        traceback.print_exception(error)
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module
