"""Stands between a program and the operators that it runs outside compiled graphs; never while torch compiles."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from graphprobe.internals.operators.operators import operator_of
from graphprobe.internals.unseen import OWN, unseen

Lines = tuple[tuple[str, int], ...]

_TORCH = str(Path(torch.__file__).parent) + os.sep
_AOT = os.path.join(_TORCH, "_functorch", "_aot_autograd") + os.sep
_DYNAMO = os.path.join(_TORCH, "_dynamo") + os.sep
_FX_CODE = "<eval_with_key>"
_TRACING = ("FAKE", "PROXY", "FUNCTIONAL")


class EagerOp:
    """One call of an operator, before it runs. `name` is e.g. `aten.add.Tensor`."""

    __slots__ = ("args", "kwargs", "name", "target")

    def __init__(self, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs
        operator = operator_of(target)
        assert operator is not None
        self.name = ".".join(filter(None, (operator.namespace, operator.name, operator.overload)))

    def run(self) -> Any:
        """Run it, as the program does, and return what it returns."""
        with unseen:
            return self.target(*self.args, **self.kwargs)

    def written(self) -> list[tuple[str, Any, bool]]:
        """By schema, the arguments that it writes into: slot, value, and whether it returns that as well."""
        schema = self.target._schema
        returned = {name for out in schema.returns if out.alias_info is not None for name in out.alias_info.before_set}
        found = []
        for index, argument in enumerate(schema.arguments):
            alias = argument.alias_info
            if alias is None or not alias.is_write:
                continue
            by_position = index < len(self.args)
            slot = f"input.{index}" if by_position else f"kwarg.{argument.name}"
            value = self.args[index] if by_position else self.kwargs.get(argument.name)
            found.append((slot, value, bool(alias.before_set & returned)))
        return found


Around = Callable[[EagerOp], Any]
"""Is called in place of an operator and returns what the operator shall return; `op.run()` runs it."""


class EagerOps:
    """The operators of the thread that installs it, and of the autograd threads that work for it.

    It is one of torch's dispatch modes, of the kind that torch itself takes off while it compiles. Children that are
    forked later run as if it were not there.
    """

    def __init__(self, around: Around) -> None:
        self._mode: _Mode | None = None
        self._around = around

    @property
    def installed(self) -> bool:
        """Whether operators come by."""
        return self._mode is not None and self._mode.active

    def install(self) -> str:
        """Begin. Returns why that cannot be, and nothing is installed; empty when it is."""
        if compiling():
            return "torch is compiling"
        if torch._C._len_torch_dispatch_stack():
            return "the program is inside a dispatch mode, which would be left in the wrong order"
        self._mode = _Mode(self._around)
        self._mode.__enter__()
        return ""

    def remove(self) -> None:
        """End. Where the program is inside a mode that it entered later, or on another thread, ours stays, idle."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.active = False
        depth = torch._C._len_torch_dispatch_stack()
        if depth and torch._C._get_dispatch_stack_at(depth - 1) is mode:
            mode.__exit__(None, None, None)


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, around: Around) -> None:
        super().__init__()
        self.active = True
        self._around = around
        self._pid = os.getpid()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch takes it off while it compiles, and compiles although it is there."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        idle = not self.active or _compiled.depth or not isinstance(func, OpOverload) or _tracing()
        with unseen:
            if idle or os.getpid() != self._pid:
                return func(*args, **given)
            return self._around(EagerOp(func, args, given))


def _tracing() -> bool:
    """Whether the program traces or fakes: then there are no values."""
    keys = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(getattr(keys, name)) is not None for name in _TRACING)


def compiling() -> bool:
    """Whether this thread is inside a compile."""
    return torch._guards.CompileContext.try_get() is not None or torch._guards.TracingContext.try_get() is not None


def in_compile() -> bool:
    """Whether `torch.compile` compiles on this thread."""
    return torch._guards.CompileContext.try_get() is not None


def in_backward() -> bool:
    """Whether autograd runs on this thread."""
    return torch._C._current_autograd_node() is not None


class _InCompiledCode(threading.local):
    depth = 0


_compiled = _InCompiledCode()


@contextlib.contextmanager
def compiled_graph() -> Iterator[None]:
    """A compiled graph runs in this block: what it calls are no operators of the program."""
    _compiled.depth += 1
    try:
        yield
    finally:
        _compiled.depth -= 1


def program_lines(modules: list[Any] | None = None) -> Lines | None:
    """The program's lines that led here, outermost first; None when a compiled graph led here.

    `modules` receives the modules that are being called, outermost first.

    That is the case when, from the inside out, a frame of torch's runtime for compiled graphs, or code that was
    generated from a graph of Dynamo's, comes before the first line of the program.
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[str, int]] = []
    in_fx = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH):
            if modules is not None and frame.f_code.co_name == "_call_impl":
                modules.insert(0, frame.f_locals.get("self"))
            if not found and (file.startswith(_AOT) or (in_fx and file.startswith(_DYNAMO))):
                return None
        elif file.startswith(_FX_CODE):
            in_fx = in_fx or not found
        elif not found and "async_compile" in frame.f_globals:
            return None
        elif not str(frame.f_globals.get("__name__", "")).startswith(OWN):
            found.append((file.replace(os.sep, "/"), frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))
